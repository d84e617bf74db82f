//! Rules that choose the routing table of a packet.

use std::fmt;

use ipnetwork::IpNetwork;

use super::Family;
use super::route::masked;

/// A rule that chooses a routing table by the source or the destination of a packet (netplan's `routing-policy`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RoutingRule {
    /// Path of the rule in the document, such as `ethernets.eth0.routing-policy[0]`. Used only in messages.
    pub path: String,
    from: Option<IpNetwork>,
    to: Option<IpNetwork>,
    family: Family,
    /// Number of the routing table; `None` for the main table.
    pub table: Option<u32>,
    /// Position of the rule: the kernel checks the rule with the lowest number first. `None`: rules without a priority
    /// come directly before the rule of the main table, in the document's order.
    pub priority: Option<u32>,
    /// The rule applies only to packets with this firewall mark. `None`: to packets with any mark.
    pub mark: Option<u32>,
    /// The rule applies only to packets with this value of "type of service" in the IP header. `None`: to packets with
    /// any value.
    pub type_of_service: Option<u8>,
}

/// The error for a source and a destination that cannot form a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RoutingRuleError {
    /// Neither a source nor a destination is given.
    Missing,
    /// Source and destination belong to different families.
    MixedFamilies,
}

// === impl RoutingRule ===

impl RoutingRule {
    /// A rule that chooses the main table for packets from a source, to a destination, or both. The host bits of both
    /// networks are cleared.
    ///
    /// # Errors
    ///
    /// [`RoutingRuleError`]: both are missing, or belong to different families.
    pub fn new(from: Option<IpNetwork>, to: Option<IpNetwork>) -> Result<Self, RoutingRuleError> {
        let family = Family::of(from.or(to).ok_or(RoutingRuleError::Missing)?.ip());
        if to.is_some_and(|to| Family::of(to.ip()) != family) {
            return Err(RoutingRuleError::MixedFamilies);
        }
        let (table, priority, mark, type_of_service) = (None, None, None, None);
        let (from, to) = (from.map(masked), to.map(masked));
        Ok(Self { path: String::new(), from, to, family, table, priority, mark, type_of_service })
    }

    /// The source of the packets; `None` for every source.
    #[must_use]
    pub fn from(&self) -> Option<IpNetwork> {
        self.from
    }

    /// The destination of the packets; `None` for every destination.
    #[must_use]
    pub fn to(&self) -> Option<IpNetwork> {
        self.to
    }

    /// The family of the packets.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }
}

impl fmt::Display for RoutingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let networks = [self.from.map(|from| format!("from {from}")), self.to.map(|to| format!("to {to}"))];
        f.write_str(&networks.into_iter().flatten().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_routing_rule_needs_a_source_or_a_destination_of_one_family() {
        let network = |text: &str| Some(text.parse::<IpNetwork>().unwrap());
        let rule = |from, to| RoutingRule::new(from, to).map(|rule| (rule.family(), rule.to_string()));
        assert_eq!(rule(network("10.0.0.5/32"), None), Ok((Family::Ipv4, "from 10.0.0.5/32".to_owned())));
        let both = rule(network("fd00::/64"), network("fd01::/64"));
        assert_eq!(both, Ok((Family::Ipv6, "from fd00::/64 to fd01::/64".to_owned())));
        assert_eq!(rule(None, None), Err(RoutingRuleError::Missing));
        assert_eq!(rule(network("fd00::/64"), network("10.0.0.0/8")), Err(RoutingRuleError::MixedFamilies));
    }
}
