//! Runs NetworkManager's `nm-initrd-generator` on arguments, and parses the resulting profiles.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use crate::support::profiles::{Cidr, DeviceKey, Family, Method, Profile, Profiles};

/// Paths of the program on Debian and Fedora.
const PROGRAMS: [&str; 2] = ["/usr/lib/NetworkManager/nm-initrd-generator", "/usr/libexec/nm-initrd-generator"];

/// Keys of a keyfile that have no influence on the interface. The parser rejects every other unknown key, so that the
/// tests miss no setting.
const IGNORED: [&str; 16] = [
    "connection.autoconnect-priority",
    "connection.autoconnect-retries",
    "connection.id",
    "connection.multi-connect",
    // Timeouts. A person sets them by `rd.net.timeout.*`, or NetworkManager sets them if one family is enough.
    "connection.wait-device-timeout",
    "connection.wait-activation-delay",
    "ipv4.dhcp-timeout",
    "ipv4.required-timeout",
    "ipv6.addr-gen-mode",
    "ipv6.dhcp-timeout",
    "ipv6.required-timeout",
    // Kind of the controller. The key `master` or `controller` has the controller itself.
    "connection.port-type",
    "connection.slave-type",
    // The flag REORDER_HDR is the kernel's default.
    "vlan.flags",
    "user.org.freedesktop.NetworkManager.origin",
    "user.org.freedesktop.NetworkManager.initrd.generated",
];

/// A printed connection. Its values are listed by `section.key`.
struct Connection {
    values: BTreeMap<String, String>,
}

/// The names to which a connection can refer: names of NICs from `ifname=`, and names of other connections.
struct Names<'a> {
    /// MAC addresses of NICs, by the name from `ifname=`.
    nics: BTreeMap<&'a str, String>,
    connections: &'a [Connection],
}

/// Returns the path of the program.
///
/// # Errors
///
/// Fails if NetworkManager is not installed.
pub(crate) fn program() -> Result<&'static str, String> {
    PROGRAMS.into_iter().find(|path| Path::new(path).exists()).ok_or_else(|| {
        format!("none of {PROGRAMS:?} is there: install Debian's package network-manager, or Fedora's NetworkManager")
    })
}

/// Runs the program on a line of arguments and parses its output.
///
/// # Errors
///
/// Fails for any line on standard error: such a line means that the program dropped something, even with exit status 0.
/// Fails for unknown output, such as the reason for a dropped connection, and for two connections of one interface.
pub(crate) fn read(line: &str) -> Result<Profiles, String> {
    let program = program()?;
    let arguments: Vec<&str> = line.split_ascii_whitespace().collect();
    let answer = Command::new(program)
        .args(["-s", "--"])
        .args(&arguments)
        .env_clear()
        .output()
        .map_err(|e| format!("running {program}: {e}"))?;
    let complaints = String::from_utf8_lossy(&answer.stderr);
    if !complaints.is_empty() || !answer.status.success() {
        // A timestamp precedes the message.
        let messages = complaints.lines().map(|line| line.rsplit_once("> ").map_or(line, |(_, message)| message));
        let messages: Vec<&str> = messages.map(|message| message.split_once("] ").unwrap_or(("", message)).1).collect();
        return Err(format!("nm-initrd-generator ended with {} and printed: {}", answer.status, messages.join("; ")));
    }
    let text = String::from_utf8(answer.stdout).map_err(|e| format!("the answer is no UTF-8: {e}"))?;
    understand(&text, &arguments)
}

/// Parses the output of the program. `arguments` is needed for `ifname=`, which the program leaves to udev.
pub(crate) fn understand(text: &str, arguments: &[&str]) -> Result<Profiles, String> {
    let connections = connections(text)?;
    let names = Names { nics: renamed_nics(arguments)?, connections: &connections };
    let mut profiles = BTreeMap::new();
    for connection in &connections {
        let key = names.key(connection)?;
        let profile = profile(connection, &names).map_err(|e| format!("{key}: {e}"))?;
        if profiles.insert(key.clone(), profile).is_some() {
            return Err(format!("several connections for {key}"));
        }
    }
    Ok(Profiles(profiles))
}

/// Returns the NICs that `ifname=NAME:MAC` names.
fn renamed_nics<'a>(arguments: &[&'a str]) -> Result<BTreeMap<&'a str, String>, String> {
    let mut nics: BTreeMap<&str, String> = BTreeMap::new();
    for argument in arguments {
        let Some(value) = argument.strip_prefix("ifname=") else { continue };
        let (name, mac) = value.split_once(':').ok_or_else(|| format!("{argument:?} has no MAC address"))?;
        let mac = mac_address(mac)?;
        if name.strip_prefix("eth").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit())) {
            return Err(format!("{argument:?} gives a name that the kernel may have given to another NIC"));
        }
        if nics.values().any(|other| *other == mac) {
            return Err(format!("{argument:?} names a NIC that has a name"));
        }
        if nics.insert(name, mac).is_some() {
            return Err(format!("{argument:?} gives a name that another NIC has"));
        }
    }
    Ok(nics)
}

fn connections(text: &str) -> Result<Vec<Connection>, String> {
    let mut connections: Vec<Connection> = Vec::new();
    let mut in_connection = false;
    let mut section = "";
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(title) = line.strip_prefix("*** ") {
            in_connection = title.starts_with("Connection '");
            if in_connection {
                connections.push(Connection { values: BTreeMap::new() });
            } else if title != "Configuration '15-carrier-timeout.conf' ***" {
                return Err(format!("unknown part {line:?}"));
            }
        } else if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            section = name;
        } else if let (true, Some((key, value)), Some(at)) =
            (in_connection, line.split_once('='), connections.last_mut())
        {
            if at.values.insert(format!("{section}.{key}"), value.to_owned()).is_some() {
                return Err(format!("key {section}.{key} twice"));
            }
        } else if in_connection || !line.contains('=') {
            // The reason for a dropped connection is in this output, not on standard error.
            return Err(format!("unknown line {line:?}"));
        }
    }
    Ok(connections)
}

fn profile(connection: &Connection, names: &Names) -> Result<Profile, String> {
    let mut profile = Profile::default();
    let port_of = connection.get("connection.master").or_else(|| connection.get("connection.controller"));
    if let Some(bond) = port_of {
        profile.port_of = Some(names.key(names.connection(bond)?)?);
    }
    for (name, family) in [("ipv4", &mut profile.ipv4), ("ipv6", &mut profile.ipv6)] {
        match connection.get(&format!("{name}.method")) {
            Some("disabled") => family.method = Method::Disabled,
            Some("manual") => family.method = Method::Manual,
            Some("link-local") => family.method = Method::LinkLocal,
            Some("auto") => family.method = Method::Auto,
            // A bond member or bridge port has no addresses, so these sections are missing.
            None if port_of.is_some() => {}
            other => return Err(format!("unknown {name}.method {other:?}")),
        }
    }
    if connection.get("connection.type") != Some("ethernet") {
        profile.name = connection.get("connection.interface-name").map(str::to_owned);
    }
    for (key, value) in &connection.values {
        let (section, name) = key.split_once('.').unwrap_or((key, ""));
        match (section, name) {
            _ if IGNORED.contains(&key.as_str()) => {}
            // These keys have been parsed above.
            ("connection", "uuid" | "type" | "interface-name" | "master" | "controller") => {}
            ("ethernet", "mac-address") | ("vlan", "id" | "parent") | ("ipv4" | "ipv6", "method") => {}
            // The program sets this value for every bridge.
            ("bridge", "stp") if value == "false" => {}
            ("ethernet", "mtu") => profile.mtu = Some(parsed(value)?),
            ("ethernet", "cloned-mac-address") => profile.cloned_mac = Some(mac_address(value)?),
            ("bond", "primary") => {
                let DeviceKey::Nic(nic) = names.nic(value) else { continue };
                profile.bond_options.insert(name.to_owned(), nic);
            }
            ("bond", option) => {
                profile.bond_options.insert(option.to_owned(), bond_value(option, value).to_owned());
            }
            ("ipv4", name) => read_family(&mut profile.ipv4, name, value)?,
            ("ipv6", name) => read_family(&mut profile.ipv6, name, value)?,
            _ => return Err(format!("unknown key {key}={value}")),
        }
    }
    Ok(profile)
}

fn read_family(family: &mut Family, key: &str, value: &str) -> Result<(), String> {
    let numbered = |prefix: &str| {
        key.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    if key == "may-fail" {
        family.required = !parsed::<bool>(value)?;
    } else if key == "gateway" {
        set_gateway(family, value)?;
    } else if numbered("address") {
        // Up to version 1.50 of NetworkManager, the gateway follows the first address. Later versions have a key for
        // the gateway.
        let (address, gateway) = value.split_once(',').unwrap_or((value, ""));
        if !gateway.is_empty() {
            set_gateway(family, gateway)?;
        }
        if !family.addresses.insert(address.parse()?) {
            return Err(format!("address {address} twice"));
        }
    } else if numbered("route") {
        let mut parts = value.split(',');
        let destination: Cidr = parts.next().unwrap_or_default().parse()?;
        let via = match parts.next() {
            None | Some("") => None,
            Some(via) => Some(parsed::<IpAddr>(via)?).filter(|via| !via.is_unspecified()),
        };
        if let Some(metric) = parts.next() {
            return Err(format!("route {destination} has a metric, {metric}, which no argument can express"));
        }
        if !family.routes.insert((destination, via)) {
            return Err(format!("route {value} twice"));
        }
    } else if key == "ignore-auto-dns" {
        // The key is present with every method, but only has an effect on automatic addresses.
        family.ignores_dns = parsed::<bool>(value)? && family.method == Method::Auto;
    } else if key == "dns" {
        for server in value.split(';').filter(|server| !server.is_empty()) {
            family.dns.push(parsed(server)?);
        }
    } else {
        return Err(format!("unknown key {key}={value}"));
    }
    Ok(())
}

fn set_gateway(family: &mut Family, value: &str) -> Result<(), String> {
    match family.gateway.replace(parsed(value)?) {
        None => Ok(()),
        Some(other) => Err(format!("two gateways, {other} and {value}")),
    }
}

/// Returns the name of a bond option's value if `value` is the number of the name, and else `value`.
fn bond_value<'a>(option: &str, value: &'a str) -> &'a str {
    match (option, value) {
        ("lacp_rate", "0") => "slow",
        ("lacp_rate", "1") => "fast",
        _ => value,
    }
}

/// Normalizes a MAC address.
fn mac_address(text: &str) -> Result<String, String> {
    let bytes: Vec<&str> = text.split(':').collect();
    let well_formed = |byte: &&str| byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
    if bytes.len() == 6 && bytes.iter().all(well_formed) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("{text:?} is no MAC address"))
    }
}

fn parsed<T: std::str::FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e| format!("reading {text:?}: {e}"))
}

// === impl Connection ===

impl Connection {
    fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    fn need(&self, key: &str) -> Result<&str, String> {
        self.get(key).ok_or_else(|| format!("{:?} has no {key}", self.get("connection.id")))
    }
}

// === impl Names ===

impl<'a> Names<'a> {
    /// Returns the interface of a connection.
    fn key(&self, connection: &Connection) -> Result<DeviceKey, String> {
        let name = connection.get("connection.interface-name");
        match (connection.need("connection.type")?, connection.get("ethernet.mac-address"), name) {
            ("ethernet", Some(mac), None) => Ok(DeviceKey::Nic(mac_address(mac)?)),
            ("ethernet", None, Some(name)) => Ok(self.nic(name)),
            ("ethernet", None, None) => Ok(DeviceKey::Any),
            (kind @ ("bond" | "bridge"), None, Some(name)) => {
                let uuid = connection.need("connection.uuid")?;
                let mut ports = Vec::new();
                for other in self.connections {
                    let of = other.get("connection.master").or_else(|| other.get("connection.controller"));
                    if of.is_some_and(|of| of == name || of == uuid) {
                        match self.key(other)? {
                            DeviceKey::Nic(nic) => ports.push(nic),
                            port if kind == "bridge" => ports.push(port.bare()),
                            port => return Err(format!("{port} is a port of {name}")),
                        }
                    }
                }
                ports.sort_unstable();
                Ok(if kind == "bond" { DeviceKey::Bond(ports) } else { DeviceKey::Bridge(ports) })
            }
            ("vlan", None, Some(_)) => {
                let parent = connection.need("vlan.parent")?;
                let parent = match self.connection(parent) {
                    Ok(parent) => self.key(parent)?,
                    Err(_) => self.nic(parent),
                };
                Ok(DeviceKey::Vlan(Box::new(parent), parsed(connection.need("vlan.id")?)?))
            }
            other => Err(format!("unknown kind of connection {other:?}")),
        }
    }

    /// Identifies a NIC by the MAC address that `ifname=` gives for its name, and else by its name.
    fn nic(&self, name: &str) -> DeviceKey {
        DeviceKey::Nic(self.nics.get(name).cloned().unwrap_or_else(|| name.to_owned()))
    }

    /// Returns the connection to which another connection refers by UUID or interface name.
    fn connection(&self, reference: &str) -> Result<&'a Connection, String> {
        let is_meant = |connection: &&Connection| {
            ["connection.uuid", "connection.interface-name"]
                .iter()
                .any(|key| connection.get(key).is_some_and(|value| value == reference))
        };
        self.connections.iter().find(is_meant).ok_or_else(|| format!("no connection is called {reference:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATIC: &str = "
*** Configuration '15-carrier-timeout.conf' ***

[device-15-carrier-timeout]
match-device=*

*** Connection 'kv0' ***

[connection]
id=kv0
uuid=5b9522b3-3fd6-4bd2-9244-ed2c1b11d1e4
type=ethernet
interface-name=kv0

[ipv4]
address1=10.0.0.5/24,10.0.0.1
may-fail=false
method=manual

[ipv6]
method=disabled
";

    #[test]
    fn a_gateway_is_read_from_the_keys_of_old_and_new_versions_of_networkmanager() {
        let newer = STATIC.replace("/24,10.0.0.1", "/24\ngateway=10.0.0.1");
        assert_eq!(understand(&newer, &[]), understand(STATIC, &[]));
        let read = understand(STATIC, &[]).unwrap();
        assert_eq!(
            read.to_string(),
            "NIC kv0\n  ipv4 manual, required\n    address 10.0.0.5/24\n    gateway 10.0.0.1\n  ipv6 disabled\n"
        );
    }

    #[test]
    fn a_renamed_nic_is_identified_by_its_mac_address() {
        let read = understand(STATIC, &["ifname=kv0:52:54:00:12:34:56"]).unwrap();
        let keys: Vec<_> = read.0.into_keys().collect();
        assert_eq!(keys, [DeviceKey::Nic("52:54:00:12:34:56".to_owned())]);
    }

    #[test]
    fn an_argument_that_sets_a_name_of_the_form_that_the_kernel_uses_is_an_error() {
        let error = understand(STATIC, &["ifname=eth1:52:54:00:12:34:56"]).unwrap_err();
        let argument = r#""ifname=eth1:52:54:00:12:34:56""#;
        assert_eq!(error, format!("{argument} gives a name that the kernel may have given to another NIC"));
    }

    #[test]
    fn two_connections_of_one_nic_are_an_error() {
        let by_mac = "*** Connection 'b' ***\n[connection]\nuuid=b\ntype=ethernet\n[ethernet]\n\
                      mac-address=52:54:00:12:34:56\n[ipv4]\nmethod=auto\n[ipv6]\nmethod=auto\n";
        let read = understand(&format!("{STATIC}{by_mac}"), &["ifname=kv0:52:54:00:12:34:56"]);
        assert_eq!(read, Err("several connections for NIC 52:54:00:12:34:56".to_owned()));
    }

    #[test]
    fn an_unknown_key_or_part_of_the_output_is_an_error() {
        let read = understand(&STATIC.replace("method=manual", "method=manual\nnever-default=true"), &[]);
        assert_eq!(read, Err("NIC kv0: unknown key never-default=true".to_owned()));
        let read = understand("*** Hostname 'ffff' ***\n", &[]);
        assert_eq!(read, Err("unknown part \"*** Hostname 'ffff' ***\"".to_owned()));
    }

    #[test]
    fn a_dropped_argument_is_an_error_although_the_exit_status_is_0() {
        assert_eq!(
            read("ip=10.0.0.5:::24::eth0:none nameserver=resolver.example.com"),
            Err("nm-initrd-generator ended with exit status: 0 and printed: cmdline-reader: Unknown address family: \
                 resolver.example.com"
                .to_owned())
        );
    }

    #[test]
    fn a_dropped_connection_is_an_error() {
        let reason = "ipv6.gateway: gateway cannot be set if there are no addresses configured";
        assert_eq!(read("ip=10.0.0.5::[fe80::1]:24::eth0:none"), Err(format!("unknown line {reason:?}")));
    }

    #[test]
    fn an_argument_for_any_nic_is_read_as_a_profile_of_any_nic() {
        let keys: Vec<_> = read("ip=dhcp").unwrap().0.into_keys().collect();
        assert_eq!(keys, [DeviceKey::Any]);
    }
}
