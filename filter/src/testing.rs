//! An Envoy in memory with workers, for the tests of roots and streams.

use std::cell::Cell;
use std::rc::Rc;

use foretoken_core::features::{COUNT, Feature, SCHEMA_ID};
use foretoken_core::model::contract::{self, Output, Target, Unit};
use foretoken_core::model::ensemble::{Ensemble, Node};
use foretoken_core::model::{onnx, packed};

use crate::host::mock::{Made, MockHost, World};
use crate::host::{Buffer, Headers};
use crate::root::Root;
use crate::stream::{Flow, Stream};
use crate::vm::Vm;

pub(crate) const PICK: &str = "x-gateway-destination-endpoint";

/// A streamed answer of two tokens.
pub(crate) const ANSWER: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
    data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":2}}\n\n\
    data: [DONE]\n\n";

pub(crate) fn config(more: &str) -> String {
    format!(r#"{{"cluster":"pods","endpoints":{{"addresses":["10.0.0.1:80","10.0.0.2:80"]}}{more}}}"#)
}

pub(crate) fn body(prompt: &str) -> String {
    format!(
        r#"{{"model":"m","stream":true,"max_tokens":16,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#
    )
}

/// `, "model": …` with a model that predicts a TTFT of 10 ms where nothing is in flight, 1000 ms elsewhere.
pub(crate) fn model(generation: u64, schema: &str) -> String {
    let mut ttft = Ensemble::new(COUNT);
    let branch = Node::Branch {
        feature: Feature::InflightRequests as u32,
        threshold: 0.5,
        yes: 1,
        no: 2,
        missing_yes: true,
    };
    ttft.push(&[branch, Node::Leaf { value: 10.0 }, Node::Leaf { value: 1000.0 }]).unwrap();
    let mut tpot = Ensemble::new(COUNT);
    tpot.push_constant(5.0).unwrap();
    let metadata = [
        (contract::KEY_SCHEMA, schema.to_owned()),
        (contract::KEY_FEATURES, contract::feature_names()),
        (contract::KEY_MODEL_ID, format!("model-{generation}")),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let outputs: Vec<(Output, &Ensemble)> = Output::ALL
        .into_iter()
        .filter(|output| output.unit == Unit::Ms)
        .map(|output| (output, if output.target == Target::Ttft { &ttft } else { &tpot }))
        .collect();
    let packed = packed::pack(&onnx::write::write(&metadata, &outputs));
    format!(r#","model":{{"generation":{generation},"onnx_deflate_base64":"{packed}"}}"#)
}

pub(crate) fn good_model(generation: u64) -> String {
    model(generation, SCHEMA_ID)
}

/// One worker (or the main thread): a VM with the root that was configured last.
pub(crate) struct Worker {
    pub(crate) host: Rc<MockHost>,
    pub(crate) vm: Rc<Vm>,
    pub(crate) root: Root,
    next_root: Cell<u32>,
}

impl Worker {
    pub(crate) fn unconfigured(world: &Rc<World>) -> Self {
        let host = MockHost::of(world);
        let vm = Rc::new(Vm::new(Rc::<MockHost>::clone(&host)));
        let root = Root::new(1, Rc::clone(&vm));
        host.put_property(&["plugin_name"], b"foretoken");
        Self { host, vm, root, next_root: Cell::new(2) }
    }

    /// A worker that has this configuration and knows its pods.
    pub(crate) fn new(world: &Rc<World>, config: &str) -> Self {
        let mut worker = Self::unconfigured(world);
        assert!(worker.configure(config));
        // The first tick takes the lease, the pods and a slot.
        worker.tick();
        worker
    }

    /// Makes a new root with this configuration. The old one, returned if it was replaced, lives on.
    pub(crate) fn push(&mut self, config: &str) -> (bool, Root) {
        let id = self.next_root.replace(self.next_root.get() + 1);
        let mut root = Root::new(id, Rc::clone(&self.vm));
        self.host.set_buffer(Buffer::Configuration, config.as_bytes());
        let taken = root.configure(config.len());
        if taken { (true, std::mem::replace(&mut self.root, root)) } else { (false, root) }
    }

    pub(crate) fn configure(&mut self, config: &str) -> bool {
        self.host.set_buffer(Buffer::Configuration, config.as_bytes());
        self.root.configure(config.len())
    }

    pub(crate) fn tick(&mut self) {
        self.host.world.now_us.set(self.host.world.now_us.get() + 50_000);
        self.root.tick();
    }

    /// The callouts made since the last time to this cluster.
    pub(crate) fn calls_to(&self, cluster: &str) -> Vec<Made> {
        self.host.take_calls().into_iter().filter(|call| call.cluster == cluster).collect()
    }

    pub(crate) fn answer(&mut self, call: &Made, status: u16, body: &str) {
        self.host.set_headers(Headers::Callout, &[(":status", &status.to_string())]);
        self.host.set_buffer(Buffer::CalloutBody, body.as_bytes());
        self.root.call_response(call.token, 1, body.len());
    }

    /// A request's headers, with these besides the usual ones (a later one of a name takes its place).
    pub(crate) fn open(&self, more: &[(&str, &str)]) -> (Stream, Flow) {
        let mut headers = vec![
            (":method", "POST"),
            (":path", "/v1/chat/completions"),
            (":authority", "llm"),
            ("content-type", "application/json"),
        ];
        headers.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
        headers.extend(more);
        self.host.set_headers(Headers::Request, &headers);
        let mut stream = self.root.stream();
        let flow = stream.request_headers(false);
        (stream, flow)
    }

    /// A request that was sent on.
    pub(crate) fn send(&self, prompt: &str, more: &[(&str, &str)]) -> Stream {
        let (mut stream, flow) = self.open(more);
        assert_eq!(flow, Flow::Hold);
        let body = body(prompt);
        self.host.set_buffer(Buffer::RequestBody, body.as_bytes());
        assert_eq!(stream.request_body(body.len(), true), Flow::Continue);
        stream
    }

    /// The pods picked for the request that was sent last.
    pub(crate) fn picked(&self) -> Option<String> {
        self.host.header_text(Headers::Request, PICK)
    }

    /// Headers of a streamed answer from this pod.
    pub(crate) fn answer_head(&self, stream: &mut Stream, pod: &str, attempts: u64) {
        self.host
            .set_headers(Headers::Response, &[(":status", "200"), ("content-type", "text/event-stream")]);
        self.host.put_property(&["upstream", "address"], pod.as_bytes());
        self.host.put_property(&["upstream", "request_attempt_count"], &attempts.to_le_bytes());
        stream.response_headers(false);
    }

    /// A part of the answer, 10 ms later.
    pub(crate) fn answer_part(&self, stream: &mut Stream, part: &str, end: bool) {
        self.host.world.now_us.set(self.host.world.now_us.get() + 10_000);
        self.host.set_buffer(Buffer::ResponseBody, part.as_bytes());
        stream.response_body(part.len(), end);
    }

    /// Envoy closes the stream.
    pub(crate) fn close(&self, mut stream: Stream) {
        stream.closed();
        stream.closed();
    }

    /// Requests in flight by this worker's books.
    pub(crate) fn inflight(&self) -> usize {
        self.vm.state("foretoken/foretoken/pods").unwrap().borrow().router.inflight()
    }

    /// The samples that come out at the next ticks.
    pub(crate) fn samples(&mut self) -> Vec<foretoken_core::sample::Sample> {
        self.host.take_calls();
        for _ in 0..8 {
            self.tick();
        }
        let batches = self.calls_to("trainer");
        batches
            .iter()
            .flat_map(|call| call.body.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}
