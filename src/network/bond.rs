//! The options of a bond.
//!
//! The options, their values and the modes that use them come from the kernel's bonding driver
//! (`torvalds/linux:Documentation/networking/bonding.rst`). This module also rejects the combinations that
//! NetworkManager rejects (`NetworkManager/NetworkManager:src/libnm-core-impl/nm-setting-bond.c`): NetworkManager would
//! reject the whole bond.

use std::fmt;
use std::net::Ipv4Addr;

use super::LinkIndex;

/// How a bond distributes the traffic over its members. The comment of each variant gives the kernel's word and the
/// kernel's number for the mode.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BondMode {
    /// `balance-rr`, 0
    #[default]
    BalanceRr,
    /// `active-backup`, 1
    ActiveBackup,
    /// `balance-xor`, 2
    BalanceXor,
    /// `broadcast`, 3
    Broadcast,
    /// `802.3ad`, 4
    Ieee8023ad,
    /// `balance-tlb`, 5
    BalanceTlb,
    /// `balance-alb`, 6
    BalanceAlb,
}

/// The mode of a bond and its further options.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BondOptions {
    pub(crate) path: String,
    pub(crate) mode: BondMode,
    pub(crate) primary: Option<LinkIndex>,
    pub(crate) arp_ip_target: Vec<Ipv4Addr>,
    others: Vec<BondOption>,
}

/// An option other than the mode, the primary member and the ARP targets: a name of the kernel's bonding driver, and a
/// value that the driver accepts.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct BondOption {
    /// The kernel's spelling, with underscores.
    pub name: &'static str,
    /// A number or one of the kernel's words.
    pub value: String,
}

/// Why a bond option is rejected.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum BondOptionError {
    /// The kernel has no such option.
    Unknown,
    /// The option does not accept this value.
    Value {
        /// The accepted values, for a message.
        expected: String,
    },
    /// The option has no effect in this mode, or does not fit the other options.
    Useless {
        /// What the option needs in order to be accepted, for messages.
        expected: &'static str,
    },
}

/// The values that an option can have.
enum Takes {
    Number(u32, u32),
    /// The words that the option accepts. The kernel also accepts the index of a word in this list.
    Word(&'static [&'static str]),
    Switch,
}

struct Known {
    name: &'static str,
    takes: Takes,
    /// The modes that use the option.
    modes: Modes,
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Modes {
    All,
    RoundRobin,
    Lacp,
    Balanced,
    /// The modes that support ARP monitoring.
    Arp,
}

const KNOWN: &[Known] = {
    use Takes::{Number, Switch, Word};
    const INT_MAX: u32 = i32::MAX as u32;
    const fn known(name: &'static str, takes: Takes, modes: Modes) -> Known {
        Known { name, takes, modes }
    }
    &[
        known("ad_actor_sys_prio", Number(1, 65_535), Modes::Lacp),
        known("ad_select", Word(&["stable", "bandwidth", "count"]), Modes::Lacp),
        known("ad_user_port_key", Number(0, 1023), Modes::Lacp),
        known("all_slaves_active", Switch, Modes::All),
        known("arp_all_targets", Word(&["any", "all"]), Modes::Arp),
        known("arp_interval", Number(0, INT_MAX), Modes::Arp),
        known(
            "arp_validate",
            Word(&["none", "active", "backup", "all", "filter", "filter_active", "filter_backup"]),
            Modes::Arp,
        ),
        known("downdelay", Number(0, INT_MAX), Modes::All),
        known("fail_over_mac", Word(&["none", "active", "follow"]), Modes::All),
        known("lacp_rate", Word(&["slow", "fast"]), Modes::Lacp),
        known("lp_interval", Number(1, INT_MAX), Modes::All),
        known("miimon", Number(0, INT_MAX), Modes::All),
        known("min_links", Number(0, INT_MAX), Modes::All),
        known("num_grat_arp", Number(0, 255), Modes::All),
        known("num_unsol_na", Number(0, 255), Modes::All),
        known("packets_per_slave", Number(0, 65_535), Modes::RoundRobin),
        known("peer_notif_delay", Number(0, 300_000), Modes::All),
        known("primary_reselect", Word(&["always", "better", "failure"]), Modes::All),
        known("resend_igmp", Number(0, 255), Modes::All),
        known("tlb_dynamic_lb", Switch, Modes::Balanced),
        known("updelay", Number(0, INT_MAX), Modes::All),
        known("use_carrier", Switch, Modes::All),
        known(
            "xmit_hash_policy",
            Word(&["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"]),
            Modes::All,
        ),
    ]
};

// === impl BondMode ===

impl BondMode {
    /// Description of a valid mode, for messages.
    pub const EXPECTED: &'static str =
        "balance-rr, active-backup, balance-xor, broadcast, 802.3ad, balance-tlb, balance-alb or their number, 0 to 6";

    const ALL: [(Self, &'static str); 7] = [
        (Self::BalanceRr, "balance-rr"),
        (Self::ActiveBackup, "active-backup"),
        (Self::BalanceXor, "balance-xor"),
        (Self::Broadcast, "broadcast"),
        (Self::Ieee8023ad, "802.3ad"),
        (Self::BalanceTlb, "balance-tlb"),
        (Self::BalanceAlb, "balance-alb"),
    ];

    /// Parses the kernel's word or number for a mode; `None` for any other string.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let by_word = Self::ALL.iter().find(|(_, word)| *word == text);
        let by_number = || Self::ALL.get(text.parse::<usize>().ok().filter(|_| text.len() == 1)?);
        by_word.or_else(by_number).map(|(mode, _)| *mode)
    }

    fn is_one_of(self, modes: Modes) -> bool {
        match modes {
            Modes::All => true,
            Modes::RoundRobin => self == Self::BalanceRr,
            Modes::Lacp => self == Self::Ieee8023ad,
            Modes::Balanced => matches!(self, Self::BalanceTlb | Self::BalanceAlb),
            Modes::Arp => !matches!(self, Self::Ieee8023ad | Self::BalanceTlb | Self::BalanceAlb),
        }
    }

    /// Whether the mode supports a preferred member.
    #[must_use]
    pub fn has_primary(self) -> bool {
        matches!(self, Self::ActiveBackup | Self::BalanceTlb | Self::BalanceAlb)
    }
}

impl fmt::Display for BondMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL.iter().find(|(mode, _)| mode == self).map_or("", |(_, word)| word))
    }
}

// === impl BondOptions ===

impl BondOptions {
    /// Makes the options of a bond in this mode, with no further option set.
    #[must_use]
    pub fn new(mode: BondMode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Path of the options in the document, such as `bonds.bond0.parameters`. Used only in messages.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// How the bond distributes the traffic over its members.
    #[must_use]
    pub fn mode(&self) -> BondMode {
        self.mode
    }

    /// The preferred bond member; `None` when no member is preferred.
    #[must_use]
    pub fn primary(&self) -> Option<LinkIndex> {
        self.primary
    }

    /// Targets of the ARP requests with which the bond checks its members.
    #[must_use]
    pub fn arp_ip_target(&self) -> &[Ipv4Addr] {
        &self.arp_ip_target
    }

    /// Sets the preferred bond member. Only some modes support a preferred member, see [`BondOptions::reconcile`].
    pub fn set_primary(&mut self, primary: Option<LinkIndex>) {
        self.primary = primary;
    }

    /// Sets the targets of the ARP requests. The targets have no effect without an `arp_interval`, see
    /// [`BondOptions::reconcile`].
    pub fn set_arp_ip_target(&mut self, targets: Vec<Ipv4Addr>) {
        self.arp_ip_target = targets;
    }

    /// Sets an option by its name, with underscores. The value is a number, a word, or the kernel's number for a word.
    /// A second call for the same option replaces the value.
    ///
    /// This function rejects `primary`, `arp_ip_target` and `mode` as unknown, because each of them has its own
    /// function.
    ///
    /// # Errors
    ///
    /// [`BondOptionError`]. After an error, the options are unchanged.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BondOptionError> {
        let known = KNOWN.iter().find(|known| known.name == name).ok_or(BondOptionError::Unknown)?;
        let value = known.takes.read(value).ok_or_else(|| known.takes.refusal())?;
        if !self.mode.is_one_of(known.modes) {
            return Err(BondOptionError::Useless { expected: known.modes.expected() });
        }
        self.others.retain(|option| option.name != known.name);
        self.others.push(BondOption { name: known.name, value });
        self.others.sort_unstable();
        Ok(())
    }

    /// Removes options that have no effect in this mode, or that do not fit the other options: they have no effect
    /// together, or contradict each other. Returns each removed option with the reason.
    pub fn reconcile(&mut self) -> Vec<(&'static str, BondOptionError)> {
        let mut removed = Vec::new();
        let number = |options: &Self, name: &str| options.get(name).and_then(|value| value.parse::<u32>().ok());
        let mut remove = |options: &mut Self, name: &'static str, expected| {
            options.others.retain(|option| option.name != name);
            removed.push((name, BondOptionError::Useless { expected }));
        };
        if self.primary.is_some() && !self.mode.has_primary() {
            self.primary = None;
            remove(self, "primary", "the mode active-backup, balance-tlb or balance-alb");
        }
        let asks = number(self, "arp_interval").is_some_and(|interval| interval > 0);
        if asks && self.arp_ip_target.is_empty() {
            remove(self, "arp_interval", "also an arp_ip_target");
        }
        if !asks && !self.arp_ip_target.is_empty() {
            self.arp_ip_target.clear();
            remove(self, "arp_ip_target", "also an arp_interval");
        }
        if number(self, "miimon") == Some(0) {
            for name in ["updelay", "downdelay"] {
                if number(self, name).is_some_and(|delay| delay > 0) {
                    remove(self, name, "also a miimon above 0");
                }
            }
        }
        // NetworkManager uses 100 ms when miimon is not given.
        let miimon = number(self, "miimon").unwrap_or(100);
        if number(self, "peer_notif_delay").is_some_and(|delay| delay > 0 && (miimon == 0 || delay % miimon != 0)) {
            remove(self, "peer_notif_delay", "a multiple of miimon");
        }
        if let (Some(arp), Some(na)) = (number(self, "num_grat_arp"), number(self, "num_unsol_na"))
            && arp != na
        {
            remove(self, "num_unsol_na", "the value of num_grat_arp");
        }
        removed
    }

    /// The value of an option; `None` when the option is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.others.iter().find(|option| option.name == name).map(|option| option.value.as_str())
    }

    /// The further options, sorted by name.
    #[must_use]
    pub fn others(&self) -> &[BondOption] {
        &self.others
    }
}

// === impl Takes, Modes ===

impl Takes {
    fn read(&self, text: &str) -> Option<String> {
        let number = || text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
        match self {
            Self::Number(least, most) => number().filter(|n| (*least..=*most).contains(n)).map(|n| n.to_string()),
            Self::Word(words) => {
                let by_number = || words.get(usize::try_from(number()?).ok()?);
                words.iter().find(|word| **word == text).or_else(by_number).map(|word| (*word).to_owned())
            }
            Self::Switch => match text {
                "0" | "false" | "off" => Some("0".to_owned()),
                "1" | "true" | "on" => Some("1".to_owned()),
                _ => None,
            },
        }
    }

    fn refusal(&self) -> BondOptionError {
        let expected = match self {
            Self::Number(least, most) => format!("a number from {least} to {most}"),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Switch => "0 or 1".to_owned(),
        };
        BondOptionError::Value { expected }
    }
}

impl Modes {
    fn expected(self) -> &'static str {
        match self {
            Self::All => "any mode",
            Self::RoundRobin => "the mode balance-rr",
            Self::Lacp => "the mode 802.3ad",
            Self::Balanced => "the mode balance-tlb or balance-alb",
            Self::Arp => "the mode balance-rr, active-backup, balance-xor or broadcast",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mode: BondMode, set: &[(&str, &str)]) -> BondOptions {
        let mut options = BondOptions::new(mode);
        for (name, value) in set {
            assert_eq!(options.set(name, value), Ok(()), "{name}");
        }
        options
    }

    fn spelled(options: &BondOptions) -> Vec<String> {
        options.others().iter().map(|option| format!("{}={}", option.name, option.value)).collect()
    }

    #[test]
    fn the_table_of_bond_options_is_sorted_by_name() {
        let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(names, sorted);
    }

    #[test]
    fn a_bond_mode_is_given_by_its_word_or_its_number() {
        assert_eq!(BondMode::parse("4"), Some(BondMode::Ieee8023ad));
        assert_eq!(BondMode::parse("active-backup"), Some(BondMode::ActiveBackup));
        assert_eq!(["7", "04", "+1", "", "lacp"].map(BondMode::parse), [None; 5]);
    }

    #[test]
    fn a_number_is_stored_as_its_word_and_a_later_value_of_an_option_replaces_the_first() {
        let options = options(
            BondMode::Ieee8023ad,
            &[("lacp_rate", "1"), ("xmit_hash_policy", "layer2"), ("miimon", "0100"), ("xmit_hash_policy", "1")],
        );
        assert_eq!(spelled(&options), ["lacp_rate=fast", "miimon=100", "xmit_hash_policy=layer3+4"]);
    }

    #[test]
    fn an_option_without_effect_in_the_mode_is_rejected() {
        let mut options = BondOptions::new(BondMode::ActiveBackup);
        assert_eq!(options.set("lacp_rate", "fast"), Err(BondOptionError::Useless { expected: "the mode 802.3ad" }));
        assert_eq!(
            options.set("miimon", "often"),
            Err(BondOptionError::Value { expected: "a number from 0 to 2147483647".to_owned() })
        );
        assert_eq!(options.set("frobnicate", "1"), Err(BondOptionError::Unknown));
        assert_eq!(options, BondOptions::new(BondMode::ActiveBackup));
    }

    #[test]
    fn contradicting_bond_options_are_removed_with_the_reason() {
        let mut options = options(
            BondMode::ActiveBackup,
            &[
                ("arp_interval", "100"),
                ("miimon", "0"),
                ("updelay", "200"),
                ("num_grat_arp", "1"),
                ("num_unsol_na", "2"),
                ("peer_notif_delay", "150"),
            ],
        );
        let removed: Vec<&str> = options.reconcile().into_iter().map(|(name, _)| name).collect();
        assert_eq!(removed, ["arp_interval", "updelay", "peer_notif_delay", "num_unsol_na"]);
        assert_eq!(spelled(&options), ["miimon=0", "num_grat_arp=1"]);
    }

    #[test]
    fn a_primary_member_needs_a_mode_that_supports_it() {
        let mut options = BondOptions { primary: Some(LinkIndex(0)), ..BondOptions::new(BondMode::BalanceRr) };
        let expected = "the mode active-backup, balance-tlb or balance-alb";
        assert_eq!(options.reconcile(), [("primary", BondOptionError::Useless { expected })]);
        assert_eq!(options.primary, None);
    }
}
