//! HTTP servers for probes, metrics and webhooks, with and without TLS.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Progress of the stop of the program.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// Requests are served.
    #[default]
    Serving,
    /// Requests are served, but `/readyz` fails, so that no new requests arrive. Endpoints change some seconds later.
    /// A connection over HTTP/1.1 closes after its next response.
    Unready,
    /// No new connection is accepted. Open connections close after their requests.
    Closing,
}

/// Longest body of a request, in bytes. API servers store objects of up to 1.5 MiB, and a review contains an old and a
/// new object.
const MAX_BODY: usize = 8 << 20;
/// Timeout of a TLS handshake.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of the head of the next request on a connection. API servers close a connection that they have not used for 90
/// seconds. A server that closes a connection earlier may lose a request.
const IDLE: Duration = Duration::from_secs(120);
/// Time that running requests have when the program stops.
const DRAIN: Duration = Duration::from_secs(10);

/// A certificate and its key in two files. The files are read for each connection, because their renewal is not
/// announced.
#[derive(Debug)]
pub struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    last: Mutex<Option<Loaded>>,
}

/// The bytes of both files, and the configuration made from them.
#[derive(Clone, Debug)]
struct Loaded {
    bytes: (Vec<u8>, Vec<u8>),
    config: Arc<ServerConfig>,
}

/// Serves `handler` on `listener`. When `phase` becomes [`Phase::Closing`], waits at most ten seconds for the running
/// requests, and returns. Supports HTTP/1.1 and HTTP/2.
///
/// API servers send requests to webhooks over HTTP/1.1, and keep each connection for the next request. They cannot repeat
/// a request that arrives while the server closes its connection: the request fails. So each response from
/// [`Phase::Unready`] on says that its connection closes. HTTP/2 does the same by itself.
///
/// If the certificate cannot be read, the connection is refused and the error is logged. The next connection reads the
/// certificate again.
pub async fn serve<H, F>(
    listener: TcpListener,
    certificate: Option<Arc<Certificate>>,
    handler: H,
    mut phase: watch::Receiver<Phase>,
) where
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = phase.wait_for(|phase| *phase == Phase::Closing) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Without free file descriptors, every accept fails at once.
                tracing::warn!(%error, "could not accept a connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (watcher, handler, certificate) = (graceful.watcher(), handler.clone(), certificate.clone());
        let phase = phase.clone();
        tokio::spawn(async move {
            let Some(certificate) = certificate else {
                return connection(stream, handler, phase, watcher).await;
            };
            let acceptor = match certificate.acceptor() {
                Ok(acceptor) => acceptor,
                Err(error) => return tracing::error!(%error, "could not read the certificate"),
            };
            match timeout(PATIENCE, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => connection(stream, handler, phase, watcher).await,
                Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
                Err(_) => tracing::debug!("TLS handshake took too long"),
            }
        });
    }
    drop(listener);
    if timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::warn!("closed connections with unfinished requests");
    }
}

async fn connection<S, H, F>(
    stream: S,
    handler: H,
    phase: watch::Receiver<Phase>,
    watcher: hyper_util::server::graceful::Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Fn(Request<Bytes>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, phase) = (handler.clone(), phase.clone());
        async move {
            let (parts, body) = request.into_parts();
            let can_close = parts.version < Version::HTTP_2;
            let mut response = match Limited::new(body, MAX_BODY).collect().await {
                Ok(body) => handler(Request::from_parts(parts, body.to_bytes())).await,
                Err(error) => answer(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", error.to_string()),
            };
            if can_close && *phase.borrow() != Phase::Serving {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE * 3));
    let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// A response with this body.
pub fn answer(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

// === impl Certificate ===

impl Certificate {
    /// The certificate `tls.crt` with the key `tls.key` of `folder`. These are the names in a Secret of type
    /// `kubernetes.io/tls`.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        Self { chain: folder.join("tls.crt"), key: folder.join("tls.key"), last: Mutex::default() }
    }

    /// Returns an acceptor with the current certificate. While the certificate and the key do not match, for example
    /// during a renewal, returns the previous acceptor.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is not a certificate or key, and there is no previous certificate.
    fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match self.load(last.as_ref()) {
            Ok(loaded) => *last = Some(loaded),
            Err(error) if last.is_some() => tracing::warn!(%error, "could not renew the certificate"),
            Err(error) => return Err(error),
        }
        match &*last {
            Some(loaded) => Ok(TlsAcceptor::from(Arc::clone(&loaded.config))),
            None => Err(io::Error::other("no certificate")),
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
        let key = PrivateKeyDer::from_pem_slice(&bytes.1).map_err(|error| of_file(&self.key, error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?.with_no_client_auth();
        let mut config = builder.with_single_cert(chain, key).map_err(|error| of_file(&self.chain, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Loaded { bytes, config: Arc::new(config) })
    }
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
