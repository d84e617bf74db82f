//! The form of a pool in a ledger. The values are resolved, so later changes of a template or NodePool do not change
//! the stored pool.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::settings::{Settings, SettingsSpec};
use super::{Namespaces, Pool, Space, Subnet, TemplateFacts};
use crate::host::address::{AddressRange, AddressSet};
use crate::network::Family;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredPool {
    name: String,
    cluster: Option<String>,
    network: String,
    interface: String,
    gateways: Vec<IpAddr>,
    nameservers: Vec<IpAddr>,
    // The settings without gateways and name servers. A pool without such settings is stored in the form that earlier
    // versions of this program read.
    #[serde(default, skip_serializing_if = "is_default")]
    settings: SettingsSpec,
    excluded: Vec<String>,
    // A pool without pre-allocations is stored in the form that earlier versions of this program read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pre_allocations: BTreeMap<String, Vec<IpAddr>>,
    template: StoredTemplate,
    families: Vec<StoredFamily>,
    reuse_delay_milliseconds: u64,
    // Older ledgers do not have this member.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_external: bool,
    #[serde(default, skip_serializing_if = "Namespaces::is_every")]
    machines: Namespaces,
    #[serde(default, skip_serializing_if = "Namespaces::is_every")]
    claims: Namespaces,
}

/// Settings of a template for the pool's interface.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredTemplate {
    ipv4_prefix: Option<u8>,
    ipv6_prefix: Option<u8>,
    gateways: BTreeSet<IpAddr>,
    nameservers: BTreeSet<IpAddr>,
    addresses: BTreeSet<IpAddr>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredFamily {
    prefix: u8,
    ranges: Vec<String>,
    reserves_ends: bool,
    // The subnets, if there are several, or if the only subnet has other settings than the pool. `prefix` is the prefix
    // length of the first subnet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subnets: Vec<StoredSubnet>,
}

/// A subnet of one family.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct StoredSubnet {
    prefix: u8,
    ranges: Vec<String>,
    settings: SettingsSpec,
}

/// One member in which two specifications of a pool differ.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolDifference {
    /// Name of the member, such as `gateway` or `IPv4 prefix length`.
    pub member: String,
    /// Value of the member in the given pool, for messages.
    pub given: String,
    /// Value of the member in the ledger, for messages.
    pub known: String,
}

// === impl Pool ===

impl Pool {
    /// The pool as JSON, for [`Pool::from_stored`].
    pub(crate) fn to_stored(&self) -> String {
        let is_plain = |subnets: &[Subnet]| matches!(subnets, [subnet] if subnet.settings == self.settings);
        let subnet = |subnet: &Subnet| StoredSubnet {
            prefix: subnet.prefix,
            ranges: texts(&subnet.ranges),
            settings: subnet.settings.written(),
        };
        let families = self.spaces().map(|space| StoredFamily {
            prefix: space.subnets.first().map_or(space.family.bits(), Subnet::prefix),
            ranges: texts(&space.ranges),
            reserves_ends: space.reserves_ends,
            subnets: match is_plain(&space.subnets) {
                true => Vec::new(),
                false => space.subnets.iter().map(subnet).collect(),
            },
        });
        let stored = StoredPool {
            name: self.name.clone(),
            cluster: self.cluster.clone(),
            network: self.network.clone(),
            interface: self.interface.to_string(),
            gateways: self.settings.gateways.clone(),
            nameservers: self.settings.nameservers.clone(),
            settings: self.settings.further(),
            excluded: texts(&self.excluded),
            pre_allocations: self.pre_allocations.clone(),
            template: StoredTemplate {
                ipv4_prefix: self.template.prefixes.get(&Family::Ipv4).copied(),
                ipv6_prefix: self.template.prefixes.get(&Family::Ipv6).copied(),
                gateways: self.template.gateways.clone(),
                nameservers: self.template.nameservers.clone(),
                addresses: self.template.addresses.clone(),
            },
            families: families.collect(),
            reuse_delay_milliseconds: u64::try_from(self.reuse_delay.as_millis()).unwrap_or(u64::MAX),
            is_external: self.is_external,
            machines: self.machines.clone(),
            claims: self.claims.clone(),
        };
        serde_json::to_string(&stored).unwrap_or_default()
    }

    /// Reads a pool from JSON that [`Pool::to_stored`] wrote. `None` for any other string.
    pub(crate) fn from_stored(text: &str) -> Option<Self> {
        let stored: StoredPool = serde_json::from_str(text).ok()?;
        let excluded = ranges(&stored.excluded)?;
        let StoredTemplate { ipv4_prefix, ipv6_prefix, gateways, nameservers, addresses } = stored.template;
        let prefixes = [(Family::Ipv4, ipv4_prefix), (Family::Ipv6, ipv6_prefix)];
        let prefixes = prefixes.into_iter().filter_map(|(family, prefix)| Some((family, prefix?))).collect();
        let template = TemplateFacts { prefixes, gateways, nameservers, addresses, unread: Vec::new() };
        let (gateways, nameservers) = (stored.gateways, stored.nameservers);
        let settings = Settings { gateways, nameservers, ..Settings::from_written(&stored.settings)? };
        let mut of_families = Vec::new();
        for StoredFamily { prefix, ranges: texts, reserves_ends, subnets: stored } in &stored.families {
            let family = ranges(texts)?.first()?.family();
            let mut subnets = Vec::new();
            for StoredSubnet { prefix, ranges: texts, settings } in stored {
                subnets.push(Subnet::new(*prefix, ranges(texts)?, Settings::from_written(settings)?));
            }
            if stored.is_empty() {
                subnets.push(Subnet::new(*prefix, ranges(texts)?, settings.clone()));
            }
            let is_valid = |subnet: &Subnet| {
                subnet.prefix <= family.bits() && subnet.ranges().iter().all(|range| range.family() == family)
            };
            if !subnets.iter().all(is_valid) {
                return None;
            }
            of_families.push((family, subnets, *reserves_ends));
        }
        let all = of_families.iter().flat_map(|(_, subnets, _)| subnets).map(Subnet::settings).chain([&settings]);
        let servers = all.flat_map(|settings| settings.routers().chain(settings.nameservers.iter().copied()));
        let servers = servers.chain(template.all()).collect::<Vec<IpAddr>>().into_iter();
        let servers = servers.chain(stored.pre_allocations.values().flatten().copied());
        let servers = servers.map(|server| AddressRange::subnet(server, u8::MAX));
        let reserved: Vec<AddressRange> = servers.chain(excluded.iter().copied()).collect();
        let spaces =
            of_families.into_iter().map(|(family, subnets, ends)| Space::new(family, subnets, reserved.clone(), ends));
        let spaces = spaces.collect();
        let interface = stored.interface.parse().ok()?;
        let pool = Self::from_spaces(stored.name, stored.network, interface, settings, spaces);
        let reuse_delay = Duration::from_millis(stored.reuse_delay_milliseconds);
        let (cluster, pre_allocations) = (stored.cluster, stored.pre_allocations);
        let (excluded, is_external) = (excluded.into_iter().collect(), stored.is_external);
        let (machines, claims) = (stored.machines, stored.claims);
        let pool = pool.with_namespaces(machines, claims);
        Some(Self { cluster, excluded, pre_allocations, template, reuse_delay, is_external, ..pool })
    }

    /// The members in which this pool differs from its specification in a ledger. An address that the template names
    /// counts only if the pool in the ledger would allocate the address.
    #[must_use]
    pub fn differences(&self, known: &Self) -> Vec<PoolDifference> {
        // An address that the template no longer names stays reserved, so it is no difference.
        let named: BTreeSet<IpAddr> = self.template.all().filter(|address| known.offers(*address)).collect();
        let template = (!named.is_empty()).then(|| PoolDifference {
            member: "addresses in the template".to_owned(),
            given: list(named.iter().map(ToString::to_string).collect()),
            known: "none of them".to_owned(),
        });
        let [given, known] = [self, known].map(Self::members);
        let differ = given.into_iter().zip(known).filter(|((_, given), (_, known))| given != known);
        let differ = differ.map(|((member, given), (_, known))| PoolDifference { member, given, known });
        differ.chain(template).collect()
    }

    /// The members that [`Pool::differences`] compares, with their values, in the same order for each pool.
    fn members(&self) -> Vec<(String, String)> {
        let addresses = |addresses: &[IpAddr]| list(addresses.iter().map(ToString::to_string).collect());
        let pre_allocations = self.pre_allocations.iter().map(|(name, kept)| format!("{name}: {}", addresses(kept)));
        let mut members = vec![
            ("cluster".to_owned(), self.cluster.clone().unwrap_or_else(|| "none".to_owned())),
            ("network".to_owned(), self.network.clone()),
            ("interface".to_owned(), self.interface.to_string()),
        ];
        members.extend(self.settings.members().map(|(member, values)| (member.to_owned(), list(values))));
        members.extend([
            ("excludedAddresses".to_owned(), list(texts(&self.excluded))),
            ("preAllocations".to_owned(), list(pre_allocations.collect())),
            ("reuse delay".to_owned(), format!("{} s", self.reuse_delay.as_secs_f64())),
        ]);
        for family in [Family::Ipv4, Family::Ipv6] {
            let space = self.space(family);
            let value = |of: &dyn Fn(&Space) -> String| space.map_or_else(|| "none".to_owned(), of);
            members.push((format!("{family} addresses"), value(&|space| list(texts(&space.ranges)))));
            let lengths = |space: &Space| list(space.subnets.iter().map(|subnet| subnet.prefix.to_string()).collect());
            members.push((format!("{family} prefix length"), value(&lengths)));
            let ends = |space: &Space| (!space.reserves_ends).to_string();
            members.push((format!("{family} allocateReservedIPAddresses"), value(&ends)));
            // If the only subnet has the settings of the pool, the other members already have all values.
            let subnets = |space: &Space| match space.subnets.as_slice() {
                [subnet] if subnet.settings == self.settings => "one".to_owned(),
                all => list(all.iter().map(ToString::to_string).collect()),
            };
            members.push((format!("{family} subnets"), value(&subnets)));
        }
        members
    }
}

// === impl PoolDifference ===

impl fmt::Display for PoolDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, given, known } = self;
        write!(f, "{member}: {given}, the ledger has {known}")
    }
}

fn is_default(settings: &SettingsSpec) -> bool {
    *settings == SettingsSpec::default()
}

fn list(texts: Vec<String>) -> String {
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

fn texts(set: &AddressSet) -> Vec<String> {
    set.ranges().iter().map(ToString::to_string).collect()
}

/// Parses ranges in the form that [`AddressRange`] prints.
fn ranges(texts: &[String]) -> Option<Vec<AddressRange>> {
    let range = |text: &String| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        AddressRange::new(first.parse().ok()?, last.parse().ok()?)
    };
    texts.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::super::tests::pool;
    use super::*;
    use crate::diagnostic::{Diagnostic, Diagnostics};
    use crate::host::pools_file::read_pools;

    #[test]
    fn a_pool_is_unchanged_after_it_is_stored_and_read() {
        let document = "{name: a, namespace: 'n', clusterName: blue, network: infra/vlan10, interface: eth1, \
                         addresses: [10.0.0.0/24, 10.0.0.7-10.0.0.9, 'fd00::10-fd00::20'], gateway: [10.0.0.1, 'fe80::1'], \
                         nameservers: [10.0.0.2, 8.8.8.8], searchDomains: [example.com, b.example.com], mtu: 9000, \
                         routes: [{to: 10.9.0.0/16, via: 10.0.0.254}, {to: 'fd09::/48', via: 'fe80::9'}], excludedAddresses: [10.0.0.3-10.0.0.5], \
                         preAllocations: {db: '10.0.0.4, fd00::11', n/web: 10.0.0.6}, \
                         allocateReservedIPAddresses: true, addressReuseGracePeriodSeconds: 300}";
        let (specs, _) = read_pools(document.as_bytes());
        let set = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect();
        let template = TemplateFacts {
            prefixes: [(Family::Ipv6, 64)].into(),
            gateways: set(&["fe80::1"]),
            nameservers: set(&["10.0.0.9"]),
            addresses: set(&["10.0.0.8"]),
            unread: vec![Diagnostic::warning("links[0].mtu", "not read by afterburn", 9000, "another image")],
        };
        let pool = Pool::new(&specs[0], &template, &mut Diagnostics::default()).unwrap();
        assert_eq!(Pool::from_stored(&pool.to_stored()), Some(pool.clone()));
        assert_eq!(pool.differences(&pool), []);
    }

    #[test]
    fn the_subnets_of_a_pool_are_unchanged_after_the_pool_is_stored_and_read() {
        let given = pool(
            "{name: a, network: 'n', subnets: [{addresses: [10.0.0.0/24], gateway: [10.0.0.1]}, {addresses: [10.1.0.5], prefix: 23, \
             routes: [{to: 10.9.0.0/16, via: 10.1.0.9}]}, {addresses: ['fd00::/64'], mtu: 9000}], nameservers: [10.0.0.2], \
             preAllocations: {db: 10.0.0.4}}",
        );
        assert_eq!(Pool::from_stored(&given.to_stored()), Some(given.clone()));
        let known = pool(
            "{name: a, network: 'n', addresses: [10.0.0.0/24], nameservers: [10.0.0.2], preAllocations: {db: 10.0.0.4}}",
        );
        let differences: Vec<String> = given.differences(&known).iter().map(ToString::to_string).collect();
        assert_eq!(
            differences,
            [
                "IPv4 addresses: 10.0.0.0-10.0.0.255, 10.1.0.5, the ledger has 10.0.0.0-10.0.0.255",
                "IPv4 prefix length: 24, 23, the ledger has 24",
                "IPv4 subnets: 10.0.0.0-10.0.0.255 with prefix length 24, gateway: 10.0.0.1, nameservers: 10.0.0.2, 10.1.0.5 with prefix \
                 length 23, nameservers: 10.0.0.2, routes: 10.9.0.0/16 via 10.1.0.9, the ledger has one",
                "IPv6 addresses: fd00::-fd00::ffff:ffff:ffff:ffff, the ledger has none",
                "IPv6 prefix length: 64, the ledger has none",
                "IPv6 allocateReservedIPAddresses: false, the ledger has none",
                "IPv6 subnets: fd00::-fd00::ffff:ffff:ffff:ffff with prefix length 64, nameservers: 10.0.0.2, mtu: 9000, the ledger has none",
            ]
        );
    }

    #[test]
    fn each_difference_between_two_pools_is_reported_with_both_values() {
        let [given, known] = ["[10.0.0.0/24]", "[10.0.0.0/23], gateway: [10.0.0.1]"]
            .map(|addresses| pool(&format!("{{name: a, network: 'n', addresses: {addresses}}}")));
        let differences: Vec<String> = given.differences(&known).iter().map(ToString::to_string).collect();
        assert_eq!(
            differences,
            [
                "gateway: none, the ledger has 10.0.0.1",
                "IPv4 addresses: 10.0.0.0-10.0.0.255, the ledger has 10.0.0.0-10.0.1.255",
                "IPv4 prefix length: 24, the ledger has 23",
            ]
        );
    }

    #[test]
    fn a_string_of_another_form_is_no_stored_pool() {
        for text in ["", "{}", "null", r#"{"name": "a"}"#] {
            assert_eq!(Pool::from_stored(text), None);
        }
    }
}
