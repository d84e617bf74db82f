//! The handle to the registry, which allocates and records addresses. Asynchronous code sends commands through the
//! handle to the thread that owns the registry.
//!
//! The owner responds only after the API server has stored the leases. A request that fails is repeated with back-off
//! until it succeeds or every handle is gone, so callers never mistake a failure for a refusal. Claims that arrive
//! meanwhile are processed together, and their leases are written concurrently.

mod owner;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::{io, thread};

use glowplug::host::Timestamp;
use glowplug::host::allocator::{Adoption, Allocator, ClaimError, Mismatch, PoolError, Reported};
use glowplug::host::claim::{Claim, Claimant, Machine, Record};
use glowplug::host::ledger::LedgerError;
use glowplug::host::pool::Pool;
use glowplug::host::records::Inventory;
use glowplug::host::registry::{Rebuilt, RegistryError};
use ipnetwork::IpNetwork;
use kube::Client;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::cluster::clock::Clock;
use crate::cluster::key::Key;
use crate::ledger::left_guests::LeftGuests;
use crate::ledger::types::{
    Answer, MacLeases, Progress, RefusedClaimants, Reservation, Served, Stopped, UnreadableLeases,
};
use crate::metrics::Metrics;
use crate::repeated::Repeated;

use owner::{Announcer, Claims, Command, Job, Link, Owner};

pub use owner::Sticky;

/// Maximum number of freed addresses that are kept for a receiver which has not read them yet.
const FREED: usize = 1024;

/// Handle to the registry. The owner stops when every clone is dropped.
#[derive(Clone)]
pub struct RegistryHandle {
    commands: Sender<Command>,
    changes: watch::Receiver<u64>,
    works: watch::Receiver<bool>,
    progress: Progress,
    refused: RefusedClaimants,
    unreadable: UnreadableLeases,
    freed: broadcast::Sender<IpAddr>,
    clock: Clock,
    left: Arc<LeftGuests>,
}

// === impl RegistryHandle ===

impl RegistryHandle {
    /// Starts the owner of the leases of a cluster. The owner lists the leases before it responds to commands.
    /// `mac_leases` receives the leases of MAC addresses. `clock` decides when delays are over. New addresses of pools
    /// are closed until [`RegistryHandle::open`].
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(
        client: Client,
        metrics: Arc<Metrics>,
        mac_leases: MacLeases,
        clock: Clock,
    ) -> io::Result<(Self, Served)> {
        let (sender, commands) = channel();
        let (claims, of_claims) = mpsc::unbounded_channel();
        let (ipam_claims, of_ipam_claims) = mpsc::unbounded_channel();
        let (machines, of_machines) = mpsc::unbounded_channel();
        let served = Announcer { claims, ipam_claims, machines };
        let (changes, changed) = watch::channel(0);
        let (works, is_working) = watch::channel(true);
        let (progress, refused) = (Progress::default(), RefusedClaimants::default());
        let (of_owner, of_claimants) = (progress.clone(), refused.clone());
        let unreadable = UnreadableLeases::default();
        let queued = VecDeque::new();
        let freed = broadcast::Sender::new(FREED);
        let link = Link {
            commands,
            queued,
            served,
            changes,
            works,
            progress: of_owner,
            refused: of_claimants,
            unreadable: unreadable.clone(),
            freed: freed.clone(),
            lines: Repeated::default(),
        };
        let runtime = Handle::current();
        thread::Builder::new().name("registry".to_owned()).spawn(move || {
            if let Some(mut owner) = Owner::open(&client, &runtime, metrics, &mac_leases, link, clock) {
                owner.run();
            }
        })?;
        Ok((
            Self {
                commands: sender,
                changes: changed,
                works: is_working,
                progress,
                refused,
                unreadable,
                freed,
                clock,
                left: Arc::default(),
            },
            Served { claims: of_claims, ipam_claims: of_ipam_claims, machines: of_machines },
        ))
    }

    /// Allocates every address that the claim requests, or none. Returns after the leases are stored. A repeated claim
    /// has the same result. After [`ClaimError::Exhausted`], the claimant waits, and [`Served`] reports when the
    /// claimant gets its addresses.
    ///
    /// # Errors
    ///
    /// [`Stopped`]. If the registry rejects the claim, the function returns an [`Answer`] with the reason.
    pub async fn claim(&self, claim: Claim) -> Result<Answer, Stopped> {
        self.claim_all(vec![claim]).await?.pop().ok_or(Stopped)
    }

    /// Processes claims in one transaction, in their order. The results have the order of the claims.
    ///
    /// # Errors
    ///
    /// The same as for [`RegistryHandle::claim`].
    pub async fn claim_all(&self, claims: Vec<Claim>) -> Result<Vec<Answer>, Stopped> {
        let (answers, answered) = oneshot::channel();
        self.send(Command::Claims(Claims { claims, answers }))?;
        answered.await.map_err(|_| Stopped)
    }

    /// Releases everything that an object holds or waits for, and returns the released addresses. The object must be
    /// gone: another object may get the addresses before the function returns.
    ///
    /// An object of another kind keeps its addresses, even if a user has written the same UID into it. An address whose
    /// release the API server refuses stays with the object, and is released later.
    pub async fn release(&self, machine: Machine) -> Result<Vec<IpNetwork>, Stopped> {
        self.write(move |owner| {
            let released = owner.registry.release(&machine, owner.clock.now())?;
            owner.link.refused.forget(&machine);
            if owner.registry.state()?.leases_of(&machine).next().is_some() {
                owner.unreleased.insert(machine.clone());
            }
            owner.announce(released.served);
            Ok(released.held.into_iter().flat_map(|allocation| allocation.addresses).collect())
        })
        .await
    }

    /// Releases these addresses of a machine, each with its network, removes its records of them, and returns the
    /// released addresses. No guest of the machine may use them. The machine keeps an address whose release the API server
    /// refuses.
    pub async fn release_addresses(
        &self,
        machine: Machine,
        addresses: BTreeSet<(String, IpAddr)>,
    ) -> Result<Vec<IpNetwork>, Stopped> {
        self.write(move |owner| {
            let released = owner.registry.release_addresses(&machine, &addresses, owner.clock.now())?;
            owner.announce(released.served);
            Ok(released.held.into_iter().flat_map(|allocation| allocation.addresses).collect())
        })
        .await
    }

    /// Removes a machine from the wait queue. The machine keeps its addresses.
    pub async fn withdraw(&self, machine: Machine) -> Result<(), Stopped> {
        self.write(move |owner| owner.registry.withdraw([&machine])).await
    }

    /// Keeps the addresses of `keep`, and releases the claimant's other addresses of the same families. Two leaders may
    /// have allocated addresses to one claim; the claimant never received the other addresses. Returns the released
    /// addresses.
    pub async fn keep(&self, claimant: Claimant, keep: Vec<IpAddr>) -> Result<Vec<IpNetwork>, Stopped> {
        self.write(move |owner| {
            let released = owner.registry.keep(&claimant, &keep, owner.clock.now())?;
            owner.announce(released.served);
            Ok(released.held.into_iter().flat_map(|allocation| allocation.addresses).collect())
        })
        .await
    }

    /// Records the names of the Secrets from which guests of a machine may read its addresses. The addresses in a
    /// Secret that is not named may be allocated to another machine later. The inner error: the API server refuses to
    /// change a lease of the machine.
    pub async fn set_secrets(
        &self,
        machine: Machine,
        secrets: BTreeSet<String>,
    ) -> Result<Result<(), ClaimError>, Stopped> {
        self.write(move |owner| {
            owner.registry.set_secrets(&machine, &secrets)?;
            Ok(owner.registry.state()?.why_unchanged(&machine).map_or(Ok(()), Err))
        })
        .await
    }

    /// Moves the leases of a machine to the pools that serve it now, see `Registry::move_leases`. The inner error:
    /// the API server refuses to change a lease of the machine.
    pub async fn move_leases(
        &self,
        machine: Machine,
        pools: Vec<String>,
    ) -> Result<Result<Vec<IpAddr>, ClaimError>, Stopped> {
        self.write(move |owner| {
            let moved = owner.registry.move_leases(&machine, &pools)?;
            Ok(owner.registry.state()?.why_unchanged(&machine).map_or(Ok(moved), Err))
        })
        .await
    }

    /// The guests that migrated to another cluster, and whose leases may lack the migration.
    pub(crate) fn left_guests(&self) -> &Arc<LeftGuests> {
        &self.left
    }

    /// Records that the guest of a machine migrated to another cluster, see `Registry::note_migrated`. Returns the
    /// addresses that are not held for this guest.
    pub async fn note_migrated(&self, machine: Machine) -> Result<BTreeSet<IpAddr>, Stopped> {
        self.write(move |owner| owner.registry.note_migrated(&machine, owner.clock.now())).await
    }

    /// Records a further Secret from which guests of a machine may read its addresses.
    pub async fn add_secret(&self, machine: Machine, secret: String) -> Result<(), Stopped> {
        self.write(move |owner| {
            let leases = owner.registry.state()?.leases_of(&machine).flat_map(|(_, _, lease)| lease.secrets.iter());
            let secrets = leases.cloned().chain([secret.clone()]).collect();
            owner.registry.set_secrets(&machine, &secrets)
        })
        .await
    }

    /// Adopts the records in objects, see `Registry::adopt`. [`may_record`](glowplug::host::may_record::may_record)
    /// decides which records become leases.
    pub async fn adopt(&self, records: Vec<Record>) -> Result<Adoption, Stopped> {
        self.write(move |owner| {
            for record in &records {
                owner.unreleased.remove(&record.claimant.machine);
            }
            owner.registry.adopt(records.iter().cloned(), owner.clock.now())
        })
        .await
    }

    /// Adds and removes addresses that running guests report, or that Services and Clusters have, see
    /// `Registry::change_reports`. Returns the reports that the registry did not have.
    pub async fn change_reports(
        &self,
        begun: Vec<Reservation>,
        ended: Vec<Reservation>,
    ) -> Result<Vec<Reported>, Stopped> {
        let mut new = Vec::new();
        self.write(move |owner| {
            // Only the first attempt returns the reports as new, so they are kept for repeated attempts.
            new.extend(owner.registry.change_reports(&begun, &ended, owner.clock.now())?.begun);
            let served = owner.registry.serve(owner.clock.now())?;
            owner.announce(served);
            // An error means that there is no receiver.
            ended.iter().for_each(|reported| drop(owner.link.freed.send(reported.address)));
            Ok(std::mem::take(&mut new))
        })
        .await
    }

    /// Returns the number of the last growth of the allocatable addresses, see `Registry::growth`.
    pub async fn growth(&self) -> Result<u64, Stopped> {
        self.read_owner(|owner| Ok(owner.registry.growth())).await
    }

    /// Opens the addresses of every growth up to this number, and serves waiting machines: see `Registry::open_up_to`.
    pub async fn open(&self, growth: u64) -> Result<(), Stopped> {
        self.write(move |owner| {
            let served = owner.registry.open_up_to(growth, owner.clock.now())?;
            owner.announce(served);
            Ok(())
        })
        .await
    }

    /// Records that a claimant holds exactly these addresses of an external pool, see `Registry::hold`. `source`
    /// names the object with the addresses, for messages.
    ///
    /// # Errors
    ///
    /// [`Stopped`]; the inner error is the reason why the claimant cannot hold the addresses.
    pub async fn hold(
        &self,
        pool: String,
        claimant: Claimant,
        addresses: Vec<IpNetwork>,
        source: String,
    ) -> Result<Result<(), ClaimError>, Stopped> {
        self.write(move |owner| {
            owner.unreleased.remove(&claimant.machine);
            match owner.registry.hold(&pool, &claimant, &addresses, &source, owner.clock.now()) {
                Ok(()) => Ok(Ok(())),
                Err(RegistryError::Refused(error)) => Ok(Err(error)),
                Err(RegistryError::Ledger(error)) => Err(error),
            }
        })
        .await
    }

    /// Rebuilds the ledger from the records on the objects of a cluster, see `Registry::adopt_inventory`.
    pub async fn rebuild(&self, inventory: Inventory) -> Result<Rebuilt, Stopped> {
        self.write(move |owner| owner.registry.adopt_inventory(&inventory, owner.clock.now())).await
    }

    /// Reserves addresses that objects have without a lease, either on one network or on every network with a pool that
    /// has the address. An address stays reserved until its object is released. Returns the addresses that are not
    /// reserved, see `Registry::set_aside`.
    pub async fn add_conflicts(&self, conflicts: Vec<Reservation>) -> Result<Vec<Mismatch>, Stopped> {
        self.write(move |owner| owner.registry.set_aside(conflicts.iter().cloned(), owner.clock.now())).await
    }

    /// Notes that the objects of a machine or claim no longer record these addresses, see `Registry::end_records`.
    pub async fn end_records(&self, machine: Machine, addresses: BTreeSet<(String, IpAddr)>) -> Result<(), Stopped> {
        self.write(move |owner| owner.registry.end_records(&machine, &addresses)).await
    }

    /// Returns the objects that hold an address, or that have a record without a lease. The unknown holders of leases
    /// that cannot be read are left out.
    pub async fn holders(&self) -> Result<BTreeSet<Machine>, Stopped> {
        self.read(|state| {
            let holders = state.leases().map(|(_, _, lease)| lease.claimant.machine.clone());
            let holders = holders.chain(state.conflicts().map(|(_, _, conflict)| conflict.claimant.machine));
            holders.filter(Machine::may_exist).collect()
        })
        .await
    }

    /// Returns the objects that hold an address for a VirtualMachine in another namespace.
    pub async fn holders_elsewhere(&self) -> Result<BTreeSet<Machine>, Stopped> {
        self.read(|state| {
            let holders = state.leases().map(|(_, _, lease)| &lease.claimant.machine);
            holders.filter(|holder| holder.vm_namespace.is_some()).cloned().collect()
        })
        .await
    }

    /// Replaces the pools, and serves waiting machines. The pools that `suspended` names allocate nothing.
    ///
    /// Removes pools of the registry that are not among `pools`. A pool with held addresses is not removed but
    /// suspended. A pool whose change is rejected keeps its previous definition and is suspended. Returns the rejected
    /// changes.
    pub async fn resize(
        &self,
        pools: Vec<Pool>,
        suspended: BTreeSet<String>,
    ) -> Result<Vec<(String, PoolError)>, Stopped> {
        self.write(move |owner| owner.resize(&pools, &suspended)).await
    }

    /// Sets which pools are sticky. Before the first call, no released lease is deleted.
    pub async fn set_sticky(&self, sticky: Sticky) -> Result<(), Stopped> {
        self.write(move |owner| {
            owner.sticky = Some(sticky.clone());
            Ok(())
        })
        .await
    }

    /// Reads the state of the allocator, after the changes of other processes are applied.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Allocator) -> T + Send + 'static,
    ) -> Result<T, Stopped> {
        let mut read = Some(read);
        let read = self.read_owner(move |owner| {
            let allocator = owner.registry.state()?;
            Ok(read.take().map(|read| read(allocator)))
        });
        read.await?.ok_or(Stopped)
    }

    async fn read_owner<T: Send + 'static>(
        &self,
        read: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (job, answer) = job(read);
        self.send(Command::Read(job))?;
        answer.await.map_err(|_| Stopped)
    }

    /// Returns a receiver whose value changes after each command that may have changed the state, and once a second.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// Returns a receiver that says whether the registry works. While its requests fail, the value is `false`, and
    /// nothing is allocated.
    #[must_use]
    pub fn works(&self) -> watch::Receiver<bool> {
        self.works.clone()
    }

    /// Notes that objects of these names have changed. If the API server has refused the lease of a claimant with such
    /// a name, the next claim tries again at once, even if the pause after the refusal has not ended.
    pub fn note_changes(&self, names: &BTreeSet<Key>) {
        self.refused.note_changes(names);
    }

    /// Returns a receiver of the addresses that another claimant may get from now on: after a release, even by another
    /// leader, and after the end of a record or report.
    #[must_use]
    pub fn freed(&self) -> broadcast::Receiver<IpAddr> {
        self.freed.subscribe()
    }

    /// Returns the time by which the registry decides whether a delay is over.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the reason why each unreadable lease cannot be read, by the name of the lease.
    pub(crate) fn unreadable_leases(&self) -> Arc<BTreeMap<String, String>> {
        self.unreadable.get()
    }

    /// Returns the progress that the owner of the registry makes with its current command.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
    ) -> Result<T, Stopped> {
        let (job, answer) = job(work);
        self.send(Command::Write(job))?;
        answer.await.map_err(|_| Stopped)
    }

    fn send(&self, command: Command) -> Result<(), Stopped> {
        self.progress.enqueue();
        self.commands.send(command).map_err(|_| Stopped)
    }
}

/// Creates a job, and the channel for its result.
fn job<T: Send + 'static>(
    mut work: impl FnMut(&mut Owner) -> Result<T, LedgerError> + Send + 'static,
) -> (Job, oneshot::Receiver<T>) {
    let (sender, answer) = oneshot::channel();
    let mut sender = Some(sender);
    let job = move |owner: &mut Owner| {
        let value = work(owner)?;
        if let Some(sender) = sender.take() {
            // The send fails if the caller no longer waits.
            let _ = sender.send(value);
        }
        Ok(())
    };
    (Box::new(job), answer)
}
