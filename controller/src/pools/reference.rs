//! The mutating webhook for VirtualMachines: adds the reference to the Secret with the network data of the machine.
//!
//! The Secret does not exist yet, so the pod of the machine waits until the leader has recorded the addresses and
//! created the Secret. The webhook itself allocates and writes nothing: at this moment the machine has no UID, another
//! webhook may reject the machine, and the request may be a dry run.
//!
//! A KubevirtMachine needs no patch, even in versions of capk with `spec.cloudInit`: if this member has no network data,
//! capk creates a VirtualMachine without network data, and this webhook adds the reference to the VirtualMachine. If
//! `spec.cloudInit` or the template of the VirtualMachine has network data, the webhook does not change it. The leader then
//! reserves the addresses in this network data, and reports that the machine gets no address.

use std::collections::BTreeSet;

use glowplug::host::nodepool::acpi_index;
use serde_json::{Value, json};

use crate::cluster::key::PoolId;
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine};
use crate::pools::selection::{Selected, Selection};

/// Path of the webhook for VirtualMachines.
pub const MACHINES_PATH: &str = "/mutate-machines";

/// The response to the creation of a VirtualMachine.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// No pool selects the machine. It is created without a change.
    NotSelected,
    /// The machine is created without a change. The texts are warnings for the client that creates it.
    Allow(Vec<String>),
    /// The machine is created with these JSON patch operations. Empty: the machine needs no change.
    Patch(Vec<Value>),
    /// The machine is rejected with this message, and capk retries later.
    Refuse(String),
    /// The machine is rejected with this message, and capk retries later: these pools have no free address, and the machine
    /// holds none of their addresses.
    Exhausted(String, Vec<PoolId>),
}

/// Decides on the creation of a machine. `held` are the pools from which the machine already holds an address: a
/// machine that capk creates again keeps its addresses and needs no free address.
///
/// The function is idempotent: for a machine that already has the returned operations, it returns an empty patch.
#[must_use]
pub fn decide(machine: &VirtualMachine, selection: &Selection, held: &BTreeSet<PoolId>) -> Decision {
    let secret = machine.secret_name();
    let selected = selection.of(machine);
    let is_foreign = |data: &NetworkData| match data {
        NetworkData::None => false,
        NetworkData::Secret(name) => *name != secret,
        NetworkData::Inline(_) => true,
    };
    if let Some(volume) = machine.cloud_init.as_ref().filter(|volume| is_foreign(&volume.network_data)) {
        let pools: Vec<String> = selected.iter().flatten().map(|selected| selected.pool.to_string()).collect();
        let member = format!("{}.{}", path(&["volumes", &volume.volume.to_string()], '.'), volume.kind.member());
        return match (pools.join(", ").as_str(), &selected) {
            ("", Ok(_)) => Decision::Allow(Vec::new()),
            ("", Err(problem)) => Decision::Allow(vec![format!("{member}: keeps its network data; {problem}")]),
            (pools, _) => {
                Decision::Allow(vec![format!("{member}: keeps its network data, and gets no address of {pools}")])
            }
        };
    }
    let selected = match selected {
        Ok(selected) if selected.is_empty() => return Decision::NotSelected,
        Ok(selected) => selected,
        Err(problem) => return Decision::Refuse(problem.to_string()),
    };
    if machine.metadata.name.as_ref().is_none_or(String::is_empty) {
        return Decision::Refuse(
            "metadata.name: missing, expected a name: the Secret of the machine has it".to_owned(),
        );
    }
    let Some(volume) = &machine.cloud_init else { return Decision::Refuse(without_volume(&selected)) };
    // capk creates a rejected machine again later. Nobody does so for another machine, which waits for its Secret.
    let is_created_again = machine.kubevirt_machine().is_some();
    let has_address = |it: &&Selected| held.contains(&it.pool) || is_kept_for(machine, it, selection);
    let exhausted = selected.iter().filter(|it| is_created_again && !has_address(it));
    let exhausted: Vec<(&String, &PoolId)> =
        exhausted.filter_map(|it| Some((selection.pool(&it.pool)?.exhausted.as_ref()?, &it.pool))).collect();
    if let [(message, _), ..] = &exhausted[..] {
        return Decision::Exhausted(message.to_string(), exhausted.iter().map(|(_, pool)| (*pool).clone()).collect());
    }
    let mut operations: Vec<Value> = selected.iter().filter_map(|selected| name_interface(machine, selected)).collect();
    if volume.network_data == NetworkData::None {
        let at = path(&["volumes", &volume.volume.to_string(), volume.kind.member(), "networkDataSecretRef"], '/');
        operations.push(json!({"op": "add", "path": format!("/{at}"), "value": {"name": secret}}));
    }
    Decision::Patch(operations)
}

/// Returns the message about a machine of these pools without a cloud-init volume.
#[must_use]
pub fn without_volume(selected: &[Selected]) -> String {
    let pools: Vec<String> = selected.iter().map(|selected| selected.pool.to_string()).collect();
    let (volumes, pools) = (path(&["volumes"], '.'), pools.join(", "));
    format!(
        "{volumes}: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one for the addresses of {pools}"
    )
}

/// Whether a pool keeps an address of each of its families for a machine, so that the machine needs no free address.
pub(crate) fn is_kept_for(machine: &VirtualMachine, selected: &Selected, selection: &Selection) -> bool {
    let Some(pool) = selection.pool(&selected.pool).and_then(|pool| pool.pool.as_ref().ok()) else { return false };
    // Without its KubevirtMachine in this cluster, the VirtualMachine itself claims the address.
    let mut names = machine.kubevirt_machine().into_iter().chain([machine.key()]);
    names.any(|name| pool.pre_allocated(&name.namespace, &name.name).len() == pool.spaces().count())
}

/// Returns the operation that sets the `acpiIndex` of the interface, so that the guest gives it the name in the pool.
/// `None`: the interface already has an index, or no index results in this name.
fn name_interface(machine: &VirtualMachine, selected: &Selected) -> Option<Value> {
    let index = acpi_index(&selected.interface)?;
    let attachment = machine.networks.iter().find(|attachment| attachment.name == selected.attachment)?;
    let at = path(&["domain", "devices", "interfaces", &attachment.index.to_string(), "acpiIndex"], '/');
    let is_missing = attachment.acpi_index.is_none();
    is_missing.then(|| json!({"op": "add", "path": format!("/{at}"), "value": index}))
}

/// Returns the path of a member of the machine's template.
fn path(members: &[&str], separator: char) -> String {
    [&["spec", "template", "spec"], members].concat().join(&separator.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::object::Object;
    use crate::kinds::virtual_machine::{MACHINE_NAME_LABEL, MACHINE_NAMESPACE_LABEL};
    use crate::pools::facts::PoolObject;
    use crate::pools::selection::MachinePool;

    /// Creates a pool in namespace `n` that selects every machine of this namespace, on network `infra/vlan10`.
    fn pool(name: &str, changes: &Value) -> Arc<MachinePool> {
        let mut object = json!({
            "metadata": {"namespace": "n", "name": name},
            "spec": {"network": "infra/vlan10", "addresses": ["10.0.0.0/24"], "machineSelector": {}},
        });
        json_patch::merge(&mut object, changes);
        Arc::new(MachinePool::read(PoolObject::read(serde_json::from_value(object).unwrap())))
    }

    fn exhausted(name: &str, changes: &Value) -> Arc<MachinePool> {
        let message = "No available IPs in pool for interface eno101";
        let condition = json!({
            "type": "Exhausted", "status": "True", "reason": "NoFreeAddress", "message": message,
            "lastTransitionTime": "2026-08-14T10:00:00Z",
        });
        let mut all = json!({"status": {"conditions": [condition]}});
        json_patch::merge(&mut all, changes);
        pool(name, &all)
    }

    fn selection(pools: &[Arc<MachinePool>]) -> Selection {
        Selection::new(pools.iter().cloned(), [])
    }

    /// Creates a machine as capk does, and merges `changes` into its template.
    fn object(changes: &Value) -> Value {
        let mut spec = json!({
            "domain": {"devices": {"interfaces": [{"name": "iface1", "bridge": {}}]}},
            "networks": [{"name": "iface1", "multus": {"networkName": "infra/vlan10"}}],
            "volumes": [
                {"name": "root", "dataVolume": {"name": "root"}},
                {"name": "cloudinitvolume", "cloudInitConfigDrive": {"secretRef": {"name": "w-0-userdata"}}},
            ],
        });
        json_patch::merge(&mut spec, changes);
        let labels = json!({(MACHINE_NAME_LABEL): "w-0", (MACHINE_NAMESPACE_LABEL): "n"});
        json!({"metadata": {"namespace": "n", "name": "w-0", "labels": labels}, "spec": {"template": {"spec": spec}}})
    }

    fn read(object: &Value) -> VirtualMachine {
        VirtualMachine::read(serde_json::from_value::<Object>(object.clone()).unwrap())
    }

    fn decision(pools: &[Arc<MachinePool>], changes: &Value) -> Decision {
        decide(&read(&object(changes)), &selection(pools), &BTreeSet::new())
    }

    fn cloud_init(kind: &str, source: &Value) -> Value {
        json!({"volumes": [{"name": "cloudinitvolume", kind: source}]})
    }

    #[test]
    fn a_selected_machine_gets_the_reference_to_its_secret_and_the_index_of_the_interface() {
        let operations = json!([
            {"op": "add", "path": "/spec/template/spec/domain/devices/interfaces/0/acpiIndex", "value": 101},
            {
                "op": "add",
                "path": "/spec/template/spec/volumes/1/cloudInitConfigDrive/networkDataSecretRef",
                "value": {"name": "w-0-networkdata"},
            },
        ]);
        let Decision::Patch(patch) = decision(&[pool("p", &json!({}))], &json!({})) else { panic!() };
        assert_eq!(Value::from(patch), operations);
        let no_cloud = cloud_init("cloudInitNoCloud", &json!({"secretRef": {"name": "w-0-userdata"}}));
        let Decision::Patch(patch) = decision(&[pool("p", &json!({}))], &no_cloud) else { panic!() };
        let at = "/spec/template/spec/volumes/0/cloudInitNoCloud/networkDataSecretRef";
        assert_eq!(patch[1], json!({"op": "add", "path": at, "value": {"name": "w-0-networkdata"}}));
    }

    #[test]
    fn a_second_call_finds_its_own_work_done() {
        let selection = selection(&[pool("p", &json!({}))]);
        let mut object = object(&json!({}));
        let Decision::Patch(patch) = decide(&read(&object), &selection, &BTreeSet::new()) else { panic!() };
        let patch: json_patch::Patch = serde_json::from_value(patch.into()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        assert_eq!(decide(&read(&object), &selection, &BTreeSet::new()), Decision::Patch(Vec::new()));
    }

    #[test]
    fn an_interface_whose_name_comes_from_no_index_gets_none() {
        let pool = pool("p", &json!({"spec": {"interface": "ens3"}}));
        let Decision::Patch(patch) = decision(&[pool], &json!({})) else { panic!() };
        assert_eq!(patch.len(), 1);
    }

    #[test]
    fn a_machine_of_no_pool_is_not_selected() {
        assert_eq!(decision(&[], &json!({})), Decision::NotSelected);
    }

    #[test]
    fn a_machine_with_network_data_keeps_it_with_a_warning() {
        let pools = [pool("p", &json!({}))];
        let allowed =
            |pools: &[Arc<MachinePool>], source: Value| decision(pools, &cloud_init("cloudInitConfigDrive", &source));
        let warning =
            "spec.template.spec.volumes.0.cloudInitConfigDrive: keeps its network data, and gets no address of n/p";
        let expected = Decision::Allow(vec![warning.to_owned()]);
        assert_eq!(allowed(&pools, json!({"networkData": "x"})), expected);
        assert_eq!(allowed(&pools, json!({"networkDataSecretRef": {"name": "other"}})), expected);
        assert_eq!(allowed(&[], json!({"networkData": "x"})), Decision::Allow(Vec::new()));
    }

    #[test]
    fn a_selected_machine_without_a_cloud_init_volume_is_refused() {
        let message = "spec.template.spec.volumes: no volume with cloudInitConfigDrive or cloudInitNoCloud, \
                       expected one for the addresses of n/p";
        let machine = json!({"volumes": [{"name": "root"}]});
        assert_eq!(decision(&[pool("p", &json!({}))], &machine), Decision::Refuse(message.to_owned()));
    }

    #[test]
    fn a_machine_that_two_pools_of_a_network_select_is_refused() {
        let message = "pools n/p and n/q both select the machine for network infra/vlan10, expected one pool";
        let pools = [pool("p", &json!({})), pool("q", &json!({}))];
        assert_eq!(decision(&pools, &json!({})), Decision::Refuse(message.to_owned()));
    }

    #[test]
    fn a_machine_without_a_name_is_refused() {
        let mut object = object(&json!({}));
        object["metadata"] = json!({"namespace": "n", "generateName": "w-"});
        let message = "metadata.name: missing, expected a name: the Secret of the machine has it";
        let decision = decide(&read(&object), &selection(&[pool("p", &json!({}))]), &BTreeSet::new());
        assert_eq!(decision, Decision::Refuse(message.to_owned()));
    }

    #[test]
    fn a_machine_of_an_exhausted_pool_is_refused_with_the_string_of_the_enhancement() {
        let id = PoolId { namespace: Some("n".to_owned()), name: "p".to_owned() };
        let message = "No available IPs in pool for interface eno101".to_owned();
        assert_eq!(decision(&[exhausted("p", &json!({}))], &json!({})), Decision::Exhausted(message, vec![id]));
    }

    #[test]
    fn a_machine_for_which_an_exhausted_pool_keeps_an_address_is_created() {
        let keeping = |name: &str| exhausted("p", &json!({"spec": {"preAllocations": {(name): "10.0.0.9"}}}));
        for name in ["w-0", "n/w-0"] {
            assert!(matches!(decision(&[keeping(name)], &json!({})), Decision::Patch(_)), "{name}");
        }
        assert!(matches!(decision(&[keeping("other/w-0")], &json!({})), Decision::Exhausted(..)));
        // The KubevirtMachine may be in another cluster, and its VirtualMachine claims the address.
        let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "infra"}}});
        assert!(matches!(decision(&[keeping("n/w-0")], &label), Decision::Patch(_)));
    }

    #[test]
    fn a_machine_that_nobody_creates_again_waits_for_an_exhausted_pool() {
        let mut object = object(&json!({}));
        object["metadata"]["labels"] = Value::Null;
        let decision = decide(&read(&object), &selection(&[exhausted("p", &json!({}))]), &BTreeSet::new());
        assert!(matches!(decision, Decision::Patch(operations) if operations.len() == 2));
    }

    #[test]
    fn a_machine_that_has_an_address_of_an_exhausted_pool_is_created_again() {
        let held = BTreeSet::from([PoolId { namespace: Some("n".to_owned()), name: "p".to_owned() }]);
        let decision = decide(&read(&object(&json!({}))), &selection(&[exhausted("p", &json!({}))]), &held);
        assert!(matches!(decision, Decision::Patch(operations) if operations.len() == 2));
    }

    #[test]
    fn a_machine_with_any_content_gets_a_decision_that_holds_after_its_patch() {
        let pools = [pool("p", &json!({}))];
        let addresses = json!({"annotations": {"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.8/24"]}"#}});
        let mut valid = object(&json!({}));
        valid["spec"]["template"]["metadata"] = addresses;
        let mut patched = 0;
        crate::hostile::each_object(&valid, |object| {
            let decide = |object: Object| decide(&VirtualMachine::read(object), &selection(&pools), &BTreeSet::new());
            let Decision::Patch(operations) = decide(object.clone()) else { return };
            patched += 1;
            let mut value = serde_json::to_value(object).unwrap();
            let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
            json_patch::patch(&mut value, &patch).unwrap();
            assert_eq!(decide(serde_json::from_value(value.clone()).unwrap()), Decision::Patch(Vec::new()), "{value}");
        });
        assert!(patched > 50, "{patched}");
    }
}
