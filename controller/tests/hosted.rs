//! Tests the stand-ins for the programs of a hosted cluster while requests to the API server fail or wait.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::hosted::{Hosted, poll};
use crate::support::server::{Call, Fault};
use crate::support::start_server;

fn creates_vm(call: &Call) -> bool {
    call.verb == "create" && call.plural == "virtualmachines"
}

#[tokio::test]
async fn the_stand_in_of_capk_sends_at_most_ten_concurrent_requests_for_virtual_machines() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    server.set_faults(move |call| if creates_vm(call) { Fault::Hold(Arc::clone(&closed)) } else { Fault::None });
    hosted.node_pool("workers", 12, &json!({})).await;
    let mut arrived = 0;
    while arrived < 10 {
        arrived += server.take_calls().iter().filter(|call| creates_vm(call)).count();
        tokio::task::yield_now().await;
    }
    assert_eq!((arrived, hosted.vms.list(&Default::default()).await.unwrap().items.len()), (10, 0));
    gate.add_permits(12);
    for number in 0..12 {
        hosted.until_running(&format!("workers-{number}")).await;
    }
}

#[tokio::test]
async fn the_stand_in_of_capk_repeats_a_refused_request_for_a_virtual_machine() {
    let (server, cluster) = start_server().await;
    let hosted = Hosted::new(&cluster).await;
    server.set_faults(|call| if creates_vm(call) { Fault::Status(503) } else { Fault::None });
    hosted.node_pool("workers", 1, &json!({})).await;
    hosted.until_refused("workers-0").await;
    server.take_calls();
    poll("another attempt", async || server.take_calls().iter().any(creates_vm).then_some(())).await;
    server.clear_faults();
    hosted.until_running("workers-0").await;
}
