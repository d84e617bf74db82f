//! The recovery procedure: compares the ledger with the objects of the cluster, and rebuilds the ledger from their
//! records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::allocator::{Adoption, Allocator};
use super::claim::{Allocation, Claimant, Machine};
use super::ledger::{Ledger, LedgerError};
use super::may_record::State;
use super::records::{Inventory, Report};
use super::registry::Registry;
use super::registry::rebuild::{reports_of_pools, unreadable};

/// Shortest time from the audit that first misses a machine to the fetch of lists that can release the machine. After
/// this time, a cache that lagged behind the cluster is up to date.
pub const SIGHTINGS_APART: Duration = Duration::from_secs(5 * 60);

/// Options of an audit: how the audit handles missing machines.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Options {
    /// When the lists were fetched.
    pub fetched: Timestamp,
    /// Whether missing machines are released.
    pub release: bool,
    /// Maximum number of machines that one audit releases. `None`: the larger of 10 and 5 % of the leases.
    pub max_release: Option<usize>,
    /// Whether to leave the ledger unchanged and only report what would be released.
    pub dry_run: bool,
}

/// Result of an audit.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Audit {
    /// The result that an adoption of all records would have: the number of addresses to add, and the records that
    /// contradict the ledger or the pools.
    pub adoption: Adoption,
    /// Differences between the ledger and the objects that `adoption` does not report.
    pub disagreements: Vec<Disagreement>,
    /// Machines in the ledger that no longer have an object.
    pub missing: Vec<Missing>,
    /// Why the audit released no machine although machines were due for release. Empty if nothing prevented the
    /// release.
    pub brakes: Vec<Brake>,
}

/// A machine that no longer has an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Missing {
    /// The missing machine.
    pub machine: Machine,
    /// When an earlier audit first found the machine missing. `None` if this audit is the first.
    pub since: Option<Timestamp>,
    /// Lists that are fetched at this time or later can release the machine.
    pub releasable_from: Timestamp,
    /// The released allocations; in a dry run, the allocations that would be released. `None` if the machine is not
    /// released.
    pub released: Option<Vec<Allocation>>,
}

/// A difference between the ledger and the objects.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Disagreement {
    /// The ledger has a lease of the machine, and no object of the machine records the address.
    NotRecorded {
        /// Holder of the lease.
        claimant: Claimant,
        /// The leased address.
        address: IpAddr,
    },
    /// An object records an address that the ledger does not have. A rebuild adds or reserves the address.
    NotLeased {
        /// Where the record was read.
        source: String,
        /// Holder according to the record.
        claimant: Claimant,
        /// The recorded address.
        address: IpAddr,
        /// Whether the address is reserved for the machine without a lease, because the pools do not offer it.
        is_reserved: bool,
    },
    /// A guest uses an address of a pool, and neither the ledger nor a record has this address for the guest's machine.
    Reported {
        /// The report of the guest.
        report: Report,
        /// Holder according to the ledger. `None` if no claimant holds the address.
        holder: Option<Claimant>,
    },
}

/// The store of the leases, for messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Store {
    /// A ledger in a file.
    Ledger,
    /// The StaticIPLeases of a cluster.
    Leases,
}

/// Why an audit releases nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Brake {
    /// More machines are due for release than one audit may release.
    TooMany {
        /// Number of machines that are due for release.
        machines: usize,
        /// Maximum number of machines that one audit releases.
        most: usize,
    },
    /// The lists have no object of this kind.
    NoKind(&'static str),
    /// The lists have no object of this namespace, but machines of this namespace have leases.
    NoNamespace(String),
    /// The lists have no object of this namespace, in which KubevirtMachines of the lists have their VirtualMachines.
    NoVmNamespace(String),
    /// The lists have this number of objects whose machine cannot be identified. Each of these objects may belong to a
    /// machine that seems to be missing.
    Unidentified(usize),
    /// The clock is behind the latest time in the ledger.
    Clock {
        /// Time of the audit.
        now: Timestamp,
        /// Latest time in the ledger.
        latest: Timestamp,
    },
}

/// Compares the ledger with the objects of all machines.
///
/// A machine of the ledger is missing if the lists have
///
/// - no object of the machine,
/// - no unreadable record of the machine,
/// - no unreadable object or record that names one of the machine's addresses and whose claimant is unknown, and
/// - no guest that reports one of the machine's addresses.
///
/// The lists must be complete: KubevirtMachines, VirtualMachines and VirtualMachineInstances of all namespaces. Without
/// a list of claims ([`Inventory::claims`]), a claim that holds a lease is never missing. A guest in the namespace of a
/// claim may use the address of the claim, so the audit does not report such a guest.
///
/// The ledger records missing machines. With [`Options::release`], the audit releases a missing machine if
///
/// - the lists were fetched at least [`SIGHTINGS_APART`] after the audit that first missed the machine,
/// - since then, no audit has found the machine, and the machine has claimed no address, and
/// - no [`Brake`] applies.
///
/// So neither the lists of the first audit nor lists that are older than a lease can release a machine. A released
/// address stays reserved for the other machines whose records name it: see [`reserve_for_others`]. An audit serves no
/// waiting machine, because the ledger may lack other records of the lists.
///
/// # Errors
///
/// The ledger failed. Changes committed before the failure, such as releases, stay in the ledger.
pub fn audit<L: Ledger>(
    registry: &mut Registry<L>,
    inventory: &Inventory,
    options: &Options,
    now: Timestamp,
) -> Result<Audit, LedgerError> {
    let adoption = registry.preview(inventory.records.iter().cloned(), now)?;
    let allocator = registry.state()?;
    let disagreements = disagreements(allocator, inventory, &adoption);
    let holders = allocator.leases().map(|(_, _, lease)| lease.claimant.machine.clone());
    let waiters = allocator.waiters().into_iter().map(|claim| claim.machine.clone());
    let conflicts = allocator.conflicts().map(|(_, _, conflict)| conflict.claimant.machine);
    let known: BTreeSet<Machine> = holders
        .chain(waiters)
        .chain(conflicts)
        .chain(allocator.missing().map(|(machine, _)| machine.clone()))
        .filter(|machine| !machine.kind.is_claim() || inventory.claims.is_some())
        .collect();
    let mut used: BTreeSet<Machine> = unreadable(inventory).map(|reservation| reservation.claimant.machine).collect();
    used.extend(holders_in_use(allocator, inventory));
    let is_there = |machine: &Machine| inventory.is_there(machine) || used.contains(machine);
    let (there, missing): (Vec<Machine>, Vec<Machine>) = known.into_iter().partition(is_there);
    let before: BTreeMap<Machine, Timestamp> =
        allocator.missing().map(|(machine, since)| (machine.clone(), since)).collect();
    let mut missing: Vec<Missing> = missing
        .into_iter()
        .map(|machine| {
            let since = before.get(&machine).copied();
            let releasable_from = since.unwrap_or(now).saturating_add(SIGHTINGS_APART).unwrap_or(Timestamp::MAX);
            Missing { machine, since, releasable_from, released: None }
        })
        .collect();
    let gone =
        missing.iter_mut().filter(|missing| missing.since.is_some() && missing.releasable_from <= options.fetched);
    let mut gone: Vec<&mut Missing> = gone.filter(|_| options.release).collect();
    let brakes = if gone.is_empty() { Vec::new() } else { brakes(allocator, inventory, options, gone.len(), now) };
    if !brakes.is_empty() {
        gone.clear();
    }
    let due: BTreeMap<&Machine, Timestamp> =
        gone.iter().filter_map(|missing| Some((&missing.machine, missing.since?))).collect();
    let (held, returned) = if options.dry_run {
        let of_due = allocator.leases().filter(|(_, _, lease)| due.contains_key(&lease.claimant.machine));
        let held = of_due.filter_map(|(_, address, lease)| {
            let address = IpNetwork::new(address, lease.prefix).ok()?;
            Some(Allocation { claimant: Claimant::clone(&lease.claimant), addresses: vec![address] })
        });
        (held.collect(), BTreeSet::new())
    } else {
        reserve_for_others(registry, inventory, due.keys().copied(), now)?;
        registry.release_missing(&due, now)?
    };
    for missing in gone {
        let of_machine = held.iter().filter(|allocation| allocation.claimant.machine == missing.machine);
        missing.released = Some(of_machine.cloned().collect());
    }
    // These machines have claimed addresses since the ledger was read.
    missing.retain(|missing| !returned.contains(&missing.machine));
    if !options.dry_run {
        let left = missing.iter().filter(|missing| missing.released.is_none());
        let left: Vec<Machine> = left.map(|missing| missing.machine.clone()).collect();
        registry.note_looked_for(&there, &left, now)?;
    }
    Ok(Audit { adoption, disagreements, missing, brakes })
}

/// The machines that hold an address that a guest reports, or that an object of an unknown machine names. Such a
/// machine must not be released: while a guest uses the address, no other machine must get it, and the object may
/// belong to the machine.
#[must_use]
pub fn holders_in_use(allocator: &Allocator, inventory: &Inventory) -> BTreeSet<Machine> {
    let nobodys = inventory.diagnostics.iter().filter(|diagnostic| diagnostic.claimant.is_none());
    let named: BTreeSet<IpAddr> = nobodys.flat_map(|diagnostic| diagnostic.addresses.iter().copied()).collect();
    let mut reports: BTreeMap<IpAddr, Vec<&Report>> = BTreeMap::new();
    inventory.reports.iter().for_each(|report| reports.entry(report.address).or_default().push(report));
    let is_reported = |network: &str, address: IpAddr| {
        reports.get(&address).is_some_and(|reports| reports.iter().any(|report| report.is_on(network)))
    };
    let used =
        allocator.leases().filter(|(network, address, _)| named.contains(address) || is_reported(network, *address));
    used.map(|(_, _, lease)| lease.claimant.machine.clone()).collect()
}

/// Adopts what the objects say about the addresses of machines that are about to be released. So an address that a
/// record of another machine names, or that another guest reports, stays reserved after the release.
///
/// # Errors
///
/// The ledger failed. Changes committed before the failure stay in the ledger.
pub fn reserve_for_others<'m, L: Ledger>(
    registry: &mut Registry<L>,
    inventory: &Inventory,
    released: impl IntoIterator<Item = &'m Machine>,
    now: Timestamp,
) -> Result<(), LedgerError> {
    let allocator = registry.state()?;
    let of_machine = |machine| {
        let held = allocator.leases_of(machine).map(|(_, address, _)| address);
        held.chain(allocator.conflicts_of(machine).map(|(_, address)| address))
    };
    let addresses: BTreeSet<IpAddr> = released.into_iter().flat_map(of_machine).collect();
    if !addresses.is_empty() {
        registry.adopt_inventory(&inventory.about(&addresses), now)?;
    }
    Ok(())
}

/// Differences between the ledger and the objects, without the mismatches of `adoption`.
fn disagreements(allocator: &Allocator, inventory: &Inventory, adoption: &Adoption) -> Vec<Disagreement> {
    let recorded: BTreeSet<(&Claimant, IpAddr)> = inventory
        .records
        .iter()
        .flat_map(|record| record.addresses.iter().map(|address| (&record.claimant, address.ip())))
        .collect();
    let leased: BTreeSet<(&Claimant, IpAddr)> =
        allocator.leases().map(|(_, address, lease)| (&*lease.claimant, address)).collect();
    let reserved: Vec<(Claimant, IpAddr)> = allocator
        .conflicts()
        .filter(|(_, _, conflict)| conflict.state != State::Mismatch)
        .map(|(_, address, conflict)| (conflict.claimant, address))
        .collect();
    let reserved: BTreeSet<(&Claimant, IpAddr)> =
        reserved.iter().map(|(claimant, address)| (claimant, *address)).collect();
    let without_lease: BTreeSet<(&Claimant, IpAddr)> =
        adoption.reserved.iter().map(|(claimant, address)| (claimant, *address)).collect();
    let reported: BTreeSet<(&Claimant, IpAddr)> =
        adoption.mismatches.iter().map(|mismatch| (&mismatch.claimant, mismatch.address)).collect();
    // Claimants with a record that cannot be read. This record may have the address that the ledger has.
    let doubted: BTreeSet<&Claimant> =
        inventory.diagnostics.iter().filter_map(|diagnostic| diagnostic.claimant.as_ref()).collect();
    let mut disagreements = Vec::new();
    for (claimant, address) in &leased {
        let is_recorded = recorded.contains(&(*claimant, *address)) || doubted.contains(claimant);
        if !is_recorded && inventory.is_there(&claimant.machine) {
            disagreements.push(Disagreement::NotRecorded { claimant: (*claimant).clone(), address: *address });
        }
    }
    for record in &inventory.records {
        for address in record.addresses.iter().map(IpNetwork::ip) {
            let at = (&record.claimant, address);
            if !leased.contains(&at) && !reserved.contains(&at) && !reported.contains(&at) {
                let (source, claimant) = (record.source.clone(), record.claimant.clone());
                let is_reserved = without_lease.contains(&at);
                disagreements.push(Disagreement::NotLeased { source, claimant, address, is_reserved });
            }
        }
    }
    let known: BTreeSet<(&Machine, IpAddr)> =
        leased.iter().chain(&recorded).map(|(claimant, address)| (&claimant.machine, *address)).collect();
    let is_unknown = |report: &&Report| !known.contains(&(&report.machine, report.address));
    for report in reports_of_pools(allocator, inventory).filter(is_unknown) {
        let is_same = |network: &str, address: IpAddr| address == report.address && report.is_on(network);
        let holder = allocator.leases().find(|(network, address, _)| is_same(network, *address));
        let holder = holder.map(|(_, _, lease)| Claimant::clone(&lease.claimant));
        let is_user = |holder: &Claimant| {
            holder.machine.kind.is_claim() && holder.machine.namespace == report.machine.served_in()
        };
        if !holder.as_ref().is_some_and(is_user) {
            disagreements.push(Disagreement::Reported { report: report.clone(), holder });
        }
    }
    disagreements
}

fn brakes(
    allocator: &Allocator,
    inventory: &Inventory,
    options: &Options,
    machines: usize,
    now: Timestamp,
) -> Vec<Brake> {
    let mut brakes = Vec::new();
    let leases = allocator.leases().count();
    let most = options.max_release.unwrap_or_else(|| leases.div_ceil(20).max(10));
    if machines > most {
        brakes.push(Brake::TooMany { machines, most });
    }
    brakes.extend(inventory.absent_kinds().into_iter().map(Brake::NoKind));
    let of_leases = allocator.leases().map(|(_, _, lease)| lease.claimant.machine.namespace.as_str());
    let (of_leases, of_vms): (BTreeSet<&str>, BTreeSet<&str>) =
        (of_leases.collect(), inventory.vm_namespaces().collect());
    let is_absent = |namespace: &&&str| !inventory.has_namespace(namespace);
    let absent = of_leases.iter().filter(is_absent);
    brakes.extend(absent.map(|namespace| Brake::NoNamespace((*namespace).to_owned())));
    let absent = of_vms.difference(&of_leases).filter(is_absent);
    brakes.extend(absent.map(|namespace| Brake::NoVmNamespace((*namespace).to_owned())));
    if inventory.unidentified > 0 {
        brakes.push(Brake::Unidentified(inventory.unidentified));
    }
    let times = allocator.leases().map(|(_, _, lease)| lease.since).chain(allocator.missing().map(|(_, since)| since));
    if let Some(latest) = times.max().filter(|latest| *latest > now) {
        brakes.push(Brake::Clock { now, latest });
    }
    brakes
}

// === impl Disagreement ===

impl Disagreement {
    /// Whether the disagreement needs no correction. In a cluster, an address that the pools do not offer needs no
    /// lease.
    #[must_use]
    pub fn is_right(&self, store: Store) -> bool {
        store == Store::Leases && matches!(self, Self::NotLeased { is_reserved: true, .. })
    }

    /// The disagreement on one line, with the name of the store.
    #[must_use]
    pub fn text(&self, store: Store) -> String {
        let name = match store {
            Store::Ledger => "the ledger",
            Store::Leases => "the leases",
        };
        match self {
            Self::NotRecorded { claimant, address } => {
                format!("{address} of {claimant} is in {name}, and no object of the machine records it")
            }
            Self::NotLeased { source, claimant, address, is_reserved } => {
                let result = match (store, is_reserved) {
                    (Store::Ledger, false) => "rebuild adds it",
                    (Store::Ledger, true) => "rebuild reserves it",
                    (Store::Leases, false) => "the controller adds it when it starts",
                    (Store::Leases, true) => "and is excluded: it stays with its machine",
                };
                format!("{source}: {address} of {claimant} is not in {name}, {result}")
            }
            Self::Reported { report: Report { machine, address, source, .. }, holder } => {
                let of_holder = match holder {
                    Some(holder) => format!("and belongs to {holder}"),
                    None => format!("and neither {name} nor a record has it"),
                };
                format!("{source}: {address} is in use by {machine}, {of_holder}")
            }
        }
    }
}

// === impl Brake ===

impl fmt::Display for Brake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { machines, most } => {
                write!(f, "{machines} machines would be released, expected at most {most}, or a larger --max-release")
            }
            Self::NoKind(kind) => write!(
                f,
                "no {kind} in the lists, expected all objects of that kind; release the machines by name and UID if the \
                 cluster has none"
            ),
            Self::NoNamespace(namespace) => write!(
                f,
                "no machine of namespace {namespace} in the lists, expected the lists of all namespaces; release its \
                 machines by name and UID if the namespace is gone"
            ),
            Self::NoVmNamespace(namespace) => write!(
                f,
                "no object of namespace {namespace} in the lists, where a KubevirtMachine has its VirtualMachine, expected \
                 the lists of all namespaces; release the missing machines by name and UID if the namespace has none"
            ),
            Self::Unidentified(count) => {
                write!(f, "{count} objects of unknown machines in the lists, expected namespace, name and UID of each")
            }
            Self::Clock { now, latest } => {
                write!(f, "the clock shows {now:.0}, expected a time after {latest:.0}, the latest in the ledger")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::allocator::{Mismatch, Problem};
    use crate::host::claim::{Claim, HolderKind, Request};
    use crate::host::leases_file::{Leases, read_leases};
    use crate::host::ledger::MemoryLedger;
    use crate::host::may_record::Ignored;
    use crate::host::pool::Namespaces;
    use crate::host::pool::tests::pool;
    use crate::host::records::Objects;
    use crate::host::registry::tests::{at, registry};

    #[test]
    fn a_machine_whose_address_an_unreadable_object_names_is_not_missing() {
        let one = pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}");
        let mut registry = registry([one]);
        let [named, other] = ["a", "b"].map(|name| {
            let machine = Machine::new("n", name, "u");
            let requests = vec![Request::of("default/one")];
            registry
                .claim(
                    &Claim { machine: machine.clone(), created: at(0), requests, sticky: false, secret: None },
                    at(0),
                )
                .unwrap();
            machine
        });
        let list = r#"{"items": [{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": 7,
            "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.1/24\"]"}}}]}"#;
        let mut objects = Objects::default();
        objects.read("list", list.as_bytes()).unwrap();
        let mut missing = |inventory: &Inventory| {
            let missing = audit(&mut registry, inventory, &Options::default(), at(1_000)).unwrap().missing;
            missing.into_iter().map(|missing| missing.machine).collect::<Vec<_>>()
        };
        assert_eq!(missing(&objects.inventory()), vec![other.clone()]);
        assert_eq!(missing(&Inventory::default()), [named, other]);
    }

    #[test]
    fn a_claim_is_missing_only_if_the_lists_have_claims() {
        let mut registry = registry([pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}")]);
        let machine = Machine::new("n", "a", "u").of_kind(HolderKind::IpAddressClaim);
        let claim = Claim::new(machine.clone(), at(0)).request(Request::of("default/one"));
        registry.claim(&claim, at(0)).unwrap();
        let mut missing = |claims: Option<BTreeSet<Machine>>| {
            let mut inventory = Inventory::default();
            inventory.claims = claims;
            let audit = audit(&mut registry, &inventory, &Options::default(), at(1_000)).unwrap();
            (audit.missing.into_iter().map(|it| it.machine).collect::<Vec<_>>(), audit.disagreements.len())
        };
        assert_eq!(missing(None), (vec![], 0));
        assert_eq!(missing(Some(BTreeSet::new())), (vec![machine.clone()], 0));
        // No record of the claim has the address.
        assert_eq!(missing(Some([machine].into())), (vec![], 1));
    }

    #[test]
    fn a_machine_that_the_ledger_knows_by_the_uid_of_its_virtual_machine_is_not_missing() {
        let one = pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}");
        let mut registry = registry([one]);
        let guest = r#"{"kind": "VirtualMachine", "metadata": {"namespace": "n", "name": "a", "uid": "guest",
            "labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n", "capk.cluster.x-k8s.io/kubevirt-machine-name": "a"},
            "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.1/24"}}}"#;
        let machine = r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": "u"}}"#;
        let inventory = |lists: &[&str]| {
            let mut objects = Objects::default();
            for list in lists {
                objects.read("list", list.as_bytes()).unwrap();
            }
            objects.inventory()
        };
        assert_eq!(registry.rebuild(&inventory(&[guest]), at(1)).unwrap().adoption.adopted, 1);
        assert_eq!(
            audit(&mut registry, &inventory(&[machine, guest]), &Options::default(), at(2)).unwrap().missing,
            []
        );
    }

    /// Lists of a whole cluster: an object of each kind in namespace `n`, and these items.
    fn cluster(items: &str) -> Inventory {
        let kinds = ["KubevirtMachine", "VirtualMachine", "VirtualMachineInstance"];
        let other = |kind: &str| {
            format!(r#"{{"kind": "{kind}", "metadata": {{"namespace": "n", "name": "other", "uid": "{kind}"}}}}"#)
        };
        let mut all: Vec<String> = kinds.map(other).to_vec();
        all.extend((!items.is_empty()).then(|| items.to_owned()));
        let mut objects = Objects::default();
        objects.read("list", format!(r#"{{"items": [{}]}}"#, all.join(", ")).as_bytes()).unwrap();
        objects.inventory()
    }

    fn registry_with(names: &[&str]) -> Registry<MemoryLedger> {
        let one = pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}");
        let mut registry = registry([one]);
        for name in names {
            let machine = Machine::new("n", *name, "u");
            let requests = vec![Request::of("default/one")];
            registry.claim(&Claim { machine, created: at(0), requests, sticky: false, secret: None }, at(0)).unwrap();
        }
        registry
    }

    fn release(fetched: u64) -> Options {
        Options { fetched: at(fetched), release: true, ..Options::default() }
    }

    /// The machines that an audit releases, and the brakes that apply.
    fn released(audit: &Audit) -> (Vec<&str>, &[Brake]) {
        let released = audit.missing.iter().filter(|missing| missing.released.is_some());
        (released.map(|missing| missing.machine.name.as_str()).collect(), &audit.brakes)
    }

    #[test]
    fn an_audit_with_lists_that_were_fetched_too_early_releases_nothing() {
        let mut registry = registry_with(&["a"]);
        let mut look = |fetched, now| audit(&mut registry, &cluster(""), &release(fetched), now).unwrap();
        let releasable_from = |audit: &Audit| audit.missing[0].releasable_from;
        assert_eq!(releasable_from(&look(900, at(1_000))), at(301_000));
        // A later audit of lists from the same time releases nothing.
        assert_eq!(released(&look(900, at(10_000_000))), (vec![], &[][..]));
        assert_eq!(released(&look(300_999, at(10_000_001))), (vec![], &[][..]));
        assert_eq!(released(&look(301_000, at(10_000_002))), (vec!["a"], &[][..]));
        assert_eq!(look(400_000, at(10_000_003)).missing, []);
    }

    #[test]
    fn a_machine_that_claims_between_the_decision_and_the_release_keeps_its_address() {
        let mut registry = registry_with(&["a", "b"]);
        assert_eq!(audit(&mut registry, &cluster(""), &release(0), at(1_000)).unwrap().missing.len(), 2);
        let [a, b] = ["a", "b"].map(|name| Machine::new("n", name, "u"));
        let missing: BTreeMap<&Machine, Timestamp> = [(&a, at(1_000)), (&b, at(1_000))].into();
        let requests = vec![Request::of("default/one")];
        let claim = Claim { machine: a.clone(), created: at(0), requests, sticky: false, secret: None };
        registry.claim(&claim, at(2_000)).unwrap();
        let (released, kept) = registry.release_missing(&missing, at(2_000)).unwrap();
        let released: Vec<Machine> = released.into_iter().map(|allocation| allocation.claimant.machine).collect();
        assert_eq!((released, kept), (vec![b], [a].into()));
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut registry = registry_with(&["a"]);
        let dry = |fetched| Options { dry_run: true, ..release(fetched) };
        assert_eq!(audit(&mut registry, &cluster(""), &dry(0), at(0)).unwrap().missing[0].since, None);
        assert_eq!(audit(&mut registry, &cluster(""), &release(0), at(0)).unwrap().missing[0].since, None);
        let first = audit(&mut registry, &cluster(""), &dry(300_000), at(300_000)).unwrap();
        let again = audit(&mut registry, &cluster(""), &dry(300_000), at(300_000)).unwrap();
        assert_eq!((released(&first), &first), ((vec!["a"], &[][..]), &again));
        assert_eq!(first.missing[0].released.as_ref().unwrap()[0].addresses, ["10.0.0.1/24".parse().unwrap()]);
    }

    #[test]
    fn an_audit_that_would_release_too_many_machines_releases_none() {
        let names: Vec<String> = (0..11).map(|number| number.to_string()).collect();
        let mut registry = registry_with(&names.iter().map(String::as_str).collect::<Vec<_>>());
        audit(&mut registry, &cluster(""), &release(0), at(0)).unwrap();
        let mut look = |max_release| {
            let options = Options { max_release, ..release(300_000) };
            let audit = audit(&mut registry, &cluster(""), &options, at(300_000)).unwrap();
            (released(&audit).0.len(), audit.brakes)
        };
        assert_eq!(look(None), (0, vec![Brake::TooMany { machines: 11, most: 10 }]));
        assert_eq!(look(Some(11)), (11, vec![]));
    }

    #[test]
    fn lists_that_lack_a_kind_or_a_namespace_release_nothing() {
        let mut registry = registry_with(&["a"]);
        audit(&mut registry, &Inventory::default(), &release(0), at(0)).unwrap();
        let list =
            r#"{"items": [{"kind": "VirtualMachine", "metadata": {"namespace": "m", "name": "b", "uid": "v"}}, 7]}"#;
        let mut objects = Objects::default();
        objects.read("list", list.as_bytes()).unwrap();
        let audit = audit(&mut registry, &objects.inventory(), &release(300_000), at(300_000)).unwrap();
        let brakes = [
            Brake::NoKind("KubevirtMachine"),
            Brake::NoKind("VirtualMachineInstance"),
            Brake::NoNamespace("n".to_owned()),
            Brake::Unidentified(1),
        ];
        assert_eq!(released(&audit), (vec![], &brakes[..]));
    }

    #[test]
    fn lists_without_the_namespace_of_virtual_machines_release_nothing() {
        let machine = |name: &str| {
            format!(
                r#"{{"kind": "KubevirtMachine", "metadata": {{"namespace": "n", "name": "{name}", "uid": "u"}},
                "spec": {{"virtualMachineTemplate": {{"metadata": {{"namespace": "m"}}}}}}}}"#
            )
        };
        let audited = |items: &str| {
            let mut registry = registry_with(&["a"]);
            audit(&mut registry, &cluster(""), &release(0), at(0)).unwrap();
            let audit = audit(&mut registry, &cluster(items), &release(300_000), at(300_000)).unwrap();
            (audit.missing[0].released.is_some(), audit.brakes)
        };
        assert_eq!(audited(&machine("b")), (false, vec![Brake::NoVmNamespace("m".to_owned())]));
        assert_eq!(audited(&[machine("b"), MOVED.to_owned()].join(", ")), (true, vec![]));
    }

    #[test]
    fn a_clock_that_went_backwards_releases_nothing() {
        let mut registry = registry_with(&["a"]);
        audit(&mut registry, &cluster(""), &release(0), at(1_000_000)).unwrap();
        let audit = audit(&mut registry, &cluster(""), &release(1_300_000), at(999_999)).unwrap();
        let brake = Brake::Clock { now: at(999_999), latest: at(1_000_000) };
        assert_eq!(released(&audit), (vec![], &[brake.clone()][..]));
        assert_eq!(
            brake.to_string(),
            "the clock shows 1970-01-01T00:16:39Z, expected a time after 1970-01-01T00:16:40Z, the latest in the ledger"
        );
    }

    const RECORDED: &str = r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": "u",
        "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "[\"10.0.0.1/24\"]"}}}"#;

    fn messages(registry: &mut Registry<MemoryLedger>, items: &str) -> Vec<String> {
        let audit = audit(registry, &cluster(items), &Options::default(), at(0)).unwrap();
        audit.disagreements.iter().map(|it| it.text(Store::Ledger)).collect()
    }

    #[test]
    fn an_audit_reports_leases_without_records_and_records_without_leases() {
        assert_eq!(messages(&mut registry_with(&["a"]), RECORDED), [] as [&str; 0]);
        let bare = r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": "u"}}"#;
        let not_recorded = "10.0.0.1 of eno101 of n/a (u) is in the ledger, and no object of the machine records it";
        assert_eq!(messages(&mut registry_with(&["a"]), bare), [not_recorded]);
        let not_leased = "list: items[3].metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\": 10.0.0.1 of \
            eno101 of n/a (u) is not in the ledger, rebuild adds it";
        assert_eq!(messages(&mut registry_with(&[]), RECORDED), [not_leased]);
    }

    #[test]
    fn the_pages_have_a_row_for_each_message_of_an_audit() {
        /// Whether a table of the page has the message in its first column, in which `…` stands for any text.
        fn has_row(page: &str, message: &str) -> bool {
            let fits = |pattern: &str| {
                let mut rest = message;
                pattern.split('…').all(|part| match rest.split_once(part) {
                    Some((_, after)) => {
                        rest = after;
                        true
                    }
                    None => false,
                })
            };
            let mut rows = page.lines().filter_map(|line| line.strip_prefix("| `…")?.split_once('`'));
            rows.any(|(pattern, _)| fits(pattern))
        }
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let claimant = Claimant { machine: Machine::new("n", "a", "u"), interface: "eno101".parse().unwrap() };
        let problems = [
            Problem::Duplicate(claimant.clone()),
            Problem::ReuseDelay(claimant.clone()),
            Problem::NoPool,
            Problem::Ambiguous(vec!["one".to_owned(), "two".to_owned()]),
            Problem::OtherAddress(address),
            Problem::OtherNetwork("one".to_owned()),
            Problem::OutOfPool("n/one".to_owned()),
            Problem::Reserved("n/one".to_owned(), None),
            Problem::Prefix(24),
            Problem::Ignored(Ignored::Share),
        ];
        // A new problem fails to compile here until it is in the list, too.
        let is_printed = |problem: &Problem| match problem {
            Problem::Duplicate(_)
            | Problem::ReuseDelay(_)
            | Problem::NoPool
            | Problem::Ambiguous(_)
            | Problem::OtherAddress(_)
            | Problem::OtherNetwork(_)
            | Problem::OutOfPool(_)
            | Problem::Reserved(..)
            | Problem::Prefix(_)
            | Problem::Ignored(_) => true,
            // An audit asks no API server, which refuses a lease.
            Problem::NotRecorded(_) => false,
        };
        assert!(problems.iter().all(is_printed));
        let source = "KubevirtMachine n/a".to_owned();
        let report = Report { source: source.clone(), machine: claimant.machine.clone(), network: None, address };
        let not_leased = |is_reserved| {
            let (source, claimant) = (source.clone(), claimant.clone());
            Disagreement::NotLeased { source, claimant, address, is_reserved }
        };
        let disagreements = [
            Disagreement::NotRecorded { claimant: claimant.clone(), address },
            not_leased(false),
            not_leased(true),
            Disagreement::Reported { report: report.clone(), holder: Some(claimant.clone()) },
            Disagreement::Reported { report, holder: None },
        ];
        let texts = |store| disagreements.iter().map(move |disagreement| disagreement.text(store));
        let mismatches = problems.map(|problem| {
            let (source, claimant) = (source.clone(), claimant.clone());
            Mismatch { source, claimant, address, problem }.to_string()
        });
        let (recovery, troubleshooting) =
            (include_str!("../../docs/recovery.md"), include_str!("../../docs/troubleshooting.md"));
        let mut missing: Vec<String> = mismatches.into_iter().chain(texts(Store::Leases)).collect();
        missing.retain(|message| !has_row(recovery, message));
        missing.extend(texts(Store::Ledger).filter(|message| !has_row(troubleshooting, message)));
        assert_eq!(missing, [] as [&str; 0]);
    }

    #[test]
    fn an_unknown_address_of_a_guest_is_reported_and_reserved() {
        let guest = |name: &str, address: &str| {
            format!(
                r#"{{"kind": "VirtualMachineInstance", "metadata": {{"namespace": "n", "name": "{name}", "uid": "i"}},
                "status": {{"interfaces": [{{"ipAddress": "{address}", "ipAddresses": ["fe80::1"]}}]}}}}"#
            )
        };
        let mut registry = registry_with(&["a"]);
        // The address is in no pool.
        assert_eq!(messages(&mut registry, &guest("b", "10.8.0.1")), [] as [&str; 0]);
        assert_eq!(
            messages(&mut registry, &guest("b", "10.0.0.1")),
            ["list: items[3].status.interfaces[0]: 10.0.0.1 is in use by n/b (i), and belongs to eno101 of n/a (u)"]
        );
        let unknown = "list: items[3].status.interfaces[0]: 10.0.0.2 is in use by n/b (i), and neither the ledger nor a record \
            has it";
        assert_eq!(messages(&mut registry, &guest("b", "10.0.0.2")), [unknown]);
        registry.rebuild(&cluster(&guest("b", "10.0.0.2")), at(0)).unwrap();
        let machine = Machine::new("n", "c", "u");
        let requests = vec![Request::of("default/one")];
        let given =
            registry.claim(&Claim { machine, created: at(0), requests, sticky: false, secret: None }, at(0)).unwrap();
        assert_eq!(given[0].addresses, ["10.0.0.3/24".parse().unwrap()]);
    }

    #[test]
    fn the_record_of_a_machine_without_a_guest_takes_no_address_from_a_running_guest() {
        let guest = |name: &str, address: &str| {
            format!(
                r#"{{"kind": "VirtualMachineInstance", "metadata": {{"namespace": "n", "name": "{name}", "uid": "i-{name}"}},
                "status": {{"interfaces": [{{"ipAddress": "{address}"}}]}}}}"#
            )
        };
        let adopt = |guests: &[String]| {
            let items: Vec<&str> = [RECORDED].into_iter().chain(guests.iter().map(String::as_str)).collect();
            let mut registry = registry_with(&[]);
            let adoption = registry.rebuild(&cluster(&items.join(", ")), at(0)).unwrap().adoption;
            (adoption.adopted, adoption.mismatches.iter().map(ToString::to_string).collect::<Vec<String>>())
        };
        let stray = guest("b", "10.0.0.1");
        let mismatch = "list: items[3].metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\": 10.0.0.1 of \
            eno101 of n/a (u) is also of eno101 of n/b (i-b)";
        assert_eq!(adopt(std::slice::from_ref(&stray)), (0, vec![mismatch.to_owned()]));
        assert_eq!(adopt(&[guest("b", "10.0.0.2")]), (1, vec![]));
        // Machine a has a guest, which may also use an address that it does not report.
        assert_eq!(adopt(&[guest("a", "10.0.0.7"), stray]).0, 1);
    }

    #[test]
    fn an_unknown_address_of_a_guest_is_reserved_on_the_network_of_its_interface_alone() {
        let guest = r#"{"kind": "VirtualMachineInstance", "metadata": {"namespace": "n", "name": "b", "uid": "i"},
            "spec": {"networks": [{"name": "nic", "multus": {"networkName": "n/left"}}]},
            "status": {"interfaces": [{"name": "nic", "ipAddress": "10.0.0.1"}]}}"#;
        let pools = ["left", "right"]
            .map(|name| pool(&format!("{{name: {name}, network: n/{name}, addresses: [10.0.0.0/24]}}")));
        let mut registry = registry(pools);
        registry.rebuild(&cluster(guest), at(0)).unwrap();
        let conflicts = registry.state().unwrap().conflicts();
        let conflicts: Vec<_> = conflicts.map(|(network, address, _)| format!("{address} {network}")).collect();
        assert_eq!(conflicts, ["10.0.0.1 n/left"]);
    }

    /// The StaticIPLeases of a cluster: one lease of the address 10.0.0.1 of network `default/vlan10` and pool
    /// `default/one`.
    fn leases(holder: &str) -> Leases {
        let text = format!(
            "{{kind: StaticIPLease, metadata: {{name: 10-0-0-1.default.vlan10}}, spec: {{network: default/vlan10, address: \
             10.0.0.1, prefix: 24, pool: default/one, since: '1970-01-01T00:00:00Z', holder: {{{holder}, namespace: 'n', \
             uid: u, interface: eno101}}}}}}"
        );
        let (leases, diagnostics) = read_leases(text.as_bytes());
        assert_eq!(diagnostics.kept(), []);
        leases
    }

    /// Returns the messages of an audit of leases, and the missing machines.
    fn audit_leases(holder: &str, items: &str) -> (Vec<String>, Vec<String>) {
        let leases = leases(holder);
        let mut registry = Registry::open(leases.ledger().unwrap()).unwrap();
        registry.resize([pool("{name: one, network: vlan10, addresses: [10.0.0.0/24]}")], &[], at(0)).unwrap();
        let mut inventory = cluster(items);
        leases.name_machines(&mut inventory);
        let audit = audit(&mut registry, &inventory, &Options::default(), at(0)).unwrap();
        let mismatches = audit.adoption.mismatches.iter().map(ToString::to_string);
        let messages = mismatches.chain(audit.disagreements.iter().map(|it| it.text(Store::Leases))).collect();
        (messages, audit.missing.iter().map(|missing| missing.machine.to_string()).collect())
    }

    #[test]
    fn the_leases_of_a_cluster_are_compared_with_its_objects() {
        let right = (vec![], vec![]);
        assert_eq!(audit_leases("kind: KubevirtMachine, name: a", RECORDED), right);
        let vm = RECORDED.replace("\"KubevirtMachine\"", "\"VirtualMachine\"");
        assert_eq!(audit_leases("kind: VirtualMachine, name: a", &vm), right);
        let (messages, missing) = audit_leases("kind: KubevirtMachine, name: b", RECORDED);
        let taken = "list: items[3].metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\": 10.0.0.1 of \
                     eno101 of n/a (u) is also of eno101 of n/b (u)";
        assert_eq!((messages, missing), (vec![taken.to_owned()], vec!["n/b (u)".to_owned()]));
        let bare = r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "a", "uid": "u"}}"#;
        let not_recorded = "10.0.0.1 of eno101 of n/a (u) is in the leases, and no object of the machine records it";
        assert_eq!(audit_leases("kind: KubevirtMachine, name: a", bare), (vec![not_recorded.to_owned()], vec![]));
    }

    #[test]
    fn a_cluster_needs_no_lease_of_an_address_that_its_pools_do_not_offer() {
        // The record names its network, so it belongs to this network even if no pool has the address.
        let network = "\"ipam.glowplug.dev/network-eno101\": \"default/n\"";
        let recorded = RECORDED.replace("\"annotations\": {", &format!("\"annotations\": {{{network}, "));
        let audit = |members: &str| {
            let mut registry = registry([pool(&format!("{{name: one, network: 'n', {members}}}"))]);
            let audit = audit(&mut registry, &cluster(&recorded), &Options::default(), at(0)).unwrap();
            let told = |store| {
                let of = |it: &Disagreement| (it.is_right(store), it.text(store));
                audit.disagreements.iter().map(of).collect::<Vec<_>>()
            };
            (audit.adoption.reserved.clone(), told(Store::Leases), told(Store::Ledger))
        };
        let record = "list: items[3].metadata.annotations.\"kubevirt.cluster.x-k8s.io/allocated-ip-eno101\": 10.0.0.1 of \
            eno101 of n/a (u)";
        let reserved = vec![(
            Claimant { machine: Machine::new("n", "a", "u"), interface: "eno101".parse().unwrap() },
            "10.0.0.1".parse().unwrap(),
        )];
        let in_ledger = |does: &str| vec![(false, format!("{record} is not in the ledger, rebuild {does} it"))];
        let excluded =
            vec![(true, format!("{record} is not in the leases, and is excluded: it stays with its machine"))];
        let lost = vec![(false, format!("{record} is not in the leases, the controller adds it when it starts"))];
        assert_eq!(audit("addresses: [10.0.0.0/24]"), (vec![], lost, in_ledger("adds")));
        for members in ["addresses: [10.0.0.0/24], excludedAddresses: [10.0.0.1]", "addresses: [10.1.0.0/24]"] {
            assert_eq!(audit(members), (reserved.clone(), excluded.clone(), in_ledger("reserves")), "{members}");
        }
    }

    #[test]
    fn without_a_list_of_claims_no_claim_is_missing_and_a_guest_may_use_its_address() {
        let guest = |namespace: &str| {
            format!(
                r#"{{"kind": "VirtualMachineInstance", "metadata": {{"namespace": "{namespace}", "name": "b", "uid": "i"}},
                "status": {{"interfaces": [{{"ipAddress": "10.0.0.1"}}]}}}}"#
            )
        };
        let claim = "kind: IPAddressClaim, name: a";
        assert_eq!(audit_leases(claim, &guest("n")), (vec![], vec![]));
        let foreign =
            "list: items[3].status.interfaces[0]: 10.0.0.1 is in use by m/b (i), and belongs to IPAddressClaim n/a (u)";
        assert_eq!(audit_leases(claim, &guest("m")), (vec![foreign.to_owned()], vec![]));
    }

    /// A VirtualMachine `m/b` and its instance, whose labels name the machine `n/other`. `records` has the annotations
    /// of the VirtualMachine.
    fn labelled(records: &str) -> String {
        let labels = r#""labels": {"capk.cluster.x-k8s.io/kubevirt-machine-namespace": "n",
            "capk.cluster.x-k8s.io/kubevirt-machine-name": "other"}"#;
        format!(
            r#"{{"kind": "VirtualMachine", "metadata": {{"namespace": "m", "name": "b", "uid": "v", {labels},
                "annotations": {{{records}}}}}}},
            {{"kind": "VirtualMachineInstance", "metadata": {{"namespace": "m", "name": "b", "uid": "i", {labels},
                "ownerReferences": [{{"kind": "VirtualMachine", "name": "b", "uid": "v"}}]}}}}"#
        )
    }

    #[test]
    fn a_machine_whose_labels_name_a_machine_of_another_namespace_is_not_released() {
        let mut registry = registry([pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}")]);
        for machine in [Machine::new("m", "b", "v"), Machine::new("n", "gone", "u")] {
            registry.claim(&Claim::new(machine, at(0)).request(Request::of("default/one")), at(0)).unwrap();
        }
        let inventory = cluster(&labelled(""));
        audit(&mut registry, &inventory, &release(0), at(0)).unwrap();
        let audit = audit(&mut registry, &inventory, &release(300_000), at(300_000)).unwrap();
        assert_eq!(released(&audit), (vec!["gone"], &[][..]));
        let holder = registry.state().unwrap().holder("default/n", "10.0.0.1".parse().unwrap()).cloned();
        assert_eq!(holder.map(|holder| holder.machine), Some(Machine::new("m", "b", "v")));
    }

    #[test]
    fn a_record_belongs_to_its_object_even_if_labels_name_a_machine_of_another_namespace() {
        for (value, lease, reserved_for) in [
            ("10.0.0.7/24", vec!["10.0.0.7 m/b (v)"], vec![]),
            ("10.9.9.9", vec![], vec!["10.9.9.9 m/b"]),
            ("10.0.0.7/99", vec![], vec!["10.0.0.7 m/b"]),
        ] {
            let mut registry = registry_with(&[]);
            let annotation = format!(
                r#""kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "{value}", "ipam.glowplug.dev/network-eno101": "default/n""#
            );
            registry.rebuild(&cluster(&labelled(&annotation)), at(0)).unwrap();
            let leases = registry.state().unwrap().leases();
            let leases: Vec<String> =
                leases.map(|(_, address, lease)| format!("{address} {}", lease.claimant.machine)).collect();
            assert_eq!((leases, reserved(&mut registry)), (strings(&lease), strings(&reserved_for)), "{value}");
        }
    }

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_address_that_a_guest_uses_is_not_released() {
        let mut registry = registry_with(&["a"]);
        let guest = r#"{"kind": "VirtualMachineInstance", "metadata": {"namespace": "n", "name": "b", "uid": "i"},
            "status": {"interfaces": [{"ipAddress": "10.0.0.1"}]}}"#;
        assert_eq!(audit(&mut registry, &cluster(guest), &release(0), at(0)).unwrap().missing, []);
        assert_eq!(audit(&mut registry, &cluster(""), &release(0), at(0)).unwrap().missing.len(), 1);
    }

    /// A VirtualMachine `b` that records 10.0.0.1, and its instance, whose guest reports nothing.
    const MOVED: &str = r#"{"kind": "VirtualMachine", "metadata": {"namespace": "m", "name": "b", "uid": "v",
        "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.1/24"}}},
        {"kind": "VirtualMachineInstance", "metadata": {"namespace": "m", "name": "b", "uid": "i",
        "ownerReferences": [{"kind": "VirtualMachine", "name": "b", "uid": "v"}]}}"#;

    /// The addresses that records or reports reserve without a lease, with the names of their machines.
    fn reserved(registry: &mut Registry<MemoryLedger>) -> Vec<String> {
        let conflicts = registry.state().unwrap().conflicts();
        conflicts.map(|(_, address, conflict)| format!("{address} {}", conflict.claimant.machine.title())).collect()
    }

    #[test]
    fn an_address_that_another_object_records_stays_reserved_after_the_release() {
        let mut registry = registry_with(&["a", "c"]);
        audit(&mut registry, &cluster(MOVED), &release(0), at(0)).unwrap();
        // An audit without a release adopts nothing.
        assert_eq!(reserved(&mut registry), [""; 0]);
        let audit = audit(&mut registry, &cluster(MOVED), &release(300_000), at(300_000)).unwrap();
        assert_eq!(released(&audit), (vec!["a", "c"], &[][..]));
        assert_eq!(reserved(&mut registry), ["10.0.0.1 m/b"]);
        // The machine of the record gets the lease with the next rebuild.
        registry.rebuild(&cluster(MOVED), at(300_001)).unwrap();
        let holder = registry.state().unwrap().holder("default/n", "10.0.0.1".parse().unwrap()).cloned();
        assert_eq!(holder.map(|holder| holder.machine), Some(Machine::new("m", "b", "v")));
    }

    #[test]
    fn an_audit_gives_no_address_to_a_waiting_machine() {
        let mut registry = registry([pool("{name: one, network: 'n', addresses: [10.0.0.1], prefix: 24}")]);
        let claim = |name: &str| Claim::new(Machine::new("n", name, "u"), at(0)).request(Request::of("default/one"));
        registry.claim(&claim("a"), at(0)).unwrap();
        registry.claim(&claim("w"), at(0)).unwrap_err();
        let waits = r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "w", "uid": "u"}}"#;
        audit(&mut registry, &cluster(waits), &release(0), at(0)).unwrap();
        let audit = audit(&mut registry, &cluster(waits), &release(300_000), at(300_000)).unwrap();
        assert_eq!(released(&audit), (vec!["a"], &[][..]));
        let state = registry.state().unwrap();
        assert_eq!((state.leases().count(), state.waits(&claim("w").machine)), (0, true));
    }

    #[test]
    fn the_report_of_a_guest_counts_even_if_the_record_of_its_machine_is_ignored() {
        let pool = pool("{name: one, network: 'n', addresses: [10.0.0.0/24]}");
        let mut registry = registry([pool.with_namespaces(Namespaces::only(["n"]), Namespaces::only(["n"]))]);
        let status = r#"}]}, "status": {"interfaces": [{"ipAddress": "10.0.0.1"}]}}"#;
        let reports = MOVED.replace("}]}}", status);
        let adoption = registry.rebuild(&cluster(&reports), at(0)).unwrap().adoption;
        assert_eq!((adoption.adopted, adoption.mismatches.len()), (0, 1));
        assert_eq!(reserved(&mut registry), ["10.0.0.1 m/b"]);
    }

    #[test]
    fn a_rebuild_names_the_machines_that_may_use_an_unknown_address() {
        let machine = |name: &str, more: &str| {
            format!(
                r#"{{"kind": "KubevirtMachine", "metadata": {{"namespace": "n", "name": "{name}", "uid": "u-{name}"{more}}}}}"#
            )
        };
        let of = |pool: &str| format!(r#", "annotations": {{"hypershift.openshift.io/nodePool": "{pool}"}}"#);
        let items = [
            machine("a", ""),
            r#"{"kind": "KubevirtMachine", "metadata": {"namespace": "n", "name": "b", "uid": "u"}}"#.to_owned(),
            machine("c", &of("default/one")),
            machine("d", &of("default/two")),
        ]
        .join(", ");
        let mut registry = registry_with(&["b"]);
        let rebuilt = registry.rebuild(&cluster(&items), at(0)).unwrap();
        let names: Vec<&str> = rebuilt.without_record.iter().map(|machine| machine.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "other"]);
    }
}
