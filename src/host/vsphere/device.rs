//! One network device: its members, and their check.

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{Object, Value};
use crate::host::address::{is_link_local, parse_address, parse_gateway, parse_interface_address};
use crate::host::claim::is_object_name;
use crate::host::members::Members;
use crate::host::pool::Reserved;
use crate::network::Family;
use crate::render::vsphere::StaticDevice;

/// The static network of one NIC, as in `spec.providerSpec.value.network.devices[]` of a Machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NetworkDeviceSpec {
    /// Name of the port group. `None` for a host of the installer.
    pub network_name: Option<String>,
    /// Default gateway. A gateway of a pool takes precedence.
    pub gateway: Option<IpAddr>,
    /// Static addresses, each with the prefix length of its subnet.
    pub ip_addrs: Vec<IpNetwork>,
    /// Name servers, the most important first.
    pub nameservers: Vec<IpAddr>,
    /// Pools from which the device gets further addresses, one address from each pool.
    pub addresses_from_pools: Vec<AddressesFromPool>,
}

/// A pool from which a device gets one address.
#[derive(Clone, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct AddressesFromPool {
    /// API group of the pool. Empty for Machine API's own default.
    pub group: String,
    /// Kind of the pool, or its plural. Machine API copies this string to `spec.poolRef.kind` of the claim.
    pub resource: String,
    /// Name of the pool, in the namespace of the Machine.
    pub name: String,
}

/// Kind of document in which a device is written. The kinds have different members and different rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// A Machine, or a document with only a device.
    Machine,
    /// A host of the installer.
    InstallConfig,
}

/// A device of a document. `None` in a list is an item with an error, so that all items keep their index.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadDevice {
    document: usize,
    path: String,
    network_name: Option<String>,
    pub(super) gateway: Option<IpAddr>,
    ip_addrs: Vec<Option<IpNetwork>>,
    nameservers: Vec<Option<IpAddr>>,
    pub(super) pools: Vec<Option<AddressesFromPool>>,
}

/// An address or a gateway, with the document and the path where it was read.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    /// Number of the document.
    pub(super) document: usize,
    /// Path in the document.
    pub(super) path: String,
    pub(super) value: T,
}

/// Maximum number of name servers that the resolver of a machine uses.
const MAX_NAMESERVERS: usize = 3;

// === impl Place ===

impl Place {
    /// The severity of a mistake that does not prevent a machine from getting its addresses.
    fn severity(self) -> Severity {
        match self {
            Self::Machine => Severity::Warning,
            Self::InstallConfig => Severity::Error,
        }
    }
}

// === impl ReadDevice ===

impl ReadDevice {
    /// Reads a device of a document, and reports every error in its members.
    pub(super) fn read(
        object: &Object,
        document: usize,
        path: FieldPath<'_>,
        place: Place,
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let mut members = Members::new(object, path);
        let text_path = match path {
            FieldPath::Document => String::new(),
            path => path.path(),
        };
        let mut device = Self { document, path: text_path, ..Self::default() };
        if place == Place::Machine {
            device.network_name = members.text("networkName", diagnostics);
        }
        device.gateway = members.text("gateway", diagnostics).filter(|text| !text.is_empty()).and_then(|text| {
            let gateway = parse_gateway(&text).map_err(|error| error.at(path.field("gateway")));
            gateway.map_err(|diagnostic| diagnostics.push(diagnostic)).ok()
        });
        let list = path.field("ipAddrs");
        device.ip_addrs = items(members.list("ipAddrs", diagnostics), list, with_prefix, diagnostics);
        let list = path.field("nameservers");
        let nameserver = |value: &Value, path: FieldPath<'_>| parse_address(&value.to_string()).map_err(|e| e.at(path));
        device.nameservers = items(members.list("nameservers", diagnostics), list, nameserver, diagnostics);
        if device.nameservers.len() > MAX_NAMESERVERS {
            let (count, expected) = (device.nameservers.len(), format!("at most {MAX_NAMESERVERS}"));
            diagnostics.push(Diagnostic::new(place.severity(), list, "too many name servers", count, &expected));
        }
        if place == Place::Machine {
            let list = path.field("addressesFromPools");
            for (at, value) in members.list("addressesFromPools", diagnostics).iter().enumerate() {
                device.pools.push(pool(value, list.index(at), diagnostics));
            }
        }
        // An unknown key is an error: Machine API ignores unknown keys, so the setting of a misspelt key would be lost.
        members.finish(Severity::Error, diagnostics);
        device
    }

    /// The path of a member of the device.
    pub(super) fn at(&self, member: &str) -> String {
        if self.path.is_empty() { member.to_owned() } else { format!("{}.{member}", self.path) }
    }

    /// Whether the device has a static configuration. Other devices use DHCP.
    pub(super) fn is_static(&self) -> bool {
        let is_empty =
            self.gateway.is_none() && self.ip_addrs.is_empty() && self.nameservers.is_empty() && self.pools.is_empty();
        !is_empty
    }

    /// Whether the device has a list of static addresses, valid or not.
    pub(super) fn has_ip_addrs(&self) -> bool {
        !self.ip_addrs.is_empty()
    }

    /// The valid addresses that the device itself lists, without the addresses of its pools.
    pub(super) fn addresses(&self) -> Vec<At<IpNetwork>> {
        self.located("ipAddrs", &self.ip_addrs)
    }

    /// The valid name servers.
    pub(super) fn nameservers(&self) -> Vec<At<IpAddr>> {
        self.located("nameservers", &self.nameservers)
    }

    /// The gateway that the device itself names.
    pub(super) fn own_gateway(&self) -> Option<At<IpAddr>> {
        self.gateway.map(|value| At { document: self.document, path: self.at("gateway"), value })
    }

    fn located<T: Copy>(&self, list: &str, items: &[Option<T>]) -> Vec<At<T>> {
        let located = |(at, item): (usize, &Option<T>)| {
            item.map(|value| At { document: self.document, path: self.at(&format!("{list}[{at}]")), value })
        };
        items.iter().enumerate().filter_map(located).collect()
    }

    /// The device without its path and without items that have errors.
    pub(super) fn into_spec(self) -> NetworkDeviceSpec {
        NetworkDeviceSpec {
            network_name: self.network_name,
            gateway: self.gateway,
            ip_addrs: self.ip_addrs.into_iter().flatten().collect(),
            nameservers: self.nameservers.into_iter().flatten().collect(),
            addresses_from_pools: self.pools.into_iter().flatten().collect(),
        }
    }
}

// === impl NetworkDeviceSpec ===

impl NetworkDeviceSpec {
    /// The values of the device for the kernel arguments, without its pools.
    pub(super) fn static_device(&self) -> StaticDevice {
        StaticDevice { addresses: self.ip_addrs.clone(), gateway: self.gateway, nameservers: self.nameservers.clone() }
    }
}

fn items<T>(
    values: &[Value],
    list: FieldPath<'_>,
    read: impl Fn(&Value, FieldPath<'_>) -> Result<T, Diagnostic>,
    diagnostics: &mut Diagnostics,
) -> Vec<Option<T>> {
    let mut item = |(at, value): (usize, &Value)| {
        read(value, list.index(at)).map_err(|diagnostic| diagnostics.push(diagnostic)).ok()
    };
    values.iter().enumerate().map(&mut item).collect()
}

fn with_prefix(value: &Value, path: FieldPath<'_>) -> Result<IpNetwork, Diagnostic> {
    let text = value.to_string();
    let missing =
        || Diagnostic::error(path, "address without a prefix length", &text, "an address as CIDR, such as 10.0.0.5/24");
    let (address, prefix) = parse_interface_address(&text).map_err(|error| error.at(path))?;
    let prefix = prefix.ok_or_else(missing)?;
    IpNetwork::new(address, prefix).map_err(|_| missing())
}

fn pool(value: &Value, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<AddressesFromPool> {
    let Value::Object(object) = value else {
        let expected = "an object with group, resource and name";
        diagnostics.push(Diagnostic::error(path, "invalid pool", value, expected));
        return None;
    };
    let errors = diagnostics.errors();
    let mut members = Members::new(object, path);
    let group = members.text("group", diagnostics).unwrap_or_default();
    let mut needed = |name: &'static str, expected: &str| {
        let before = diagnostics.errors();
        let text = members.text(name, diagnostics).filter(|text| !text.is_empty());
        if text.is_none() && diagnostics.errors() == before {
            diagnostics.push(Diagnostic::without_value(Severity::Error, path.field(name), "missing", expected));
        }
        text.unwrap_or_default()
    };
    let resource = needed("resource", "the kind of the pool");
    let name = needed("name", "the name of the pool");
    if !name.is_empty() && !is_object_name(&name) {
        let expected = "lower case letters, digits, '-' and '.'";
        diagnostics.push(Diagnostic::error(path.field("name"), "invalid name", &name, expected));
    }
    members.finish(Severity::Error, diagnostics);
    (diagnostics.errors() == errors).then_some(AddressesFromPool { group, resource, name })
}

/// Checks that a machine can use its addresses and its gateway together. `diagnostics` has one list for each document.
pub(super) fn check(
    addresses: &[At<IpNetwork>],
    gateway: Option<&At<IpAddr>>,
    place: Place,
    diagnostics: &mut [Diagnostics],
) {
    for at in addresses {
        let Some(end) = Reserved::end_of_subnet(at.value) else { continue };
        let severity = match end {
            // All routers of an IPv6 subnet answer to the first address of the subnet, but a machine with this address
            // can work.
            Reserved::SubnetRouterAnycast => Severity::Warning,
            _ => Severity::Error,
        };
        at.report(severity, &end.to_string(), "another address of the subnet", diagnostics);
    }
    let Some(gateway) = gateway else { return };
    let (family, severity) = (Family::of(gateway.value), place.severity());
    let subnets: Vec<&At<IpNetwork>> = addresses.iter().filter(|at| Family::of(at.value.ip()) == family).collect();
    for at in subnets.iter().filter(|at| at.value.ip() == gateway.value) {
        at.report(Severity::Error, "address of the gateway", "another address", diagnostics);
    }
    let Some(first) = subnets.first() else {
        if !addresses.is_empty() {
            let expected = format!("an {family} address");
            gateway.report(severity, "gateway of a family without addresses", &expected, diagnostics);
        }
        return;
    };
    if is_link_local(gateway.value) {
        return;
    }
    let Some(subnet) = subnets.iter().map(|at| at.value).find(|subnet| subnet.contains(gateway.value)) else {
        let expected = format!("an address of {}", network_of(first.value));
        return gateway.report(severity, "gateway outside the subnet", &expected, diagnostics);
    };
    let end = IpNetwork::new(gateway.value, subnet.prefix()).ok().and_then(Reserved::end_of_subnet);
    if let Some(end) = end.filter(|_| family == Family::Ipv4) {
        let (problem, expected) =
            (format!("gateway is the {end}"), format!("another address of {}", network_of(subnet)));
        gateway.report(Severity::Error, &problem, &expected, diagnostics);
    }
}

/// The subnet of an address, as CIDR.
fn network_of(address: IpNetwork) -> String {
    format!("{}/{}", address.network(), address.prefix())
}

// === impl At ===

impl<T: fmt::Display> At<T> {
    /// Adds a diagnostic about the value.
    pub(super) fn report(&self, severity: Severity, problem: &str, expected: &str, diagnostics: &mut [Diagnostics]) {
        if let Some(diagnostics) = diagnostics.get_mut(self.document) {
            diagnostics.push(Diagnostic::new(severity, &self.path, problem, &self.value, expected));
        }
    }
}
