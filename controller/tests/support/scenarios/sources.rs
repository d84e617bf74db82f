//! Machines whose addresses another program chooses: a network provider with IPAMClaims, or another IPAM provider of
//! Cluster API. Stand-ins replace these programs.

use glowplug_controller::kinds::pool::{StaticIPLease, StaticIPPool};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{create, merge, merge_status, until};
use crate::support::hosted::provider::PATCH_ANNOTATION;
use crate::support::hosted::{Hosted, is_running, poll};
use crate::support::installed::Installed;
use crate::support::sources::{Network, OtherProvider};

const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";
const IN_USE: &str = "ipam.glowplug.dev/in-use";
const CLAIM: &str = "workers-0-eno101";

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

/// Starts a hosted cluster with a pool for NodePool `workers` whose addresses come from `source`, and the controller.
/// The interface of the machines is `net1`, because the names of HyperShift cannot be part of the name of an IPAMClaim.
async fn served<'c>(cluster: &'c Cluster, source: Value) -> (Hosted, Installed<'c>) {
    let hosted = Hosted::new(cluster).await;
    let paths = ["/spec/template/spec/networks/0/name", "/spec/template/spec/domain/devices/interfaces/0/name"];
    let patch: Value = paths.map(|path| json!({"op": "replace", "path": path, "value": "net1"})).into_iter().collect();
    let annotations = json!({"metadata": {"annotations": {PATCH_ANNOTATION: patch.to_string()}}});
    hosted.node_pool("workers", 0, &annotations).await;
    let mut pool = StaticIPPool::new("workers", hosted.spec("workers", &[]));
    pool.spec.addresses_from = serde_json::from_value(source).unwrap();
    hosted.pools.create(&PostParams::default(), &pool).await.unwrap();
    let installed = Installed::start(cluster).await;
    installed.until_asked(&hosted, "workers").await;
    (hosted, installed)
}

/// Starts a hosted cluster as [`served`] does, with a network provider that has these addresses.
async fn with_network<'c>(cluster: &'c Cluster, addresses: &[&str]) -> (Hosted, Installed<'c>, Network) {
    let (hosted, installed) = served(cluster, json!({"ipamClaim": {}})).await;
    let network = Network::start(&hosted.client, &hosted.namespace, addresses);
    (hosted, installed, network)
}

/// Starts a hosted cluster as [`served`] does, with another IPAM provider that has these addresses.
async fn with_provider<'c>(cluster: &'c Cluster, addresses: &[&str]) -> (Hosted, Installed<'c>, OtherProvider) {
    let (hosted, installed) = served(cluster, json!({"poolRef": OtherProvider::pool_ref()})).await;
    let provider = OtherProvider::start(&hosted.client, &hosted.namespace, addresses);
    (hosted, installed, provider)
}

/// Deletes the VirtualMachine of a machine. Then capk creates another VirtualMachine. Waits until the guest of the new
/// VirtualMachine runs, and returns its address.
async fn create_again(hosted: &Hosted, name: &str) -> String {
    let before = hosted.vms.get(name).await.unwrap().uid();
    hosted.vms.delete(name, &DeleteParams::default()).await.unwrap();
    let vm = until(&hosted.vms, name, |vm| vm.uid() != before).await;
    let is_new = |owner: &str| Some(owner) == vm.uid().as_deref();
    until(&hosted.instances, name, |it| is_running(it) && it.owner_references().iter().any(|it| is_new(&it.uid))).await;
    hosted.address_of(name).await
}

async fn until_no_claims(provider: &OtherProvider) {
    poll("the end of every claim", async || {
        let addresses = provider.addresses.list(&ListParams::default()).await.unwrap().items;
        (provider.names().await.is_empty() && addresses.is_empty()).then_some(())
    })
    .await;
}

pub async fn a_machine_starts_with_the_address_of_its_ipam_claim(cluster: &Cluster) {
    let (hosted, installed, _network) = with_network(cluster, &["10.0.0.40"]).await;
    hosted.scale("workers", 1).await;
    let document = hosted.until_running("workers-0").await.document();
    let expected = json!([{
        "id": "network0", "network_id": "network0", "type": "ipv4", "link": "eno101",
        "ip_address": "10.0.0.40", "netmask": "255.255.0.0",
        "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}],
    }]);
    assert_eq!(document["networks"], expected);
    assert_eq!(hosted.until_annotated("workers-0", ANNOTATION).await, r#"["10.0.0.40/16"]"#);
    assert_eq!(hosted.held().await, rows([("10.0.0.40", "workers-0")]));
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let leases = leases.list(&ListParams::default()).await.unwrap().items;
    let lease = leases.into_iter().find(|lease| lease.spec.network == hosted.network).unwrap().spec;
    assert_eq!((lease.pool, lease.prefix), (format!("{}/workers", hosted.clusters), 16));
    poll("the count of the pool", async || {
        let status = hosted.pools.get("workers").await.unwrap().status.unwrap_or_default();
        status.ip_addresses.filter(|count| count.allocated == 1)
    })
    .await;
    // The guest keeps its address when it migrates and when it starts again.
    assert!(hosted.kubevirt.migrate("workers-0").await);
    assert_eq!(hosted.kubevirt.drives("workers-0").pop().unwrap().document(), document);
    assert_eq!(hosted.restart("workers-0").await.document(), document);
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

pub async fn a_virtual_machine_that_is_created_again_gets_the_address_of_its_new_ipam_claim(cluster: &Cluster) {
    let (hosted, installed, network) = with_network(cluster, &["10.0.0.40"]).await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.40");
    // ipam-extensions deletes the claim with its VirtualMachine, and the network provider allocates another address.
    network.stock.set(&["10.0.0.41"]);
    assert_eq!(create_again(&hosted, "workers-0").await, "10.0.0.41");
    assert_eq!(hosted.held().await, rows([("10.0.0.41", "workers-0")]));
    installed.stop().await;
}

pub async fn a_machine_keeps_its_address_when_only_its_ipam_claim_still_records_it(cluster: &Cluster) {
    let (hosted, mut installed, network) = with_network(cluster, &["10.0.0.40"]).await;
    hosted.scale("workers", 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    installed.stop_leading();
    network.stock.set(&[]);
    hosted.forget_leases().await;
    merge(&hosted.machines, "workers-0", &json!({"metadata": {"annotations": {ANNOTATION: null}}})).await;
    let secret = hosted.secret_name("workers-0").await;
    hosted.secrets.delete(&secret, &DeleteParams::default()).await.unwrap();
    hosted.kubevirt.report("workers-0", &json!({"interfaces": null})).await;
    installed.lead().await;
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.40");
    assert_eq!(hosted.held().await, rows([("10.0.0.40", "workers-0")]));
    installed.stop().await;
}

pub async fn a_change_of_an_ipam_claim_causes_an_event_and_does_not_change_the_address_of_the_machine(
    cluster: &Cluster,
) {
    let (hosted, installed, network) = with_network(cluster, &["10.0.0.40"]).await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.40");
    merge_status(&network.claims, "workers-0.net1", &json!({"status": {"ips": ["10.0.0.77/24"]}})).await;
    let note = format!(
        "IPAMClaim {}/workers-0.net1: 10.0.0.77, expected 10.0.0.40, which the machine holds; the guest keeps the \
         address of its Secret",
        hosted.namespace
    );
    assert_eq!(hosted.until_event("workers-0", "IPAddressConflict").await, note);
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.40");
    assert_eq!(hosted.held().await, rows([("10.0.0.40", "workers-0")]));
    installed.stop().await;
}

pub async fn a_machine_of_an_exhausted_network_starts_when_its_ipam_claim_is_filled(cluster: &Cluster) {
    let (hosted, installed, network) = with_network(cluster, &[]).await;
    hosted.scale("workers", 1).await;
    let note = format!(
        "No available IPs in pool for interface eno101: IPAMClaim {}/workers-0.net1: SubnetExhausted: from the network",
        hosted.namespace
    );
    assert_eq!(hosted.until_event("workers-0", "IPPoolExhausted").await, note);
    network.stock.set(&["10.0.0.40"]);
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.40");
    installed.stop().await;
}

pub async fn a_machine_starts_after_the_machine_network_of_its_pool_is_corrected(cluster: &Cluster) {
    let (hosted, installed, _network) = with_network(cluster, &["10.9.0.40"]).await;
    let networks =
        |cidr: &str| Patch::Merge(json!({"spec": {"machineNetwork": [{"cidr": cidr}, {"cidr": "fd00::/64"}]}}));
    hosted.pools.patch("workers", &PatchParams::default(), &networks("10.0.0.0/24")).await.unwrap();
    hosted.scale("workers", 1).await;
    hosted.until_event("workers-0", "NetworkDataMissing").await;
    hosted.pools.patch("workers", &PatchParams::default(), &networks("10.0.0.0/8")).await.unwrap();
    assert_eq!(hosted.address_of("workers-0").await, "10.9.0.40");
    installed.stop().await;
}

pub async fn a_machine_starts_with_the_address_of_another_provider(cluster: &Cluster) {
    let (hosted, installed, provider) = with_provider(cluster, &["10.0.0.50"]).await;
    hosted.scale("workers", 1).await;
    let document = hosted.until_running("workers-0").await.document();
    let expected = json!([{
        "id": "network0", "network_id": "network0", "type": "ipv4", "link": "eno101",
        "ip_address": "10.0.0.50", "netmask": "255.255.0.0",
        "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.2"}],
    }]);
    assert_eq!(document["networks"], expected);
    let claim = provider.claims.get(CLAIM).await.unwrap();
    assert_eq!(claim.data["spec"], json!({"poolRef": OtherProvider::pool_ref()}));
    assert_eq!((claim.owner_references().len(), &claim.labels()["ipam.glowplug.dev/machine-claim"][..]), (0, "true"));
    for (api, name) in [(&provider.claims, CLAIM), (&provider.addresses, CLAIM)] {
        assert!(api.get(name).await.unwrap().finalizers().iter().any(|finalizer| finalizer == IN_USE), "{name}");
    }
    assert_eq!(hosted.held().await, rows([("10.0.0.50", "workers-0")]));
    assert!(hosted.kubevirt.migrate("workers-0").await);
    assert_eq!(hosted.restart("workers-0").await.document(), document);
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    until_no_claims(&provider).await;
    installed.stop().await;
}

pub async fn the_address_of_another_provider_is_free_only_after_the_guest_has_ended(cluster: &Cluster) {
    let (hosted, installed, provider) = with_provider(cluster, &["10.0.0.50"]).await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    hosted.kubevirt.hold("workers-0");
    // A user deletes the claim, too.
    provider.claims.delete(CLAIM, &DeleteParams::default()).await.unwrap();
    hosted.delete("workers-0").await;
    let note = format!("Waiting for IPAddressClaim {}/workers-1-eno101: it has no address yet", hosted.namespace);
    assert_eq!(hosted.until_event("workers-1", "AddressPending").await, note);
    until(&provider.addresses, CLAIM, |address| address.metadata.deletion_timestamp.is_some()).await;
    assert_eq!(hosted.held().await, rows([("10.0.0.50", "workers-0")]));
    hosted.kubevirt.end("workers-0").await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.50");
    assert_eq!(hosted.held().await, rows([("10.0.0.50", "workers-1")]));
    poll("the end of the first claim", async || (provider.names().await == ["workers-1-eno101"]).then_some(())).await;
    installed.stop().await;
}

pub async fn a_machine_keeps_the_claim_on_another_provider_when_its_virtual_machine_is_created_again(
    cluster: &Cluster,
) {
    let (hosted, installed, provider) = with_provider(cluster, &["10.0.0.50", "10.0.0.51"]).await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    let claim = provider.claims.get(CLAIM).await.unwrap().uid();
    assert_eq!(create_again(&hosted, "workers-0").await, "10.0.0.50");
    assert_eq!(provider.claims.get(CLAIM).await.unwrap().uid(), claim);
    installed.stop().await;
}

pub async fn a_machine_waits_for_the_address_of_an_exhausted_provider(cluster: &Cluster) {
    let (hosted, installed, provider) = with_provider(cluster, &[]).await;
    hosted.scale("workers", 1).await;
    let note = format!("Waiting for IPAddressClaim {}/{CLAIM}: it has no address yet", hosted.namespace);
    assert_eq!(hosted.until_event("workers-0", "AddressPending").await, note);
    provider.stock.set(&["10.0.0.50"]);
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    installed.stop().await;
}

pub async fn an_address_that_two_sources_offer_gets_only_one_holder(cluster: &Cluster) {
    let (hosted, installed, _provider) = with_provider(cluster, &["10.0.0.60"]).await;
    hosted.node_pool("own", 1, &json!({})).await;
    hosted.pool("own", &["10.0.0.60"]).await;
    assert_eq!(hosted.address_of("own-0").await, "10.0.0.60");
    hosted.scale("workers", 1).await;
    let own = hosted.machines.get("own-0").await.unwrap().uid().unwrap();
    let note = format!("IPAddress {0}/{CLAIM}: 10.0.0.60: taken by eno101 of {0}/own-0 ({own})", hosted.namespace);
    assert_eq!(hosted.until_event("workers-0", "IPAddressConflict").await, note);
    hosted.until_condition("workers", "DuplicateRecords").await;
    assert!(hosted.secrets.get_opt(&hosted.secret_name("workers-0").await).await.unwrap().is_none());
    assert_eq!(hosted.held().await, rows([("10.0.0.60", "own-0")]));
    hosted.scale("own", 0).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.60");
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    installed.stop().await;
}

pub async fn a_claim_of_another_author_stays_and_its_machine_waits(cluster: &Cluster) {
    let (hosted, installed, provider) = with_provider(cluster, &["10.0.0.50"]).await;
    let foreign = json!({"metadata": {"name": CLAIM}, "spec": {"poolRef": {"kind": "Other", "name": "x"}}});
    create(&provider.claims, foreign).await;
    hosted.scale("workers", 1).await;
    let note = format!(
        "IPAddressClaim {}/{CLAIM} is not of this controller (no annotation ipam.glowplug.dev/claimant), expected no \
         IPAddressClaim of this name",
        hosted.namespace
    );
    assert_eq!(hosted.until_event("workers-0", "IPAddressConflict").await, note);
    provider.claims.delete(CLAIM, &DeleteParams::default()).await.unwrap();
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    installed.stop().await;
}

pub async fn claims_that_a_user_writes_for_other_interfaces_do_not_delay_a_machine(cluster: &Cluster) {
    let (hosted, installed, provider) = with_provider(cluster, &["10.0.0.50"]).await;
    for at in 0..60 {
        let machine = json!({"namespace": hosted.namespace, "name": "workers-0", "uid": format!("invented-{at}")});
        let note = json!({"kind": "VirtualMachine", "machine": machine, "interface": format!("a{at}")});
        let metadata = json!({
            "name": format!("workers-0-a{at}"), "labels": {"ipam.glowplug.dev/machine-claim": "true"},
            "annotations": {"ipam.glowplug.dev/claimant": note.to_string()},
        });
        create(&provider.claims, json!({"metadata": metadata, "spec": {"poolRef": {"kind": "Other", "name": "x"}}}))
            .await;
    }
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    poll("the end of the other claims", async || (provider.names().await == [CLAIM]).then_some(())).await;
    installed.stop().await;
}

pub async fn the_next_leader_deletes_a_claim_whose_machine_is_gone(cluster: &Cluster) {
    let (hosted, mut installed, provider) = with_provider(cluster, &["10.0.0.50"]).await;
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.50");
    installed.stop_leading();
    hosted.scale("workers", 0).await;
    hosted.until_gone(&hosted.instances, "workers-0").await;
    hosted.until_gone(&hosted.vms, "workers-0").await;
    // Only the claim of the machine is left: the lease of the machine is lost, too.
    hosted.forget_leases().await;
    installed.lead().await;
    until_no_claims(&provider).await;
    installed.stop().await;
}
