//! Leader election.

use std::time::Duration;

use glowplug_controller::cluster::term::Term;
use glowplug_controller::cluster::term::Writes;
use glowplug_controller::program::election::Candidate;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{Cluster, SYSTEM};

// With this duration, a candidate on a busy machine does not lose the Lease because of a delay.
const DURATION: Duration = Duration::from_secs(10);

/// A running candidate.
struct Running {
    term: watch::Receiver<Option<Term>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Running {
    fn start(cluster: &Cluster, name: &str, identity: &str) -> Self {
        let (term, terms) = watch::channel(None);
        let (stop, stopped) = watch::channel(false);
        let candidate = Candidate::new(cluster.controller(), SYSTEM, name, identity, DURATION);
        Self { term: terms, stop, task: tokio::spawn(candidate.run(term, stopped, Writes::default())) }
    }

    async fn until(&mut self, leads: bool) {
        self.term.wait_for(|term| term.is_some() == leads).await.unwrap();
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.task.await.unwrap();
        assert_eq!(*self.term.borrow(), None);
    }
}

async fn holder(leases: &Api<Lease>, name: &str) -> Option<String> {
    leases.get(name).await.unwrap().spec.unwrap().holder_identity.filter(|holder| !holder.is_empty())
}

pub async fn a_second_candidate_leads_after_the_first_candidate_stops(cluster: &Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), SYSTEM);
    let mut first = Running::start(cluster, "one-leads", "first");
    first.until(true).await;
    let mut second = Running::start(cluster, "one-leads", "second");
    assert_eq!(holder(&leases, "one-leads").await.as_deref(), Some("first"));
    first.stop().await;
    second.until(true).await;
    assert_eq!(holder(&leases, "one-leads").await.as_deref(), Some("second"));
    second.stop().await;
    assert_eq!(holder(&leases, "one-leads").await, None);
}

pub async fn a_leader_whose_lease_is_taken_stops_leading(cluster: &Cluster) {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), SYSTEM);
    let mut first = Running::start(cluster, "taken", "first");
    first.until(true).await;
    let taken = json!({"spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}});
    leases.patch("taken", &PatchParams::default(), &Patch::Merge(taken)).await.unwrap();
    first.until(false).await;
    first.stop().await;
    assert_eq!(
        holder(&leases, "taken").await.as_deref(),
        Some("another"),
        "no program releases a Lease that another program holds"
    );
}

pub async fn only_one_of_many_candidates_leads_at_a_time(cluster: &Cluster) {
    let names = ["a", "b", "c"];
    let mut candidates: Vec<Running> = names.iter().map(|name| Running::start(cluster, "one-of-many", name)).collect();
    // Only one candidate leads at any time. After the leader has stopped, another candidate leads.
    while !candidates.is_empty() {
        let waits = candidates.iter_mut().map(|candidate| Box::pin(candidate.until(true)));
        let ((), leader, rest) = futures::future::select_all(waits).await;
        drop(rest);
        let leading = candidates.iter().filter(|candidate| candidate.term.borrow().is_some()).count();
        assert_eq!(leading, 1);
        candidates.remove(leader).stop().await;
    }
}
