//! Decides what pools do to existing machines.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use glowplug::host::allocator::{Adoption, Allocator, Mismatch};
use glowplug::host::claim::{Claimant, Machine};
use glowplug::host::may_record::{Source, State, Verdict};
use glowplug::host::pool::Pool;
use glowplug::host::records::ObjectDiagnostic;
use glowplug::network::Family;
use ipnetwork::IpNetwork;
use serde::Serialize;

use crate::cluster::key::Key;
use crate::cluster::request::list;
use crate::explain::leader::Recorded;
use crate::explain::lists::Lists;
use crate::explain::reserved::Users;
use crate::kinds::guest::Life;
use crate::kinds::kubevirt_machine::Instance;
use crate::kinds::network_data::{NETWORK_DATA_LABEL, REQUESTED};
use crate::kinds::virtual_machine::{LEFT_ALONE_ANNOTATION, VirtualMachine};
use crate::machines::Standing;
use crate::pools::reference::without_volume;
use crate::pools::selection::Selected;

/// A VirtualMachine that a pool selects.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// Namespace and name of the VirtualMachine.
    pub machine: String,
    /// Phase of the VirtualMachineInstance. `null`: there is no instance.
    pub phase: Option<String>,
    /// The known addresses of the machine.
    pub addresses: Vec<IpAddr>,
    /// What the pool does to the machine.
    pub result: Word,
    /// Reason of the result.
    pub reason: String,
    /// Whether a person has to decide. `reason` has the reason. Examples: records contradict each other, the address of
    /// the guest is unknown, or the machine has no volume for network data.
    pub needs_decision: bool,
}

/// What a pool does to a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Word {
    /// `allocated`: the machine holds its addresses.
    Allocated,
    /// `recorded`: an object or the pool records the addresses, and the machine keeps them.
    Recorded,
    /// `reserved`: the machine keeps its addresses without a lease, and no other machine gets them.
    Reserved,
    /// `leftAlone`: the machine keeps a network of its own, and its known addresses are not in the pool.
    LeftAlone,
    /// `new`: no guest runs, and the machine gets addresses in the same way as a machine that is created later.
    New,
    /// `waiting`: the machine has no network data yet, or waits for a guest that migrates from another cluster.
    Waiting,
    /// `ownNetworkData`: a user wrote the network data of the machine, so the machine gets no address.
    OwnNetworkData,
    /// `conflict`: a person has to decide.
    Conflict,
    /// `unknown`: the user lacks a right, so the selection of the machine or the content of its Secret is unknown.
    Unknown,
}

/// The facts that decide what a pool does to a machine.
pub(super) struct Facts<'a> {
    lists: &'a Lists,
    /// The addresses that the objects of machines and claims record.
    records: BTreeMap<&'a Claimant, Vec<IpAddr>>,
    /// Records that a leader would refuse.
    mismatches: BTreeMap<&'a Claimant, &'a Mismatch>,
    /// Records that cannot be read, by the name of their machine.
    unreadable: BTreeMap<Key, &'a ObjectDiagnostic>,
    /// State of a leader that has the pools and has adopted the records.
    pub(super) leader: &'a Allocator,
    pub(super) users: Users,
    /// The guests that report an address, by network and address, including reports beyond the bounds of the leader.
    reporters: BTreeMap<(&'a str, IpAddr), Vec<&'a Key>>,
    /// The addresses with a lease in the cluster, before records are adopted.
    leased: &'a BTreeSet<(Claimant, IpAddr)>,
}

/// A pool to decide about, and whether the cluster has it.
#[derive(Clone, Copy)]
pub(super) struct Of<'a> {
    pub(super) pool: &'a Pool,
    pub(super) is_stored: bool,
}

/// Returns the addresses with a lease. Call this function before the records are adopted.
pub(super) fn leased(allocator: &Allocator) -> BTreeSet<(Claimant, IpAddr)> {
    allocator.leases().map(|(_, address, lease)| (Claimant::clone(&lease.claimant), address)).collect()
}

// === impl Facts ===

impl<'a> Facts<'a> {
    pub(super) fn new(
        lists: &'a Lists,
        recorded: &'a Recorded,
        leased: &'a BTreeSet<(Claimant, IpAddr)>,
        adoption: &'a Adoption,
        leader: &'a Allocator,
    ) -> Self {
        let mut records: BTreeMap<&Claimant, Vec<IpAddr>> = BTreeMap::new();
        for record in recorded.records().chain(&recorded.secrets) {
            let addresses = records.entry(&record.claimant).or_default();
            for address in record.addresses.iter().map(IpNetwork::ip) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        // Collects in reverse order, so that the first mismatch of each claimant is kept.
        let mismatches = adoption.mismatches.iter().rev().map(|it| (&it.claimant, it)).collect();
        let diagnostics = recorded.inventory.diagnostics.iter().chain(&recorded.last.diagnostics).rev();
        let unreadable = diagnostics.filter_map(|it| Some((Key::of_machine(&it.claimant.as_ref()?.machine), it)));
        let unreadable = unreadable.collect();
        let mut reporters: BTreeMap<(&str, IpAddr), Vec<&Key>> = BTreeMap::new();
        for (key, (_, instance)) in lists.guests.iter().filter(|(_, (_, it))| it.guest.life == Life::Running) {
            for (network, reported) in &instance.guest.networks {
                for address in reported.addresses.keys() {
                    reporters.entry((network, *address)).or_default().push(key);
                }
            }
        }
        Self { lists, records, mismatches, unreadable, leader, users: Users::of(leader), reporters, leased }
    }

    pub(super) fn row(&self, vm: &VirtualMachine, addresses: Vec<IpAddr>, result: Word, reason: String) -> Row {
        let phase = self.lists.guests.get(&vm.key()).map(|(phase, _)| phase.clone());
        let needs_decision = result == Word::Conflict;
        Row { machine: vm.key().to_string(), phase, addresses, result, reason, needs_decision }
    }

    /// Decides what a pool does to a machine. Also returns the addresses that a record can keep for the machine.
    pub(super) fn decide(&self, vm: &VirtualMachine, selected: &Selected, of: Of<'_>) -> (Row, Vec<IpAddr>) {
        let (mut row, mut addresses) = self.outcome(vm, selected, of);
        let guest = self.lists.guests.get(&vm.key()).map(|(_, instance)| instance);
        let mut open = Vec::new();
        let standing = self.standing(vm, selected);
        let has_own_network = |guest: &Instance| {
            guest.runs_without_data() || standing == Standing::NotServed && guest.guest.life == Life::Running
        };
        if matches!(row.result, Word::Recorded | Word::Reserved) && guest.is_some_and(has_own_network) {
            let unknown = unknown_families(of.pool, guest, &row.addresses);
            open.extend(unknown.map(|family| format!("its guest reports no {family} address")));
        }
        let is_left_alone = standing == Standing::LeftAlone && row.result != Word::Allocated;
        if !of.is_stored && is_left_alone {
            let why = format!("it stays left alone: it has the annotation {LEFT_ALONE_ANNOTATION} of an earlier pool");
            // If the earlier reason says that the machine gets a lease or can keep its address with a record, the new
            // reason replaces it.
            match row.result == Word::Recorded || !addresses.is_empty() {
                true => row.reason = why,
                false => open.push(why),
            }
            (row.needs_decision, addresses) = (true, Vec::new());
        }
        if of.is_stored && is_left_alone && row.result == Word::Recorded {
            row.reason += &format!("; it stays left alone until its annotation {LEFT_ALONE_ANNOTATION} is removed");
        }
        if of.is_stored && standing == Standing::NotServed && row.result != Word::Allocated {
            row.reason += &format!(
                "; its Secret has no address of the pool until the label {NETWORK_DATA_LABEL}={REQUESTED} is set in spec.template"
            );
        }
        if vm.cloud_init.is_none() {
            open.push(without_volume(std::slice::from_ref(selected)));
        }
        if !open.is_empty() {
            (row.reason, row.needs_decision) = (format!("{}; {}", row.reason, open.join("; ")), true);
        }
        (row, addresses)
    }

    fn outcome(&self, vm: &VirtualMachine, selected: &Selected, of: Of<'_>) -> (Row, Vec<IpAddr>) {
        let row = |addresses: &[IpAddr], result, reason: &str| {
            (self.row(vm, addresses.to_vec(), result, reason.to_owned()), Vec::new())
        };
        let guest = self.lists.guests.get(&vm.key()).map(|(_, instance)| instance);
        let standing = self.standing(vm, selected);
        if standing == Standing::OwnData {
            return row(&[], Word::OwnNetworkData, "it has network data of its own, and gets no address");
        }
        let claimant = Claimant { machine: self.lists.holder(vm), interface: selected.interface };
        let held = self.leader.leases_of(&claimant.machine).filter(|(_, _, lease)| *lease.claimant == claimant);
        let held: Vec<IpAddr> = held.map(|(_, address, _)| address).collect();
        if held.iter().any(|address| self.leased.contains(&(claimant.clone(), *address))) {
            return match self.lacks_secret(vm) {
                true => row(
                    &held,
                    Word::Waiting,
                    "it holds its addresses, and its network data does not exist yet: kubectl glowplug why shows the reason",
                ),
                false => row(&held, Word::Allocated, "it holds its addresses already"),
            };
        }
        let reported = reported(of.pool, guest);
        if let Some(recorded) = self.records.get(&claimant) {
            let (word, mut reason) = self.of_record(vm, &claimant, recorded, &reported, of);
            let has_no_data = word == Word::Reserved && (standing != Standing::HasSecret || self.lacks_secret(vm));
            if has_no_data {
                reason += ", and gets no network data: offer the address, or remove the record";
            }
            let (row, none) = row(recorded, word, &reason);
            return (Row { needs_decision: row.needs_decision || has_no_data, ..row }, none);
        }
        match standing {
            Standing::HasSecret if self.lacks_secret(vm) => {
                return row(
                    &[],
                    Word::Waiting,
                    "it has no address and no network data yet: kubectl glowplug why shows the reason",
                );
            }
            Standing::HasSecret if self.has_unread_secret(vm) => {
                let reason = "its Secret cannot be read: you lack the right to get secrets";
                return row(&[], Word::Unknown, reason);
            }
            Standing::HasSecret => return row(&[], Word::Recorded, "its network data records the addresses"),
            Standing::Migrates => return row(&[], Word::Waiting, "its guest comes from another cluster"),
            Standing::New => return row(&[], Word::New, "no guest runs: it gets addresses like a new machine"),
            Standing::Arrived => {
                let reason = "its guest came from another cluster: it gets addresses like a new machine, for the next start of the guest";
                return row(&[], Word::New, reason);
            }
            Standing::OwnData | Standing::LeftAlone | Standing::NotServed | Standing::Runs => {}
        }
        if let Some(problem) = self.unreadable.get(&Key::of_machine(&claimant.machine)) {
            return row(&reported, Word::Conflict, &problem.to_string());
        }
        let kept = of.pool.pre_allocated(&claimant.machine.namespace, &claimant.machine.name);
        if !kept.is_empty() {
            return match differs(kept, &reported) {
                true => {
                    let reason =
                        format!("the pool keeps {} for it, and its guest reports {}", list(kept), list(&reported));
                    row(kept, Word::Conflict, &reason)
                }
                false => row(kept, Word::Recorded, "the pool keeps the addresses for it"),
            };
        }
        let several =
            reported.iter().any(|one| reported.iter().any(|it| it != one && Family::of(*it) == Family::of(*one)));
        match (reported.is_empty(), several) {
            (true, _) => {
                let elsewhere = elsewhere(of.pool, guest);
                // If the guest reports no address of a pool, a person must find out which address it uses: KubeVirt may
                // hide an address, see `Reported`.
                let has = |pool: &Pool, at: &IpAddr| pool.network() == of.pool.network() && pool.contains(*at);
                let has_pool = |address: &IpAddr| self.leader.pools().any(|pool| has(pool, address));
                let (needs_decision, reason) = match (&elsewhere[..], guest) {
                    ([_, ..], _) if elsewhere.iter().any(has_pool) => {
                        (false, "its guest reports no address of the pool")
                    }
                    ([_, ..], _) => (
                        true,
                        "its guest reports no address of a pool, and another of its interfaces can hide one: keep the address \
                         that it uses with preAllocations, or do not select the machine",
                    ),
                    ([], Some(it)) if it.guest.life == Life::Running => (
                        true,
                        "its guest reports no address: keep the address that it uses with preAllocations, or connect its agent",
                    ),
                    ([], _) => (true, "it is left alone, and no guest runs that reports its address"),
                };
                let (row, none) = row(&elsewhere, Word::LeftAlone, reason);
                (Row { needs_decision, ..row }, none)
            }
            (_, true) => {
                let reason = "its guest reports several addresses of one family: record the one that it keeps";
                let (row, none) = row(&reported, Word::Reserved, reason);
                (Row { needs_decision: true, ..row }, none)
            }
            _ => self.of_report(vm, &claimant, reported, of),
        }
    }

    /// State of the network data of the interface that a pool selects.
    fn standing(&self, vm: &VirtualMachine, selected: &Selected) -> Standing {
        let guest = self.lists.guests.get(&vm.key()).map(|(_, instance)| instance);
        let secret = vm.secret().and_then(|name| self.lists.secrets.get(&Key { name: name.to_owned(), ..vm.key() }));
        Standing::of_interface(vm, guest, secret, &selected.network)
    }

    /// Whether the template of a machine refers to a Secret that does not exist.
    fn lacks_secret(&self, vm: &VirtualMachine) -> bool {
        self.lists.has_secrets && self.has_unread_secret(vm)
    }

    /// Whether the template of a machine refers to a Secret that was not read, because it does not exist or the user
    /// lacks the right.
    fn has_unread_secret(&self, vm: &VirtualMachine) -> bool {
        let is_read = |name: &str| self.lists.secrets.contains_key(&Key { name: name.to_owned(), ..vm.key() });
        vm.secret().is_some_and(|name| !is_read(name))
    }

    /// Returns the guest of another machine that reports this address on the network.
    fn other_reporter(&self, vm: &VirtualMachine, network: &str, address: IpAddr) -> Option<&Key> {
        let reporters = self.reporters.get(&(network, address)).into_iter().flatten();
        reporters.copied().find(|guest| **guest != vm.key())
    }

    /// Decides the result for a machine whose objects record addresses. Also returns the reason.
    fn of_record(
        &self,
        vm: &VirtualMachine,
        claimant: &Claimant,
        recorded: &[IpAddr],
        reported: &[IpAddr],
        of: Of<'_>,
    ) -> (Word, String) {
        if differs(recorded, reported) {
            let reason = format!("its objects record {}, and its guest reports {}", list(recorded), list(reported));
            return (Word::Conflict, reason);
        }
        if let Some(mismatch) = self.mismatches.get(claimant) {
            return (Word::Conflict, mismatch.to_string());
        }
        let network = of.pool.network();
        let other = |address: &IpAddr| Some((*address, self.other_reporter(vm, network, *address)?));
        if let Some((address, other)) = recorded.iter().find_map(other) {
            return (Word::Conflict, format!("VirtualMachineInstance {other} reports {address}"));
        }
        if recorded.iter().any(|address| self.leader.holder(network, *address) != Some(claimant)) {
            let reason = "no pool offers the recorded address: the machine keeps the address, without a lease";
            return (Word::Reserved, reason.to_owned());
        }
        match of.is_stored {
            true => (Word::Conflict, "the record is not a lease: see the events of the machine".to_owned()),
            false => (Word::Recorded, "objects record the addresses: the machine gets the leases".to_owned()),
        }
    }

    /// Decides the result for a machine whose guest reports addresses that no object records. Also returns the
    /// addresses that a record can keep.
    fn of_report(
        &self,
        vm: &VirtualMachine,
        claimant: &Claimant,
        reported: Vec<IpAddr>,
        of: Of<'_>,
    ) -> (Row, Vec<IpAddr>) {
        let (network, Machine { namespace, name, .. }) = (of.pool.network(), &claimant.machine);
        let (mut word, mut reasons) = (Word::Reserved, Vec::new());
        for address in &reported {
            match self.leader.may_record(Source::Annotation, claimant, network, *address) {
                Verdict::Lease => {
                    if let Some(other) = self.other_reporter(vm, network, *address) {
                        word = Word::Conflict;
                        reasons.push(format!("VirtualMachineInstance {other} reports {address}"));
                    }
                }
                Verdict::Reserve(State::Excluded) => reasons.push(format!("no pool offers {address}")),
                Verdict::Reserve(_) => {
                    word = Word::Conflict;
                    reasons.push(self.other_user(claimant, network, *address));
                }
                Verdict::Ignore(why) => reasons.push(format!("{address}: {why}")),
            }
        }
        let key = Key { namespace: namespace.clone(), name: name.clone() };
        // A pre-allocation names a machine or claim without its kind, so a claim of the same name could get the
        // address.
        if let Some(claim) = self.lists.claim_of(&key, network).filter(|_| of.is_stored) {
            word = Word::Conflict;
            reasons.push(format!("{} has the name of the machine, and gets what the pool keeps for it", title(&claim)));
        }
        if !reasons.is_empty() {
            return (self.row(vm, reported, word, reasons.join("; ")), Vec::new());
        }
        let reason = match of.is_stored {
            true => {
                "its guest reports the addresses, and it is left alone: preAllocations can keep the addresses for the machine"
            }
            false => "its guest reports the addresses: with a record, it keeps them",
        };
        (self.row(vm, reported.clone(), word, reason.to_owned()), reported)
    }

    /// Returns why the record of an address would be a mismatch.
    fn other_user(&self, claimant: &Claimant, network: &str, address: IpAddr) -> String {
        if let Some(holder) = self.leader.holder(network, address) {
            return format!("{address} is held by {holder}");
        }
        let own = Key::of_vm(&claimant.machine);
        let other = self.users.at(network, address).iter().find(|user| Key::of_vm(&user.claimant.machine) != own);
        match other {
            Some(user) => format!("{} {} {address}", user.source, user.verb()),
            None => format!("{address} is not free: its reuse delay is not over, or a pool keeps it for another use"),
        }
    }
}

/// Returns namespace and name of a holder. For a claim, the kind comes first.
pub(super) fn title(machine: &Machine) -> String {
    match machine.kind.is_claim() {
        true => format!("{} {}", machine.kind, machine.title()),
        false => machine.title(),
    }
}

/// The addresses that a running guest reports on the network of a pool.
fn on_network<'g>(pool: &Pool, guest: Option<&'g Instance>) -> impl Iterator<Item = IpAddr> + use<'g> {
    let guest = guest.map(|instance| &instance.guest).filter(|guest| guest.life == Life::Running);
    let reported = guest.and_then(|guest| guest.networks.get(pool.network()));
    reported.into_iter().flat_map(|reported| reported.addresses.keys()).copied()
}

/// The addresses of a pool that a guest reports.
fn reported(pool: &Pool, guest: Option<&Instance>) -> Vec<IpAddr> {
    on_network(pool, guest).filter(|address| pool.contains(*address)).collect()
}

/// The addresses that a guest reports on the network of a pool. Empty if, for one family of the pool, the guest reports
/// no address: then not all of its addresses are known.
fn elsewhere(pool: &Pool, guest: Option<&Instance>) -> Vec<IpAddr> {
    let is_known = unknown_families(pool, guest, &[]).next().is_none();
    on_network(pool, guest).filter(|address| is_known && !is_of_link(address)).collect()
}

/// The families of a pool for which no address is known, neither in `known` nor in the report of the guest on the
/// network.
fn unknown_families(pool: &Pool, guest: Option<&Instance>, known: &[IpAddr]) -> impl Iterator<Item = Family> {
    let reported = on_network(pool, guest).filter(|address| !is_of_link(address));
    let has: BTreeSet<Family> = reported.chain(known.iter().copied()).map(Family::of).collect();
    let families: Vec<Family> = pool.spaces().map(|space| space.family()).collect();
    families.into_iter().filter(move |family| !has.contains(family))
}

fn is_of_link(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Whether the guest reports addresses of the family of a known address, but not the known address itself.
fn differs(known: &[IpAddr], reported: &[IpAddr]) -> bool {
    let has_family = |all: &[IpAddr], family| all.iter().any(|it| Family::of(*it) == family);
    known.iter().any(|address| has_family(reported, Family::of(*address)) && !reported.contains(address))
}

// === impl Word ===

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
