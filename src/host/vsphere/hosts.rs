//! The static addresses of the first machines, in `platform.vsphere.hosts` of the installer's `install-config.yaml`.
//!
//! The installer checks the numbers of hosts, their roles and failure domains, and the syntax of addresses
//! (`openshift/installer:pkg/types/vsphere/validation/platform.go`). The installer does not notice an address of two
//! hosts, an unreachable gateway, or an address that no machine can use. This module reports these mistakes, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use super::device::{NetworkDeviceSpec, Place, ReadDevice, check};
use super::machine::NetworkKargs;
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};
use crate::host::address::parse_address;
use crate::host::members::Members;

/// The checked hosts of an `install-config.yaml`.
#[derive(Clone, Debug, PartialEq)]
pub struct InstallHosts {
    /// The hosts, in the order of the document.
    pub hosts: Vec<Host>,
    /// The document, for the Machines of the hosts.
    pub(super) config: Object,
}

/// A machine that the installer creates.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Host {
    /// Purpose of the machine.
    pub role: Role,
    /// Name of the failure domain. `None`: the installer selects a failure domain.
    pub failure_domain: Option<String>,
    /// Static network of the machine.
    pub network_device: NetworkDeviceSpec,
}

/// Purpose of a machine that the installer creates.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Role {
    /// The machine that creates the control plane, and is then removed.
    Bootstrap,
    /// A machine of the control plane.
    ControlPlane,
    /// A worker.
    Compute,
}

/// Number of replicas of a machine pool, if the document does not set the number.
const DEFAULT_REPLICAS: i64 = 3;

/// State of the check of the hosts.
struct Check<'d> {
    config: &'d Object,
    vsphere: &'d Object,
    diagnostics: Diagnostics,
    /// The virtual addresses of the cluster, and the addresses of the hosts that are already checked, with their paths.
    taken: BTreeMap<IpAddr, String>,
    /// Gateways and name servers, with their paths.
    servers: BTreeMap<IpAddr, (&'static str, String)>,
    devices: Vec<ReadDevice>,
}

/// Reads and checks the hosts of an `install-config.yaml`. Reports all errors at once, each with its path. `None` when
/// the document has an error.
///
/// ```
/// use glowplug::host::vsphere::read_install_config;
///
/// let config = b"
/// controlPlane: {replicas: 1}
/// compute: [{name: worker, replicas: 0}]
/// platform:
///   vsphere:
///     hosts:
///     - role: bootstrap
///       networkDevice: {ipAddrs: [192.168.101.240/24], gateway: 192.168.101.1}
///     - role: control-plane
///       networkDevice: {ipAddrs: [192.168.101.240/24], gateway: 192.168.101.1}
/// ";
/// let (_, diagnostics) = read_install_config(config);
/// assert_eq!(
///     diagnostics.to_string(),
///     "platform.vsphere.hosts[1].networkDevice.ipAddrs[0]: repeated address \"192.168.101.240\", \
///      expected another address than at platform.vsphere.hosts[0].networkDevice.ipAddrs[0]"
/// );
/// ```
#[must_use]
pub fn read_install_config(document: &[u8]) -> (Option<InstallHosts>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let config = match value::parse_strict(document) {
        Ok(Value::Object(config)) => config,
        Ok(other) => {
            diagnostics.push(Diagnostic::error("document", "invalid document", other, "an install-config.yaml"));
            return (None, diagnostics);
        }
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
            return (None, diagnostics);
        }
    };
    let Some(vsphere) = config.object("platform").and_then(|platform| platform.object("vsphere")) else {
        let expected = "the platform of an install-config.yaml";
        diagnostics.push(Diagnostic::without_value(Severity::Error, "platform.vsphere", "missing", expected));
        return (None, diagnostics);
    };
    let mut check = Check {
        config: &config,
        vsphere,
        diagnostics,
        taken: BTreeMap::new(),
        servers: BTreeMap::new(),
        devices: Vec::new(),
    };
    check.virtual_addresses();
    let hosts = check.hosts();
    check.addresses();
    let diagnostics = check.diagnostics;
    let hosts = hosts.filter(|_| !diagnostics.has_errors());
    (hosts.map(|hosts| InstallHosts { hosts, config: config.clone() }), diagnostics)
}

/// An object without members.
pub(super) static EMPTY: Object = Object::EMPTY;

/// The objects of a list. Any other element becomes an object without members, so that each object keeps its index.
pub(super) fn objects<'d>(object: &'d Object, name: &str) -> Vec<&'d Object> {
    let elements = match object.get(name) {
        Some(Value::Array(elements)) => elements.as_slice(),
        _ => &[],
    };
    let as_object = |value: &'d Value| match value {
        Value::Object(object) => object,
        _ => &EMPTY,
    };
    elements.iter().map(as_object).collect()
}

/// Returns a string member, unless the string is empty.
pub(super) fn text<'d>(object: &'d Object, name: &str) -> Option<&'d str> {
    match object.get(name)? {
        Value::String(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

/// The replicas of a machine pool. `None` when the number is invalid.
pub(super) fn replicas(pool: Option<&Object>) -> Option<i64> {
    match pool.and_then(|pool| pool.get("replicas")) {
        None | Some(Value::Null) => Some(DEFAULT_REPLICAS),
        Some(Value::Integer(count)) if *count >= 0 => Some(*count),
        Some(_) => None,
    }
}

static HOSTS: &str = "platform.vsphere.hosts";

// === impl Check ===

impl Check<'_> {
    /// Notes the virtual addresses of the cluster, which no host can have. The installer reports invalid virtual
    /// addresses.
    fn virtual_addresses(&mut self) {
        for name in ["apiVIPs", "ingressVIPs", "apiVIP", "ingressVIP"] {
            let (values, is_list) = match self.vsphere.get(name) {
                Some(Value::Array(values)) => (values.as_slice(), true),
                Some(one @ Value::String(_)) => (std::slice::from_ref(one), false),
                _ => continue,
            };
            for (at, value) in values.iter().enumerate() {
                let path =
                    if is_list { format!("platform.vsphere.{name}[{at}]") } else { format!("platform.vsphere.{name}") };
                if let Ok(address) = parse_address(&value.to_string()) {
                    self.taken.entry(address).or_insert(path);
                }
            }
        }
    }

    /// Reads the hosts, and compares their numbers with the replicas. `None`: there is no host, or a host is not an
    /// object or has no valid role.
    fn hosts(&mut self) -> Option<Vec<Host>> {
        let platform = FieldPath::Document.field("platform");
        let vsphere = platform.field("vsphere");
        let list = vsphere.field("hosts");
        let elements = Members::new(self.vsphere, vsphere).list("hosts", &mut self.diagnostics);
        if elements.is_empty() {
            if !self.diagnostics.has_errors() {
                let expected = "the hosts of the cluster, with their static addresses";
                self.diagnostics.push(Diagnostic::without_value(Severity::Error, list, "missing", expected));
            }
            return None;
        }
        let domains = objects(self.vsphere, "failureDomains");
        let domains: BTreeSet<&str> = domains.into_iter().filter_map(|domain| text(domain, "name")).collect();
        let (mut hosts, mut roles) = (Vec::new(), BTreeMap::new());
        for (at, element) in elements.iter().enumerate() {
            let host = self.host(element, list.index(at), &domains);
            if let Some(Some(role)) = host.as_ref().map(|(role, _)| *role) {
                *roles.entry(role).or_insert(0_i64) += 1;
            }
            hosts.push(host.and_then(|(role, domain)| Some((role?, domain))));
        }
        self.count(&roles);
        let hosts: Option<Vec<_>> = hosts.into_iter().collect();
        let devices = self.devices.iter().cloned().map(ReadDevice::into_spec);
        let host = |((role, failure_domain), network_device)| Host { role, failure_domain, network_device };
        hosts.map(|hosts| hosts.into_iter().zip(devices).map(host).collect())
    }

    /// Reads a host. Returns its role, if the role is valid, and its failure domain. `None`: the host is not an object.
    /// Each host adds one device.
    fn host(
        &mut self,
        element: &Value,
        path: FieldPath<'_>,
        domains: &BTreeSet<&str>,
    ) -> Option<(Option<Role>, Option<String>)> {
        let diagnostics = &mut self.diagnostics;
        let Value::Object(object) = element else {
            diagnostics.push(Diagnostic::error(path, "invalid host", element, "an object"));
            self.devices.push(ReadDevice::default());
            return None;
        };
        let mut members = Members::new(object, path);
        let role = match members.get("role") {
            Some(value) => {
                let name = value.to_string();
                let role = Role::ALL.into_iter().find(|role| role.to_string() == name);
                if role.is_none() {
                    let expected = "bootstrap, control-plane or compute";
                    diagnostics.push(Diagnostic::error(path.field("role"), "unknown role", value, expected));
                }
                role
            }
            None => {
                let expected = "bootstrap, control-plane or compute";
                diagnostics.push(Diagnostic::without_value(Severity::Error, path.field("role"), "missing", expected));
                None
            }
        };
        let domain = members.text("failureDomain", diagnostics).filter(|name| !name.is_empty());
        if let Some(name) = domain.as_deref().filter(|name| !domains.contains(name)) {
            let expected = "the name of one of platform.vsphere.failureDomains";
            diagnostics.push(Diagnostic::error(path.field("failureDomain"), "unknown failure domain", name, expected));
        }
        let device = path.field("networkDevice");
        match members.get("networkDevice") {
            Some(Value::Object(object)) => {
                let read = ReadDevice::read(object, 0, device, Place::InstallConfig, diagnostics);
                if !read.has_ip_addrs() {
                    let (path, expected) = (device.field("ipAddrs"), "at least one address as CIDR");
                    diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
                }
                self.devices.push(read);
            }
            other => {
                diagnostics.push(match other {
                    Some(other) => Diagnostic::error(device, "invalid device", other, "an object"),
                    None => Diagnostic::without_value(Severity::Error, device, "missing", "the addresses of the host"),
                });
                self.devices.push(ReadDevice::default());
            }
        }
        members.finish(Severity::Error, diagnostics);
        Some((role, domain))
    }

    /// Compares the number of hosts of each role with the expected number: one bootstrap host, and for the other roles
    /// the replicas.
    fn count(&mut self, roles: &BTreeMap<Role, i64>) {
        let of = |role: Role| roles.get(&role).copied().unwrap_or(0);
        let mut compare = |role: Role, expected: i64, why: &str| {
            if of(role) != expected {
                let (problem, expected) = (format!("wrong number of {role} hosts"), format!("{expected}{why}"));
                self.diagnostics.push(Diagnostic::error(HOSTS, &problem, of(role), &expected));
            }
        };
        compare(Role::Bootstrap, 1, "");
        let control_plane = replicas(self.config.object("controlPlane"));
        if let Some(expected) = control_plane {
            compare(Role::ControlPlane, expected, ", as controlPlane.replicas");
        }
        let pools = objects(self.config, "compute");
        let mut compute = if pools.is_empty() { Some(DEFAULT_REPLICAS) } else { Some(0) };
        for (at, pool) in pools.iter().enumerate() {
            let of_pool = replicas(Some(pool));
            compute = compute.zip(of_pool).and_then(|(sum, of_pool)| sum.checked_add(of_pool));
            if of_pool.is_none() {
                self.invalid_replicas(&format!("compute[{at}].replicas"));
            }
        }
        if control_plane.is_none() {
            self.invalid_replicas("controlPlane.replicas");
        }
        if let Some(expected) = compute.filter(|expected| of(Role::Compute) != *expected) {
            let problem = format!("wrong number of {} hosts", Role::Compute);
            let expected = format!("{expected}, as the sum of compute[].replicas");
            self.diagnostics.push(Diagnostic::error(HOSTS, &problem, of(Role::Compute), &expected));
        }
    }

    fn invalid_replicas(&mut self, path: &str) {
        let diagnostic =
            Diagnostic::without_value(Severity::Error, path, "invalid number", "a number of machines, from 0");
        self.diagnostics.push(diagnostic);
    }

    /// Checks the addresses of all hosts together.
    fn addresses(&mut self) {
        for device in &self.devices {
            if let Some(gateway) = device.own_gateway() {
                self.servers.entry(gateway.value).or_insert(("gateway", gateway.path));
            }
            for server in device.nameservers() {
                self.servers.entry(server.value).or_insert(("name server", server.path));
            }
        }
        for device in std::mem::take(&mut self.devices) {
            let (addresses, gateway) = (device.addresses(), device.own_gateway());
            for at in &addresses {
                let address = at.value.ip();
                match self.taken.get(&address) {
                    Some(first) => {
                        let expected = format!("another address than at {first}");
                        self.diagnostics.push(Diagnostic::error(&at.path, "repeated address", address, &expected));
                    }
                    None => drop(self.taken.insert(address, at.path.clone())),
                }
                // The check of each device reports an address that is also the gateway of this device.
                let is_own = gateway.as_ref().is_some_and(|gateway| gateway.value == address);
                if let Some((what, path)) = self.servers.get(&address).filter(|_| !is_own) {
                    let (problem, expected) =
                        (format!("address of a {what}"), format!("another address than at {path}"));
                    self.diagnostics.push(Diagnostic::error(&at.path, &problem, address, &expected));
                }
            }
            check(&addresses, gateway.as_ref(), Place::InstallConfig, std::slice::from_mut(&mut self.diagnostics));
            let path = device.at("ipAddrs");
            NetworkKargs::of(&[device.into_spec().static_device()]).check(&path, &mut self.diagnostics);
        }
    }
}

// === impl Host ===

impl Host {
    /// The kernel arguments of the host.
    #[must_use]
    pub fn kargs(&self) -> NetworkKargs {
        NetworkKargs::of(&[self.network_device.static_device()])
    }
}

// === impl Role ===

impl Role {
    const ALL: [Self; 3] = [Self::Bootstrap, Self::ControlPlane, Self::Compute];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bootstrap => "bootstrap",
            Self::ControlPlane => "control-plane",
            Self::Compute => "compute",
        })
    }
}
