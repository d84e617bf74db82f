//! HTTP servers for probes, metrics and webhooks, with and without TLS.
//!
//! Every pod of the cluster can connect, so a server limits connections, bytes of bodies, and time. If all places for
//! connections are taken, a connection that serves no request must make room for a new connection. The server chooses
//! the client with the most such connections, and of these the connection whose last complete request is the oldest.
//! The chosen connection has at most a second to end the request that it reads.

mod connections;
mod expiry;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::repeated::Repeated;
use crate::serve::connections::{Connections, Slot};
use crate::serve::expiry::expiry;

/// Phase of the program, from normal work until its end.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// Requests are served.
    #[default]
    Serving,
    /// Requests are served, but `/readyz` fails, so that clients send no new requests. Clients notice this some seconds
    /// later, when the endpoints change. A connection over HTTP/1.1 closes after its next response.
    Unready,
    /// No new connection is accepted. Open connections close after their current requests.
    Closing,
}

/// Limits for all clients of a server together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Maximum number of connections.
    pub connections: u32,
    /// Maximum length of the body of a request, in bytes.
    pub body: usize,
}

/// Length in bytes up to which a body does not count in [`BODIES`]. Most reviews are shorter.
const SHORT: usize = 64 << 10;
/// Maximum total length in bytes of all bodies of a server, without the first [`SHORT`] bytes of each body.
const BODIES: usize = 32 << 20;
/// Unit in which the total length of bodies is counted, in bytes.
const UNIT: usize = 1 << 10;
/// Maximum number of concurrent requests on a connection over HTTP/2.
const STREAMS: u32 = 4;
/// Timeout of a TLS handshake, and time in which the first request on a connection must begin.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of a body, and of the handling of a request. API servers wait 5 seconds for the webhooks of this program.
const HANDLING: Duration = Duration::from_secs(5);
/// Flow-control window of a connection and of a request over HTTP/2, in bytes.
const WINDOW: u32 = 128 << 10;
/// Time limit for the head of the next request on a connection, with the idle time before it. API servers close a
/// connection after 90 seconds without a request. This limit is longer: if this program closed the connection first, a
/// request could be lost.
const IDLE: Duration = Duration::from_secs(120);
/// Time limit for running requests when the program stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A certificate and its key in two files. The files are read again for each connection, because nothing announces
/// their renewal.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    last: Mutex<Option<Loaded>>,
    /// Limits the log lines about a certificate that cannot be read. Every TLS connection reads the certificate, so
    /// otherwise any pod could cause many lines.
    lines: Repeated,
}

/// The content of the certificate file and of the key file, and the TLS configuration made from this content.
#[derive(Clone, Debug)]
struct Loaded {
    bytes: (Vec<u8>, Vec<u8>),
    config: Arc<ServerConfig>,
    /// The earliest expiry of a certificate in the chain, in seconds since 1970. 0: unknown.
    expiry: i64,
}

/// Why a body cannot be read.
enum BodyError {
    TooLong,
    TooLate,
    Broken(hyper::Error),
}

/// The data that all connections of a server share.
struct Shared<H> {
    handler: H,
    limits: Limits,
    /// Free capacity for bodies, in units of [`UNIT`].
    room: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
}

// === impl Limits ===

impl Limits {
    /// Limits of the webhooks. API servers accept requests of up to 3 MiB, and a review contains both an old and a new
    /// object.
    pub const WEBHOOKS: Self = Self { connections: 256, body: 6 << 20 };
    /// Limits of probes and metrics, whose requests have no body.
    pub const DIAGNOSTICS: Self = Self { connections: 64, body: 4 << 10 };
}

/// Serves `handler` on `listener`, over HTTP/1.1 and HTTP/2. When `phase` becomes [`Phase::Closing`], waits at most ten
/// seconds for the running requests, and returns.
///
/// API servers send requests to webhooks over HTTP/1.1, and keep each connection for the next request. If a request
/// arrives while the server closes its connection, the request fails, and the API server cannot repeat it. Therefore,
/// from [`Phase::Unready`] on, each response says that its connection closes. HTTP/2 has this notice built in.
///
/// If the certificate cannot be read, the server refuses the connection and logs the error. The next connection reads
/// the certificate again.
pub async fn serve<H, F>(
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    limits: Limits,
    handler: H,
    mut phase: watch::Receiver<Phase>,
) where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let connections = Connections::new(limits.connections);
    let room = Arc::new(Semaphore::new(BODIES / UNIT));
    let shared = Arc::new(Shared { handler, limits, room, phase: phase.clone() });
    let lines = Repeated::default();
    loop {
        let next = async {
            let (stream, peer) = listener.accept().await?;
            Ok::<_, io::Error>((stream, connections.enter(peer.ip()).await))
        };
        let accepted = tokio::select! {
            accepted = next => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => break,
        };
        let (stream, slot) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Without free file descriptors, every attempt to accept a connection fails at once.
                if let Some(hidden) = lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(%error, hidden, "could not accept a connection");
                }
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (shared, certificate) = (Arc::clone(&shared), certificate.clone());
        tokio::spawn(async move {
            let Some(certificate) = certificate else {
                return connection(stream, shared, slot).await;
            };
            let Some(acceptor) = certificate.acceptor() else { return };
            let handshake = timeout(PATIENCE, acceptor.accept(stream));
            tokio::select! {
                shaken = handshake => match shaken {
                    Ok(Ok(stream)) => connection(stream, shared, slot).await,
                    Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                    Err(_) => tracing::debug!("TLS handshake took too long"),
                },
                _ = slot.is_told_to_end() => {}
            }
        });
    }
    drop(listener);
    if timeout(DRAIN, connections.have_ended()).await.is_err() {
        tracing::warn!("closed connections with unfinished requests");
    }
}

async fn connection<S, H, F>(stream: S, shared: Arc<Shared<H>>, slot: Slot)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let (own, mut phase) = (slot.clone(), shared.phase.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (shared, slot) = (Arc::clone(&shared), slot.clone());
        slot.note_request();
        async move {
            let (parts, body) = request.into_parts();
            let can_close = parts.version < Version::HTTP_2;
            let mut response = match shared.read(body).await {
                Ok((body, _room)) => {
                    let _serving = slot.serving();
                    let handled = timeout(HANDLING, (shared.handler)(Request::from_parts(parts, body)));
                    handled.await.unwrap_or_else(|_| {
                        answer(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", "no answer in time\n")
                    })
                }
                Err(error) => error.response(shared.limits.body),
            };
            if can_close && *shared.phase.borrow() != Phase::Serving {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(SHORT);
    let http2 = &mut builder.http2();
    http2.timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE * 3)).max_concurrent_streams(STREAMS);
    http2.initial_connection_window_size(WINDOW).initial_stream_window_size(WINDOW);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service).into_owned());
    let idle = async {
        sleep(PATIENCE).await;
        if own.was_used() {
            std::future::pending().await
        }
    };
    let limit = tokio::select! {
        ended = connection.as_mut() => return note_end(ended),
        () = idle => return tracing::debug!("closed a connection without a request"),
        limit = own.is_told_to_end() => limit,
        _ = phase.wait_for(|phase| *phase == Phase::Closing) => DRAIN,
    };
    connection.as_mut().graceful_shutdown();
    timeout(limit, connection).await.map_or_else(|_| tracing::debug!("closed a connection with a request"), note_end);
}

fn note_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

// === impl Shared ===

impl<H> Shared<H> {
    /// Reads the body of a request. The permit is the capacity that the body uses: it must be kept as long as the body.
    async fn read<B>(&self, body: B) -> Result<(Bytes, Option<OwnedSemaphorePermit>), BodyError>
    where
        B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    {
        if body.size_hint().lower() > u64::try_from(self.limits.body).unwrap_or(u64::MAX) {
            return Err(BodyError::TooLong);
        }
        timeout(HANDLING, self.collect(body)).await.unwrap_or(Err(BodyError::TooLate))
    }

    async fn collect<B>(&self, mut body: B) -> Result<(Bytes, Option<OwnedSemaphorePermit>), BodyError>
    where
        B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
    {
        let (mut all, mut room): (Vec<u8>, Option<OwnedSemaphorePermit>) = (Vec::new(), None);
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(BodyError::Broken)?.into_data() else { continue };
            let length = all.len() + data.len();
            if length > self.limits.body {
                return Err(BodyError::TooLong);
            }
            let taken = room.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let missing = length.saturating_sub(SHORT).div_ceil(UNIT).saturating_sub(taken);
            if missing > 0 {
                let missing = u32::try_from(missing).unwrap_or(u32::MAX);
                let more = Arc::clone(&self.room).acquire_many_owned(missing).await;
                // This never fails, because the semaphore is never closed.
                let more = more.map_err(|_| BodyError::TooLate)?;
                match &mut room {
                    Some(room) => room.merge(more),
                    None => room = Some(more),
                }
            }
            all.extend_from_slice(&data);
        }
        Ok((all.into(), room))
    }
}

// === impl BodyError ===

impl BodyError {
    fn response(self, limit: usize) -> Response<Full<Bytes>> {
        let (status, message) = match self {
            Self::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, format!("the body is longer than {limit} bytes\n")),
            Self::TooLate => {
                (StatusCode::REQUEST_TIMEOUT, format!("no complete body after {} s\n", HANDLING.as_secs()))
            }
            Self::Broken(error) => (StatusCode::BAD_REQUEST, format!("the body cannot be read: {error}\n")),
        };
        answer(status, "text/plain; charset=utf-8", message)
    }
}

/// Returns a response with this body.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

// === impl Certificate ===

impl Certificate {
    /// Creates the certificate from the files `tls.crt` and `tls.key` in `folder`. The keys of a Secret of type
    /// `kubernetes.io/tls` have these names.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        Self {
            chain: folder.join("tls.crt"),
            key: folder.join("tls.key"),
            last: Mutex::default(),
            lines: Repeated::default(),
        }
    }

    /// The earliest expiry of a certificate in the current chain, in seconds since 1970. 0: the certificate or its
    /// expiry cannot be read.
    #[must_use]
    pub fn expiry(&self) -> i64 {
        self.current().map_or(0, |loaded| loaded.expiry)
    }

    /// Checks that new connections get a certificate. Failures of the same cause are logged at most once a minute.
    ///
    /// # Errors
    ///
    /// There is no previous certificate, and the current files have an error: a file cannot be read, has no certificate
    /// or key, or the key does not match.
    pub fn check(&self) -> io::Result<()> {
        self.current().map(drop)
    }

    /// Returns an acceptor with the current certificate. `None`: there is no certificate that can be read.
    fn acceptor(&self) -> Option<TlsAcceptor> {
        self.current().map(|loaded| TlsAcceptor::from(loaded.config)).ok()
    }

    /// Reads the current certificate. If the files cannot be read or do not match, for example during a renewal,
    /// returns the previous certificate.
    fn current(&self) -> io::Result<Loaded> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.load(last.as_ref()) {
            Ok(loaded) => Ok(last.insert(loaded).clone()),
            Err(error) => {
                if let Some(hidden) = self.lines.note(&error.to_string(), Instant::now()) {
                    match *last {
                        Some(_) => tracing::warn!(%error, hidden, "could not renew the certificate"),
                        None => tracing::error!(%error, hidden, "could not read the certificate"),
                    }
                }
                last.clone().ok_or(error)
            }
        }
    }

    fn load(&self, last: Option<&Loaded>) -> io::Result<Loaded> {
        let read = |path: &Path| std::fs::read(path).map_err(|error| of_file(path, error));
        let bytes = (read(&self.chain)?, read(&self.key)?);
        if let Some(last) = last.filter(|last| last.bytes == bytes) {
            return Ok(last.clone());
        }
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes.0).collect();
        let chain = chain.map_err(|error| of_file(&self.chain, error))?;
        if chain.is_empty() {
            return Err(of_file(&self.chain, "no certificate in PEM format"));
        }
        let ends: Option<Vec<i64>> = chain.iter().map(|certificate| Some(expiry(certificate)?.as_second())).collect();
        let expiry = ends.and_then(|ends| ends.into_iter().min()).unwrap_or_default();
        let key = PrivateKeyDer::from_pem_slice(&bytes.1).map_err(|error| of_file(&self.key, error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key).map_err(|error| of_file(&self.chain, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Loaded { bytes, config: Arc::new(config), expiry })
    }
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    #[test]
    fn a_file_without_a_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["tls.crt", "tls.key"] {
            std::fs::write(folder.path().join(name), "not PEM").unwrap();
        }
        let error = Certificate::of(folder.path()).check().unwrap_err().to_string();
        assert_eq!(error, format!("{}/tls.crt: no certificate in PEM format", folder.path().display()));
    }

    /// A body that arrives in parts of these sizes, in bytes.
    fn body(parts: &[usize]) -> impl Body<Data = Bytes, Error = hyper::Error> + Unpin + use<> {
        let frames: Vec<_> = parts.iter().map(|size| Ok(Frame::data(vec![b' '; *size].into()))).collect();
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn the_part_of_a_body_beyond_64_kib_waits_for_free_capacity() {
        let shared = Shared {
            handler: (),
            limits: Limits { connections: 1, body: 8 << 20 },
            room: Arc::new(Semaphore::new(1024)),
            phase: watch::channel(Phase::Serving).1,
        };
        let read = async |parts: &[usize]| shared.read(body(parts)).await.map_err(|_| "not read").unwrap();
        let (all, room) = read(&[1 << 20, 64 << 10]).await;
        assert_eq!(
            (all.len(), room.as_ref().map(OwnedSemaphorePermit::num_permits)),
            ((1 << 20) + (64 << 10), Some(1024))
        );
        assert!(read(&[60 << 10, 4 << 10]).await.1.is_none());
        let mut long = Box::pin(read(&[60 << 10, 4 << 10, 1]));
        assert!(futures::poll!(&mut long).is_pending());
        drop(room);
        assert_eq!(long.await.1.map(|room| room.num_permits()), Some(1));
    }
}
