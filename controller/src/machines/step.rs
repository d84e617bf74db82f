//! The requests of a pass, and the events about a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use glowplug::host::claim::{Claim, Claimant, Machine, Record};
use ipnetwork::IpNetwork;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::cluster::key::Key;
use crate::kinds::kubevirt_machine::OwnSecret;
use crate::ledger::types::Reservation;

/// An event about a machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Notice {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

/// The next request of a pass.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// There is nothing to do until an object or a pool changes.
    Wait,
    /// Reads the KubevirtMachine with this name.
    ReadMachine(Key),
    /// Reads the Secret with this name, which this program may have written for the machine.
    ReadSecret(String),
    /// Reads the Secret with this name, in which another author has written the network data of the machine.
    ReadOtherSecret(String),
    /// Applies this merge patch to the VirtualMachine. The patch asks the webhook for a reference to a Secret.
    /// Publishes this event if the webhook has added the reference.
    RequestReference(Value, Option<Notice>),
    /// Applies this JSON patch to the VirtualMachine, then publishes this event.
    PatchVm(Value, Option<Notice>),
    /// Reads the instance of the machine.
    ReadInstance,
    /// Creates this IPAddressClaim.
    CreateClaim(Value),
    /// Reads the IPAddress of this name.
    ReadAddress(String),
    /// Applies this merge patch to the IPAddress of this name.
    PatchAddress(String, Value),
    /// Deletes the IPAddressClaim of this name and UID.
    DeleteClaim(String, String),
    /// Applies this merge patch to the IPAddressClaim of this name.
    PatchClaim(String, Value),
    /// Records that a claimant holds exactly the addresses that a source has given.
    Hold(Box<Hold>),
    /// Claims addresses.
    Claim(Box<Claim>),
    /// Creates this Secret with the addresses of the machine and this time of its last update, and logs these warnings
    /// about its network data. Then publishes this event.
    CreateSecret(Box<Secret>, Updated, Vec<String>, Option<Notice>),
    /// Updates the Secret with these prefix lengths and this document.
    UpdateSecret(Box<OwnSecret>, String),
    /// Records the names of the Secrets from which guests of a machine may read its addresses.
    RecordSecrets(Box<Machine>, BTreeSet<String>),
    /// Deletes the Secrets of a machine that are in the first set. If no guest reads any Secret of this set, records
    /// that guests may read only the Secrets in the second set.
    DropSecrets(Box<Machine>, BTreeSet<String>, BTreeSet<String>),
    /// Moves the leases of a machine to these pools, which serve the machine now.
    MoveLeases(Box<Machine>, Vec<String>),
    /// Records that the guest of these machines and claims has migrated to another cluster with these addresses. Then
    /// publishes which addresses stay held after the deletion of the VirtualMachine, and which do not.
    RecordMigration(BTreeSet<Machine>, BTreeSet<IpAddr>),
    /// Releases the addresses of interfaces that are on another network now.
    Release(Box<Release>),
    /// Makes the registry adopt the addresses that the machine has in the Secret with this name.
    Adopt(Vec<Record>, String),
    /// Makes the registry adopt the addresses in the Secret of an earlier machine with the same name, if they are free.
    Restore(Vec<Record>),
    /// Keeps these addresses of the claimant and releases its other addresses of the same families, which the claimant
    /// never received.
    Keep(Box<Claimant>, Vec<IpAddr>),
    /// Applies this merge patch to the KubevirtMachine.
    PatchMachine(Value),
    /// Applies this merge patch to the KubevirtMachine. The patch writes or removes the annotation that says why the
    /// VirtualMachine waits.
    AnnotateWaiting(Value),
    /// Applies this merge patch to the VirtualMachine.
    AnnotateVm(Value),
    /// Applies this merge patch to the VirtualMachine, then publishes this event. The patch adds the annotation of a
    /// machine that is left alone.
    LeaveAlone(Value, Notice),
    /// Applies this merge patch to the VirtualMachine. The patch removes copied records.
    RemoveRecords(Value),
    /// Applies this merge patch to the template of the VirtualMachine.
    MarkVm(Value),
    /// Applies this merge patch to the status of the KubevirtMachine.
    PatchStatus(Value),
    /// Applies this merge patch to the KubevirtMachine, so that capk creates the VirtualMachine again.
    Retry(Value),
    /// Reserves these addresses of records that came too late to be adopted, then publishes this event.
    ReserveRecorded(Vec<Reservation>, Notice),
    /// Notes that the objects of these machines no longer record these addresses. Each address comes with its network.
    EndRecords(BTreeMap<Machine, BTreeSet<(String, IpAddr)>>),
    /// Publishes an event with each of these notes about doubtful records, and about addresses of the guest with another
    /// user, unless an earlier event has the same note.
    ReportDoubts(BTreeSet<String>),
    /// Reserves each of these addresses that is in a pool which may serve the namespace of the VirtualMachine.
    Reserve(Vec<Reservation>),
    /// Removes a machine from the wait queue.
    Withdraw(Machine),
    /// Reads all objects of a holder with consistent reads, and releases its addresses if none of these objects may use
    /// them.
    Prove(Machine),
    /// Publishes an event.
    Report(Notice),
}

/// The time of the last update of the document, in a Secret that is created. A guest that is older than this time has
/// read an earlier document.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Updated {
    /// No guest has read another document in a Secret of this name.
    Never,
    /// The deleted Secret had the same document, last updated at this time.
    At(Timestamp),
    /// A guest runs that may have read another document in the deleted Secret.
    Now,
}

/// The steps that a pass does at most once. A later read does not always show that a step is done: an API server may
/// drop the members that the step has written.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Once {
    ReadMachine,
    ReadInstance,
    RequestReference,
    PatchVm,
    UpdateSecret,
    DropSecrets,
    MoveLeases,
    Release,
    RecordMigration,
    Restore,
    Keep,
    LeaveAlone,
    RemoveRecords,
    MarkVm,
    /// Mark of both [`Step::PatchMachine`] and [`Step::AnnotateVm`].
    Annotate,
    AnnotateWaiting,
    PatchStatus,
    Retry,
    ReserveRecorded,
    EndRecords,
}

/// Addresses that a source has given to an interface.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    /// Name of the pool.
    pub(super) pool: String,
    pub(super) claimant: Claimant,
    pub(super) addresses: Vec<IpNetwork>,
    /// Kind and name of the object with the addresses, for messages.
    pub(super) source: String,
}

/// Addresses of a machine whose interfaces are on another network now. They are released after their Secrets are deleted
/// and their records are removed, and only if no guest reads one of the Secrets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Release {
    pub(super) machine: Machine,
    /// The addresses, each with its network. These are leases, and reservations of the same addresses.
    pub(super) addresses: BTreeSet<(String, IpAddr)>,
    /// The Secrets with these addresses.
    pub(super) secrets: BTreeSet<String>,
    pub(super) records: Removal,
}

/// The merge patches that remove the records of interfaces from the object that holds the addresses.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Removal {
    /// The addresses belong to a KubevirtMachine of another namespace, whose records do not count.
    Nothing,
    /// The patch of the VirtualMachine.
    OfVm(Value),
    /// The patch of the KubevirtMachine, and the patch of its status if it has a status map.
    OfMachine(Value, Option<Value>),
}

// === impl Notice ===

impl Notice {
    /// Creates the event about a guest that has started before its network data existed, or before its template
    /// referred to the data.
    pub(super) fn of_early_guest() -> Self {
        let note = "The guest started without its network data: restart the machine".to_owned();
        Self { is_warning: true, reason: "NetworkDataMissing", note }
    }
}

// === impl Step ===

impl Step {
    /// Returns the mark of a step that a pass does at most once. `None`: a pass may do the step several times.
    pub(super) fn once(&self) -> Option<Once> {
        match self {
            Self::ReadMachine(_) => Some(Once::ReadMachine),
            Self::ReadInstance => Some(Once::ReadInstance),
            Self::RequestReference(..) => Some(Once::RequestReference),
            Self::PatchVm(..) => Some(Once::PatchVm),
            Self::UpdateSecret(..) => Some(Once::UpdateSecret),
            Self::DropSecrets(..) => Some(Once::DropSecrets),
            Self::MoveLeases(..) => Some(Once::MoveLeases),
            Self::Release(_) => Some(Once::Release),
            Self::RecordMigration(..) => Some(Once::RecordMigration),
            Self::Restore(_) => Some(Once::Restore),
            Self::Keep(..) => Some(Once::Keep),
            Self::LeaveAlone(..) => Some(Once::LeaveAlone),
            Self::RemoveRecords(_) => Some(Once::RemoveRecords),
            Self::MarkVm(_) => Some(Once::MarkVm),
            Self::PatchMachine(_) | Self::AnnotateVm(_) => Some(Once::Annotate),
            Self::AnnotateWaiting(_) => Some(Once::AnnotateWaiting),
            Self::PatchStatus(_) => Some(Once::PatchStatus),
            Self::Retry(_) => Some(Once::Retry),
            Self::ReserveRecorded(..) => Some(Once::ReserveRecorded),
            Self::EndRecords(_) => Some(Once::EndRecords),
            _ => None,
        }
    }

    /// Whether the request depends on the pools that select the machine: it allocates from these pools, changes the
    /// machine because of them, or reports something about them. Such a request waits until the pass has the same pools
    /// as the webhooks.
    pub(super) fn follows_pools(&self) -> bool {
        use Step::{
            AnnotateVm, AnnotateWaiting, Claim, CreateClaim, CreateSecret, Hold, LeaveAlone, MarkVm, MoveLeases,
            PatchVm, RemoveRecords, Report, RequestReference, Restore, UpdateSecret,
        };
        let is_given =
            matches!(self, Claim(_) | CreateClaim(_) | CreateSecret(..) | Hold(_) | MoveLeases(..) | Restore(_));
        let is_of_template = matches!(self, RequestReference(..) | PatchVm(..) | MarkVm(_) | UpdateSecret(..));
        is_given
            || is_of_template
            || matches!(self, LeaveAlone(..) | RemoveRecords(_) | AnnotateVm(_) | AnnotateWaiting(_) | Report(_))
    }

    /// Whether the request may change the state of the registry.
    pub(super) fn changes_registry(&self) -> bool {
        use Step::{
            Adopt, Claim, DropSecrets, EndRecords, Hold, Keep, MoveLeases, Prove, RecordMigration, RecordSecrets,
            Release, Reserve, ReserveRecorded, Restore, Withdraw,
        };
        let is_record = matches!(self, Adopt(..) | Restore(_) | Hold(..) | Keep(..) | Reserve(_) | ReserveRecorded(..));
        is_record
            || matches!(
                self,
                Claim(..)
                    | Prove(..)
                    | Withdraw(_)
                    | EndRecords(_)
                    | RecordSecrets(..)
                    | DropSecrets(..)
                    | MoveLeases(..)
                    | RecordMigration(..)
                    | Release(_)
            )
    }
}
