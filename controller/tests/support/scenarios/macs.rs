//! MAC addresses of machines, from the pool to the guest and the release of the address.
//!
//! The NodePools of these scenarios write an empty MAC address into their machines, so that the stand-in for
//! KubeMacPool does not choose a MAC address.

use std::ops::Deref;

use glowplug_controller::cluster::object::Object;
use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use glowplug_controller::kinds::pool::StaticIPLease;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::Cluster;
use crate::support::controller::{make_fields_unreadable, until};
use crate::support::hosted::definitions::INSTANCE;
use crate::support::hosted::provider::{PATCH_ANNOTATION, object};
use crate::support::hosted::{Hosted, poll};
use crate::support::installed::Installed;

const LABEL: &str = "ipam.glowplug.dev/mac-addresses";

/// A hosted cluster with a pool of IP addresses and a MACPool for the machines of NodePool `workers`.
struct Place<'c> {
    hosted: Hosted,
    installed: Installed<'c>,
    pools: Api<MACPool>,
    leases: Api<StaticIPLease>,
}

impl Deref for Place<'_> {
    type Target = Hosted;

    fn deref(&self) -> &Hosted {
        &self.hosted
    }
}

// === impl Place ===

impl<'c> Place<'c> {
    /// Starts a hosted cluster and the controller. `octets` are the first five octets of the MAC addresses, and `last`
    /// is the last octet of the last address in the MACPool.
    async fn start(cluster: &'c Cluster, octets: &str, last: u8) -> Self {
        let hosted = Hosted::new(cluster).await;
        let no_mac = json!([{
            "op": "add", "path": "/spec/template/spec/domain/devices/interfaces/0/macAddress", "value": "",
        }]);
        let changes = json!({"metadata": {"annotations": {PATCH_ANNOTATION: no_mac.to_string()}}});
        hosted.node_pool("workers", 0, &changes).await;
        hosted.pool("workers", &["10.0.0.8/29"]).await;
        let pools: Api<MACPool> = Api::all(cluster.client());
        let spec = MacPoolSpec {
            ranges: vec![format!("{octets}:00-{octets}:{last:02x}")],
            namespaces: vec![hosted.namespace.clone()],
            ..MacPoolSpec::default()
        };
        pools.create(&PostParams::default(), &MACPool::new(&hosted.namespace, spec)).await.unwrap();
        let installed = Installed::start_with_all_webhooks(cluster).await;
        installed.until_asked(&hosted, "workers").await;
        let place = Self { hosted, installed, pools, leases: Api::all(cluster.client()) };
        place.until_asked().await;
        place
    }

    /// Waits until the API server calls both webhooks for MAC addresses.
    async fn until_asked(&self) {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let vm = self.vm("probe", &json!({}), &json!({}));
        let instance = object(
            INSTANCE,
            json!({
                "metadata": {"name": "probe", "labels": {(LABEL): "required"}},
                "spec": {"domain": {"devices": {"interfaces": [{"name": "a"}]}}},
            }),
        );
        poll("a label in the template", async || {
            let vm = self.vms.create(&dry_run, &vm).await.ok()?;
            vm.data["spec"]["template"]["metadata"]["labels"].get(LABEL).map(drop)
        })
        .await;
        poll("a rejected instance", async || self.instances.create(&dry_run, &instance).await.err().map(drop)).await;
    }

    /// Returns the manifest of a machine with this MAC address, as a person writes it.
    fn manifest(&self, name: &str, address: &str) -> DynamicObject {
        let mut vm = self.vm(name, &json!({}), &json!({}));
        vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = address.into();
        vm
    }

    /// Creates a machine with this MAC address, as a person does.
    async fn create(&self, name: &str, address: &str) {
        self.vms.create(&PostParams::default(), &self.manifest(name, address)).await.unwrap();
    }

    /// Waits until a guest runs, and returns its MAC address.
    async fn mac_of(&self, name: &str) -> String {
        self.until_running(name).await;
        let instance = self.instances.get(name).await.unwrap();
        instance.data["status"]["interfaces"][0]["mac"].as_str().unwrap().to_owned()
    }

    /// Waits until the lease of an address exists and is held or released, and returns the lease.
    async fn until_lease(&self, address: &str, is_held: bool) -> StaticIPLease {
        let name = format!("{}.mac", address.replace(':', "-"));
        poll(&format!("lease {name}"), async || {
            let lease = self.leases.get_opt(&name).await.unwrap();
            lease.filter(|lease| lease.spec.released.is_none() == is_held)
        })
        .await
    }

    /// Waits until the status of the pool has these numbers of addresses (total, free, used) and of waiting machines.
    async fn until_status(&self, numbers: [i64; 4]) {
        poll(&format!("{numbers:?} in the status"), async || {
            let status = self.pools.get(&self.namespace).await.unwrap().status?;
            (numbers == [status.total, status.free, status.used, status.waiting.into()]).then_some(())
        })
        .await;
    }

    async fn stop(self) {
        self.pools.delete(&self.hosted.namespace, &DeleteParams::default()).await.unwrap();
        self.installed.stop().await;
    }
}

pub async fn a_machine_starts_with_the_mac_address_that_its_lease_records(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:01", 0x0f).await;
    place.scale("workers", 1).await;
    let drive = place.until_running("workers-0").await;
    let address = "0a:00:00:00:01:00";
    assert_eq!(drive.addresses(), [(address.to_owned(), "10.0.0.8".to_owned())]);
    assert_eq!(place.mac_of("workers-0").await, address);

    let vm = place.vms.get("workers-0").await.unwrap();
    let interface = &vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0];
    assert_eq!(interface["macAddress"], address);
    let lease = place.until_lease(address, true).await;
    let expected = json!({
        "network": "mac", "address": address, "prefix": 48, "pool": place.namespace, "since": lease.spec.since,
        "holder": {
            "kind": "VirtualMachine", "namespace": place.namespace, "name": "workers-0", "uid": vm.uid(),
            "interface": interface["name"],
        },
    });
    assert_eq!(serde_json::to_value(&lease.spec).unwrap(), expected);
    let note = place.until_event("workers-0", "MACAddressAllocated").await;
    assert_eq!(note, format!("Allocated {address} to {}", interface["name"].as_str().unwrap()));
    place.until_status([16, 15, 1, 0]).await;

    let drive = place.restart("workers-0").await;
    assert_eq!(drive.addresses(), [(address.to_owned(), "10.0.0.8".to_owned())]);
    place.stop().await;
}

pub async fn a_machine_that_is_replaced_while_no_webhook_answers_keeps_its_mac_address(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:08", 0x0f).await;
    place.create("w", "").await;
    let address = "0a:00:00:00:08:00";
    assert_eq!(place.mac_of("w").await, address);
    place.installed.until_not_asked(&place, "workers").await;
    let template = |vm: &DynamicObject| {
        let template = &vm.data["spec"]["template"];
        let labels = template["metadata"]["labels"].clone();
        (labels, template["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"].clone())
    };
    let stored = until(&place.vms, "w", |vm| template(vm).1 == address).await;
    // The user sends the manifest without the MAC address and without the label, as `kubectl replace` does.
    let mut manifest = stored.clone();
    let of_template = &mut manifest.data["spec"]["template"];
    of_template.as_object_mut().unwrap().remove("metadata");
    of_template["spec"]["domain"]["devices"]["interfaces"][0].as_object_mut().unwrap().remove("macAddress");
    let replaced = place.vms.replace("w", &PostParams::default(), &manifest).await.unwrap();
    assert_eq!(template(&replaced), (Value::Null, Value::Null));
    // Another machine is created while no webhook answers. Its manifest already has the label.
    let mut other = place.manifest("v", "");
    other.data["spec"]["template"]["metadata"] = json!({"labels": {(LABEL): "required"}});
    place.vms.create(&PostParams::default(), &other).await.unwrap();

    let back = until(&place.vms, "w", |vm| template(vm).1 == address).await;
    assert_eq!(template(&back), (json!({(LABEL): "required"}), json!(address)));
    until(&place.vms, "v", |vm| template(vm).1 == "0a:00:00:00:08:01").await;
    place.restart("w").await;
    assert_eq!(place.mac_of("w").await, address);
    place.stop().await;
}

pub async fn a_mac_address_is_allocated_again_only_after_its_guest_has_ended(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:02", 0x01).await;
    place.scale("workers", 1).await;
    assert_eq!(place.mac_of("workers-0").await, "0a:00:00:00:02:00");
    place.kubevirt.hold("workers-0");
    place.delete("workers-0").await;
    until(&place.instances, "workers-0", |instance| instance.metadata.deletion_timestamp.is_some()).await;
    // The next machine gets another address while the guest runs.
    assert_eq!(place.mac_of("workers-1").await, "0a:00:00:00:02:01");
    place.until_lease("0a:00:00:00:02:00", true).await;
    place.kubevirt.end("workers-0").await;
    let lease = place.until_lease("0a:00:00:00:02:00", false).await;
    assert_eq!(lease.spec.holder.name, "workers-0");
    place.scale("workers", 2).await;
    assert_eq!(place.mac_of("workers-2").await, "0a:00:00:00:02:00");
    let lease = place.until_lease("0a:00:00:00:02:00", true).await;
    assert_eq!(lease.spec.holder.name, "workers-2");
    place.stop().await;
}

pub async fn no_machine_gets_the_mac_address_of_a_guest_that_migrated_to_another_cluster(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:09", 0x0f).await;
    let address = "0a:00:00:00:09:00";
    place.create("w", "").await;
    assert_eq!(place.mac_of("w").await, address);
    place.kubevirt.migrate_to_another_cluster("w").await;
    let note = format!(
        "The guest migrated to another cluster with {address}: no machine gets this address until 30 days after the deletion of the \
         VirtualMachine, or until its StaticIPLease is deleted after that"
    );
    assert_eq!(place.until_event("w", "MACAddressHeld").await, note);
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    let lease = place.until_lease(address, false).await.spec;
    let [migrated, released, end] = [lease.migrated, lease.released, lease.reuse_after].map(|time| time.unwrap().0);
    assert_eq!((migrated <= released, end.as_second() - released.as_second()), (true, 30 * 24 * 60 * 60));
    place.create("v", "").await;
    assert_eq!(place.mac_of("v").await, "0a:00:00:00:09:01");
    place.create("w", "").await;
    assert_eq!(place.mac_of("w").await, "0a:00:00:00:09:02");
    place.until_status([16, 13, 3, 0]).await;
    // An administrator knows that the guest no longer uses the address, and deletes the lease of the address.
    place.leases.delete("0a-00-00-00-09-00.mac", &DeleteParams::default()).await.unwrap();
    place.create("x", "").await;
    assert_eq!(place.mac_of("x").await, address);
    place.stop().await;
}

pub async fn a_mac_address_that_a_user_has_set_is_recorded_and_goes_to_no_other_machine(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:03", 0x0f).await;
    place.create("own", "0A:00:00:00:03:00").await;
    let lease = place.until_lease("0a:00:00:00:03:00", true).await;
    assert_eq!((lease.spec.holder.name.as_str(), lease.spec.holder.interface.as_str()), ("own", "net1"));
    place.scale("workers", 1).await;
    assert_eq!(place.mac_of("workers-0").await, "0a:00:00:00:03:01");
    let vm = place.vms.get("own").await.unwrap();
    let interface = &vm.data["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0];
    assert_eq!(interface["macAddress"], "0A:00:00:00:03:00");
    place.until_status([16, 14, 2, 0]).await;
    place.stop().await;
}

pub async fn two_guests_with_one_mac_address_are_reported(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:04", 0x0f).await;
    for name in ["one", "two"] {
        place.create(name, "0a:00:00:00:04:05").await;
        place.until_running(name).await;
    }
    let machines = format!("{0}/one and {0}/two", place.namespace);
    for (name, other) in [("one", "two"), ("two", "one")] {
        let other = format!("{}/{other}", place.namespace);
        let note = format!("0a:00:00:00:04:05: machine {other} runs with this MAC address, too");
        assert_eq!(place.until_event(name, "MACAddressConflict").await, note);
    }
    let message = poll("the condition of the pool", async || {
        let conditions = place.pools.get(&place.namespace).await.unwrap().status?.conditions;
        let condition = conditions.into_iter().find(|it| it.type_ == "DuplicateRecords" && it.status == "True");
        condition.map(|condition| condition.message)
    })
    .await;
    assert_eq!(message, format!("0a:00:00:00:04:05: machines {machines} have this address"));
    place.stop().await;
}

pub async fn a_machine_of_an_exhausted_mac_pool_starts_when_the_pool_grows(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:05", 0x00).await;
    place.scale("workers", 1).await;
    assert_eq!(place.mac_of("workers-0").await, "0a:00:00:00:05:00");
    place.scale("workers", 2).await;
    let note = place.until_event("workers-1", "MACPoolExhausted").await;
    let interface = format!("iface1_{}", place.network.replace('/', "-"));
    assert_eq!(note, format!("No available MAC addresses in pool {} for interface {interface}", place.namespace));
    place.until_status([1, 0, 1, 1]).await;
    let grown = json!({"spec": {"ranges": ["0a:00:00:00:05:00-0a:00:00:00:05:01"]}});
    place.pools.patch(&place.namespace, &PatchParams::default(), &Patch::Merge(grown)).await.unwrap();
    assert_eq!(place.mac_of("workers-1").await, "0a:00:00:00:05:01");
    place.stop().await;
}

pub async fn the_refusal_of_an_invalid_mac_pool_lists_every_error(cluster: &Cluster) {
    let place = Place::start(cluster, "0a:00:00:00:06", 0x0f).await;
    let create = async |spec: Value| {
        let pool = MACPool::new("another", serde_json::from_value(spec).unwrap());
        match place.pools.create(&PostParams { dry_run: true, ..PostParams::default() }, &pool).await {
            Err(kube::Error::Api(status)) => Some(status.message),
            result => {
                result.unwrap();
                None
            }
        }
    };
    let start = "admission webhook \"pools.ipam.glowplug.dev\" denied the request: ";
    let expected = "namespaces: empty list \"[]\", expected at least one namespace\n\
                    ranges[0]: multicast addresses in a range \"01:00:5e:00:00:00-01:00:5e:00:00:01\", expected one even \
                    first octet, such as 02, 06, 0a or 0e";
    let invalid = json!({"ranges": ["01:00:5e:00:00:00-01:00:5e:00:00:01"], "namespaces": []});
    assert_eq!(create(invalid).await, Some(format!("{start}{expected}")));
    let overlapping = json!({"ranges": ["0a:00:00:00:06:0f-0a:00:00:00:06:10"], "namespaces": ["n"]});
    let mut names = ["another", place.namespace.as_str()];
    names.sort_unstable();
    let expected =
        format!("MACPools {} and {} both have 0a:00:00:00:06:0f, expected no common address", names[0], names[1]);
    assert_eq!(create(overlapping).await, Some(format!("{start}{expected}")));
    let valid = json!({"ranges": ["0a:00:00:00:06:10-0a:00:00:00:06:1f"], "namespaces": ["n"]});
    assert_eq!(create(valid).await, None);
    place.stop().await;
}

pub async fn a_mac_address_is_released_although_its_pool_and_its_lease_have_unreadable_managed_fields(
    cluster: &Cluster,
) {
    let place = Place::start(cluster, "0a:00:00:00:07", 0x0f).await;
    place.scale("workers", 1).await;
    assert_eq!(place.mac_of("workers-0").await, "0a:00:00:00:07:00");
    let (pool, lease) = (ApiResource::erase::<MACPool>(&()), ApiResource::erase::<StaticIPLease>(&()));
    let name = "0a-00-00-00-07-00.mac";
    make_fields_unreadable(&cluster.client(), &pool, None, &place.namespace).await;
    make_fields_unreadable(&cluster.client(), &lease, None, name).await;
    place.scale("workers", 0).await;
    let leases: Api<Object> = Api::all_with(cluster.client(), &lease);
    poll("a released lease", async || {
        leases.get(name).await.unwrap().data["spec"]["released"].is_string().then_some(())
    })
    .await;
    let pools: Api<Object> = Api::all_with(cluster.client(), &pool);
    poll("a free address", async || {
        (pools.get(&place.namespace).await.unwrap().data["status"]["used"] == 0).then_some(())
    })
    .await;
    pools.delete(&place.namespace, &DeleteParams::default()).await.unwrap();
    place.installed.stop().await;
}
