//! The words for the states of addresses and machines: one list for the status of pools, metrics, alert rules, the
//! dashboard and `glowplugctl`.
//!
//! | word | counts |
//! |---|---|
//! | `total` | all addresses of a pool: the sum of `free`, `allocated`, `reserved` and `reuseDelay` |
//! | `free` | addresses that the next claims may get |
//! | `allocated` | addresses that a claim or machine holds |
//! | `reserved` | addresses that no claim gets: the sum of `excluded`, `byRecord` and `byReport` |
//! | `excluded` | addresses that a specification reserves: gateways, name servers, exclusions, ends of subnets, addresses kept for a name |
//! | `byRecord` | other addresses that an object has without a lease |
//! | `byReport` | other addresses that a running guest reports, or that a Service or Cluster uses |
//! | `reuseDelay` | released addresses in their reuse delay |
//! | `conflicts` | addresses of two users. They count as `allocated` or `reserved`, too |
//! | `outside` | held addresses that their pool does not offer, or no longer offers. They are not in `total`, or count as `excluded` |
//! | `waiting` | claims and machines that wait for an address |
//! | `outdated` | machines whose guests run with earlier network data |
//! | `leftAlone` | machines that already ran without network data when a pool first selected them |

/// A count of a pool. Each count has a word.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Count {
    /// All addresses of the pool.
    Total,
    /// Addresses that the next claims may get.
    Free,
    /// Addresses that a claim or machine holds.
    Allocated,
    /// Addresses that no claim gets.
    Reserved,
    /// Addresses that a specification reserves.
    Excluded,
    /// Addresses that an object has without a lease.
    ByRecord,
    /// Unrecorded addresses that a running guest reports, or that a Service or Cluster uses.
    ByReport,
    /// Released addresses in their reuse delay.
    ReuseDelay,
    /// Addresses of two users.
    Conflicts,
    /// Held addresses that their pool does not offer.
    Outside,
    /// Claims and machines that wait for an address.
    Waiting,
    /// Machines whose guests run with earlier network data.
    Outdated,
    /// Machines that already ran without network data when a pool first selected them.
    LeftAlone,
}

// === impl Count ===

impl Count {
    /// Every count, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Total,
        Self::Free,
        Self::Allocated,
        Self::Reserved,
        Self::Excluded,
        Self::ByRecord,
        Self::ByReport,
        Self::ReuseDelay,
        Self::Conflicts,
        Self::Outside,
        Self::Waiting,
        Self::Outdated,
        Self::LeftAlone,
    ];

    /// The states of an address. Each address of a pool has exactly one of these states.
    pub const STATES: [Self; 6] =
        [Self::Free, Self::Allocated, Self::Excluded, Self::ByRecord, Self::ByReport, Self::ReuseDelay];

    /// The counts of addresses, in the order of outputs.
    pub const OF_ADDRESSES: [Self; 10] = [
        Self::Total,
        Self::Allocated,
        Self::Reserved,
        Self::Excluded,
        Self::ByRecord,
        Self::ByReport,
        Self::ReuseDelay,
        Self::Free,
        Self::Conflicts,
        Self::Outside,
    ];

    /// The word for the count: the name of a member in outputs, and the value of a label of metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Free => "free",
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Excluded => "excluded",
            Self::ByRecord => "byRecord",
            Self::ByReport => "byReport",
            Self::ReuseDelay => "reuseDelay",
            Self::Conflicts => "conflicts",
            Self::Outside => "outside",
            Self::Waiting => "waiting",
            Self::Outdated => "outdated",
            Self::LeftAlone => "leftAlone",
        }
    }

    /// The word as the head of a column: `BY RECORD`.
    #[must_use]
    pub const fn head(self) -> &'static str {
        match self {
            Self::Total => "TOTAL",
            Self::Free => "FREE",
            Self::Allocated => "ALLOCATED",
            Self::Reserved => "RESERVED",
            Self::Excluded => "EXCLUDED",
            Self::ByRecord => "BY RECORD",
            Self::ByReport => "BY REPORT",
            Self::ReuseDelay => "REUSE DELAY",
            Self::Conflicts => "CONFLICTS",
            Self::Outside => "OUTSIDE",
            Self::Waiting => "WAITING",
            Self::Outdated => "OUTDATED",
            Self::LeftAlone => "LEFT ALONE",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_in_the_documentation_of_the_module_has_every_count_in_order() {
        let rows = include_str!("counts.rs").lines().filter_map(|line| line.strip_prefix("//! | `"));
        let words: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(words, Count::ALL.map(Count::word));
    }

    #[test]
    fn the_head_of_a_column_is_the_word_of_its_count_in_capitals() {
        for count in Count::ALL {
            let spaced =
                count.word().chars().flat_map(|c| c.is_ascii_uppercase().then_some(' ').into_iter().chain([c]));
            assert_eq!(count.head(), spaced.collect::<String>().to_uppercase());
        }
    }
}
