//! The entry point for callers: joins an allocator and the ledger that makes its decisions durable.

pub(super) mod rebuild;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use jiff::Timestamp;

use super::allocator::{Adoption, Allocator, ClaimError, Mismatch, PoolError, Rename, ReportChanges, Resized};
use super::change::{Change, Journal};
use super::claim::{Allocation, Claim, Claimant, Lease, Machine, Record, Reservation};
use super::ledger::{Ledger, LedgerError};
use super::pool::Pool;

/// An allocator with its ledger: the only way to change the state of pools and addresses.
///
/// Each call that may change the content of the ledger is one transaction. The registry reads what other processes
/// committed, decides, commits, and only then returns the result. If the commit fails, the registry undoes its
/// decisions.
///
/// The ledger also keeps the pools. [`Registry::resize`] adds and changes them. The addresses of pools are closed at
/// first: [`Registry::rebuild`] adopts the records of machines and opens the addresses.
///
/// The caller passes the time with each call. A ledger stores times in milliseconds since 1970.
///
/// ```
/// use glowplug::host::Timestamp;
/// use glowplug::host::claim::{Claim, Machine, Request};
/// use glowplug::host::ledger::MemoryLedger;
/// use glowplug::host::pool::Pool;
/// use glowplug::host::registry::Registry;
///
/// let pools = Pool::parse(
///     b"{name: workers, network: vlan10, interface: eno101, addresses: [10.0.0.8/31], machineNetwork: [{cidr: 10.0.0.0/24}]}",
/// )?;
/// let mut registry = Registry::open(MemoryLedger::default())?;
/// registry.resize(pools, &[], Timestamp::now())?;
/// // No machine uses this network yet. Otherwise, call `rebuild` with the objects of the machines.
/// registry.open_addresses(Timestamp::now())?;
/// let created: Timestamp = "2026-08-01T10:00:00Z".parse()?;
/// let claim = |name: &str| {
///     let machine = Machine::new("clusters", name, format!("uid-of-{name}"));
///     Claim::new(machine, created).request(Request::of("default/workers"))
/// };
/// assert_eq!(registry.claim(&claim("worker-0"), Timestamp::now())?[0].addresses[0].to_string(), "10.0.0.8/24");
/// assert_eq!(registry.claim(&claim("worker-1"), Timestamp::now())?[0].addresses[0].to_string(), "10.0.0.9/24");
/// let refused = registry.claim(&claim("worker-2"), Timestamp::now()).unwrap_err();
/// assert_eq!(refused.to_string(), "No available IPs in pool for interface eno101");
///
/// // The waiting machine is served when an address is released.
/// let released = registry.release(&claim("worker-0").machine, Timestamp::now())?;
/// assert_eq!(released.served[0].claimant.machine.name, "worker-2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Registry<L> {
    ledger: L,
    allocator: Allocator,
}

/// Maximum number of times that one call decides again because the ledger refused leases. Each time, at least one
/// address or machine is set aside.
const ROUNDS: usize = 100;

/// Result of several claims.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Claimed {
    /// Result of each claim, in the order of the claims: its allocations, or why the claim is refused.
    pub answers: Vec<Result<Vec<Allocation>, ClaimError>>,
    /// Allocations to waiting machines.
    pub served: Vec<Allocation>,
}

/// Result of a release.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Released {
    /// The released allocations, in the order of the machines.
    pub held: Vec<Allocation>,
    /// Allocations to waiting machines.
    pub served: Vec<Allocation>,
}

/// Result of a rebuild.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rebuilt {
    /// Result for the records.
    pub adoption: Adoption,
    /// Machines that have neither a record nor a lease, and that may belong to one of the pools. If such a machine
    /// runs, it may use an address that neither the ledger nor an object records.
    pub without_record: Vec<Machine>,
    /// Allocations to waiting machines.
    pub served: Vec<Allocation>,
}

/// Why a claimant got no addresses.
#[derive(Debug)]
pub enum RegistryError {
    /// The claim is refused.
    Refused(ClaimError),
    /// The ledger failed, and nothing was allocated.
    Ledger(LedgerError),
}

/// Why pools cannot be changed.
#[derive(Debug)]
pub enum ResizeError {
    /// The change is refused.
    Refused(PoolError),
    /// The ledger failed, and nothing was changed.
    Ledger(LedgerError),
}

// === impl Registry ===

impl<L: Ledger> Registry<L> {
    /// Opens a registry with the state of a ledger, including its pools.
    ///
    /// A running machine may use an address that the ledger does not record. So new addresses are closed: the registry
    /// allocates them only after [`Registry::rebuild`] has adopted the records of machines, or after
    /// [`Registry::open_addresses`]. All addresses are new when the registry is opened. Later, an address is new when it
    /// becomes allocatable by one of these changes:
    ///
    /// - a new pool or a larger pool, also if another process adds it
    /// - a pool that is no longer suspended, or that serves further namespaces
    /// - the end of an exclusion or of a reservation
    ///
    /// A release does not close an open address. If another process changes a pool and changes it back between two calls,
    /// this registry sees no change: call [`Registry::rebuild`] after each change of a pool by another process.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn open(mut ledger: L) -> Result<Self, LedgerError> {
        let mut allocator = Allocator::default();
        allocator.learn(ledger.catch_up()?);
        Ok(Self { ledger, allocator })
    }

    /// Opens all new addresses without records of machines, and serves waiting machines. Call this in place of
    /// [`Registry::rebuild`] if no machine can use an address that the ledger does not record, for example because the
    /// ledger is the only record of the network and has never been lost.
    ///
    /// # Errors
    ///
    /// The ledger failed, and no machine was served. The addresses may be open.
    pub fn open_addresses(&mut self, now: Timestamp) -> Result<Vec<Allocation>, LedgerError> {
        self.write(|allocator, journal| allocator.open_up_to(allocator.growth(), now, journal))
    }

    /// Number of the last growth, that is, of the last change that closed new addresses. The start has the number 1.
    #[must_use]
    #[doc(hidden)]
    pub fn growth(&self) -> u64 {
        self.allocator.growth()
    }

    /// Opens the addresses of every growth whose number is at most `growth`, and serves waiting machines. The caller
    /// must have adopted the records of these addresses.
    ///
    /// # Errors
    ///
    /// The ledger failed, and no machine was served. The addresses may be open.
    #[doc(hidden)]
    pub fn open_up_to(&mut self, growth: u64, now: Timestamp) -> Result<Vec<Allocation>, LedgerError> {
        self.write(|allocator, journal| allocator.open_up_to(growth, now, journal))
    }

    /// Adds and removes reports of running guests, Services and Clusters. No other machine gets a reported address. A
    /// report never becomes a lease, and takes no address from its holder. A repeated call changes nothing. The call
    /// serves no waiting machine: call [`Registry::serve`] afterwards, because an address whose report has ended may be
    /// free.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing is changed.
    #[doc(hidden)]
    pub fn change_reports(
        &mut self,
        begun: &[Reservation],
        ended: &[Reservation],
        now: Timestamp,
    ) -> Result<ReportChanges, LedgerError> {
        self.state()?;
        Ok(self.allocator.change_reports(begun, ended, now))
    }

    /// Allocates every address the claim requests, or none. The machine keeps the addresses that it already holds.
    ///
    /// A repeated claim gets the same answer and changes nothing, so a controller can call this on every pass. A
    /// machine that claims is no longer missing. Waiting machines that can be served are served first.
    ///
    /// A claim that names no addresses waits if a pool is exhausted, or if the address that a pool keeps for the
    /// machine is not available. A machine that already waits keeps its place in the wait queue.
    ///
    /// # Errors
    ///
    /// - [`RegistryError::Refused`]: the claim is refused. The machine may now be waiting.
    /// - [`RegistryError::Ledger`]: the ledger failed. The caller can repeat the claim.
    pub fn claim(&mut self, claim: &Claim, now: Timestamp) -> Result<Vec<Allocation>, RegistryError> {
        self.write(|allocator, journal| allocator.claim(claim, now, journal))?.map_err(RegistryError::Refused)
    }

    /// Makes several claims in one transaction, in their order. Each claim is served or refused independently of the
    /// other claims. Waiting machines that can be served are served first.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was allocated.
    pub fn claim_all(&mut self, claims: &[Claim], now: Timestamp) -> Result<Claimed, LedgerError> {
        self.write(|allocator, journal| {
            let served = allocator.serve(now, journal);
            Claimed { answers: claims.iter().map(|claim| allocator.claim(claim, now, journal)).collect(), served }
        })
    }

    /// Releases all addresses of a machine, removes the machine from the wait queue, and removes its records without a
    /// lease. Then serves waiting machines.
    ///
    /// The UID must match, too: another machine of the same name keeps its addresses. Releasing a machine that holds
    /// nothing is not an error.
    ///
    /// Call this only when the machine is gone, that is, when it can no longer send packets from its addresses.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn release(&mut self, machine: &Machine, now: Timestamp) -> Result<Released, LedgerError> {
        self.release_all([machine], now)
    }

    /// Releases several machines in one transaction. Waiting machines are served after all releases, so that no
    /// released machine gets the address of another released machine.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn release_all<'m>(
        &mut self,
        machines: impl IntoIterator<Item = &'m Machine>,
        now: Timestamp,
    ) -> Result<Released, LedgerError> {
        let machines: Vec<&Machine> = machines.into_iter().collect();
        self.write(|allocator, journal| {
            let held = machines.iter().flat_map(|machine| allocator.release(machine, now, journal)).collect();
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Releases each of these machines that is still missing since the given time. Serves no waiting machine. Returns
    /// the released allocations, and the machines that are not released because they have claimed addresses since the
    /// caller read the state.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub(crate) fn release_missing(
        &mut self,
        missing: &BTreeMap<&Machine, Timestamp>,
        now: Timestamp,
    ) -> Result<(Vec<Allocation>, BTreeSet<Machine>), LedgerError> {
        self.write(|allocator, journal| {
            let still: BTreeMap<&Machine, Timestamp> = allocator.missing().collect();
            let is_missing = |(machine, since): &(&&Machine, &Timestamp)| still.get(**machine) == Some(*since);
            let (gone, kept): (Vec<_>, Vec<_>) = missing.iter().partition(is_missing);
            let held = gone.into_iter().flat_map(|(machine, _)| allocator.release(machine, now, journal)).collect();
            (held, kept.into_iter().map(|(machine, _)| Machine::clone(machine)).collect())
        })
    }

    /// Releases these addresses of a machine, removes its records of them, and serves waiting machines. Each address is
    /// given with its network. The machine keeps its other addresses and its place in the wait queue.
    ///
    /// Call this only when the machine can no longer send packets from these addresses.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    #[doc(hidden)]
    pub fn release_addresses(
        &mut self,
        machine: &Machine,
        addresses: &BTreeSet<(String, IpAddr)>,
        now: Timestamp,
    ) -> Result<Released, LedgerError> {
        self.write(|allocator, journal| {
            let held = allocator.release_addresses(machine, addresses, now, journal);
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Resolves one interface of [`Allocator::doubles`]: keeps the addresses of `keep`, releases the claimant's other
    /// addresses of the same families, and serves waiting machines.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn keep(&mut self, claimant: &Claimant, keep: &[IpAddr], now: Timestamp) -> Result<Released, LedgerError> {
        self.write(|allocator, journal| {
            let held = allocator.keep(claimant, keep, now, journal);
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Records the names of the Secrets from which guests of a machine may read its addresses, in each lease of the
    /// machine. The names replace all earlier names. Leave out a name only after no guest can read its Secret any more.
    ///
    /// # Errors
    ///
    /// The ledger failed, and the leases keep their earlier names of Secrets.
    pub fn set_secrets(&mut self, machine: &Machine, secrets: &BTreeSet<String>) -> Result<(), LedgerError> {
        self.write(|allocator, journal| allocator.set_secrets(machine, secrets, journal))
    }

    /// Moves the leases of a machine to the pools with these names, which serve the machine now, and returns the moved
    /// addresses. The machine keeps its addresses: an address that its new pool does not have counts as outside this
    /// pool. A pool takes the leases of its own interface on its own network; other leases stay in their pools.
    ///
    /// # Errors
    ///
    /// The ledger failed, and the leases stay in their pools.
    pub fn move_leases(&mut self, machine: &Machine, pools: &[String]) -> Result<Vec<IpAddr>, LedgerError> {
        self.write(|allocator, journal| allocator.move_leases(machine, pools, journal))
    }

    /// Records that the guest of a machine migrated to another cluster, where it keeps the addresses of the machine.
    /// For at least 30 days after their release, no machine gets these addresses, not even a machine of the same name.
    /// Returns the addresses for which the migration is not recorded: the ledger refuses to change the lease, or the
    /// namespace has reached its limit. In a pool that also serves other namespaces, a namespace keeps at most a
    /// quarter of the addresses, or 64 addresses if the pool is external.
    ///
    /// # Errors
    ///
    /// The ledger failed, and the migration is not recorded.
    pub fn note_migrated(&mut self, machine: &Machine, now: Timestamp) -> Result<BTreeSet<IpAddr>, LedgerError> {
        self.write(|allocator, journal| allocator.note_migrated(machine, now, journal))
    }

    /// Removes released leases that are no longer needed, and returns their number, at most 32. The last address of
    /// each machine name is remembered, and in sticky pools the last address of each claim name: the newest 1,000 such
    /// addresses, or four for each held address if this is more. `is_sticky` returns whether the pool with a name is
    /// sticky. `None`: the leases of the pool stay.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was removed.
    #[doc(hidden)]
    pub fn forget(&mut self, is_sticky: impl Fn(&str) -> Option<bool>, now: Timestamp) -> Result<usize, LedgerError> {
        self.write(|allocator, journal| allocator.forget(&is_sticky, now, journal))
    }

    /// Removes machines from the wait queue, for example machines that are being deleted. Their leases are kept.
    ///
    /// # Errors
    ///
    /// The ledger failed, and the machines still wait.
    pub fn withdraw<'m>(&mut self, machines: impl IntoIterator<Item = &'m Machine>) -> Result<(), LedgerError> {
        let machines: Vec<&Machine> = machines.into_iter().collect();
        self.write(|allocator, journal| machines.iter().for_each(|machine| allocator.withdraw(machine, journal)))
    }

    /// Serves waiting machines from addresses that have become free.
    ///
    /// Call this after the end of a reuse delay, and after [`Registry::change_reports`], which can free addresses and
    /// serves no machine. All other calls that free addresses serve waiting machines themselves.
    ///
    /// # Errors
    ///
    /// The ledger failed, and no machine was served.
    pub fn serve(&mut self, now: Timestamp) -> Result<Vec<Allocation>, LedgerError> {
        self.write(|allocator, journal| allocator.serve(now, journal))
    }

    /// Adds pools, replaces the pools of the same name, renames pools, and serves waiting machines. New addresses are
    /// closed: call [`Registry::rebuild`] afterwards, see [`Registry::open`].
    ///
    /// No machine loses an address. The holder keeps an address that its pool no longer offers; the address is counted
    /// as outside and is not allocated again. Held addresses get the prefix length of their pool.
    ///
    /// A pool can also be renamed without an entry in `renames`. A given pool that the ledger does not have is
    /// recognized as a renamed pool of the ledger if
    ///
    /// - the old pool is not given,
    /// - both pools have the same network and interface,
    /// - the new pool has all addresses of the old pool, and
    /// - neither the old pool nor the new pool fits a third pool in this way.
    ///
    /// # Errors
    ///
    /// [`ResizeError::Refused`] or [`ResizeError::Ledger`]; the pools stay unchanged.
    pub fn resize(
        &mut self,
        pools: impl IntoIterator<Item = Pool>,
        renames: &[Rename],
        now: Timestamp,
    ) -> Result<Resized, ResizeError> {
        let pools: Vec<Pool> = pools.into_iter().collect();
        let resized = self.write(|allocator, journal| allocator.resize(pools.clone(), renames, now, journal));
        resized.map_err(ResizeError::Ledger)?.map_err(ResizeError::Refused)
    }

    /// Sets the pools that allocate nothing, until the next call. Machines keep the addresses of these pools, and keep
    /// their place in the wait queue. A claim that can get an address only from such a pool is refused. The addresses of
    /// a pool that is no longer suspended are closed, see [`Registry::open`].
    ///
    /// The ledger does not record these pools: the caller sets them after each start.
    pub fn suspend(&mut self, pools: BTreeSet<String>) {
        self.allocator.suspend(pools);
    }

    /// Removes a pool without held addresses. The pool's reservations on its network end.
    ///
    /// # Errors
    ///
    /// [`ResizeError::Refused`] or [`ResizeError::Ledger`]; the pool stays unchanged.
    pub fn remove_pool(&mut self, name: &str, now: Timestamp) -> Result<(), ResizeError> {
        let removed = self.write(|allocator, journal| allocator.remove_pool(name, now, journal));
        removed.map_err(ResizeError::Ledger)?.map_err(ResizeError::Refused)
    }

    /// Adopts the records of Kubernetes objects in one transaction: each recorded address that the ledger does not have
    /// becomes a lease or a reservation, or is ignored, see [`host`](super#which-records-count). Most callers need
    /// [`Registry::rebuild`], which also reserves the addresses that guests report.
    ///
    /// Adoption never frees an address and never changes its holder. Each adoption reports the recorded addresses that
    /// contradict the ledger or the pools. If two machines have a record of an address that no machine holds, neither
    /// machine gets the address.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was adopted.
    pub fn adopt(
        &mut self,
        records: impl IntoIterator<Item = Record>,
        now: Timestamp,
    ) -> Result<Adoption, LedgerError> {
        let records: Vec<Record> = records.into_iter().collect();
        self.write(|allocator, journal| allocator.adopt(records.iter().cloned(), now, journal))
    }

    /// Leases exactly these addresses to a claimant, for its interface on the network of an external pool (see
    /// [`Pool::is_external`]): all of them or none. `source` names the object from which the addresses come, for
    /// messages. A repeated call gets the same answer and changes nothing.
    ///
    /// If another machine holds one of the addresses or has a record of it, no other machine gets the address before
    /// both machines are gone.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Refused`] or [`RegistryError::Ledger`]; nothing was leased.
    pub fn hold(
        &mut self,
        pool: &str,
        claimant: &Claimant,
        addresses: &[IpNetwork],
        source: &str,
        now: Timestamp,
    ) -> Result<(), RegistryError> {
        let held = self.write(|allocator, journal| allocator.hold(pool, claimant, addresses, source, now, journal));
        held?.map_err(RegistryError::Refused)
    }

    /// Returns the result that [`Registry::adopt`] would have, and changes nothing.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn preview(
        &mut self,
        records: impl IntoIterator<Item = Record>,
        now: Timestamp,
    ) -> Result<Adoption, LedgerError> {
        Ok(self.state()?.clone().adopt(records, now, &mut Journal::default()))
    }

    /// Reserves addresses for the machines of records that need no lease, until these machines are released. An address
    /// is reserved on the network of its record. If the record names no network, the address is reserved on every
    /// network that has a pool with the address. See [`host`](super#which-records-count) for the records that count.
    /// Returns the addresses that are not reserved because of a limit: records of the namespace already reserve its
    /// share of a shared pool, or records of the claim already reserve as many addresses as one claim may reserve.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was reserved.
    #[doc(hidden)]
    pub fn set_aside(
        &mut self,
        reservations: impl IntoIterator<Item = Reservation>,
        now: Timestamp,
    ) -> Result<Vec<Mismatch>, LedgerError> {
        let reservations: Vec<Reservation> = reservations.into_iter().collect();
        self.write(|allocator, journal| {
            let all = reservations.iter().cloned();
            all.flat_map(|reservation| allocator.set_aside(reservation, now, journal)).collect()
        })
    }

    /// Notes that no object of a machine records these addresses any more. Each address is given with its network. The
    /// addresses stay reserved until the machine is released or gives up further addresses, but the machine no longer counts
    /// as their user. No ledger stores this note.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read or written.
    #[doc(hidden)]
    pub fn end_records(
        &mut self,
        machine: &Machine,
        addresses: &BTreeSet<(String, IpAddr)>,
    ) -> Result<(), LedgerError> {
        self.write(|allocator, journal| allocator.end_records(machine, addresses, journal))
    }

    /// Records the result of a search for machines in one transaction: which machines exist, and which are missing.
    ///
    /// Returns for each missing machine when an earlier search first missed it. `None`: no earlier search missed it. A
    /// caller must not rely on a single search, which may miss a machine that exists.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was recorded.
    pub fn note_looked_for(
        &mut self,
        there: &[Machine],
        missing: &[Machine],
        now: Timestamp,
    ) -> Result<Vec<Option<Timestamp>>, LedgerError> {
        self.write(|allocator, journal| {
            there.iter().for_each(|machine| allocator.note_seen(machine, journal));
            missing.iter().map(|machine| allocator.note_missing(machine, now, journal)).collect()
        })
    }

    /// The current state, including what other processes committed, for reading only.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn state(&mut self) -> Result<&Allocator, LedgerError> {
        self.allocator.learn(self.ledger.catch_up()?);
        Ok(&self.allocator)
    }

    /// Ends the pause after the ledger refused a lease of a machine, so that the next claim of the machine asks the
    /// ledger again. Call this after a change that may lead to another answer.
    pub fn end_pause(&mut self, machine: &Machine) {
        self.allocator.end_pause(machine);
    }

    /// Closes the registry and returns its ledger.
    #[must_use]
    pub fn into_ledger(self) -> L {
        self.ledger
    }

    /// Decides and commits. If the ledger refuses some of the leases and would refuse them again, decides again without
    /// the refused addresses and machines, so that a refusal affects no other machine.
    fn write<T>(&mut self, mut decide: impl FnMut(&mut Allocator, &mut Journal) -> T) -> Result<T, LedgerError> {
        let mut rounds = 0;
        loop {
            let mut transaction = self.ledger.begin()?;
            self.allocator.learn(transaction.catch_up()?);
            let mut journal = Journal::default();
            let answer = decide(&mut self.allocator, &mut journal);
            if journal.changes().is_empty() {
                return Ok(answer);
            }
            let Err(error) = transaction.commit(journal.changes()) else {
                for change in journal.changes() {
                    if let Change::Lease { network, address, lease: Some(lease) } = change {
                        self.allocator.note_recorded(network, *address, &lease.claimant.machine);
                    }
                }
                return Ok(answer);
            };
            let refused = match &error {
                LedgerError::Refused(refused) if rounds < ROUNDS => refused.clone(),
                _ => Vec::new(),
            };
            let leases = |allocator: &Allocator| -> Vec<Option<Lease>> {
                refused.iter().map(|write| allocator.lease(&write.network, write.address).cloned()).collect()
            };
            let after = leases(&self.allocator);
            self.allocator.undo(journal);
            if refused.is_empty() {
                return Err(error);
            }
            let before = leases(&self.allocator);
            for (write, (before, after)) in refused.iter().zip(before.iter().zip(&after)) {
                self.allocator.note_refusal(write, before.as_ref(), after.as_ref());
            }
            rounds += 1;
        }
    }
}

// === impl ResizeError ===

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
        }
    }
}

impl Error for ResizeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(error) => error.source(),
            Self::Ledger(error) => error.source(),
        }
    }
}

// === impl RegistryError ===

impl From<LedgerError> for RegistryError {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Ledger(error) => error.fmt(f),
        }
    }
}

impl Error for RegistryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(error) => error.source(),
            Self::Ledger(error) => error.source(),
        }
    }
}
