//! The routes and the routing rules of a profile.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Render;
use crate::diagnostic::Diagnostic;
use crate::network::{Family, Link, LinkIndex, RoutingRule};
use crate::render::metrics;
use crate::render::settings::{MAIN_TABLE, ignore_rules};
use crate::render::text::Text;

const NO_ADDRESS: &str = "its link has no address of its family";

/// A routing rule and its priority, written as in a keyfile. NetworkManager ignores a rule without a priority, and
/// reads the type of service as a hexadecimal number.
struct Rule<'r>(&'r RoutingRule, u32);

// === impl Render ===

impl Render<'_, '_> {
    /// Writes the routes and the routing rules of one family.
    pub(super) fn routes(&mut self, index: LinkIndex, ipv4: bool, text: &mut Text) {
        let link = self.config.link(index);
        self.ignore_routes_of(link, ipv4);
        let routes = link.routes.iter().zip(&self.metrics[index.0]);
        let routes = routes.filter(|(route, _)| route.destination().is_ipv4() == ipv4);
        let given = routes.filter_map(|(route, metric)| Some((route, (*metric)?)));
        for (at, (route, metric)) in given.enumerate() {
            let key = format!("route{}", at + 1);
            let none: IpAddr = if ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let gateway = route.gateway();
            let next = gateway.unwrap_or(none);
            text.line(&key, &format_args!("{},{next},{metric}", route.destination()));
            let is_far = |gateway: IpAddr| route.on_link || !metrics::is_reachable(link, gateway);
            let on_link = gateway.is_some_and(is_far).then(|| "onlink=true".to_owned());
            let table = route.table.filter(|table| *table > 0).map(|table| format!("table={table}"));
            let options: Vec<String> = [on_link, table].into_iter().flatten().collect();
            if !options.is_empty() {
                text.line(&format!("{key}_options"), &options.join(","));
            }
        }
        let rules = link.routing_policy.iter().zip(&self.rule_priorities[index.0]);
        let rules = rules.filter(|(rule, _)| (rule.family() == Family::Ipv4) == ipv4 && link.uses(rule.family()));
        for (at, (rule, priority)) in rules.enumerate() {
            text.line(&format!("routing-rule{}", at + 1), &Rule(rule, *priority));
        }
    }

    pub(super) fn ignore_routes(&mut self, link: &Link) {
        [true, false].into_iter().for_each(|ipv4| self.ignore_routes_of(link, ipv4));
    }

    /// Warns about the routes and the routing rules of a family in which the link has no address.
    pub(super) fn ignore_routes_of(&mut self, link: &Link, ipv4: bool) {
        let of_family = link.routes.iter().filter(|route| route.destination().is_ipv4() == ipv4);
        for route in of_family.filter(|route| !link.can_route(route)) {
            self.diagnostics.push(Diagnostic::ignored(&route.path, route.destination(), NO_ADDRESS));
        }
        let is_ignored = |rule: &RoutingRule| (rule.family() == Family::Ipv4) == ipv4 && !link.uses(rule.family());
        ignore_rules(link, is_ignored, NO_ADDRESS, self.diagnostics);
    }
}

// === impl Rule ===

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(rule, priority) = self;
        write!(f, "priority {priority} {rule}")?;
        if let Some(value) = rule.type_of_service {
            write!(f, " tos 0x{value:x}")?;
        }
        if let Some(mark) = rule.mark {
            write!(f, " fwmark 0x{mark:x}")?;
        }
        write!(f, " table {}", rule.table.unwrap_or(MAIN_TABLE))
    }
}
