//! Report of one run: for `run/glowplug/plan.json`, for `check --json`, and as a page for people.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::platform::Platform;
use crate::diagnostic::Diagnostic;
use crate::network::{BridgePort, Link, LinkIndex, LinkKind, NetworkConfig, Pairs, Route};
use crate::render::networkd::File;
use crate::terminal::{escaped, table};

/// Results and decisions of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Version of this format. Members can be added to a version, but no existing member changes.
    pub version: u32,
    /// Result of the run for the boot.
    pub outcome: Outcome,
    /// Reason for the outcome, in a few words.
    pub reason: String,
    /// Network program of the initramfs, as in `--renderer`.
    pub renderer: String,
    /// Platform of the machine; `None` if the run did not decide it.
    pub platform: Option<Platform>,
    /// Drive that was used; `None` if no drive was found, or if the document is not on a drive.
    pub drive: Option<Drive>,
    /// Network document that was read; `None` if no document was read.
    pub document: Option<Document>,
    /// Links of the network that the document describes.
    pub links: Vec<LinkReport>,
    /// Name servers, most important first.
    pub nameservers: Vec<String>,
    /// Metadata of the drive, by the keys of `glowplug metadata`.
    pub metadata: BTreeMap<String, String>,
    /// Diagnostics of the metadata. They do not affect the network.
    pub metadata_diagnostics: Vec<Diagnostic>,
    /// Kernel arguments that the run decided on.
    pub arguments: Vec<String>,
    /// Absolute path of the file with the kernel arguments; `None` if the file was not written.
    pub fragment: Option<String>,
    /// Files that the run decided to write for the network program.
    pub files: Vec<WrittenFile>,
    /// Diagnostics of the network document.
    pub diagnostics: Vec<Diagnostic>,
    /// Number of diagnostics that are not in `diagnostics`.
    pub further_diagnostics: usize,
}

/// Result of a run for the boot.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The arguments or files of the document are used.
    Configured,
    /// The default arguments of the distribution are used. They may be empty.
    Default,
    /// Nothing is written. Examples of reasons: the machine is not supported, the kernel command line configures the
    /// network, or the document disables the network.
    NothingToDo,
    /// Nothing is written because of an error.
    Refused,
}

/// A config drive.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Drive {
    /// Device, or the path that was named.
    pub path: String,
    /// `iso9660` or `vfat`; `None` for a directory.
    pub file_system: Option<String>,
    /// Label as written on the drive.
    pub label: Option<String>,
    /// `openstack` or `nocloud`; `None` if the drive has neither layout.
    pub layout: Option<String>,
    /// Why this drive was chosen.
    pub reason: String,
    /// How long the run waited for the drive, in ms.
    pub waited_ms: u64,
}

/// A document about the network.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Document {
    /// Path on the drive, or the name of another source such as `standard input`.
    pub path: String,
    /// Recognised format, such as `network_data`; `None` if the format is unknown.
    pub format: Option<String>,
    /// Size of the document, in bytes.
    pub size: usize,
}

/// A file for a network program.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct WrittenFile {
    /// Absolute path of the file.
    pub path: String,
    /// Content of the file.
    pub text: String,
}

/// One link of the network, as strings.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct LinkReport {
    /// Id or key of the link in the document.
    pub id: String,
    /// `nic`, `bond`, `bridge` or `vlan`.
    pub kind: String,
    /// MAC address or name that identifies the link in the output.
    pub device: String,
    /// Links below a bond, a bridge or a VLAN, by their `device`.
    pub on: Vec<String>,
    /// VLAN id; `None` for a link that is not a VLAN.
    pub vlan_id: Option<String>,
    /// Mode and options of a bond or a bridge, by the kernel's names.
    pub options: Vec<String>,
    /// MAC address that the link has or gets.
    pub mac_address: Option<String>,
    /// MTU, in bytes; `None` if the document does not set the MTU.
    pub mtu: Option<String>,
    /// Static addresses as CIDR, and the strings `dhcp4`, `slaac`, `dhcp6-stateless`, `dhcp6` and `link-local`.
    pub addresses: Vec<String>,
    /// Routes through the link, such as `default via 10.0.0.1`.
    pub routes: Vec<String>,
}

// === impl Report ===

impl Default for Report {
    /// Makes an empty report of a run that has found and decided nothing yet.
    fn default() -> Self {
        Self {
            version: Self::VERSION,
            outcome: Outcome::NothingToDo,
            reason: String::new(),
            renderer: String::new(),
            platform: None,
            drive: None,
            document: None,
            links: Vec::new(),
            nameservers: Vec::new(),
            metadata: BTreeMap::new(),
            metadata_diagnostics: Vec::new(),
            arguments: Vec::new(),
            fragment: None,
            files: Vec::new(),
            diagnostics: Vec::new(),
            further_diagnostics: 0,
        }
    }
}

impl Report {
    /// Version of the format that this program writes.
    pub const VERSION: u32 = 1;

    /// Returns whether the boot would fail.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.outcome == Outcome::Refused
    }
}

impl WrittenFile {
    pub(super) fn of(file: &File) -> Self {
        Self { path: format!("/{}", file.path), text: file.text.clone() }
    }
}

impl LinkReport {
    /// Describes the links of a network. `device` returns how the output identifies a link.
    pub(super) fn of(config: &NetworkConfig, device: &dyn Fn(LinkIndex) -> String) -> Vec<Self> {
        let links = config.links().iter().enumerate();
        links.map(|(at, link)| Self::of_link(link, device(LinkIndex(at)), device)).collect()
    }

    fn of_link(link: &Link, device: String, names: &dyn Fn(LinkIndex) -> String) -> Self {
        let (mut on, mut vlan_id, mut options) = (Vec::new(), None, Vec::new());
        let kind = match &link.kind {
            LinkKind::Nic(_) => "nic",
            LinkKind::Bond { ports, options: set, .. } => {
                on.extend(ports.iter().copied().map(names));
                options.push(format!("mode={}", set.mode));
                options.extend(set.others().iter().map(|option| format!("{}={}", option.name, option.value)));
                options.extend(set.arp_ip_target.iter().map(|target| format!("arp_ip_target={target}")));
                options.extend(set.primary.map(|primary| format!("primary={}", names(primary))));
                "bond"
            }
            LinkKind::Bridge { ports, options: set, .. } => {
                on.extend(ports.iter().copied().map(names));
                options.extend(set.given().into_iter().map(|(name, value)| format!("{name}={value}")));
                for BridgePort { port, path_cost, priority } in &set.ports {
                    let numbers = [("path_cost", path_cost.map(u32::from)), ("port_priority", priority.map(u32::from))];
                    let given = numbers.into_iter().filter_map(|(name, number)| Some((name, number?)));
                    options.extend(given.map(|(name, number)| format!("{name}={}:{number}", names(*port))));
                }
                "bridge"
            }
            LinkKind::Vlan { parent, id, .. } => {
                on.push(names(*parent));
                vlan_id = Some(id.to_string());
                "vlan"
            }
        };
        Self {
            id: link.id.clone(),
            kind: kind.to_owned(),
            device,
            on,
            vlan_id,
            options,
            mac_address: link.mac_address().map(|address| Pairs(address, b':').to_string()),
            mtu: link.mtu.map(|mtu| mtu.to_string()),
            addresses: link.addresses(),
            routes: link.routes.iter().map(route).collect(),
        }
    }

    fn made_of(&self) -> String {
        match (&self.vlan_id, self.on.is_empty()) {
            (Some(id), _) => format!("vlan {id} on {}", self.on.join(", ")),
            (None, false) => format!("{} of {}", self.kind, self.on.join(", ")),
            (None, true) => self.kind.clone(),
        }
    }
}

fn route(route: &Route) -> String {
    let mut text = if route.is_default() { "default".to_owned() } else { route.destination().to_string() };
    match route.gateway() {
        Some(gateway) => text.push_str(&format!(" via {gateway}")),
        None => text.push_str(" on-link"),
    }
    if let Some(metric) = route.metric() {
        text.push_str(&format!(" metric {metric}"));
    }
    text
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Configured => "configured",
            Self::Default => "default",
            Self::NothingToDo => "nothing to do",
            Self::Refused => "refused",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(platform) = &self.platform {
            let id = platform.id.as_deref().unwrap_or("unknown");
            writeln!(f, "platform      {} ({})", escaped(id), escaped(&platform.reason))?;
        }
        if let Some(drive) = &self.drive {
            write!(f, "drive         {}", escaped(&drive.path))?;
            if let (Some(file_system), Some(label)) = (&drive.file_system, &drive.label) {
                write!(f, ", {file_system} with label {}", escaped(label))?;
            }
            writeln!(f, ", {}", drive.layout.as_deref().unwrap_or("of no known layout"))?;
        }
        if let Some(document) = &self.document {
            let format = document.format.as_deref().unwrap_or("not recognised");
            writeln!(f, "document      {}, {format}, {} bytes", escaped(&document.path), document.size)?;
        }
        if !self.links.is_empty() {
            writeln!(f)?;
            links(f, &self.links)?;
        }
        if !self.nameservers.is_empty() {
            writeln!(f, "\nname servers  {}", self.nameservers.join(", "))?;
        }
        if !self.metadata.is_empty() {
            let width = self.metadata.keys().map(String::len).max().unwrap_or(0);
            writeln!(f, "\nmetadata")?;
            for (key, value) in &self.metadata {
                writeln!(f, "  {key:width$}  {value}")?;
            }
        }
        list(f, "diagnostics about the machine", &self.metadata_diagnostics)?;
        if !self.diagnostics.is_empty() {
            list(f, "diagnostics", &self.diagnostics)?;
            if self.further_diagnostics > 0 {
                writeln!(f, "  and {} more", self.further_diagnostics)?;
            }
        }
        if !self.arguments.is_empty() {
            writeln!(f, "\nkernel arguments")?;
            for argument in &self.arguments {
                writeln!(f, "  {}", escaped(argument))?;
            }
        }
        for WrittenFile { path, text } in &self.files {
            writeln!(f, "\n{path}")?;
            for line in text.lines() {
                writeln!(f, "{}{}", if line.is_empty() { "" } else { "  " }, escaped(line))?;
            }
        }
        writeln!(f, "\n{}: {}", self.outcome, escaped(&self.reason))
    }
}

fn list(f: &mut fmt::Formatter<'_>, title: &str, diagnostics: &[Diagnostic]) -> fmt::Result {
    if !diagnostics.is_empty() {
        writeln!(f, "\n{title}")?;
    }
    for diagnostic in diagnostics {
        writeln!(f, "  {:7}  {diagnostic}", diagnostic.severity)?;
    }
    Ok(())
}

/// Largest width of a column, in characters. A longer cell is not cut, for example the cell of a bridge with thousands
/// of ports.
const MAX_WIDTH: usize = 60;

fn links(f: &mut fmt::Formatter<'_>, links: &[LinkReport]) -> fmt::Result {
    let cell = |text: &str| vec![text.to_owned()];
    let mut rows = vec![["link", "device", "made of", "mtu", "addresses", "routes"].map(cell)];
    for link in links {
        let mut made_of = vec![link.made_of()];
        made_of.extend(link.options.iter().cloned());
        let other_mac_address = link.mac_address.iter().filter(|address| **address != link.device);
        made_of.extend(other_mac_address.map(|address| format!("mac {address}")));
        let mtu = cell(link.mtu.as_deref().unwrap_or("-"));
        rows.push([cell(&link.id), cell(&link.device), made_of, mtu, link.addresses.clone(), link.routes.clone()]);
    }
    f.write_str(&table(rows, MAX_WIDTH))
}
