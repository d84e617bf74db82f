//! Decides which network data a leader must know before it opens new addresses. As soon as an address is open, a
//! waiting machine gets it, and the passes of machines begin only later. The decisions are pure, like those of
//! [`super::decision`].
//!
//! | network data | effect |
//! |---|---|
//! | a Secret of the controller that no lease names | its addresses become leases of its machine |
//! | a Secret with such a name that a user has written or replaced | its addresses are reserved |
//! | a Secret of the controller to which a user has added addresses | the added addresses are reserved |
//! | a Secret of the controller whose guest KubeVirt has moved to another network | its addresses are reserved on this network, too |
//! | data of a user, in a Secret or in the object itself | its addresses are reserved |
//!
//! Both the VirtualMachine and its instance count: a guest keeps the data with which it was started, although the
//! template has changed or the VirtualMachine is gone. The earlier content of a Secret that a user has changed is not
//! known.

use std::collections::BTreeSet;

use glowplug::network::InterfaceName;

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::{Instance, NetworkSecret, OwnSecret, is_deleted, uid};
use crate::kinds::network_data::{is_issued, is_issued_for};
use crate::kinds::virtual_machine::{NetworkData, VirtualMachine};
use crate::machines::known_machines::other_networks;
use crate::machines::step::Step;
use crate::machines::view::{Chosen, View};
use crate::pools::reference::networks_after_move;
use crate::pools::selection::{Selected, Selection};

/// Returns the name of the Secret to which a VirtualMachine refers. `None`: the VirtualMachine refers to no Secret of
/// the controller, or it is a copy and refers to the Secret of another machine. The webhook or the leader replaces such
/// a reference.
fn secret_of_template(vm: Option<&VirtualMachine>) -> Option<&str> {
    let vm = vm?;
    let is_copied =
        |name: &str| is_issued(name) && vm.metadata.name.as_ref().is_some_and(|vm| !is_issued_for(name, vm));
    vm.secret().filter(|name| !is_copied(name))
}

/// Returns the name of the Secret that the guest of a machine reads, if the Secret may have an address without a lease.
/// Such a name has the form of a name of the controller.
///
/// `leased_on` returns the interfaces of the leases of the machine that name a Secret, each with the network of its
/// lease. A lease has the name before the controller writes the Secret, so the addresses of such a Secret are held on
/// these networks. A leader reads the Secret nevertheless in these cases:
///
/// - An interface of the guest may be on another network than its lease, and have its address there.
/// - The template does not refer to it. The leader replaces the reference to a Secret that a user has changed, so this
///   Secret may have other addresses than its leases.
/// - The VirtualMachine is being deleted. Its pass does not look at the Secret of the template, and the guest may run
///   for some time.
pub(super) fn unread_secret_of_guest<'o>(
    (vm, instance): (Option<&VirtualMachine>, Option<&'o Instance>),
    selected: &[Selected],
    leased_on: impl Fn(&str) -> BTreeSet<(InterfaceName, String)>,
) -> Option<&'o str> {
    let guest = instance.filter(|instance| !instance.has_ended)?;
    let template = vm.filter(|vm| !is_deleted(&vm.metadata));
    let is_held = |name: &str| {
        let leased_on = leased_on(name);
        // Only the Secret shows which interfaces of the guest have come to their networks.
        let stays = |(interface, network): &(InterfaceName, String)| {
            networks_after_move(&guest.attachments, (*interface, network), selected, |_| true).is_empty()
        };
        !leased_on.is_empty() && leased_on.iter().all(stays)
    };
    guest.secret().filter(|name| secret_of_template(template) != Some(name) || !is_held(name))
}

/// Returns the names of a machine's Secrets that may have an address without a lease: the Secret of its guest, see
/// [`unread_secret_of_guest`], and the Secret of its template.
pub(super) fn unread_secrets<'o>(
    (vm, instance): (Option<&'o VirtualMachine>, Option<&'o Instance>),
    selected: &[Selected],
    leased_on: impl Fn(&str) -> BTreeSet<(InterfaceName, String)>,
) -> Vec<&'o str> {
    let guest = instance.filter(|instance| !instance.has_ended).and_then(Instance::secret);
    let of_template = secret_of_template(vm).filter(|name| guest != Some(name) && leased_on(name).is_empty());
    unread_secret_of_guest((vm, instance), selected, leased_on).into_iter().chain(of_template).collect()
}

/// Whether a VirtualMachine or its instance has network data that the controller has not written.
pub(super) fn has_data_of_user(vm: Option<&VirtualMachine>, instance: Option<&Instance>) -> bool {
    let template = vm.is_some_and(|vm| {
        let has_data = vm.cloud_init.as_ref().is_some_and(|volume| volume.network_data != NetworkData::None);
        has_data && vm.secret().is_none()
    });
    let guest = instance.filter(|instance| !instance.has_ended);
    template || guest.is_some_and(|it| it.network_data != NetworkData::None && it.secret().is_none())
}

/// Returns the pools that select a machine, and the other networks on which its network data can reserve addresses.
/// `None`: its network data reserves no address.
///
/// `is_holding` says whether an object in the namespace of the machine holds an address or has a record of one. If not,
/// and if the records of the namespace do not count on a network, its network data reserves nothing there. The machines
/// of such a namespace must not delay each growth.
pub(super) fn reach(
    key: &Key,
    (vm, instance): (Option<&VirtualMachine>, Option<&Instance>),
    selection: &Selection,
    is_holding: bool,
) -> Option<(Chosen, BTreeSet<String>)> {
    let chosen = vm.map_or(Ok(Vec::new()), |vm| selection.of(vm).map_err(|problem| problem.to_string()));
    let mut networks = other_networks((vm, instance), selection, chosen.as_deref().unwrap_or_default());
    networks.retain(|network| is_holding || selection.has_records_of(&key.namespace, network));
    let is_unserved = chosen.as_ref().is_ok_and(Vec::is_empty) && networks.is_empty();
    (!is_unserved).then_some((chosen, networks))
}

// === impl View ===

impl View {
    /// Returns the next step that reads the Secrets of [`unread_secrets`], adopts their addresses, or reserves the
    /// addresses that a user has written. `None`: nothing is left to do, or another controller serves the machine.
    pub(super) fn adopt_secrets(&self) -> Option<Step> {
        let (objects, selected) = ((self.vm.as_ref(), self.instance.as_ref()), self.selected.as_deref());
        self.adopt_each(unread_secrets(objects, selected.unwrap_or_default(), |name| self.leased_on(name)))
    }

    /// Returns the next step that reads these Secrets, adopts their addresses, or reserves the addresses that a user has
    /// written. `None`: nothing is left to do, or another controller serves the machine.
    pub(super) fn adopt_each(&self, names: Vec<&str>) -> Option<Step> {
        let is_read = |name: &str| self.instance.as_ref().is_some_and(|instance| instance.secret() == Some(name));
        let of_secret = |name: &str| match self.secrets.get(name) {
            None => Some(Step::ReadSecret(name.to_owned())),
            // A VirtualMachine that was restored refers to the Secret of an earlier machine. No guest reads the Secret,
            // so the addresses need no lease.
            Some(NetworkSecret::Ours(own))
                if !is_read(name) && self.vm.as_ref().is_none_or(|vm| own.vm != uid(&vm.metadata)) =>
            {
                None
            }
            Some(NetworkSecret::Ours(own)) => self.adopt_or_reserve(own),
            Some(NetworkSecret::Foreign(_, addresses)) => self.reserve_foreign(name, addresses),
            Some(NetworkSecret::Absent) => None,
        };
        names.into_iter().filter(|_| !self.ledger.is_of_another).find_map(of_secret)
    }

    /// Returns the interfaces of the leases of the machine that name a Secret, each with the network of its lease.
    pub(super) fn leased_on(&self, secret: &str) -> BTreeSet<(InterfaceName, String)> {
        let held = self.ledger.held.iter().filter(|held| held.secrets.contains(secret));
        held.map(|held| (held.claimant.interface, held.network.clone())).collect()
    }

    /// Returns the next step that adopts the addresses in a Secret of the controller, or reserves addresses in the
    /// Secret, see [`View::reserve_in`]. `None`: nothing is left to do.
    pub(super) fn adopt_or_reserve(&self, own: &OwnSecret) -> Option<Step> {
        if self.is_unproven() {
            return self.reserve_foreign(own.name(), &[own.addresses(), own.addresses_of_user()].concat());
        }
        // A reservation needs no request to the API server, so it comes first: the adoption may fail.
        let reserve = self.reserve_in(own);
        reserve.or_else(|| self.adopt(own).filter(|step| matches!(step, Step::Adopt(..))))
    }

    /// Returns the next step that reserves the addresses in the network data of another author, before another machine
    /// can get one of them. The data may be of the VirtualMachine or of its guest. The machine may be on the network of
    /// a pool that does not select it. `None`: nothing is left to reserve.
    pub(super) fn reserve_data_of_user(&self) -> Option<Step> {
        if self.selected.as_ref().is_ok_and(Vec::is_empty) && self.other_networks.is_empty() {
            return None;
        }
        let template = self.vm.as_ref().and_then(|vm| vm.cloud_init.as_ref()).map(|volume| &volume.network_data);
        let guest = self.instance.as_ref().filter(|instance| !instance.has_ended).map(|it| &it.network_data);
        let of_guest = guest.filter(|data| template != Some(data)).map(|data| (data, "VirtualMachineInstance"));
        let all = of_guest.into_iter().chain(template.map(|data| (data, "VirtualMachine")));
        all.filter_map(|(data, kind)| self.data_of_user(data, kind)).find_map(|data| match data {
            Ok((source, addresses)) => self.reserve(&source, addresses),
            Err(step) => Some(step),
        })
    }
}
