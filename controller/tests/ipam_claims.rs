//! Tests how pools serve IPAMClaims while requests, responses and leaders fail.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use futures::stream;
use serde_json::{Value, json};

use crate::support::controller::Controller;
use crate::support::ipam_claims::Tenant;
use crate::support::server::Server;
use crate::support::trouble::{Trouble, history, run_script};
use crate::support::{Cluster, start_server};

/// Runs each step in the life of a claim: it gets addresses, waits for addresses, gets released addresses, and is
/// deleted.
async fn script(tenant: &Tenant) {
    let both = ["10.0.0.8/16", "fd00::8/64"];
    tenant.claim("a", &json!({})).await;
    assert_eq!(tenant.ips_of("a").await, both);
    tenant.claim("b", &json!({})).await;
    tenant.until_failed("b", "SubnetExhausted").await;
    tenant.delete("a").await;
    tenant.until_gone("a").await;
    assert_eq!(tenant.ips_of("b").await, both);
    tenant.delete("b").await;
    tenant.until_gone("b").await;
    tenant.site.until_empty().await;
}

/// Runs the script with a failure at the n-th write of the controller. Returns whether the controller has made the n-th
/// write.
async fn run(trouble: Trouble, n: usize) -> bool {
    let (server, cluster) = start_server().await;
    let tenant = Tenant::new(&cluster).await;
    tenant.pool(&["10.0.0.8/32", "fd00::8/128"]).await;
    let lead = || Controller::start(&cluster, &tenant.site);
    let came = run_script(&server, trouble, n, lead, script(&tenant)).await;
    check_history(&server, &cluster, &tenant).await;
    came
}

/// Checks the history: at no time did two claims have one address, and each address has an older lease of its claim.
async fn check_history(server: &Server, cluster: &Cluster, tenant: &Tenant) {
    let leases = history(server, cluster.client(), "/apis/ipam.glowplug.dev/v1alpha1/staticipleases").await;
    let path = format!("/apis/k8s.cni.cncf.io/v1alpha1/namespaces/{}/ipamclaims", tenant.site.namespace);
    let mut present: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (version, is_gone, claim) in history(server, cluster.client(), &path).await {
        let uid = claim["metadata"]["uid"].as_str().unwrap().to_owned();
        let ips = claim["status"]["ips"].as_array().cloned().unwrap_or_default();
        let address = |ip: &Value| ip.as_str().unwrap().split('/').next().unwrap().to_owned();
        let ips: BTreeSet<String> = ips.iter().filter(|_| !is_gone).map(address).collect();
        for ip in &ips {
            let mut of_address =
                leases.iter().filter(|(at, _, lease)| *at < version && lease["spec"]["address"] == **ip);
            let (_, _, lease) = of_address.next_back().expect("a lease before the status");
            assert_eq!(
                (&lease["spec"]["holder"]["uid"], lease["spec"].get("released")),
                (&json!(uid), None),
                "the lease at the time of the status with {ip}"
            );
        }
        present.insert(uid, ips);
        let all: Vec<&String> = present.values().flatten().collect();
        let distinct: BTreeSet<&&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len(), "two claims with one address: {present:?}");
    }
    assert!(present.values().all(BTreeSet::is_empty), "{present:?}");
}

crate::each_write!(run);

#[tokio::test]
async fn two_leaders_at_once_give_each_claim_one_address() {
    let (server, cluster) = start_server().await;
    let tenant = Tenant::new(&cluster).await;
    tenant.pool(&["10.0.1.0/24"]).await;
    let leaders = [(); 2].map(|()| Controller::start(&cluster, &tenant.site));
    let names: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
    stream::iter(&names).for_each_concurrent(8, |name| async { drop(tenant.claim(name, &json!({})).await) }).await;
    let mut allocated = Vec::new();
    for name in &names {
        let ips = tenant.ips_of(name).await;
        allocated.push((ips[0].split('/').next().unwrap().to_owned(), format!("{name}.net1")));
    }
    allocated.sort();
    let distinct: BTreeSet<&String> = allocated.iter().map(|(address, _)| address).collect();
    assert_eq!(distinct.len(), 40);
    // The second lease of a claim, which the other leader wrote, is released.
    while tenant.site.held().await != allocated {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for name in &names {
        tenant.delete(name).await;
    }
    for name in &names {
        tenant.until_gone(name).await;
    }
    tenant.site.until_empty().await;
    drop(leaders);
    check_history(&server, &cluster, &tenant).await;
}
