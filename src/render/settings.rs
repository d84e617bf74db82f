//! Settings of a link that depend on other links.

use std::collections::BTreeSet;

use pnet_base::MacAddr;

use super::Device;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{DefaultRoutes, Dns, Link, LinkIndex, LinkKind, Mtu, NetworkConfig, RoutingRule};

/// Returns the MAC address that the link will have: its own address, or the address of its first member, port or
/// parent. `None` if the document does not have this address.
pub(super) fn mac_address(config: &NetworkConfig, index: LinkIndex) -> Option<MacAddr> {
    let mut link = config.link(index);
    while link.mac_address().is_none() {
        link = config.link(*link.kind.made_of().first()?);
    }
    link.mac_address()
}

/// Returns the MTU to set. A bond member gets the MTU of its bond from the kernel.
pub(super) fn mtu(config: &NetworkConfig, index: LinkIndex, diagnostics: &mut Diagnostics) -> Option<Mtu> {
    let link = config.link(index);
    let controller = config.controller_of(index).map(|controller| config.link(controller));
    let bond = controller.filter(|controller| matches!(controller.kind, LinkKind::Bond { .. }));
    let Some(bond) = bond else { return link.mtu };
    if let Some(mtu) = link.mtu.filter(|mtu| Some(*mtu) != bond.mtu) {
        let because = format!("a bond member gets the MTU of its bond, {}", bond.path);
        diagnostics.push(Diagnostic::ignored(format!("{}.mtu", link.path), mtu, &because));
    }
    None
}

/// Priority of the last of the rules that have no priority in the document: directly before the rule of the main table,
/// as in the kernel.
const LAST_PRIORITY: u32 = 32_765;

/// Number of the main table.
pub(super) const MAIN_TABLE: u32 = 254;

/// Returns the priority of each routing rule of each link. Without a priority, the kernel would number the rules in the
/// order in which they are added, which differs between two boots. So rules without a priority get numbers in the
/// document's order.
pub(super) fn rule_priorities(config: &NetworkConfig) -> Vec<Vec<u32>> {
    let all = || config.links().iter().flat_map(|link| &link.routing_policy);
    let missing = all().filter(|rule| rule.priority.is_none()).count() as u32;
    let mut next = LAST_PRIORITY.saturating_sub(missing.saturating_sub(1));
    let mut priority = |rule: &RoutingRule| {
        rule.priority.unwrap_or_else(|| {
            next += 1;
            next - 1
        })
    };
    config.links().iter().map(|link| link.routing_policy.iter().map(&mut priority).collect()).collect()
}

/// Warns about each routing rule of a link for which `is_ignored` returns `true`.
pub(super) fn ignore_rules(
    link: &Link,
    is_ignored: impl Fn(&RoutingRule) -> bool,
    because: &str,
    diagnostics: &mut Diagnostics,
) {
    for rule in link.routing_policy.iter().filter(|rule| is_ignored(rule)) {
        diagnostics.push(Diagnostic::ignored(&rule.path, rule, because));
    }
}

/// Warns about name servers and search domains of a link without addresses: network programs use them only on a link with
/// addresses.
pub(super) fn ignore_dns(dns: &Dns, diagnostics: &mut Diagnostics) {
    let because = "only a link with an address has name servers and search domains";
    for server in &dns.nameservers {
        diagnostics.push(Diagnostic::ignored(&server.path, server, because));
    }
    for domain in &dns.search {
        diagnostics.push(Diagnostic::ignored(&domain.path, domain, because));
    }
}

/// Warns about an interface that the document lists under a second name: NetworkManager waits for the name that no
/// interface has.
pub(super) fn report_other_names(
    config: &NetworkConfig,
    defaults: &DefaultRoutes,
    devices: &[Device],
    diagnostics: &mut Diagnostics,
) {
    let mut seen = BTreeSet::new();
    for (other, first) in defaults.other_names().filter(|(other, _)| seen.insert(*other)) {
        let expected = format!(
            "one name for one interface: {} has this network too, and an initramfs that needs the network waits for \
             the name that no interface has",
            config.link(first).path
        );
        let path = &config.link(other).path;
        diagnostics.push(Diagnostic::warning(path, "second name of a network", &devices[other.0], &expected));
    }
}
