//! The front door: an allocator and the ledger in which its decisions are durable.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::allocator::{Adoption, Allocator, ClaimError, Journal};
use super::claim::{Allocation, Claim, Conflict, Machine, Record};
use super::ledger::{Ledger, LedgerError};
use super::pool::Pool;

/// Pools, and a ledger of who holds which of their addresses.
///
/// Whatever it answers is recorded before. Each call that may change something is one write of the ledger: it learns what
/// others did since, decides, records, and only then answers; if recording fails, nothing has changed.
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
/// let mut registry = Registry::open(MemoryLedger::default(), [pool])?;
/// let claim = |name: &str| Claim {
///     machine: Machine { namespace: "clusters".into(), name: name.into(), uid: format!("uid-of-{name}") },
///     created: 0,
///     requests: vec![Request { pool: "default/workers".into(), addresses: vec![] }],
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
    reuse_delay: u64,
}

/// What a release did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Released {
    /// What the machines held, one after the other.
    pub held: Vec<Allocation>,
    /// What those got who waited.
    pub served: Vec<Allocation>,
}

/// What a resize did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Resized {
    /// What is held from the pool and no longer offered by it.
    pub outside: Vec<Allocation>,
    /// What those got who waited.
    pub served: Vec<Allocation>,
}

/// Why there is no answer to a claim.
#[derive(Debug)]
pub enum RegistryError {
    /// The claim is refused.
    Refused(ClaimError),
    /// The ledger failed, and nothing was given.
    Ledger(LedgerError),
}

// === impl Registry ===

impl<L: Ledger> Registry<L> {
    /// The registry of `pools` with everything that the ledger knows.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn open(mut ledger: L, pools: impl IntoIterator<Item = Pool>) -> Result<Self, LedgerError> {
        let mut allocator = Allocator::rebuild(pools, []);
        allocator.learn(ledger.catch_up()?);
        Ok(Self { ledger, allocator, reuse_delay: 0 })
    }

    /// Has an address that is given back rest for so long, which is not at all unless this is said.
    #[must_use]
    pub fn with_reuse_delay(mut self, delay: Duration) -> Self {
        self.reuse_delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Gives a machine what it asks for, or what it has already; see [`Allocator::claim`].
    ///
    /// # Errors
    ///
    /// [`RegistryError::Refused`], after which the machine may be waiting; [`RegistryError::Ledger`], after which the same
    /// claim may be made again.
    pub fn claim(&mut self, claim: &Claim, now: u64) -> Result<Vec<Allocation>, RegistryError> {
        self.write(|allocator, journal| allocator.claim(claim, now, journal))?.map_err(RegistryError::Refused)
    }

    /// Makes several claims in one write, each of which is given or refused by itself.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was given.
    pub fn claim_all(
        &mut self,
        claims: &[Claim],
        now: u64,
    ) -> Result<Vec<Result<Vec<Allocation>, ClaimError>>, LedgerError> {
        self.write(|allocator, journal| claims.iter().map(|claim| allocator.claim(claim, now, journal)).collect())
    }

    /// Takes back what a machine holds or waits for, once it is gone; see [`Allocator::release`]. A machine that holds
    /// nothing is nothing to do.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was taken back.
    pub fn release(&mut self, machine: &Machine, now: u64) -> Result<Released, LedgerError> {
        self.release_all([machine], now)
    }

    /// Takes back what several machines hold or wait for, in one write. Whoever waits is served after that, and so none of
    /// them by what another one gives back.
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was taken back.
    pub fn release_all<'m>(
        &mut self,
        machines: impl IntoIterator<Item = &'m Machine>,
        now: u64,
    ) -> Result<Released, LedgerError> {
        let delay = self.reuse_delay;
        self.write(|allocator, journal| {
            let held =
                machines.into_iter().flat_map(|machine| allocator.release(machine, now, delay, journal)).collect();
            Released { held, served: allocator.serve(now, journal) }
        })
    }

    /// Has machines wait no more that will not come, such as those that are being deleted. What they hold stays their own.
    ///
    /// # Errors
    ///
    /// The ledger failed, and they still wait.
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

    /// Puts a pool in the place of the one of its name, or adds it, and serves those who waited for it; see
    /// [`Allocator::resize`].
    ///
    /// # Errors
    ///
    /// The ledger failed. Of an added pool nothing is given then; another one is as it was.
    pub fn resize(&mut self, pool: Pool, now: u64) -> Result<Resized, LedgerError> {
        let name = pool.name.clone();
        let before = self.allocator.resize(pool);
        match self.write(|allocator, journal| allocator.serve(now, journal)) {
            Ok(served) => Ok(Resized { outside: self.allocator.outside(&name), served }),
            Err(error) => {
                if let Some(before) = before {
                    self.allocator.resize(before);
                }
                Err(error)
            }
        }
    }

    /// Takes over what the records of Kubernetes say, all of it in one write; see [`Allocator::adopt`].
    ///
    /// # Errors
    ///
    /// The ledger failed, and nothing was taken over.
    pub fn adopt(&mut self, records: impl IntoIterator<Item = Record>, now: u64) -> Result<Adoption, LedgerError> {
        self.write(|allocator, journal| allocator.adopt(records, now, journal))
    }

    /// Has addresses be given to nobody before those machines are released; see [`Allocator::set_aside`].
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

    /// Who holds what, who waits and what is free: as it is now, with what others did.
    ///
    /// # Errors
    ///
    /// The ledger cannot be read.
    pub fn allocator(&mut self) -> Result<&mut Allocator, LedgerError> {
        self.allocator.learn(self.ledger.catch_up()?);
        Ok(&mut self.allocator)
    }

    /// The ledger alone, to open it again.
    #[must_use]
    pub fn into_ledger(self) -> L {
        self.ledger
    }

    /// The ledger, for what is not the registry's business, such as a network that it is to be for.
    pub fn ledger_mut(&mut self) -> &mut L {
        &mut self.ledger
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
mod tests {
    use super::*;
    use crate::host::claim::Request;
    use crate::host::ledger::MemoryLedger;
    use crate::host::pool::tests::pool;

    #[test]
    fn of_several_that_are_released_none_is_served_by_another() {
        let one = pool("{name: one, network: n, addresses: [10.0.0.8/32], machineNetwork: [{cidr: 10.0.0.0/24}]}");
        let mut registry = Registry::open(MemoryLedger::default(), [one]).unwrap();
        let [holds, waits, waits_too] = [0, 1, 2].map(|created| Claim {
            machine: Machine { namespace: "n".into(), name: created.to_string(), uid: "u".into() },
            created,
            requests: vec![Request { pool: "default/one".into(), addresses: Vec::new() }],
            sticky: false,
        });
        let held = registry.claim(&holds, 1).unwrap();
        let refused = [&waits, &waits_too].map(|claim| registry.claim(claim, 1).unwrap_err().to_string());
        assert_eq!(refused, ["No available IPs in pool for interface eno101"; 2]);
        let released = registry.release_all([&holds.machine, &waits.machine], 2).unwrap();
        assert_eq!(released.held, held);
        assert_eq!(released.served[0].claimant.machine, waits_too.machine);
        assert_eq!(registry.allocator().unwrap().waiters(), [] as [&Claim; 0]);
    }
}
