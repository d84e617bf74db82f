//! Decides to which Secret with network data a VirtualMachine refers, for the webhooks for VirtualMachines and their
//! instances. Pure decision logic: the input is objects, the output is JSON patch operations.
//!
//! The first cloud-init volume of a machine refers to the Secret. The template has two marks: a label, and an
//! annotation with the name of the VirtualMachine. These rules prevent a machine from reading the Secret of another
//! machine, or of an earlier machine of the same name:
//!
//! - A new VirtualMachine gets a Secret with a new random name. A name in its manifest is ignored, because the manifest
//!   may be a copy.
//! - A later change keeps the reference of the machine, also while the pool of the machine is being deleted. If the
//!   change affects the network data itself, the machine gets a reference to a new Secret. With its earlier Secret, a
//!   machine keeps the names of its interfaces.
//! - An instance with the label starts only with network data, and only as the machine that the annotation names.
//!
//! If a user has written network data for the machine, this data is kept. The leader then reserves the addresses in
//! this data, and reports that the machine gets no address from a pool.
//!
//! A machine that the leader leaves alone counts as a machine that no pool selects.
//!
//! The controller may serve only a part of the pools: see [`Scope`](crate::pools::facts::Scope). If no pool of this part
//! selects a machine, the webhook of another controller may have added its reference and its marks, and decides about
//! them. Only a reference of another machine is removed: a copy must not get its network data.
//!
//! When a VirtualMachine is created, its Secret does not exist yet. The pod of the machine waits until the leader has
//! recorded the addresses and created the Secret. The webhooks allocate nothing and write nothing: a new machine has no
//! UID, another webhook may reject it, and the request may be a dry run.
//!
//! A KubevirtMachine needs no patch, even in versions of capk with `spec.cloudInit`: if this member contains no network
//! data, capk creates a VirtualMachine without network data, and the webhook adds the reference to the VirtualMachine.

use std::collections::{BTreeMap, BTreeSet};

use glowplug::host::nodepool::acpi_index;
use glowplug::host::records::{ANNOTATION_PREFIX, NETWORK_PREFIX};
use glowplug::network::{InterfaceName, parse_mac_address};
use pnet_base::MacAddr;
use serde_json::{Value, json};

use crate::cluster::edit::{Edit, pointer};
use crate::cluster::key::{Key, PoolId};
use crate::cluster::object::Object;
use crate::kinds::network_data::{
    ISSUED, NETWORK_DATA_LABEL, REPLACED_ANNOTATION, VM_ANNOTATION, is_change_of_name, is_issued, is_issued_for,
    renewed,
};
use crate::kinds::virtual_machine::{
    ASSIGNED_ANNOTATION, Attachment, CloudInit, CloudInitKind, LEFT_ALONE_ANNOTATION, MAC_ADDRESSES_LABEL, Mark,
    NetworkData, VirtualMachine, interfaces, read_mac_address, requires_mac_addresses,
};
use crate::pools::selection::{MachinePool, Selected, Selection};

/// Path of the webhook for new VirtualMachines.
pub const MACHINES_PATH: &str = "/mutate-machines";
/// Path of the webhook for changes of VirtualMachines.
pub const UPDATES_PATH: &str = "/mutate-machine-updates";

/// Maximum number of names in [`REPLACED_ANNOTATION`].
const MOST_REPLACED: usize = 4;

/// The decision about a new VirtualMachine.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// No pool selects the machine. The machine is created, and these changes remove copied network data.
    NotSelected(Allowed),
    /// The machine is created with these changes.
    Allow(Allowed),
    /// The machine is rejected with this message, and capk retries later.
    Refuse(String),
    /// The machine is rejected with this message, and capk retries later. The pools have no free address, and the
    /// machine holds none of their addresses.
    Exhausted(String, Vec<PoolId>),
}

/// The changes that a webhook makes to an object that it allows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowed {
    /// JSON patch operations. Empty: the object is not changed.
    pub operations: Vec<Value>,
    /// Warnings for the client that writes the object.
    pub warnings: Vec<String>,
}

/// A new VirtualMachine.
#[derive(Clone, Copy, Debug)]
pub struct NewMachine<'r> {
    /// The VirtualMachine, with its namespace set.
    pub object: &'r Object,
    /// Whether the template refers to a Secret that the controller wrote for another machine.
    pub is_copy: bool,
    /// The networks on which the machine already holds an address of any pool. A machine that capk creates again keeps
    /// its addresses, and needs no free address on these networks.
    pub held: &'r BTreeSet<String>,
    /// A new random name for the Secret of the machine.
    pub name: &'r str,
}

/// Decides whether a new VirtualMachine is created, and with which changes.
///
/// # Errors
///
/// The object cannot be written as JSON.
pub fn admit_new(new: NewMachine<'_>, selection: &Selection) -> serde_json::Result<Decision> {
    let NewMachine { object, is_copy, held, name } = new;
    let (machine, mut edit) = (VirtualMachine::read(object.clone()), Edit::of(object)?);
    let selected = selection.of(&machine);
    edit.remove(&["metadata", "annotations", LEFT_ALONE_ANNOTATION]);
    // The controller has not written into a new VirtualMachine yet, so a record of addresses in its manifest belongs to
    // another VirtualMachine.
    for annotation in object.metadata.annotations.iter().flatten().map(|(name, _)| name) {
        if [ANNOTATION_PREFIX, NETWORK_PREFIX].iter().any(|prefix| annotation.starts_with(prefix)) {
            edit.remove(&["metadata", "annotations", annotation]);
        }
    }
    // A new machine has no Secret yet, so an existing Secret belongs to another machine.
    let is_of_another = !is_copy && selection.may_be_of_another(&machine) && machine.has_own_reference();
    let copied = machine.reference().filter(|_| !is_of_another && (is_copy || machine.secret().is_some()));
    if copied.is_none()
        && let Some(member) = machine.own_network_data()
    {
        unmark(&mut edit);
        let pools: Vec<String> = selected.iter().flatten().flat_map(Selected::pools).map(PoolId::to_string).collect();
        let warning = match (pools.join(", ").as_str(), &selected) {
            ("", Ok(_)) => None,
            ("", Err(problem)) => Some(format!("{member}: keeps its network data; {problem}")),
            (pools, _) => Some(format!("{member}: keeps its network data, and gets no address of {pools}")),
        };
        return Ok(Decision::Allow(Allowed::of(edit, warning)));
    }
    if let Some(copied) = copied.filter(|copied| *copied != name) {
        edit.set(&["metadata", "annotations", REPLACED_ANNOTATION], json!(replaced(&machine, copied)));
    }
    let selected = match selected {
        // The guest already runs in another cluster. The machine gets network data before its first start in this
        // cluster.
        Ok(_) if machine.awaits_migration => Vec::new(),
        Ok(selected) => selected,
        Err(problem) => return Ok(Decision::Refuse(problem.to_string())),
    };
    if let Some(pool) = selection.ending(&machine, &selected).filter(|_| !machine.awaits_migration) {
        return Ok(Decision::Refuse(ending(pool)));
    }
    if selected.is_empty() {
        if copied.is_some() {
            edit.remove(&machine.path_of_reference());
        }
        if !is_of_another {
            unmark(&mut edit);
        }
        let warning = copied.map(|copied| {
            let member = machine.path_of_reference().join(".");
            format!("{member}: removed, {copied:?} has the network data of another machine")
        });
        return Ok(Decision::NotSelected(Allowed::of(edit, warning)));
    }
    if machine.metadata.name.as_ref().is_none_or(String::is_empty) {
        let message = "metadata.name: missing, expected a name instead of generateName: the controller names the Secret with the network data after the machine";
        return Ok(Decision::Refuse(message.to_owned()));
    }
    if machine.cloud_init.is_none() {
        return Ok(Decision::Refuse(without_volume(&selected)));
    }
    let lacking = lacking(&machine, &selected, held, selection);
    if let [(_, message), ..] = &lacking[..] {
        let pools = lacking.iter().flat_map(|(it, _)| it.all_pools()).cloned().collect();
        return Ok(Decision::Exhausted(message.clone(), pools));
    }
    apply(&mut edit, reference(&machine, &selected, name, ISSUED));
    Ok(Decision::Allow(Allowed::of(edit, None)))
}

/// Decides which changes the webhook makes to a changed VirtualMachine. The change is never rejected. `name` is a new
/// random name for the Secret of the machine.
///
/// # Errors
///
/// The object cannot be written as JSON.
pub fn admit_change(old: &Object, new: &Object, selection: &Selection, name: &str) -> serde_json::Result<Allowed> {
    let [old_template, template] = [old, new].map(|object| &object.data["spec"]["template"]);
    if new.metadata.deletion_timestamp.is_some() || old_template == template {
        return Ok(Allowed::default());
    }
    let (mut edit, mut warning) = (Edit::of(new)?, None);
    assign_mac_addresses(&mut edit, template);
    put_back_mac_addresses(&mut edit, old_template, template);
    let [before, machine] = [old, new].map(|object| VirtualMachine::read(object.clone()));
    // The webhook of another controller writes a reference together with its mark. A reference without the mark may
    // come from a user, and may name the Secret of another machine.
    let is_own = machine.secret().is_none_or(|secret| before.secret() == Some(secret) || machine.has_own_reference());
    if is_own && selection.may_be_of_another(&before) && selection.may_be_of_another(&machine) {
        return Ok(Allowed::of(edit, None));
    }
    let (is_selected, selected) = match selection.of(&machine) {
        _ if machine.awaits_migration || (machine.is_left_alone() && before.secret().is_none()) => (false, Vec::new()),
        Ok(selected) => (!selected.is_empty(), selected),
        // Several pools select the machine, or a pool that selects it has errors.
        Err(_) => (true, Vec::new()),
    };
    let asks = |label: &&String| is_change_of_name(label) && before.mark.label.as_ref() != Some(*label);
    let is_requested = is_selected && machine.mark.label.as_ref().filter(asks).is_some();
    // A pool that is being deleted gives no new network data, but a machine keeps the network data that it has, unless
    // an interface moves to another network.
    let is_own = |secret: &&str| !is_issued(secret) || is_issued_for(secret, &machine.key().name);
    let is_kept = before.secret().filter(is_own).is_some()
        && !machine.awaits_migration
        && !interface_moves(&before, &machine, selection, false);
    let kept = selection.kept(&machine, &selected).filter(|_| is_kept);
    let is_selected = is_selected || kept.is_some();
    let own = before.secret().map(|own| match is_requested || has_changed(&before, &machine, selection) {
        true => name,
        false => own,
    });
    let new_name = (!selected.is_empty()).then_some(name);
    let removed = || {
        let member = machine.path_of_volume().join(".");
        format!(
            "{member}: no pool selects the machine any more, so its reference to network data is removed; the guest has no \
             network data after its next start"
        )
    };
    let secret = match (machine.cloud_init.as_ref().map(|volume| &volume.network_data), machine.secret()) {
        // An interface has moved to another network, and no pool gives the machine other network data.
        (_, Some(_)) if !is_selected && own == Some(name) => {
            warning = Some(removed());
            None
        }
        // The name in the changed object is ignored, because it may be the name of another machine's Secret.
        (_, Some(_)) => own.or(new_name),
        // Without a cloud-init volume, the instance does not start.
        (None, _) if is_selected => return Ok(Allowed::of(edit, None)),
        (data @ (None | Some(NetworkData::None)), _) if !is_selected => {
            let is_removed = own.is_some() && data.is_some() && !machine.awaits_migration;
            warning = is_removed.then(removed);
            None
        }
        // The leader requests a reference by setting the label.
        (None | Some(NetworkData::None), _) => own.or(new_name.filter(|_| machine.mark.label.is_some())),
        (Some(NetworkData::Secret(_) | NetworkData::Inline(_)), None) => {
            let member = machine.own_network_data().filter(|_| own.is_some());
            warning = member
                .map(|member| format!("{member}: replaces the network data that contains the address of the machine"));
            None
        }
    };
    match secret {
        Some(secret) => {
            let label = if is_requested { renewed(secret) } else { ISSUED.to_owned() };
            // If the old template has no index, a pool selected the interface after the Secret was written.
            let had_index =
                |it: &Selected| before.networks.iter().any(|of| of.network == it.network && of.acpi_index.is_some());
            let is_same = before.secret() == Some(secret);
            let selected = selected.into_iter().chain(kept.into_iter().flatten());
            let selected: Vec<Selected> = selected.filter(|it| !is_same || had_index(it)).collect();
            apply(&mut edit, reference(&machine, &selected, secret, &label));
        }
        None => {
            if machine.secret().is_some() {
                edit.remove(&machine.path_of_reference());
            }
            unmark(&mut edit);
        }
    }
    Ok(Allowed::of(edit, warning))
}

/// Returns the reasons to reject a new instance in `namespace`, one line each.
#[must_use]
pub fn check_instance(instance: &Object, namespace: &str) -> Vec<String> {
    let metadata = serde_json::to_value(&instance.metadata).unwrap_or_default();
    let mark = Mark::read(&metadata);
    if mark.label.is_none() {
        return Vec::new();
    }
    let vm = Key { namespace: namespace.to_owned(), name: instance.metadata.name.clone().unwrap_or_default() };
    let volume = CloudInit::of(&instance.data["spec"]);
    if let Some(NetworkData::Secret(name)) = volume.as_ref().map(|volume| &volume.network_data)
        && is_issued(name)
        && !is_issued_for(name, &vm.name)
    {
        return vec![format!(
            "spec.volumes: network data in Secret {name:?} of another machine, expected that of VirtualMachine {vm}: remove \
             networkDataSecretRef from spec.template of the VirtualMachine"
        )];
    }
    if mark.vm.as_deref() != Some(vm.to_string().as_str()) {
        let found = mark.vm.as_deref().unwrap_or_default();
        let reference = match volume.map(|volume| volume.network_data) {
            Some(NetworkData::Secret(name)) => format!(", and the reference to {name:?}"),
            _ => String::new(),
        };
        return vec![format!(
            "metadata.annotations[{VM_ANNOTATION}]: {found:?}, expected {:?}: the machine is a copy; remove the annotation, \
             the label {NETWORK_DATA_LABEL}{reference} from spec.template of the VirtualMachine",
            vm.to_string()
        )];
    }
    match volume {
        Some(volume) if volume.network_data != NetworkData::None => Vec::new(),
        _ => vec![format!(
            "spec.volumes: no network data, expected networkDataSecretRef: the controller adds it to VirtualMachine {vm}"
        )],
    }
}

/// Returns the members that make a VirtualMachine refer to a Secret of the controller, with their paths. `label` is the
/// value of [`NETWORK_DATA_LABEL`].
#[must_use]
pub fn reference(
    machine: &VirtualMachine,
    selected: &[Selected],
    secret: &str,
    label: &str,
) -> Vec<(Vec<String>, Value)> {
    let mut members: Vec<_> = selected.iter().filter_map(|selected| name_interface(machine, selected)).collect();
    members.push((machine.path_of_reference(), json!({"name": secret})));
    members.extend(marks(&machine.key(), label));
    members
}

/// Returns the marks of a template, with their paths.
pub(crate) fn marks(vm: &Key, label: &str) -> [(Vec<String>, Value); 2] {
    let [label_path, annotation_path] = paths_of_marks();
    [(label_path, json!(label)), (annotation_path, json!(vm.to_string()))]
}

/// Returns the JSON patch operations that set these members. The objects that contain the members must exist.
#[must_use]
pub fn operations(members: Vec<(Vec<String>, Value)>) -> Vec<Value> {
    let operation = |(path, value): (Vec<String>, Value)| json!({"op": "add", "path": pointer(&path), "value": value});
    members.into_iter().map(operation).collect()
}

/// Returns the JSON patch operations that remove the reference of a machine to its Secret, and the marks.
pub(crate) fn removal(machine: &VirtualMachine) -> Vec<Value> {
    let marks = paths_of_marks().into_iter().zip([machine.mark.label.is_some(), machine.mark.vm.is_some()]);
    let marks = marks.filter_map(|(path, is_set)| is_set.then_some(path));
    let paths = [machine.path_of_reference()].into_iter().chain(marks);
    paths.map(|path| json!({"op": "remove", "path": pointer(&path)})).collect()
}

/// Returns the message about a machine that these pools select and that has no cloud-init volume.
#[must_use]
pub fn without_volume(selected: &[Selected]) -> String {
    let pools: Vec<String> = selected.iter().flat_map(Selected::pools).map(PoolId::to_string).collect();
    let (volumes, pools) = (path(&["volumes"]).join("."), pools.join(", "));
    format!(
        "{volumes}: no volume with cloudInitConfigDrive or cloudInitNoCloud, expected one for the addresses of {pools}"
    )
}

/// Returns the message about a machine whose pool is being deleted.
pub(crate) fn ending(pool: &MachinePool) -> String {
    let reference = match (&pool.owner, &pool.spec.node_pool_ref) {
        (Some(_), Some(node_pool)) => format!("bootstrapNetworkConfig from NodePool {}", node_pool.name),
        (None, Some(_)) => "nodePoolRef from the pool".to_owned(),
        (_, None) if pool.selects_namespaces() => "namespaceSelector from the pool".to_owned(),
        (_, None) if pool.spec.node_pool_refs.is_some() => "the NodePool from nodePoolRefs of the pool".to_owned(),
        (_, None) => "machineSelector from the pool".to_owned(),
    };
    format!(
        "pool {} is being deleted, and gives new machines no address: create a pool of another name, or create the pool again \
         when it is gone; remove {reference} to start machines without an address",
        pool.id
    )
}

/// Returns the pools of `selected` because of which the webhook rejects a new machine, each with its message. This
/// happens only if the pool and its overflow are exhausted, the machine holds no address of the network, and no pool
/// pre-allocates addresses to the machine. `held` is [`NewMachine::held`].
///
/// After a rejection, capk tries again to create the machine. A machine that capk does not manage is created at once,
/// and waits for its Secret.
pub(crate) fn lacking<'s>(
    machine: &VirtualMachine,
    selected: &'s [Selected],
    held: &BTreeSet<String>,
    selection: &Selection,
) -> Vec<(&'s Selected, String)> {
    let is_created_again = machine.kubevirt_machine().is_some();
    let has_address = |it: &&Selected| held.contains(&it.network) || is_kept_for(machine, it, selection);
    let lacking = selected.iter().filter(|it| is_created_again && !has_address(it));
    lacking.filter_map(|it| Some((it, selection.exhausted(it)?))).collect()
}

/// Whether a pool pre-allocates an address of each of its families to the machine, which then needs no free address.
fn is_kept_for(machine: &VirtualMachine, selected: &Selected, selection: &Selection) -> bool {
    let mut pools = selected.pools().filter_map(|pool| selection.pool(pool)?.pool.as_ref().ok());
    pools.any(|pool| {
        // If its KubevirtMachine is in another cluster, the VirtualMachine itself claims the address.
        let mut names = machine.kubevirt_machine().into_iter().chain([machine.key()]);
        names.any(|name| pool.pre_allocated(&name.namespace, &name.name).len() == pool.spaces().count())
    })
}

/// Returns the value of [`REPLACED_ANNOTATION`] for a new machine whose manifest refers to `copied`. The value keeps
/// several names: a machine may be restored several times, and a webhook that is called again for the same creation
/// adds the name that its first call wrote.
fn replaced(machine: &VirtualMachine, copied: &str) -> String {
    let mut names: Vec<&str> = machine.replaced().filter(|name| *name != copied).collect();
    names.push(copied);
    names[names.len().saturating_sub(MOST_REPLACED)..].join(",")
}

/// Returns the path and the value of `acpiIndex`. With this index, the interface has the name in the guest that its pool
/// requires. `None`: the interface already has an index or is an SR-IOV function, or no index results in this name.
fn name_interface(machine: &VirtualMachine, selected: &Selected) -> Option<(Vec<String>, Value)> {
    let index = acpi_index(&selected.interface)?;
    let attachment = machine.networks.iter().find(|attachment| attachment.name == selected.attachment)?;
    let is_missing = attachment.acpi_index.is_none() && !attachment.is_sriov;
    let at = path(&["domain", "devices", "interfaces", &attachment.index.to_string(), "acpiIndex"]);
    is_missing.then(|| (at, json!(index)))
}

/// Whether an interface has an `acpiIndex`. If a pool selects the interface after its machine got the reference to a
/// Secret, it gets no index.
pub(crate) fn has_index(machine: &VirtualMachine, selected: &Selected) -> bool {
    machine.networks.iter().any(|it| it.name == selected.attachment && it.acpi_index.is_some())
}

/// Whether an interface lacks the index for the name that its pool requires in the guest, although another interface
/// has an index. If no interface has an index, another program than the controller has written the reference.
pub(crate) fn lacks_index(machine: &VirtualMachine, selected: &Selected) -> bool {
    machine.networks.iter().any(|it| it.acpi_index.is_some()) && name_interface(machine, selected).is_some()
}

/// The values on which the network data of a machine depends: the format and, for each interface, its network, name and
/// MAC address.
type Facts<'m> = (Option<CloudInitKind>, BTreeMap<InterfaceName, (&'m str, Option<MacAddr>)>);

fn facts<'m>(machine: &'m VirtualMachine, selection: &Selection) -> Facts<'m> {
    let selected = selection.of(machine).unwrap_or_default();
    let interfaces = selected.iter().filter_map(|selected| {
        let attachment = machine.networks.iter().find(|attachment| attachment.name == selected.attachment)?;
        Some((selected.interface, (attachment.network.as_str(), attachment.mac)))
    });
    (machine.cloud_init.as_ref().map(|volume| volume.kind), interfaces.collect())
}

/// Whether the earlier network data of the machine is wrong after a change. A missing MAC address does not count as a
/// change, because it may be chosen later.
fn has_changed(before: &VirtualMachine, after: &VirtualMachine, selection: &Selection) -> bool {
    let ((kind_before, facts_before), (kind, facts_after)) = (facts(before, selection), facts(after, selection));
    let is_served = !facts_before.is_empty() && !facts_after.is_empty();
    if interface_moves(before, after, selection, is_served) {
        return true;
    }
    let is_same = |(interface, (network, mac)): (&InterfaceName, &(&str, Option<MacAddr>))| {
        facts_before.get(interface).is_some_and(|(network_before, mac_before)| {
            network_before == network && mac_before.zip(*mac).is_none_or(|(before, now)| before == now)
        })
    };
    is_served && (kind_before != kind || facts_before.len() != facts_after.len() || !facts_after.iter().all(is_same))
}

/// Whether an interface that may have an address moves to another network: an interface of a network with a pool. If
/// pools do not serve the machine and none of its networks has a pool, every interface may have an address, whose pool
/// is invalid or gone.
fn interface_moves(before: &VirtualMachine, after: &VirtualMachine, selection: &Selection, is_served: bool) -> bool {
    let has_pool = |it: &Attachment| selection.has_pool_of(&it.network);
    let count_all = !is_served && !before.networks.iter().any(has_pool);
    let is_changed = |it: &Attachment| {
        let is_same = |old: &Attachment| {
            (&old.name, &old.network, old.mac, old.acpi_index) == (&it.name, &it.network, it.mac, it.acpi_index)
        };
        !before.networks.iter().any(is_same)
    };
    let is_new = |it: &Attachment| !before.networks.iter().any(|old| old.name == it.name && old.network == it.network);
    let moves = |earlier: &Attachment| {
        let is_it = |it: &Attachment| {
            let has_index = it.acpi_index.is_some() && it.acpi_index == earlier.acpi_index;
            is_changed(it) && (it.name == earlier.name || it.mac.is_some() && it.mac == earlier.mac || has_index)
        };
        moved(&after.networks, &earlier.network, is_it, is_new).next().is_some()
    };
    before.networks.iter().filter(|it| count_all || has_pool(it)).any(moves)
}

/// Returns the interfaces that may have an address of `network` and are on another network now, where another guest may
/// have this address. `all`: the interfaces of the machine, or of its guest.
///
/// - `is_it`: whether the guest regards an interface as the interface with the address
/// - `is_new`: whether an interface has come to its network. If no interface is on `network` any more, such an interface
///   may be the interface with the address, under another name.
fn moved<'a>(
    all: &'a [Attachment],
    network: &str,
    is_it: impl Fn(&Attachment) -> bool,
    is_new: impl Fn(&Attachment) -> bool,
) -> impl Iterator<Item = &'a Attachment> {
    let (here, elsewhere): (Vec<&Attachment>, Vec<&Attachment>) = all.iter().partition(|it| it.network == network);
    elsewhere.into_iter().filter(move |it| is_it(it) || here.is_empty() && is_new(it))
}

/// Returns the networks on which an interface may be now that has addresses of `network`. Empty: the interface is on
/// `network`.
///
/// - `all`: the interfaces of the machine, or of its guest
/// - `selected`: the interfaces that pools serve now
/// - `is_new`: see [`moved`]
pub(crate) fn networks_after_move<'a>(
    all: &'a [Attachment],
    (interface, network): (InterfaceName, &str),
    selected: &[Selected],
    is_new: impl Fn(&Attachment) -> bool,
) -> BTreeSet<&'a str> {
    let index = acpi_index(&interface).map(u32::from);
    let is_named = |it: &Attachment| {
        let mut of_interface = selected.iter().filter(|selected| selected.interface == interface);
        of_interface.any(|selected| selected.attachment == it.name)
    };
    let is_it = |it: &Attachment| index.is_some() && it.acpi_index == index || is_named(it);
    moved(all, network, is_it, is_new).map(|it| it.network.as_str()).collect()
}

/// Writes the MAC addresses that the leader has assigned into the interfaces without a MAC address.
fn assign_mac_addresses(edit: &mut Edit, template: &Value) {
    let text = template["metadata"]["annotations"][ASSIGNED_ANNOTATION].as_str();
    let assigned = text.and_then(|text| serde_json::from_str::<BTreeMap<String, String>>(text).ok());
    let assigned = assigned.unwrap_or_default();
    let is_valid = |address: &&str| parse_mac_address(address).is_some();
    set_mac_addresses(edit, template, |name| assigned.get(name).map(String::as_str).filter(is_valid));
    edit.remove(&["spec", "template", "metadata", "annotations", ASSIGNED_ANNOTATION]);
}

/// Restores the MAC addresses of a MACPool in interfaces of the same name that have no MAC address now, and the label
/// of their template. An address that another interface has now stays there.
fn put_back_mac_addresses(edit: &mut Edit, old: &Value, new: &Value) {
    let present: BTreeSet<MacAddr> =
        interfaces(&new["spec"]).filter_map(|(_, address)| read_mac_address(address?)).collect();
    let mut known = BTreeMap::new();
    for (name, address) in interfaces(&old["spec"]).filter(|_| requires_mac_addresses(old)) {
        let is_present = address.and_then(read_mac_address).is_some_and(|address| present.contains(&address));
        known.entry(name).or_insert(address.filter(|_| !is_present));
    }
    // The label is restored only if an address was missing. Otherwise the user may have removed the label on purpose.
    if set_mac_addresses(edit, new, |name| *known.get(name)?) && !requires_mac_addresses(new) {
        let label = &old["metadata"]["labels"][MAC_ADDRESSES_LABEL];
        edit.set(&["spec", "template", "metadata", "labels", MAC_ADDRESSES_LABEL], label.clone());
    }
}

/// Writes a MAC address into each interface that has none. `address_of` returns the address for the name that KubeVirt
/// uses for the interface. Returns whether an address was written.
fn set_mac_addresses<'a>(edit: &mut Edit, template: &Value, address_of: impl Fn(&str) -> Option<&'a str>) -> bool {
    let mut is_written = false;
    for (index, (name, address)) in interfaces(&template["spec"]).enumerate() {
        if let Some(address) = address_of(name).filter(|_| address.is_none()) {
            let at = path(&["domain", "devices", "interfaces", &index.to_string(), "macAddress"]);
            edit.set(&at, json!(address));
            is_written = true;
        }
    }
    is_written
}

fn apply(edit: &mut Edit, members: Vec<(Vec<String>, Value)>) {
    members.into_iter().for_each(|(path, value)| edit.set(&path, value));
}

fn unmark(edit: &mut Edit) {
    paths_of_marks().iter().for_each(|path| edit.remove(path));
}

fn paths_of_marks() -> [Vec<String>; 2] {
    [["labels", NETWORK_DATA_LABEL], ["annotations", VM_ANNOTATION]]
        .map(|of| ["spec", "template", "metadata"].iter().chain(&of).map(|name| (*name).to_owned()).collect())
}

/// Returns the path of a member of `spec.template.spec`.
fn path(members: &[&str]) -> Vec<String> {
    ["spec", "template", "spec"].iter().chain(members).map(|name| (*name).to_owned()).collect()
}

// === impl Allowed ===

impl Allowed {
    fn of(edit: Edit, warning: Option<String>) -> Self {
        Self { operations: edit.operations(), warnings: warning.into_iter().collect() }
    }
}

// === impl VirtualMachine ===

impl VirtualMachine {
    /// Returns the path of the cloud-init volume.
    fn path_of_volume(&self) -> Vec<String> {
        let (volume, kind) = self.cloud_init.as_ref().map(|it| (it.volume, it.kind.member())).unwrap_or_default();
        path(&["volumes", &volume.to_string(), kind])
    }

    /// Returns the path of the reference to the Secret with network data.
    fn path_of_reference(&self) -> Vec<String> {
        let mut path = self.path_of_volume();
        path.push("networkDataSecretRef".to_owned());
        path
    }

    /// Returns the name of the Secret to which the template refers.
    fn reference(&self) -> Option<&str> {
        match &self.cloud_init.as_ref()?.network_data {
            NetworkData::Secret(name) => Some(name),
            NetworkData::None | NetworkData::Inline(_) => None,
        }
    }

    /// Whether a webhook has given this machine, and no other one, the Secret to which its template refers.
    fn has_own_reference(&self) -> bool {
        let key = self.key();
        let is_own = self.secret().is_some_and(|secret| is_issued_for(secret, &key.name));
        is_own && self.mark.vm.as_deref() == Some(&*key.to_string())
    }

    /// Returns the path of the volume with network data that a user wrote. `None`: the machine has no such network
    /// data.
    pub(crate) fn own_network_data(&self) -> Option<String> {
        let volume = self.cloud_init.as_ref().filter(|it| it.network_data != NetworkData::None);
        let is_own = volume.is_some() && self.secret().is_none();
        is_own.then(|| self.path_of_volume().join("."))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::object::Object;
    use crate::kinds::virtual_machine::{MACHINE_NAME_LABEL, MACHINE_NAMESPACE_LABEL};
    use crate::pools::facts::PoolObject;
    use crate::pools::selection::MachinePool;

    /// Creates a pool in the namespace `n` on the network `infra/vlan10`. It selects every machine of this namespace.
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
        Selection::new(pools.iter().cloned(), [], None)
    }

    /// Creates a machine in the form in which capk creates it, and merges `changes` into the `spec` of its template.
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

    const NAME: &str = "w-0-networkdata-aaaaaaaaaaaaaaaa";
    const EARLIER: &str = "w-0-networkdata-bbbbbbbbbbbbbbbb";

    fn admit(object: &Value, pools: &[Arc<MachinePool>], is_copy: bool) -> Decision {
        let object = serde_json::from_value(object.clone()).unwrap();
        let new = NewMachine { object: &object, is_copy, held: &BTreeSet::new(), name: NAME };
        admit_new(new, &selection(pools)).unwrap()
    }

    fn decision(pools: &[Arc<MachinePool>], changes: &Value) -> Decision {
        admit(&object(changes), pools, false)
    }

    fn cloud_init(kind: &str, source: &Value) -> Value {
        json!({"volumes": [{"name": "cloudinitvolume", kind: source}]})
    }

    /// Returns an object after the webhook's operations are applied.
    fn patched(object: &Value, operations: Vec<Value>) -> Value {
        let mut object = object.clone();
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
        object
    }

    /// Returns the machine as the webhook changes it, and the warnings. Panics if the webhook refuses the machine.
    fn stored(object: &Value, pools: &[Arc<MachinePool>], is_copy: bool) -> (Value, Vec<String>) {
        match admit(object, pools, is_copy) {
            Decision::NotSelected(Allowed { operations, warnings })
            | Decision::Allow(Allowed { operations, warnings }) => (patched(object, operations), warnings),
            other => panic!("{other:?}"),
        }
    }

    /// A machine in the form in which the webhook stores it for the VirtualMachine `vm` (`namespace/name`), with a
    /// reference to `secret`.
    fn served(secret: &str, vm: &str) -> Value {
        let (mut object, _) = stored(&object(&json!({})), &[pool("p", &json!({}))], false);
        object["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"]["networkDataSecretRef"] =
            json!({"name": secret});
        object["spec"]["template"]["metadata"]["annotations"][VM_ANNOTATION] = json!(vm);
        object
    }

    /// The members that the webhook writes into a machine: the reference to its Secret, the index of its interface, and
    /// its marks.
    fn facts_of(object: &Value) -> (Option<String>, Option<u32>, Mark) {
        let machine = read(object);
        let secret = machine.reference().map(str::to_owned);
        (secret, machine.networks.first().and_then(|it| it.acpi_index), machine.mark)
    }

    fn mark(label: &str) -> Mark {
        Mark { label: Some(label.to_owned()), vm: Some("n/w-0".to_owned()) }
    }

    #[test]
    fn a_selected_machine_gets_a_reference_to_a_new_secret_the_index_of_the_interface_and_the_marks() {
        let operations = json!([
            {"op": "add", "path": "/spec/template/spec/domain/devices/interfaces/0/acpiIndex", "value": 101},
            {
                "op": "add",
                "path": "/spec/template/spec/volumes/1/cloudInitConfigDrive/networkDataSecretRef",
                "value": {"name": NAME},
            },
            {"op": "add", "path": "/spec/template/metadata", "value": {"labels": {(NETWORK_DATA_LABEL): "issued"}}},
            {"op": "add", "path": "/spec/template/metadata/annotations", "value": {(VM_ANNOTATION): "n/w-0"}},
        ]);
        let Decision::Allow(allowed) = decision(&[pool("p", &json!({}))], &json!({})) else { panic!() };
        assert_eq!((Value::from(allowed.operations), allowed.warnings), (operations, vec![]));
        let no_cloud = cloud_init("cloudInitNoCloud", &json!({"secretRef": {"name": "w-0-userdata"}}));
        let Decision::Allow(allowed) = decision(&[pool("p", &json!({}))], &no_cloud) else { panic!() };
        let at = "/spec/template/spec/volumes/0/cloudInitNoCloud/networkDataSecretRef";
        assert_eq!(allowed.operations[1], json!({"op": "add", "path": at, "value": {"name": NAME}}));
    }

    #[test]
    fn each_webhook_call_writes_a_new_secret_name_and_notes_the_last_four_names() {
        let mut object = served(EARLIER, "n/w-0");
        let replaced = |object: &Value| object["metadata"]["annotations"][REPLACED_ANNOTATION].clone();
        let names = ["b", "c", "d", "e", "f"].map(|it| format!("w-0-networkdata-{}", it.repeat(16)));
        for (at, name) in names.iter().enumerate() {
            let mut next = object.clone();
            let source = &mut next["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"];
            source["networkDataSecretRef"]["name"] = json!(name);
            (object, _) = stored(&next, &[pool("p", &json!({}))], false);
            assert_eq!(facts_of(&object), (Some(NAME.to_owned()), Some(101), mark("issued")));
            assert_eq!(replaced(&object), names[at.saturating_sub(3)..=at].join(","));
        }
    }

    #[test]
    fn a_machine_that_is_left_alone_gets_no_reference_but_its_copy_gets_a_reference() {
        let (mut old, pools) = (object(&json!({})), [pool("p", &json!({}))]);
        old["metadata"]["uid"] = json!("v-1");
        old["metadata"]["annotations"] = json!({(LEFT_ALONE_ANNOTATION): "v-1"});
        let mut new = old.clone();
        let marks = json!({"labels": {(NETWORK_DATA_LABEL): "requested-5"}, "annotations": {(VM_ANNOTATION): "n/w-0"}});
        new["spec"]["template"]["metadata"] = marks;
        assert_eq!(facts_of(&changed(&old, &new, &pools).0), (None, None, Mark::default()));
        new["metadata"]["annotations"] = json!({});
        let renewed = mark("renewed-aaaaaaaaaaaaaaaa");
        assert_eq!(facts_of(&changed(&old, &new, &pools).0), (Some(NAME.to_owned()), Some(101), renewed));
        let (copy, _) = stored(&old, &pools, false);
        assert_eq!(facts_of(&copy), (Some(NAME.to_owned()), Some(101), mark("issued")));
        assert_eq!(copy["metadata"]["annotations"], json!({}));
        // If the machine is already served, the annotation does not remove its reference.
        let mut before = served(EARLIER, "n/w-0");
        before["metadata"]["uid"] = json!("v-1");
        let mut after = applied(&before);
        after["metadata"]["annotations"] = json!({(LEFT_ALONE_ANNOTATION): "v-1"});
        let expected = (Some(EARLIER.to_owned()), Some(101), mark("issued"));
        assert_eq!(facts_of(&changed(&before, &after, &pools).0), expected);
    }

    #[test]
    fn a_kept_secret_gives_no_name_to_an_interface_that_a_pool_selected_later() {
        let (mut old, mut new) = (served(EARLIER, "n/w-0"), applied(&served(EARLIER, "n/w-0")));
        for object in [&mut old, &mut new] {
            let spec = &mut object["spec"]["template"]["spec"];
            let push = |list: &mut Value, item: Value| list.as_array_mut().unwrap().push(item);
            push(&mut spec["domain"]["devices"]["interfaces"], json!({"name": "iface2", "bridge": {}}));
            push(&mut spec["networks"], json!({"name": "iface2", "multus": {"networkName": "infra/vlan20"}}));
        }
        let second = json!({"spec": {"network": "infra/vlan20", "addresses": ["10.0.1.0/24"], "interface": "eno102"}});
        let pools = [pool("p", &json!({})), pool("q", &second)];
        let named = |new: &Value| {
            let machine = read(&changed(&old, new, &pools).0);
            let indexes: Vec<Option<u32>> = machine.networks.iter().map(|it| it.acpi_index).collect();
            (machine.reference().map(str::to_owned), indexes)
        };
        assert_eq!(named(&new), (Some(EARLIER.to_owned()), vec![Some(101), None]));
        new["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!("requested");
        assert_eq!(named(&new), (Some(NAME.to_owned()), vec![Some(101), Some(102)]));
    }

    #[test]
    fn a_reference_to_the_network_data_of_another_machine_is_replaced_or_removed() {
        let pools = [pool("p", &json!({}))];
        for (secret, vm, is_copy) in [
            ("w-1-networkdata-cccccccccccccccc", "n/w-1", false),
            (EARLIER, "other/w-0", false),
            ("w-0-networkdata", "", false),
            ("w-1-networkdata", "", true),
        ] {
            let (object, warnings) = stored(&served(secret, vm), &pools, is_copy);
            assert_eq!(facts_of(&object), (Some(NAME.to_owned()), Some(101), mark("issued")), "{secret}");
            assert_eq!(object["metadata"]["annotations"], json!({(REPLACED_ANNOTATION): secret}));
            assert_eq!(warnings, [] as [String; 0]);
            let (object, warnings) = stored(&served(secret, vm), &[], is_copy);
            assert_eq!(facts_of(&object), (None, Some(101), Mark::default()), "{secret}");
            let member = "spec.template.spec.volumes.1.cloudInitConfigDrive.networkDataSecretRef";
            assert_eq!(warnings, [format!("{member}: removed, {secret:?} has the network data of another machine")]);
        }
    }

    #[test]
    fn a_controller_of_other_pools_keeps_the_reference_of_a_machine_and_removes_that_of_a_copy() {
        let none = selection(&[]).of_part(true);
        let admitted_as = |object: &Value, is_copy: bool| {
            let read = serde_json::from_value(object.clone()).unwrap();
            let new = NewMachine { object: &read, is_copy, held: &BTreeSet::new(), name: NAME };
            match admit_new(new, &none).unwrap() {
                Decision::NotSelected(allowed) => patched(object, allowed.operations),
                other => panic!("{other:?}"),
            }
        };
        let admitted = |object: &Value| admitted_as(object, false);
        let machine = served(EARLIER, "n/w-0");
        assert_eq!(admitted(&machine), machine);
        // The Secret of an earlier machine of this name exists already.
        assert_eq!(facts_of(&admitted_as(&machine, true)), (None, Some(101), Mark::default()));
        for (secret, vm) in [("w-1-networkdata-cccccccccccccccc", "n/w-1"), (EARLIER, "other/w-0")] {
            assert_eq!(facts_of(&admitted(&served(secret, vm))), (None, Some(101), Mark::default()), "{secret}");
        }
        let is_changed = |old: &Value, new: &Value| {
            let [old, new] = [old, new].map(|it| serde_json::from_value::<Object>(it.clone()).unwrap());
            admit_change(&old, &new, &none, NAME).unwrap() != Allowed::default()
        };
        // The leader of the other controller has requested the reference, or a reference to another Secret.
        assert!(!is_changed(&object(&json!({})), &machine));
        assert!(!is_changed(&machine, &served("w-0-networkdata-cccccccccccccccc", "n/w-0")));
        // A user has written a reference to the Secret of another machine, with or without its mark.
        let mut unmarked = served("w-1-networkdata-cccccccccccccccc", "n/w-1");
        unmarked["spec"]["template"]["metadata"] = json!({});
        for of_another in [unmarked, served("w-1-networkdata-cccccccccccccccc", "n/w-1")] {
            assert!(is_changed(&object(&json!({})), &of_another));
            assert!(is_changed(&machine, &of_another));
        }
        // A machine that leaves a pool of this controller loses its reference.
        let own = selection(&[pool("p", &json!({"spec": {"machineSelector": {"matchLabels": {"a": "b"}}}}))]);
        let mut before = machine.clone();
        before["metadata"]["labels"] = json!({"a": "b"});
        let [before, after] = [before, applied(&machine)].map(|it| serde_json::from_value::<Object>(it).unwrap());
        let allowed = admit_change(&before, &after, &own.of_part(true), NAME).unwrap();
        let after = patched(&applied(&machine), allowed.operations);
        assert_eq!((facts_of(&after), allowed.warnings.len()), ((None, None, Mark::default()), 1));
    }

    #[test]
    fn a_machine_that_no_pool_selects_loses_the_marks_of_another_machine() {
        let mut object = served(EARLIER, "n/w-1");
        object["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"] = json!({"userData": "x"});
        let (object, warnings) = stored(&object, &[], false);
        assert_eq!((facts_of(&object), warnings), ((None, Some(101), Mark::default()), vec![]));
    }

    #[test]
    fn a_new_machine_has_no_records_of_addresses() {
        let mut copy = object(&json!({}));
        copy["metadata"]["annotations"] = json!({
            "kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.8/16", "a": "b",
            "ipam.glowplug.dev/network-eno101": "infra/vlan10",
        });
        for pools in [&[pool("p", &json!({}))][..], &[]] {
            assert_eq!(stored(&copy, pools, false).0["metadata"]["annotations"], json!({"a": "b"}));
        }
    }

    #[test]
    fn a_machine_whose_pool_is_being_deleted_is_refused_until_another_pool_serves_its_network() {
        let being_deleted = |changes: &Value| {
            let mut all = changes.clone();
            all["metadata"]["deletionTimestamp"] = "2026-08-14T10:00:00Z".into();
            pool("p", &all)
        };
        let expected = "pool n/p is being deleted, and gives new machines no address: create a pool of another name, or create the pool again \
                        when it is gone; remove machineSelector from the pool to start machines without an address";
        let refused = Decision::Refuse(expected.to_owned());
        assert_eq!(decision(&[being_deleted(&json!({}))], &json!({})), refused);
        assert_eq!(decision(&[being_deleted(&json!({"spec": {"addresses": ["x"]}}))], &json!({})), refused);
        // The pool is on another network, or no longer selects machines.
        for changes in [json!({"spec": {"network": "infra/vlan20"}}), json!({"spec": {"machineSelector": null}})] {
            let decision = decision(&[being_deleted(&changes)], &json!({}));
            assert_eq!(decision, Decision::NotSelected(Allowed::default()), "{changes}");
        }
        let pools = [being_deleted(&json!({})), pool("q", &json!({}))];
        assert_eq!(facts_of(&stored(&object(&json!({})), &pools, false).0).0.as_deref(), Some(NAME));
    }

    #[test]
    fn a_machine_of_a_derived_pool_starts_without_an_address_when_its_node_pool_has_no_configuration() {
        let owner = json!({"apiVersion": "a", "kind": "NodePool", "name": "w", "uid": "u", "controller": true});
        let pool = pool(
            "p",
            &json!({
                "metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z", "ownerReferences": [owner]},
                "spec": {"machineSelector": null, "nodePoolRef": {"name": "w"}},
            }),
        );
        let mut machine = object(&json!({}));
        machine["metadata"]["namespace"] = "n-c1".into();
        machine["metadata"]["labels"] = json!({"hypershift.openshift.io/nodepool-name": "w"});
        let decision = |config: Value| {
            let platform = json!({"kubevirt": {"bootstrapNetworkConfig": config}});
            let node_pool = json!({
                "metadata": {"namespace": "n", "name": "w", "uid": "u"},
                "spec": {"clusterName": "c1", "platform": platform},
            });
            let selection =
                Selection::new([Arc::clone(&pool)], [Arc::new(serde_json::from_value(node_pool).unwrap())], None);
            let machine = serde_json::from_value(machine.clone()).unwrap();
            let new = NewMachine { object: &machine, is_copy: false, held: &BTreeSet::new(), name: NAME };
            admit_new(new, &selection).unwrap()
        };
        assert_eq!(decision(Value::Null), Decision::NotSelected(Allowed::default()));
        let expected = "pool n/p is being deleted, and gives new machines no address: create a pool of another name, or create the pool again \
                        when it is gone; remove bootstrapNetworkConfig from NodePool w to start machines without an address";
        assert_eq!(decision(json!({"addresses": []})), Decision::Refuse(expected.to_owned()));
    }

    #[test]
    fn an_interface_whose_name_does_not_depend_on_an_index_gets_no_index() {
        let pool = pool("p", &json!({"spec": {"interface": "ens3"}}));
        let (object, _) = stored(&object(&json!({})), &[pool], false);
        assert_eq!(facts_of(&object), (Some(NAME.to_owned()), None, mark("issued")));
    }

    #[test]
    fn an_interface_of_sr_iov_gets_no_index() {
        let interfaces = json!({"domain": {"devices": {"interfaces": [{"name": "iface1", "sriov": {}}]}}});
        let (object, _) = stored(&object(&interfaces), &[pool("p", &json!({}))], false);
        assert_eq!(facts_of(&object), (Some(NAME.to_owned()), None, mark("issued")));
    }

    #[test]
    fn a_machine_of_no_pool_is_not_selected() {
        assert_eq!(decision(&[], &json!({})), Decision::NotSelected(Allowed::default()));
    }

    #[test]
    fn a_machine_that_waits_for_a_migration_gets_no_network_data() {
        let mut receiver = served(EARLIER, "n/w-0");
        receiver["spec"]["runStrategy"] = json!("WaitAsReceiver");
        let (object, _) = stored(&receiver, &[pool("p", &json!({}))], false);
        assert_eq!(facts_of(&object), (None, Some(101), Mark::default()));
    }

    #[test]
    fn a_machine_keeps_network_data_that_a_user_wrote_and_the_webhook_warns() {
        let pools = [pool("p", &json!({}))];
        let allowed =
            |pools: &[Arc<MachinePool>], source: Value| decision(pools, &cloud_init("cloudInitConfigDrive", &source));
        let warning =
            "spec.template.spec.volumes.0.cloudInitConfigDrive: keeps its network data, and gets no address of n/p";
        let expected = Decision::Allow(Allowed { operations: vec![], warnings: vec![warning.to_owned()] });
        assert_eq!(allowed(&pools, json!({"networkData": "x"})), expected);
        assert_eq!(allowed(&pools, json!({"networkDataSecretRef": {"name": "other"}})), expected);
        assert_eq!(allowed(&pools, json!({"networkDataSecretRef": {"name": "w-1-networkdata"}})), expected);
        assert_eq!(allowed(&[], json!({"networkData": "x"})), Decision::Allow(Allowed::default()));
    }

    #[test]
    fn a_copied_machine_with_network_data_that_a_user_wrote_has_no_marks() {
        let mut copy = served("mine", "n/w-1");
        copy["metadata"]["name"] = json!("w-2");
        let (object, _) = stored(&copy, &[pool("p", &json!({}))], false);
        assert_eq!(facts_of(&object), (Some("mine".to_owned()), Some(101), Mark::default()));
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
        let message = "pools n/p and n/q both select the machine for network infra/vlan10, expected one pool, or different values of \
                       priority";
        let pools = [pool("p", &json!({})), pool("q", &json!({}))];
        assert_eq!(decision(&pools, &json!({})), Decision::Refuse(message.to_owned()));
    }

    #[test]
    fn a_machine_without_a_name_is_refused() {
        let mut object = object(&json!({}));
        object["metadata"] = json!({"namespace": "n", "generateName": "w-"});
        let message = "metadata.name: missing, expected a name instead of generateName: the controller names the Secret with the network data after the machine";
        assert_eq!(admit(&object, &[pool("p", &json!({}))], false), Decision::Refuse(message.to_owned()));
    }

    #[test]
    fn a_machine_of_an_exhausted_pool_is_refused_with_the_message_of_the_openshift_enhancement() {
        let id = PoolId { namespace: Some("n".to_owned()), name: "p".to_owned() };
        let message = "No available IPs in pool for interface eno101".to_owned();
        assert_eq!(decision(&[exhausted("p", &json!({}))], &json!({})), Decision::Exhausted(message, vec![id]));
    }

    #[test]
    fn a_machine_is_refused_only_if_its_pool_and_the_overflow_are_exhausted() {
        let second = json!({"spec": {"priority": 1}});
        let id = |name: &str| PoolId { namespace: Some("n".to_owned()), name: name.to_owned() };
        let full = || exhausted("p", &json!({}));
        assert!(matches!(decision(&[full(), pool("q", &second)], &json!({})), Decision::Allow(_)));
        assert!(matches!(decision(&[pool("p", &json!({})), exhausted("q", &second)], &json!({})), Decision::Allow(_)));
        let message = "No available IPs in pool for interface eno101; No available IPs in pool for interface eno101";
        let refused = Decision::Exhausted(message.to_owned(), vec![id("p"), id("q")]);
        assert_eq!(decision(&[full(), exhausted("q", &second)], &json!({})), refused);
        let kept = json!({"spec": {"priority": 1, "preAllocations": {"w-0": "10.0.0.9"}}});
        assert!(matches!(decision(&[full(), exhausted("q", &kept)], &json!({})), Decision::Allow(_)));
    }

    #[test]
    fn a_machine_for_which_an_exhausted_pool_keeps_an_address_is_created() {
        let keeping = |name: &str| exhausted("p", &json!({"spec": {"preAllocations": {(name): "10.0.0.9"}}}));
        for name in ["w-0", "n/w-0"] {
            assert!(matches!(decision(&[keeping(name)], &json!({})), Decision::Allow(_)), "{name}");
        }
        assert!(matches!(decision(&[keeping("other/w-0")], &json!({})), Decision::Exhausted(..)));
        // If its KubevirtMachine is in another cluster, the VirtualMachine claims the address.
        let label = json!({"metadata": {"labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "infra"}}});
        assert!(matches!(decision(&[keeping("n/w-0")], &label), Decision::Allow(_)));
    }

    #[test]
    fn a_machine_that_capk_does_not_manage_is_created_and_waits_while_its_pool_is_exhausted() {
        let mut object = object(&json!({}));
        object["metadata"]["labels"] = Value::Null;
        let (object, _) = stored(&object, &[exhausted("p", &json!({}))], false);
        assert_eq!(facts_of(&object).0.as_deref(), Some(NAME));
    }

    #[test]
    fn a_machine_that_holds_an_address_is_admitted_although_its_pool_is_exhausted() {
        let object = serde_json::from_value(object(&json!({}))).unwrap();
        let decision = |network: &str| {
            let held = BTreeSet::from([network.to_owned()]);
            let new = NewMachine { object: &object, is_copy: false, held: &held, name: NAME };
            admit_new(new, &selection(&[exhausted("p", &json!({}))])).unwrap()
        };
        assert!(matches!(decision("infra/vlan10"), Decision::Allow(allowed) if allowed.operations.len() == 4));
        assert!(matches!(decision("infra/vlan20"), Decision::Exhausted(..)));
    }

    /// Returns the machine as it is stored after a change, and the warnings.
    fn changed(old: &Value, new: &Value, pools: &[Arc<MachinePool>]) -> (Value, Vec<String>) {
        let [old_object, new_object] = [old, new].map(|it| serde_json::from_value::<Object>(it.clone()).unwrap());
        let Allowed { operations, warnings } = admit_change(&old_object, &new_object, &selection(pools), NAME).unwrap();
        (patched(new, operations), warnings)
    }

    /// Returns the machine after a user has applied the manifest again. The apply replaces the lists of volumes and
    /// interfaces, and keeps the marks.
    fn applied(old: &Value) -> Value {
        let (mut new, manifest) = (old.clone(), object(&json!({})));
        for list in ["/spec/template/spec/volumes", "/spec/template/spec/domain/devices/interfaces"] {
            *new.pointer_mut(list).unwrap() = manifest.pointer(list).unwrap().clone();
        }
        new
    }

    #[test]
    fn the_webhook_restores_a_reference_and_an_index_that_an_apply_removes() {
        let old = served(EARLIER, "n/w-0");
        let expected = (Some(EARLIER.to_owned()), Some(101), mark("issued"));
        let pools = [pool("p", &json!({}))];
        assert_eq!(facts_of(&changed(&old, &applied(&old), &pools).0), expected);
        // A request that replaces the object also removes the marks.
        let mut replaced = applied(&old);
        replaced["spec"]["template"]["metadata"] = Value::Null;
        assert_eq!(facts_of(&changed(&old, &replaced, &pools).0), expected);
        // The reference is also restored while two pools select the machine.
        let both = [pool("p", &json!({})), pool("q", &json!({}))];
        assert_eq!(facts_of(&changed(&old, &applied(&old), &both).0).0.as_deref(), Some(EARLIER));
        // A machine that version 0.2.0 served keeps the name of its Secret.
        let old = served("w-0-networkdata", "n/w-0");
        assert_eq!(facts_of(&changed(&old, &applied(&old), &pools).0).0.as_deref(), Some("w-0-networkdata"));
    }

    #[test]
    fn the_restored_members_are_found_by_the_names_of_their_volume_and_interface() {
        let old = served(EARLIER, "n/w-0");
        let mut new = applied(&old);
        let spec = &mut new["spec"]["template"]["spec"];
        spec["volumes"].as_array_mut().unwrap().reverse();
        spec["domain"]["devices"]["interfaces"] = json!([{"name": "default", "masquerade": {}}, {"name": "iface1"}]);
        spec["networks"].as_array_mut().unwrap().push(json!({"name": "default", "pod": {}}));
        let (new, _) = changed(&old, &new, &[pool("p", &json!({}))]);
        let spec = &new["spec"]["template"]["spec"];
        assert_eq!(spec["volumes"][0]["cloudInitConfigDrive"]["networkDataSecretRef"]["name"], EARLIER);
        let interfaces = json!([{"name": "default", "masquerade": {}}, {"name": "iface1", "acpiIndex": 101}]);
        assert_eq!(spec["domain"]["devices"]["interfaces"], interfaces);
    }

    #[test]
    fn the_webhook_restores_a_removed_mac_address_only_if_it_is_from_a_mac_pool() {
        let mut old = served(EARLIER, "n/w-0");
        let address = "02:00:00:00:00:01";
        old["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(address);
        let mac = |object: &Value| {
            object["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"].clone()
        };
        let pools = [pool("p", &json!({}))];
        assert_eq!(mac(&changed(&old, &applied(&old), &pools).0), Value::Null);
        old["spec"]["template"]["metadata"]["labels"]["ipam.glowplug.dev/mac-addresses"] = json!("required");
        assert_eq!(mac(&changed(&old, &applied(&old), &pools).0), address);
    }

    #[test]
    fn the_webhook_restores_the_mac_addresses_and_the_label_of_a_machine_without_network_data_of_the_controller() {
        let label = json!({"labels": {(MAC_ADDRESSES_LABEL): "required"}});
        let interface = |name: &str, address: &str| json!({"name": name, "macAddress": address});
        let vm = |metadata: &Value, interfaces: Value, volumes: &Value| {
            let mut vm = object(&json!({"domain": {"devices": {"interfaces": interfaces}}, "volumes": volumes}));
            vm["spec"]["template"]["metadata"] = metadata.clone();
            vm
        };
        let stored = json!([interface("iface1", "02:00:00:00:00:01"), interface("b", "02:00:00:00:00:02")]);
        let (applied, pools) = (json!([interface("iface1", ""), {"name": "b"}]), [pool("p", &json!({}))]);
        let own = json!([{"name": "x", "cloudInitNoCloud": {"networkData": "version: 2"}}]);
        let without = json!([{"name": "x", "containerDisk": {"image": "x"}}]);
        let drive = json!([{"name": "x", "cloudInitNoCloud": {"userData": "x"}}]);
        for (volumes, pools) in [(&own, &pools[..]), (&without, &pools[..]), (&drive, &[])] {
            let old = vm(&label, stored.clone(), volumes);
            for metadata in [&label, &Value::Null] {
                assert_eq!(changed(&old, &vm(metadata, applied.clone(), volumes), pools).0, old, "{volumes}");
            }
        }
        let old = vm(&label, stored.clone(), &drive);
        // Interface `iface1` now has the address that `b` had.
        let moved = vm(&label, json!([interface("iface1", "0200.0000.0002"), {"name": "b"}]), &drive);
        assert_eq!(changed(&old, &moved, &[]).0, moved);
        // The user removes only the label.
        let without_label = vm(&json!({}), stored, &drive);
        assert_eq!(changed(&old, &without_label, &[]).0, without_label);
    }

    #[test]
    fn the_webhook_writes_the_mac_addresses_that_the_leader_assigns() {
        let mut old = object(&json!({}));
        old["spec"]["template"]["metadata"] = json!({"labels": {"ipam.glowplug.dev/mac-addresses": "required"}});
        let asks = |assigned: &str| {
            let mut new = old.clone();
            new["spec"]["template"]["metadata"]["annotations"] = json!({(ASSIGNED_ANNOTATION): assigned});
            changed(&old, &new, &[]).0
        };
        let mut expected = old.clone();
        expected["spec"]["template"]["metadata"]["annotations"] = json!({});
        for assigned in ["x", r#"{"iface1": "x"}"#, r#"{"iface2": "02:00:00:00:00:01"}"#, "{\"iface1\": 1}"] {
            assert_eq!(asks(assigned), expected, "{assigned}");
        }
        expected["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] =
            json!("02:00:00:00:00:01");
        assert_eq!(asks(r#"{"iface1": "02:00:00:00:00:01"}"#), expected);
    }

    #[test]
    fn without_a_pool_a_removed_reference_is_not_restored_and_the_webhook_warns() {
        let old = served(EARLIER, "n/w-0");
        let expected = "spec.template.spec.volumes.1.cloudInitConfigDrive: no pool selects the machine any more, so its reference to \
                        network data is removed; the guest has no network data after its next start";
        let (new, warnings) = changed(&old, &applied(&old), &[]);
        assert_eq!((facts_of(&new), warnings), ((None, None, Mark::default()), vec![expected.to_owned()]));
        // The user also removes the volume, or the machine receives a guest that has network data of its own.
        let mut without = applied(&old);
        without["spec"]["template"]["spec"]["volumes"] = json!([]);
        let mut receiver = applied(&old);
        receiver["spec"]["runStrategy"] = json!("WaitAsReceiver");
        for new in [without, receiver] {
            let (new, warnings) = changed(&old, &new, &[]);
            assert_eq!((facts_of(&new), warnings), ((None, None, Mark::default()), vec![]));
        }
    }

    #[test]
    fn a_machine_keeps_its_network_data_while_its_pool_is_being_deleted() {
        let ending = |changes: &Value| {
            let mut all = changes.clone();
            all["metadata"]["deletionTimestamp"] = "2026-08-14T10:00:00Z".into();
            [pool("p", &all)]
        };
        let (old, pools) = (served(EARLIER, "n/w-0"), ending(&json!({})));
        let expected = ((Some(EARLIER.to_owned()), Some(101), mark("issued")), vec![]);
        let after = |old: &Value, new: &Value, pools: &[Arc<MachinePool>]| {
            let (new, warnings) = changed(old, new, pools);
            (facts_of(&new), warnings)
        };
        assert_eq!(after(&old, &applied(&old), &pools), expected);
        let mut replaced = applied(&old);
        replaced["spec"]["template"]["metadata"] = Value::Null;
        assert_eq!(after(&old, &replaced, &pools), expected);
        let mut other = applied(&old);
        other["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 4});
        assert_eq!(after(&old, &other, &pools), expected);
        let of_0_2_0 = served("w-0-networkdata", "n/w-0");
        assert_eq!(after(&of_0_2_0, &applied(&of_0_2_0), &pools).0.0.as_deref(), Some("w-0-networkdata"));
        // A further pool on another network changes nothing.
        let both =
            [pools[0].clone(), pool("q", &json!({"spec": {"network": "infra/vlan20", "machineSelector": null}}))];
        assert_eq!(after(&old, &applied(&old), &both), expected);
        // The pool is invalid now, so the name of the interface is unknown.
        let invalid = ending(&json!({"spec": {"addresses": ["x"]}}));
        assert_eq!(after(&old, &applied(&old), &invalid).0, (Some(EARLIER.to_owned()), None, mark("issued")));
        // Without a volume, the marks stay, so the instance does not start.
        let mut without = applied(&old);
        without["spec"]["template"]["spec"]["volumes"] = json!([]);
        assert_eq!(after(&old, &without, &pools), ((None, None, mark("issued")), vec![]));
    }

    #[test]
    fn an_interface_that_moves_to_another_network_never_keeps_the_network_data_of_its_earlier_network() {
        let old = served(EARLIER, "n/w-0");
        let moved = |object: Value| {
            let mut object = object;
            object["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"] = "infra/vlan99".into();
            object
        };
        let ending = [pool("p", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}))];
        for new in [moved(old.clone()), moved(applied(&old))] {
            assert_eq!(facts_of(&changed(&old, &new, &ending).0).0, None, "its pool is being deleted");
            // The pool selects the machine, but the machine has no interface on the network of the pool. The Secret in
            // the new reference does not exist, so the instance waits.
            let live = [pool("p", &json!({}))];
            assert_eq!(facts_of(&changed(&old, &new, &live).0).0.as_deref(), Some(NAME));
        }
    }

    #[test]
    fn an_interface_with_another_name_never_keeps_the_network_data_of_its_earlier_network() {
        let (old, live) = (served(EARLIER, "n/w-0"), [pool("p", &json!({}))]);
        let on = |mac: &str, interfaces: &[(&str, u32, &str)]| {
            let mut object = old.clone();
            let interface = |(name, index, _): &(&str, u32, &str)| json!({"name": name, "acpiIndex": index});
            let network =
                |(name, _, network): &(&str, u32, &str)| json!({"name": name, "multus": {"networkName": network}});
            let spec = &mut object["spec"]["template"]["spec"];
            spec["domain"]["devices"]["interfaces"] = interfaces.iter().map(interface).collect();
            spec["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(mac);
            spec["networks"] = interfaces.iter().map(network).collect();
            object
        };
        let old = on("02:00:00:00:00:01", &[("iface1", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")]);
        let secret = |new: &Value, pools: &[Arc<MachinePool>]| facts_of(&changed(&old, new, pools).0).0;
        // The pools after the change: the pool has no interface of the machine, is gone, has errors, or contradicts
        // another pool.
        let invalid = [pool("p", &json!({"spec": {"addresses": ["x"]}}))];
        let both = [pool("p", &json!({})), pool("q", &json!({}))];
        let renamed = [("iface3", 103, "infra/vlan99"), ("iface2", 102, "infra/vlan20")];
        // The names and the networks are exchanged, and the index or the MAC address stays.
        let same_index = [("iface3", 101, "infra/vlan20"), ("iface4", 102, "infra/vlan10")];
        let same_mac = [("iface3", 103, "infra/vlan20"), ("iface4", 104, "infra/vlan10")];
        for new in [
            on("02:00:00:00:00:02", &renamed),
            on("02:00:00:00:00:02", &same_index),
            on("02:00:00:00:00:01", &same_mac),
        ] {
            for pools in [&live[..], &invalid, &both] {
                assert_eq!(secret(&new, pools).as_deref(), Some(NAME), "{new}");
            }
            assert_eq!(secret(&new, &[]), None, "{new}");
        }
        // The interface has another name on the same network.
        let kept = [("iface3", 101, "infra/vlan10"), ("iface2", 102, "infra/vlan20")];
        for pools in [&live[..], &invalid, &both, &[]] {
            assert_eq!(secret(&on("02:00:00:00:00:01", &kept), pools).as_deref(), Some(EARLIER));
        }
        // An interface is gone, and the machine has no interface on a new network.
        let gone = [("iface1", 101, "infra/vlan10")];
        let ending = [pool("p", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}))];
        for pools in [&live[..], &invalid, &both, &ending, &[]] {
            assert_eq!(secret(&on("02:00:00:00:00:01", &gone), pools).as_deref(), Some(EARLIER));
        }
        // An interface without an address moves while the pool of the other interface is being deleted.
        let other = [("iface1", 101, "infra/vlan10"), ("iface3", 103, "infra/vlan99")];
        assert_eq!(secret(&on("02:00:00:00:00:01", &other), &ending).as_deref(), Some(EARLIER));
    }

    #[test]
    fn two_interfaces_with_one_mac_address_do_not_move_when_another_member_changes() {
        let live = [pool("p", &json!({}))];
        let mut old = served(EARLIER, "n/w-0");
        let spec = &mut old["spec"]["template"]["spec"];
        let interface = |name: &str| json!({"name": name, "acpiIndex": 101, "macAddress": "02:00:00:00:00:01"});
        spec["domain"]["devices"]["interfaces"] =
            json!([interface("iface1"), {"name": "b", "macAddress": "02:00:00:00:00:01"}]);
        let network = |name: &str, network: &str| json!({"name": name, "multus": {"networkName": network}});
        spec["networks"] = json!([network("iface1", "infra/vlan10"), network("b", "infra/vlan20")]);
        let mut new = old.clone();
        new["spec"]["template"]["metadata"]["labels"]["other"] = json!("label");
        assert_eq!(facts_of(&changed(&old, &new, &live).0).0.as_deref(), Some(EARLIER));
    }

    #[test]
    fn the_leader_can_request_another_reference_while_the_choice_of_pools_is_ambiguous() {
        let (old, both) = (served(EARLIER, "n/w-0"), [pool("p", &json!({})), pool("q", &json!({}))]);
        let mut asks = old.clone();
        asks["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!("requested-5");
        let expected = (Some(NAME.to_owned()), Some(101), mark("renewed-aaaaaaaaaaaaaaaa"));
        assert_eq!(facts_of(&changed(&old, &asks, &both).0), expected);
    }

    #[test]
    fn the_leader_can_remove_a_reference_while_a_pool_of_another_network_is_being_deleted() {
        let mut old = served(EARLIER, "n/w-0");
        old["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"] = "infra/vlan99".into();
        let mut new = old.clone();
        let volume = &mut new["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"];
        volume.as_object_mut().unwrap().remove("networkDataSecretRef").unwrap();
        let ending = [pool("p", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}))];
        assert_eq!(facts_of(&changed(&old, &new, &ending).0), (None, Some(101), Mark::default()));
    }

    #[test]
    fn a_pool_that_is_being_deleted_gives_a_machine_no_new_network_data() {
        let pools = [pool("p", &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}}))];
        let (old, none) = (object(&json!({})), (None, None, Mark::default()));
        let mut asks = old.clone();
        let marks = json!({"labels": {(NETWORK_DATA_LABEL): "requested-5"}, "annotations": {(VM_ANNOTATION): "n/w-0"}});
        asks["spec"]["template"]["metadata"] = marks;
        assert_eq!(facts_of(&changed(&old, &asks, &pools).0), none);
        let named = served(EARLIER, "n/w-0");
        assert_eq!(facts_of(&changed(&old, &named, &pools).0), (None, Some(101), Mark::default()));
        // A copy refers to the Secret of another machine.
        let copy = served("w-1-networkdata-cccccccccccccccc", "n/w-1");
        assert_eq!(facts_of(&changed(&copy, &applied(&copy), &pools).0), none);
        // The label asks for another name, which only a pool can give.
        let (old, mut asks) = (served(EARLIER, "n/w-0"), served(EARLIER, "n/w-0"));
        asks["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!("requested-5");
        assert_eq!(facts_of(&changed(&old, &asks, &pools).0), (Some(EARLIER.to_owned()), Some(101), mark("issued")));
        // The pool no longer refers to the machine.
        let pools = [pool(
            "p",
            &json!({"metadata": {"deletionTimestamp": "2026-08-14T10:00:00Z"}, "spec": {"machineSelector": null}}),
        )];
        assert_eq!(facts_of(&changed(&old, &applied(&old), &pools).0), none);
    }

    #[test]
    fn a_change_to_another_secret_of_the_controller_is_replaced_by_the_earlier_reference() {
        let old = served(EARLIER, "n/w-0");
        for other in ["w-0-networkdata", "w-1-networkdata-cccccccccccccccc"] {
            for pools in [&[pool("p", &json!({}))][..], &[]] {
                let (new, _) = changed(&old, &served(other, "n/w-1"), pools);
                assert_eq!(facts_of(&new), (Some(EARLIER.to_owned()), Some(101), mark("issued")), "{other}");
            }
        }
    }

    #[test]
    fn a_machine_without_a_reference_cannot_choose_a_secret_of_the_controller() {
        let (old, new) = (object(&json!({})), served(EARLIER, "n/w-1"));
        let expected = (Some(NAME.to_owned()), Some(101), mark("issued"));
        assert_eq!(facts_of(&changed(&old, &new, &[pool("p", &json!({}))]).0), expected);
        assert_eq!(facts_of(&changed(&old, &new, &[]).0), (None, Some(101), Mark::default()));
    }

    #[test]
    fn network_data_that_a_user_writes_replaces_the_reference_and_the_webhook_warns() {
        let old = served(EARLIER, "n/w-0");
        let mut new = old.clone();
        new["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"] = json!({"networkData": "x"});
        let (new, warnings) = changed(&old, &new, &[pool("p", &json!({}))]);
        assert_eq!(facts_of(&new), (None, Some(101), Mark::default()));
        let member = "spec.template.spec.volumes.1.cloudInitConfigDrive";
        assert_eq!(warnings, [format!("{member}: replaces the network data that contains the address of the machine")]);
    }

    #[test]
    fn a_change_that_affects_the_network_data_gives_the_secret_a_new_name() {
        let with_mac = |address: &str| {
            let mut object = served(EARLIER, "n/w-0");
            object["metadata"]["labels"]["zone"] = json!("vlan10");
            object["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = json!(address);
            object
        };
        let old = with_mac("02:00:00:00:00:01");
        let of_zone = |zone: &str| json!({"machineSelector": {"matchLabels": {"zone": zone}}, "network": format!("infra/{zone}")});
        let pools = ["vlan10", "vlan20"].map(|zone| pool(zone, &json!({"spec": of_zone(zone)})));
        let secret = |new: &Value| facts_of(&changed(&old, new, &pools).0).0.unwrap();
        assert_eq!(secret(&with_mac("02:00:00:00:00:02")), NAME);
        let mut moved = old.clone();
        moved["spec"]["template"]["spec"]["networks"][0]["multus"]["networkName"] = json!("infra/vlan20");
        moved["metadata"]["labels"]["zone"] = json!("vlan20");
        assert_eq!(secret(&moved), NAME);
        let mut no_cloud = old.clone();
        let source = no_cloud["spec"]["template"]["spec"]["volumes"][1]["cloudInitConfigDrive"].take();
        no_cloud["spec"]["template"]["spec"]["volumes"][1] =
            json!({"name": "cloudinitvolume", "cloudInitNoCloud": source});
        assert_eq!(secret(&no_cloud), NAME);
        let mut requested = old.clone();
        for label in ["requested", "requested-5"] {
            requested["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!(label);
            assert_eq!(secret(&requested), NAME);
        }
        // The network data does not change: the MAC address is missing or has another notation, or another member
        // changes.
        for mac in ["", "02-00-00-00-00-01"] {
            assert_eq!(secret(&with_mac(mac)), EARLIER, "{mac:?}");
        }
        let mut other = old.clone();
        other["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 4});
        assert_eq!(changed(&old, &other, &pools), (other.clone(), vec![]));
    }

    #[test]
    fn the_webhook_adds_a_reference_when_the_leader_sets_the_label() {
        let (old, pools) = (object(&json!({})), [pool("p", &json!({}))]);
        let mut new = old.clone();
        let marks = json!({"labels": {(NETWORK_DATA_LABEL): "requested-5"}, "annotations": {(VM_ANNOTATION): "n/w-0"}});
        new["spec"]["template"]["metadata"] = marks;
        let expected = (Some(NAME.to_owned()), Some(101), mark("renewed-aaaaaaaaaaaaaaaa"));
        let (once, _) = changed(&old, &new, &pools);
        assert_eq!(facts_of(&once), expected);
        assert_eq!(facts_of(&changed(&old, &once, &pools).0), expected, "a second call for the same change");
        assert_eq!(facts_of(&changed(&old, &new, &[]).0), (None, None, Mark::default()));
        // The same is true for a machine that already has a reference.
        let (served, mut asks) = (served(EARLIER, "n/w-0"), served(EARLIER, "n/w-0"));
        asks["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!("requested-5");
        let (once, _) = changed(&served, &asks, &pools);
        assert_eq!(facts_of(&once), expected);
        assert_eq!(facts_of(&changed(&served, &once, &pools).0), expected, "a second call for the same change");
        // Afterwards, the leader writes the usual value of the label.
        let mut settled = once.clone();
        settled["spec"]["template"]["metadata"]["labels"][NETWORK_DATA_LABEL] = json!(ISSUED);
        assert_eq!(changed(&once, &settled, &pools), (settled.clone(), vec![]));
        // Without the label, the webhook adds no reference. The leader decides later whether the machine gets network
        // data.
        let mut other = old.clone();
        other["spec"]["template"]["spec"]["domain"]["cpu"] = json!({"cores": 4});
        assert_eq!(changed(&old, &other, &pools), (other.clone(), vec![]));
    }

    #[test]
    fn the_webhook_changes_nothing_if_only_other_members_change_or_the_machine_is_being_deleted() {
        let (old, pools) = (served(EARLIER, "n/w-0"), [pool("p", &json!({}))]);
        let mut started = old.clone();
        started["spec"]["runStrategy"] = json!("Always");
        assert_eq!(changed(&old, &started, &pools), (started.clone(), vec![]));
        let mut deleted = applied(&old);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-08-14T10:00:00Z");
        assert_eq!(changed(&old, &deleted, &pools), (deleted.clone(), vec![]));
    }

    /// Returns an instance in the form in which KubeVirt creates it from the template of a machine.
    fn instance_of(machine: &Value) -> Object {
        let template = &machine["spec"]["template"];
        let (labels, annotations) = (&template["metadata"]["labels"], &template["metadata"]["annotations"]);
        let metadata = json!({"name": "w-0", "namespace": "n", "labels": labels, "annotations": annotations});
        serde_json::from_value(json!({"metadata": metadata, "spec": template["spec"]})).unwrap()
    }

    #[test]
    fn an_instance_with_its_own_network_data_starts() {
        let served = served(EARLIER, "n/w-0");
        assert_eq!(check_instance(&instance_of(&served), "n"), [] as [String; 0]);
        assert_eq!(check_instance(&instance_of(&object(&json!({}))), "n"), [] as [String; 0]);
    }

    #[test]
    fn an_instance_without_network_data_does_not_start() {
        let expected = "spec.volumes: no network data, expected networkDataSecretRef: the controller adds it to \
                        VirtualMachine n/w-0";
        let old = served(EARLIER, "n/w-0");
        assert_eq!(check_instance(&instance_of(&applied(&old)), "n"), [expected]);
        let mut without = old;
        without["spec"]["template"]["spec"]["volumes"] = json!([]);
        assert_eq!(check_instance(&instance_of(&without), "n"), [expected]);
    }

    #[test]
    fn an_instance_with_the_network_data_of_another_machine_does_not_start() {
        let copy = instance_of(&served(EARLIER, "n/w-1"));
        let expected = format!(
            "metadata.annotations[{VM_ANNOTATION}]: \"n/w-1\", expected \"n/w-0\": the machine is a copy; remove the annotation, \
             the label {NETWORK_DATA_LABEL}, and the reference to {EARLIER:?} from spec.template of the VirtualMachine"
        );
        assert_eq!(check_instance(&copy, "n"), [expected]);
        let other = "spec.volumes: network data in Secret \"w-1-networkdata-cccccccccccccccc\" of another machine, expected that of \
                     VirtualMachine n/w-0: remove networkDataSecretRef from spec.template of the VirtualMachine";
        assert_eq!(check_instance(&instance_of(&served("w-1-networkdata-cccccccccccccccc", "n/w-0")), "n"), [other]);
        let restored = check_instance(&instance_of(&served(EARLIER, "n/w-0")), "m");
        assert!(restored[0].contains("\"n/w-0\", expected \"m/w-0\""), "{restored:?}");
    }

    #[test]
    fn the_webhook_leaves_its_own_result_for_a_machine_with_any_content_unchanged() {
        let pools = [pool("p", &json!({}))];
        let addresses = json!({"annotations": {"network.kubevirt.io/addresses": r#"{"iface1": ["10.0.0.8/24"]}"#}});
        let mut valid = object(&json!({}));
        valid["spec"]["template"]["metadata"] = addresses;
        let mut allowed = 0;
        crate::variants::each_object(&valid, |object| {
            let object = serde_json::to_value(object).unwrap();
            let Decision::Allow(Allowed { operations, .. }) = admit(&object, &pools, false) else { return };
            let stored = patched(&object, operations);
            if facts_of(&stored).0.as_deref() != Some(NAME) {
                return;
            }
            allowed += 1;
            assert_eq!(admit(&stored, &pools, false), Decision::Allow(Allowed::default()), "{stored}");
            let again = changed(&object, &stored, &pools);
            assert_eq!(facts_of(&again.0).0.as_deref(), Some(NAME), "{stored}");
        });
        assert!(allowed > 50, "{allowed}");
    }

    #[test]
    fn after_any_change_a_machine_refers_to_its_own_secret_or_to_no_secret_of_the_controller() {
        let (old, pools) = (served(EARLIER, "n/w-0"), [pool("p", &json!({}))]);
        let mut kept = 0;
        crate::variants::each_object(&old, |object| {
            let new = serde_json::to_value(object).unwrap();
            let (stored, _) = changed(&old, &new, &pools);
            let machine = read(&stored);
            if let Some(secret) = machine.secret() {
                assert!([EARLIER, NAME].contains(&secret), "{stored}");
                kept += 1;
            }
        });
        assert!(kept > 50, "{kept}");
    }
}
