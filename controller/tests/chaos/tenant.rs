//! A hostile tenant: a user who has the right to write every object of one namespace, and of no other namespace. These
//! objects name the machines, the claims, the UIDs and the addresses of other namespaces. A machine or claim of another
//! namespace must not get or lose an address because of these objects.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use glowplug_controller::kinds::network_data::name_of_0_2_0;
use glowplug_controller::kinds::pool::{MachineNetwork, PoolSpec, StaticIPPool};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::count;
use crate::random::Random;
use crate::support::hosted::Hosted;
use crate::support::hosted::definitions::{INSTANCE, IPAM_CLAIM, KUBEVIRT_MACHINE, Names, VIRTUAL_MACHINE, resource};
use crate::support::hosted::provider::object;

/// The namespace of the tenant.
pub const TENANT: &str = "tenant";
/// The network of the tenant's own pool.
pub const NETWORK: &str = "infra/tenant";

const CLAIM: Names = ("ipam.cluster.x-k8s.io", "v1beta2", "IPAddressClaim", "ipaddressclaims", true);
const ADDRESS: Names = ("ipam.cluster.x-k8s.io", "v1beta2", "IPAddress", "ipaddresses", false);

/// The object and the address that the tenant names in its objects.
pub struct Victim {
    /// A machine, a claim or a guest.
    pub object: DynamicObject,
    /// Namespace of the VirtualMachine or the claim.
    pub namespace: String,
    pub network: String,
    /// An address of a pool of the namespace.
    pub address: String,
}

pub struct Tenant {
    client: Client,
}

// === impl Tenant ===

impl Tenant {
    /// Creates the namespace, with a pool that serves all of its machines.
    pub async fn new(client: &Client) -> Self {
        let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": TENANT}})).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let spec = PoolSpec {
            network: NETWORK.to_owned(),
            addresses: vec!["10.0.0.10-10.0.0.99".to_owned()],
            gateway: vec!["10.0.0.1".to_owned()],
            machine_network: vec![MachineNetwork { cidr: "10.0.0.0/16".to_owned() }],
            machine_selector: Some(LabelSelector::default()),
            ..PoolSpec::default()
        };
        let pools = Api::namespaced(client.clone(), TENANT);
        pools.create(&PostParams::default(), &StaticIPPool::new("a", spec)).await.unwrap();
        Self { client: client.clone() }
    }

    /// Writes, changes or deletes an object. Most requests succeed, but no check depends on the result.
    pub async fn operate(&self, random: &mut Random, victim: &Victim) {
        let kind = victim.object.types.as_ref().map(|types| types.kind.clone()).unwrap_or_default();
        let kind = random.one_of(&[kind, "IPAddressClaim".to_owned()]).cloned().unwrap_or_default();
        let networks = [victim.network.clone(), NETWORK.to_owned()];
        let network = random.one_of(&networks).cloned().unwrap_or_default();
        let finalizers = if random.below(4) == 0 { json!(["tenant.example/stays"]) } else { json!(null) };
        let is_deleted = random.below(4) == 0;
        if random.below(8) == 0 {
            self.write_secret(victim, &kind, is_deleted, &finalizers).await;
        } else {
            let all = objects_of(victim, &kind, &network);
            let Some((names, content)) = random.one_of(&all) else { return };
            self.write(*names, content.clone(), is_deleted, &finalizers).await;
        }
        count("object of a hostile tenant written");
    }

    async fn write(&self, names: Names, mut content: Value, is_deleted: bool, finalizers: &Value) {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), TENANT, &resource(names));
        let name = content["metadata"]["name"].as_str().unwrap().to_owned();
        if is_deleted {
            let _ = api.delete(&name, &DeleteParams::default()).await;
            return;
        }
        content["metadata"]["finalizers"] = finalizers.clone();
        if api.create(&PostParams::default(), &object(names, content.clone())).await.is_err() {
            let _ = api.patch(&name, &PatchParams::default(), &Patch::Merge(&content)).await;
        }
        let status = json!({"status": content["status"]});
        if !content["status"].is_null() && names.4 {
            let _ = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await;
        }
    }

    /// Writes or deletes a Secret with network data of a VirtualMachine, in the form in which the controller writes it.
    async fn write_secret(&self, victim: &Victim, kind: &str, is_deleted: bool, finalizers: &Value) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), TENANT);
        let (name, uid) = (victim.object.name_any(), victim.object.uid());
        let secret = secret_name(victim);
        if is_deleted {
            let _ = api.delete(&secret, &DeleteParams::default()).await;
            return;
        }
        let address = format!("{}/16", victim.address);
        let given =
            json!({"interface": "eno101", "network": victim.network, "pool": "tenant/a", "addresses": [address]});
        let machine = json!({"namespace": victim.object.namespace(), "name": name, "uid": uid});
        let note = json!({"vm": uid, "kind": kind, "machine": machine, "interfaces": [given]});
        let metadata = json!({
            "name": secret, "annotations": {"ipam.glowplug.dev/allocation": note.to_string()}, "finalizers": finalizers,
        });
        let document = json!({"networks": [{"link": "eno101", "type": "ipv4", "ip_address": victim.address}]});
        let mut content: Secret = serde_json::from_value(json!({"metadata": metadata})).unwrap();
        content.data = Some([("networkdata".to_owned(), ByteString(document.to_string().into_bytes()))].into());
        if api.create(&PostParams::default(), &content).await.is_err() {
            let _ = api.patch(&secret, &PatchParams::default(), &Patch::Merge(&content)).await;
        }
    }
}

/// Returns the name of the Secret to which a victim refers, or the name that version 0.2.0 chose for a machine of this
/// name.
fn secret_name(victim: &Victim) -> String {
    Hosted::reference(&victim.object).unwrap_or_else(|| name_of_0_2_0(&victim.object.name_any()))
}

/// Returns objects that name a victim. `network` is the network of their interfaces, and `kind` is the kind of their
/// holder.
fn objects_of(victim: &Victim, kind: &str, network: &str) -> Vec<(Names, Value)> {
    let Victim { object, namespace, address, .. } = victim;
    let (name, uid) = (object.name_any(), object.uid());
    let with_length = format!("{address}/16");
    let labels = json!({
        "capk.cluster.x-k8s.io/kubevirt-machine-name": name,
        "capk.cluster.x-k8s.io/kubevirt-machine-namespace": object.namespace(),
        "kubevirt.io/vm": name,
    });
    let recorded = json!({
        "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": with_length, "ipam.glowplug.dev/network-eno101": network,
    });
    let owner = |api_version: &str, kind: &str| json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}]);
    let metadata = json!({"name": name, "labels": labels, "annotations": recorded});
    let requested = json!({"network.kubevirt.io/addresses": json!({"iface1": [with_length]}).to_string()});
    let source = json!({"networkDataSecretRef": {"name": secret_name(victim)}});
    let spec = json!({
        "domain": {"devices": {"interfaces": [{"name": "iface1", "bridge": {}, "acpiIndex": 101}]}},
        "networks": [{"name": "iface1", "multus": {"networkName": network}}],
        "volumes": [{"name": "cloudinitvolume", "cloudInitConfigDrive": source}],
    });
    let template = json!({"metadata": {"labels": labels, "annotations": requested}, "spec": spec});
    let of_machine = json!({"metadata": {"namespace": namespace, "labels": labels}, "spec": {"template": template}});
    let interfaces = json!([{"name": "iface1", "interfaceName": "eno101", "ipAddresses": [address]}]);
    let mut guest = metadata.clone();
    guest["ownerReferences"] = owner("kubevirt.io/v1", "VirtualMachine");
    let machine = json!({"namespace": object.namespace(), "name": name, "uid": uid});
    let claimant = json!({"kind": kind, "machine": machine, "interface": "eno101"});
    let of_controller = json!({
        "name": format!("{name}-eno101"), "labels": {"ipam.glowplug.dev/machine-claim": ""},
        "annotations": {"ipam.glowplug.dev/claimant": claimant.to_string()},
    });
    let pool = json!({"apiGroup": "ipam.glowplug.dev", "kind": "StaticIPPool", "name": "a"});
    let other = json!({"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "a"});
    let owned = json!({"name": name, "ownerReferences": owner("ipam.cluster.x-k8s.io/v1beta2", "IPAddressClaim")});
    let of_claim = json!({
        "claimRef": {"name": name}, "poolRef": pool, "address": address, "prefix": 16, "gateway": "10.0.0.1",
    });
    vec![
        (KUBEVIRT_MACHINE, json!({"metadata": metadata, "spec": {"virtualMachineTemplate": of_machine}})),
        (VIRTUAL_MACHINE, json!({"metadata": metadata, "spec": {"template": template}})),
        (INSTANCE, json!({"metadata": guest, "spec": spec, "status": {"phase": "Running", "interfaces": interfaces}})),
        (
            CLAIM,
            json!({"metadata": {"name": name}, "spec": {"poolRef": pool}, "status": {"addressRef": {"name": name}}}),
        ),
        (CLAIM, json!({"metadata": of_controller, "spec": {"poolRef": other}})),
        (ADDRESS, json!({"metadata": owned, "spec": of_claim})),
        (
            IPAM_CLAIM,
            json!({
                "metadata": {"name": format!("{name}.iface1"), "labels": labels, "ownerReferences": guest["ownerReferences"]},
                "spec": {"network": network, "interface": ""}, "status": {"ips": [with_length]},
            }),
        ),
    ]
}
