//! Tests the faults that the test API server can inject. The tests of crashes and of two leaders depend on them.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::support::server::{Call, Fault, Server};

fn secret(name: &str) -> Secret {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

/// Starts a server. Returns the server, and the API for Secrets of its namespace `default`.
async fn secrets() -> (Server, Api<Secret>) {
    let server = Server::start().await;
    let config = kube::Config::new(server.url().parse().unwrap());
    let secrets = Api::namespaced(glowplug_controller::cluster::client::connect(config).unwrap(), "default");
    (server, secrets)
}

fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> Option<u16> {
    match result {
        Err(kube::Error::Api(status)) => Some(status.code),
        Err(_) => None,
        Ok(answer) => panic!("{answer:?}"),
    }
}

async fn names(secrets: &Api<Secret>) -> Vec<String> {
    secrets.list(&ListParams::default()).await.unwrap().iter().map(ResourceExt::name_any).collect()
}

#[tokio::test]
async fn with_a_lost_answer_the_object_is_stored_and_the_client_gets_no_response() {
    let (server, secrets) = secrets().await;
    server.set_faults(|_| Fault::LostAnswer);
    assert_eq!(code(secrets.create(&PostParams::default(), &secret("a")).await), None);
    server.clear_faults();
    assert_eq!(names(&secrets).await, ["a"]);
    assert_eq!(code(secrets.create(&PostParams::default(), &secret("a")).await), Some(409));
}

#[tokio::test]
async fn with_a_lost_request_no_object_is_stored_and_the_client_gets_no_response() {
    let (server, secrets) = secrets().await;
    server.set_faults(|_| Fault::LostRequest);
    assert_eq!(code(secrets.create(&PostParams::default(), &secret("a")).await), None);
    server.clear_faults();
    assert_eq!(names(&secrets).await, [] as [String; 0]);
}

#[tokio::test]
async fn an_injected_error_status_changes_nothing_and_the_client_does_not_retry() {
    for status in [409, 429, 500, 503, 504] {
        let (server, secrets) = secrets().await;
        server.set_faults(move |_| Fault::Status(status));
        assert_eq!(code(secrets.create(&PostParams::default(), &secret("a")).await), Some(status));
        server.clear_faults();
        assert_eq!(names(&secrets).await, [] as [String; 0]);
        assert_eq!(server.take_calls().len(), 2, "one create and one list, without a retry");
    }
}

#[tokio::test]
async fn a_held_request_is_served_after_its_release() {
    let (server, secrets) = secrets().await;
    let gate = Arc::new(Semaphore::new(0));
    let closed = Arc::clone(&gate);
    server.set_faults(
        move |call: &Call| if call.verb == "create" { Fault::Hold(Arc::clone(&closed)) } else { Fault::None },
    );
    let create = tokio::spawn({
        let secrets = secrets.clone();
        async move { secrets.create(&PostParams::default(), &secret("a")).await }
    });
    while !server.take_calls().iter().any(|call| call.verb == "create") {
        tokio::task::yield_now().await;
    }
    assert_eq!(names(&secrets).await, [] as [String; 0]);
    gate.add_permits(1);
    create.await.unwrap().unwrap();
    assert_eq!(names(&secrets).await, ["a"]);
}

#[tokio::test]
async fn after_an_injected_crash_the_server_answers_no_request() {
    for (is_done, expected) in [(false, vec!["a"]), (true, vec!["a", "b"])] {
        let (server, secrets) = secrets().await;
        server.crash_at(1, is_done);
        secrets.create(&PostParams::default(), &secret("a")).await.unwrap();
        names(&secrets).await;
        assert_eq!(code(secrets.create(&PostParams::default(), &secret("b")).await), None);
        assert_eq!(code(secrets.create(&PostParams::default(), &secret("c")).await), None);
        assert_eq!(code(secrets.list(&ListParams::default()).await), None);
        server.clear_faults();
        assert_eq!(names(&secrets).await, expected);
    }
}

#[tokio::test]
async fn a_watch_ends_when_it_is_cut() {
    let (server, secrets) = secrets().await;
    let mut events = secrets.watch(&WatchParams::default(), "1").await.unwrap().boxed();
    server.cut_watches();
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn a_watch_from_a_compacted_version_gets_status_410() {
    let (server, secrets) = secrets().await;
    let version = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    secrets.create(&PostParams::default(), &secret("a")).await.unwrap();
    server.compact();
    let mut events = secrets.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    match events.try_next().await.unwrap() {
        Some(WatchEvent::Error(status)) => assert_eq!(status.code, 410),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_page_of_a_list_from_a_compacted_version_gets_status_410() {
    let (server, secrets) = secrets().await;
    for name in ["a", "b"] {
        secrets.create(&PostParams::default(), &secret(name)).await.unwrap();
    }
    let params = ListParams::default().limit(1);
    let token = secrets.list(&params).await.unwrap().metadata.continue_.unwrap();
    server.compact();
    match secrets.list(&params.continue_token(&token)).await {
        Err(kube::Error::Api(status)) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bookmark_has_the_newest_resource_version() {
    let (server, secrets) = secrets().await;
    let version = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = secrets.watch(&WatchParams::default(), &version).await.unwrap().boxed();
    let stored = secrets.create(&PostParams::default(), &secret("a")).await.unwrap();
    assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
    server.send_bookmarks();
    match events.try_next().await.unwrap() {
        Some(WatchEvent::Bookmark(bookmark)) => {
            assert_eq!(Some(bookmark.metadata.resource_version), stored.metadata.resource_version);
        }
        other => panic!("{other:?}"),
    }
}
