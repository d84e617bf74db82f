//! The known state of one machine: the input of a decision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use glowplug::host::allocator::ClaimError;
use glowplug::host::claim::{Allocation, Claimant, Machine, Record};
use glowplug::host::may_record;
use glowplug::host::records::ObjectDiagnostic;
use ipnetwork::IpNetwork;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cluster::conditions::head;
use crate::cluster::key::{Key, PoolId};
use crate::kinds::kubevirt_machine::{Given, Instance, KubevirtMachine, NetworkSecret, OwnSecret, created, is_deleted};
use crate::kinds::virtual_machine::{VirtualMachine, addresses_in};
use crate::ledger::left_guests::Secrets;
use crate::ledger::types::Reservation;
use crate::machines::kind::Kinds;
use crate::machines::recorded::Recorded;
use crate::machines::source::{ProviderAddress, Source, Sources};
use crate::machines::step::{Notice, Once, Step};
use crate::passes::Problem;
use crate::pools::machine_states::Refused;
use crate::pools::reference::lacking;
use crate::pools::selection::{Selected, Selection};

/// Reason of the event about a machine with network data of another author.
pub(super) const KEPT: &str = "NetworkDataKept";

/// Reason of the event about a guest that has not read the current network data of its machine.
pub(super) const OUTDATED: &str = "NetworkDataOutdated";

/// Reason of the event about a machine, or interfaces of a machine, that keep their own network.
pub(super) const LEFT_ALONE: &str = "LeftAlone";

/// Reason of the event about a requested address that the machine does not get.
pub(super) const IGNORED: &str = "AddressRequestIgnored";

/// Age at which the event about a waiting machine is published again. API servers keep an event for one hour, and a
/// machine in the wait queue gets a pass every ten minutes.
const REPEAT: Duration = Duration::from_secs(45 * 60);

/// Maximum number of doubtful records of a machine that get an event. A doubtful record cannot be read, or contradicts
/// another record.
const MOST_DOUBTS: usize = 8;

/// Annotation of a KubevirtMachine that says why its VirtualMachine waits for its network data.
pub(super) const WAITING_ANNOTATION: &str = "ipam.glowplug.dev/waiting";

/// The known state of the machine of one name: the complete input of a decision.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// Name of the VirtualMachine.
    pub(super) key: Key,
    /// The optional kinds that the API server serves.
    pub(super) kinds: Kinds,
    /// Whether KubevirtMachines may have a status map. `true` until the API server drops the map from a write.
    pub(super) has_status_map: bool,

    // The next members come from the index. The pass reads them again after each step.
    pub(super) vm: Option<VirtualMachine>,
    /// The KubevirtMachine of this name, for which capk creates the VirtualMachine.
    pub(super) machine: Option<KubevirtMachine>,
    pub(super) instance: Option<Instance>,
    /// The addresses that the objects of the machine record.
    pub(super) records: Vec<Record>,
    /// The records of these objects that cannot be read, or that contradict one of `records`.
    pub(super) doubts: Vec<ObjectDiagnostic>,
    /// Objects of other programs that choose addresses of the machine.
    pub(super) sources: Sources,
    pub(super) memory: Memory,
    /// The Secrets of the migrated guests of this name whose leases may lack the migration.
    pub(super) left: Secrets,
    /// Whether the last event about the waiting machine is so old that it must be repeated.
    pub(super) is_repeat_due: bool,
    /// A new name for the Secret of the machine. No Secret had this name before.
    pub(super) new_name: String,
    /// Pools without a free address, because of which the webhook would reject the VirtualMachine again. `None`: the
    /// webhook has not rejected the VirtualMachine, or no pool selects it.
    pub(super) lacking: Option<BTreeSet<String>>,

    // The next members are read only when a pass begins. If `selected` changes, the pass begins again.
    /// The pools that serve the machine, or the reason why the choice is ambiguous.
    pub(super) selected: Chosen,
    /// The interfaces that pools served before they were deleted. The machine keeps the addresses that it holds there.
    pub(super) kept: Vec<Selected>,
    /// Further networks of the machine and of its guest that have a pool, but none that serves the machine. If a user
    /// wrote the network data, its addresses are reserved on these networks, too.
    pub(super) other_networks: BTreeSet<String>,
    /// Settings of the pools that serve the machine, by name of the pool.
    pub(super) pools: BTreeMap<String, PoolSettings>,

    /// State of the machines of this name in the registry. The pass reads this state again after each step that may
    /// change it, and when the records of the objects have changed.
    pub(super) ledger: Recorded,

    // The responses to the steps of this pass, see [`View::note`].
    /// The Secrets of the machine that this pass has read, by name.
    pub(super) secrets: BTreeMap<String, NetworkSecret>,
    /// Whether the pass has not read the Secret in `secrets`, but made it from the leases and compared its digest, see
    /// [`super::digest`]. Such a pass has made no request so far. Before its first request, the pass reads the Secret.
    pub(super) trusts_digest: bool,
    /// Addresses in the Secrets of another author that this pass has read, by the name of the Secret.
    pub(super) other_addresses: BTreeMap<String, Vec<IpAddr>>,
    /// IPAddresses of other providers that this pass has read, by name. A value of `None`: the object does not exist.
    pub(super) addresses: BTreeMap<String, Option<ProviderAddress>>,
    /// The result of the last successful claim of this pass. `None`: no successful claim in this pass.
    pub(super) granted: Option<Granted>,
    /// Reason why the registry refused a request of this pass or did not adopt an address, or why an object of another
    /// author prevents a request. `None`: no failure.
    pub(super) problem: Option<Problem>,
    /// Holders that this pass has checked, each with the result: whether the holder is gone.
    pub(super) checked: BTreeMap<Machine, Check>,
    /// Names of the Secrets whose addresses the registry has adopted or refused in this pass.
    pub(super) adopted: BTreeSet<String>,
    /// Names of the Secrets that this pass has added to leases. A guest may read another Secret than its
    /// VirtualMachine names, and the leases need both names.
    pub(super) named: BTreeSet<String>,
    /// Sources of network data whose addresses this pass has reserved, see [`View::reserve`].
    pub(super) reserved: BTreeSet<String>,
    pub(super) done: BTreeSet<Once>,
}

/// The response to the request of a step.
#[derive(Clone, Debug)]
pub(super) enum Response {
    /// The request is done. The objects and the registry show its effect.
    Done,
    /// The API server has not stored the patch, because it has another version of the object, or no such object.
    NotStored,
    /// The Secret that the step has read or written, with its name.
    Secret(String, NetworkSecret),
    /// Addresses in the Secret of another author with this name.
    OtherAddresses(String, Vec<IpAddr>),
    Address(Box<Option<ProviderAddress>>),
    Granted(Vec<Allocation>),
    /// The registry refused the request, or an object of another author prevents it.
    Refused(Problem),
    /// Result of the check of a holder.
    Checked(Check),
}

/// The result of the check whether a holder is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Check {
    /// An object may still use an address of the holder.
    Kept,
    /// The holder is gone. Its leases are released if the holder belongs to the name of the pass.
    Gone,
}

/// The settings of a pool that a decision about its machines needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolSettings {
    pub(super) is_sticky: bool,
    pub(super) template: Option<String>,
    /// The program that chooses the addresses. `None`: the pool allocates its own addresses.
    pub(super) source: Option<Source>,
    /// Why the pool allocates nothing. `None`: the pool allocates, or the reason is unknown.
    pub(super) not_ready: Option<String>,
}

/// The pools that serve a machine, or the reason why the choice is ambiguous.
pub(super) type Chosen = Result<Vec<Selected>, String>;

/// State of a name that the controller keeps only in memory, because no object records it.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Holders that have claimed addresses. Each of them may wait for an address or hold an address.
    pub(super) claimed: BTreeSet<Machine>,
    /// The last published event. `None`: the next event is always published.
    pub(super) notice: Option<Notice>,
    /// Time at which `notice` was last published.
    pub(super) noticed: Option<Instant>,
    /// Whether the log has a line about the request to capk to create the VirtualMachine again. The controller repeats
    /// this request every few seconds while capk does not react, but logs it only once.
    pub(super) is_retry_logged: bool,
    /// Addresses that are not held for a guest after its migration to another cluster, according to the last event
    /// about them.
    pub(super) not_held: BTreeSet<IpAddr>,
    /// The notes of the last events about doubtful records and about addresses of the guest with another user: see
    /// [`View::report_doubts`].
    pub(super) doubts: BTreeSet<String>,
    /// Whether a user has removed the annotation with which the VirtualMachine was left alone.
    pub(super) is_freed: bool,
}

/// Addresses that the registry allocated for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Granted {
    pub(super) allocations: Vec<Allocation>,
    /// Name of the Secret in the claim. The leases of the addresses have this name.
    pub(super) secret: String,
}

/// The object that claims addresses for a machine.
pub(super) struct Claimed {
    pub(super) machine: Machine,
    pub(super) created: Timestamp,
}

// === impl View ===

impl View {
    /// Creates an empty view of a name.
    pub(super) fn new(key: Key, kinds: Kinds) -> Self {
        Self {
            key,
            kinds,
            has_status_map: true,
            vm: None,
            machine: None,
            instance: None,
            records: Vec::new(),
            doubts: Vec::new(),
            sources: Sources::default(),
            memory: Memory::default(),
            left: Secrets::default(),
            is_repeat_due: false,
            new_name: String::new(),
            lacking: None,
            selected: Ok(Vec::new()),
            kept: Vec::new(),
            other_networks: BTreeSet::new(),
            pools: BTreeMap::new(),
            ledger: Recorded::default(),
            secrets: BTreeMap::new(),
            trusts_digest: false,
            other_addresses: BTreeMap::new(),
            addresses: BTreeMap::new(),
            granted: None,
            problem: None,
            checked: BTreeMap::new(),
            adopted: BTreeSet::new(),
            named: BTreeSet::new(),
            reserved: BTreeSet::new(),
            done: BTreeSet::new(),
        }
    }

    /// Whether objects of the machine may have records that were copied from another machine. The controller ignores
    /// copied records, and removes them before the machine gets addresses. `false` for a machine that is left alone,
    /// and for a guest without network data of the controller: such a guest may use what its objects record.
    pub(super) fn may_have_copies(&self) -> bool {
        let is_left_alone = self.vm.as_ref().is_some_and(VirtualMachine::is_left_alone);
        let guest = self.instance.as_ref().filter(|instance| instance.has_started && !instance.has_ended);
        !is_left_alone && guest.is_none_or(|instance| instance.secret().is_some())
    }

    /// Whether this pass has done a step.
    pub(super) fn has_done(&self, step: Once) -> bool {
        self.done.contains(&step)
    }

    /// Whether the machine waits for its network data, and an event has named the reason. A machine does not wait if it
    /// has network data of another author or earlier network data, keeps a network of its own, or has another address than
    /// requested.
    pub(super) fn is_waiting(&self) -> bool {
        let has_data = [KEPT, OUTDATED, LEFT_ALONE, IGNORED];
        self.memory.notice.as_ref().is_some_and(|notice| !has_data.contains(&notice.reason))
    }

    /// Returns the creation time of the machine, and the pools because of which the webhook rejects its VirtualMachine.
    /// `None`: the webhook does not reject the VirtualMachine because of pools, or a claim of the machine waits in the
    /// queues of these pools.
    pub(super) fn refused(&self) -> Option<Refused> {
        let machine = self.machine.as_ref().filter(|machine| !is_deleted(&machine.metadata))?;
        let pools = self.lacking.clone().filter(|pools| self.vm.is_none() && !pools.is_empty())?;
        let created = created(&machine.metadata).filter(|_| !self.ledger.waiting.contains(&machine.holder()))?;
        Some(Refused { created, pools })
    }

    /// Returns the value of [`View::lacking`] with the pools of `selection`.
    pub(super) fn lacking_in(&self, selection: &Selection) -> Option<BTreeSet<String>> {
        let machine = self.machine.as_ref()?;
        let vm = machine.refused.as_ref()?;
        let selected = selection.of(vm).ok().filter(|selected| !selected.is_empty())?;
        let holder = machine.holder();
        let held = self.ledger.held.iter().filter(|held| held.claimant.machine == holder);
        let held = held.map(|held| held.network.clone()).collect();
        let lacking = lacking(vm, &selected, &held, selection);
        Some(lacking.into_iter().flat_map(|(it, _)| it.pools()).map(PoolId::to_string).collect())
    }

    /// Whether the machine needs a certain address that is not available now. This includes a claim that requests an
    /// address from an exhausted pool: such a claim does not wait in the queue of the pool.
    pub(super) fn waits_for_address(&self) -> bool {
        let requests = self.vm.as_ref().is_some_and(|vm| vm.requested.as_ref().is_ok_and(|all| !all.is_empty()));
        match &self.problem {
            Some(Problem::Refused(ClaimError::Exhausted { .. })) => requests,
            Some(Problem::Refused(error)) => error.is_about_address(),
            _ => false,
        }
    }

    /// Whether the machine waits for a change that no watch reports:
    ///
    /// - Another machine holds the address that the source of this machine gives, or the reuse delay of this address
    ///   has not ended.
    /// - An object of another author has the name of the machine's claim.
    /// - The IPAddress of the machine's claim does not exist yet.
    pub(super) fn is_disputed(&self) -> bool {
        let is_taken = |error: &ClaimError| matches!(error, ClaimError::Taken { .. } | ClaimError::ReuseDelay { .. });
        let has_source = self.pools.values().any(|pool| pool.source.is_some());
        let is_refused = match &self.problem {
            Some(Problem::Refused(error)) => is_taken(error),
            Some(Problem::Mismatch(..)) => true,
            None => false,
        };
        has_source && (is_refused || self.addresses.values().any(Option::is_none))
    }

    /// Checks that a Secret of the VirtualMachine names a holder of this name. If leases name the Secret, the holder
    /// must have one of them. Any other Secret is returned as [`NetworkSecret::Foreign`]: otherwise a user who has the
    /// right to write Secrets in one namespace could take addresses from machines of other namespaces, or one address
    /// after the other for holders that do not exist.
    pub(super) fn check(&self, secret: NetworkSecret) -> NetworkSecret {
        let NetworkSecret::Ours(mut own) = secret else { return secret };
        let earlier = self.ledger.earlier.get(&own.machine);
        if earlier.is_none() && Key::of_machine(&own.machine) != self.key {
            let problem = format!("it names {}, which is not the machine of {}", own.machine, self.key);
            return NetworkSecret::Foreign(problem, addresses_in(&own.document));
        }
        if let Some(earlier) = earlier {
            // Without the namespace of the VirtualMachine, an adopted lease would count for the KubevirtMachine's own namespace.
            own.machine = earlier.clone();
        }
        let mut leases = self.ledger.held.iter().filter(|held| held.secrets.contains(own.name())).peekable();
        if leases.peek().is_some() && leases.all(|held| held.claimant.machine != own.machine) {
            let problem = format!("it names {}, and its leases have another holder", own.machine);
            return NetworkSecret::Foreign(problem, addresses_in(&own.document));
        }
        NetworkSecret::Ours(own)
    }

    /// Returns the step that reports why the machine gets no network data. A waiting machine is first removed from the
    /// wait queue, because waiting does not help.
    pub(super) fn refuse(&self, note: String) -> Step {
        self.hold_back(self.report("NetworkDataMissing", note))
    }

    /// Returns the step that removes a waiting machine of this name from the wait queue, because the machine must not
    /// get an address now. Returns `step` if no machine of the name waits.
    pub(super) fn hold_back(&self, step: Step) -> Step {
        self.ledger.waiting.first().map_or(step, |holder| Step::Withdraw(holder.clone()))
    }

    pub(super) fn report(&self, reason: &'static str, note: String) -> Step {
        self.tell(Notice { is_warning: true, reason, note })
    }

    /// Returns the step that publishes an event, or [`Step::Wait`] if the last event about the machine was the same. If
    /// the machine waits and this event is old, the step publishes the event again.
    pub(super) fn tell(&self, notice: Notice) -> Step {
        let is_repeated = self.is_repeat_due && self.is_waiting();
        let is_known = self.memory.notice.as_ref() == Some(&notice);
        if is_known && !is_repeated { Step::Wait } else { Step::Report(notice) }
    }

    /// Returns the step that reports the doubtful records of the machine, and the addresses of its guest with another
    /// user, see [`View::conflicts_after_move`]. A doubtful record cannot be read, or contradicts another record, and
    /// its addresses are reserved. `None`: the last events are about exactly these records and addresses.
    pub(super) fn report_doubts(&self) -> Option<Step> {
        let is_served = !matches!(&self.selected, Ok(selected) if selected.is_empty()) || !self.ledger.known.is_empty();
        let has_address = |doubt: &&ObjectDiagnostic| doubt.claimant.is_some() && !doubt.addresses.is_empty();
        let doubts = self.doubts.iter().filter(has_address).take(MOST_DOUBTS).filter(|_| is_served);
        let doubts: BTreeSet<String> = doubts.map(ToString::to_string).chain(self.conflicts_after_move()).collect();
        (doubts != self.memory.doubts).then_some(Step::ReportDoubts(doubts))
    }

    /// Returns a note about each address with which KubeVirt has moved the guest to a network where the address has
    /// another user.
    fn conflicts_after_move(&self) -> Vec<String> {
        let secret = self.instance.as_ref().and_then(Instance::secret).and_then(|name| self.secrets.get(name));
        let Some(NetworkSecret::Ours(own)) = secret else { return Vec::new() };
        let note = |Reservation { address, network, source, .. }: Reservation| {
            let at = (network?, address);
            let network = &at.0;
            self.ledger.conflicts.contains(&at).then(|| {
                format!(
                    "{source}: the guest has {address} on network {network} now, and the address has another user there: restart the \
                     machine"
                )
            })
        };
        self.reservations_after_move(own).into_iter().filter_map(note).collect()
    }

    /// Returns the step that writes the annotation with the reason why the machine waits, or removes the annotation of
    /// a machine that does not wait. `None`: the annotation is correct, or there is no KubevirtMachine. The annotation
    /// is on the KubevirtMachine, because people read this object, and capk reports there only that the guest starts.
    pub(super) fn annotate_waiting(&self) -> Option<Step> {
        let machine = self.machine.as_ref().filter(|machine| !is_deleted(&machine.metadata))?;
        let vm = self.vm.as_ref().filter(|vm| vm.kubevirt_machine().as_ref() == Some(&self.key));
        let has_data = |vm: &&VirtualMachine| {
            let secret = vm.secret().and_then(|name| self.secrets.get(name));
            matches!(secret, Some(NetworkSecret::Ours(_)))
        };
        let waits = vm.is_some_and(|vm| !is_deleted(&vm.metadata) && !has_data(&vm)) && self.is_waiting();
        let why = self.memory.notice.as_ref().filter(|_| waits).map(|notice| head(&notice.note));
        let known = machine.metadata.annotations.as_ref().and_then(|all| all.get(WAITING_ANNOTATION));
        if known.map(String::as_str) == why || self.has_done(Once::AnnotateWaiting) {
            return None;
        }
        let annotations = json!({(WAITING_ANNOTATION): why});
        Some(Step::AnnotateWaiting(json!({"metadata": {"uid": machine.metadata.uid, "annotations": annotations}})))
    }
}

// === impl Memory ===

impl Memory {
    /// Whether there is nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        // `noticed` is only the time of `notice`.
        let Self { claimed, notice, noticed: _, is_retry_logged, not_held, doubts, is_freed } = self;
        let has_flag = *is_retry_logged || *is_freed;
        claimed.is_empty() && notice.is_none() && not_held.is_empty() && doubts.is_empty() && !has_flag
    }

    /// Notes a published event.
    pub(super) fn note(&mut self, notice: Notice) {
        (self.notice, self.noticed) = (Some(notice), Some(Instant::now()));
    }

    /// Whether the last event is old enough to be published again.
    pub(super) fn is_repeat_due(&self, now: Instant) -> bool {
        self.noticed.is_some_and(|noticed| now.duration_since(noticed) >= REPEAT)
    }
}

// === impl Given ===

impl Given {
    pub(super) fn allocation(&self, own: &OwnSecret) -> Allocation {
        let claimant = Claimant { machine: own.machine.clone(), interface: self.interface };
        Allocation { claimant, addresses: self.addresses.clone() }
    }

    /// Returns the record of these addresses in the Secret. `namespace` is the namespace of the VirtualMachine and of
    /// the Secret.
    pub(crate) fn record(&self, own: &OwnSecret, namespace: &str, addresses: Vec<IpNetwork>) -> Record {
        Record {
            claimant: Claimant { machine: own.machine.clone(), interface: self.interface },
            node_pool: Some(self.pool.clone()),
            attachments: Vec::new(),
            network: Some(self.network.clone()),
            addresses,
            source: format!("Secret {namespace}/{}", own.name()),
            kind: may_record::Source::Secret,
        }
    }
}

/// Returns a JSON patch with these operations for a VirtualMachine. The API server rejects the patch if it has another
/// version of the VirtualMachine.
pub(super) fn patch(vm: &VirtualMachine, operations: &[Value]) -> Value {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": vm.metadata.resource_version});
    [test].into_iter().chain(operations.iter().cloned()).collect()
}
