//! Documents, and the model that they mean.
//!
//! KubeVirt passes the network text of a drive through untouched, whatever the kind of the drive, so the format is
//! recognised from the content alone.

mod address;
pub mod meta_data;
pub mod network_data;
pub mod value;

use std::fmt;

use crate::finding::{Finding, Findings, Severity};
use crate::network::NetworkConfig;
use network_data::NetworkData;
use value::{Object, Value};

/// The format of a document about the network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Format {
    /// OpenStack's `network_data.json`.
    NetworkData,
}

/// What a document about the network says.
#[derive(Debug)]
pub struct Reading {
    /// How it was recognised; `None` for a document that says nothing, or cannot be recognised.
    pub format: Option<Format>,
    /// What it means.
    pub meaning: Meaning,
    /// What is to be said about it.
    pub findings: Findings,
}

/// What a document means for the machine.
#[derive(Debug)]
pub enum Meaning {
    /// It configures nothing: the distribution's default applies.
    Unconfigured,
    /// It asks for no network at all, not even the distribution's default.
    Disabled,
    /// It asks for this network.
    Network(NetworkConfig),
    /// It has errors. Nothing of it is used.
    Refused,
}

// === impl Format ===

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetworkData => "network_data",
        })
    }
}

/// Reads a document about the network.
///
/// An empty document, one of comments only, `null` and one without a word about links, networks or services configure
/// nothing.
///
/// ```
/// use glowplug::formats::{Meaning, read_network};
///
/// assert!(matches!(read_network(b"{}").meaning, Meaning::Unconfigured));
///
/// let reading = read_network(br#"{"links": [{"id": "eno101", "type": "phy", "mtu": "large"}], "networks": [{}]}"#);
/// let findings: Vec<String> = reading.findings.kept().iter().map(ToString::to_string).collect();
/// assert_eq!(findings[0], r#"links[0].mtu: invalid MTU "large", expected 68 to 65535 bytes"#);
/// ```
#[must_use]
pub fn read_network(document: &[u8]) -> Reading {
    let mut findings = Findings::default();
    let mut format = None;
    let meaning = match parse(document) {
        Ok(object) if is_disabled(&object) => {
            return Reading { format, meaning: Meaning::Disabled, findings };
        }
        Ok(object) => {
            format = recognise(&object, &mut findings);
            match format {
                Some(Format::NetworkData) => NetworkData::read(&object, &mut findings).convert(&mut findings),
                None => None,
            }
        }
        Err(finding) => {
            findings.push(finding);
            None
        }
    };
    let meaning = match meaning {
        _ if findings.has_errors() => Meaning::Refused,
        Some(network) if !network.is_empty() => Meaning::Network(network),
        _ => Meaning::Unconfigured,
    };
    Reading { format, meaning, findings }
}

/// Reads a document that shall be an object. What says nothing is an object without members.
fn parse(document: &[u8]) -> Result<Object, Finding> {
    let text = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    let says_nothing = |line: &[u8]| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#")
    };
    if text.len() <= value::MAX_BYTES && text.split(|byte| *byte == b'\n').all(says_nothing) {
        return Ok(Object::default());
    }
    match value::parse(text)? {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Object::default()),
        other => Err(Finding::error("document", "invalid document", other.kind(), "an object")),
    }
}

fn unsupported(place: &str, what: &str) -> Finding {
    let problem = format!("{what} is not supported by this version");
    Finding::without_value(Severity::Error, place, &problem, "OpenStack's network_data")
}

/// cloud-init's `config: disabled`, bare or under `network`.
fn is_disabled(document: &Object) -> bool {
    let says_so = |object: &Object| matches!(object.get("config"), Some(Value::String(word)) if word == "disabled");
    says_so(document) || matches!(document.get("network"), Some(Value::Object(network)) if says_so(network))
}

fn recognise(document: &Object, findings: &mut Findings) -> Option<Format> {
    let has = |name: &&str| document.get(name).is_some();
    if ["links", "networks", "services"].iter().any(has) {
        return Some(Format::NetworkData);
    }
    // Their meaning is not known here, and to boot without it would be a guess.
    let cloud_inits = ["network", "version", "config", "ethernets", "bonds", "bridges", "vlans", "wifis"];
    if let Some(name) = cloud_inits.iter().find(|name| has(name)) {
        findings.push(unsupported(name, "cloud-init's network-config"));
    }
    None
}
