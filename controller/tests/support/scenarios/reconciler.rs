//! Tests how the leader reconciles single objects of KubeVirt. The programs of KubeVirt do not run.

use glowplug_controller::cluster::object::Object;
use glowplug_controller::kinds::network_data::{is_issued_for, new_name};
use glowplug_controller::kinds::pool::{MachineNetwork, PoolSpec, StaticIPLease, StaticIPPool};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::controller::{Controller, make_fields_unreadable, merge, until, wait};
use crate::support::hosted::Hosted;
use crate::support::hosted::definitions::{INSTANCE, KUBEVIRT_MACHINE, Names, VIRTUAL_MACHINE, resource};
use crate::support::hosted::provider::object;
use crate::support::{Cluster, until_event};

const ANNOTATION: &str = "kubevirt.cluster.x-k8s.io/allocated-ip-eno101";
const FINALIZER: &str = "kubevirt.io/virtualMachineControllerFinalize";

/// A namespace with one pool, which selects all machines of the namespace.
struct Place {
    cluster_client: kube::Client,
    namespace: String,
    network: String,
    machines: Api<DynamicObject>,
    vms: Api<DynamicObject>,
    instances: Api<DynamicObject>,
    secrets: Api<Secret>,
    _controller: Controller,
}

// === impl Place ===

impl Place {
    async fn new(cluster: &Cluster, addresses: &[&str]) -> Self {
        let namespace = cluster.namespace().await;
        let network = format!("{namespace}/vlan10");
        let spec = PoolSpec {
            network: network.clone(),
            addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
            gateway: vec!["10.0.0.1".to_owned()],
            machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
            machine_selector: Some(LabelSelector::default()),
            ..PoolSpec::default()
        };
        let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &namespace);
        pools.create(&PostParams::default(), &StaticIPPool::new("p", spec)).await.unwrap();
        let api = |names: Names| Api::namespaced_with(cluster.client(), &namespace, &resource(names));
        let mut controller = Controller::of(cluster, &namespace);
        controller.until_ready().await;
        Self {
            cluster_client: cluster.client(),
            network,
            machines: api(KUBEVIRT_MACHINE),
            vms: api(VIRTUAL_MACHINE),
            instances: api(INSTANCE),
            secrets: Api::namespaced(cluster.client(), &namespace),
            namespace,
            _controller: controller,
        }
    }

    async fn machine(&self, name: &str) -> DynamicObject {
        let machine = object(KUBEVIRT_MACHINE, json!({"metadata": {"name": name}, "spec": {}}));
        self.machines.create(&PostParams::default(), &machine).await.unwrap()
    }

    /// Creates the VirtualMachine that capk creates for a KubevirtMachine, with the changes of the webhook. Merges
    /// `changes` into the VirtualMachine.
    async fn vm(&self, name: &str, changes: &Value) -> DynamicObject {
        let source = json!({"networkDataSecretRef": {"name": new_name(name).unwrap()}});
        let interface = json!({"name": "iface1", "bridge": {}, "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"});
        let mut vm = json!({
            "metadata": {"name": name, "finalizers": [FINALIZER], "labels": {
                "capk.cluster.x-k8s.io/kubevirt-machine-name": name,
                "capk.cluster.x-k8s.io/kubevirt-machine-namespace": self.namespace,
            }},
            "spec": {"template": {"spec": {
                "domain": {"devices": {"interfaces": [interface]}},
                "networks": [{"name": "iface1", "multus": {"networkName": "vlan10"}}],
                "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
            }}},
        });
        json_patch::merge(&mut vm, changes);
        self.vms.create(&PostParams::default(), &object(VIRTUAL_MACHINE, vm)).await.unwrap()
    }

    /// Creates the instance of a VirtualMachine.
    async fn instance(&self, vm: &DynamicObject) {
        let owner =
            json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm.name_any(), "uid": vm.uid()});
        let instance = json!({"metadata": {"name": vm.name_any(), "ownerReferences": [owner]}});
        self.instances.create(&PostParams::default(), &object(INSTANCE, instance)).await.unwrap();
    }

    /// Waits until the Secret of a VirtualMachine exists, and returns the Secret with its document.
    async fn until_secret(&self, name: &str, vm: &DynamicObject) -> (Secret, Value) {
        loop {
            let secret = match Hosted::reference(&self.vms.get(name).await.unwrap()) {
                Some(secret) => self.secrets.get_opt(&secret).await.unwrap(),
                None => None,
            };
            if let Some(secret) =
                secret.filter(|secret| secret.owner_references().iter().any(|it| Some(&it.uid) == vm.uid().as_ref()))
            {
                let document = serde_json::from_slice(&secret.data.as_ref().unwrap()["networkdata"].0).unwrap();
                return (secret, document);
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    async fn address_of(&self, name: &str, vm: &DynamicObject) -> String {
        self.until_secret(name, vm).await.1["networks"][0]["ip_address"].as_str().unwrap().to_owned()
    }

    /// Returns the held leases of the network as address and UID of the holder.
    async fn held(&self) -> Vec<(String, String)> {
        let leases: Api<StaticIPLease> = Api::all(self.cluster_client.clone());
        let leases = leases.list(&ListParams::default()).await.unwrap().items.into_iter().map(|lease| lease.spec);
        let held = leases.filter(|lease| lease.released.is_none() && lease.network == self.network);
        let mut held: Vec<_> = held.map(|lease| (lease.address, lease.holder.uid)).collect();
        held.sort();
        held
    }

    async fn until_held(&self, expected: &[(&str, &DynamicObject)]) {
        let expected: Vec<_> =
            expected.iter().map(|(address, holder)| ((*address).to_owned(), holder.uid().unwrap())).collect();
        while self.held().await != expected {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }

    /// Waits for an event about an object of this namespace, and returns the note of the event.
    async fn until_event(&self, kind: &str, name: &str, reason: &str) -> String {
        until_event(self.cluster_client.clone(), &self.namespace, Some(kind), name, reason).await
    }

    /// Removes KubeVirt's finalizer from a VirtualMachine.
    async fn let_go(&self, name: &str) {
        merge(&self.vms, name, &json!({"metadata": {"finalizers": null}})).await;
    }
}

pub async fn a_virtual_machine_gets_a_secret_with_the_address_of_its_kubevirt_machine(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let machine = place.machine("w").await;
    let vm = place.vm("w", &json!({})).await;
    let (secret, document) = place.until_secret("w", &vm).await;
    let expected = json!({
        "links": [{"id": "eno101", "type": "phy", "ethernet_mac_address": "02:00:00:00:00:01", "name": "eno101"}],
        "networks": [{
            "id": "network0", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.8", "netmask": "255.255.0.0",
            "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.0.0.1"}], "network_id": "network0",
        }],
        "services": [],
    });
    assert_eq!(document, expected);
    let owners = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "w", "uid": vm.uid()}]);
    assert_eq!(serde_json::to_value(secret.owner_references()).unwrap(), owners);
    assert_eq!((secret.immutable, secret.type_.as_deref()), (None, Some("Opaque")));
    place.until_held(&[("10.0.0.8", &machine)]).await;
    let written = until(&place.machines, "w", |machine| machine.annotations().contains_key(ANNOTATION)).await;
    // The digest depends on the name of the Secret.
    let digest = written.annotations()["ipam.glowplug.dev/secret-digest"].clone();
    assert_eq!(digest.len(), 32, "{digest}");
    let annotations = json!({
        (ANNOTATION): r#"["10.0.0.8/16"]"#, "ipam.glowplug.dev/network-eno101": place.network,
        "ipam.glowplug.dev/secret-digest": digest,
    });
    assert_eq!(serde_json::to_value(written.annotations()).unwrap(), annotations);
    for kind in ["VirtualMachine", "KubevirtMachine"] {
        assert_eq!(place.until_event(kind, "w", "IPAddressAllocated").await, "Allocated 10.0.0.8/16 to eno101");
    }
}

pub async fn a_virtual_machine_without_a_kubevirt_machine_holds_its_address_itself(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let vm = place.vm("w", &json!({"metadata": {"labels": null}})).await;
    assert_eq!(place.address_of("w", &vm).await, "10.0.0.8");
    place.until_held(&[("10.0.0.8", &vm)]).await;
    let written = until(&place.vms, "w", |vm| vm.annotations().contains_key(ANNOTATION)).await;
    assert_eq!(written.annotations()[ANNOTATION], r#"["10.0.0.8/16"]"#);
    // A new VirtualMachine of the same name gets the address of the earlier VirtualMachine.
    let other = place.vm("x", &json!({"metadata": {"labels": null}})).await;
    assert_eq!(place.address_of("x", &other).await, "10.0.0.9");
    for name in ["w", "x"] {
        place.vms.delete(name, &DeleteParams::default()).await.unwrap();
        place.let_go(name).await;
    }
    place.until_held(&[]).await;
    let vm = place.vm("x", &json!({"metadata": {"labels": null}})).await;
    assert_eq!(place.address_of("x", &vm).await, "10.0.0.9");
}

pub async fn a_virtual_machine_that_the_webhook_did_not_see_is_patched(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let source = json!({"secretRef": {"name": "w-userdata"}});
    let spec = json!({"template": {"spec": {
        "domain": {"devices": {"interfaces": [{"name": "iface1", "bridge": {}}]}},
        "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
    }}});
    place.machine("w").await;
    let vm = place.vm("w", &json!({"spec": spec})).await;
    assert_eq!(place.address_of("w", &vm).await, "10.0.0.8");
    let spec = place.vms.get("w").await.unwrap().data["spec"]["template"]["spec"].clone();
    let source = &spec["volumes"][0]["cloudInitConfigDrive"];
    let name = source["networkDataSecretRef"]["name"].as_str().unwrap();
    assert!(is_issued_for(name, "w"), "{name}");
}

pub async fn a_secret_of_another_author_stays_and_its_address_is_not_allocated(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let document = json!({
        "links": [{"id": "eno101", "type": "phy"}],
        "networks": [{"id": "a", "type": "ipv4", "link": "eno101", "ip_address": "10.0.0.8", "netmask": "255.255.0.0"}],
    });
    let foreign = json!({"metadata": {"name": "w-networkdata"}, "stringData": {"networkdata": document.to_string()}});
    let mut foreign: Secret = serde_json::from_value(foreign).unwrap();
    let data = k8s_openapi::ByteString(foreign.string_data.take().unwrap()["networkdata"].clone().into_bytes());
    foreign.data = Some([("networkdata".to_owned(), data)].into());
    let before = place.secrets.create(&PostParams::default(), &foreign).await.unwrap();
    place.machine("w").await;
    // The names of Secrets of version 0.2.0 are known in advance, so a user can create such a Secret before the
    // machine.
    let source = json!({"networkDataSecretRef": {"name": "w-networkdata"}});
    let volumes = json!([{"name": "cloudinitvolume", "cloudInitConfigDrive": source}]);
    place.vm("w", &json!({"spec": {"template": {"spec": {"volumes": volumes}}}})).await;
    let note = "Secret \"w-networkdata\" is not of this controller (no annotation ipam.glowplug.dev/allocation), \
                expected no Secret of this name";
    assert_eq!(place.until_event("VirtualMachine", "w", "IPAddressConflict").await, note);
    assert_eq!(place.secrets.get("w-networkdata").await.unwrap(), before);
    place.machine("x").await;
    let vm = place.vm("x", &json!({})).await;
    assert_eq!(place.address_of("x", &vm).await, "10.0.0.9");
}

pub async fn an_address_is_released_after_its_guest_has_ended_and_its_secret_is_deleted(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let machine = place.machine("w").await;
    let vm = place.vm("w", &json!({})).await;
    let secret = place.until_secret("w", &vm).await.0.name_any();
    place.instance(&vm).await;
    // capk requests the deletion of the VirtualMachine, and at once removes its own finalizer from the KubevirtMachine.
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.machines.delete("w", &DeleteParams::default()).await.unwrap();
    place.let_go("w").await;
    wait(&place.vms, "w", |vm: Option<&DynamicObject>| vm.is_none()).await;
    // A later machine does not get the address, because the guest still runs.
    place.machine("x").await;
    let other = place.vm("x", &json!({})).await;
    assert_eq!(place.address_of("x", &other).await, "10.0.0.9");
    let holder = place.held().await.into_iter().find(|(address, _)| address == "10.0.0.8").map(|(_, uid)| uid);
    assert_eq!(holder, machine.uid());
    place.instances.delete("w", &DeleteParams::default()).await.unwrap();
    let note = place.until_event("KubevirtMachine", "w", "IPAddressReleased").await;
    assert_eq!(note, "Released 10.0.0.8 of eno101");
    assert!(place.secrets.get_opt(&secret).await.unwrap().is_none());
    assert_eq!(place.held().await.len(), 1);
}

pub async fn a_machine_never_gets_the_address_of_a_running_guest_of_an_earlier_machine_of_its_name(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let first = place.machine("w").await;
    let vm = place.vm("w", &json!({})).await;
    assert_eq!(place.address_of("w", &vm).await, "10.0.0.8");
    place.instance(&vm).await;
    place.vms.delete("w", &DeleteParams::default()).await.unwrap();
    place.machines.delete("w", &DeleteParams::default()).await.unwrap();
    place.let_go("w").await;
    wait(&place.vms, "w", |vm: Option<&DynamicObject>| vm.is_none()).await;
    // The guest of the earlier machine still runs.
    let second = place.machine("w").await;
    let vm = place.vm("w", &json!({})).await;
    assert_eq!(place.address_of("w", &vm).await, "10.0.0.9");
    place.until_held(&[("10.0.0.8", &first), ("10.0.0.9", &second)]).await;
    place.instances.delete("w", &DeleteParams::default()).await.unwrap();
    place.until_held(&[("10.0.0.9", &second)]).await;
}

pub async fn a_virtual_machine_does_not_get_the_address_of_a_kubevirt_machine_by_labels_alone(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    let machine = place.machine("w").await;
    let vm = place.vm("w", &json!({})).await;
    assert_eq!(place.address_of("w", &vm).await, "10.0.0.8");
    let labels = json!({"capk.cluster.x-k8s.io/kubevirt-machine-name": "w"});
    let other = place.vm("x", &json!({"metadata": {"labels": labels}})).await;
    assert_eq!(place.address_of("x", &other).await, "10.0.0.9");
    place.until_held(&[("10.0.0.8", &machine), ("10.0.0.9", &other)]).await;
}

pub async fn a_virtual_machine_gets_the_address_that_it_requests(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/29"]).await;
    let template =
        json!({"metadata": {"annotations": {"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.13/16"]}"#}}});
    place.machine("w").await;
    let vm = place.vm("w", &json!({"spec": {"template": template}})).await;
    let (_, document) = place.until_secret("w", &vm).await;
    assert_eq!(document["networks"][0]["ip_address"], "10.0.0.13");
}

pub async fn objects_with_unreadable_managed_fields_do_not_stop_other_machines(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    place.machine("hostile").await;
    let vm = place.vm("hostile", &json!({"metadata": {"labels": null}, "spec": {"template": null}})).await;
    place.instance(&vm).await;
    let spec = PoolSpec { network: format!("{}/vlan20", place.namespace), ..PoolSpec::default() };
    let pools: Api<StaticIPPool> = Api::namespaced(cluster.client(), &place.namespace);
    pools.create(&PostParams::default(), &StaticIPPool::new("hostile", spec)).await.unwrap();
    let pool = ApiResource::erase::<StaticIPPool>(&());
    for kind in [resource(KUBEVIRT_MACHINE), resource(VIRTUAL_MACHINE), resource(INSTANCE), pool] {
        make_fields_unreadable(&cluster.client(), &kind, Some(&place.namespace), "hostile").await;
    }
    another_machine_is_served(cluster, &place).await;
}

pub async fn a_deeply_nested_object_does_not_stop_other_machines(cluster: &Cluster) {
    let place = Place::new(cluster, &["10.0.0.8/30"]).await;
    place.machine("hostile").await;
    place.vm("hostile", &json!({"metadata": {"labels": null}, "spec": {"template": null}})).await;
    // The client can parse this object alone, but not in a list.
    let deep = (0..124).fold(json!("x"), |inner, _| json!([inner]));
    for kind in [resource(KUBEVIRT_MACHINE), resource(VIRTUAL_MACHINE)] {
        let objects: Api<Object> = Api::namespaced_with(cluster.client(), &place.namespace, &kind);
        merge(&objects, "hostile", &json!({"spec": {"deep": deep}})).await;
        let unreadable: Api<DynamicObject> = Api::namespaced_with(cluster.client(), &place.namespace, &kind);
        unreadable.list(&ListParams::default()).await.unwrap_err();
    }
    another_machine_is_served(cluster, &place).await;
}

/// Asserts that another machine gets an address, and that the next leader starts.
async fn another_machine_is_served(cluster: &Cluster, place: &Place) {
    let vm = place.vm("honest", &json!({"metadata": {"labels": null}})).await;
    assert_eq!(place.address_of("honest", &vm).await, "10.0.0.8");
    Controller::of(cluster, &place.namespace).until_ready().await;
}
