//! Decides which kernel arguments and files a run writes, based on the kernel command line, the platform and the drive.

mod find;

use std::fmt;
use std::str::FromStr;

use slog::{Logger, debug, error, info, warn};

use super::attributes::{self, Attributes};
use super::command_line::{Arguments, CommandLine};
use super::options::{DefaultValue, OnError, Options, Source, Wait};
use super::platform::{Platform, Selection};
use super::recorded::recorded;
use super::report::{Document, LinkReport, Outcome, Report, WrittenFile};
use super::storage::Chain;
use super::system::System;
#[cfg(feature = "vmware")]
use super::vmware;
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::drive;
use crate::formats::meta_data::MetaData;
use crate::formats::{self, Meaning};
use crate::network::{Link, NetworkConfig};
use crate::render::networkd::{self, File};
use crate::render::{Device, Renderer, dracut, network_legacy, network_manager_profiles};

/// Path of the file with the kernel arguments, below a root. dracut reserves the numbers 50 to 59 for external modules
/// and reads only files with the suffix `.conf`.
pub const FRAGMENT: &str = "etc/cmdline.d/50-glowplug-network-kargs.conf";

/// Largest size of all kernel arguments together, in bytes. Above 128 KiB dracut can read no argument, not even
/// `root=`.
const MAX_ALL_ARGUMENTS: usize = 96 * 1024;

/// Decisions of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Results and decisions of the run.
    pub report: Report,
    /// Files and kernel arguments to write.
    pub output: Output,
}

/// Files and kernel arguments that a plan writes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Kernel arguments, as one line without a final newline. `None` if there are none.
    pub line: Option<String>,
    /// Files for a network program that does not read kernel arguments.
    pub files: Vec<File>,
}

/// Data about this machine, from its drive.
#[derive(Clone, Debug, Default)]
pub struct MachineData {
    /// Metadata from the drive.
    pub meta_data: MetaData,
    /// Attributes that units and people may request.
    pub attributes: Attributes,
}

/// State of a run while it makes its decisions.
struct Planner<'a> {
    options: Options,
    report: Report,
    /// Metadata of the drive; `None` until a drive has been read.
    meta_data: Option<MetaData>,
    /// The network and how the output identifies its links; `None` until the network has been rendered.
    network: Option<(NetworkConfig, Vec<Device>)>,
    /// Whether the run uses the metadata of the drive.
    uses_metadata: bool,
    /// Kernel arguments of the boot loader and of the image, without those of an earlier run.
    arguments: Arguments,
    /// Diagnostics about networks that the run does not read, on its drive and on other drives.
    other_networks: Vec<Diagnostic>,
    log: &'a Logger,
    system: &'a dyn System,
}

/// Reason why a run uses no document.
enum Stop {
    NothingToDo(String),
    Default(String),
    Refused(String),
}

/// Reads the data about this machine from its drive. `None` when the machine is not supported, or when it has no drive.
///
/// # Errors
///
/// One sentence with the reason why the drive cannot be read.
pub fn machine_data(options: &Options, system: &dyn System, log: &Logger) -> Result<Option<MachineData>, String> {
    let mut planner = Planner { uses_metadata: true, ..Planner::new(options, system, log) };
    // The renderer decides the names of VLANs and NICs. A damaged report affects only these names.
    if let Ok(Some(recorded)) = recorded(&options.root) {
        planner.options.renderer = recorded.renderer.unwrap_or(options.renderer);
    }
    let decided = planner.read_arguments().and_then(|()| {
        let platform = planner.platform()?;
        // An invalid option affects the network only, so its error is ignored here. `glowplug.wait=` applies only to
        // the unit that configures the network: later units do not wait for the drive.
        let _ = planner.override_options();
        planner.read(platform)
    });
    match (decided, planner.conclude()) {
        // Errors of the network do not matter here: the unit that configures the network reports them.
        (_, Some(machine)) => Ok(Some(machine)),
        (Err(Stop::NothingToDo(reason) | Stop::Default(reason)), None) => {
            info!(log, "nothing to do"; "reason" => reason);
            Ok(None)
        }
        (Err(Stop::Refused(reason)), None) => Err(reason),
        (Ok(_), None) => Ok(None),
    }
}

/// Decides what to write for this boot. Writes nothing, but may load drivers and mount drives to read them.
pub fn plan(options: &Options, system: &dyn System, log: &Logger) -> Plan {
    Planner::new(options, system, log).run()
}

// === impl Output ===

impl fmt::Display for Output {
    /// Prints the kernel arguments, then each file below its path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = &self.line {
            writeln!(f, "{line}")?;
        }
        for (at, File { path, text, .. }) in self.files.iter().enumerate() {
            let gap = if at == 0 && self.line.is_none() { "" } else { "\n" };
            write!(f, "{gap}# /{path}\n{text}")?;
        }
        Ok(())
    }
}

// === impl Planner ===

impl<'a> Planner<'a> {
    fn new(options: &Options, system: &'a dyn System, log: &'a Logger) -> Self {
        let (report, arguments, other_networks) = (Report::default(), Arguments::default(), Vec::new());
        let options = options.clone();
        let (meta_data, network, uses_metadata) = (None, None, false);
        Self { options, report, meta_data, network, uses_metadata, arguments, other_networks, log, system }
    }

    fn run(mut self) -> Plan {
        let decided = self.read_arguments().and_then(|()| match self.arguments.configures_network() {
            Some(reason) => Err(Stop::NothingToDo(reason)),
            None => self.decide(),
        });
        let output = match decided {
            Ok(output) => {
                self.report.outcome = Outcome::Configured;
                output
            }
            Err(Stop::NothingToDo(reason)) => {
                self.report.outcome = Outcome::NothingToDo;
                self.report.reason = reason;
                Output::default()
            }
            Err(Stop::Default(reason)) => {
                self.report_other_networks();
                self.use_default(reason)
            }
            Err(Stop::Refused(reason)) if self.options.on_error == OnError::Default => {
                error!(self.log, "cannot use the drive's network"; "reason" => %reason);
                self.use_default(format!("{reason}; the default is used as requested"))
            }
            Err(Stop::Refused(reason)) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = reason;
                Output::default()
            }
        };
        self.report.renderer = self.options.renderer.to_string();
        let words = output.line.iter().flat_map(|line| line.split_ascii_whitespace());
        self.report.arguments = words.map(str::to_owned).collect();
        self.report.files = output.files.iter().map(WrittenFile::of).collect();
        if let Some(machine) = self.conclude() {
            self.report.metadata = machine.attributes.by_key();
        }
        self.log_outcome();
        Plan { report: self.report, output }
    }

    fn decide(&mut self) -> Result<Output, Stop> {
        let platform = self.platform()?;
        self.override_wait()?;
        self.override_options()?;
        self.read(platform)
    }

    fn read(&mut self, platform: Platform) -> Result<Output, Stop> {
        #[cfg(feature = "vmware")]
        if let Source::Property(value) = self.options.source.clone() {
            return self.property(value);
        }
        let found = self.find(platform)?;
        self.report.drive = found.drive;
        self.meta_data = Some(found.meta_data);
        self.other_networks = found.other_networks;
        let document = found.document.map_err(|e| Stop::Refused(Chain(&e).to_string()))?;
        let Some(document) = document else {
            return Err(Stop::Default("the drive has no network configuration".to_owned()));
        };
        let output = self.render(&document)?;
        self.within_limits(output, &document.path)
    }

    /// Returns the output of a document, or an error if all kernel arguments together would be too long.
    fn within_limits(&mut self, output: Output, document: &str) -> Result<Output, Stop> {
        self.report.reason = format!("by {document}");
        let length = output.line.as_ref().map_or(0, String::len);
        let already = self.arguments.length();
        if length > 0 && already + length > MAX_ALL_ARGUMENTS {
            let reason = format!(
                "kernel arguments: {length} bytes in addition to {already} existing bytes, expected at most {MAX_ALL_ARGUMENTS}"
            );
            return Err(Stop::Refused(reason));
        }
        Ok(output)
    }

    /// Reads the kernel arguments from a property of the machine.
    #[cfg(feature = "vmware")]
    fn property(&mut self, value: Result<Option<Vec<u8>>, String>) -> Result<Output, Stop> {
        let name = vmware::PROPERTY;
        let value = value.map_err(|e| Stop::Refused(format!("reading {name}: {e}")))?;
        let Some(bytes) = value else { return Err(Stop::Default(format!("{name} is not set"))) };
        self.report.document = Some(Document { path: name.to_owned(), format: None, size: bytes.len() });
        let mut diagnostics = Diagnostics::default();
        let line = vmware::arguments(&bytes, &mut diagnostics);
        let errors = diagnostics.errors();
        (self.report.diagnostics, self.report.further_diagnostics) = diagnostics.into_parts();
        let Some(line) = line else {
            return Err(Stop::Refused(format!("{name}: {errors} {}", plural(errors, "error", "errors"))));
        };
        self.within_limits(Output { line: Some(line), files: Vec::new() }, name)
    }

    /// Collects the data about the machine, even if its network is invalid. `None` when no drive was read.
    fn conclude(&mut self) -> Option<MachineData> {
        let mut meta_data = self.meta_data.take()?;
        self.report.metadata_diagnostics = std::mem::take(&mut meta_data.diagnostics);
        let network = self.network.as_ref().map(|(network, devices)| (network, devices.as_slice()));
        let mut diagnostics = Diagnostics::default();
        // In the initramfs, a NIC may be missing here, because the kernel lists some NICs only later. A drive that a
        // person names for a dry run may belong to another machine, so the NICs of this machine are not used.
        let nics = if self.looks_elsewhere() { Vec::new() } else { attributes::nics(&self.options.root) };
        let attributes = Attributes::of(&meta_data, network, &nics, &mut diagnostics);
        for diagnostic in diagnostics.kept() {
            warn!(self.log, "warning about the machine's document"; "diagnostic" => %diagnostic);
        }
        self.report.metadata_diagnostics.extend(diagnostics.into_parts().0);
        Some(MachineData { meta_data, attributes })
    }

    /// Whether this is a dry run whose input is not a config drive of this machine. Such a run does not read the kernel
    /// arguments and the NICs of this machine.
    fn looks_elsewhere(&self) -> bool {
        self.options.dry_run && self.options.source != Source::Machine
    }

    fn read_arguments(&mut self) -> Result<(), Stop> {
        if !self.looks_elsewhere() {
            let read = Arguments::read_from(&self.options.root, FRAGMENT);
            self.arguments = read.map_err(|e| Stop::Refused(format!("reading {e}")))?;
        }
        Ok(())
    }

    /// Takes the time to wait from the kernel command line, if it is set there.
    fn override_wait(&mut self) -> Result<(), Stop> {
        if let Some(wait) = option_of::<Wait>(&self.arguments.command_line, "glowplug.wait")? {
            self.options.wait = wait.into();
        }
        Ok(())
    }

    /// Takes the other options from the kernel command line, where a user can set them at the boot loader.
    fn override_options(&mut self) -> Result<(), Stop> {
        let command_line = &self.arguments.command_line;
        self.options.any_drive |= command_line.has_switch("glowplug.any-drive");
        if let Some(on_error) = option_of(command_line, "glowplug.on-error")? {
            self.options.on_error = on_error;
        }
        if let Some(renderer) = option_of(command_line, "glowplug.renderer")? {
            self.options.renderer = renderer;
        }
        Ok(())
    }

    /// Decides the platform. Returns an error if the platform is not KubeVirt, with two exceptions: the source is a
    /// property, or the platform is unknown and the drive may still decide it.
    fn platform(&mut self) -> Result<Platform, Stop> {
        let platform = match &self.options.selection {
            // The kernel command line and DMI describe this machine, not the machine of the named drive.
            Selection::CommandLine | Selection::Detect if self.looks_elsewhere() => {
                Platform::kubevirt("the drive was named")
            }
            selection => Platform::of(selection, &self.arguments.command_line, &self.options.root),
        };
        debug!(self.log, "decided the platform"; "platform" => platform.id.as_deref().unwrap_or("unknown"),
            "reason" => &platform.reason);
        self.report.platform = Some(platform.clone());
        #[cfg(feature = "vmware")]
        if matches!(self.options.source, Source::Property(_)) {
            return Ok(platform);
        }
        let may_be_ours =
            platform.is_kubevirt() || (platform.id.is_none() && self.options.selection == Selection::Detect);
        if may_be_ours { Ok(platform) } else { Err(not_kubevirt(&platform, "")) }
    }

    fn render(&mut self, document: &drive::Document) -> Result<Output, Stop> {
        let reading = formats::read_network(&document.bytes);
        self.report.document = Some(Document {
            path: document.path.clone(),
            format: reading.format.map(|format| format.to_string()),
            size: document.bytes.len(),
        });
        let mut diagnostics = reading.diagnostics;
        let output = self.rendered(reading.meaning, document, &mut diagnostics);
        for diagnostic in diagnostics.details() {
            debug!(self.log, "detail of the network document"; "diagnostic" => %diagnostic);
        }
        let errors = diagnostics.errors();
        (self.report.diagnostics, self.report.further_diagnostics) = diagnostics.into_parts();
        if errors > 0 {
            return Err(Stop::Refused(format!("{}: {errors} {}", document.path, plural(errors, "error", "errors"))));
        }
        output
    }

    fn rendered(
        &mut self,
        meaning: Meaning,
        document: &drive::Document,
        diagnostics: &mut Diagnostics,
    ) -> Result<Output, Stop> {
        match meaning {
            Meaning::Refused => Err(Stop::Refused(String::new())),
            Meaning::Disabled => Err(Stop::NothingToDo(format!("{} disables the network", document.path))),
            Meaning::Unconfigured => Err(Stop::Default(format!("{} configures nothing", document.path))),
            Meaning::Network(mut network) => {
                self.leave_out_absent(&mut network, diagnostics);
                network.given_names = self.arguments.given_names();
                let (mut output, devices) = self.output(&network, diagnostics);
                if output == Output::default() && network.states_no_addresses() {
                    return Err(Stop::NothingToDo(format!("{} requests no addresses", document.path)));
                }
                if output == Output::default() {
                    return Err(Stop::Default(format!("{} configures nothing", document.path)));
                }
                let called = |link: crate::network::LinkIndex| devices[link.0].bare();
                self.report.links = LinkReport::of(&network, &called);
                self.report.nameservers = network.nameservers().iter().map(ToString::to_string).collect();
                // dracut's own scripts set up only NICs that something waits for. Without rd.neednet=1 there may be no
                // such NIC.
                if self.options.neednet || self.options.renderer == Renderer::NetworkLegacy {
                    let line = output.line.as_deref().map_or_else(String::new, |line| format!("{line} "));
                    output.line = Some(line + "rd.neednet=1");
                }
                self.network = Some((network, devices));
                Ok(output)
            }
        }
    }

    /// Leaves out each NIC without addresses if no NIC of the machine has its name now. NetworkManager would wait 60
    /// seconds for a NIC with this name.
    fn leave_out_absent(&self, network: &mut NetworkConfig, diagnostics: &mut Diagnostics) {
        if self.looks_elsewhere() || self.options.renderer != Renderer::NetworkManager {
            return;
        }
        let directory = self.options.root.join("sys/class/net");
        for (index, name) in network.quiet_names() {
            if !directory.join(name.as_str()).exists() {
                network.forget_without_addresses(index);
                let expected = "the name of a NIC that exists in the initramfs, or a MAC address: NetworkManager may \
                                use DHCP on this NIC";
                let path = &network.link(index).path;
                diagnostics.push(Diagnostic::warning(path, "absent NIC without addresses", name, expected));
            }
        }
    }

    /// Renders the network for the network program of the initramfs.
    fn output(&self, network: &NetworkConfig, diagnostics: &mut Diagnostics) -> (Output, Vec<Device>) {
        let render = match self.options.renderer {
            Renderer::NetworkManager => dracut::render,
            Renderer::NetworkLegacy => network_legacy::render,
            Renderer::SystemdNetworkd => {
                let networkd::Rendered { files, devices } = networkd::render(network, diagnostics);
                return (Output { line: None, files: requested(network, files) }, devices);
            }
            Renderer::NetworkManagerProfiles => {
                let network_manager_profiles::Rendered { line, files, devices } =
                    network_manager_profiles::render(network, diagnostics);
                let files = requested(network, files);
                let line = Some(line).filter(|line| !line.is_empty() && !files.is_empty());
                return (Output { line, files }, devices);
            }
        };
        let dracut::Rendered { line, devices, .. } = render(network, diagnostics);
        (Output { line: Some(line).filter(|line| !line.is_empty()), files: Vec::new() }, devices)
    }

    /// Adds a diagnostic for each unread network on the drive of a machine that gets the default arguments. These
    /// diagnostics are errors if the default arguments are required but missing.
    fn report_other_networks(&mut self) {
        let severity = if self.options.default_value.is_err() { Severity::Error } else { Severity::Warning };
        let others = std::mem::take(&mut self.other_networks).into_iter();
        self.report.diagnostics.extend(others.map(|diagnostic| Diagnostic { severity, ..diagnostic }));
    }

    fn use_default(&mut self, reason: String) -> Output {
        let line = match &self.options.default_value {
            Ok(value) => value.as_ref().and_then(DefaultValue::line),
            Err(missing) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = format!("{reason}, and the default is missing: {missing}");
                return Output::default();
            }
        };
        self.report.outcome = Outcome::Default;
        self.report.reason = reason;
        Output { line, files: Vec::new() }
    }

    fn log_outcome(&self) {
        let report = &self.report;
        for diagnostic in &report.diagnostics {
            match diagnostic.severity {
                Severity::Error => error!(self.log, "error in the network document"; "diagnostic" => %diagnostic),
                Severity::Warning => warn!(self.log, "warning about the network document"; "diagnostic" => %diagnostic),
                Severity::Debug => debug!(self.log, "detail of the network document"; "diagnostic" => %diagnostic),
            }
        }
        if report.further_diagnostics > 0 {
            warn!(self.log, "further diagnostics in the network document"; "count" => report.further_diagnostics);
        }
        let reason = report.reason.as_str();
        let files = report.files.iter().map(|file| file.path.as_str());
        let arguments: Vec<&str> = report.arguments.iter().map(String::as_str).chain(files).collect();
        let arguments = arguments.join(" ");
        let drive = report.drive.as_ref().map_or("", |drive| drive.path.as_str());
        match report.outcome {
            Outcome::Configured => {
                let document = report.document.as_ref().map_or("", |document| document.path.as_str());
                info!(self.log, "read the network of the config drive";
                    "drive" => drive, "document" => document, "arguments" => arguments);
            }
            Outcome::Default => {
                info!(self.log, "used the default arguments of the distribution"; "reason" => reason, "arguments" => arguments);
            }
            Outcome::NothingToDo => info!(self.log, "nothing to do"; "reason" => reason),
            Outcome::Refused => error!(self.log, "refused to configure the network"; "reason" => reason),
        }
    }
}

/// Returns the files of a network. If no link has settings, returns no files: they would only keep NICs from using the
/// default arguments. Exception: a document that states that links get no address needs its files.
fn requested(network: &NetworkConfig, files: Vec<File>) -> Vec<File> {
    if network.links().iter().any(Link::asks) || network.states_no_addresses() { files } else { Vec::new() }
}

/// Parses an option of the kernel command line. `None` when the option is not set.
fn option_of<T: FromStr<Err: fmt::Display>>(line: &CommandLine, key: &str) -> Result<Option<T>, Stop> {
    let Some(value) = line.value(key) else { return Ok(None) };
    value.parse().map(Some).map_err(|e| Stop::Refused(format!("kernel command line: {key}={value}: {e}")))
}

fn not_kubevirt(platform: &Platform, further: &str) -> Stop {
    Stop::NothingToDo(format!("this is not known to be KubeVirt: {}{further}", platform.reason))
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}
