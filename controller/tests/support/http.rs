//! An HTTP client for the servers of the program.

use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

/// Status code and body of a response.
pub type Answer = (StatusCode, String);

/// Sends a GET request over plain HTTP/1.1, on a new connection.
pub async fn get(address: SocketAddr, path: &str, token: Option<&str>) -> Answer {
    let mut request = Request::get(path).header("host", "test");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    send(address, request.body(Full::default()).unwrap()).await
}

/// Sends a request over plain HTTP/1.1, on a new connection.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Answer {
    let (mut connection, _) = connect(address).await;
    let response = connection.send_request(request).await.unwrap();
    let code = response.status();
    (code, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().into()).unwrap())
}

/// Connects over plain HTTP/1.1. The returned task ends when the connection ends.
pub async fn connect(
    address: SocketAddr,
) -> (hyper::client::conn::http1::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

/// A connection over TLS and HTTP/2.
pub type Connection = hyper::client::conn::http2::SendRequest<Full<Bytes>>;

/// Connects over TLS and HTTP/2. Returns an error if no certificate in `roots` has signed the server's certificate for
/// `localhost`. The returned task ends when the connection ends.
pub async fn connect_over_tls(
    address: SocketAddr,
    roots: &str,
) -> Result<(Connection, JoinHandle<hyper::Result<()>>), Box<dyn std::error::Error>> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(roots.as_bytes()) {
        store.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let stream = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost")?, stream).await?;
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    Ok((sender, tokio::spawn(connection)))
}

/// Sends a GET request on a connection.
pub async fn ask(mut connection: Connection, path: &str) -> hyper::Result<Answer> {
    connection.ready().await?;
    let request = Request::get(format!("https://localhost{path}")).body(Full::<Bytes>::default()).unwrap();
    let response = connection.send_request(request).await?;
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((code, String::from_utf8(body.into()).unwrap()))
}

/// Sends a GET request over TLS and HTTP/2, on a new connection.
///
/// Returns an error if no certificate in `roots` has signed the server's certificate for `localhost`.
pub async fn get_over_tls(address: SocketAddr, path: &str, roots: &str) -> Result<Answer, Box<dyn std::error::Error>> {
    let (connection, _) = connect_over_tls(address, roots).await?;
    Ok(ask(connection, path).await?)
}
