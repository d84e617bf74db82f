//! Tests the machines of hosted clusters, from the creation of the NodePool to the drive of the guest and the release
//! of the addresses. Stand-ins replace the programs of a hosted cluster.
//!
//! Each of these events has a scenario here or a test elsewhere:
//!
//! | event | test |
//! |---|---|
//! | a later admission step rejects the machine; a dry run | `a_virtual_machine_that_is_not_stored_takes_no_address` |
//! | no replica responds | `without_a_replica_only_machines_of_served_namespaces_are_refused` |
//! | the leader crashes after any write | `*_after_a_crash_*` in `tests/machines.rs` |
//! | a leader resumes after another leader took over | `two_leaders_at_once_*` in `tests/machines.rs` and in the scenarios of the ledger |
//! | a Secret is deleted by hand | `a_secret_that_is_deleted_by_hand_is_written_again` |
//! | a Secret of another author has the name | `a_secret_of_another_author_stays_and_the_machine_gets_another_secret` |
//! | restart, migration, VirtualMachine created again | `a_machine_keeps_its_address_after_a_restart_a_migration_and_a_new_virtual_machine` |
//! | a machine is deleted while no leader runs | `the_address_of_a_machine_that_is_deleted_while_no_replica_leads_is_released` |
//! | the namespace of a hosted cluster is deleted | `leases_outlive_a_deleted_namespace_until_its_guests_have_ended` |
//! | a pool shrinks or is deleted while in use | `a_machine_keeps_its_address_when_its_pool_shrinks_or_is_deleted` |
//! | two machines have records of the same address | `an_address_that_two_machines_record_is_not_allocated` |
//! | a guest reports an address that is not allocated | `an_address_that_only_a_guest_reports_is_not_allocated` |
//! | etcd is restored from a backup | `after_the_loss_of_all_leases_machines_keep_the_addresses_of_their_records` |
//! | `clusterctl move` | `a_moved_claim_keeps_its_address` of claims |
//! | the CRD of KubevirtMachine has no status map | `the_status_map_is_written_if_the_crd_has_it` |
//! | another program writes into a status map | `an_entry_of_another_program_in_one_status_map_ends_the_status_map_of_no_machine` |
//! | the API server does not respond | `a_failed_read_of_the_objects_of_a_machine_releases_no_address` in `tests/machines.rs` |
//! | clocks differ | `a_leader_whose_lease_is_taken_stops_leading` of the election |

use std::collections::BTreeSet;

use glowplug::diagnostic::Diagnostics;
use glowplug::render::dracut;
use glowplug_controller::kinds::lease_name::lease_name;
use glowplug_controller::kinds::network_data::{is_issued_for, new_name};
use glowplug_controller::kinds::pool::{StaticIPLease, StaticIPPool};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{Controller, Site, create, merge, merge_status, until, wait};
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, VIRTUAL_MACHINE, resource};
use crate::support::hosted::provider::object;
use crate::support::hosted::{Hosted, USER_DATA, is_running, poll, provisioned};
use crate::support::installed::{Installed, labels};
use crate::support::policy::Policy;

const EXHAUSTED: &str = "No available IPs in pool for interface eno101";
const WAITING: &str = "ipam.glowplug.dev/waiting";
const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";

fn rows<const N: usize>(rows: [(&str, &str); N]) -> Vec<(String, String)> {
    rows.map(|(address, name)| (address.to_owned(), name.to_owned())).into()
}

/// Starts a hosted cluster with a pool for NodePool `workers`, and the controller that serves this pool.
async fn served<'c>(cluster: &'c Cluster, addresses: &[&str]) -> (Hosted, Installed<'c>) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", addresses).await;
    let installed = Installed::start(cluster).await;
    installed.until_asked(&hosted, "workers").await;
    (hosted, installed)
}

/// Starts a hosted cluster, its pool and the controller, and waits until `replicas` machines are running.
async fn running<'c>(cluster: &'c Cluster, addresses: &[&str], replicas: usize) -> (Hosted, Installed<'c>) {
    let (hosted, installed) = served(cluster, addresses).await;
    hosted.scale("workers", replicas).await;
    for n in 0..replicas {
        hosted.until_running(&format!("workers-{n}")).await;
    }
    (hosted, installed)
}

pub async fn a_machine_of_a_node_pool_starts_with_its_address(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/30", "fd00::8/125"], 1).await;
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let spec = &vm.data["spec"]["template"]["spec"];
    let source = json!({
        "secretRef": {"name": "user-data-workers-userdata"},
        "networkDataSecretRef": {"name": hosted.secret_name("workers-0").await},
    });
    assert_eq!(spec["volumes"][1], json!({"name": "cloudinitvolume", "cloudInitConfigDrive": source}));
    let interface = &spec["domain"]["devices"]["interfaces"][0];
    assert_eq!(interface["acpiIndex"], 101);

    let drive = hosted.until_running("workers-0").await;
    let mac = interface["macAddress"].clone();
    let expected = json!({
        "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": mac, "name": "eno101"}],
        "networks": [
            {
                "id": "network0", "network_id": "network0", "type": "ipv4", "link": "eno101",
                "ip_address": "10.0.0.8", "netmask": "255.255.0.0",
                "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}],
            },
            {
                "id": "network1", "network_id": "network1", "type": "ipv6", "link": "eno101",
                "ip_address": "fd00::8", "netmask": "ffff:ffff:ffff:ffff::", "routes": [],
            },
        ],
        "services": [],
    });
    assert_eq!(drive.document(), expected);
    let expected_document = expected;

    let secret = hosted.secret("workers-0").await;
    assert_eq!(secret.immutable, None);
    let owners = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "workers-0", "uid": vm.uid(),
    }]);
    assert_eq!(serde_json::to_value(secret.owner_references()).unwrap(), owners);

    let annotation = hosted.until_annotated("workers-0", ANNOTATION).await;
    assert_eq!(annotation, r#"["10.0.0.8/16","fd00::8/64"]"#);
    let machine = hosted.machines.get("workers-0").await.unwrap();
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("fd00::8", "workers-0")]));
    let leases: Api<StaticIPLease> = Api::all(cluster.client());
    let leases = leases.list(&ListParams::default()).await.unwrap().items;
    let holder = &leases.iter().find(|lease| lease.spec.network == hosted.network).unwrap().spec.holder;
    let expected = json!({
        "kind": "KubevirtMachine", "namespace": hosted.namespace, "name": "workers-0", "uid": machine.uid(),
        "interface": "eno101",
    });
    assert_eq!(serde_json::to_value(holder).unwrap(), expected);
    hosted.until_event("workers-0", "IPAddressAllocated").await;

    // When the gateway of a pool changes, a guest reads the new gateway at its next start.
    merge(&hosted.pools, "workers", &json!({"spec": {"gateway": ["10.0.0.2"]}})).await;
    poll("the Secret with the new gateway", async || {
        let document = hosted.secret("workers-0").await.data?.remove("networkdata")?.0;
        String::from_utf8(document).unwrap().contains("10.0.0.2").then_some(())
    })
    .await;
    let mut expected = expected_document;
    expected["networks"][0]["routes"][0]["gateway"] = "10.0.0.2".into();
    assert_eq!(hosted.restart("workers-0").await.document(), expected);
    installed.stop().await;
}

pub async fn a_machine_with_a_no_cloud_volume_reads_its_address_from_network_config(cluster: &Cluster) {
    let (hosted, installed) = served(cluster, &["10.0.0.8/30", "fd00::8/125"]).await;
    hosted.set_cloud_init(json!({"dataSource": "noCloud"}));
    hosted.scale("workers", 1).await;
    let drive = hosted.until_running("workers-0").await;
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let spec = &vm.data["spec"]["template"]["spec"];
    let source = json!({
        "secretRef": {"name": "user-data-workers-userdata"},
        "networkDataSecretRef": {"name": hosted.secret_name("workers-0").await},
    });
    assert_eq!(spec["volumes"][1], json!({"name": "cloudinitvolume", "cloudInitNoCloud": source}));
    let mac = spec["domain"]["devices"]["interfaces"][0]["macAddress"].as_str().unwrap();
    let expected = json!({
        "version": 2,
        "ethernets": {"eno101": {
            "match": {"macaddress": mac}, "set-name": "eno101",
            "addresses": ["10.0.0.8/16", "fd00::8/64"],
            "routes": [{"to": "0.0.0.0/0", "via": "10.0.0.1"}],
        }},
    });
    assert_eq!(drive.document(), expected);
    // The guest makes these kernel arguments from the document in the image.
    let network = drive.network().unwrap();
    let arguments = dracut::render(&network, &mut Diagnostics::default()).line;
    assert_eq!(arguments, format!("ip=10.0.0.8::10.0.0.1:16::[{mac}]:none ip=[fd00::8]:::64::[{mac}]:none"));
    assert_eq!(hosted.until_annotated("workers-0", ANNOTATION).await, r#"["10.0.0.8/16","fd00::8/64"]"#);
    installed.stop().await;
}

pub async fn a_machine_keeps_network_data_of_its_own_and_no_other_machine_gets_its_address(cluster: &Cluster) {
    let (hosted, mut installed) = served(cluster, &["10.0.0.8/30"]).await;
    let document = json!({"version": 2, "ethernets": {"eno101": {"addresses": ["10.0.0.8/16"]}}}).to_string();
    let data = json!({"networkdata": ByteString(document.clone().into_bytes())});
    let given: Secret = serde_json::from_value(json!({"metadata": {"name": "given"}, "data": data})).unwrap();
    hosted.secrets.create(&PostParams::default(), &given).await.unwrap();
    hosted.set_cloud_init(json!({"dataSource": "noCloud", "networkDataSecretRef": {"name": "given"}}));
    hosted.scale("workers", 1).await;
    let note = format!(
        "Secret {}/workers-0-userdata has network data for the machine, so the machine gets no address of {}/workers",
        hosted.namespace, hosted.clusters
    );
    assert_eq!(hosted.until_event("workers-0", "NetworkDataKept").await, note);
    let drive = hosted.until_running("workers-0").await;
    assert_eq!(drive.network_data, Some(document.into_bytes()));
    assert_eq!(drive.addresses()[0].1, "10.0.0.8");
    assert_eq!(hosted.held().await, []);
    // The next machine gets another address. A later machine, which another leader serves, also gets another address.
    hosted.set_cloud_init(Value::Null);
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    // workers-0 is the only user of 10.0.0.8, also after its guest has reported the address.
    poll("a recorded address of one user", async || {
        let counts = hosted.pools.get("workers").await.unwrap().status?.families.first()?.clone();
        ((&*counts.by_record, &*counts.conflicts) == ("1", "0")).then_some(())
    })
    .await;
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    installed.stop_leading();
    hosted.scale("workers", 3).await;
    installed.lead().await;
    assert_eq!(hosted.address_of("workers-2").await, "10.0.0.10");
    // 10.0.0.8 is free after workers-0 is gone. HyperShift replaces workers-0, and the new machine may get an address
    // before 10.0.0.8 is free.
    hosted.delete("workers-0").await;
    poll("a pool without a reserved address", async || {
        (hosted.pools.get("workers").await.unwrap().status?.families[0].by_record == "0").then_some(())
    })
    .await;
    hosted.scale("workers", 4).await;
    let addresses = [hosted.address_of("workers-3").await, hosted.address_of("workers-4").await];
    assert_eq!(BTreeSet::from(addresses), ["10.0.0.8".to_owned(), "10.0.0.11".to_owned()].into());
    installed.stop().await;
}

pub async fn two_clusters_of_fifty_machines_use_the_same_addresses_on_different_networks(cluster: &Cluster) {
    let clusters = cluster.namespace().await;
    let hosted = [
        Hosted::start(cluster, &clusters, "c1", USER_DATA).await,
        Hosted::start(cluster, &clusters, "c2", USER_DATA).await,
    ];
    let installed = Installed::start(cluster).await;
    for (hosted, pool) in hosted.iter().zip(["one", "two"]) {
        hosted.node_pool(pool, 0, &json!({})).await;
        hosted.pool(pool, &["10.0.0.10-10.0.0.59"]).await;
        installed.until_asked(hosted, pool).await;
    }
    let expected: BTreeSet<String> = (10..60).map(|n| format!("10.0.0.{n}")).collect();
    for (hosted, pool) in hosted.iter().zip(["one", "two"]) {
        hosted.scale(pool, 50).await;
    }
    for (hosted, pool) in hosted.iter().zip(["one", "two"]) {
        let mut found = BTreeSet::new();
        for n in 0..50 {
            found.insert(hosted.address_of(&format!("{pool}-{n}")).await);
        }
        assert_eq!(found, expected);
        assert_eq!(hosted.held().await.len(), 50);
    }
    // When the NodePool shrinks, the addresses of the deleted machines are released. The next machines get these
    // addresses.
    hosted[0].scale("one", 48).await;
    hosted[0].until_held(48).await;
    hosted[0].scale("one", 50).await;
    let mut found = [hosted[0].address_of("one-50").await, hosted[0].address_of("one-51").await];
    found.sort();
    let held: BTreeSet<String> = hosted[0].held().await.into_iter().map(|(address, _)| address).collect();
    assert_eq!((held.len(), held == expected), (50, true), "{found:?}");
    assert_eq!(hosted[1].held().await.len(), 50);
    for (hosted, pool) in hosted.iter().zip(["one", "two"]) {
        hosted.scale(pool, 0).await;
        hosted.until_held(0).await;
    }
    installed.stop().await;
}

/// Waits until the status of the pool lists exactly these waiting machines, and counts them.
async fn until_waiting(hosted: &Hosted, expected: &Value) {
    poll("the waiting machines in the status of the pool", async || {
        let status = hosted.pools.get("workers").await.unwrap().status?;
        (json!(status.first_waiting) == *expected && status.waiting as usize == status.first_waiting.len())
            .then_some(())
    })
    .await;
}

/// The refused machine has no VirtualMachine and no claim. The next leader counts the machine again.
pub async fn the_status_of_an_exhausted_pool_counts_a_refused_machine_until_it_is_deleted(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/32"], 1).await;
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 2).await;
    hosted.until_refused("workers-1").await;
    let created = hosted.machines.get("workers-1").await.unwrap().metadata.creation_timestamp;
    let refused = json!([{
        "kind": "KubevirtMachine", "namespace": hosted.namespace, "name": "workers-1", "family": "IPv4", "since": created,
    }]);
    until_waiting(&hosted, &refused).await;
    installed.stop_leading();
    merge_status(&hosted.pools, "workers", &json!({"status": {"firstWaiting": null, "waiting": 0}})).await;
    installed.lead().await;
    until_waiting(&hosted, &refused).await;
    hosted.scale("workers", 1).await;
    until_waiting(&hosted, &json!([])).await;
    installed.stop().await;
}

pub async fn a_machine_that_an_exhausted_pool_refuses_is_created_when_the_pool_grows(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/32"], 1).await;
    // Only the controller can cause the next attempt of capk.
    hosted.be_slow_to_retry();
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 2).await;
    let message = hosted.until_refused("workers-1").await;
    let expected = format!(
        "Failed vm creation: admission webhook \"machines.ipam.glowplug.dev\" denied the request: {EXHAUSTED}: pool {}/workers, IPv4",
        hosted.clusters
    );
    assert!(message.starts_with(&expected), "{message}");
    assert!(hosted.vms.get_opt("workers-1").await.unwrap().is_none());
    let created = hosted.machines.get("workers-1").await.unwrap().metadata.creation_timestamp;
    let refused = json!([{
        "kind": "KubevirtMachine", "namespace": hosted.namespace, "name": "workers-1", "family": "IPv4", "since": created,
    }]);
    until_waiting(&hosted, &refused).await;
    // A user has a KubevirtMachine of the same name in another namespace. The name of the other namespace is first in
    // alphabetical order.
    let machines: Api<DynamicObject> =
        Api::namespaced_with(cluster.client(), &hosted.clusters, &resource(KUBEVIRT_MACHINE));
    let template = json!({"metadata": {"namespace": hosted.namespace}});
    let machine = json!({"metadata": {"name": "workers-1"}, "spec": {"virtualMachineTemplate": template}});
    machines.create(&PostParams::default(), &object(KUBEVIRT_MACHINE, machine)).await.unwrap();
    hosted.resize("workers", &["10.0.0.8/31"]).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    until(&hosted.machines, "workers-1", |machine| provisioned(machine)["status"] == "True").await;
    until_waiting(&hosted, &json!([])).await;

    // The controller also makes capk try again when an address is released. HyperShift replaces the deleted machine,
    // and the new machine may get the address first.
    hosted.until_condition("workers", "Exhausted").await;
    hosted.scale("workers", 3).await;
    hosted.until_refused("workers-2").await;
    hosted.delete("workers-0").await;
    poll("a machine with the released address", async || {
        let held = hosted.held().await;
        ["workers-2", "workers-3"].into_iter().find(|name| held.contains(&("10.0.0.8".to_owned(), (*name).to_owned())))
    })
    .await;
    installed.stop().await;
}

pub async fn a_machine_that_does_not_get_its_requested_address_has_an_event(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/29"], 1).await;
    let request = async |text: Value| {
        let annotations = json!({"network.kubevirt.io/addresses": text.to_string()});
        merge(&hosted.vms, "workers-0", &json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}))
            .await;
    };
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let interface = vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["name"].clone();
    let interface = interface.as_str().unwrap();
    request(json!({"eno101": ["10.0.0.9"]})).await;
    let expected = format!(
        "annotation network.kubevirt.io/addresses: no interface \"eno101\", expected KubeVirt's name of an interface: {interface}"
    );
    assert_eq!(hosted.until_event("workers-0", "AddressRequestIgnored").await, expected);
    request(json!({interface: ["10.0.0.9"]})).await;
    let expected = format!(
        "annotation network.kubevirt.io/addresses: requests 10.0.0.9 for interface {interface:?}, which keeps 10.0.0.8: a machine \
         gets another address when its VirtualMachine is created again"
    );
    let events: Api<Event> = Api::namespaced(cluster.client(), &hosted.namespace);
    poll("the event of the changed request", async || {
        let mut events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        events.any(|event| event.note.as_ref() == Some(&expected)).then_some(())
    })
    .await;
    installed.stop().await;
}

/// capk creates several machines at once, so the webhook may allow a machine before the pool is known as exhausted.
pub async fn a_machine_that_waits_for_an_exhausted_pool_has_an_event_and_an_annotation_with_the_reason(
    cluster: &Cluster,
) {
    let hosted = Hosted::new(cluster).await;
    hosted.kubevirt.be_late();
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/32"]).await;
    let leader = Controller::of(cluster, "");
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    hosted.scale("workers", 2).await;
    let why = format!("{EXHAUSTED}: pool {}/workers, IPv4", hosted.clusters);
    assert_eq!(hosted.until_event("workers-1", "IPPoolExhausted").await, why);
    assert_eq!(hosted.until_annotated("workers-1", WAITING).await, why);
    let created = hosted.machines.get("workers-1").await.unwrap().metadata.creation_timestamp;
    let expected = json!([{
        "kind": "KubevirtMachine", "namespace": hosted.namespace, "name": "workers-1", "family": "IPv4", "since": created,
    }]);
    poll("the waiting machine in the status of its pool", async || {
        let status = hosted.pools.get("workers").await.unwrap().status?;
        (json!(status.first_waiting) == expected && (status.waiting, status.machines) == (1, 2)).then_some(())
    })
    .await;

    // The next leader repeats the event.
    drop(leader);
    let events: Api<Event> = Api::namespaced(cluster.client(), &hosted.namespace);
    let _leader = Controller::of(cluster, "");
    poll("the event of the next leader", async || {
        let events = events.list(&ListParams::default()).await.unwrap().items.into_iter();
        let is_it = |event: &Event| {
            let of = event.regarding.as_ref().and_then(|of| Some((of.kind.as_deref()?, of.name.as_deref()?)));
            of == Some(("VirtualMachine", "workers-1")) && event.note.as_ref() == Some(&why)
        };
        (events.filter(is_it).count() == 2).then_some(())
    })
    .await;

    hosted.resize("workers", &["10.0.0.8/31"]).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    until(&hosted.machines, "workers-1", |machine| !machine.annotations().contains_key(WAITING)).await;
    poll("a status without waiting machines", async || {
        let status = hosted.pools.get("workers").await.unwrap().status?;
        (status.first_waiting.is_empty() && status.waiting == 0).then_some(())
    })
    .await;
}

pub async fn machines_that_wait_get_addresses_in_the_order_of_their_creation(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    let mut pool = StaticIPPool::new("p", hosted.spec("p", &["10.0.0.8/32"]));
    pool.spec.node_pool_ref = None;
    pool.spec.machine_selector = serde_json::from_value(json!({"matchLabels": {"app": "x"}})).unwrap();
    // These machines are in the namespace of the pool and have no KubevirtMachine. The webhook does not reject them,
    // because no program would create them again.
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &hosted.namespace);
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let installed = Installed::start(cluster).await;
    for name in ["a", "b", "c", "d"] {
        let drive = json!({"networkDataSecretRef": {"name": new_name(name).unwrap()}});
        let vm = hosted.vm(name, &json!({"app": "x"}), &drive);
        hosted.vms.create(&PostParams::default(), &vm).await.unwrap();
        if name == "a" {
            assert_eq!(hosted.address_of(name).await, "10.0.0.8");
        } else {
            let expected = format!("{EXHAUSTED}: pool {}/p, IPv4", hosted.namespace);
            assert_eq!(hosted.until_event(name, "IPPoolExhausted").await, expected);
        }
    }
    let resize = async |addresses: Value| {
        merge(&pools, "p", &json!({"spec": {"addresses": addresses}})).await;
    };
    resize(json!(["10.0.0.8/31"])).await;
    assert_eq!(hosted.address_of("b").await, "10.0.0.9");
    resize(json!(["10.0.0.8/31", "10.0.0.10"])).await;
    assert_eq!(hosted.address_of("c").await, "10.0.0.10");
    hosted.vms.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(hosted.address_of("d").await, "10.0.0.8");
    installed.stop().await;
}

pub async fn a_virtual_machine_that_is_not_stored_takes_no_address(cluster: &Cluster) {
    let (hosted, installed) = served(cluster, &["10.0.0.8/31"]).await;
    // Only the leader can cause the next attempt of capk.
    hosted.be_slow_to_retry();
    // A dry run must not allocate an address.
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let vm = |name: &str| hosted.vm(name, &labels(&hosted, name, "workers"), &json!({}));
    let answer = hosted.vms.create(&dry_run, &vm("dry")).await.unwrap();
    let source = &answer.data["spec"]["template"]["spec"]["volumes"][0]["cloudInitConfigDrive"];
    let name = source["networkDataSecretRef"]["name"].as_str().unwrap();
    assert!(is_issued_for(name, "dry"), "{name}");
    // The API server checks the schema of the kind after it has called the webhook.
    let mut invalid = vm("invalid");
    invalid.data["spec"]["runStrategy"] = 1.into();
    let refused = hosted.vms.create(&PostParams::default(), &invalid).await;
    assert!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 422), "{refused:?}");
    // Both addresses are free for the next machines.
    hosted.scale("workers", 2).await;
    let addresses = [hosted.address_of("workers-0").await, hosted.address_of("workers-1").await];
    assert_eq!(BTreeSet::from(addresses), ["10.0.0.8".to_owned(), "10.0.0.9".to_owned()].into());
    let secrets = hosted.secrets.list(&ListParams::default()).await.unwrap();
    let names = [hosted.secret_name("workers-0").await, hosted.secret_name("workers-1").await];
    let names: Vec<String> = ["user-data-workers-userdata".to_owned()].into_iter().chain(names).collect();
    assert_eq!(secrets.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), names);
    installed.stop().await;
}

pub async fn without_a_replica_only_machines_of_served_namespaces_are_refused(cluster: &Cluster) {
    let (hosted, mut installed) = served(cluster, &["10.0.0.8/30"]).await;
    let other = Hosted::new(cluster).await;
    installed.stop_answering().await;
    hosted.scale("workers", 1).await;
    let message = hosted.until_refused("workers-0").await;
    assert!(message.contains("failed calling webhook \"machines.ipam.glowplug.dev\""), "{message}");
    other.node_pool("workers", 1, &json!({})).await;
    other.until_running("workers-0").await;
    // capk tries again after a pause. The change of the KubevirtMachine below causes the next attempt at once.
    installed.answer_again().await;
    installed.until_asked(&hosted, "workers").await;
    merge(&hosted.machines, "workers-0", &json!({"metadata": {"annotations": {"again": "1"}}})).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    installed.stop().await;
}

pub async fn a_secret_that_is_deleted_by_hand_is_written_again(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/30"], 2).await;
    let address = hosted.address_of("workers-1").await;
    let before = hosted.secret("workers-1").await;
    hosted.secrets.delete(&before.name_any(), &DeleteParams::default()).await.unwrap();
    // The guest keeps running. Its next start needs the Secret.
    assert_eq!(hosted.restart("workers-1").await.addresses()[0].1, address);
    let after = hosted.secret("workers-1").await;
    assert_ne!(before.uid(), after.uid());
    assert_eq!(before.name_any(), after.name_any());
    assert_eq!((before.data, before.metadata.owner_references), (after.data, after.metadata.owner_references));
    installed.stop().await;
}

pub async fn a_secret_of_another_author_stays_and_the_machine_gets_another_secret(cluster: &Cluster) {
    let (hosted, mut installed) = served(cluster, &["10.0.0.8/30"]).await;
    installed.stop_leading();
    hosted.scale("workers", 1).await;
    until(&hosted.vms, "workers-0", |_| true).await;
    let name = hosted.secret_name("workers-0").await;
    let theirs = json!({"metadata": {"name": name}, "data": {"networkdata": "e30="}});
    let theirs = serde_json::from_value(theirs).unwrap();
    let theirs = hosted.secrets.create(&PostParams::default(), &theirs).await.unwrap();
    installed.lead().await;
    until(&hosted.vms, "workers-0", |vm| Hosted::reference(vm).is_some_and(|other| other != name)).await;
    hosted.until_held(1).await;
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.8");
    assert_eq!(hosted.secrets.get(&name).await.unwrap(), theirs);
    installed.stop().await;
}

pub async fn a_machine_keeps_its_address_after_a_restart_a_migration_and_a_new_virtual_machine(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/29"], 3).await;
    let address = hosted.address_of("workers-1").await;
    assert_eq!(hosted.restart("workers-1").await.addresses()[0].1, address);
    assert!(hosted.kubevirt.migrate("workers-1").await);
    assert_eq!(hosted.kubevirt.drives("workers-1").pop().unwrap().addresses()[0].1, address);
    // capk creates the VirtualMachine again.
    let held = hosted.held().await;
    let before = hosted.vms.get("workers-1").await.unwrap().uid();
    hosted.vms.delete("workers-1", &DeleteParams::default()).await.unwrap();
    let is_new = |instance: &DynamicObject| {
        let owner = instance.owner_references().first().map(|owner| owner.uid.clone());
        owner != before && is_running(instance)
    };
    until(&hosted.instances, "workers-1", is_new).await;
    assert_eq!(hosted.address_of("workers-1").await, address);
    assert_eq!(hosted.held().await, held);
    installed.stop().await;
}

pub async fn an_address_is_allocated_again_only_after_its_guest_has_ended(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/32"], 1).await;
    hosted.until_condition("workers", "Exhausted").await;
    hosted.kubevirt.hold("workers-0");
    hosted.delete("workers-0").await;
    // The machine is gone, but its guest still runs. HyperShift replaces the machine.
    hosted.until_gone(&hosted.machines, "workers-0").await;
    hosted.until_refused("workers-1").await;
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0")]));
    hosted.kubevirt.end("workers-0").await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.8");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-1")]));
    installed.stop().await;
}

pub async fn each_virtual_machine_of_a_kubevirt_machine_has_its_own_secret(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    for _ in 0..2 {
        let (vm, before) = (hosted.vms.get("workers-0").await.unwrap().uid(), hosted.secret_name("workers-0").await);
        let instance = hosted.instances.get("workers-0").await.unwrap().uid();
        hosted.vms.delete("workers-0", &DeleteParams::default()).await.unwrap();
        until(&hosted.vms, "workers-0", |new| new.uid() != vm).await;
        until(&hosted.instances, "workers-0", |new| new.uid() != instance && is_running(new)).await;
        assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
        assert_ne!(hosted.secret_name("workers-0").await, before);
        hosted.until_no_secret(&before).await;
    }
    installed.stop().await;
}

pub async fn a_guest_that_outlives_its_virtual_machine_keeps_its_address(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/31"], 1).await;
    hosted.kubevirt.hold("workers-0");
    // The scenario orphans the instance: it removes the finalizer of KubeVirt from the VirtualMachine, so the guest
    // continues to run.
    hosted.scale("workers", 0).await;
    hosted.until_gone(&hosted.machines, "workers-0").await;
    merge(&hosted.vms, "workers-0", &json!({"metadata": {"finalizers": null}})).await;
    hosted.until_gone(&hosted.vms, "workers-0").await;
    // The next machine gets the other address.
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("10.0.0.9", "workers-1")]));
    hosted.kubevirt.end("workers-0").await;
    hosted.until_held(1).await;
    installed.stop().await;
}

/// Users of another namespace write names and addresses of a hosted cluster into their own objects.
pub async fn objects_of_another_namespace_reserve_no_address_and_keep_no_lease(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    installed.stop_leading();
    let other = cluster.namespace().await;
    let vms: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &other, &resource(VIRTUAL_MACHINE));
    let annotations = json!({"metadata": {"annotations": {
        (ANNOTATION): r#"["10.0.0.9/16", "10.0.0.10/16", "10.0.0.11/16"]"#,
        "ipam.glowplug.dev/network-eno101": hosted.network,
        "hypershift.openshift.io/nodePool": format!("{}/workers", hosted.clusters),
    }}});
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": hosted.namespace,
        "capk.cluster.x-k8s.io/kubevirt-machine-name": "workers-0",
    });
    // The owner of this instance is a VirtualMachine of the hosted cluster.
    let vm = hosted.vms.get("workers-0").await.unwrap();
    let owner = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "workers-0", "uid": vm.uid()});
    let mut instance = json!({"metadata": {
        "name": "workers-0", "finalizers": ["example.com/stays"], "ownerReferences": [owner], "labels": labels,
    }});
    json_patch::merge(&mut instance, &annotations);
    let instances: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &other, &resource(INSTANCE));
    instances.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
    for (name, labels) in [("unlabelled", &json!({})), ("workers-0", &labels)] {
        let mut vm = hosted.vm(name, labels, &json!({"secretRef": {"name": "userdata"}}));
        let metadata = serde_json::to_value(&vm.metadata).unwrap();
        let mut annotated = json!({"metadata": metadata});
        json_patch::merge(&mut annotated, &annotations);
        vm.metadata = serde_json::from_value(annotated["metadata"].take()).unwrap();
        vms.create(&PostParams::default(), &vm).await.unwrap();
    }
    installed.lead().await;
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("10.0.0.9", "workers-1")]));
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    // A VirtualMachine of the other namespace names workers-0 in its labels. The labels do not keep the address of
    // workers-0.
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

/// Users write the UID of a machine into the owner of an IPAddress, as if the machine were a claim that is gone.
pub async fn an_ipaddress_whose_owner_has_the_uid_of_a_machine_releases_no_address(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/32"], 1).await;
    // If an address were released, this claim would get it.
    let waiting = Site::of(cluster, &hosted.clusters, "v1beta2");
    waiting.claim("c", &json!({"spec": {"poolRef": {"name": "workers"}}})).await;
    let exhausted = format!("pool {}/workers has no free IPv4 address", hosted.clusters);
    assert_eq!(waiting.until_not_ready("c", "PoolExhausted").await, exhausted);
    let site = Site::of(cluster, &hosted.namespace, "v1beta2");
    site.pool("p", &["10.0.9.8/29"]).await;
    let owner = json!({
        "apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim", "name": "workers-0",
        "uid": hosted.machines.get("workers-0").await.unwrap().uid(), "controller": true,
    });
    let forge = async |address: &str, finalizers: &[&str]| {
        let object = json!({
            "metadata": {"name": "workers-0", "finalizers": finalizers, "ownerReferences": [owner]},
            "spec": {
                "poolRef": {"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "p"},
                "claimRef": {"name": "workers-0"}, "address": address, "prefix": 16,
            },
        });
        create(&site.addresses, object).await;
    };
    for (address, finalizers) in [("10.0.9.9", &["ipam.glowplug.dev/protect-address"][..]), ("10.0.9.10", &[])] {
        forge(address, finalizers).await;
        // The garbage collector of Kubernetes deletes an IPAddress whose owner does not exist.
        site.addresses.delete("workers-0", &DeleteParams::default()).await.unwrap();
        wait(&site.addresses, "workers-0", |address: Option<&DynamicObject>| address.is_none()).await;
    }
    site.claim("workers-0", &json!({"metadata": {"annotations": {"cluster.x-k8s.io/paused": ""}}})).await;
    forge("10.0.9.11", &[]).await;
    merge(&site.claims, "workers-0", &json!({"metadata": {"annotations": null}})).await;
    assert_eq!(site.address_of("workers-0").await, "10.0.9.11");
    site.claim("last", &json!({})).await;
    site.address_of("last").await;
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0")]));
    assert_eq!(waiting.until_not_ready("c", "PoolExhausted").await, exhausted);
    hosted.scale("workers", 0).await;
    assert_eq!(waiting.address_of("c").await, "10.0.0.8");
    installed.stop().await;
}

pub async fn the_address_of_a_machine_that_is_deleted_while_no_replica_leads_is_released(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 2).await;
    installed.stop_leading();
    hosted.scale("workers", 1).await;
    hosted.until_gone(&hosted.vms, "workers-1").await;
    assert_eq!(hosted.held().await.len(), 2);
    installed.lead().await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await[0].1, "workers-0");
    installed.stop().await;
}

pub async fn leases_outlive_a_deleted_namespace_until_its_guests_have_ended(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/30"], 2).await;
    for name in ["workers-0", "workers-1"] {
        hosted.kubevirt.hold(name);
    }
    // The scenario deletes the objects that the garbage collector and the namespace controller would delete.
    hosted.node_pools.delete("workers", &DeleteParams::default()).await.unwrap();
    for secret in hosted.secrets.list(&ListParams::default()).await.unwrap() {
        match hosted.secrets.delete(&secret.name_any(), &DeleteParams::default()).await {
            // The controller may have deleted the object first.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            result => drop(result.unwrap()),
        }
    }
    for name in ["workers-0", "workers-1"] {
        hosted.until_gone(&hosted.machines, name).await;
    }
    hosted.kubevirt.end("workers-1").await;
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await[0].1, "workers-0");
    hosted.kubevirt.end("workers-0").await;
    hosted.until_held(0).await;
    installed.stop().await;
}

pub async fn a_machine_keeps_its_address_when_its_pool_shrinks_or_is_deleted(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/31"], 2).await;
    let held = hosted.held().await;
    hosted.resize("workers", &["10.0.0.8/32"]).await;
    poll("an address out of range", async || {
        let counts = hosted.pools.get("workers").await.unwrap().status?.ip_addresses?;
        (counts.outside == 1).then_some(())
    })
    .await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    for name in ["workers-0", "workers-1"] {
        let address = hosted.address_of(name).await;
        assert_eq!(hosted.restart(name).await.addresses()[0].1, address);
    }
    assert_eq!(hosted.held().await, held);
    assert!(hosted.pools.get("workers").await.unwrap().metadata.deletion_timestamp.is_some());
    hosted.scale("workers", 0).await;
    poll("the end of the pool", async || hosted.pools.get_opt("workers").await.unwrap().is_none().then_some(())).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

/// Tests the steps of `docs/changes.md` for renaming a pool.
pub async fn machines_keep_their_addresses_when_their_pool_gets_another_name(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    let installed = Installed::start_with_all_webhooks(cluster).await;
    installed.until_asked(&hosted, "workers").await;
    hosted.scale("workers", 2).await;
    let first = [hosted.address_of("workers-0").await, hosted.address_of("workers-1").await];
    let held = hosted.held().await;

    // The earlier pool still has one address, which is not in the new pool. Until the new pool exists, no machine
    // starts without an address.
    hosted.resize("workers", &["10.0.0.11"]).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    hosted.scale("workers", 3).await;
    let message = hosted.until_refused("workers-2").await;
    let expected = format!(
        "pool {}/workers is being deleted, and gives new machines no address: create a pool of another name, or create the pool \
         again when it is gone; remove nodePoolRef from the pool to start machines without an address",
        hosted.clusters
    );
    assert!(message.contains(&expected), "{message}");
    // The new pool has another name than its NodePool, so the helper [`Hosted::pool`] cannot create it.
    let mut renamed = StaticIPPool::new("nodes", hosted.spec("workers", &["10.0.0.8-10.0.0.10"]));
    renamed.spec.gateway = vec!["10.0.0.2".to_owned()];
    hosted.pools.create(&PostParams::default(), &renamed).await.unwrap();
    let third = hosted.address_of("workers-2").await;
    // The leases of the machines move to the new pool, so the earlier pool is removed while the machines run.
    poll("the end of the pool", async || hosted.pools.get_opt("workers").await.unwrap().is_none().then_some(())).await;
    assert!(!first.contains(&third), "{third} has two machines");
    for (name, address) in ["workers-0", "workers-1"].into_iter().zip(&first) {
        assert_eq!(hosted.restart(name).await.addresses()[0].1, *address);
    }
    let now = hosted.held().await;
    assert_eq!(now.len(), 3);
    assert!(held.iter().all(|row| now.contains(row)), "{held:?}, then {now:?}");
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

pub async fn a_machine_of_a_deleted_pool_starts_without_an_address_only_after_the_reference_is_removed(
    cluster: &Cluster,
) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    hosted.pools.delete("workers", &DeleteParams::default()).await.unwrap();
    hosted.scale("workers", 2).await;
    let message = hosted.until_refused("workers-1").await;
    assert!(message.contains(&format!("pool {}/workers is being deleted", hosted.clusters)), "{message}");
    assert!(hosted.vms.get_opt("workers-1").await.unwrap().is_none());
    merge(&hosted.pools, "workers", &json!({"spec": {"nodePoolRef": null}})).await;
    assert_eq!(hosted.until_running("workers-1").await.network_data, None);
    hosted.scale("workers", 0).await;
    hosted.until_held(0).await;
    installed.stop().await;
}

pub async fn an_address_that_two_machines_record_is_not_allocated(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 2).await;
    installed.stop_leading();
    hosted.forget_leases().await;
    // Both machines have a record of the second machine's address. Only the record of the second machine is correct.
    let (first, second) = (hosted.address_of("workers-0").await, hosted.address_of("workers-1").await);
    for name in ["workers-0", "workers-1"] {
        hosted.until_annotated(name, ANNOTATION).await;
    }
    let wrong = json!({"metadata": {"annotations": {ANNOTATION: format!(r#"["{second}/16"]"#)}}});
    merge(&hosted.machines, "workers-0", &wrong).await;
    installed.lead().await;
    for name in ["workers-0", "workers-1"] {
        hosted.until_event(name, "IPAddressConflict").await;
    }
    // Both machines keep the addresses on their drives, and the next machine gets another address.
    hosted.scale("workers", 3).await;
    let third = hosted.address_of("workers-2").await;
    assert!(third != first && third != second, "{third} is not free: {first}, {second}");
    installed.stop().await;
}

pub async fn an_address_that_only_a_guest_reports_is_not_allocated(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8-10.0.0.10"], 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    // A user has set a second address inside the guest.
    let interface = hosted.instances.get("workers-0").await.unwrap().data["status"]["interfaces"][0].clone();
    let mut changed = interface.clone();
    changed["ipAddresses"] = json!(["10.0.0.8", "10.0.0.9"]);
    hosted.kubevirt.report("workers-0", &json!({"interfaces": [changed]})).await;
    until_reported(&hosted, "1").await;
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.10");
    assert_eq!(hosted.held().await, rows([("10.0.0.10", "workers-1"), ("10.0.0.8", "workers-0")]));
    installed.stop().await;
}

/// Waits until the pool counts this number of addresses that guests report and no machine holds.
async fn until_reported(hosted: &Hosted, addresses: &str) {
    poll(&format!("{addresses} reported addresses"), async || {
        (hosted.pools.get("workers").await.unwrap().status?.families.first()?.by_report == addresses).then_some(())
    })
    .await;
}

pub async fn an_address_that_a_guest_reports_is_free_on_other_networks(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8-10.0.0.10"], 1).await;
    let other = Hosted::new(cluster).await;
    other.node_pool("workers", 0, &json!({})).await;
    other.pool("workers", &["10.0.0.8-10.0.0.10"]).await;
    installed.until_asked(&other, "workers").await;
    other.until_condition("workers", "Ready").await;
    let mut interface = hosted.instances.get("workers-0").await.unwrap().data["status"]["interfaces"][0].clone();
    interface["ipAddresses"] = json!(["10.0.0.8", "10.0.0.9"]);
    hosted.kubevirt.report("workers-0", &json!({"interfaces": [interface]})).await;
    until_reported(&hosted, "1").await;
    until_reported(&other, "0").await;
    // The next leader reads the same report at its start.
    installed.stop_leading();
    installed.lead().await;
    other.scale("workers", 2).await;
    let addresses = [other.address_of("workers-0").await, other.address_of("workers-1").await];
    assert_eq!(BTreeSet::from(addresses), ["10.0.0.8".to_owned(), "10.0.0.9".to_owned()].into());
    installed.stop().await;
}

pub async fn after_the_loss_of_all_leases_machines_keep_the_addresses_of_their_records(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/29"], 4).await;
    let held = hosted.held().await;
    for n in 0..4 {
        hosted.until_annotated(&format!("workers-{n}"), ANNOTATION).await;
    }
    installed.stop_leading();
    hosted.forget_leases().await;
    // Some of the records are lost, too, but each machine has at least one record left.
    merge(&hosted.machines, "workers-1", &json!({"metadata": {"annotations": {ANNOTATION: null}}})).await;
    hosted.secrets.delete(&hosted.secret_name("workers-2").await, &DeleteParams::default()).await.unwrap();
    hosted.kubevirt.report("workers-2", &json!({"interfaces": null})).await;
    hosted.scale("workers", 5).await;
    installed.lead().await;
    hosted.address_of("workers-4").await;
    let mut after = hosted.held().await;
    after.retain(|(_, name)| name != "workers-4");
    assert_eq!(after, held);
    // The leader writes the lost records again.
    hosted.until_annotated("workers-1", ANNOTATION).await;
    let address = hosted.address_of("workers-2").await;
    assert_eq!(hosted.restart("workers-2").await.addresses()[0].1, address);
    installed.stop().await;
}

pub async fn an_address_that_only_a_secret_records_is_not_allocated_when_no_pool_selects_its_machine(
    cluster: &Cluster,
) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/31"], 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    installed.stop_leading();
    hosted.forget_leases().await;
    merge(&hosted.machines, "workers-0", &json!({"metadata": {"annotations": {ANNOTATION: null}}})).await;
    hosted.kubevirt.report("workers-0", &json!({"interfaces": null})).await;
    let labels = json!({"metadata": {"labels": {"hypershift.openshift.io/nodepool-name": "others"}}});
    merge(&hosted.vms, "workers-0", &labels).await;
    // This machine waits for an address before the leader starts.
    hosted.scale("workers", 2).await;
    until(&hosted.vms, "workers-1", |_| true).await;
    installed.lead().await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("10.0.0.9", "workers-1")]));
    assert_eq!(hosted.until_annotated("workers-0", ANNOTATION).await, r#"["10.0.0.8/16"]"#);
    installed.stop().await;
}

pub async fn a_machine_has_an_event_while_a_policy_refuses_its_lease_and_is_served_afterwards(cluster: &Cluster) {
    let (hosted, installed) = running(cluster, &["10.0.0.8/31"], 2).await;
    let address = hosted.address_of("workers-0").await;
    let namespace = hosted.namespace.clone();
    let of_machine = move |lease: &Value| {
        let holder = &lease["spec"]["holder"];
        holder["namespace"] == namespace.as_str() && holder["name"] == "workers-0"
    };
    let policy = Policy::start(cluster, &format!("policy-{}", hosted.namespace), ("UPDATE", 403), of_machine).await;
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let name = lease_name(address.parse().unwrap(), &hosted.network).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    poll("the policy", async || {
        let lease = leases.get(&name).await.unwrap();
        leases.replace(&name, &dry_run, &lease).await.err()
    })
    .await;
    // capk creates the VirtualMachine again, and the new VirtualMachine gets another Secret.
    let vm = hosted.vms.get("workers-0").await.unwrap().uid();
    hosted.vms.delete("workers-0", &DeleteParams::default()).await.unwrap();
    let note = hosted.until_event("workers-0", "IPAddressUnavailable").await;
    let reason = format!("the lease cannot be recorded: the ledger refused to change the lease of {address}: ");
    assert!(note.starts_with(&reason) && note.contains("refused by a policy"), "{note}");
    policy.end().await;
    until(&hosted.vms, "workers-0", |new| new.uid() != vm).await;
    hosted.until_running("workers-0").await;
    assert_eq!(hosted.address_of("workers-0").await, address);
    installed.stop().await;
}

pub async fn a_machine_has_an_event_while_a_policy_refuses_the_lease_of_its_recorded_address(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    installed.stop_leading();
    // Only the Secret records the address.
    merge(&hosted.machines, "workers-0", &json!({"metadata": {"annotations": {ANNOTATION: null}}})).await;
    hosted.kubevirt.report("workers-0", &json!({"interfaces": null})).await;
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let name = lease_name("10.0.0.8".parse().unwrap(), &hosted.network).unwrap();
    let lease = leases.get(&name).await.unwrap();
    hosted.forget_leases().await;
    let namespace = hosted.namespace.clone();
    let of_machine = move |lease: &Value| {
        let holder = &lease["spec"]["holder"];
        holder["namespace"] == namespace.as_str() && holder["name"] == "workers-0"
    };
    let policy = Policy::start(cluster, &format!("policy-{}", hosted.namespace), ("CREATE", 403), of_machine).await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let lease = StaticIPLease::new(&name, lease.spec);
    poll("the policy", async || leases.create(&dry_run, &lease).await.err()).await;
    installed.lead().await;
    let note = hosted.until_event("workers-0", "IPAddressUnavailable").await;
    assert!(note.starts_with("the lease cannot be recorded: ") && note.contains("refused by a policy"), "{note}");
    // No other machine gets the address.
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    policy.end().await;
    // The machine is served as before.
    assert_eq!(hosted.until_annotated("workers-0", ANNOTATION).await, r#"["10.0.0.8/16"]"#);
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("10.0.0.9", "workers-1")]));
    installed.stop().await;
}

/// Tests the steps of `docs/recovery.md`.
pub async fn damaged_records_are_repaired_by_the_procedure_of_the_guide(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 2).await;
    for name in ["workers-0", "workers-1"] {
        hosted.until_annotated(name, ANNOTATION).await;
    }
    let held = hosted.held().await;
    let (first, second) = (hosted.address_of("workers-0").await, hosted.address_of("workers-1").await);
    // The damage: the leases are lost, and a user has edited the annotation of a machine.
    installed.stop_leading();
    hosted.forget_leases().await;
    let annotation = |value: Value| json!({"metadata": {"annotations": {ANNOTATION: value}}});
    merge(&hosted.machines, "workers-0", &annotation(format!(r#"["{second}/16"]"#).into())).await;
    installed.lead().await;
    hosted.until_event("workers-1", "IPAddressConflict").await;
    // Two machines record the address of the second machine, so the leader gives this address to neither of them.
    hosted.until_held(1).await;
    assert_eq!(hosted.held().await, rows([(first.as_str(), "workers-0")]));
    // Steps 1, 4 and 5 of the procedure. The scenario deletes the wrong annotation and all leases.
    installed.stop_leading();
    merge(&hosted.machines, "workers-0", &annotation(Value::Null)).await;
    hosted.forget_leases().await;
    installed.lead().await;
    // Step 6 of the procedure: the condition of the pool becomes false.
    hosted.until_no_condition("workers", "DuplicateRecords").await;
    hosted.until_held(2).await;
    assert_eq!(hosted.held().await, held);
    assert_eq!(hosted.until_annotated("workers-0", ANNOTATION).await, format!(r#"["{first}/16"]"#));
    installed.stop().await;
}

pub async fn a_machine_with_a_damaged_lease_has_an_event_and_keeps_its_address(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    installed.stop_leading();
    let leases: Api<StaticIPLease> = Api::all(hosted.client.clone());
    let name = lease_name("10.0.0.8".parse().unwrap(), &hosted.network).unwrap();
    let write = async |interface: &str| {
        merge(&leases, &name, &json!({"spec": {"holder": {"interface": interface}}})).await;
    };
    write("a/b").await;
    installed.lead().await;
    let problem = "spec.holder.interface: invalid interface \"a/b\"";
    let expected = format!(
        "10.0.0.8: StaticIPLease {name} cannot be read: {problem}: correct this lease, because the address is in use"
    );
    let events: Api<Event> = Api::namespaced(cluster.client(), &hosted.namespace);
    poll(&expected, async || {
        let events = events.list(&ListParams::default()).await.unwrap().items;
        events.into_iter().any(|event| event.note.as_ref() == Some(&expected)).then_some(())
    })
    .await;
    hosted.scale("workers", 2).await;
    assert_eq!(hosted.address_of("workers-1").await, "10.0.0.9");
    write("eno101").await;
    poll("no unreadable lease", async || {
        let conditions = hosted.pools.get("workers").await.unwrap().status?.conditions;
        conditions.iter().all(|condition| condition.type_ != "UnreadableLeases").then_some(())
    })
    .await;
    assert_eq!(hosted.restart("workers-0").await.addresses()[0].1, "10.0.0.8");
    assert_eq!(hosted.held().await, rows([("10.0.0.8", "workers-0"), ("10.0.0.9", "workers-1")]));
    installed.stop().await;
}

pub async fn the_status_map_is_written_if_the_crd_has_it(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    let has_map = |machine: &DynamicObject| {
        machine.data["status"]["allocatedBootstrapAddresses"] == json!({"eno101": ["10.0.0.8/16"]})
    };
    assert!(!has_map(&hosted.machines.get("workers-0").await.unwrap()));
    installed.stop_leading();
    hosted.set_status_map("workers-0", true).await;
    installed.lead().await;
    until(&hosted.machines, "workers-0", has_map).await;
    hosted.set_status_map("workers-0", false).await;
    installed.stop().await;
}

pub async fn an_entry_of_another_program_in_one_status_map_ends_the_status_map_of_no_machine(cluster: &Cluster) {
    let (hosted, mut installed) = running(cluster, &["10.0.0.8/30"], 1).await;
    hosted.until_annotated("workers-0", ANNOTATION).await;
    installed.stop_leading();
    hosted.set_status_map("workers-0", true).await;
    merge_status(
        &hosted.machines,
        "workers-0",
        &json!({"status": {"allocatedBootstrapAddresses": {"eth9": ["10.9.9.9"]}}}),
    )
    .await;
    installed.lead().await;
    let until_map = async |name: &str, map: Value| {
        let has_map = |machine: &DynamicObject| machine.data["status"]["allocatedBootstrapAddresses"] == map;
        until(&hosted.machines, name, has_map).await;
    };
    until_map("workers-0", json!({"eno101": ["10.0.0.8/16"], "eth9": ["10.9.9.9"]})).await;
    hosted.scale("workers", 2).await;
    until_map("workers-1", json!({"eno101": ["10.0.0.9/16"]})).await;
    hosted.set_status_map("workers-0", false).await;
    installed.stop().await;
}

pub async fn a_machine_that_no_webhook_saw_gets_its_network_data_if_it_has_no_instance_yet(cluster: &Cluster) {
    let (hosted, installed) = served(cluster, &["10.0.0.8/30"]).await;
    installed.until_not_asked(&hosted, "workers").await;
    hosted.kubevirt.be_late();
    hosted.scale("workers", 1).await;
    assert_eq!(hosted.address_of("workers-0").await, "10.0.0.8");
    installed.stop().await;
}

pub async fn a_running_machine_that_no_webhook_saw_is_left_alone(cluster: &Cluster) {
    let hosted = Hosted::new(cluster).await;
    hosted.node_pool("workers", 1, &json!({})).await;
    hosted.until_running("workers-0").await;
    hosted.pool("workers", &["10.0.0.8/30"]).await;
    let installed = Installed::start(cluster).await;
    hosted.until_event("workers-0", "LeftAlone").await;
    assert_eq!(hosted.restart("workers-0").await.network_data, None);
    installed.stop().await;
}
