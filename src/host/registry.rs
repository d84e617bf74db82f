//! The front door: an allocator and the ledger in which its decisions are durable.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use super::allocator::{Adoption, Allocator, ClaimError, PoolError, Rename, Resized};
use super::change::Journal;
use super::claim::{Allocation, Claim, Claimant, Conflict, Machine, Record};
use super::ledger::{Ledger, LedgerError};
use super::pool::Pool;

/// The only way to change the state of pools and addresses.
///
/// Each call that may change something is one transaction of the ledger: the registry learns what other processes committed,
/// decides, commits, and only then answers. If the commit fails, nothing has changed.
///
/// The ledger keeps the pools, too: they enter and change with [`Registry::resize`].
///
/// Times are milliseconds since 1970, and come with each call.
///
/// ```
///
/// use glowplug::host::claim::{Claim, Machine, Request};
/// use glowplug::host::ledger::MemoryLedger;
/// use glowplug::host::pool::{Pool, TemplateFacts, read_pools};
/// use glowplug::host::registry::Registry;
///
/// let (specs, mut findings) =
///     read_pools(b"{name: workers, network: vlan10, interface: eno101, addresses: [10.0.0.8/31], machineNetwork: [{cidr: 10.0.0.0/24}]}");
/// let pool = Pool::new(&specs[0], &TemplateFacts::default(), &mut findings).unwrap();
///
/// let mut registry = Registry::open(MemoryLedger::default())?;
/// registry.resize([pool], &[], 0)?;
/// let claim = |name: &str| Claim {
///     machine: Machine { namespace: "clusters".into(), name: name.into(), uid: format!("uid-of-{name}") },
///     created: 0,
///     requests: vec![Request::of("default/workers")],
///     sticky: false,
/// };
/// assert_eq!(registry.claim(&claim("worker-0"), 1)?[0].addresses[0].to_string(), "10.0.0.8/24");
/// assert_eq!(registry.claim(&claim("worker-1"), 2)?[0].addresses[0].to_string(), "10.0.0.9/24");
/// let refused = registry.claim(&claim("worker-2"), 3).unwrap_err();
/// assert_eq!(refused.to_string(), "No available IPs in pool for interface eno101");
///
/// // Who waits is served when an address comes back.
/// let released = registry.release(&claim("worker-0").machine, 4)?;
/// assert_eq!(released.served[0].claimant.machine.name, "worker-2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Registry<L> {
    ledger: L,
    allocator: Allocator,
}

/// What a release did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Released {
    /// What the machines held, one after the other.
    pub held: Vec<Allocation>,
    /// What those got who waited.
    pub served: Vec<Allocation>,
}

/// Why there is no answer to a claim.
#[derive(Debug)]
pub enum RegistryError {
    /// The claim is refused.
    Refused(ClaimError),
    /// The ledger failed, and nothing was allocated.
    Ledger(LedgerError),
}

/// Why pools are not changed.
#[derive(Debug)]
pub enum ResizeError {
    /// The change is refused.
    Refused(PoolError),
    /// The ledger failed, and nothing was changed.
    Ledger(LedgerError),
}

// === impl Registry ===

impl<L: Ledger> Registry<L> {
    /// Opens a ledger, with the pools that it keeps.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn open(mut ledger: L) -> Result<Self, LedgerError> {
        let mut allocator = Allocator::default();
        allocator.learn(ledger.catch_up()?);
        Ok(Self { ledger, allocator })
    }

    /// Allocates every address the claim requests, or none. Addresses that the machine holds already are kept.
    ///
    /// Claiming twice is claiming once, so a controller may call this on every pass. A machine that claims is not missing.
    /// Waiting machines that can be served are served first. A claim that finds a pool exhausted waits from then on, unless it
    /// names addresses; a machine that waits already keeps its place.
    ///
    /// # Errors
    ///
    /// [`RegistryError::Refused`], after which the machine may be waiting; [`RegistryError::Ledger`], after which the same
    /// claim may be made again.
    pub fn claim(&mut self, claim: &Claim, now: u64) -> Result<Vec<Allocation>, RegistryError> {
        self.write(|allocator, journal| allocator.claim(claim, now, journal))?.map_err(RegistryError::Refused)
    }

    /// Makes several claims in one transaction, in their order. Each is served or refused by itself.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was allocated.
    pub fn claim_all(
        &mut self,
        claims: &[Claim],
        now: u64,
    ) -> Result<Vec<Result<Vec<Allocation>, ClaimError>>, LedgerError> {
        self.write(|allocator, journal| claims.iter().map(|claim| allocator.claim(claim, now, journal)).collect())
    }

    /// Releases everything that a machine holds, waits for or has a conflicting record of, and serves waiting machines. A
    /// machine that holds nothing is no error. Only this very machine: its UID counts.
    ///
    /// To be called only when the machine is gone, that is when it cannot send from its addresses any more.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn release(&mut self, machine: &Machine, now: u64) -> Result<Released, LedgerError> {
        self.release_all([machine], now)
    }

    /// Releases several machines in one transaction. Waiting machines are served after that, so none of the released ones
    /// gets an address of another.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn release_all<'m>(
        &mut self,
        machines: impl IntoIterator<Item = &'m Machine>,
        now: u64,
    ) -> Result<Released, LedgerError> {
        self.write(|allocator, journal| {
            let held = machines.into_iter().flat_map(|machine| allocator.release(machine, now, journal)).collect();
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Releases the addresses of a claimant that double those of `keep`, and serves waiting machines; see
    /// [`Allocator::doubles`].
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was released.
    pub fn keep(&mut self, claimant: &Claimant, keep: &[IpAddr], now: u64) -> Result<Released, LedgerError> {
        self.write(|allocator, journal| {
            let held = allocator.keep(claimant, keep, now, journal);
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Removes machines from the wait queue, such as those that are being deleted. Their leases are kept.
    ///
    /// # Errors
    ///
    /// The ledger failed, and the machines still wait.
    pub fn withdraw<'m>(&mut self, machines: impl IntoIterator<Item = &'m Machine>) -> Result<(), LedgerError> {
        self.write(|allocator, journal| {
            machines.into_iter().for_each(|machine| allocator.withdraw(machine, journal));
        })
    }

    /// Serves those who wait for an address whose reuse delay is over. Every other call that makes addresses free does so
    /// itself.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nobody was served.
    pub fn serve(&mut self, now: u64) -> Result<Vec<Allocation>, LedgerError> {
        self.write(|allocator, journal| allocator.serve(now, journal))
    }

    /// Adds pools, replaces those of the same name, renames others, and serves waiting machines.
    ///
    /// No machine loses an address: what a pool does not offer any more stays with its holder, is counted as outside, and is
    /// not allocated again. Held addresses take the prefix length of their pool. A given pool that the ledger does not have
    /// replaces one that is not given where only these two fit: same network and interface, and common addresses.
    ///
    /// # Errors
    ///
    /// [`ResizeError::Refused`] or [`ResizeError::Ledger`]; the pools are as before.
    pub fn resize(
        &mut self,
        pools: impl IntoIterator<Item = Pool>,
        renames: &[Rename],
        now: u64,
    ) -> Result<Resized, ResizeError> {
        let pools = pools.into_iter().collect();
        let resized = self.write(|allocator, journal| allocator.resize(pools, renames, now, journal));
        resized.map_err(ResizeError::Ledger)?.map_err(ResizeError::Refused)
    }

    /// Removes a pool of which no address is held. What it reserves on its network is reserved no more.
    ///
    /// # Errors
    ///
    /// [`ResizeError::Refused`] or [`ResizeError::Ledger`]; the pool is as before.
    pub fn remove_pool(&mut self, name: &str, now: u64) -> Result<(), ResizeError> {
        let removed = self.write(|allocator, journal| allocator.remove_pool(name, now, journal));
        removed.map_err(ResizeError::Ledger)?.map_err(ResizeError::Refused)
    }

    /// Takes over what the records of Kubernetes objects say, in one transaction. A claimant that holds an address by a
    /// record, and that the ledger does not know, holds it from now on.
    ///
    /// Adoption never frees and never changes the holder of an address. What does not fit is reported, each time anew, and is
    /// allocated to nobody. Of two records with one address the first one counts.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was taken over.
    pub fn adopt(&mut self, records: impl IntoIterator<Item = Record>, now: u64) -> Result<Adoption, LedgerError> {
        self.write(|allocator, journal| allocator.adopt(records, now, journal))
    }

    /// What [`Registry::adopt`] would do. Nothing changes.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn preview(&mut self, records: impl IntoIterator<Item = Record>, now: u64) -> Result<Adoption, LedgerError> {
        Ok(self.state()?.clone().adopt(records, now, &mut Journal::default()))
    }

    /// Allocates addresses to nobody before the machines of their conflicts are released, on every network of which a pool has
    /// the address.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was set aside.
    pub fn set_aside(
        &mut self,
        addresses: impl IntoIterator<Item = (IpAddr, Conflict)>,
        now: u64,
    ) -> Result<(), LedgerError> {
        self.write(|allocator, journal| {
            for (address, conflict) in addresses {
                allocator.set_aside(address, conflict, now, journal);
            }
        })
    }

    /// Notes in one write that machines were looked for: who is there, and who is missing. For each of the missing, `Some` is
    /// the time when it was missing first, if that was before: who looks only once may look at the wrong moment.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was noted.
    pub fn note_looked_for(
        &mut self,
        there: &[Machine],
        missing: &[Machine],
        now: u64,
    ) -> Result<Vec<Option<u64>>, LedgerError> {
        self.write(|allocator, journal| {
            there.iter().for_each(|machine| allocator.note_seen(machine, journal));
            missing.iter().map(|machine| allocator.note_missing(machine, now, journal)).collect()
        })
    }

    /// The current state, with what other processes committed. It can only be read.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn state(&mut self) -> Result<&Allocator, LedgerError> {
        self.allocator.learn(self.ledger.catch_up()?);
        Ok(&self.allocator)
    }

    /// The ledger, closing the registry.
    #[must_use]
    pub fn into_ledger(self) -> L {
        self.ledger
    }

    fn write<T>(&mut self, decide: impl FnOnce(&mut Allocator, &mut Journal) -> T) -> Result<T, LedgerError> {
        let mut transaction = self.ledger.begin()?;
        self.allocator.learn(transaction.catch_up()?);
        let mut journal = Journal::default();
        let answer = decide(&mut self.allocator, &mut journal);
        if !journal.changes().is_empty()
            && let Err(error) = transaction.commit(journal.changes())
        {
            self.allocator.undo(journal);
            return Err(error);
        }
        Ok(answer)
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::claim::Request;
    use crate::host::ledger::MemoryLedger;
    use crate::host::pool::tests::pool;

    /// A registry in memory with some pools.
    pub(in crate::host) fn registry(pools: impl IntoIterator<Item = Pool>) -> Registry<MemoryLedger> {
        let mut registry = Registry::open(MemoryLedger::default()).unwrap();
        registry.resize(pools, &[], 0).unwrap();
        registry
    }

    #[test]
    fn of_several_that_are_released_none_is_served_by_another() {
        let one = pool("{name: one, network: n, addresses: [10.0.0.8/32], machineNetwork: [{cidr: 10.0.0.0/24}]}");
        let mut registry = registry([one]);
        let [holds, waits, waits_too] = [0, 1, 2].map(|created| Claim {
            machine: Machine { namespace: "n".into(), name: created.to_string(), uid: "u".into() },
            created,
            requests: vec![Request::of("default/one")],
            sticky: false,
        });
        let held = registry.claim(&holds, 1).unwrap();
        let refused = [&waits, &waits_too].map(|claim| registry.claim(claim, 1).unwrap_err().to_string());
        assert_eq!(refused, ["No available IPs in pool for interface eno101"; 2]);
        let released = registry.release_all([&holds.machine, &waits.machine], 2).unwrap();
        assert_eq!(released.held, held);
        assert_eq!(released.served[0].claimant.machine, waits_too.machine);
        assert_eq!(registry.state().unwrap().waiters(), [] as [&Claim; 0]);
    }
}
