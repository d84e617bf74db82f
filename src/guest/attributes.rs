//! Attributes of a machine for units (`EnvironmentFile=`) and for people (`glowplug metadata`).

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use pnet_base::MacAddr;

use crate::atomic_file::write_public;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::formats::meta_data::MetaData;
use crate::network::{Link, NetworkConfig, Pairs};
use crate::render::Device;

/// Path of the file in which the unit of the real root stores the attributes, below a root.
pub const CACHE: &str = "run/metadata/glowplug";

/// Longest value, in bytes. No valid value of a drive is longer.
const MAX_VALUE: usize = 4096;

/// Names of the attributes that a machine has once.
const NAMES: [&str; 6] = ["HOSTNAME", "INSTANCE_ID", "INSTANCE_TYPE", "NAME", "NAMESPACE", "UUID"];
/// Names of the attributes of each interface. The second interface has names such as `IPV4_1`, and so on.
const OF_INTERFACES: [&str; 4] = ["INTERFACE", "IPV4", "IPV6", "MAC"];
/// Names of the attributes of each tagged device, with the prefix `DEVICE_0_`, `DEVICE_1_` and so on.
const OF_DEVICES: [&str; 8] = ["ADDRESS", "ALIGNED_CPUS", "BUS", "MAC", "NUMA_NODE", "SERIAL", "TAGS", "TYPE"];

/// Attributes of a machine, by names such as `HOSTNAME` and `IPV4_1`. No value has control characters.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attributes(BTreeMap<String, String>);

/// Name of an attribute that can be requested, whether or not the machine has the attribute.
///
/// The name is parsed in upper or lower case, with dashes or underscores, and with or without the prefix of the file.
///
/// ```
/// use glowplug::guest::attributes::{Key, KeyError};
///
/// assert_eq!("ipv4".parse::<Key>(), "GLOWPLUG_KUBEVIRT_IPV4".parse());
/// assert_eq!("instance-id".parse::<Key>(), "INSTANCE_ID".parse());
/// assert_eq!("device-0-tags".parse::<Key>().unwrap().to_string(), "device_0_tags");
/// assert_eq!("colour".parse::<Key>(), Err(KeyError));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Key(String);

/// Error: a string is not a [`Key`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyError;

/// Prefix of the names in an environment file, such as `GLOWPLUG_`. `KUBEVIRT_` follows the prefix.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prefix(String);

/// Error: a string is not a [`Prefix`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PrefixError;

// === impl Attributes ===

impl Attributes {
    /// Collects the attributes from the metadata and the network of a drive. `network` has the network, and how the
    /// output identifies each link. `nics` has the known NICs of the machine.
    ///
    /// The interfaces are the links with a static or dynamic address, in the order of the document. A value that no
    /// environment file can hold is left out and reported.
    pub fn of(
        meta_data: &MetaData,
        network: Option<(&NetworkConfig, &[Device])>,
        nics: &[(MacAddr, String)],
        diagnostics: &mut Diagnostics,
    ) -> Self {
        let mut attributes = Self::default();
        let mut add = |name: String, value: Option<&str>| attributes.add(name, value, diagnostics);
        let (name, namespace) = meta_data.name_and_namespace().unzip();
        let values = [&meta_data.hostname, &meta_data.instance_id, &meta_data.instance_type].map(Option::as_deref);
        let [hostname, instance_id, instance_type] = values;
        let values = [hostname, instance_id, instance_type, name, namespace, meta_data.uuid.as_deref()];
        for (name, value) in NAMES.iter().zip(values) {
            add((*name).to_owned(), value);
        }
        for (at, device) in meta_data.devices.iter().enumerate() {
            let lists = [&device.aligned_cpus, &device.tags].map(|words| Some(words.join(",")));
            let [aligned_cpus, tags] = lists.map(|words| words.filter(|words| !words.is_empty()));
            let values = [
                &device.address,
                &aligned_cpus,
                &device.bus,
                &device.mac,
                &device.numa_node,
                &device.serial,
                &tags,
                &device.kind,
            ];
            for (name, value) in OF_DEVICES.iter().zip(values) {
                add(format!("DEVICE_{at}_{name}"), value.as_deref());
            }
        }
        let (network, devices) = network.map_or((&[][..], &[][..]), |(network, devices)| (network.links(), devices));
        let is_reachable = |link: &Link| link.ipv4.is_used() || link.ipv6.is_beyond_link();
        let interfaces = network.iter().zip(devices).filter(|(link, _)| is_reachable(link));
        for (at, (link, device)) in interfaces.enumerate() {
            let values = [
                interface_name(device, nics),
                link.ipv4.addresses.first().map(|address| address.ip().to_string()),
                link.ipv6.addresses.first().map(|address| address.ip().to_string()),
                link.mac_address().map(|address| Pairs(address, b':').to_string()),
            ];
            for (name, value) in OF_INTERFACES.iter().zip(values) {
                let name = if at == 0 { (*name).to_owned() } else { format!("{name}_{at}") };
                add(name, value.as_deref());
            }
        }
        attributes
    }

    /// Returns the value of an attribute; `None` when the machine does not have the attribute.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&str> {
        self.0.get(&key.0).map(String::as_str)
    }

    /// Returns all attributes by their names in lower case, sorted.
    #[must_use]
    pub fn by_key(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect()
    }

    /// Formats the attributes as an environment file (systemd.exec(5)), sorted by name. A POSIX shell reads the same
    /// values.
    ///
    /// With the prefix `AFTERBURN_` the instance id is the UUID if the drive has a UUID, as in afterburn.
    #[must_use]
    pub fn environment_file(&self, prefix: &Prefix) -> String {
        let mut file = String::new();
        for (name, value) in &self.0 {
            let uuid = self.0.get("UUID").filter(|_| name == "INSTANCE_ID" && prefix.0 == "AFTERBURN_");
            let value = uuid.unwrap_or(value);
            file.push_str(&format!("{}KUBEVIRT_{name}={}\n", prefix.0, Quoted(value)));
        }
        file
    }

    /// Writes [`Attributes::environment_file`] to a file that every user can read, in one step.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn write(&self, path: &Path, prefix: &Prefix) -> io::Result<()> {
        write_public(path, self.environment_file(prefix).as_bytes())
    }

    /// Parses a file that [`Attributes::environment_file`] wrote with the default prefix. All other lines are ignored.
    #[must_use]
    pub fn read_environment_file(file: &str) -> Self {
        let attribute = |line: &str| {
            let (name, value) = line.split_once('=')?;
            let Key(name) = name.parse().ok()?;
            Some((name, unquoted(value)?))
        };
        Self(file.lines().filter_map(attribute).collect())
    }

    /// Reads the attributes that the unit of the real root has stored. `None` when there is no such file.
    ///
    /// # Errors
    ///
    /// The error of the system call, if the file exists.
    pub fn cached(root: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(root.join(CACHE)) {
            Ok(file) => Ok(Some(Self::read_environment_file(&file))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn add(&mut self, name: String, value: Option<&str>, diagnostics: &mut Diagnostics) {
        let Some(value) = value else { return };
        if value.len() <= MAX_VALUE && !value.chars().any(char::is_control) {
            self.0.insert(name, value.to_owned());
        } else {
            let expected = format!("at most {MAX_VALUE} bytes without control characters");
            diagnostics.push(Diagnostic::warning(name.to_ascii_lowercase(), "invalid attribute", value, &expected));
        }
    }
}

/// Lists the interfaces of this machine, NICs first: their MAC addresses and their names in the kernel.
pub(super) fn nics(root: &Path) -> Vec<(MacAddr, String)> {
    let directory = root.join("sys/class/net");
    let Ok(entries) = fs::read_dir(&directory) else { return Vec::new() };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    // A bridge or a VLAN has the MAC address of its NIC. In sysfs, only a NIC has the entry `device`. NICs are listed
    // first, so that a search by MAC address finds the NIC.
    let is_device = |name: &String| directory.join(name).join("device").exists();
    let (devices, others): (Vec<String>, Vec<String>) = names.into_iter().partition(is_device);
    let nic = |name: String| {
        let address = fs::read_to_string(directory.join(&name).join("address")).ok()?;
        Some((address.trim_ascii_end().parse().ok()?, name))
    };
    devices.into_iter().chain(others).filter_map(nic).collect()
}

/// Returns the name of an interface: the name in the output, else the name of the NIC with the MAC address.
fn interface_name(device: &Device, nics: &[(MacAddr, String)]) -> Option<String> {
    match device {
        Device::Name(name) => Some(name.to_string()),
        Device::MacAddress(address) => nics.iter().find(|(nic, _)| nic == address).map(|(_, name)| name.clone()),
        Device::Any => None,
    }
}

// === impl Key ===

impl Key {
    /// Lists the names of all keys for a message.
    #[must_use]
    pub fn known() -> String {
        let [names, interfaces, devices] = [&NAMES[..], &OF_INTERFACES, &OF_DEVICES].map(|names| {
            let names: Vec<String> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
            names.join(", ")
        });
        format!(
            "{names}, {interfaces} (for further interfaces with the suffix _1, _2 and so on), \
             and with the prefix device_0_, device_1_ and so on: {devices}"
        )
    }
}

impl FromStr for Key {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let upper = text.to_ascii_uppercase().replace('-', "_");
        let name = upper.split_once("KUBEVIRT_").map_or(upper.as_str(), |(_, name)| name);
        let is_number = |text: &str| {
            (1..=4).contains(&text.len())
                && text.bytes().all(|b| b.is_ascii_digit())
                && (text == "0" || !text.starts_with('0'))
        };
        let of_interface = |name: &str| OF_INTERFACES.contains(&name);
        let is_known = NAMES.contains(&name)
            || of_interface(name)
            || name.rsplit_once('_').is_some_and(|(name, at)| of_interface(name) && is_number(at) && at != "0")
            || name
                .strip_prefix("DEVICE_")
                .and_then(|rest| rest.split_once('_'))
                .is_some_and(|(at, name)| is_number(at) && OF_DEVICES.contains(&name));
        if is_known { Ok(Self(name.to_owned())) } else { Err(KeyError) }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_ascii_lowercase())
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected one of {}", Key::known())
    }
}

impl std::error::Error for KeyError {}

// === impl Prefix ===

impl Default for Prefix {
    fn default() -> Self {
        Self("GLOWPLUG_".to_owned())
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let legal = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_';
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_uppercase());
        if begins && text.ends_with('_') && text.len() <= 64 && text.bytes().all(legal) {
            Ok(Self(text.to_owned()))
        } else {
            Err(PrefixError)
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected upper-case letters, digits and '_', such as AFTERBURN_")
    }
}

impl std::error::Error for PrefixError {}

// === quoting ===

/// A value, quoted so that systemd and a POSIX shell read the same string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"_./:@%+,-".contains(&b);
        if !self.0.is_empty() && self.0.bytes().all(plain) {
            return f.write_str(self.0);
        }
        f.write_str("\"")?;
        for c in self.0.chars() {
            if matches!(c, '"' | '\\' | '$' | '`') {
                f.write_str("\\")?;
            }
            write!(f, "{c}")?;
        }
        f.write_str("\"")
    }
}

fn unquoted(text: &str) -> Option<String> {
    let Some(quoted) = text.strip_prefix('"') else { return Some(text.to_owned()) };
    let mut value = String::new();
    let mut rest = quoted.strip_suffix('"')?.chars();
    while let Some(c) = rest.next() {
        value.push(if c == '\\' { rest.next()? } else { c });
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::formats::{Meaning, read_network};
    use crate::render::dracut;

    fn attributes(meta_data: &str, network: &str, root: &Path) -> (Attributes, Vec<String>) {
        let mut diagnostics = Diagnostics::default();
        let meta_data = MetaData::read_openstack(meta_data.as_bytes(), &mut diagnostics);
        let Meaning::Network(network) = read_network(network.as_bytes()).meaning else { panic!() };
        let devices = dracut::render(&network, &mut Diagnostics::default()).devices;
        let attributes = Attributes::of(&meta_data, Some((&network, &devices)), &nics(root), &mut diagnostics);
        (attributes, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    const NETWORK: &str = r#"{"links":[
        {"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"},
        {"id":"b","type":"phy","ethernet_mac_address":"52:54:00:00:00:02"},
        {"id":"v","type":"vlan","vlan_link":"b","vlan_id":7},
        {"id":"unused","type":"phy","ethernet_mac_address":"52:54:00:00:00:09"}],
       "networks":[
        {"link":"a","type":"ipv4_dhcp"},
        {"link":"b","type":"ipv4","ip_address":"10.0.0.5/24"},
        {"link":"b","type":"ipv4","ip_address":"10.0.0.6/24"},
        {"link":"b","type":"ipv6","ip_address":"2001:db8::5/64"},
        {"link":"v","type":"ipv6","ip_address":"2001:db8:7::5/64"}]}"#;

    #[test]
    fn a_file_has_every_attribute_of_the_drive_and_is_sorted() {
        let root = tempfile::tempdir().unwrap();
        let nic = root.path().join("sys/class/net/enp1s0");
        fs::create_dir_all(&nic).unwrap();
        fs::write(nic.join("address"), "52:54:00:00:00:01\n").unwrap();
        let meta_data = r#"{"instance_id":"worker-0.clusters","uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223",
            "hostname":"worker-0","instance_type":"u1 large",
            "devices":[{"type":"nic","bus":"pci","address":"0000:01:00.0","tags":["a","b c"]}]}"#;
        let (attributes, diagnostics) = attributes(meta_data, NETWORK, root.path());
        assert_eq!(diagnostics, Vec::<String>::new());
        let expected = "\
            GLOWPLUG_KUBEVIRT_DEVICE_0_ADDRESS=0000:01:00.0\n\
            GLOWPLUG_KUBEVIRT_DEVICE_0_BUS=pci\n\
            GLOWPLUG_KUBEVIRT_DEVICE_0_TAGS=\"a,b c\"\n\
            GLOWPLUG_KUBEVIRT_DEVICE_0_TYPE=nic\n\
            GLOWPLUG_KUBEVIRT_HOSTNAME=worker-0\n\
            GLOWPLUG_KUBEVIRT_INSTANCE_ID=worker-0.clusters\n\
            GLOWPLUG_KUBEVIRT_INSTANCE_TYPE=\"u1 large\"\n\
            GLOWPLUG_KUBEVIRT_INTERFACE=enp1s0\n\
            GLOWPLUG_KUBEVIRT_INTERFACE_1=kv0\n\
            GLOWPLUG_KUBEVIRT_INTERFACE_2=kv0.7\n\
            GLOWPLUG_KUBEVIRT_IPV4_1=10.0.0.5\n\
            GLOWPLUG_KUBEVIRT_IPV6_1=2001:db8::5\n\
            GLOWPLUG_KUBEVIRT_IPV6_2=2001:db8:7::5\n\
            GLOWPLUG_KUBEVIRT_MAC=52:54:00:00:00:01\n\
            GLOWPLUG_KUBEVIRT_MAC_1=52:54:00:00:00:02\n\
            GLOWPLUG_KUBEVIRT_NAME=worker-0\n\
            GLOWPLUG_KUBEVIRT_NAMESPACE=clusters\n\
            GLOWPLUG_KUBEVIRT_UUID=5d307ca9-b3ef-428c-8861-06e72d69f223\n";
        assert_eq!(attributes.environment_file(&Prefix::default()), expected);
        assert_eq!(Attributes::read_environment_file(expected), attributes);
    }

    #[test]
    fn a_nic_with_only_a_link_local_address_has_no_attributes() {
        let network = "version: 2\nethernets: {enp1s0: {link-local: [ipv6]}, enp2s0: {addresses: [10.0.0.5/24]}}";
        let (attributes, _) = attributes("{}", network, Path::new("/nonexistent"));
        let expected = "GLOWPLUG_KUBEVIRT_INTERFACE=enp2s0\nGLOWPLUG_KUBEVIRT_IPV4=10.0.0.5\n";
        assert_eq!(attributes.environment_file(&Prefix::default()), expected);
    }

    #[test]
    fn a_bridge_with_the_mac_address_of_its_nic_is_not_confused_with_the_nic() {
        let root = tempfile::tempdir().unwrap();
        for name in ["br-ex", "enp1s0", "vlan7"] {
            let directory = root.path().join("sys/class/net").join(name);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("address"), "52:54:00:00:00:01\n").unwrap();
        }
        fs::create_dir(root.path().join("sys/class/net/enp1s0/device")).unwrap();
        let network = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"}],
            "networks":[{"link":"a","type":"ipv4_dhcp"}]}"#;
        let (attributes, _) = attributes("{}", network, root.path());
        assert_eq!(attributes.get(&"interface".parse().unwrap()), Some("enp1s0"));
    }

    #[test]
    fn with_the_prefix_of_afterburn_the_instance_id_is_the_uuid() {
        let meta_data = r#"{"instance_id":"a.b","uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"}"#;
        let (attributes, _) = attributes(meta_data, NETWORK, Path::new("/nonexistent"));
        let file = attributes.environment_file(&"AFTERBURN_".parse().unwrap());
        let line = file.lines().find(|line| line.contains("INSTANCE_ID"));
        assert_eq!(line, Some("AFTERBURN_KUBEVIRT_INSTANCE_ID=5d307ca9-b3ef-428c-8861-06e72d69f223"));
    }

    #[test]
    fn a_value_that_a_file_cannot_hold_is_left_out_and_reported() {
        let long = "x".repeat(MAX_VALUE + 1);
        let meta_data =
            format!(r#"{{"hostname":"a\nGLOWPLUG_KUBEVIRT_IPV4=6.6.6.6","instance_type":"{long}","uuid":"ok"}}"#);
        let mut diagnostics = Diagnostics::default();
        let meta_data = MetaData::read_openstack(meta_data.as_bytes(), &mut diagnostics);
        let attributes = Attributes::of(&meta_data, None, &[], &mut diagnostics);
        assert_eq!(attributes.environment_file(&Prefix::default()), "GLOWPLUG_KUBEVIRT_UUID=ok\n");
        let diagnostics: Vec<String> = diagnostics.kept().iter().map(ToString::to_string).collect();
        let expected = "expected at most 4096 bytes without control characters";
        assert_eq!(
            diagnostics,
            [
                format!(r#"hostname: invalid attribute "a\nGLOWPLUG_KUBEVIRT_IPV4=6.6.6.6", {expected}"#),
                format!(r#"instance_type: invalid attribute "{}…", {expected}"#, "x".repeat(64)),
            ]
        );
    }

    /// Values with characters that are special in a shell or in an environment file.
    const VALUES: [&str; 14] = [
        "$HOME",
        "`id`",
        "$(id)",
        "a\"b",
        "a'b",
        "a\\b",
        "\\",
        " lead and trail ",
        "#no comment",
        "a;b&c|d>e",
        "*?[x]~",
        "a=b",
        "ünïcödé ☃",
        "%n%%",
    ];

    #[test]
    fn a_posix_shell_reads_back_exactly_the_value() {
        for value in VALUES {
            let attributes = Attributes([("HOSTNAME".to_owned(), value.to_owned())].into());
            let script =
                format!("{}printf %s \"$GLOWPLUG_KUBEVIRT_HOSTNAME\"", attributes.environment_file(&Prefix::default()));
            let output = Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!((String::from_utf8(output.stdout).unwrap().as_str(), output.stderr), (value, Vec::new()));
        }
    }

    #[test]
    fn a_written_environment_file_is_read_as_the_same_attributes() {
        for value in VALUES {
            let attributes = Attributes([("DEVICE_12_TAGS".to_owned(), value.to_owned())].into());
            let file = attributes.environment_file(&Prefix::default());
            assert_eq!(Attributes::read_environment_file(&file), attributes);
        }
    }

    #[test]
    fn the_keys_of_attributes_are_read_in_every_spelling_and_other_keys_are_errors() {
        let read = |text: &str| text.parse::<Key>().ok().map(|key| key.to_string());
        for (text, key) in [
            ("hostname", "hostname"),
            ("Instance-Type", "instance_type"),
            ("AFTERBURN_KUBEVIRT_IPV6", "ipv6"),
            ("ipv4_1", "ipv4_1"),
            ("device_10_numa_node", "device_10_numa_node"),
        ] {
            assert_eq!(read(text).as_deref(), Some(key));
        }
        for text in
            ["", "host", "ipv4_0", "ipv4_01", "ipv4_", "hostname_1", "device_tags", "device_0_colour", "ipv4_12345"]
        {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_prefix_must_be_a_valid_beginning_of_a_variable_name() {
        for text in ["AFTERBURN_", "A1_"] {
            assert_eq!(text.parse(), Ok(Prefix(text.to_owned())));
        }
        for text in ["a_", "A", "_A_", "A B_", ""] {
            assert_eq!(text.parse::<Prefix>(), Err(PrefixError), "{text:?}");
        }
    }
}
