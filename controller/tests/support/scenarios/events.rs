//! Events: how the API server stores the events that the controller publishes.

use glowplug_controller::cluster::events::Events;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::events::EventType;

use crate::support::Cluster;
use crate::support::hosted::poll;

pub async fn events_with_different_notes_are_stored_separately_and_equal_events_become_a_series(cluster: &Cluster) {
    let namespace = cluster.namespace().await;
    let published = Events::start(cluster.controller());
    let about = |name: &str, note: &str| {
        let object = ObjectReference {
            api_version: Some("kubevirt.io/v1".to_owned()),
            kind: Some("VirtualMachine".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.to_owned()),
            uid: Some(format!("uid-of-{name}")),
            ..ObjectReference::default()
        };
        published.publish(object, EventType::Warning, "NetworkDataMissing", note);
    };
    for note in ["no volume", "no template", "no volume"] {
        about("w", note);
    }
    about("x", "no volume");
    about("w", "no volume");

    let events: Api<Event> = Api::namespaced(cluster.client(), &namespace);
    let expected = [("w", "no template", None), ("w", "no volume", Some(3)), ("x", "no volume", None)];
    let expected: Vec<_> = expected.map(|(name, note, count)| (name.to_owned(), note.to_owned(), count)).into();
    poll("three events, one of them with a series of three", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let row = |event: Event| {
            let count = event.series.map(|series| series.count);
            (event.regarding.unwrap().name.unwrap(), event.note.unwrap(), count)
        };
        let mut rows: Vec<_> = events.map(row).collect();
        rows.sort();
        (rows == expected).then_some(())
    })
    .await;
}
