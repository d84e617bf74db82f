//! Tests the HTTP servers, with and without TLS, and their graceful end.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use glowplug_controller::program::probes::Diagnostics;
use glowplug_controller::serve::{Certificate, Limits, Phase, answer, serve};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Request, Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;

use crate::support::http::{Answer, ask, connect, connect_over_tls, get, get_over_tls, send};

/// Error of a client if none of its root certificates has signed the certificate of the server.
const NOT_SIGNED: &str = "invalid peer certificate: BadSignature";

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn hello(_: Request<Bytes>) -> Response<Full<Bytes>> {
    answer(StatusCode::OK, "text/plain", "hello")
}

/// Returns a new certificate for `localhost` and its key, as PEM.
fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn write(folder: &Path, certificate: &str, key: &str) {
    fs::write(folder.join("tls.crt"), certificate).unwrap();
    fs::write(folder.join("tls.key"), key).unwrap();
}

/// Returns the reason why a client rejected the server.
fn refusal(result: Result<Answer, Box<dyn std::error::Error>>) -> String {
    result.unwrap_err().to_string()
}

async fn over_tls(folder: &Path) -> (SocketAddr, watch::Sender<Phase>) {
    let (listener, address) = listener().await;
    let (phase, phases) = watch::channel(Phase::Serving);
    tokio::spawn(serve(listener, Some(Arc::new(Certificate::of(folder))), Limits::WEBHOOKS, hello, phases));
    (address, phase)
}

#[tokio::test]
async fn a_renewed_certificate_is_used_for_the_next_connection() {
    let folder = tempfile::tempdir().unwrap();
    let [(old, old_key), (new, new_key)] = [certificate(), certificate()];
    write(folder.path(), &old, &old_key);
    let (address, _phase) = over_tls(folder.path()).await;
    let hello = (StatusCode::OK, "hello".to_owned());
    assert_eq!(get_over_tls(address, "/", &old).await.unwrap(), hello);
    assert_eq!(refusal(get_over_tls(address, "/", &new).await), NOT_SIGNED);
    write(folder.path(), &new, &new_key);
    assert_eq!(get_over_tls(address, "/", &new).await.unwrap(), hello);
    assert_eq!(refusal(get_over_tls(address, "/", &old).await), NOT_SIGNED);
}

#[tokio::test]
async fn during_an_incomplete_renewal_the_old_certificate_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let [(old, old_key), (new, new_key)] = [certificate(), certificate()];
    write(folder.path(), &old, &old_key);
    let (address, _phase) = over_tls(folder.path()).await;
    get_over_tls(address, "/", &old).await.unwrap();
    for (half, key) in [(new.as_str(), old_key.as_str()), ("", &new_key), (&new, "no key")] {
        write(folder.path(), half, key);
        get_over_tls(address, "/", &old).await.unwrap();
    }
    fs::remove_file(folder.path().join("tls.crt")).unwrap();
    get_over_tls(address, "/", &old).await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_is_written_after_the_start_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let (address, _phase) = over_tls(folder.path()).await;
    let (new, key) = certificate();
    // Without a certificate, the server ends the connection. The client sees the end of the connection or a reset.
    get_over_tls(address, "/", &new).await.unwrap_err();
    write(folder.path(), &new, &key);
    get_over_tls(address, "/", &new).await.unwrap();
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let (listener, address) = listener().await;
    let (_phase, phases) = watch::channel(Phase::Serving);
    tokio::spawn(serve(listener, None, Limits::WEBHOOKS, hello, phases));
    let post = |size: usize| Request::post("/").header("host", "test").body(Full::from(vec![0; size])).unwrap();
    assert_eq!(send(address, post(6 << 20)).await, (StatusCode::OK, "hello".to_owned()));
    let refusal = "the body is longer than 6291456 bytes\n".to_owned();
    assert_eq!(send(address, post((6 << 20) + 1)).await, (StatusCode::PAYLOAD_TOO_LARGE, refusal));
}

/// Starts a server with plain HTTP and these limits.
async fn limited(limits: Limits) -> (SocketAddr, watch::Sender<Phase>) {
    let (listener, address) = listener().await;
    let (phase, phases) = watch::channel(Phase::Serving);
    tokio::spawn(serve(listener, None, limits, hello, phases));
    (address, phase)
}

#[tokio::test]
async fn a_new_connection_replaces_a_stalled_connection_when_the_limit_of_connections_is_reached() {
    let (address, _phase) = limited(Limits { connections: 8, body: 1 << 20 }).await;
    let mut stalled = Vec::new();
    for at in 0..40 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let begun: [&[u8]; 2] = [b"", b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf"];
        connection.write_all(begun[at % 2]).await.unwrap();
        stalled.push(connection);
    }
    assert_eq!(get(address, "/", None).await, (StatusCode::OK, "hello".to_owned()));
}

#[tokio::test]
async fn stalled_connections_of_one_client_close_no_connection_of_another_client() {
    let (address, _phase) = limited(Limits { connections: 8, body: 1 << 20 }).await;
    // This client keeps its connection for the next request, as an API server does.
    let (mut kept, _) = connect(address).await;
    let mut ask = async || {
        kept.ready().await.unwrap();
        let request = Request::get("/").header("host", "test").body(Full::default()).unwrap();
        kept.send_request(request).await.unwrap().status()
    };
    assert_eq!(ask().await, StatusCode::OK);
    let mut stalled = Vec::new();
    for _ in 0..64 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        let mut connection = socket.connect(address).await.unwrap();
        // The server may have closed this connection already.
        let _ = connection.write_all(b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\nhalf").await;
        stalled.push(connection);
    }
    assert_eq!(get(address, "/", None).await, (StatusCode::OK, "hello".to_owned()));
    assert_eq!(ask().await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_ten_seconds() {
    let (address, _phase) = limited(Limits::WEBHOOKS).await;
    let began = tokio::time::Instant::now();
    let mut connection = TcpStream::connect(address).await.unwrap();
    assert_eq!(connection.read(&mut [0; 1]).await.unwrap(), 0);
    assert_eq!(began.elapsed().as_secs(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_not_complete_after_five_seconds_is_refused() {
    let (address, _phase) = limited(Limits::WEBHOOKS).await;
    let mut connection = TcpStream::connect(address).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 9\r\n\r\nhalf";
    connection.write_all(head).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer.lines().next(), Some("HTTP/1.1 408 Request Timeout"));
    assert_eq!(answer.lines().last(), Some("no complete body after 5 s"));
}

/// Starts a server whose requests wait for a permit of `gate`. Also returns the number of requests that have arrived so
/// far.
async fn slow(
    gate: &Arc<Semaphore>,
    certificate: Option<&Path>,
) -> (SocketAddr, watch::Sender<Phase>, JoinHandle<()>, watch::Receiver<usize>) {
    let (listener, address) = listener().await;
    let (phase, phases) = watch::channel(Phase::Serving);
    let (came, coming) = watch::channel(0);
    let (gate, came) = (Arc::clone(gate), Arc::new(came));
    let handler = move |_| {
        let (gate, came) = (Arc::clone(&gate), Arc::clone(&came));
        async move {
            came.send_modify(|count| *count += 1);
            drop(gate.acquire().await);
            answer(StatusCode::OK, "text/plain", "late")
        }
    };
    let certificate = certificate.map(|folder| Arc::new(Certificate::of(folder)));
    (address, phase, tokio::spawn(serve(listener, certificate, Limits::WEBHOOKS, handler, phases)), coming)
}

#[tokio::test]
async fn a_stopping_server_answers_a_running_request_before_it_ends() {
    let gate = Arc::new(Semaphore::new(0));
    let (address, phase, server, mut coming) = slow(&gate, None).await;
    let request = tokio::spawn(async move { get(address, "/", None).await });
    coming.wait_for(|count| *count == 1).await.unwrap();
    phase.send_replace(Phase::Closing);
    // The listener is closed before the last response.
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.is_finished());
    gate.add_permits(1);
    assert_eq!(request.await.unwrap(), (StatusCode::OK, "late".to_owned()));
    server.await.unwrap();
}

/// API servers keep a connection for the next request. A request on a connection that the server is closing would fail.
#[tokio::test]
async fn an_unready_program_closes_each_connection_after_its_next_response() {
    let (listener, address) = listener().await;
    let (phase, phases) = watch::channel(Phase::Serving);
    let server = tokio::spawn(serve(listener, None, Limits::WEBHOOKS, hello, phases));
    let (mut connection, ended) = connect(address).await;
    let mut end_of_connection = async || {
        connection.ready().await.unwrap();
        let request = Request::get("/").header("host", "test").body(Full::default()).unwrap();
        let response = connection.send_request(request).await.unwrap();
        (response.status(), response.headers().get("connection").cloned())
    };
    assert_eq!(end_of_connection().await, (StatusCode::OK, None));
    phase.send_replace(Phase::Unready);
    let close = HeaderValue::from_static("close");
    assert_eq!(end_of_connection().await, (StatusCode::OK, Some(close)));
    ended.await.unwrap().unwrap();
    assert_eq!(get(address, "/", None).await, (StatusCode::OK, "hello".to_owned()));
    phase.send_replace(Phase::Closing);
    server.await.unwrap();
}

#[tokio::test]
async fn an_http_2_connection_that_is_open_when_the_server_stops_loses_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let (roots, key) = certificate();
    write(folder.path(), &roots, &key);
    let gate = Arc::new(Semaphore::new(1));
    let (address, phase, server, mut coming) = slow(&gate, Some(folder.path())).await;
    let (connection, ended) = connect_over_tls(address, &roots).await.unwrap();
    let late = (StatusCode::OK, "late".to_owned());
    assert_eq!(ask(connection.clone(), "/").await.unwrap(), late);
    phase.send_replace(Phase::Unready);
    assert_eq!(ask(connection.clone(), "/").await.unwrap(), late);
    // This request is running when the phase becomes `Closing`.
    let permit = gate.acquire().await.unwrap();
    let last = tokio::spawn(ask(connection.clone(), "/"));
    coming.wait_for(|count| *count == 3).await.unwrap();
    phase.send_replace(Phase::Closing);
    while TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    drop(permit);
    assert_eq!(last.await.unwrap().unwrap(), late);
    // The connection ends without an error. The client opens another connection, to another replica.
    ended.await.unwrap().unwrap();
    server.await.unwrap();
    assert_eq!(*coming.borrow(), 3);
}

#[tokio::test]
async fn the_probes_say_why_a_program_is_unready_and_an_unready_program_still_answers() {
    let (listener, address) = listener().await;
    let (phase, phases) = watch::channel(Phase::Serving);
    let (ready, is_ready) = watch::channel(false);
    let folder = tempfile::tempdir().unwrap();
    let watched = Arc::new(Certificate::of(folder.path()));
    let probes = Diagnostics::probes(phases.clone(), is_ready).with_certificate(watched);
    let server =
        tokio::spawn(serve(listener, None, Limits::DIAGNOSTICS, move |request| probes.clone().answer(request), phases));
    let ask = async |path: &str| {
        let (code, text) = get(address, path, None).await;
        (code.as_u16(), text)
    };
    let is = |code: u16, text: &str| (code, format!("{text}\n"));
    assert_eq!(ask("/readyz").await, is(503, "the program is starting"));
    ready.send_replace(true);
    let problem = format!(
        "the certificate of the webhooks cannot be read: {}: No such file or directory (os error 2)",
        folder.path().join("tls.crt").display()
    );
    assert_eq!(ask("/readyz").await, is(503, &problem));
    let (chain, key) = certificate();
    write(folder.path(), &chain, &key);
    assert_eq!(ask("/readyz").await, is(200, "ok"));
    phase.send_replace(Phase::Unready);
    assert_eq!(ask("/readyz").await, is(503, "the program is ending"));
    assert_eq!(ask("/healthz").await, is(200, "ok"));
    assert_eq!(ask("/metrics").await, is(404, "no such path"));
    phase.send_replace(Phase::Closing);
    server.await.unwrap();
}
