//! Decides which KubevirtMachine a VirtualMachine belongs to, by the labels of the VirtualMachine.
//!
//! Every user with the right to write objects of one namespace can name any machine of another namespace in these
//! labels. So the labels count only if the KubevirtMachine confirms them: its template names the namespace of the
//! VirtualMachine, and the VirtualMachine has the name of the KubevirtMachine, as capk creates it. Without a
//! confirmation, a VirtualMachine stands for itself. Its labels then have one effect: the machine that they name does
//! not count as missing, so it keeps its addresses.

use std::collections::HashMap;

use super::object::{Object, ObjectKind};

/// Namespace and name of an object.
pub(super) type Name<'o> = (&'o str, &'o str);

/// The KubevirtMachines of the lists, each with the namespace that [`Object::vm_namespace`] has.
pub(super) struct Labels<'o>(HashMap<Name<'o>, Option<&'o str>>);

// === impl Labels ===

impl<'o> Labels<'o> {
    pub(super) fn of(objects: &'o [Object]) -> Self {
        let mut vms = HashMap::new();
        for machine in objects.iter().filter(|object| object.kind == ObjectKind::Machine) {
            let vm = machine.vm_namespace.as_deref();
            // Two KubevirtMachines of one name appear if the lists were fetched at different times.
            let differ = |known: &mut Option<&str>| *known = known.filter(|known| Some(*known) == vm);
            vms.entry((machine.namespace.as_str(), machine.name.as_str())).and_modify(differ).or_insert(vm);
        }
        Self(vms)
    }

    /// Returns the machine of a VirtualMachine, or of an instance of a VirtualMachine, with this namespace and name.
    pub(super) fn machine(&self, object: &'o Object, vm: Name<'o>) -> Name<'o> {
        let is_confirmed = |named: &Name<'_>| named.1 == vm.1 && self.0.get(named) == Some(&Some(vm.0));
        object.labelled().filter(is_confirmed).unwrap_or(vm)
    }

    /// Whether a machine may have a VirtualMachine that it does not confirm: the machine is not in the lists, or does
    /// not say where its VirtualMachine is.
    pub(super) fn may_have_another(&self, machine: Name<'_>) -> bool {
        !matches!(self.0.get(&machine), Some(Some(_)))
    }
}
