//! The rule of records: decides whether a record of an address becomes a lease, reserves the address, or is ignored.
//!
//! A record is any string that says that an object has an address: an annotation, a status map, a Secret, an IPAddress,
//! an IPAMClaim, the report of a guest. Every user with the right to write objects of a namespace can write such a
//! string. So one table decides the effect of each kind of record. The allocator finds the [`Standing`] of the address
//! among all pools of the network, and calls [`may_record`]. No other code decides the effect of a record.
//!
//! | source | held | offered | excluded | reserved | no pool | foreign | held by another |
//! |---|---|---|---|---|---|---|---|
//! | annotation | lease | lease | excluded | mismatch | mismatch | ignored | mismatch |
//! | status map | lease | lease | excluded | mismatch | mismatch | ignored | mismatch |
//! | Secret | lease | lease | excluded | mismatch | mismatch | ignored | mismatch |
//! | IPAddress of a claim | lease | lease | excluded | mismatch | mismatch | ignored | mismatch |
//! | IPAddress without its claim | lease | by record | by record | mismatch | ignored | ignored | mismatch |
//! | IPAMClaim | lease | lease | excluded | mismatch | mismatch | ignored | mismatch |
//! | report of a guest | lease | by report | by report | by report | by report | by report | by report |
//! | Service or Cluster | lease | by report | by report | by report | by report | by report | by report |
//! | network data of a user | lease | by record | by record | mismatch | ignored | ignored | by record |
//! | network data of an instance that never ran | lease | by record | by record | mismatch | ignored | ignored | by record |
//! | network data of a guest on another network | lease | mismatch | mismatch | mismatch | ignored | ignored | mismatch |
//! | MAC address of a template | lease | lease | ignored | ignored | ignored | ignored | mismatch |
//! | unreadable record | lease | mismatch | mismatch | mismatch | ignored | ignored | mismatch |
//!
//! - *lease*: the claimant of the record gets, or keeps, the lease of the address.
//! - *excluded*, *by record*, *by report* and *mismatch* are the [`State`] of an address that no other machine gets
//!   before the machine of the record is gone. The object of a mismatch gets an event or a condition.
//! - *ignored*: the record has no effect.
//!
//! No state says whether an address has two users, because this depends on all records, reports and leases of the
//! address. [`Allocator::is_conflict`](crate::host::allocator::Allocator::is_conflict) decides this question.
//!
//! A report is never ignored, because a running guest uses the address, even if no pool offers it. The addresses of
//! Services of type LoadBalancer and of control planes are in use, too, and never ignored. The code that collects these
//! addresses limits their number for each object and namespace.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::host::counts::Count;

/// Kind of a record: the object or the report from which the record was read.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Source {
    /// An annotation of a machine.
    Annotation,
    /// The status of a KubevirtMachine.
    StatusMap,
    /// The Secret with the network data of a machine.
    Secret,
    /// The IPAddress of a claim.
    IpAddress,
    /// An IPAddress whose claim does not exist.
    LoneIpAddress,
    /// The status of an IPAMClaim.
    IpamClaim,
    /// The report of a running guest.
    Report,
    /// A Service of type LoadBalancer, or a Cluster of Cluster API.
    Neighbour,
    /// Network data that a user wrote for a machine.
    NetworkData,
    /// Network data of an instance that never ran and has no VirtualMachine.
    IdleInstance,
    /// Network data of a guest that KubeVirt has moved from the network of this data to the network of the record.
    MovedGuest,
    /// The MAC address in the template of a VirtualMachine.
    MacAddress,
    /// A record that cannot be read, but may have the address.
    Unreadable,
}

/// How the pools and leases of a network classify an address for the claimant of a record.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Standing {
    /// The claimant holds the address. If the record is the report of a guest, the holder may also be another object of
    /// the same VirtualMachine.
    Held,
    /// A pool that serves the namespace of the claimant offers the address, to every machine or to this machine. The
    /// standing is the same if no pool offers the address, but an external pool of the network serves the namespace:
    /// another program may have allocated the address.
    Offered,
    /// A pool of the network serves the namespace of the claimant, but no pool offers the address: a pool excludes the
    /// address, or no pool has it. The standing is the same if the pool with the address does not serve the namespace,
    /// and one of these conditions is met: machines of the namespace still hold addresses of the pool, or the pool is
    /// in the namespace and serves no machine.
    Excluded,
    /// The network reserves the address: it is a gateway, a name server, an end of a subnet, an address in a template,
    /// or it is kept for another machine.
    Reserved,
    /// The allocator does not know the network.
    NoPool,
    /// No pool of the network serves the namespace of the claimant, or only pools for other namespaces have the
    /// address.
    Foreign,
    /// Another claimant holds the address, has a record or a report of it, or migrated with it to another cluster. The
    /// standing is the same if a claimant of another name or kind held the address last, and its reuse delay is not over.
    /// The IPAddress of a claim that has moved to another cluster and back does not belong to another claimant.
    HeldByOther,
}

/// The effect of a record.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The claimant of the record gets or keeps the lease.
    Lease,
    /// No other machine gets the address before the machine of the record is gone.
    Reserve(State),
    /// The record has no effect.
    Ignore(Ignored),
}

/// State of an address that is not allocated, because a machine that does not hold the address has a record of it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum State {
    /// The record contradicts a lease, a pool or another record. Outputs call this state `byRecord`.
    #[default]
    Mismatch,
    /// The pools no longer offer the address, and the machine of the record keeps it.
    Excluded,
    /// The record is network data that a user wrote, or an IPAddress whose claim does not exist. It gets no lease.
    ByRecord,
    /// A running guest, a Service or a Cluster has the address.
    ByReport,
}

/// Why a record has no effect.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Ignored {
    /// No pool that serves the namespace of the object has the address.
    OtherNamespace,
    /// No pool has the address.
    NoPool,
    /// The network reserves the address for another use.
    Reserved,
    /// Other records of the namespace already reserve its share of a pool that several namespaces share.
    Share,
    /// Other records of the claim already reserve as many addresses as one claim may reserve without a lease.
    Claim,
}

/// Decides the effect of a record. The documentation of the module has the whole table.
#[must_use]
pub fn may_record(source: Source, standing: Standing) -> Verdict {
    use Verdict::{Ignore, Lease, Reserve};
    match (source, standing) {
        // An existing lease stays, even if no pool offers the address now.
        (_, Standing::Held) => Lease,
        // The address is in use, even if no pool offers it to this guest.
        (Source::Report | Source::Neighbour, _) => Reserve(State::ByReport),
        (Source::NetworkData | Source::IdleInstance, Standing::HeldByOther) => Reserve(State::ByRecord),
        (_, Standing::HeldByOther) => Reserve(State::Mismatch),
        // Users of one namespace could otherwise reserve the addresses of all other namespaces.
        (_, Standing::Foreign) => Ignore(Ignored::OtherNamespace),
        (Source::MacAddress, Standing::Offered) => Lease,
        (Source::MacAddress, Standing::Reserved) => Ignore(Ignored::Reserved),
        (Source::MacAddress, Standing::Excluded | Standing::NoPool) => Ignore(Ignored::NoPool),
        (_, Standing::Reserved) => Reserve(State::Mismatch),
        (
            Source::LoneIpAddress
            | Source::NetworkData
            | Source::IdleInstance
            | Source::MovedGuest
            | Source::Unreadable,
            Standing::NoPool,
        ) => Ignore(Ignored::NoPool),
        (_, Standing::NoPool) => Reserve(State::Mismatch),
        // A moved guest has the address without the knowledge of the new network, so a claim with this address is another
        // user. An unreadable record may be of another machine, or have another address.
        (Source::MovedGuest | Source::Unreadable, Standing::Offered | Standing::Excluded) => Reserve(State::Mismatch),
        (
            Source::LoneIpAddress | Source::NetworkData | Source::IdleInstance,
            Standing::Offered | Standing::Excluded,
        ) => Reserve(State::ByRecord),
        (_, Standing::Offered) => Lease,
        (_, Standing::Excluded) => Reserve(State::Excluded),
    }
}

// === impl Source ===

impl Source {
    /// Every source.
    pub const ALL: [Self; 13] = [
        Self::Annotation,
        Self::StatusMap,
        Self::Secret,
        Self::IpAddress,
        Self::LoneIpAddress,
        Self::IpamClaim,
        Self::Report,
        Self::Neighbour,
        Self::NetworkData,
        Self::IdleInstance,
        Self::MovedGuest,
        Self::MacAddress,
        Self::Unreadable,
    ];

    /// Whether the record belongs to a machine or a claim. A user can create any number of IPAddresses and instances
    /// without a machine or a claim.
    pub(super) fn is_of_holder(self) -> bool {
        !matches!(self, Self::LoneIpAddress | Self::IdleInstance)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Annotation => "annotation",
            Self::StatusMap => "status map",
            Self::Secret => "Secret",
            Self::IpAddress => "IPAddress of a claim",
            Self::LoneIpAddress => "IPAddress without its claim",
            Self::IpamClaim => "IPAMClaim",
            Self::Report => "report of a guest",
            Self::Neighbour => "Service or Cluster",
            Self::NetworkData => "network data of a user",
            Self::IdleInstance => "network data of an instance that never ran",
            Self::MovedGuest => "network data of a guest on another network",
            Self::MacAddress => "MAC address of a template",
            Self::Unreadable => "unreadable record",
        })
    }
}

// === impl Standing ===

impl Standing {
    /// Every standing, in the order of the table.
    pub const ALL: [Self; 7] =
        [Self::Held, Self::Offered, Self::Excluded, Self::Reserved, Self::NoPool, Self::Foreign, Self::HeldByOther];
}

// === impl State ===

impl State {
    /// The count in outputs that includes an address with this state.
    #[must_use]
    pub fn count(self) -> Count {
        match self {
            Self::Excluded => Count::Excluded,
            Self::Mismatch | Self::ByRecord => Count::ByRecord,
            Self::ByReport => Count::ByReport,
        }
    }

    /// The word of the state in a ledger file. `None` for a mismatch, which ledgers of earlier versions store without a
    /// word.
    #[cfg(feature = "sqlite")]
    pub(crate) fn stored(self) -> Option<&'static str> {
        (self != Self::Mismatch).then(|| self.count().word())
    }

    /// The state with this word in a ledger file.
    #[cfg(feature = "sqlite")]
    pub(crate) fn of_stored(word: &str) -> Option<Self> {
        [Self::Excluded, Self::ByRecord, Self::ByReport].into_iter().find(|state| state.stored() == Some(word))
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.count().word())
    }
}

// === impl Ignored ===

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OtherNamespace => "no pool that serves the namespace has the address",
            Self::NoPool => "no pool has the address",
            Self::Reserved => "the network reserves the address",
            Self::Share => "records of the namespace reserve a quarter of the shared pool already",
            Self::Claim => "records of the claim reserve 16 addresses without a lease already",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word for a verdict in the table of this module's documentation.
    fn word(verdict: Verdict) -> String {
        match verdict {
            Verdict::Lease => "lease".to_owned(),
            Verdict::Reserve(State::Mismatch) => "mismatch".to_owned(),
            Verdict::Reserve(state) => state.count().head().to_lowercase(),
            Verdict::Ignore(_) => "ignored".to_owned(),
        }
    }

    #[test]
    fn the_documentation_has_the_verdict_of_every_source_and_standing() {
        let rows = include_str!("may_record.rs").lines().map_while(|line| line.strip_prefix("//!"));
        let rows = rows.filter_map(|row| row.trim().strip_prefix("| ")?.strip_suffix(" |"));
        let cells: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let mut expected = vec![vec![
            "source".to_owned(),
            "held".to_owned(),
            "offered".to_owned(),
            "excluded".to_owned(),
            "reserved".to_owned(),
            "no pool".to_owned(),
            "foreign".to_owned(),
            "held by another".to_owned(),
        ]];
        for source in Source::ALL {
            let verdicts = Standing::ALL.map(|standing| word(may_record(source, standing)));
            expected.push([source.to_string()].into_iter().chain(verdicts).collect());
        }
        assert_eq!(cells, expected);
    }

    #[test]
    fn a_record_of_an_address_that_no_pool_offers_never_becomes_a_lease() {
        use Standing::{Excluded, Foreign, HeldByOther, NoPool, Reserved};
        for source in Source::ALL {
            for standing in [Excluded, Reserved, NoPool, Foreign, HeldByOther] {
                assert_ne!(may_record(source, standing), Verdict::Lease, "{source}, {standing:?}");
            }
        }
    }

    #[test]
    fn an_address_that_a_guest_reports_is_reserved_whatever_the_pools_offer() {
        for standing in Standing::ALL.into_iter().filter(|standing| *standing != Standing::Held) {
            for source in [Source::Report, Source::Neighbour] {
                assert!(matches!(may_record(source, standing), Verdict::Reserve(_)), "{source}, {standing:?}");
            }
        }
    }

    #[test]
    fn a_record_that_contradicts_a_holder_or_a_reservation_is_a_mismatch() {
        let leased = Source::ALL.into_iter().filter(|it| may_record(*it, Standing::Offered) == Verdict::Lease);
        for source in leased.filter(|source| *source != Source::MacAddress) {
            for standing in [Standing::Reserved, Standing::HeldByOther] {
                assert_eq!(may_record(source, standing), Verdict::Reserve(State::Mismatch), "{source}, {standing:?}");
            }
            assert_eq!(may_record(source, Standing::Excluded), Verdict::Reserve(State::Excluded), "{source}");
        }
    }

    #[test]
    fn a_record_of_a_held_address_keeps_the_lease_for_every_source() {
        assert_eq!(Source::ALL.map(|source| may_record(source, Standing::Held)), [Verdict::Lease; 13]);
    }

    #[test]
    fn only_records_that_the_controller_writes_become_leases() {
        let leased: Vec<Source> =
            Source::ALL.into_iter().filter(|it| may_record(*it, Standing::Offered) == Verdict::Lease).collect();
        let written = [
            Source::Annotation,
            Source::StatusMap,
            Source::Secret,
            Source::IpAddress,
            Source::IpamClaim,
            Source::MacAddress,
        ];
        assert_eq!(leased, written);
    }

    #[test]
    fn a_record_of_an_address_of_other_namespaces_is_ignored_unless_a_guest_reports_it() {
        for source in Source::ALL {
            let expected = match source {
                Source::Report | Source::Neighbour => Verdict::Reserve(State::ByReport),
                _ => Verdict::Ignore(Ignored::OtherNamespace),
            };
            assert_eq!(may_record(source, Standing::Foreign), expected, "{source}");
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_ledger_file_uses_the_words_of_outputs_and_has_no_word_for_a_mismatch() {
        let states = [State::Mismatch, State::Excluded, State::ByRecord, State::ByReport];
        let words = states.map(|state| (state.stored(), serde_json::to_value(state).unwrap()));
        let expected = [(None, "byRecord"), (Some("excluded"), "excluded"), (Some("byRecord"), "byRecord")];
        let expected = [&expected[..], &[(Some("byReport"), "byReport")]].concat();
        assert_eq!(
            words.to_vec(),
            expected.into_iter().map(|(stored, word)| (stored, word.into())).collect::<Vec<_>>()
        );
        for state in &states[1..] {
            assert_eq!(State::of_stored(state.stored().unwrap()), Some(*state));
        }
        assert_eq!(["conflict", "reserved", ""].map(State::of_stored), [None; 3]);
    }
}
