//! The callbacks' way from the SDK's traits to the filter. Nothing is decided here.
//!
//! The SDK holds its table of contexts borrowed while a callback runs. That is safe because no host call that
//! the filter makes calls back before it returns.

use std::rc::Rc;

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

use crate::host::abi::Envoy;
use crate::host::logger;
use crate::root::Root;
use crate::stream::{Flow, Stream};
use crate::vm::Vm;

thread_local! {
    /// A VM has one thread; several configurations, old and new, run in it.
    static VM: Rc<Vm> = Rc::new(Vm::new(Rc::new(Envoy)));
}

/// Called once, when the VM starts.
pub(crate) fn start() {
    logger::install();
    proxy_wasm::set_root_context(|context_id| Box::new(SdkRoot(Root::new(context_id, VM.with(Rc::clone)))));
}

struct SdkRoot(Root);

impl Context for SdkRoot {
    fn on_http_call_response(
        &mut self,
        token: u32,
        num_headers: usize,
        body_size: usize,
        _num_trailers: usize,
    ) {
        self.0.call_response(token, num_headers, body_size);
    }

    fn on_done(&mut self) -> bool {
        self.0.done()
    }
}

impl RootContext for SdkRoot {
    fn on_vm_start(&mut self, _size: usize) -> bool {
        logger::follow_envoy();
        true
    }

    fn on_configure(&mut self, size: usize) -> bool {
        self.0.configure(size)
    }

    fn on_tick(&mut self) {
        self.0.tick();
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(SdkStream(self.0.stream())))
    }
}

struct SdkStream(Stream);

fn action(flow: Flow) -> Action {
    match flow {
        Flow::Continue => Action::Continue,
        Flow::Hold => Action::Pause,
    }
}

impl Context for SdkStream {
    fn on_done(&mut self) -> bool {
        self.0.closed();
        true
    }
}

impl HttpContext for SdkStream {
    fn on_http_request_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        action(self.0.request_headers(end_of_stream))
    }

    fn on_http_request_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        action(self.0.request_body(body_size, end_of_stream))
    }

    fn on_http_request_trailers(&mut self, _num_trailers: usize) -> Action {
        action(self.0.request_trailers())
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, end_of_stream: bool) -> Action {
        self.0.response_headers(end_of_stream);
        Action::Continue
    }

    fn on_http_response_body(&mut self, body_size: usize, end_of_stream: bool) -> Action {
        self.0.response_body(body_size, end_of_stream);
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _num_trailers: usize) -> Action {
        self.0.response_trailers();
        Action::Continue
    }

    fn on_log(&mut self) {
        self.0.closed();
    }
}
