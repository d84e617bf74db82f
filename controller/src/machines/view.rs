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
use crate::kinds::virtual_machine::VirtualMachine;
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

/// Reason of the event about a requested address that the machine does not get.
pub(super) const IGNORED: &str = "AddressRequestIgnored";

/// Age of an event about a waiting machine after which the event is repeated. API servers keep an event for one hour, and a machine
/// in the wait queue gets a pass every ten minutes.
const REPEAT: Duration = Duration::from_secs(45 * 60);

/// Maximum number of records of a machine that get an event because they cannot be read or contradict another record.
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

    // The index has these members. They are read again after each step.
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
    /// Whether the last event about the waiting machine is so old that it must be repeated.
    pub(super) is_repeat_due: bool,
    /// A name for the Secret of the machine that no machine had before.
    pub(super) new_name: String,
    /// The pools without a free address because of which the webhook would reject the VirtualMachine of this name again. `None`: it has
    /// rejected none, or no pool selects the VirtualMachine.
    pub(super) lacking: Option<BTreeSet<String>>,

    // When these members change, the pass begins again.
    /// The pools that serve the machine, or the reason why the choice is ambiguous.
    pub(super) selected: Chosen,
    /// The other networks of the machine that have a pool. The addresses in network data of a user are reserved there, too.
    pub(super) other_networks: BTreeSet<String>,
    /// Settings of the pools that serve the machine, by name of the pool.
    pub(super) pools: BTreeMap<String, PoolSettings>,

    /// What the registry records. It is read again after each step that may change it.
    pub(super) ledger: Recorded,

    // The responses to the steps of this pass, see [`View::note`].
    /// The Secrets of the machine that this pass has read, by name.
    pub(super) secrets: BTreeMap<String, NetworkSecret>,
    /// Whether `secrets` has a Secret that the pass has derived from a digest and not read, see [`super::digest`]. The pass has made no
    /// request, and makes none before it has read the Secret.
    pub(super) trusts_digest: bool,
    /// Addresses in the other Secret from which the guest reads its network data. `None`: not read in this pass.
    pub(super) other_addresses: Option<Vec<IpAddr>>,
    /// IPAddresses of other providers that this pass has read, by name. A value of `None`: the object does not exist.
    pub(super) addresses: BTreeMap<String, Option<ProviderAddress>>,
    /// Addresses that the registry allocated in this pass. `None`: no successful claim in this pass.
    pub(super) granted: Option<Vec<Allocation>>,
    /// Reason why the registry did not allocate or adopt in this pass. `None`: no failure.
    pub(super) problem: Option<Problem>,
    /// Holders whose absence this pass has checked.
    pub(super) checked: BTreeMap<Machine, Check>,
    pub(super) done: BTreeSet<Once>,
}

/// The response to the request of a step.
#[derive(Clone, Debug)]
pub(super) enum Response {
    /// The request is done. The objects and the registry show its effect.
    Done,
    /// The API server has another version of the object, and has not stored the patch.
    NotStored,
    /// The Secret of this name.
    Secret(String, NetworkSecret),
    /// The addresses in a Secret of another author.
    OtherAddresses(Vec<IpAddr>),
    Address(Box<Option<ProviderAddress>>),
    Granted(Vec<Allocation>),
    /// The registry or the author of another object has refused the request.
    Refused(Problem),
    /// A holder is checked.
    Checked(Check),
}

/// The result of the check whether a holder is gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Check {
    /// An object may still use its addresses.
    Kept,
    /// The holder is gone, and its leases are released.
    Gone,
}

/// The settings of a pool that a decision about its machines needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PoolSettings {
    pub(super) is_sticky: bool,
    pub(super) template: Option<String>,
    /// The program that chooses the addresses. `None`: the pool allocates its own addresses.
    pub(super) source: Option<Source>,
}

/// The pools that serve a machine, or the reason why the choice is ambiguous.
pub(super) type Chosen = Result<Vec<Selected>, String>;

/// The controller's own state for a name, which no object records.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Holders that have claimed. They may wait for an address or hold one.
    pub(super) claimed: BTreeSet<Machine>,
    /// The last reported event. `None`: the next event is always published.
    pub(super) notice: Option<Notice>,
    /// Time of the last report of the event.
    pub(super) noticed: Option<Instant>,
    /// Whether the log says that capk must create the VirtualMachine again. The controller repeats this request every few
    /// seconds while capk does not react.
    pub(super) is_retry_logged: bool,
    /// The addresses of a guest in another cluster that are not held, according to the last event about them.
    pub(super) not_held: BTreeSet<IpAddr>,
    /// The records that cannot be read or contradict another record, according to the last events about them.
    pub(super) doubts: BTreeSet<String>,
    /// Whether a user has removed the annotation with which the VirtualMachine was left alone.
    pub(super) is_freed: bool,
}

/// The object that claims addresses for a machine.
pub(super) struct Claimed {
    pub(super) machine: Machine,
    pub(super) created: Timestamp,
}

// === impl View ===

impl View {
    /// Creates a view of a name about which nothing is known yet.
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
            is_repeat_due: false,
            new_name: String::new(),
            lacking: None,
            selected: Ok(Vec::new()),
            other_networks: BTreeSet::new(),
            pools: BTreeMap::new(),
            ledger: Recorded::default(),
            secrets: BTreeMap::new(),
            trusts_digest: false,
            other_addresses: None,
            addresses: BTreeMap::new(),
            granted: None,
            problem: None,
            checked: BTreeMap::new(),
            done: BTreeSet::new(),
        }
    }

    /// Whether objects of the machine may have the records of another machine, from which it was copied. Such records are ignored,
    /// and removed before the machine gets addresses. A guest without network data of the controller may use what its objects
    /// record.
    pub(super) fn may_have_copies(&self) -> bool {
        let is_left_alone = self.vm.as_ref().is_some_and(VirtualMachine::is_left_alone);
        let guest = self.instance.as_ref().filter(|instance| instance.has_started && !instance.has_ended);
        !is_left_alone && guest.is_none_or(|instance| instance.secret.is_some())
    }

    /// Whether this pass has done a step.
    pub(super) fn has_done(&self, step: Once) -> bool {
        self.done.contains(&step)
    }

    /// Whether the machine waits for its network data. An event has named the reason. A machine with network data of another
    /// author does not wait, and neither does one with earlier network data or with another address than the requested one.
    pub(super) fn is_waiting(&self) -> bool {
        self.memory.notice.as_ref().is_some_and(|notice| ![KEPT, OUTDATED, IGNORED].contains(&notice.reason))
    }

    /// The machine, if the webhook rejects its VirtualMachine because of pools, and no claim of the machine waits in their queues.
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

    /// Whether the machine needs a certain address that is not available for now. A claim that requests an address does
    /// not wait in the queue of an exhausted pool either.
    pub(super) fn waits_for_address(&self) -> bool {
        let requests = self.vm.as_ref().is_some_and(|vm| vm.requested.as_ref().is_ok_and(|all| !all.is_empty()));
        match &self.problem {
            Some(Problem::Refused(ClaimError::Exhausted { .. })) => requests,
            Some(Problem::Refused(error)) => error.is_about_address(),
            _ => false,
        }
    }

    /// Whether the machine waits for a change that no watch reports: another machine holds the address that its source
    /// gives, another author has the name of its claim, or the IPAddress of its claim does not exist yet.
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

    /// Checks that the Secret of the VirtualMachine names a holder of this name. Any other Secret is returned as
    /// [`NetworkSecret::Foreign`]: otherwise a user who may create Secrets in one namespace could take addresses from
    /// machines of other namespaces.
    pub(super) fn check(&self, secret: NetworkSecret) -> NetworkSecret {
        let NetworkSecret::Ours(mut own) = secret else { return secret };
        if Key::of_machine(&own.machine) == self.key {
            return NetworkSecret::Ours(own);
        }
        if let Some(earlier) = self.ledger.earlier.get(&own.machine) {
            // Without the namespace of the VirtualMachine, an adopted lease would count for the KubevirtMachine's own namespace.
            own.machine = earlier.clone();
            return NetworkSecret::Ours(own);
        }
        let addresses = own.interfaces.iter().flat_map(|given| &given.addresses).map(|address| address.ip());
        let problem = format!("it names {}, which is not the machine of {}", own.machine, self.key);
        NetworkSecret::Foreign(problem, addresses.collect())
    }

    /// Reports why the machine gets no network data, and removes it from the wait queue, because waiting does not help.
    pub(super) fn refuse(&self, note: String) -> Step {
        self.hold_back(self.report("NetworkDataMissing", note))
    }

    /// Returns the step that removes a waiting machine of this view's name from the wait queue, because the machine must not get
    /// an address now. Returns `step` if no machine of the name waits.
    pub(super) fn hold_back(&self, step: Step) -> Step {
        self.ledger.waiting.first().map_or(step, |holder| Step::Withdraw(holder.clone()))
    }

    pub(super) fn report(&self, reason: &'static str, note: String) -> Step {
        self.tell(Notice { is_warning: true, reason, note })
    }

    /// Publishes an event, unless it was the last one about this machine. The event of a waiting machine is repeated.
    pub(super) fn tell(&self, notice: Notice) -> Step {
        let is_repeated = self.is_repeat_due && self.is_waiting();
        let is_known = self.memory.notice.as_ref() == Some(&notice);
        if is_known && !is_repeated { Step::Wait } else { Step::Report(notice) }
    }

    /// Reports the invalid records whose addresses are reserved for the machine: they cannot be read, or they contradict another record.
    /// `None`: the last events are about exactly these records.
    pub(super) fn report_doubts(&self) -> Option<Step> {
        let is_served = !matches!(&self.selected, Ok(selected) if selected.is_empty()) || !self.ledger.known.is_empty();
        let has_address = |doubt: &&ObjectDiagnostic| doubt.claimant.is_some() && !doubt.addresses.is_empty();
        let doubts = self.doubts.iter().filter(has_address).take(MOST_DOUBTS).filter(|_| is_served);
        let doubts: BTreeSet<String> = doubts.map(ToString::to_string).collect();
        (doubts != self.memory.doubts).then_some(Step::ReportDoubts(doubts))
    }

    /// Writes the annotation that says why the machine waits, or removes the annotation when the machine has its network data.
    /// `None`: the annotation is correct. People read the KubevirtMachine, and capk reports only that the guest starts.
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
    /// Notes a published event.
    pub(super) fn note(&mut self, notice: Notice) {
        (self.notice, self.noticed) = (Some(notice), Some(Instant::now()));
    }

    /// Whether the last event must be repeated.
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

    /// The record of these addresses in the Secret, which is in the namespace of the VirtualMachine.
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

/// Returns a JSON patch with these operations. The patch fails if the VirtualMachine has another version.
pub(super) fn patch(vm: &VirtualMachine, operations: &[Value]) -> Value {
    let test = json!({"op": "test", "path": "/metadata/resourceVersion", "value": vm.metadata.resource_version});
    [test].into_iter().chain(operations.iter().cloned()).collect()
}
