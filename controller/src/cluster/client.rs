//! The client of the API server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use http::Method;
use http::header::{HeaderValue, USER_AGENT};
use kube::api::ApiResource;
use kube::client::Body;
use kube::config::{Kubeconfig, KubeconfigError};
use kube::{Client, Config, Error};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::request::with_causes;
use crate::cluster::term::{Term, Writes};
use crate::metrics::Metrics;

/// Connects to the API server of `config`.
///
/// The client never repeats a request on its own. By default, kube repeats a request 15 times, up to 1,000 seconds
/// apart, and would repeat a `POST` that may have been stored.
///
/// Every request names the program and its version. For a write, the API server records the name of the program as the
/// manager of the fields that the write sets.
///
/// # Errors
///
/// The configuration has no usable address or certificate.
pub fn connect(config: Config) -> kube::Result<Client> {
    connect_as(concat!("glowplug-controller/", env!("CARGO_PKG_VERSION")), config)
}

/// Connects like [`connect`]. `program` is the name and the version of the program.
///
/// # Errors
///
/// The same errors as for [`connect`].
pub fn connect_as(program: &'static str, mut config: Config) -> kube::Result<Client> {
    config.headers.push((USER_AGENT, HeaderValue::from_static(program)));
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    // If the server fails without closing the connection, no answer and no error arrives. Only this timeout then ends a
    // list or the start of a watch. A watch itself lasts less than 5 minutes.
    config.read_timeout = Some(Duration::from_secs(300));
    config.reset_reader_on_write = true;
    Client::try_from(config)
}

/// Reads a kubeconfig file. `None`: the files in `KUBECONFIG`, or else `~/.kube/config`, as kubectl reads them.
///
/// # Errors
///
/// A file cannot be read. The message names the file, unless `file` is `None` and the content of a file is invalid.
pub fn read_kubeconfig(file: Option<&Path>) -> anyhow::Result<Kubeconfig> {
    let read = match file {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    read.map_err(|error| match (&error, file) {
        (KubeconfigError::ReadConfig(error, path), _) => anyhow!("reading {}: {error}", path.display()),
        (error, Some(file)) => anyhow!("reading {}: {}", file.display(), kubeconfig_message(error)),
        (error, None) => anyhow!("reading the kubeconfig file: {}", kubeconfig_message(error)),
    })
}

/// Returns the message about a kubeconfig file that cannot be used. The message already includes the cause of the
/// error. If the file cannot be parsed, the message names the line and the column of the mistake, and quotes nothing
/// from the file, because the line may have a token or a key.
#[must_use]
pub fn kubeconfig_message(error: &KubeconfigError) -> String {
    let KubeconfigError::Parse(error) = error else { return error.to_string() };
    let place = error.location().map(|at| format!("line {} column {}: ", at.line(), at.column())).unwrap_or_default();
    format!("{place}not readable, expected a kubeconfig file")
}

/// Returns a client whose errors name the API server if a request gets no answer.
#[must_use]
pub fn naming_server(client: &Client, server: &http::Uri) -> Client {
    let (client, namespace) = (client.clone(), client.default_namespace().to_owned());
    // The address may have a user with a password, so the message names only scheme, host and port.
    let port = server.port().map(|port| format!(":{port}")).unwrap_or_default();
    let server = format!("{}://{}{port}", server.scheme_str().unwrap_or("https"), server.host().unwrap_or_default());
    let send = move |request: http::Request<Body>| {
        let (client, server) = (client.clone(), server.clone());
        async move {
            client.send(request).await.map_err(|error| {
                let cause = match &error {
                    Error::Service(error) => with_causes(&**error),
                    error => with_causes(error),
                };
                Error::Service(format!("{server}: {cause}").into())
            })
        }
    };
    Client::new(tower::service_fn(send), namespace)
}

/// Returns a client that counts its requests by the status codes of the answers.
#[must_use]
pub fn counted(client: &Client, metrics: &Arc<Metrics>) -> Client {
    let (client, namespace, metrics) = (client.clone(), client.default_namespace().to_owned(), Arc::clone(metrics));
    let send = move |request: http::Request<Body>| {
        let (client, metrics) = (client.clone(), Arc::clone(&metrics));
        async move {
            let method = request.method().clone();
            let answer = client.send(request).await;
            metrics.count_request(method.as_str(), answer.as_ref().ok().map(|answer| answer.status().as_u16()));
            answer
        }
    };
    Client::new(tower::service_fn(send), namespace)
}

/// Returns a client for the work of a leader in its `term`. After the term, the client only reads objects and deletes
/// Secrets.
///
/// Without this limit, a leader that was paused could continue with a write after another leader has released the
/// address in the request, or could delete a pool that is needed again. The clock shows the end of the term before any
/// task of this process notices the end. The deletion of a Secret is safe at any time: it names the UID of a Secret
/// whose machine is gone or has another Secret. It also removes a Secret that the API server has received late.
///
/// The API server may receive a request after the term although the client sent it during the term. No client can
/// prevent this. `writes` counts each write until the API server answers it, even if the caller stops waiting.
///
/// `current` has the current term of this process.
#[must_use]
pub fn of_leader(client: &Client, term: Term, current: watch::Receiver<Option<Term>>, writes: Writes) -> Client {
    let (client, namespace) = (client.clone(), client.default_namespace().to_owned());
    let send = move |request: http::Request<Body>| {
        let (client, current, Writes(writes)) = (client.clone(), current.clone(), writes.clone());
        async move {
            if is_safe_at_any_time(&request) {
                return client.send(request).await;
            }
            let under_way = writes.read_owned().await;
            let current = *current.borrow();
            if !current.is_some_and(|current| term.is(Some(current)) && current.includes(Instant::now())) {
                return Err(Error::Service("the term of this leader has ended, the write is not sent".into()));
            }
            let write = async move {
                let answer = client.send(request).await;
                drop(under_way);
                answer
            };
            tokio::spawn(write).await.map_err(|error| Error::Service(error.into()))?
        }
    };
    Client::new(tower::service_fn(send), namespace)
}

/// Whether a request reads objects or deletes a Secret.
fn is_safe_at_any_time(request: &http::Request<Body>) -> bool {
    let path: Vec<&str> = request.uri().path().split('/').collect();
    match *request.method() {
        Method::GET => true,
        Method::DELETE => matches!(path[..], ["", "api", "v1", "namespaces", _, "secrets", _]),
        _ => false,
    }
}

/// Whether the API server serves a kind in the version of `resource`, according to its list of groups and versions.
///
/// An answer with the code 404 does not prove that a kind is not served: the answer may come from a proxy in front of
/// the API server, or from an API server that is still starting.
///
/// # Errors
///
/// A request failed.
pub async fn serves(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    Ok(names_version(client, resource).await? && has_kind(client, resource).await?)
}

/// Whether the API server serves a kind, like [`serves`]. If the list of groups names the version, and the API server
/// has no list of its kinds, the kind counts as not served: its definition is not established. Only for kinds whose
/// absence releases no address.
///
/// # Errors
///
/// A request failed.
pub async fn serves_established(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    match names_version(client, resource).await? {
        true => match has_kind(client, resource).await {
            Err(Error::Api(status)) if status.code == 404 => Ok(false),
            answer => answer,
        },
        false => Ok(false),
    }
}

/// Whether the list of groups has the version of a kind.
async fn names_version(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    let ApiResource { group, api_version, .. } = resource;
    if group.is_empty() {
        return Ok(true);
    }
    let groups = client.list_api_groups().await?.groups.into_iter().filter(|served| served.name == *group);
    Ok(groups.flat_map(|served| served.versions).any(|version| version.group_version == *api_version))
}

/// Whether the list of the kinds of a version has a kind.
async fn has_kind(client: &Client, resource: &ApiResource) -> kube::Result<bool> {
    if resource.group.is_empty() {
        return Ok(true);
    }
    let list = client.list_api_group_resources(&resource.api_version).await?;
    Ok(list.resources.iter().any(|served| served.name == resource.plural))
}

/// Returns the answer to a read of objects of `resource`. `None`: the API server does not serve this kind.
///
/// # Errors
///
/// The read failed, or the API server could not be asked whether it serves the kind.
pub async fn if_served<T>(client: &Client, resource: &ApiResource, answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(Error::Api(status)) if status.code == 404 && !serves(client, resource).await? => Ok(None),
        answer => answer.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::{Notify, Semaphore};

    use super::*;
    use crate::program::election::tests::term;

    #[test]
    fn an_error_of_a_kubeconfig_file_names_the_file_once() {
        let error = |file: &Path| read_kubeconfig(Some(file)).unwrap_err().to_string();
        let absent = error(Path::new("/nowhere/config"));
        assert_eq!(absent, "reading /nowhere/config: No such file or directory (os error 2)");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        std::fs::write(&file, "users: 7").unwrap();
        let expected = format!("reading {}: line 1 column 8: not readable, expected a kubeconfig file", file.display());
        assert_eq!(error(&file), expected);
    }

    /// Returns a client whose API server counts the requests, and the count.
    fn client() -> (Client, Arc<AtomicUsize>) {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&count);
        let answer = move |_: http::Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Error>(http::Response::new(Body::empty())) }
        };
        (Client::new(tower::service_fn(answer), "glowplug-system"), count)
    }

    /// Sends a request, and returns the error message if it fails.
    async fn send(client: &Client, method: Method) -> Option<String> {
        send_to(client, method, "/api/v1/namespaces/n/secrets/s").await
    }

    async fn send_to(client: &Client, method: Method, path: &str) -> Option<String> {
        let request = http::Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        client.send(request).await.err().map(|error| error.to_string())
    }

    const ENDED: Option<&str> = Some("ServiceError: the term of this leader has ended, the write is not sent");

    #[tokio::test(start_paused = true)]
    async fn a_leader_writes_only_in_its_term() {
        let (client, count) = client();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let (current, terms) = watch::channel(Some(term(1, now + second)));
        let leader = of_leader(&client, term(1, now + second), terms, Writes::default());
        assert_eq!(leader.default_namespace(), "glowplug-system");
        let post = async || send(&leader, Method::POST).await;
        assert_eq!(post().await, None);
        // The clock ends the term before any task reports the end.
        tokio::time::advance(second).await;
        for method in [Method::POST, Method::PUT, Method::PATCH] {
            assert_eq!(send(&leader, method).await.as_deref(), ENDED);
        }
        current.send_replace(Some(term(1, now + second * 2)));
        assert_eq!(post().await, None);
        for other in [None, Some(term(2, now + second * 2))] {
            current.send_replace(other);
            assert_eq!(post().await.as_deref(), ENDED);
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_counts_as_unanswered_until_its_answer_even_if_its_caller_stops_waiting() {
        let gate = Arc::new(Semaphore::new(0));
        let (held, came) = (Arc::clone(&gate), Arc::new(Notify::new()));
        let coming = Arc::clone(&came);
        let answer = move |_: http::Request<Body>| {
            let (held, came) = (Arc::clone(&held), Arc::clone(&came));
            async move {
                came.notify_one();
                drop(held.acquire().await);
                Ok::<_, Error>(http::Response::new(Body::empty()))
            }
        };
        let (current, terms) = watch::channel(Some(Term::ENDLESS));
        let (writes, client) = (Writes::default(), Client::new(tower::service_fn(answer), "glowplug-system"));
        let leader = of_leader(&client, Term::ENDLESS, terms, writes.clone());
        tokio::select! {
            answer = send(&leader, Method::POST) => panic!("{answer:?}"),
            () = coming.notified() => {}
        }
        current.send_replace(None);
        assert!(!writes.are_answered(Duration::from_secs(5)).await);
        assert_eq!(send(&leader, Method::POST).await.as_deref(), ENDED);
        gate.add_permits(1);
        assert!(writes.are_answered(Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn a_leader_reads_objects_and_deletes_secrets_after_its_term() {
        let (client, count) = client();
        let (current, terms) = watch::channel(None);
        let leader = of_leader(&client, term(1, Instant::now()), terms, Writes::default());
        for method in [Method::GET, Method::DELETE] {
            assert_eq!(send(&leader, method).await, None);
        }
        let others = [
            "/api/v1/namespaces/n/secrets",
            "/apis/ipam.glowplug.dev/v1alpha1/namespaces/n/staticippools/secrets",
            "/apis/ipam.glowplug.dev/v1alpha1/staticipleases/l",
            "/apis/ipam.cluster.x-k8s.io/v1beta2/namespaces/n/ipaddresses/a",
        ];
        for path in others {
            assert_eq!(send_to(&leader, Method::DELETE, path).await.as_deref(), ENDED, "{path}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 2);
        // In its term, a leader deletes every object.
        current.send_replace(Some(term(1, Instant::now() + Duration::from_secs(60))));
        for path in others {
            assert_eq!(send_to(&leader, Method::DELETE, path).await, None, "{path}");
        }
        assert_eq!(count.load(Ordering::Relaxed), 6);
    }

    #[tokio::test]
    async fn requests_are_counted_by_method_and_status_code() {
        let answers = |request: http::Request<Body>| async move {
            match *request.method() {
                Method::GET => Ok(http::Response::new(Body::empty())),
                Method::POST => Ok(http::Response::builder().status(403).body(Body::empty()).unwrap()),
                _ => Err(Error::TlsRequired),
            }
        };
        let metrics = Arc::new(Metrics::default());
        let client = counted(&Client::new(tower::service_fn(answers), "glowplug-system"), &metrics);
        assert_eq!(client.default_namespace(), "glowplug-system");
        for method in [Method::GET, Method::GET, Method::POST, Method::PUT] {
            drop(send(&client, method).await);
        }
        let text = metrics.text();
        let mut lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("glowplug_api_requests_total")).collect();
        lines.sort_unstable();
        let expected = [
            r#"glowplug_api_requests_total{method="GET",code="200"} 2"#,
            r#"glowplug_api_requests_total{method="POST",code="403"} 1"#,
            r#"glowplug_api_requests_total{method="PUT",code="none"} 1"#,
        ];
        assert_eq!(lines, expected);
    }

    #[tokio::test]
    async fn an_error_names_the_api_server_without_the_password_in_its_address() {
        let failing = |_: http::Request<Body>| async { Err::<http::Response<Body>, _>(Error::TlsRequired) };
        let client = Client::new(tower::service_fn(failing), "shop");
        let server = http::Uri::from_static("https://user:password@api.example.com:6443/path");
        let client = naming_server(&client, &server);
        let error = "ServiceError: https://api.example.com:6443: TLS required but no TLS stack selected";
        assert_eq!((client.default_namespace(), &*send(&client, Method::GET).await.unwrap()), ("shop", error));
    }

    /// The list of groups, and the list of the kinds of a version. Each list has one item.
    const GROUPS: (&str, u16, &str) = (
        "/apis",
        200,
        r#"{"groups": [{"name": "g.example", "versions": [{"groupVersion": "g.example/v1", "version": "v1"}]}]}"#,
    );
    const KINDS: (&str, u16, &str) = (
        "/apis/g.example/v1",
        200,
        r#"{"groupVersion": "g.example/v1",
            "resources": [{"name": "as", "kind": "A", "namespaced": true, "singularName": "a", "verbs": []}]}"#,
    );

    /// Returns a client whose API server answers each path with this code and body, and other paths with 404.
    fn answering(answers: &'static [(&'static str, u16, &'static str)]) -> Client {
        let answer = move |request: http::Request<Body>| async move {
            let known = answers.iter().find(|(path, ..)| *path == request.uri().path());
            let (code, body) = known.map_or((404, "404 page not found"), |(_, code, body)| (*code, *body));
            Ok::<_, Error>(http::Response::builder().status(code).body(Body::from(body.as_bytes().to_vec())).unwrap())
        };
        Client::new(tower::service_fn(answer), "shop")
    }

    #[tokio::test]
    async fn a_kind_is_not_served_if_the_list_of_groups_or_the_list_of_its_version_lacks_it() {
        let kind = |group: &str, version: &str, plural: &str| {
            ApiResource::from_gvk_with_plural(&kube::api::GroupVersionKind::gvk(group, version, "A"), plural)
        };
        let served = async |answers, resource: &ApiResource| {
            let answer = serves(&answering(answers), resource).await;
            answer.map_err(|error| crate::cluster::request::Reason(&error).to_string())
        };
        for (group, version, plural, expected) in [
            ("g.example", "v1", "as", true),
            ("g.example", "v1", "bs", false),
            ("g.example", "v2", "as", false),
            ("h.example", "v1", "as", false),
            ("", "v1", "secrets", true),
        ] {
            let resource = kind(group, version, plural);
            assert_eq!(served(&[GROUPS, KINDS], &resource).await, Ok(expected), "{resource:?}");
        }
        // A proxy answers in place of the API server, or the list of groups is older than the kinds.
        let unknown = Err("the API server answered 404 Failed to parse error data: 404 page not found".to_owned());
        for answers in [&[][..], &[GROUPS], &[KINDS]] {
            assert_eq!(served(answers, &kind("g.example", "v1", "as")).await, unknown);
        }
    }

    #[tokio::test]
    async fn a_kind_whose_definition_is_not_established_counts_as_not_served_if_nothing_depends_on_it() {
        let resource =
            ApiResource::from_gvk_with_plural(&kube::api::GroupVersionKind::gvk("g.example", "v1", "A"), "as");
        let served = async |answers| serves_established(&answering(answers), &resource).await.ok();
        assert_eq!(served(&[GROUPS, KINDS]).await, Some(true));
        assert_eq!(served(&[GROUPS]).await, Some(false));
        assert_eq!(served(&[]).await, None, "a proxy answers");
    }

    #[tokio::test]
    async fn a_read_of_a_kind_that_is_not_served_has_no_answer_and_a_failed_read_is_an_error() {
        const NONE: (&str, u16, &str) = ("/apis", 200, r#"{"groups": []}"#);
        let resource =
            ApiResource::from_gvk_with_plural(&kube::api::GroupVersionKind::gvk("g.example", "v1", "A"), "as");
        let failed = |code: u16| -> kube::Result<u8> {
            Err(Error::Api(Box::new(kube::core::Status { code, ..kube::core::Status::default() })))
        };
        let read = async |answers, answer| {
            let read = if_served(&answering(answers), &resource, answer).await;
            read.map_err(|error| crate::cluster::request::Reason(&error).to_string())
        };
        assert_eq!(read(&[NONE], Ok(7)).await, Ok(Some(7)));
        assert_eq!(read(&[NONE], failed(404)).await, Ok(None));
        assert_eq!(read(&[NONE], failed(503)).await, Err("the API server answered 503".to_owned()));
        assert_eq!(read(&[GROUPS, KINDS], failed(404)).await, Err("the API server answered 404".to_owned()));
        let unknown = "the API server answered 404 Failed to parse error data: 404 page not found";
        assert_eq!(read(&[], failed(404)).await, Err(unknown.to_owned()));
    }

    #[tokio::test]
    async fn a_leader_without_an_election_always_writes() {
        let (client, count) = client();
        let (_current, terms) = watch::channel(Some(Term::ENDLESS));
        assert_eq!(send(&of_leader(&client, Term::ENDLESS, terms, Writes::default()), Method::POST).await, None);
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
