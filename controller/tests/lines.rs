//! Tests the log of a controller that loses its rights: the log has at most one line a minute for each cause.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::controller::Site;
use crate::support::hosted::{Hosted, poll};
use crate::support::program::Program;
use crate::support::replica::write_certificate;
use crate::support::server::Server;
use crate::support::{CONTROLLER, start_server};

/// Number of pools for claims.
const POOLS: usize = 3;

/// Number of claims that wait for each pool. `LINES_CLAIMS` sets another number.
const CLAIMS: usize = 8;
/// Name of the role of the controller, and of its binding.
const ROLE: &str = "glowplug-controller-manager";

/// Waits until the controller has sent this number of requests that change objects of a kind.
async fn until_tried(server: &Server, plural: &str, number: usize) {
    let mut tried = 0;
    poll(&format!("{number} requests for {plural}"), async || {
        let is_write = |verb: &str| !matches!(verb, "get" | "list" | "watch");
        let calls = server.take_calls().into_iter();
        tried += calls.filter(|call| call.user == CONTROLLER && call.plural == plural && is_write(call.verb)).count();
        (tried >= number).then_some(())
    })
    .await;
}

/// Returns the cause of a log line: the line without the names of objects, and without other members that differ
/// between lines of the same cause.
fn cause(line: &Value) -> String {
    let fields = &line["fields"];
    let text = |member: &str| fields[member].as_str().unwrap_or_default();
    let error = [text("error"), text("cause"), text("reason")].join(" ");
    let error = error.split('"').step_by(2).collect::<Vec<_>>().join("\"");
    format!("{} {} {error} {} {}", line["target"], fields["message"], text("path"), text("label"))
}

#[tokio::test]
async fn a_controller_without_rights_logs_at_most_one_line_a_minute_for_each_cause() {
    let claims = std::env::var("LINES_CLAIMS").map_or(CLAIMS, |number| number.parse().unwrap());
    let seconds = std::env::var("LINES_SECONDS").map_or(0, |number| number.parse().unwrap());
    let (server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let site = Site::new(&cluster).await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.9.0/24"]).await;
    for pool in 0..POOLS {
        site.pool(&format!("p-{pool}"), &[&format!("10.0.{}.0/24", pool + 1)]).await;
    }
    let claim = async |pool: usize, name: &str| {
        let reference = json!({"spec": {"poolRef": {"name": format!("p-{pool}")}}});
        site.claim(name, &reference).await;
    };
    let mut program = Program::start(cluster.config(), folder.path(), "");
    program.until("serving").await;
    for pool in 0..POOLS {
        claim(pool, &format!("served-{pool}")).await;
        site.address_of(&format!("served-{pool}")).await;
    }

    let began = Instant::now();
    let rest = async |of: u64| {
        tokio::time::sleep(Duration::from_secs(seconds * of / 2).saturating_sub(began.elapsed())).await;
    };
    // From now on, the controller keeps its rights to read, and the right to write its Lease, but has no other right to
    // write.
    let roles: Api<ClusterRole> = Api::all(cluster.client());
    let mut role = roles.get(ROLE).await.unwrap();
    for rule in role.rules.iter_mut().flatten() {
        rule.verbs.retain(|verb| ["get", "list", "watch"].contains(&verb.as_str()));
    }
    role.rules
        .iter_mut()
        .flatten()
        .filter(|rule| rule.verbs.is_empty())
        .for_each(|rule| rule.verbs.push("none".to_owned()));
    roles.patch(ROLE, &PatchParams::default(), &Patch::Merge(json!({"rules": role.rules}))).await.unwrap();
    server.take_calls();
    for n in 0..POOLS * claims {
        claim(n % POOLS, &format!("claim-{n}")).await;
    }
    hosted.scale("workers", 3).await;
    until_tried(&server, "ipaddressclaims", POOLS * claims * 3).await;
    rest(1).await;
    // From now on, the controller has no right to read any object except its Lease.
    Api::<ClusterRoleBinding>::all(cluster.client()).delete(ROLE, &DeleteParams::default()).await.unwrap();
    server.cut_watches();
    server.take_calls();
    let mut lists = 0;
    poll("forbidden lists", async || {
        let calls = server.take_calls().into_iter();
        lists += calls.filter(|call| call.user == CONTROLLER && matches!(call.verb, "list" | "watch")).count();
        (lists >= 30).then_some(())
    })
    .await;
    rest(2).await;

    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    program.send("-KILL");
    while let Some(line) = program.last_line().await {
        if matches!(line["level"].as_str(), Some("WARN" | "ERROR")) {
            *lines.entry(cause(&line)).or_default() += 1;
        }
    }
    let most = 1 + began.elapsed().as_secs() / 60;
    let all: u64 = lines.values().sum();
    if seconds > 0 {
        println!("{all} lines of {} causes in {} s, {lists} lists", lines.len(), began.elapsed().as_secs());
        lines.iter().for_each(|(cause, number)| println!("{number:6} {cause}"));
    }
    let repeated: Vec<_> = lines.iter().filter(|(_, number)| **number > most).collect();
    assert_eq!(repeated, []);
    assert!(all > 5, "{lines:?}");
}
