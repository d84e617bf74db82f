//! Readers that parse a network document into the model.
//!
//! KubeVirt copies the network document to the drive unchanged, for each layout of a drive. So the layout does not
//! determine the format, and the format is detected from the content alone.

pub(crate) mod address;
mod convert;
#[doc(hidden)]
pub mod meta_data;
mod network_config;
#[doc(hidden)]
pub mod network_data;
mod reader;
#[doc(hidden)]
pub mod value;

#[cfg(feature = "host")]
#[doc(hidden)]
pub use network_config::{have_same_network, write_network_config};

use std::fmt;

use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::network::NetworkConfig;
use network_data::NetworkData;
use value::{Object, Repeats, Scalar, Value};

/// The format of a network document.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Format {
    /// OpenStack's `network_data.json`.
    NetworkData,
    /// cloud-init's network-config, version 1.
    NetworkConfigV1,
    /// cloud-init's network-config, version 2: a subset of netplan's format.
    NetworkConfigV2,
}

/// The result of reading a network document.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reading {
    /// The detected format. `None` for an empty document, for `config: disabled`, and if no format could be detected.
    pub format: Option<Format>,
    /// The configuration that the document requests.
    pub meaning: Meaning,
    /// Diagnostics about the document.
    pub diagnostics: Diagnostics,
}

/// The configuration that a document requests for the machine.
#[derive(Debug)]
pub enum Meaning {
    /// The document configures nothing: the distribution's default applies.
    Unconfigured,
    /// The document requests no network at all, not even the distribution's default.
    Disabled,
    /// The document requests this network.
    Network(NetworkConfig),
    /// The document has errors, and no part of the document is used.
    Refused,
}

// === impl Format ===

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NetworkData => "network_data",
            Self::NetworkConfigV1 => "network-config v1",
            Self::NetworkConfigV2 => "network-config v2",
        })
    }
}

/// Reads a network document in any of the formats.
///
/// An empty document, a document of comments only, and `null` configure nothing. If no member of a document is known,
/// the document also configures nothing, and a warning reports each member; a member that seems misspelt is an error.
/// Most diagnostics of the YAML or JSON parser give the line and the column. Every other diagnostic gives the path of
/// the value.
///
/// ```
/// use glowplug::formats::{Meaning, read_network};
///
/// assert!(matches!(read_network(b"{}").meaning, Meaning::Unconfigured));
///
/// let reading = read_network(br#"{"links": [{"id": "eno101", "type": "phy", "mtu": "large"}], "networks": [{}]}"#);
/// let diagnostics: Vec<String> = reading.diagnostics.kept().iter().map(ToString::to_string).collect();
/// assert_eq!(diagnostics[0], r#"links[0].mtu: invalid MTU "large", expected 68 to 65535 bytes"#);
/// ```
#[must_use]
pub fn read_network(document: &[u8]) -> Reading {
    let mut repeats = Vec::new();
    let mut reading = read_as(document, Repeats::LastCounts, &mut repeats);
    if !repeats.is_empty() {
        // When the first and the last value give the same network, the choice does not matter, and a warning is enough.
        let first = read_as(document, Repeats::FirstCounts, &mut Vec::new());
        let is_same =
            matches!((&reading.meaning, &first.meaning), (Meaning::Network(a), Meaning::Network(b)) if a == b);
        let severity = if is_same { Severity::Warning } else { Severity::Error };
        repeats.into_iter().for_each(|diagnostic| reading.diagnostics.push(Diagnostic { severity, ..diagnostic }));
        if !is_same {
            reading.meaning = Meaning::Refused;
        }
    }
    reading
}

/// Reads a document, with `repeats` as the rule for repeated YAML keys. Each key that is repeated with a different
/// value adds a diagnostic to `repeated`.
fn read_as(document: &[u8], repeats: Repeats, repeated: &mut Vec<Diagnostic>) -> Reading {
    let mut diagnostics = Diagnostics::default();
    let mut format = None;
    let meaning = match parse(document, repeats, &mut diagnostics) {
        Ok((object, repeats)) if is_disabled(&object) => {
            repeated.extend(repeats);
            return Reading { format, meaning: Meaning::Disabled, diagnostics };
        }
        Ok((object, repeats)) => {
            repeated.extend(repeats);
            let recognised = recognise(&object, &mut diagnostics);
            format = recognised.map(|(format, ..)| format);
            match recognised {
                Some((Format::NetworkData, object, _)) => {
                    NetworkData::read(object, &mut diagnostics).convert(&mut diagnostics)
                }
                Some((Format::NetworkConfigV1, object, path)) => {
                    network_config::convert_v1(object, &path, &mut diagnostics)
                }
                Some((Format::NetworkConfigV2, object, path)) => {
                    network_config::convert_v2(object, &path, &mut diagnostics)
                }
                None => None,
            }
        }
        Err(diagnostic) => {
            diagnostics.push(diagnostic);
            None
        }
    };
    let meaning = match meaning {
        _ if diagnostics.has_errors() => Meaning::Refused,
        Some(network) if !network.is_empty() => Meaning::Network(network),
        _ => Meaning::Unconfigured,
    };
    Reading { format, meaning, diagnostics }
}

/// Parses a document that must be an object. An empty document gives an object without members. Also returns a
/// diagnostic for each YAML key that is repeated with a different value.
fn parse(
    document: &[u8],
    repeats: Repeats,
    diagnostics: &mut Diagnostics,
) -> Result<(Object, Vec<Diagnostic>), Diagnostic> {
    let text = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(document);
    let says_nothing = |line: &[u8]| {
        let line = line.trim_ascii();
        line.is_empty() || line.starts_with(b"#")
    };
    if text.len() <= value::MAX_BYTES && text.split(|byte| *byte == b'\n').all(says_nothing) {
        return Ok((Object::default(), Vec::new()));
    }
    let parsed = value::read(text, repeats, diagnostics)?;
    match parsed.value {
        Value::Object(object) => Ok((object, parsed.repeats)),
        Value::Null => Ok((Object::default(), parsed.repeats)),
        other => Err(Diagnostic::error("document", "invalid document", other, "an object")),
    }
}

/// Whether the document has cloud-init's `config: disabled`, at the top level or under `network`.
fn is_disabled(document: &Object) -> bool {
    let says_so = |object: &Object| matches!(object.get("config"), Some(Value::String(word)) if word == "disabled");
    says_so(document) || matches!(document.get(WRAPPER), Some(Value::Object(network)) if says_so(network))
}

/// The member that may contain a whole network-config.
const WRAPPER: &str = "network";
const OPENSTACKS: [&str; 3] = ["links", "networks", "services"];
const CLOUD_INITS: [&str; 6] = ["config", "ethernets", "bonds", "bridges", "vlans", "wifis"];

/// Whether a document has members of cloud-init's network-config, and none of OpenStack's format.
#[cfg(feature = "host")]
pub(crate) fn is_network_config(document: &Object) -> bool {
    let has = |names: &[&str]| names.iter().any(|name| document.get(name).is_some());
    !has(&OPENSTACKS) && (has(&CLOUD_INITS) || has(&[WRAPPER]))
}

/// Detects the format of a document. Also returns the object in that format and its path: the document itself, or the
/// object under [`WRAPPER`]. A document with members of two formats is an error, because the choice of one format would
/// be a guess.
fn recognise<'d>(
    document: &'d Object,
    diagnostics: &mut Diagnostics,
) -> Option<(Format, &'d Object, FieldPath<'static>)> {
    let given = |name: &&&str| !matches!(document.get(name), None | Some(Value::Null));
    let [openstacks, cloud_inits, wrapper] =
        [&OPENSTACKS[..], &CLOUD_INITS[..], &[WRAPPER]].map(|names| names.iter().find(given));
    let mut formats = [openstacks, cloud_inits, wrapper].into_iter().flatten();
    if let (Some(first), Some(second)) = (formats.next(), formats.next()) {
        let expected = "either OpenStack's links, networks and services, or cloud-init's network-config, bare or as a \
                        whole under network";
        let path = FieldPath::Document.field(second);
        diagnostics.push(Diagnostic::error(path, "member of another format than", first, expected));
        return None;
    }
    let mut report_unknown_members = |expected: &str| {
        for (name, value) in document.members() {
            let path = FieldPath::Document.field(name);
            let lists = [&[WRAPPER][..], &OPENSTACKS[..], &CLOUD_INITS[..]];
            match lists.into_iter().flatten().find(|known| reader::is_misspelt(name, known)) {
                _ if name == WRAPPER || *value == Value::Null => {}
                // A misspelt member is an error: after a warning, the machine would boot with the distribution's
                // default.
                Some(known) => diagnostics.push(Diagnostic::error(path, "unknown member", value, known)),
                None => diagnostics.push(Diagnostic::warning(path, "unknown member", value, expected)),
            }
        }
    };
    let (object, path) = match wrapper.and_then(|name| document.get(name)) {
        // `links: null` counts as an empty list. A `version` next to `links` does not make the document a
        // network-config, because a document of any format can have a member `version`.
        None if OPENSTACKS.iter().any(|name| document.get(name).is_some()) => {
            return Some((Format::NetworkData, document, FieldPath::Document));
        }
        None if cloud_inits.is_some() || given(&&"version") => (document, FieldPath::Document),
        Some(Value::Object(network)) if !network.is_empty() => {
            report_unknown_members("only the member network");
            (network, FieldPath::Field(&FieldPath::Document, WRAPPER))
        }
        None | Some(Value::Object(_)) => {
            report_unknown_members("links, networks and services, or the version of a network-config");
            return None;
        }
        Some(other) => {
            diagnostics.push(Diagnostic::error(FieldPath::Document.field(WRAPPER), "invalid item", other, "an object"));
            return None;
        }
    };
    let version = object.get("version").and_then(Scalar::of);
    match version.as_ref().and_then(Scalar::integer) {
        Some(1) => Some((Format::NetworkConfigV1, object, path)),
        Some(2) => Some((Format::NetworkConfigV2, object, path)),
        _ => {
            let path = path.field("version");
            convert::unknown(diagnostics, Severity::Error, path, "unknown version", version.as_ref(), "1 or 2");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_reading_is_linear_in_the_number_of_unknown_members() {
        let work = |members: usize| {
            let members: Vec<String> = (0..members).map(|at| format!(r#""m{at}": 1"#)).collect();
            let before = value::visited();
            assert!(matches!(
                read_network(format!("{{{}}}", members.join(",")).as_bytes()).meaning,
                Meaning::Unconfigured
            ));
            value::visited() - before
        };
        // `recognise` looks up a fixed number of names, and each lookup compares all members.
        assert_eq!(work(2000), 2 * work(1000));
        assert!(work(1000) < 64 * 1000, "{}", work(1000));
    }
}
