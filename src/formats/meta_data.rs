//! Reads the metadata of a machine: OpenStack's `meta_data.json` and NoCloud's `meta-data`, in one model.
//!
//! The fields of each document are the fields that KubeVirt writes (`kubevirt/kubevirt:pkg/cloud-init/cloud-init.go`).
//! OpenStack's names have underscores and NoCloud's names have dashes; both spellings are accepted in both documents.

use super::value::{self, Object, Value};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath};
use crate::network::is_label;

/// The metadata of a machine. A field that is missing or invalid is `None` or empty, and the other fields are still
/// used.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MetaData {
    /// The machine's firmware UUID, in lower case. The UUID of an OpenStack document is not checked.
    pub uuid: Option<String>,
    /// The instance id. KubeVirt writes `name.namespace` on an OpenStack drive, and the UUID on a NoCloud drive.
    pub instance_id: Option<String>,
    /// The name of the instance type.
    pub instance_type: Option<String>,
    /// The machine's host name, as in the document and not checked.
    pub hostname: Option<String>,
    /// For each public key, its path in the document and its string for `authorized_keys`. One string may have several
    /// lines.
    pub public_keys: Vec<(String, String)>,
    /// Whether the document may contain public keys that could not be read. In this case, an empty list of keys may be
    /// unintended.
    pub has_unread_keys: bool,
    /// Devices that the machine's owner has tagged.
    pub devices: Vec<Device>,
    /// Diagnostics about the document, kept for the report.
    pub diagnostics: Vec<Diagnostic>,
}

/// A tagged device. KubeVirt lists devices only on an OpenStack drive.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Device {
    /// `nic` or `hostdev`; the member `type` in the document.
    pub kind: Option<String>,
    /// The bus, such as `pci`.
    pub bus: Option<String>,
    /// The address on the bus, such as `0000:01:00.0`.
    pub address: Option<String>,
    /// The MAC address of a NIC, not checked.
    pub mac: Option<String>,
    /// The serial number of a disk.
    pub serial: Option<String>,
    /// The NUMA node, not checked.
    pub numa_node: Option<String>,
    /// The CPUs on the device's NUMA node, not checked.
    pub aligned_cpus: Vec<String>,
    /// The tags, not checked.
    pub tags: Vec<String>,
}

/// Reads the members of an object as strings, and reports values of the wrong type.
struct MetaDataReader<'o, 'f> {
    object: &'o Object,
    diagnostics: &'f mut Diagnostics,
    has_unread_keys: bool,
}

// === impl MetaData ===

impl MetaData {
    /// Reads OpenStack's `meta_data.json`. A document that cannot be parsed adds a diagnostic and gives no metadata.
    pub fn read_openstack(document: &[u8], diagnostics: &mut Diagnostics) -> Self {
        let Some(object) = object(document, diagnostics) else { return Self::unread() };
        let mut reader = MetaDataReader::new(&object, diagnostics);
        let uuid = reader.text(&["uuid"]).map(|uuid| uuid.to_ascii_lowercase());
        let instance_id = reader.text(&["instance_id", "instance-id"]);
        let hostname = reader.text(&["hostname", "local_hostname", "local-hostname"]);
        Self { uuid, instance_id, hostname, ..reader.common() }
    }

    /// Reads NoCloud's `meta-data`. An instance id that is a UUID is also the firmware UUID. A document that cannot be
    /// parsed adds a diagnostic and gives no metadata.
    pub fn read_nocloud(document: &[u8], diagnostics: &mut Diagnostics) -> Self {
        let Some(object) = object(document, diagnostics) else { return Self::unread() };
        let mut reader = MetaDataReader::new(&object, diagnostics);
        let instance_id = reader.text(&["instance-id", "instance_id"]);
        let uuid = instance_id.as_ref().map(|id| id.to_ascii_lowercase()).filter(|id| is_uuid(id));
        let hostname = reader.text(&["local-hostname", "local_hostname", "hostname"]);
        Self { uuid, instance_id, hostname, ..reader.common() }
    }

    /// The metadata of a document that exists but cannot be parsed.
    #[must_use]
    pub fn unread() -> Self {
        Self { has_unread_keys: true, ..Self::default() }
    }

    /// The name and the namespace of the VirtualMachineInstance, if the instance id has KubeVirt's form
    /// `name.namespace`. A name can contain dots, a namespace cannot.
    #[must_use]
    pub fn name_and_namespace(&self) -> Option<(&str, &str)> {
        let is_lower = |label: &str| label.len() <= 63 && is_label(label) && label == label.to_ascii_lowercase();
        let id = self.instance_id.as_deref()?;
        let (name, namespace) = id.rsplit_once('.')?;
        id.split('.').all(is_lower).then_some((name, namespace))
    }
}

/// Returns a warning about a network that is in the metadata and not read: NoCloud's `network-interfaces`, or the file
/// that OpenStack's `network_config` refers to. Both are in the format of ifupdown. `path` is the path of the metadata
/// on the drive. `None` if there is no such network, or if the metadata cannot be parsed.
#[must_use]
pub fn other_network(path: &str, document: &[u8]) -> Option<Diagnostic> {
    let object = object(document, &mut Diagnostics::default())?;
    let given = |object: &Object, name: &str| object.get(name).filter(|value| **value != Value::Null).cloned();
    let reference = match object.get("network_config") {
        Some(Value::Object(config)) => given(config, "content_path"),
        _ => None,
    };
    let (member, value, expected) = match (reference, given(&object, "network-interfaces")) {
        (Some(reference), _) => ("network_config.content_path", reference.to_string(), "network_data.json"),
        (None, Some(interfaces)) => ("network-interfaces", interfaces.kind().to_owned(), "network-config"),
        (None, None) => return None,
    };
    let path = format!("{path}: {member}");
    Some(Diagnostic::warning(path, "network that is not read", value, &format!("the network in {expected}")))
}

/// Whether the string is a UUID, in lower or upper case.
#[must_use]
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| match at {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

fn object(document: &[u8], diagnostics: &mut Diagnostics) -> Option<Object> {
    match value::parse(document, diagnostics) {
        Ok(Value::Object(object)) => return Some(object),
        Ok(Value::Null) => return Some(Object::default()),
        Ok(other) => diagnostics.push(Diagnostic::warning("document", "invalid document", other, "an object")),
        Err(diagnostic) => diagnostics.push(diagnostic),
    }
    None
}

// === impl MetaDataReader ===

impl<'o, 'f> MetaDataReader<'o, 'f> {
    fn new(object: &'o Object, diagnostics: &'f mut Diagnostics) -> Self {
        Self { object, diagnostics, has_unread_keys: false }
    }

    /// Reads the members that have the same names in both documents, except for dashes.
    fn common(&mut self) -> MetaData {
        MetaData {
            instance_type: self.text(&["instance_type", "instance-type"]),
            public_keys: self.public_keys(),
            has_unread_keys: self.has_unread_keys,
            devices: self.devices(),
            ..MetaData::default()
        }
    }

    /// Returns, as a string, the value of the first of these members that is a whole number or a non-empty string.
    /// Reports booleans, fractions, arrays and objects.
    fn text(&mut self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| match self.object.get(name)? {
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            // The parser does not keep the original text of these values, so they cannot be used as strings.
            other @ (Value::Array(_) | Value::Object(_) | Value::Bool(_) | Value::Fraction(_)) => {
                let path = FieldPath::Document.field(name);
                self.diagnostics.push(Diagnostic::warning(path, "invalid value", other, "a string"));
                None
            }
            scalar => Some(scalar.to_string()),
        })
    }

    /// Reads the public keys from one string, a list of strings, or a map with strings as values.
    fn public_keys(&mut self) -> Vec<(String, String)> {
        let Some((name, value)) =
            ["public_keys", "public-keys"].iter().find_map(|name| Some((*name, self.object.get(name)?)))
        else {
            return Vec::new();
        };
        let here = FieldPath::Document;
        let path = here.field(name);
        match value {
            Value::Null => Vec::new(),
            Value::String(text) => vec![(path.path(), text.clone())],
            Value::Array(texts) => {
                let texts = texts.iter().enumerate().map(|(at, text)| (path.index(at), text));
                texts.filter_map(|(path, text)| self.public_key(path, text)).collect()
            }
            Value::Object(texts) => {
                let texts = texts.members();
                texts.into_iter().filter_map(|(name, text)| self.public_key(path.field(name), text)).collect()
            }
            other => self.public_key(path, other).into_iter().collect(),
        }
    }

    fn public_key(&mut self, path: FieldPath<'_>, value: &Value) -> Option<(String, String)> {
        match value {
            Value::String(text) => Some((path.path(), text.clone())),
            other => {
                self.has_unread_keys = true;
                self.diagnostics.push(Diagnostic::warning(path, "invalid key", other, "a line of authorized_keys"));
                None
            }
        }
    }

    fn devices(&mut self) -> Vec<Device> {
        let devices = match self.object.get("devices") {
            Some(Value::Array(devices)) => devices.as_slice(),
            None | Some(Value::Null) => &[],
            Some(other) => {
                self.diagnostics.push(Diagnostic::warning("devices", "invalid list", other, "an array"));
                &[]
            }
        };
        let mut read = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            match device {
                Value::Object(object) => read.push(MetaDataReader::new(object, self.diagnostics).device()),
                other => {
                    let list = FieldPath::Field(&FieldPath::Document, "devices");
                    self.diagnostics.push(Diagnostic::warning(list.index(at), "invalid device", other, "an object"));
                }
            }
        }
        read
    }

    fn device(&mut self) -> Device {
        Device {
            kind: self.text(&["type"]),
            bus: self.text(&["bus"]),
            address: self.text(&["address"]),
            mac: self.text(&["mac"]),
            serial: self.text(&["serial"]),
            numa_node: self.text(&["numaNode"]),
            aligned_cpus: self.words("alignedCPUs"),
            tags: self.words("tags"),
        }
    }

    fn words(&mut self, name: &str) -> Vec<String> {
        match self.object.get(name) {
            Some(Value::Array(words)) => words.iter().map(Value::to_string).collect(),
            None | Some(Value::Null) => Vec::new(),
            Some(word) => vec![word.to_string()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn openstack(document: &str) -> (MetaData, Vec<String>) {
        let mut diagnostics = Diagnostics::default();
        let meta_data = MetaData::read_openstack(document.as_bytes(), &mut diagnostics);
        (meta_data, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn nocloud(document: &str) -> (MetaData, Vec<String>) {
        let mut diagnostics = Diagnostics::default();
        let meta_data = MetaData::read_nocloud(document.as_bytes(), &mut diagnostics);
        (meta_data, diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    fn key(path: &str, text: &str) -> (String, String) {
        (path.to_owned(), text.to_owned())
    }

    #[test]
    fn the_metadata_of_an_openstack_drive_from_kubevirt_is_read() {
        let (meta_data, diagnostics) = openstack(
            r#"{"instance_id":"worker-0.clusters","uuid":"5D307CA9-b3ef-428c-8861-06e72d69f223","hostname":"worker-0",
                "instance_type":"u1.large","public_keys":{"0":"ssh-ed25519 AAAA a\nssh-ed25519 AAAA b\n"},
                "devices":[{"type":"nic","bus":"pci","address":"0000:01:00.0","mac":"02:00:00:00:00:01","numaNode":0,
                            "alignedCPUs":[0,1],"tags":["data","fast"]}]}"#,
        );
        let expected = MetaData {
            uuid: some("5d307ca9-b3ef-428c-8861-06e72d69f223"),
            instance_id: some("worker-0.clusters"),
            instance_type: some("u1.large"),
            hostname: some("worker-0"),
            public_keys: vec![key("public_keys.0", "ssh-ed25519 AAAA a\nssh-ed25519 AAAA b\n")],
            has_unread_keys: false,
            devices: vec![Device {
                kind: some("nic"),
                bus: some("pci"),
                address: some("0000:01:00.0"),
                mac: some("02:00:00:00:00:01"),
                serial: None,
                numa_node: some("0"),
                aligned_cpus: vec!["0".to_owned(), "1".to_owned()],
                tags: vec!["data".to_owned(), "fast".to_owned()],
            }],
            diagnostics: Vec::new(),
        };
        assert_eq!((meta_data.name_and_namespace(), &diagnostics), (Some(("worker-0", "clusters")), &Vec::new()));
        assert_eq!(meta_data, expected);
    }

    #[test]
    fn nocloud_metadata_is_read_from_json_and_yaml_with_dashes_and_underscores() {
        let expected = MetaData {
            uuid: some("5d307ca9-b3ef-428c-8861-06e72d69f223"),
            instance_id: some("5D307ca9-b3ef-428c-8861-06e72d69f223"),
            instance_type: some("u1.large"),
            hostname: some("worker-0"),
            public_keys: vec![key("public-keys[0]", "ssh-ed25519 AAAA a")],
            has_unread_keys: false,
            devices: Vec::new(),
            diagnostics: Vec::new(),
        };
        let json = r#"{"instance-id":"5D307ca9-b3ef-428c-8861-06e72d69f223","instance-type":"u1.large",
            "local-hostname":"worker-0","public-keys":["ssh-ed25519 AAAA a"]}"#;
        let yaml = "instance_id: 5D307ca9-b3ef-428c-8861-06e72d69f223\ninstance_type: u1.large\n\
            local_hostname: worker-0 # a comment\npublic-keys:\n  - ssh-ed25519 AAAA a\n";
        assert_eq!(nocloud(json), (expected.clone(), Vec::new()));
        assert_eq!(nocloud(yaml), (expected, Vec::new()));
    }

    #[test]
    fn a_nocloud_instance_id_that_is_not_a_uuid_gives_no_uuid() {
        let (meta_data, _) = nocloud("instance-id: i-1\n");
        assert_eq!((meta_data.uuid, meta_data.instance_id), (None, some("i-1")));
    }

    #[test]
    fn a_field_of_a_wrong_type_is_ignored_and_the_other_fields_are_read() {
        let (meta_data, diagnostics) = openstack(
            r#"{"hostname":["a"],"uuid":7,"instance_id":null,"instance_type":1.5,"local_hostname":true,"public_keys":[1,"k",null],
                "devices":[1,{"tags":"one"}]}"#,
        );
        let devices = vec![Device { tags: vec!["one".to_owned()], ..Device::default() }];
        let public_keys = vec![key("public_keys[1]", "k")];
        assert_eq!(meta_data, MetaData { uuid: some("7"), public_keys, devices, ..MetaData::unread() });
        assert_eq!(
            diagnostics,
            [
                r#"devices[0]: invalid device "1", expected an object"#,
                r#"hostname: invalid value "an array", expected a string"#,
                r#"instance_type: invalid value "1.5", expected a string"#,
                r#"local_hostname: invalid value "true", expected a string"#,
                r#"public_keys[0]: invalid key "1", expected a line of authorized_keys"#,
                r#"public_keys[2]: invalid key "null", expected a line of authorized_keys"#,
            ]
        );
    }

    #[test]
    fn a_document_that_cannot_be_parsed_gives_no_metadata() {
        assert_eq!(
            nocloud("a: b: c"),
            (
                MetaData::unread(),
                vec![
                    r#"line 1 column 5: not readable as YAML "mapping values are not allowed in this context", expected a JSON or YAML document"#
                        .to_owned()
                ]
            )
        );
        assert_eq!(nocloud("").0, MetaData::default());
    }

    #[test]
    fn a_network_in_the_metadata_is_reported() {
        let reported = |document: &str| other_network("meta", document.as_bytes()).map(|it| it.to_string());
        assert_eq!(
            reported(r#"{"network_config":{"name":"network_config","content_path":"/content/0000"}}"#).as_deref(),
            Some(
                r#"meta: network_config.content_path: network that is not read "/content/0000", expected the network in network_data.json"#
            )
        );
        assert_eq!(
            reported("instance-id: i-1\nnetwork-interfaces: |\n  iface eth0 inet dhcp\n").as_deref(),
            Some(
                r#"meta: network-interfaces: network that is not read "a string", expected the network in network-config"#
            )
        );
        for document in ["", "{", r#"{"network_config":null,"network-interfaces":null}"#, r#"{"network_config":{}}"#] {
            assert_eq!(reported(document), None, "{document}");
        }
    }

    #[test]
    fn only_an_instance_id_in_the_form_of_kubevirt_has_a_name_and_a_namespace() {
        let split = |id: &str| {
            let meta_data = MetaData { instance_id: some(id), ..MetaData::default() };
            meta_data.name_and_namespace().map(|(name, namespace)| (name.to_owned(), namespace.to_owned()))
        };
        assert_eq!(split("vm.with.dots.ns"), Some(("vm.with.dots".to_owned(), "ns".to_owned())));
        for id in ["i-1", "Vm.ns", "vm.", ".ns", "vm..ns", "a b.ns", "-a.ns"] {
            assert_eq!(split(id), None, "{id}");
        }
    }
}
