//! A Kubernetes API server in the test process, over HTTP, which can inject faults.
//!
//! The server implements only the features that the controller needs. The scenarios run against this server and against
//! a real server. Where the two differ, the real server is right. Known differences: pages after the first one show the
//! current objects; server-side apply treats every list as one field; CEL rules of definitions and `matchPolicy` of
//! webhooks are not evaluated. The garbage collector and the controller of namespaces are in `support/collector.rs`.

mod admission;
pub mod conditions;
mod managers;
mod patch;
pub mod rbac;
mod store;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

pub use rbac::{ADMIN, KUBEVIRT, TOKEN};
pub use store::Call;
use store::{Backup, Kind, Refusal, Store};

/// How the server handles a request.
#[derive(Clone)]
pub enum Fault {
    /// The request is served.
    None,
    /// The response has this status code, and nothing is changed.
    Status(u16),
    /// The response is that of a server which does not serve the kind, and nothing is changed.
    Unserved,
    /// The connection is closed, and nothing is changed.
    LostRequest,
    /// The request is processed, and the connection is closed without a response.
    LostAnswer,
    /// The request waits for a permit, and is then served.
    Hold(Arc<Semaphore>),
    /// The request waits for a permit, is then processed, and the connection is closed without a response.
    HoldAndLose(Arc<Semaphore>),
}

type Decide = Box<dyn FnMut(&Call) -> Fault + Send>;
type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Shared {
    store: Mutex<Store>,
    decide: Mutex<Decide>,
    calls: Mutex<Vec<Call>>,
    /// The version of the store. Watches wait for the next version.
    changed: watch::Sender<u64>,
    /// Counters of the cuts of watches and of the bookmarks. Each change of a counter is a signal for the open watches.
    cuts: watch::Sender<u64>,
    bookmarks: watch::Sender<u64>,
}

/// A running server. Dropping this value stops the server.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

// === impl Server ===

impl Server {
    /// Starts a server on a free port of the loopback address.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("the address of the socket");
        let store = Store::new();
        let shared = Arc::new(Shared {
            changed: watch::Sender::new(store.version()),
            store: Mutex::new(store),
            decide: Mutex::new(Box::new(|_| Fault::None)),
            calls: Mutex::default(),
            cuts: watch::Sender::new(0),
            bookmarks: watch::Sender::new(0),
        });
        let accepting = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&accepting);
                let service = service_fn(move |request| serve(Arc::clone(&shared), request));
                let io = TokioIo::new(stream);
                connections.spawn(async move {
                    drop(auto::Builder::new(TokioExecutor::new()).serve_connection(io, service).await)
                });
            }
        });
        Self { address, shared, task }
    }

    /// Returns the URL of the server.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Makes the server ask `decide` about every later request, in the order in which the requests arrive.
    pub fn set_faults(&self, decide: impl FnMut(&Call) -> Fault + Send + 'static) {
        *lock(&self.shared.decide) = Box::new(decide);
    }

    /// Ends the faults: every later request is served.
    pub fn clear_faults(&self) {
        self.set_faults(|_| Fault::None);
    }

    /// Simulates a crash of the client at its n-th write from now, counted from 0: no later request is served.
    /// `is_done` says whether the n-th write itself is processed.
    pub fn crash_at(&self, n: usize, is_done: bool) {
        let mut writes = 0;
        self.set_faults(move |call| {
            let is_write = !matches!(call.verb, "get" | "list" | "watch");
            let at = writes;
            writes += usize::from(is_write);
            match at.cmp(&n) {
                std::cmp::Ordering::Less => Fault::None,
                std::cmp::Ordering::Equal if is_write && is_done => Fault::LostAnswer,
                std::cmp::Ordering::Equal if !is_write => Fault::None,
                _ => Fault::LostRequest,
            }
        });
    }

    /// Returns the requests that have arrived since this function was called last.
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut lock(&self.shared.calls))
    }

    /// Ends every open watch.
    pub fn cut_watches(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Sends a bookmark to every watch that asked for bookmarks.
    pub fn send_bookmarks(&self) {
        self.shared.bookmarks.send_modify(|bookmarks| *bookmarks += 1);
    }

    /// Returns a backup of all objects.
    pub fn backup(&self) -> Backup {
        lock(&self.shared.store).backup()
    }

    /// Restores a backup and ends every open watch, as an API server does when it restarts. A watch from a version that
    /// is newer than all restored versions reports nothing until a newer version exists.
    pub fn restore(&self, backup: Backup) {
        let mut store = lock(&self.shared.store);
        store.restore(backup);
        self.shared.changed.send_replace(store.version());
        drop(store);
        self.cut_watches();
    }

    /// Forgets all versions before the current one. The response is then 410 to a watch from an older version, and to
    /// the next page of a list that began earlier.
    pub fn compact(&self) {
        let mut store = lock(&self.shared.store);
        store.compacted = store.version();
        store.log.clear();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A request whose connection is closed without a response.
#[derive(Debug)]
struct Lost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the answer is lost")
    }
}

impl std::error::Error for Lost {}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Lost> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let query: BTreeMap<String, String> =
        form_urlencoded::parse(parts.uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
    let user = if header("impersonate-user").is_empty() { ADMIN } else { header("impersonate-user") };
    let is_metadata = header("accept").contains("as=PartialObjectMetadata");
    let Some(mut call) = parse(parts.method.as_str(), parts.uri.path()) else {
        let known = discovery(&lock(&shared.store), parts.uri.path());
        return Ok(known.map_or_else(|| refuse(&Refusal::unserved()), |document| answer(200, &document)));
    };
    call.user = user.to_owned();
    call.user_agent = header("user-agent").to_owned();
    call.content_type = header("content-type").split(';').next().unwrap_or_default().to_owned();
    if call.verb == "list" && query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") {
        call.verb = "watch";
    }
    call.query = query;
    call.body = match body.is_empty() {
        true => Value::Null,
        false => match serde_json::from_slice(&body) {
            Ok(body) => body,
            Err(error) => return Ok(refuse(&Refusal::new(400, "BadRequest", error.to_string()))),
        },
    };
    lock(&shared.calls).push(call.clone());
    let fault = (lock(&shared.decide))(&call);
    match &fault {
        Fault::None | Fault::LostAnswer => {}
        Fault::Status(code) => return Ok(refuse(&Refusal::new(*code, "Fault", "a fault of the test"))),
        Fault::Unserved => return Ok(refuse(&Refusal::unserved())),
        Fault::LostRequest => return Err(Lost),
        Fault::Hold(gate) | Fault::HoldAndLose(gate) => drop(gate.acquire().await),
    }
    if let Some(review) = rbac::review(&call) {
        let is_allowed = rbac::authorize(&lock(&shared.store), &call);
        return Ok(is_allowed.map_or_else(|refusal| refuse(&refusal), |()| answer(201, &review)));
    }
    let result = if call.verb == "watch" {
        open_watch(&shared, &call, is_metadata)
    } else {
        respond(&shared, &call, is_metadata).await
    };
    if matches!(fault, Fault::LostAnswer | Fault::HoldAndLose(_)) {
        return Err(Lost);
    }
    Ok(result.unwrap_or_else(|refusal| refuse(&refusal)))
}

async fn respond(shared: &Shared, call: &Call, is_metadata: bool) -> Result<Response<Body>, Refusal> {
    let show = |kind: &Kind, object: &Value| {
        let object = kind.show(&call.version, object);
        if is_metadata { metadata_of(&object) } else { object }
    };
    if matches!(call.verb, "get" | "list") {
        let store = lock(&shared.store);
        rbac::authorize(&store, call)?;
        if (call.group.as_str(), call.plural.as_str(), call.verb) == ("", "events", "list") {
            return Ok(answer(200, &core_events(&store, call)?));
        }
        let kind = store.kind(call)?;
        if call.verb == "get" {
            return Ok(answer(200, &show(&kind, &store.get(call)?)));
        }
        let (items, metadata) = store.list(call)?;
        let items: Vec<Value> = items.iter().map(|item| show(&kind, item)).collect();
        let group_version = items.first().map_or_else(
            || kind.show(&call.version, &json!({}))["apiVersion"].clone(),
            |item| item["apiVersion"].clone(),
        );
        let (api_version, name) = match is_metadata {
            true => (json!("meta.k8s.io/v1"), "PartialObjectMetadataList".to_owned()),
            false => (group_version, format!("{}List", kind.kind)),
        };
        return Ok(answer(
            200,
            &json!({"apiVersion": api_version, "kind": name, "metadata": metadata, "items": items}),
        ));
    }
    loop {
        let (mut write, hooks) = {
            let mut store = lock(&shared.store);
            rbac::authorize(&store, call)?;
            let write = store.prepare(call)?;
            if call.plural.ends_with("webhookconfigurations") {
                write.new.as_ref().map_or(Ok(()), conditions::check)?;
            }
            for right in rbac::of_owners(&store, call, &write) {
                rbac::authorize(&store, &right)?;
                lock(&shared.calls).push(right);
            }
            let hooks = admission::hooks(&store, call, &write);
            (write, hooks)
        };
        admission::mutate(&hooks, call, &mut write).await?;
        let (kind, operation) = (write.kind.clone(), write.operation);
        if let Some(new) = &mut write.new {
            patch::shape(&kind, &call.version, new, write.old.as_ref())?;
        }
        admission::validate(&hooks, call, &write).await?;
        let mut store = lock(&shared.store);
        if let Some(object) = store.commit(write, call) {
            shared.changed.send_replace(store.version());
            drop(store);
            return Ok(answer(if operation == "CREATE" { 201 } else { 200 }, &show(&kind, &object)));
        }
    }
}

/// Returns the events in the form of the core group, which kubectl reads.
fn core_events(objects: &Store, call: &Call) -> Result<Value, Refusal> {
    let all = Call { group: "events.k8s.io".to_owned(), query: BTreeMap::new(), ..call.clone() };
    let (events, metadata) = objects.list(&all)?;
    let core = |event: Value| {
        json!({
            "metadata": event["metadata"], "involvedObject": event["regarding"], "message": event["note"],
            "reason": event["reason"], "type": event["type"], "eventTime": event["eventTime"], "series": event["series"],
            "reportingComponent": event["reportingController"],
        })
    };
    let items: Vec<Value> = events.into_iter().map(core).filter(|event| store::selects(call, event)).collect();
    Ok(json!({"apiVersion": "v1", "kind": "EventList", "metadata": metadata, "items": items}))
}

fn open_watch(shared: &Arc<Shared>, call: &Call, is_metadata: bool) -> Result<Response<Body>, Refusal> {
    let (kind, initial, mut next) = {
        let store = lock(&shared.store);
        rbac::authorize(&store, call)?;
        let kind = store.kind(call)?;
        let from = call.query.get("resourceVersion").and_then(|text| text.parse::<u64>().ok()).unwrap_or_default();
        if from == 0 {
            let all = Call { query: BTreeMap::new(), ..call.clone() };
            let (items, _) = store.list(&all)?;
            let items: Vec<Value> = items.into_iter().filter(|item| store::selects(call, item)).collect();
            (kind, items, store.version())
        } else if from < store.compacted {
            let status =
                Refusal::new(410, "Expired", format!("too old resource version: {from} ({})", store.compacted))
                    .status();
            let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
            return Ok(reply(200, Full::new(Bytes::from(line)).boxed_unsync()));
        } else {
            (kind, Vec::new(), from)
        }
    };
    let (shared, call) = (Arc::clone(shared), call.clone());
    let (mut changed, mut cuts, mut bookmarks) =
        (shared.changed.subscribe(), shared.cuts.subscribe(), shared.bookmarks.subscribe());
    let wants_bookmarks = call.query.get("allowWatchBookmarks").is_some_and(|wants| wants == "true");
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let line = |event: &str, object: &Value| {
            let object = if is_metadata { metadata_of(object) } else { object.clone() };
            // API servers write the type first. Otherwise a client could not read an event with a deeply nested object.
            sender.send(format!("{{\"type\":\"{event}\",\"object\":{object}}}\n")).is_ok()
        };
        if !initial.iter().all(|object| line("ADDED", &kind.show(&call.version, object))) {
            return;
        }
        loop {
            let events: Vec<store::Event> = {
                let store = lock(&shared.store);
                let new = store.log.partition_point(|event| event.version <= next);
                let events = store.log[new..].iter().filter(|event| store::is_of(&call, &event.key)).cloned().collect();
                next = next.max(store.version());
                events
            };
            for event in events {
                let (was, is) = (
                    event.before.as_ref().is_some_and(|before| store::selects(&call, before)),
                    store::selects(&call, &event.object),
                );
                let word = match (was, is && !event.deleted) {
                    (true, true) => "MODIFIED",
                    (false, true) => "ADDED",
                    (true, false) => "DELETED",
                    (false, false) => continue,
                };
                if !line(word, &kind.show(&call.version, &event.object)) {
                    return;
                }
            }
            tokio::select! {
                _ = changed.changed() => {}
                _ = cuts.changed() => return,
                _ = sender.closed() => return,
                Ok(()) = bookmarks.changed(), if wants_bookmarks => {
                    let object = kind.show(&call.version, &json!({"metadata": {"resourceVersion": next.to_string()}}));
                    if !line("BOOKMARK", &object) {
                        return;
                    }
                }
            }
        }
    });
    let lines = stream::unfold(receiver, |mut receiver| async move {
        let line = receiver.recv().await?;
        Some((Ok(Frame::data(Bytes::from(line))), receiver))
    });
    Ok(reply(200, BodyExt::boxed_unsync(StreamBody::new(lines))))
}

/// Parses method and path of a request for objects. `None`: the request is not for objects.
fn parse(method: &str, path: &str) -> Option<Call> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, rest) = match &parts[..] {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !matches!(rest, ["status" | "finalize"]) => {
            (Some(*namespace), rest)
        }
        rest => (None, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
        _ => return None,
    };
    let verb = match (method, name) {
        ("GET", Some(_)) => "get",
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        _ => return None,
    };
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Some(Call {
        verb,
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        namespace: owned(namespace),
        name: owned(name),
        subresource: owned(subresource),
        ..Call::default()
    })
}

fn discovery(store: &Store, path: &str) -> Option<Value> {
    let group_version = |kind: &Kind, version: &str| match kind.group.as_str() {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    let resources = |group: &str, version: &str| {
        let mut list = Vec::new();
        for kind in
            store.kinds().filter(|kind| kind.group == group && kind.versions.iter().any(|(name, _)| name == version))
        {
            let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
            list.push(json!({"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}));
            if kind.status {
                let name = format!("{}/status", kind.plural);
                list.push(json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": ["get", "patch", "update"]}));
            }
        }
        let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        (!list.is_empty())
            .then(|| json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": list}))
    };
    match path.trim_matches('/').split('/').collect::<Vec<_>>()[..] {
        ["version"] => Some(
            json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0-glowplug", "gitCommit": "", "gitTreeState": "clean", "buildDate": "",
                                   "goVersion": "", "compiler": "", "platform": "linux/amd64"}),
        ),
        ["readyz" | "healthz" | "livez"] => Some(json!("ok")),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => {
            let mut groups: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
            for kind in store.kinds().filter(|kind| !kind.group.is_empty()) {
                for (version, _) in &kind.versions {
                    let version = json!({"groupVersion": group_version(kind, version), "version": version});
                    let versions = groups.entry(&kind.group).or_default();
                    if !versions.contains(&version) {
                        versions.push(version);
                    }
                }
            }
            let groups: Vec<Value> = groups
                .into_iter()
                .map(|(name, versions)| json!({"name": name, "preferredVersion": versions[0], "versions": versions}))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources("", version),
        ["apis", group, version] => resources(group, version),
        _ => None,
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
}

fn refuse(refusal: &Refusal) -> Response<Body> {
    match refusal.reason {
        "" => reply(refusal.code, Full::new(Bytes::from(refusal.message.clone())).boxed_unsync()),
        _ => answer(refusal.code, &refusal.status()),
    }
}

fn answer(code: u16, document: &Value) -> Response<Body> {
    reply(code, Full::new(Bytes::from(document.to_string())).boxed_unsync())
}

fn reply(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = hyper::StatusCode::from_u16(code).unwrap_or(hyper::StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("application/json"));
    response
}
