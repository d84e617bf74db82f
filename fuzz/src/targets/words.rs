//! Builds documents from the words of their formats.
//!
//! A document with random changes of bytes is rarely readable, and its references are rarely intact. In this target,
//! every input gives a document of nearly correct shape, with some wrong values.

use glowplug::formats::read_network;
use serde_json::{Map, Value, json};

use super::documents;

/// The values that can occur at one position of a document.
enum Shape {
    /// An object: its usual members, and its rare members.
    Object(Members, Members),
    /// An object whose members are named by the document. Other values refer to these names.
    Map(&'static Shape),
    List(&'static Shape),
    /// A word of the list; the first four are more likely.
    Word(&'static [&'static str]),
    /// A word of the list, usually a different word for each item of the surrounding list.
    Own(&'static [&'static str]),
    Either(&'static [&'static Shape]),
}

type Members = &'static [(&'static str, &'static Shape)];

use Shape::{Either, List, Map as ByName, Object, Own, Word};

const NAMES: &[&str] = &[
    "eth0",
    "a",
    "bond0",
    "b",
    "eno101",
    "c",
    "br0",
    "vlan5",
    "eno101.5",
    "bond0.5",
    "tap-1",
    "kv0",
    "lo",
    "ib0",
    "en*",
    "*",
    "averyveryverylong",
    "10.0.0.5",
    "dhcp",
    "4094",
    "vlan.7",
    "aa-bb-cc-dd-ee-ff",
    "eth1",
    "dhcp6",
    "on",
    "fd00",
    "0x5",
    "vlan05",
];
const NAME: Shape = Word(NAMES);
const MACS: &[&str] = &[
    "52:54:00:00:00:01",
    "52:54:00:00:00:02",
    "52:54:00:00:00:03",
    "525400000004",
    "52-54-00-00-00-0A",
    "52:54:00:00:00:0a",
    "00:00:00:00:00:00",
    "01:00:5e:00:00:01",
    "",
];
const MAC: Shape = Word(MACS);
const ADDRESS: Shape = Word(&[
    "10.0.0.5",
    "10.0.0.5/24",
    "fd00::5/64",
    "10.0.1.5/16",
    "fd00::5",
    "192.168.1.1",
    "10.0.0.1",
    "fd00:0::1",
    "fe80::1",
    "::",
    "0.0.0.0",
    "::/0",
    "0.0.0.0/0",
    "10.0.0.0/8",
    "fd01::/32",
    "default",
    "::ffff:10.0.0.1",
    "255.255.255.255",
    "10.0.0.5/32",
]);
const GATEWAY: Shape =
    Word(&["10.0.0.1", "10.0.0.2", "fd00::1", "fe80::1", "10.9.0.1", "0.0.0.0", "::", "x", "255.255.255.255"]);
const DESTINATION: Shape =
    Word(&["default", "0.0.0.0/0", "::/0", "10.20.0.0/16", "fd02::/32", "10.0.0.5", "fd00::7", "0.0.0.0", "::"]);
const MASK: Shape = Word(&[
    "255.255.255.0",
    "24",
    "64",
    "ffff:ffff:ffff:ffff::",
    "0.0.0.0",
    "::",
    "255.0.255.0",
    "/24",
    "128",
    "32",
    "0",
]);
const NUMBER: Shape =
    Word(&["5", "1", "7", "100", "0", "1280", "1500", "4094", "4095", "65536", "-1", "0x10", "010", "99999999999"]);
const MTU: Shape = Word(&["1500", "9000", "1280", "68", "67", "65535", "65536", "576", "0"]);
const SWITCH: Shape = Word(&["true", "false", "yes", "no", "on", "off", "x"]);
const MODE: Shape =
    Word(&["active-backup", "802.3ad", "1", "4", "balance-rr", "balance-tlb", "6", "fast", "layer3+4", "all", "x"]);
const DOMAIN: Shape = Word(&["example.org", "EXAMPLE.org.", "a", "b.c", "-", "x y"]);
const NAME_LIST: Shape = List(&NAME);
const SERVERS: Shape = Either(&[&List(&GATEWAY), &GATEWAY]);
const ADDRESSES: Shape = List(&ADDRESS);
const SEARCH: Shape = Either(&[&List(&DOMAIN), &DOMAIN]);
const SERVICES: Shape =
    List(&Object(&[("type", &Word(&["dns", "dns", "dns", "ntp", "x"])), ("address", &GATEWAY)], &[]));

const NETWORK_DATA: Shape = Object(
    &[
        (
            "links",
            &List(&Object(
                &[
                    ("id", &Own(NAMES)),
                    ("type", &Word(&["phy", "phy", "bond", "vlan", "tap", "bridge", "ovs", "hostdev_physical", "x"])),
                    ("bond_links", &NAME_LIST),
                    ("vlan_link", &NAME),
                    ("vlan_id", &NUMBER),
                    ("ethernet_mac_address", &Own(MACS)),
                ],
                &[
                    ("name", &NAME),
                    ("mtu", &MTU),
                    ("vlan_mac_address", &MAC),
                    ("bond_mode", &MODE),
                    ("bond_miimon", &NUMBER),
                    ("bond_primary", &NAME),
                    ("bond_arp_ip_target", &SERVERS),
                    ("bond_xmit_hash_policy", &MODE),
                ],
            )),
        ),
        (
            "networks",
            &List(&Object(
                &[
                    ("link", &NAME),
                    ("ip_address", &ADDRESS),
                    (
                        "type",
                        &Word(&[
                            "ipv4",
                            "ipv6",
                            "ipv4_dhcp",
                            "ipv6_slaac",
                            "ipv6_dhcp",
                            "ipv6_dhcpv6-stateful",
                            "ipv6_dhcpv6-stateless",
                            "x",
                        ]),
                    ),
                ],
                &[
                    ("netmask", &MASK),
                    ("gateway", &GATEWAY),
                    ("services", &SERVICES),
                    ("dns_nameservers", &SERVERS),
                    ("dns_search", &SEARCH),
                    ("id", &NAME),
                    (
                        "routes",
                        &List(&Object(
                            &[("network", &DESTINATION), ("netmask", &MASK), ("gateway", &GATEWAY)],
                            &[("metric", &NUMBER), ("services", &SERVICES)],
                        )),
                    ),
                ],
            )),
        ),
    ],
    &[("services", &SERVICES)],
);

const VERSION_1: Shape = Object(
    &[(
        "config",
        &List(&Object(
            &[
                (
                    "type",
                    &Word(&[
                        "physical",
                        "physical",
                        "bond",
                        "vlan",
                        "bridge",
                        "nameserver",
                        "route",
                        "loopback",
                        "infiniband",
                        "x",
                    ]),
                ),
                ("name", &Own(NAMES)),
                ("bond_interfaces", &NAME_LIST),
                ("bridge_interfaces", &NAME_LIST),
                ("vlan_link", &NAME),
                ("vlan_id", &NUMBER),
                (
                    "subnets",
                    &List(&Object(
                        &[
                            (
                                "type",
                                &Word(&[
                                    "static",
                                    "dhcp",
                                    "static6",
                                    "dhcp6",
                                    "dhcp4",
                                    "ipv6_slaac",
                                    "ipv6_dhcpv6-stateful",
                                    "manual",
                                    "x",
                                ]),
                            ),
                            ("address", &ADDRESS),
                        ],
                        &[
                            ("netmask", &MASK),
                            ("gateway", &GATEWAY),
                            ("dns_nameservers", &SERVERS),
                            ("dns_search", &SEARCH),
                            (
                                "routes",
                                &List(&Object(
                                    &[("network", &DESTINATION), ("gateway", &GATEWAY)],
                                    &[
                                        ("netmask", &MASK),
                                        ("destination", &DESTINATION),
                                        ("prefix", &MASK),
                                        ("metric", &NUMBER),
                                    ],
                                )),
                            ),
                        ],
                    )),
                ),
            ],
            &[
                ("mac_address", &MAC),
                ("mtu", &MTU),
                ("address", &SERVERS),
                ("search", &SEARCH),
                ("interface", &NAME),
                ("destination", &DESTINATION),
                ("netmask", &MASK),
                ("gateway", &GATEWAY),
                ("metric", &NUMBER),
                ("accept-ra", &SWITCH),
                (
                    "params",
                    &Object(
                        &[],
                        &[
                            ("bond-mode", &MODE),
                            ("bond_miimon", &NUMBER),
                            ("bond-primary", &NAME),
                            ("bridge_stp", &SWITCH),
                            ("bridge_fd", &NUMBER),
                            ("bridge_pathcost", &NAME_LIST),
                            ("bridge_bridgeprio", &NUMBER),
                        ],
                    ),
                ),
            ],
        )),
    )],
    &[],
);

const OVERRIDES: Shape = Object(
    &[],
    &[
        ("use-dns", &SWITCH),
        ("use-routes", &SWITCH),
        ("route-metric", &NUMBER),
        ("use-mtu", &SWITCH),
        ("send-hostname", &SWITCH),
        ("use-domains", &SWITCH),
        ("use-ntp", &SWITCH),
        ("use-hostname", &SWITCH),
    ],
);
const COMMON: Members = &[
    ("addresses", &ADDRESSES),
    ("dhcp4", &SWITCH),
    ("dhcp6", &SWITCH),
    ("gateway4", &GATEWAY),
    ("gateway6", &GATEWAY),
    ("nameservers", &Object(&[("addresses", &SERVERS)], &[("search", &SEARCH)])),
    ("mtu", &MTU),
    ("macaddress", &MAC),
    (
        "routes",
        &List(&Object(
            &[("to", &DESTINATION), ("via", &GATEWAY)],
            &[
                ("on-link", &SWITCH),
                ("table", &NUMBER),
                ("metric", &NUMBER),
                ("type", &Word(&["unicast", "route", "blackhole"])),
            ],
        )),
    ),
    ("dhcp4-overrides", &OVERRIDES),
    ("dhcp6-overrides", &OVERRIDES),
    ("accept-ra", &SWITCH),
    ("optional", &SWITCH),
];
const MATCH: Shape = Object(&[], &[("macaddress", &MAC), ("name", &NAME), ("driver", &Either(&[&NAME, &NAME_LIST]))]);
const VERSION_2: Shape = Object(
    &[(
        "ethernets",
        &ByName(&Either(&[
            &Object(&[], COMMON),
            &Object(
                &[("match", &Object(&[("macaddress", &Own(MACS))], &[])), ("addresses", &ADDRESSES)],
                &[("mtu", &MTU)],
            ),
            &Object(
                &[("match", &MATCH), ("addresses", &ADDRESSES)],
                &[("set-name", &NAME), ("mtu", &MTU), ("macaddress", &MAC)],
            ),
        ])),
    )],
    &[
        (
            "vlans",
            &ByName(&Either(&[
                &Object(&[("id", &NUMBER), ("link", &NAME), ("addresses", &ADDRESSES)], &[]),
                &Object(&[("id", &NUMBER), ("link", &NAME)], COMMON),
            ])),
        ),
        (
            "bonds",
            &ByName(&Object(
                &[("interfaces", &NAME_LIST)],
                &[
                    (
                        "parameters",
                        &Object(
                            &[("mode", &MODE)],
                            &[
                                ("mii-monitor-interval", &NUMBER),
                                ("lacp-rate", &MODE),
                                ("primary", &NAME),
                                ("arp-ip-targets", &SERVERS),
                                ("transmit-hash-policy", &MODE),
                                ("arp-interval", &NUMBER),
                            ],
                        ),
                    ),
                    ("addresses", &ADDRESSES),
                    ("dhcp4", &SWITCH),
                    ("mtu", &MTU),
                    ("macaddress", &MAC),
                ],
            )),
        ),
        (
            "bridges",
            &ByName(&Object(
                &[("interfaces", &NAME_LIST)],
                &[
                    (
                        "parameters",
                        &Object(
                            &[],
                            &[
                                ("stp", &SWITCH),
                                ("forward-delay", &NUMBER),
                                ("priority", &NUMBER),
                                ("path-cost", &ByName(&NUMBER)),
                                ("port-priority", &ByName(&NUMBER)),
                            ],
                        ),
                    ),
                    ("addresses", &ADDRESSES),
                    ("dhcp6", &SWITCH),
                    ("mtu", &MTU),
                    ("macaddress", &MAC),
                ],
            )),
        ),
    ],
);

/// Values that replace a value of the expected shape.
const ANYTHING: Shape = Either(&[&NAME, &MAC, &ADDRESS, &NUMBER, &SWITCH, &NAME_LIST, &OVERRIDES]);

/// Maximum number of values in a document.
const MAX_VALUES: usize = 512;

struct Choices<'i> {
    input: std::slice::Iter<'i, u8>,
    values: usize,
    /// Index of the current item in the innermost list.
    item: usize,
}

impl Choices<'_> {
    /// Returns the next byte of the input, or zero at the end.
    fn next(&mut self) -> usize {
        self.input.next().copied().map_or(0, usize::from)
    }

    /// Returns a number of items, or zero if the document is already large.
    fn count(&mut self, limit: usize) -> usize {
        let count = self.next() % (limit + 1);
        if self.values < MAX_VALUES { count } else { 0 }
    }

    fn value(&mut self, shape: &Shape) -> Value {
        self.values += 1;
        match shape {
            Object(likely, others) => {
                let mut object = Map::new();
                for (name, shape) in *likely {
                    self.member(&mut object, name, shape);
                }
                if !others.is_empty() {
                    for _ in 0..self.count(5) {
                        let (name, shape) = others[self.next() % others.len()];
                        self.member(&mut object, name, shape);
                    }
                }
                Value::Object(object)
            }
            ByName(shape) => {
                let mut object = Map::new();
                let outer = self.item;
                for item in 0..self.count(4) {
                    let name = self.word(NAMES);
                    self.item = item;
                    self.member(&mut object, name, shape);
                }
                self.item = outer;
                Value::Object(object)
            }
            List(shape) => {
                let (outer, count) = (self.item, self.count(4));
                let item = |item| {
                    self.item = item;
                    self.value(shape)
                };
                let list = (0..count).map(item).collect();
                self.item = outer;
                list
            }
            Own(words) => match self.next() {
                200.. => self.value(&Word(words)),
                _ => json!(words[self.item % words.len()]),
            },
            Word(words) => match (self.next(), self.word(words)) {
                (255, _) => Value::Null,
                // Write a number or a boolean without quotes, and any other word as a string.
                (128.., word) => serde_json::from_str(word).unwrap_or_else(|_| json!(word)),
                (_, word) => json!(word),
            },
            Either(shapes) => {
                let choice = self.next();
                self.value(shapes[choice % shapes.len()])
            }
        }
    }

    fn member(&mut self, object: &mut Map<String, Value>, name: &str, shape: &Shape) {
        let value = match self.next() {
            255 => return,
            254 => self.value(&ANYTHING),
            _ => self.value(shape),
        };
        object.insert(name.to_owned(), value);
    }

    fn word(&mut self, words: &'static [&'static str]) -> &'static str {
        let choice = self.next();
        words[choice % if choice < 200 { words.len().min(4) } else { words.len() }]
    }
}

/// Builds the document of an input.
pub fn document(input: &[u8]) -> String {
    let mut choices = Choices { input: input.iter(), values: 0, item: 0 };
    let (shape, version) = match choices.next() % 3 {
        0 => (&NETWORK_DATA, None),
        1 => (&VERSION_1, Some(1)),
        _ => (&VERSION_2, Some(2)),
    };
    let mut document = choices.value(shape);
    if let Some(version) = version {
        document["version"] = json!(version);
    }
    document.to_string()
}

pub(super) fn network(input: &[u8]) {
    let document = document(input);
    if std::env::var_os("FUZZ_SHOW").is_some() {
        eprintln!("{document}");
    }
    let reading = read_network(document.as_bytes());
    if let Some(config) = documents::check_reading(&reading, document.as_bytes()) {
        documents::render(config);
    }
}
