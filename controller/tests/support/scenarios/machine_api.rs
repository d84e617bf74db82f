//! Machines of OpenShift on vSphere: from a MachineSet to the kernel arguments of its virtual machines, and the release
//! of their addresses.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{Controller, Site, create, until};
use crate::support::machine_api::{CLAIM_FINALIZER, MachineApi};

/// Returns the message of a Machine whose claim waits for an address of pool `p`.
fn exhausted(site: &Site) -> String {
    format!("pool {}/p has no free IPv4 address", site.namespace)
}

/// Creates a namespace with pool `p`, its leader, and Machine API with MachineSet `w`. The only device of the
/// MachineSet gets an address of the pool, through claims of this version.
async fn site(cluster: &Cluster, version: &str, addresses: &[&str]) -> (Site, Controller, MachineApi) {
    let site = Site::of(cluster, &cluster.namespace().await, version);
    site.pool("p", addresses).await;
    let mut controller = Controller::start(cluster, &site);
    controller.until_ready().await;
    let machines = MachineApi::new(cluster, &site).await;
    let pool = json!({"group": "ipam.glowplug.dev", "resource": "staticippools", "name": "p"});
    let device = json!({"networkName": "lab", "addressesFromPools": [pool], "nameservers": ["10.0.0.53"]});
    machines.machine_set("w", &json!([device])).await;
    (site, controller, machines)
}

/// Returns the kernel arguments of a virtual machine with this address.
fn kargs(address: &str) -> String {
    format!("ip={address}::10.0.0.1:255.255.0.0:::none nameserver=10.0.0.53 ")
}

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

pub async fn a_machine_set_on_vsphere_gets_addresses_and_reuses_those_of_deleted_machines(cluster: &Cluster) {
    let (site, _controller, mut machines) = site(cluster, "v1beta1", &["10.0.0.8/31"]).await;
    machines.scale("w", 1).await;
    machines.until_cloned(&["w-0"]).await;
    let claim = site.claims.get("w-0-claim-0-0").await.unwrap();
    let machine = machines.machines.get("w-0").await.unwrap();
    assert_eq!(claim.finalizers(), [CLAIM_FINALIZER, "ipam.glowplug.dev/release-address"]);
    let owner = json!([{
        "apiVersion": "machine.openshift.io/v1beta1", "kind": "Machine", "name": "w-0", "uid": machine.uid(),
        "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(serde_json::to_value(claim.owner_references()).unwrap(), owner);
    let spec = json!({
        "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "staticippools", "name": "p"},
        "claimRef": {"name": "w-0-claim-0-0"}, "address": "10.0.0.8", "prefix": 16, "gateway": "10.0.0.1",
    });
    assert_eq!(site.addresses.get("w-0-claim-0-0").await.unwrap().data["spec"], spec);
    machines.scale("w", 2).await;
    machines.until_cloned(&["w-0", "w-1"]).await;
    let vms: Vec<String> = machines.vms.values().cloned().collect();
    assert_eq!(vms, [kargs("10.0.0.8"), kargs("10.0.0.9")]);

    machines.scale("w", 3).await;
    assert_eq!(machines.until_waiting("w-2", "PoolExhausted").await, exhausted(&site));
    machines.scale("w", 1).await;
    machines.until_cloned(&["w-0"]).await;
    site.until_gone("w-1-claim-0-0").await;
    site.until_gone("w-2-claim-0-0").await;
    assert_eq!(site.held().await, rows([("10.0.0.8", "w-0-claim-0-0")]));
    machines.scale("w", 2).await;
    machines.until_cloned(&["w-0", "w-3"]).await;
    assert_eq!(machines.vms["w-3"], kargs("10.0.0.9"));
    machines.scale("w", 0).await;
    machines.until_cloned(&[]).await;
    site.until_empty().await;
}

pub async fn a_waiting_machine_on_vsphere_gets_the_address_of_a_deleted_machine(cluster: &Cluster) {
    let (site, _controller, mut machines) = site(cluster, "v1beta1", &["10.0.0.8/32"]).await;
    machines.scale("w", 1).await;
    machines.until_cloned(&["w-0"]).await;
    machines.scale("w", 2).await;
    assert_eq!(machines.until_waiting("w-1", "PoolExhausted").await, exhausted(&site));
    // The MachineSet replaces the deleted Machine with a third Machine. The second Machine is older, so it gets the
    // address first.
    machines.machines.delete("w-0", &DeleteParams::default()).await.unwrap();
    machines.until_cloned(&["w-1"]).await;
    assert_eq!(machines.vms["w-1"], kargs("10.0.0.8"));
    assert_eq!(machines.until_waiting("w-2", "PoolExhausted").await, exhausted(&site));
    assert_eq!(site.given().await, rows([("10.0.0.8", "w-1-claim-0-0")]));
}

pub async fn a_claim_without_an_owner_is_served_and_adopted_by_its_machine_on_vsphere(cluster: &Cluster) {
    let (site, _controller, mut machines) = site(cluster, "v1beta2", &["10.0.0.8/30"]).await;
    let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"});
    let metadata = json!({"name": "w-0-claim-0-0", "finalizers": [CLAIM_FINALIZER]});
    create(&site.claims, json!({"metadata": metadata, "spec": {"poolRef": pool}})).await;
    // 10.0.0.8 is the first address of the pool, and not the network address of its subnet.
    assert_eq!(site.address_of("w-0-claim-0-0").await, "10.0.0.8");
    machines.scale("w", 1).await;
    machines.until_cloned(&["w-0"]).await;
    assert_eq!(machines.vms["w-0"], kargs("10.0.0.8"));
    let uid = machines.machines.get("w-0").await.unwrap().uid().unwrap();
    let is_adopted = |claim: &kube::api::DynamicObject| claim.owner_references().iter().any(|owner| owner.uid == uid);
    let claim = until(&site.claims, "w-0-claim-0-0", is_adopted).await;
    assert_eq!(claim.data["spec"]["poolRef"]["kind"], Value::from("StaticIPPool"));
    machines.scale("w", 0).await;
    machines.until_cloned(&[]).await;
    site.until_gone("w-0-claim-0-0").await;
    site.until_empty().await;
}
