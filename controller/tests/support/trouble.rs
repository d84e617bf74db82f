//! Injects a failure at one write of the controller, and reads the history of objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kube::Client;
use kube::api::WatchEvent;
use serde_json::Value;

use super::CONTROLLER;
use super::server::{Call, Fault, Server};

/// The failure of one write of the controller.
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// The process crashes before the write. The API server then has the state of a crash right after the write before.
    Crash,
    /// The response is lost.
    LostAnswer,
    /// The API server changes nothing. It responds with 409 to writes with an even number, and with 503 to the others.
    Refused,
}

/// Makes the n-th write of the controller fail, counted from 0. After a crash, each later request of the controller
/// fails, too. Returns a flag that is set when the controller makes the n-th write.
fn trouble_at(server: &Server, trouble: Trouble, n: usize) -> Arc<AtomicBool> {
    let (came, count) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let happened = Arc::clone(&came);
    server.set_faults(move |call| {
        if call.user != CONTROLLER {
            return Fault::None;
        }
        let is_dead = came.load(Ordering::SeqCst) && matches!(trouble, Trouble::Crash);
        if is_dead {
            return Fault::LostRequest;
        }
        if is_read(call) || count.fetch_add(1, Ordering::SeqCst) != n {
            return Fault::None;
        }
        came.store(true, Ordering::SeqCst);
        match trouble {
            Trouble::Crash => Fault::LostRequest,
            Trouble::LostAnswer => Fault::LostAnswer,
            Trouble::Refused => Fault::Status(if n.is_multiple_of(2) { 409 } else { 503 }),
        }
    });
    happened
}

fn is_read(call: &Call) -> bool {
    matches!(call.verb, "get" | "list" | "watch")
}

/// Runs `script` while a leader runs, with a failure at the n-th write of the controller. After a crash, `lead` starts
/// another leader. Returns whether the controller has made the n-th write.
pub async fn run_script<L>(
    server: &Server,
    trouble: Trouble,
    n: usize,
    lead: impl Fn() -> L,
    script: impl Future<Output = ()>,
) -> bool {
    let came = trouble_at(server, trouble, n);
    let leaders = async {
        let first = lead();
        if matches!(trouble, Trouble::LostAnswer | Trouble::Refused) {
            std::future::pending::<()>().await;
        }
        while !came.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(first);
        server.clear_faults();
        let _second = lead();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = script => {}
        () = leaders => {}
    }
    came.load(Ordering::SeqCst)
}

/// Runs a script once for each write that the controller makes during the script, with a failure at this write. `run`
/// returns whether the controller has made the write.
pub async fn run_all(trouble: Trouble, run: impl AsyncFn(Trouble, usize) -> bool) {
    let run = &run;
    let mut next = 0;
    let mut runs = FuturesUnordered::new();
    loop {
        while runs.len() < 8 {
            runs.push(run(trouble, next));
            next += 1;
        }
        if !runs.next().await.unwrap() {
            break;
        }
    }
    while runs.next().await.is_some() {}
    assert!(next > 20, "{next} runs, expected more than 20: one run for each write of the script");
}

/// Defines a test for each trouble: [`run_all`] with `run`.
#[macro_export]
macro_rules! each_write {
    ($run:ident) => {
        #[tokio::test]
        async fn the_next_leader_completes_the_work_after_a_crash_before_each_write() {
            $crate::support::trouble::run_all($crate::support::trouble::Trouble::Crash, $run).await;
        }

        #[tokio::test]
        async fn a_lost_response_to_each_write_in_turn_does_not_change_the_result() {
            $crate::support::trouble::run_all($crate::support::trouble::Trouble::LostAnswer, $run).await;
        }

        #[tokio::test]
        async fn each_write_that_is_refused_once_is_repeated() {
            $crate::support::trouble::run_all($crate::support::trouble::Trouble::Refused, $run).await;
        }
    };
}

/// Reads the history of the objects of a kind, in order: version, whether the object is deleted, and the object.
pub async fn history(server: &Server, client: Client, path: &str) -> Vec<(u64, bool, Value)> {
    let path = format!("{path}?watch=1&resourceVersion=1&allowWatchBookmarks=true");
    let mut lines = Box::pin(client.request_events::<Value>(get(&path)).await.unwrap());
    // The bookmark arrives after all earlier events.
    server.send_bookmarks();
    let mut events = Vec::new();
    loop {
        let (is_gone, object) = match lines.next().await.unwrap().unwrap() {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (false, object),
            WatchEvent::Deleted(object) => (true, object),
            WatchEvent::Bookmark(_) => return events,
            WatchEvent::Error(status) => panic!("{status:?}"),
        };
        let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        events.push((version, is_gone, object));
    }
}

fn get(path: &str) -> hyper::Request<Vec<u8>> {
    hyper::Request::get(path).body(Vec::new()).unwrap()
}
