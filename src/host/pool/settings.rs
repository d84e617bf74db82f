//! The settings of a pool that become part of the documents of its machines, in addition to the addresses.
//!
//! This module has all forms of a setting: the form that users write, the checked form, and the form that a ledger
//! stores. A new setting needs a member of both types here, a line in [`Settings::written`], and its place in the
//! document in `host/expand.rs`. The schema of the controller needs the member, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::host::address::{AddressError, Entry, parse_address, parse_gateway};
use crate::host::members::Members;
use crate::network::{DomainName, Family, Mtu};

/// The settings that the document of a machine gets from its pool, in addition to the addresses.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// Default gateways, at most one of each family, IPv4 first.
    pub gateways: Vec<IpAddr>,
    /// Name servers, the most important first.
    pub nameservers: Vec<IpAddr>,
    /// Search domains for short host names, the most important first.
    pub search_domains: Vec<DomainName>,
    /// MTU of the interface. `None`: the guest does not change the MTU.
    pub mtu: Option<Mtu>,
    /// Routes through the interface in addition to the default routes.
    pub routes: Vec<StaticRoute>,
}

/// A route through a router of the network.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StaticRoute {
    /// The destination, without host bits. It is not a default route.
    pub to: IpNetwork,
    /// The router, an address of the same family.
    pub via: IpAddr,
}

/// The settings as users write them, not checked yet. The members have the same names as in a document.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[doc(hidden)]
pub struct SettingsSpec {
    /// Default gateways, at most one of each family.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<String>,
    /// Name servers, the most important first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Search domains, the most important first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search_domains: Vec<String>,
    /// MTU of the interface, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<i64>,
    /// Routes in addition to the default routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteSpec>,
}

/// A route as users write it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
#[doc(hidden)]
pub struct RouteSpec {
    /// The destination, a CIDR.
    pub to: String,
    /// The address of the router.
    pub via: String,
}

/// The check of settings, with the diagnostics so far.
pub(super) struct Check<'a> {
    /// Returns the path of a member of the settings.
    pub(super) at: &'a dyn Fn(&str) -> String,
    /// The families of the addresses. Empty: the families are not known.
    pub(super) families: BTreeSet<Family>,
    pub(super) diagnostics: &'a mut Diagnostics,
}

/// A router that the machines must reach, with its member in the document.
pub(super) type Router = (String, IpAddr);

// === impl SettingsSpec ===

impl SettingsSpec {
    /// Reads the settings that pools and NodePools have.
    pub(crate) fn read(members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        Self {
            gateway: members.texts("gateway", diagnostics),
            nameservers: members.texts("nameservers", diagnostics),
            ..Self::default()
        }
    }

    /// Reads the settings that NodePools do not have.
    pub(crate) fn read_further(self, members: &mut Members<'_>, diagnostics: &mut Diagnostics) -> Self {
        let search_domains = members.strings("searchDomains", diagnostics);
        let mtu = members.number("mtu", "a number of bytes", diagnostics);
        let path = members.path;
        let list = path.field("routes");
        let mut routes = Vec::new();
        for (at, element) in members.objects("routes", diagnostics) {
            let mut route = Members::new(element, list.index(at));
            let to = route.required_text("to", "the CIDR of the destination", diagnostics);
            let via = route.required_text("via", "the address of a router", diagnostics);
            route.finish(Severity::Error, diagnostics);
            routes.push(RouteSpec { to: to.unwrap_or_default(), via: via.unwrap_or_default() });
        }
        Self { search_domains, mtu, routes, ..self }
    }
}

// === impl Check ===

impl Check<'_> {
    /// The valid settings, and the routers among them: first the gateway of each family, then the routers of routes.
    pub(super) fn settings(&mut self, spec: &SettingsSpec) -> (Settings, Vec<Router>) {
        let gateways = self.gateways(&spec.gateway);
        let nameservers = self.nameservers(&spec.nameservers);
        let search_domains = self.search_domains(&spec.search_domains);
        let mtu = spec.mtu.and_then(|mtu| self.mtu(mtu));
        let (routes, vias): (Vec<_>, Vec<_>) = self.routes(&spec.routes).into_iter().unzip();
        let settings = Settings {
            gateways: gateways.values().map(|(_, gateway)| *gateway).collect(),
            nameservers,
            search_domains,
            mtu,
            routes,
        };
        (settings, gateways.into_values().chain(vias).collect())
    }

    fn error(&mut self, member: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::error((self.at)(member), problem, value, expected));
    }

    fn warning(&mut self, member: &str, problem: &str, value: impl fmt::Display, expected: &str) {
        self.diagnostics.push(Diagnostic::warning((self.at)(member), problem, value, expected));
    }

    fn has(&self, family: Family) -> bool {
        self.families.is_empty() || self.families.contains(&family)
    }

    /// The valid values of a list, without repetitions, each with its member.
    fn values<T: Clone + fmt::Display + Ord>(
        &mut self,
        list: &str,
        texts: &[String],
        (repeated, each): (&str, &str),
        parse: impl Fn(&str, String) -> Result<T, Diagnostic>,
    ) -> Vec<(String, T)> {
        let (mut values, mut seen) = (Vec::new(), BTreeSet::new());
        for (at, text) in texts.iter().enumerate() {
            let member = format!("{list}[{at}]");
            match parse(text, (self.at)(&member)) {
                Ok(value) if seen.insert(value.clone()) => values.push((member, value)),
                Ok(value) => self.warning(&member, repeated, value, each),
                Err(diagnostic) => self.diagnostics.push(diagnostic),
            }
        }
        values
    }

    fn servers(
        &mut self,
        list: &str,
        texts: &[String],
        parse: impl Fn(&str) -> Result<IpAddr, AddressError>,
    ) -> Vec<Router> {
        let words = ("repeated address", "each address once");
        self.values(list, texts, words, |text, path| parse(text).map_err(|error| error.at(path)))
    }

    /// The gateway of each family.
    fn gateways(&mut self, texts: &[String]) -> BTreeMap<Family, Router> {
        let mut gateways = BTreeMap::new();
        for (member, gateway) in self.servers("gateway", texts, parse_gateway) {
            let family = Family::of(gateway);
            if !self.has(family) {
                let expected = format!("{family} addresses in the pool");
                self.error(&member, "gateway of a family without addresses", gateway, &expected);
            } else if gateways.insert(family, (member.clone(), gateway)).is_some() {
                self.error(&member, &format!("second {family} gateway"), gateway, "at most one of each family");
            }
        }
        gateways
    }

    fn nameservers(&mut self, texts: &[String]) -> Vec<IpAddr> {
        let servers = self.servers("nameservers", texts, parse_address);
        for (member, server) in &servers {
            let family = Family::of(*server);
            if !self.has(family) {
                let expected = format!("{family} addresses in the pool");
                self.warning(member, "name server of a family without addresses", server, &expected);
            }
        }
        servers.into_iter().map(|(_, server)| server).collect()
    }

    fn search_domains(&mut self, texts: &[String]) -> Vec<DomainName> {
        let words = ("repeated search domain", "each domain once");
        let domains = self.values("searchDomains", texts, words, |text, path| {
            let invalid = |_| Diagnostic::error(path, "invalid search domain", text, DomainName::EXPECTED);
            text.parse::<DomainName>().map_err(invalid)
        });
        if let Some((member, domain)) = domains.first() {
            // Kernel arguments cannot express a search domain.
            let expected = "an image with cloud-init, or with glowplug and its renderer network-manager-profiles or systemd-networkd";
            self.warning(member, "in no kernel argument", domain, expected);
        }
        domains.into_iter().map(|(_, domain)| domain).collect()
    }

    fn mtu(&mut self, bytes: i64) -> Option<Mtu> {
        let mtu = Mtu::try_from(bytes).ok();
        match mtu {
            None => self.error("mtu", "invalid MTU", bytes, Mtu::EXPECTED),
            Some(mtu) if mtu < Mtu::IPV6_MINIMUM && self.families.contains(&Family::Ipv6) => {
                self.error("mtu", "MTU too small for IPv6", mtu, Mtu::EXPECTED_FOR_IPV6);
            }
            Some(mtu) => self.warning("mtu", "not read by afterburn", mtu, "an image with glowplug or cloud-init"),
        }
        mtu
    }

    /// The valid routes, each with its router.
    fn routes(&mut self, written: &[RouteSpec]) -> Vec<(StaticRoute, Router)> {
        let (mut routes, mut seen) = (Vec::new(), BTreeSet::new());
        for (at, RouteSpec { to, via }) in written.iter().enumerate() {
            let (at_to, at_via) = (format!("routes[{at}].to"), format!("routes[{at}].via"));
            // A missing or empty member has been reported already.
            if to.is_empty() || via.is_empty() {
                continue;
            }
            let (to, via) = (self.destination(&at_to, to), parse_gateway(via));
            let via = via.map_err(|error| self.diagnostics.push(error.at((self.at)(&at_via)))).ok();
            let (Some(to), Some(via)) = (to, via) else { continue };
            let family = Family::of(to.ip());
            if Family::of(via) != family {
                self.error(&at_via, "router of the other family", via, &format!("an {family} address"));
            } else if !self.has(family) {
                let expected = format!("{family} addresses in the pool");
                self.error(&at_to, "route of a family without addresses", to, &expected);
            } else if !seen.insert(to) {
                self.error(&at_to, "second route", to, "each destination once");
            } else {
                routes.push((StaticRoute { to, via }, (at_via, via)));
            }
        }
        routes
    }

    /// The destination of a route: a CIDR, or one address.
    fn destination(&mut self, member: &str, text: &str) -> Option<IpNetwork> {
        if ["0.0.0.0/0", "::/0", "default"].contains(&text) {
            self.error(member, "default route", text, "the member gateway for a default route");
            return None;
        }
        match text.parse::<Entry>() {
            Ok(entry) => {
                let range = entry.range();
                let is_single = range.first() == range.last();
                let length = entry.length().or_else(|| is_single.then_some(range.family().bits()));
                let first = range.family().address(range.first());
                let subnet = length.and_then(|length| IpNetwork::new(first, length).ok());
                if subnet.is_none() {
                    self.error(member, "no destination", entry, "a CIDR or one address");
                }
                return subnet;
            }
            Err(error) => self.diagnostics.push(error.at((self.at)(member))),
        }
        None
    }
}

// === impl Settings ===

impl Settings {
    /// The routers of the machines: gateways, and the routers of routes. No machine gets one of these addresses.
    pub fn routers(&self) -> impl Iterator<Item = IpAddr> {
        self.gateways.iter().copied().chain(self.routes.iter().map(|route| route.via))
    }

    /// Adds `other`, the settings for an address of this family. The smaller MTU is used.
    pub(super) fn add(&mut self, other: &Self, family: Family) {
        fn extend<T: Clone + PartialEq>(all: &mut Vec<T>, more: impl Iterator<Item = T>) {
            for value in more {
                if !all.contains(&value) {
                    all.push(value);
                }
            }
        }
        let of_family = |address: &IpAddr| Family::of(*address) == family;
        extend(&mut self.gateways, other.gateways.iter().copied().filter(of_family));
        extend(&mut self.nameservers, other.nameservers.iter().copied());
        extend(&mut self.search_domains, other.search_domains.iter().cloned());
        extend(&mut self.routes, other.routes.iter().filter(|route| of_family(&route.via)).cloned());
        self.mtu = self.mtu.into_iter().chain(other.mtu).min();
    }

    /// Returns the settings of a subnet. A setting that the subnet does not have comes from `pool`.
    pub(super) fn or(self, pool: &Self) -> Self {
        fn first<T: Clone>(own: Vec<T>, of_pool: &[T]) -> Vec<T> {
            if own.is_empty() { of_pool.to_vec() } else { own }
        }
        Self {
            gateways: first(self.gateways, &pool.gateways),
            nameservers: first(self.nameservers, &pool.nameservers),
            search_domains: first(self.search_domains, &pool.search_domains),
            mtu: self.mtu.or(pool.mtu),
            routes: first(self.routes, &pool.routes),
        }
    }

    /// The settings in the form in which users write them.
    #[must_use]
    #[doc(hidden)]
    pub fn written(&self) -> SettingsSpec {
        fn texts<T: ToString>(values: &[T]) -> Vec<String> {
            values.iter().map(ToString::to_string).collect()
        }
        let route = |route: &StaticRoute| RouteSpec { to: route.to.to_string(), via: route.via.to_string() };
        SettingsSpec {
            gateway: texts(&self.gateways),
            nameservers: texts(&self.nameservers),
            search_domains: texts(&self.search_domains),
            mtu: self.mtu.map(i64::from),
            routes: self.routes.iter().map(route).collect(),
        }
    }

    /// The settings without gateways and name servers, in the form in which users write them.
    #[must_use]
    #[doc(hidden)]
    pub fn further(&self) -> SettingsSpec {
        SettingsSpec { gateway: Vec::new(), nameservers: Vec::new(), ..self.written() }
    }

    /// The members with their values, for messages. Each pool has all members in the same order.
    pub(super) fn members(&self) -> [(&'static str, Vec<String>); 5] {
        let SettingsSpec { gateway, nameservers, search_domains, mtu, routes } = self.written();
        let routes = routes.into_iter().map(|RouteSpec { to, via }| format!("{to} via {via}"));
        [
            ("gateway", gateway),
            ("nameservers", nameservers),
            ("searchDomains", search_domains),
            ("mtu", mtu.iter().map(ToString::to_string).collect()),
            ("routes", routes.collect()),
        ]
    }

    /// Reads settings in the form of [`Self::written`]. `None` for settings with an error.
    #[cfg(feature = "sqlite")]
    pub(super) fn from_written(written: &SettingsSpec) -> Option<Self> {
        let mut diagnostics = Diagnostics::default();
        let mut check = Check { at: &str::to_owned, families: BTreeSet::new(), diagnostics: &mut diagnostics };
        let (settings, _) = check.settings(written);
        (!diagnostics.has_errors()).then_some(settings)
    }
}
