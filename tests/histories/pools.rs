//! Pools as an administrator writes them, and the reasons why addresses are reserved.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use glowplug::host::pool::{Pool, TemplateFacts};
use glowplug::host::pools_file::read_pools;

use crate::support::random::Random;

pub(super) const NETWORKS: [&str; 3] = ["infra/vlan10", "infra/vlan20", "default"];
pub(super) const INTERFACES: [&str; 2] = ["eno101", "eno102"];

/// The addresses of every network are 10.0.0.N and fd00::N, where N is below this limit.
const NUMBERS: u64 = 64;

/// A pool as an administrator writes it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) network: String,
    pub(super) interface: String,
    /// First and last number of each range, for each family.
    ranges: [Vec<(u64, u64)>; 2],
    /// Prefix length of each family.
    lengths: [u8; 2],
    excluded: Vec<IpAddr>,
    gateways: Vec<IpAddr>,
    nameservers: Vec<IpAddr>,
    /// Addresses that the template names, in addition to the addresses that the pool names.
    template: Vec<IpAddr>,
    allocates_ends: bool,
    /// Reuse delay in seconds.
    pub(super) delay: u64,
}

/// Pools of a ledger, by name.
pub(super) type Pools = BTreeMap<String, Spec>;

pub(super) fn address(family: usize, number: u64) -> IpAddr {
    if family == 0 {
        IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap()))
    } else {
        IpAddr::V6(Ipv6Addr::from((0xfd00 << 112) + u128::from(number)))
    }
}

pub(super) fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

impl Spec {
    pub(super) fn random(name: String, rng: &mut Random) -> Self {
        let mut spec = Self {
            name,
            network: NETWORKS[rng.below(3)].to_owned(),
            interface: INTERFACES[usize::from(rng.chance(35, 100))].to_owned(),
            ranges: Default::default(),
            lengths: [24, 64],
            excluded: Vec::new(),
            gateways: Vec::new(),
            nameservers: Vec::new(),
            template: Vec::new(),
            allocates_ends: rng.chance(20, 100),
            delay: if rng.chance(40, 100) { 60 } else { 0 },
        };
        loop {
            let changed = spec.changed(rng);
            if changed.pool_or_errors().is_ok() {
                return changed;
            }
            spec.ranges = Default::default();
        }
    }

    /// Returns the pool with other addresses and settings.
    pub(super) fn changed(&self, rng: &mut Random) -> Self {
        let mut spec = self.clone();
        let stacks =
            if self.ranges.iter().all(Vec::is_empty) { [[0].as_slice(), &[1], &[0, 1]][rng.below(3)] } else { &[0, 1] };
        for &family in stacks {
            if spec.ranges[family].is_empty() || rng.chance(50, 100) {
                let is_there = !spec.ranges[family].is_empty() || self.ranges.iter().all(Vec::is_empty);
                if is_there || rng.chance(10, 100) {
                    let ranges = 1 + rng.below(2);
                    spec.ranges[family] = (0..ranges)
                        .map(|_| {
                            let first = rng.number(NUMBERS - 8);
                            (first, first + rng.number(7))
                        })
                        .collect();
                }
                if rng.chance(5, 100) && !spec.ranges[1 - family].is_empty() {
                    spec.ranges[family].clear();
                }
            }
        }
        if rng.chance(30, 100) {
            spec.lengths = [[24, 26][rng.below(2)], [64, 122][rng.below(2)]];
        }
        let mut some = |most: usize| -> Vec<IpAddr> {
            (0..rng.below(most + 1)).map(|_| address(rng.below(2), rng.number(NUMBERS))).collect()
        };
        spec.excluded = some(3);
        spec.nameservers = some(2);
        spec.template = some(2);
        spec.gateways = some(1);
        if rng.chance(20, 100) {
            spec.delay = [0, 30, 60][rng.below(3)];
        }
        spec
    }

    /// Returns the pool. If the pool has no template, it gets the template of `other`.
    pub(super) fn with_template_of(&self, other: &Self) -> Self {
        let template = if self.template.is_empty() { &other.template } else { &self.template };
        Self { template: template.clone(), ..self.clone() }
    }

    fn pool_or_errors(&self) -> Result<Pool, String> {
        let list = |addresses: &[IpAddr]| {
            addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ")
        };
        let ranges = (0..2).flat_map(|family| {
            let ranges = self.ranges[family].iter();
            ranges.map(move |(first, last)| match first == last {
                true => format!("\"{}\"", address(family, *first)),
                false => format!("\"{}-{}\"", address(family, *first), address(family, *last)),
            })
        });
        let mut facts = TemplateFacts::default();
        let subnets = (0..2).filter(|family| !self.ranges[*family].is_empty());
        let subnets = subnets.map(|family| format!("{{cidr: \"{}/{}\"}}", address(family, 0), self.lengths[family]));
        // A specification must not name a gateway of a family in which the pool has no addresses.
        let has = |address: &&IpAddr| !self.ranges[family(**address)].is_empty();
        for (at, address) in self.template.iter().enumerate() {
            match at {
                0 => facts.nameservers.insert(*address),
                _ => facts.addresses.insert(*address),
            };
        }
        let gateways: Vec<IpAddr> = self.gateways.iter().filter(has).copied().collect();
        let (namespace, name) = self.name.split_once('/').unwrap();
        let text = format!(
            "{{name: {name}, namespace: {namespace}, network: {}, interface: {}, addresses: [{}], \
             machineNetwork: [{}], excludedAddresses: [{}], gateway: [{}], nameservers: [{}], \
             allocateReservedIPAddresses: {}, addressReuseGracePeriodSeconds: {}}}",
            self.network,
            self.interface,
            ranges.collect::<Vec<_>>().join(", "),
            subnets.collect::<Vec<_>>().join(", "),
            list(&self.excluded),
            list(&gateways),
            list(&self.nameservers),
            self.allocates_ends,
            self.delay,
        );
        let (specs, mut diagnostics) = read_pools(text.as_bytes());
        let pool = specs.first().and_then(|spec| Pool::new(spec, &facts, &mut diagnostics));
        pool.ok_or_else(|| format!("{text}: {:?}", diagnostics.kept()))
    }

    /// Returns the pool in the type of the library, if the specification is valid.
    pub(super) fn valid(&self) -> Option<Pool> {
        self.pool_or_errors().ok()
    }

    pub(super) fn pool(&self) -> Pool {
        self.pool_or_errors().unwrap_or_else(|error| panic!("{error}"))
    }

    pub(super) fn has(&self, family: usize) -> bool {
        !self.ranges[family].is_empty()
    }

    pub(super) fn length(&self, family: usize) -> u8 {
        self.lengths[family]
    }

    /// Returns all addresses of a family, lowest first.
    pub(super) fn addresses(&self, family: usize) -> impl Iterator<Item = IpAddr> {
        let is_in = move |number: &u64| self.ranges[family].iter().any(|(a, b)| (*a..=*b).contains(number));
        (0..NUMBERS).filter(is_in).map(move |number| address(family, number))
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        self.addresses(family(address)).any(|it| it == address)
    }

    /// Whether the pool does not allocate an address because it is the first address of a subnet, or the last address
    /// of an IPv4 subnet.
    fn reserves_end(&self, address: IpAddr) -> bool {
        let (number, bits) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let hosts = (1_u128 << (bits - self.lengths[family(address)])) - 1;
        let is_last = address.is_ipv4() && number & hosts == hosts;
        !self.allocates_ends && (number & hosts == 0 || is_last)
    }

    /// Whether the pool or its template names an address. Such an address is reserved on the network.
    fn names(&self, address: IpAddr) -> bool {
        // A specification names no gateway of a family in which the pool has no addresses.
        let gateways = self.gateways.iter().filter(|gateway| self.has(family(**gateway)));
        gateways.chain(&self.excluded).chain(&self.nameservers).chain(&self.template).any(|named| *named == address)
    }
}

/// Returns the reason why a pool must never allocate an address, apart from leases. `None`: there is no such reason.
pub(super) fn reserved(pools: &Pools, spec: &Spec, address: IpAddr) -> Option<String> {
    if !spec.contains(address) {
        return Some(format!("it is not in pool {}", spec.name));
    }
    if spec.reserves_end(address) {
        return Some("it is the end of a subnet".to_owned());
    }
    let by = pools.values().find(|pool| pool.network == spec.network && pool.names(address));
    by.map(|pool| format!("pool {} reserves it", pool.name))
}
