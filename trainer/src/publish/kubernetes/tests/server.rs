//! An API server that holds what a real one would of the two kinds: over HTTPS, with tokens and the rights of
//! `envoy/kubernetes/rbac.yaml`, server-side apply with field managers, resource versions, validation and a size bound.

// JSON is written where it is passed.
#![allow(clippy::needless_pass_by_value)]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::tls::{TlsListener, TlsOptions, server_config};

pub(super) const TOKEN: &str = "the-service-account";

/// etcd's default of `--max-request-bytes`.
const ETCD_BYTES: usize = 3 << 19;

/// One object and who owns which of its fields.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    pub(super) object: Value,
    pub(super) owners: BTreeMap<String, String>,
    pub(super) resource_version: u64,
    pub(super) generation: i64,
}

/// What one request will get instead of an answer.
pub(super) type Fault = (u16, Value);

#[derive(Default)]
struct Held {
    objects: BTreeMap<(String, String, String), Stored>,
    faults: VecDeque<Fault>,
}

pub(super) struct Api {
    held: Mutex<Held>,
    rules: Vec<Value>,
    patches: mpsc::UnboundedSender<(String, u16)>,
}

/// A `Status` as the real server answers with.
pub(super) fn status(code: u16, reason: &str, message: &str, details: Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details,
    })
}

/// The server, its address, and every patch it got with the status it gave.
pub(super) struct Running {
    pub(super) api: Arc<Api>,
    pub(super) address: SocketAddr,
    pub(super) patches: mpsc::UnboundedReceiver<(String, u16)>,
    pub(super) dir: tempfile::TempDir,
}

impl Running {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener)
    }

    pub(super) fn on(listener: TcpListener) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, patches) = mpsc::unbounded_channel();
        let api = Arc::new(Api { held: Mutex::default(), rules: rules(), patches: sender });
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate =
            rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        std::fs::write(dir.path().join("key.pem"), key.serialize_pem()).unwrap();
        let options =
            TlsOptions { cert: dir.path().join("ca.pem"), key: dir.path().join("key.pem"), client_ca: None };
        let listener = TlsListener::start(listener, server_config(&options, "http/1.1").unwrap()).unwrap();
        let router = Router::new()
            .route("/apis/{group}/{version}/namespaces/{namespace}/{plural}/{name}", get(read).patch(patch))
            // The real one's bound on a body.
            .layer(DefaultBodyLimit::max(3 << 20))
            .with_state(api.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        Self { api, address, patches, dir }
    }

    /// A kubeconfig for this server with that token.
    pub(super) fn kubeconfig(&self, token: &str) -> PathBuf {
        let path = self.dir.path().join(format!("kubeconfig-{token}"));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{}", self.address),
                "certificate-authority": self.dir.path().join("ca.pem"),
            }}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        });
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// Puts an object there as another manager would.
    pub(super) fn put(&self, plural: &str, namespace: &str, name: &str, spec: Value, manager: &str) {
        let mut stored = Stored::default();
        let (api_version, kind) = if plural == "wasmplugins" {
            ("extensions.istio.io/v1alpha1", "WasmPlugin")
        } else {
            ("networking.istio.io/v1alpha3", "EnvoyFilter")
        };
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}, "spec": spec});
        apply(&mut stored, &object, manager, false).unwrap();
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.api.held.lock().unwrap().objects.insert(key, stored);
    }

    pub(super) fn stored(&self, plural: &str, namespace: &str, name: &str) -> Option<Stored> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.api.held.lock().unwrap().objects.get(&key).cloned()
    }

    /// The next patches get these answers.
    pub(super) fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.api.held.lock().unwrap().faults.extend(faults);
    }

    /// The next patch: object and status.
    pub(super) async fn next(&mut self) -> (String, u16) {
        let wait = tokio::time::timeout(std::time::Duration::from_secs(20), self.patches.recv());
        wait.await.expect("a patch within 20 s").unwrap()
    }

    /// Passes over patches until one succeeds.
    pub(super) async fn applied(&mut self) -> String {
        loop {
            let (object, status) = self.next().await;
            if status == 200 {
                return object;
            }
        }
    }
}

/// The rules of the committed role.
fn rules() -> Vec<Value> {
    let text = include_str!("../../../../../envoy/kubernetes/rbac.yaml");
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let role = documents.iter().find(|document| document["kind"] == "Role").unwrap();
    role["rules"].as_array().unwrap().clone()
}

impl Api {
    fn may(&self, group: &str, plural: &str, name: &str, verb: &str) -> bool {
        let has =
            |list: &Value, value: &str| list.as_array().is_some_and(|list| list.iter().any(|v| v == value));
        self.rules.iter().any(|rule| {
            let named = &rule["resourceNames"];
            has(&rule["apiGroups"], group)
                && has(&rule["resources"], plural)
                && has(&rule["verbs"], verb)
                // A right to create cannot be bound to a name: the name is not known yet.
                && (named.is_null() || (verb != "create" && has(named, name)))
        })
    }

    fn check(&self, headers: &HeaderMap, at: &At, verb: &str) -> Result<(), Fault> {
        if headers.get(header::AUTHORIZATION).is_none_or(|value| value != &format!("Bearer {TOKEN}")) {
            return Err((401, status(401, "Unauthorized", "Unauthorized", json!({}))));
        }
        let (group, _, _, plural, name) = at;
        if !self.may(group, plural, name, verb) {
            let message = format!("{plural}.{group} \"{name}\" is forbidden: cannot {verb}");
            return Err((403, status(403, "Forbidden", &message, json!({}))));
        }
        Ok(())
    }
}

/// Group, version, namespace, plural, name.
type At = (String, String, String, String, String);

fn answer((code, body): Fault) -> Response {
    let code = StatusCode::from_u16(code).unwrap();
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn not_found(at: &At) -> Fault {
    let message = format!("{}.{} \"{}\" not found", at.3, at.0, at.4);
    (404, status(404, "NotFound", &message, json!({})))
}

async fn read(State(api): State<Arc<Api>>, Path(at): Path<At>, headers: HeaderMap) -> Response {
    if let Err(refusal) = api.check(&headers, &at, "get") {
        return answer(refusal);
    }
    // Metadata alone is asked for.
    assert!(headers[header::ACCEPT].to_str().unwrap().contains("as=PartialObjectMetadata"));
    let held = api.held.lock().unwrap();
    let Some(stored) = held.objects.get(&(at.3.clone(), at.2.clone(), at.4.clone())) else {
        return answer(not_found(&at));
    };
    let metadata = stored.object["metadata"].clone();
    answer((
        200,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}),
    ))
}

async fn patch(
    State(api): State<Arc<Api>>,
    Path(at): Path<At>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let result = patched(&api, &at, &query, &headers, &body);
    let code = result.as_ref().map_or_else(|(code, _)| *code, |_| 200);
    let _ = api.patches.send((format!("{}/{}/{}", at.3, at.2, at.4), code));
    answer(result.map_or_else(|fault| fault, |object| (200, object)))
}

fn patched(
    api: &Api,
    at: &At,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Value, Fault> {
    api.check(headers, at, "patch")?;
    assert_eq!(headers[header::CONTENT_TYPE], "application/apply-patch+yaml");
    let manager = query.get("fieldManager").expect("server-side apply needs a field manager");
    let force = query.get("force").is_some_and(|force| force == "true");
    let mut held = api.held.lock().unwrap();
    if let Some(fault) = held.faults.pop_front() {
        return Err(fault);
    }
    let applied: Value = serde_json::from_slice(body).unwrap();
    let key = (at.3.clone(), at.2.clone(), at.4.clone());
    assert_eq!(applied["metadata"]["namespace"], at.2);
    assert_eq!(applied["apiVersion"], format!("{}/{}", at.0, at.1));
    if !held.objects.contains_key(&key) {
        api.check(headers, at, "create")?;
    }
    let mut stored = held.objects.get(&key).cloned().unwrap_or_default();
    apply(&mut stored, &applied, manager, force)?;
    if at.3 == "wasmplugins" && stored.object["spec"]["url"].is_null() {
        let message =
            format!("WasmPlugin.extensions.istio.io \"{}\" is invalid: spec.url: Required value", at.4);
        return Err((422, status(422, "Invalid", &message, json!({}))));
    }
    if stored.object.to_string().len() > ETCD_BYTES {
        return Err((500, status(500, "", "etcdserver: request is too large", json!({}))));
    }
    let object = stored.object.clone();
    held.objects.insert(key, stored);
    Ok(object)
}

/// Every leaf under `spec` and the annotations, by its path.
fn leaves(value: &Value, path: &str, out: &mut BTreeMap<String, Value>) {
    match value.as_object() {
        Some(object) => object.iter().for_each(|(key, value)| leaves(value, &format!("{path}.{key}"), out)),
        None => {
            out.insert(path.to_owned(), value.clone());
        }
    }
}

fn managed(object: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    leaves(&object["spec"], ".spec", &mut found);
    if !object["metadata"]["annotations"].is_null() {
        leaves(&object["metadata"]["annotations"], ".metadata.annotations", &mut found);
    }
    found
}

/// Server-side apply: a manager's fields are exactly those that it applied last; another's are not touched.
fn apply(stored: &mut Stored, applied: &Value, manager: &str, force: bool) -> Result<(), Fault> {
    let (before, wanted) = (managed(&stored.object), managed(applied));
    let mut causes = Vec::new();
    for (path, value) in &wanted {
        let owner = stored.owners.get(path).filter(|owner| *owner != manager);
        if let (Some(owner), false) = (owner, force || before.get(path) == Some(value)) {
            causes.push(json!({"reason": "FieldManagerConflict", "field": path, "message": format!("conflict with \"{owner}\"")}));
        }
    }
    if !causes.is_empty() {
        let message = format!("Apply failed with {} conflicts", causes.len());
        return Err((409, status(409, "Conflict", &message, json!({"causes": causes}))));
    }
    let mut after = before.clone();
    after.retain(|path, _| {
        stored.owners.get(path).is_none_or(|owner| owner != manager) || wanted.contains_key(path)
    });
    stored.owners.retain(|path, _| after.contains_key(path));
    for (path, value) in wanted {
        stored.owners.insert(path.clone(), manager.to_owned());
        after.insert(path, value);
    }
    let spec = |all: &BTreeMap<String, Value>| {
        all.iter()
            .filter(|(path, _)| path.starts_with(".spec"))
            .map(|(p, v)| (p.clone(), v.clone()))
            .collect::<Vec<_>>()
    };
    if before != after {
        stored.resource_version += 1;
        stored.generation += i64::from(spec(&before) != spec(&after));
    }
    let mut object = json!({"apiVersion": applied["apiVersion"], "kind": applied["kind"], "metadata": applied["metadata"]});
    object["metadata"]["resourceVersion"] = stored.resource_version.to_string().into();
    object["metadata"]["generation"] = stored.generation.into();
    object["metadata"]["annotations"] = json!({});
    for (path, value) in after {
        // Keys of annotations have dots of their own.
        match path.strip_prefix(".metadata.annotations.") {
            Some(key) => object["metadata"]["annotations"][key] = value,
            None => {
                let pointer = path.replace('.', "/");
                set(&mut object, &pointer[1..], value);
            }
        }
    }
    stored.object = object;
    Ok(())
}

fn set(object: &mut Value, path: &str, value: Value) {
    match path.split_once('/') {
        None => object[path] = value,
        Some((first, rest)) => {
            if object[first].is_null() {
                object[first] = json!({});
            }
            set(&mut object[first], rest, value);
        }
    }
}
