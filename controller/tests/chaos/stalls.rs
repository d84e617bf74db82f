//! Clients that open connections to the ports of a replica, and send nothing after the first byte. During this fault,
//! the API server must reach the webhooks, and the replica must serve probes and metrics.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Duration, sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::place::Place;
use crate::random::Random;
use crate::replicas::{Port, Replica};

/// Number of connections to each port. It is larger than the number of connections that a port accepts.
const CONNECTIONS: usize = 300;
/// Time limit for a request of another client while the connections are stalled.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens stalled connections to each port of the replicas. Returns a problem for each request of another client that
/// does not succeed within [`PATIENCE`]. `folder` contains the certificate of the webhooks.
pub async fn stall(random: &mut Random, folder: &Path, replicas: &[Replica], place: &Place) -> Vec<String> {
    let connector = connector(folder);
    let mut stalled = Vec::new();
    for port in replicas.iter().flat_map(Replica::ports) {
        for _ in 0..CONNECTIONS {
            // The API server connects from 127.0.0.1, and so do some of these clients.
            let client = format!("127.0.0.{}:0", 1 + random.below(3));
            stalled.push(tokio::spawn(hold(client, port, (random.below(2) == 0).then(|| connector.clone()))));
        }
    }
    sleep(Duration::from_secs(1)).await;
    let mut problems = Vec::new();
    if timeout(PATIENCE, place.until_asked()).await.is_err() {
        problems.push("stalled connections: the API server cannot call the webhook".to_owned());
    }
    for port in replicas.iter().flat_map(Replica::ports) {
        let (number, path) = match port {
            Port::Webhooks(_) => continue,
            Port::Probes(number) => (number, "/healthz"),
            Port::Diagnostics(number) => (number, "/metrics"),
        };
        let began = Instant::now();
        while !is_served(number, path).await {
            if began.elapsed() > PATIENCE {
                problems.push(format!("stalled connections: {path} is not served"));
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
    stalled.iter().for_each(tokio::task::JoinHandle::abort);
    problems
}

/// Opens a connection, sends one byte, and waits until the server answers or closes the connection.
async fn hold(client: String, port: Port, connector: Option<TlsConnector>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(client.parse().unwrap()).unwrap();
    let (Port::Webhooks(number) | Port::Probes(number) | Port::Diagnostics(number)) = port;
    // A replica that has just been killed does not listen.
    let Ok(mut stream) = socket.connect(([127, 0, 0, 1], number).into()).await else { return };
    if let (Port::Webhooks(_), Some(connector)) = (port, connector) {
        let Ok(mut stream) = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await else {
            return;
        };
        let _ = stream.write_all(b"P").await;
        let _ = stream.read(&mut [0; 1]).await;
    } else {
        // The first byte of a handshake of TLS is 22.
        let _ = stream.write_all(&[if matches!(port, Port::Webhooks(_)) { 22 } else { b'G' }]).await;
        let _ = stream.read(&mut [0; 1]).await;
    }
}

/// Returns whether a GET request on a new connection gets the status 200 within ten seconds.
async fn is_served(port: u16, path: &str) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with(b"HTTP/1.1 200 "))
    };
    timeout(Duration::from_secs(10), ask).await.is_ok_and(|answer| answer.unwrap_or_default())
}

/// Returns a TLS client that trusts the certificate in a folder.
fn connector(folder: &Path) -> TlsConnector {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&fs::read(folder.join("tls.crt")).unwrap()) {
        store.add(certificate.unwrap()).unwrap();
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}
