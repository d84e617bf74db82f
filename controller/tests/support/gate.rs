//! Holds back some requests of a leader, as if the API server did not answer them.

use std::sync::Arc;

use hyper::Request;
use kube::Client;
use kube::client::Body;
use tokio::sync::watch;
use tower::{BoxError, service_fn};

/// A gate for the requests of one client. It is open at first.
pub struct Gate {
    is_closed: watch::Sender<bool>,
    /// Number of the requests that a closed gate has held back.
    held: watch::Sender<usize>,
}

/// Whether a request lists the Services. The opening of a leader waits for this list.
pub fn is_list_of_services(request: &Request<Body>) -> bool {
    request.uri().path().ends_with("/services") && !is_watch(request)
}

/// Whether a request watches the instances. A leader lists the instances before it sends such a request.
pub fn is_watch_of_instances(request: &Request<Body>) -> bool {
    request.uri().path().ends_with("/virtualmachineinstances") && is_watch(request)
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().unwrap_or_default().contains("watch=")
}

// === impl Gate ===

impl Gate {
    /// Returns a gate for these requests of a client, and the client with this gate.
    pub fn new(client: Client, is_meant: fn(&Request<Body>) -> bool) -> (Arc<Self>, Client) {
        let gate = Arc::new(Self { is_closed: watch::Sender::default(), held: watch::Sender::default() });
        let (namespace, of_client) = (client.default_namespace().to_owned(), Arc::clone(&gate));
        let service = service_fn(move |request: Request<Body>| {
            let (client, gate) = (client.clone(), Arc::clone(&of_client));
            async move {
                if is_meant(&request) {
                    gate.pass().await;
                }
                client.send(request).await.map_err(BoxError::from)
            }
        });
        (gate, Client::new(service, namespace))
    }

    async fn pass(&self) {
        let mut is_closed = self.is_closed.subscribe();
        if *is_closed.borrow_and_update() {
            self.held.send_modify(|held| *held += 1);
        }
        is_closed.wait_for(|is_closed| !is_closed).await.unwrap();
    }

    pub fn close(&self) {
        self.is_closed.send_replace(true);
    }

    pub fn open(&self) {
        self.is_closed.send_replace(false);
    }

    /// Waits until the closed gate has held back a request.
    pub async fn until_held(&self) {
        let held = async { drop(self.held.subscribe().wait_for(|held| *held > 0).await.unwrap()) };
        tokio::time::timeout(super::controller::PATIENCE, held).await.expect("a request at the gate");
    }
}
