//! The guest: from a command line and a drive to files that dracut reads.
//!
//! [`plan`] decides everything and writes nothing; [`apply`] writes what was decided. The steps, in their order: stand
//! aside where a person has configured the network at the boot loader; find out whether this is KubeVirt; find the
//! drive; read its document; render it.

pub mod attributes;
mod command_line;
pub mod hostname;
pub mod platform;
pub mod report;
pub mod ssh_keys;
pub mod storage;
pub mod system;

pub use command_line::CommandLine;

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use slog::{Logger, error, info, warn};

use crate::drive::MAX_FILE;
use crate::finding::{Findings, Severity};
use crate::formats::meta_data::MetaData;
use crate::formats::{self, Meaning};
use crate::network::NetworkConfig;
use crate::render::{Renderer, dracut};
use attributes::Attributes;
use platform::{Platform, Selection};
use report::{Document, Drive, LinkReport, Outcome, Report};
use storage::{Chain, Search, SearchError};
use system::System;

/// The fragment of the kernel command line that is written, below a root. dracut asks outside modules to use the numbers
/// 50 to 59, and reads the suffix `.conf` alone.
pub const FRAGMENT: &str = "etc/cmdline.d/50-glowplug-network-kargs.conf";

/// Where every outcome is recorded, below a root. `/run` survives the switch to the real root.
pub const PLAN: &str = "run/glowplug/plan.json";

/// The same as a page for a person, who may have nothing but `cat` at an emergency shell.
pub const PAGE: &str = "run/glowplug/plan.txt";

/// The longest that all kernel arguments together may be, in bytes: at 128 KiB even `root=` cannot be read any more.
const MAX_ALL_ARGUMENTS: usize = 96 * 1024;

/// What one run is asked to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the platform is to be found.
    pub selection: Selection,
    /// Where the document is.
    pub source: Source,
    /// The network program of the initramfs.
    pub renderer: Renderer,
    /// The distribution's arguments for a machine whose drive configures nothing. An error is why they are not there
    /// where they were required; it matters only where they are needed.
    pub default_value: Result<Option<DefaultValue>, String>,
    /// What a broken document means for the boot.
    pub on_error: OnError,
    /// How long to wait for a drive on a machine that is known to be KubeVirt.
    pub wait: Duration,
    /// The directory in which everything is read and written: `/` but in tests.
    pub root: PathBuf,
    /// Decide only. With a drive that is named, this machine is not looked at.
    pub dry_run: bool,
    /// Ask dracut to start the network in any case.
    pub neednet: bool,
}

/// Where the document is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// On a drive of this machine.
    Machine,
    /// On this drive: a directory, an image or a device.
    Drive(PathBuf),
    /// On this drive, or this file itself.
    DriveOrDocument(PathBuf),
}

/// What a broken document means for the boot.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnError {
    /// It fails.
    #[default]
    Fail,
    /// It goes on with the distribution's default.
    Default,
}

/// Kernel arguments from the distribution, in the alphabet of our own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DefaultValue(String);

/// How long to wait, in whole seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wait(u64);

/// A value that an option does not take.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OptionError {
    expected: &'static str,
}

/// What a run has decided.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What was found and decided.
    pub report: Report,
    /// The line to write, without a final newline.
    pub line: Option<String>,
}

/// A document with where it came from, or the reason why there is none.
struct Found {
    drive: Option<Drive>,
    document: Option<crate::drive::Document>,
    meta_data: MetaData,
    is_kubevirts: bool,
}

/// What is known of the machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// What its drive says about it.
    pub meta_data: MetaData,
    /// What others may ask.
    pub attributes: Attributes,
}

/// What an earlier run recorded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recorded {
    /// [`PLAN`]
    pub json: String,
    /// [`PAGE`]
    pub page: String,
    /// Whether that run was refused.
    pub is_refused: bool,
}

/// A run on its way to a decision.
struct Planner<'a> {
    options: Options,
    report: Report,
    /// What the drive says about the machine, as soon as one has been read.
    meta_data: Option<MetaData>,
    /// The network, and how the arguments call its links, as soon as it has been rendered.
    network: Option<(NetworkConfig, Vec<dracut::Device>)>,
    log: &'a Logger,
    system: &'a dyn System,
}

/// Why a run ends before there is a document to render.
enum Stop {
    NothingToDo(String),
    Default(String),
    Refused(String),
}

/// Asks who this machine is. `None` when it is not ours, or when there is no drive to ask.
///
/// # Errors
///
/// Why the drive cannot be read, as one sentence.
pub fn ask(options: &Options, system: &dyn System, log: &Logger) -> Result<Option<Machine>, String> {
    let mut planner = Planner::new(options, system, log);
    let decided = planner.command_line().and_then(|line| {
        let platform = planner.platform(&line)?;
        // A word that is none costs the network, not what the drive says about the machine.
        let _ = planner.override_options(&line);
        planner.read(platform, &line)
    });
    match (decided, planner.conclude()) {
        // Whatever became of the network: that is another unit's affair.
        (_, Some(machine)) => Ok(Some(machine)),
        (Err(Stop::NothingToDo(reason) | Stop::Default(reason)), None) => {
            info!(log, "nothing to do"; "reason" => reason);
            Ok(None)
        }
        (Err(Stop::Refused(reason)), None) => Err(reason),
        (Ok(_), None) => Ok(None),
    }
}

/// Decides what a boot needs. Nothing is written; drivers are loaded and drives mounted, where that is needed to know.
pub fn plan(options: &Options, system: &dyn System, log: &Logger) -> Plan {
    Planner::new(options, system, log).run()
}

/// Writes what was decided: the fragment, in one step, and the record of the run.
///
/// A fragment of an earlier run does not outlive its reason: it is removed where this run has none.
///
/// # Errors
///
/// Why the fragment could not be written. The record says so too.
pub fn apply(plan: &Plan, root: &Path, log: &Logger) -> io::Result<()> {
    let mut report = plan.report.clone();
    let path = root.join(FRAGMENT);
    let written = match &plan.line {
        Some(line) => write_in_one_step(&path, &format!("{line}\n")),
        None => match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        },
    };
    match &written {
        Ok(()) => report.fragment = plan.line.as_ref().map(|_| format!("/{FRAGMENT}")),
        Err(e) => {
            report.outcome = Outcome::Refused;
            report.reason = format!("writing /{FRAGMENT}: {e}");
        }
    }
    let json = serde_json::to_string_pretty(&report).map_err(io::Error::from);
    let recorded = json.and_then(|json| {
        write_in_one_step(&root.join(PAGE), &report.to_string())?;
        write_in_one_step(&root.join(PLAN), &format!("{json}\n"))
    });
    if let Err(e) = recorded {
        // It explains a boot; it does not decide it.
        warn!(log, "cannot record the plan"; "path" => format_args!("/{PLAN}"), "error" => %e);
    }
    written
}

/// Reads what an earlier run recorded. `None` when there was none.
///
/// # Errors
///
/// What the system says.
pub fn recorded(root: &Path) -> io::Result<Option<Recorded>> {
    let json = match fs::read_to_string(root.join(PLAN)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    // A member of the whole record, since no text of JSON has a line break. A record may be larger than any document.
    let is_refused = json.contains(&format!("\n  \"outcome\": \"{}\"", Outcome::Refused.word()));
    Ok(Some(Recorded { page: fs::read_to_string(root.join(PAGE))?, json, is_refused }))
}

/// Writes a file of mode 0644 such that nobody ever sees a part of it. Its directory is created when it is missing.
///
/// # Errors
///
/// What the system says; then the file is as it was.
pub fn write_in_one_step(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    // A name without the suffix `.conf`, so that nobody reads it half-written.
    let mut file = tempfile::Builder::new().prefix(".glowplug-").tempfile_in(directory)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

// === impl Options ===

impl Options {
    /// What most runs ask: write for NetworkManager, wait for nothing, have no default, and fail on an error.
    #[must_use]
    pub fn new(selection: Selection, source: Source, root: PathBuf) -> Self {
        let (renderer, default_value, on_error) = (Renderer::default(), Ok(None), OnError::Fail);
        let (wait, dry_run, neednet) = (Duration::ZERO, false, false);
        Self { selection, source, renderer, default_value, on_error, wait, root, dry_run, neednet }
    }
}

// === impl Planner ===

impl<'a> Planner<'a> {
    fn new(options: &Options, system: &'a dyn System, log: &'a Logger) -> Self {
        Self { options: options.clone(), report: Report::default(), meta_data: None, network: None, log, system }
    }

    fn run(mut self) -> Plan {
        let decided = self.command_line().and_then(|command_line| {
            if let Some(argument) = command_line.configures_network() {
                let reason = format!("the kernel command line configures the network with {argument}");
                return Err(Stop::NothingToDo(reason));
            }
            self.decide(&command_line)
        });
        let line = match decided {
            Ok(line) => {
                self.report.outcome = Outcome::Configured;
                Some(line)
            }
            Err(Stop::NothingToDo(reason)) => {
                self.report.outcome = Outcome::NothingToDo;
                self.report.reason = reason;
                None
            }
            Err(Stop::Default(reason)) => self.use_default(reason),
            Err(Stop::Refused(reason)) if self.options.on_error == OnError::Default => {
                error!(self.log, "cannot use the drive's network"; "reason" => %reason);
                self.use_default(format!("{reason}; the default was asked for in this case"))
            }
            Err(Stop::Refused(reason)) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = reason;
                None
            }
        };
        self.report.arguments =
            line.iter().flat_map(|line: &String| line.split_ascii_whitespace()).map(str::to_owned).collect();
        if let Some(machine) = self.conclude() {
            self.report.metadata = machine.attributes.by_key();
        }
        self.say();
        Plan { report: self.report, line }
    }

    fn decide(&mut self, command_line: &CommandLine) -> Result<String, Stop> {
        let platform = self.platform(command_line)?;
        self.override_options(command_line)?;
        self.read(platform, command_line)
    }

    fn read(&mut self, platform: Platform, command_line: &CommandLine) -> Result<String, Stop> {
        let found = self.find(platform)?;
        self.report.drive = found.drive;
        self.meta_data = Some(found.meta_data);
        let Some(document) = found.document else {
            return Err(Stop::Default("the drive has no network configuration".to_owned()));
        };
        let line = self.render(&document)?;
        self.report.reason = format!("{} says so", document.path);
        let already = command_line.length() + self.other_fragments();
        if already + line.len() > MAX_ALL_ARGUMENTS {
            let reason = format!(
                "kernel arguments: {} bytes beside the {already} that are there, expected at most {MAX_ALL_ARGUMENTS}",
                line.len()
            );
            return Err(Stop::Refused(reason));
        }
        Ok(line)
    }

    /// Puts together what is known of the machine, whatever became of its network.
    fn conclude(&mut self) -> Option<Machine> {
        let mut meta_data = self.meta_data.take()?;
        self.report.metadata_findings = std::mem::take(&mut meta_data.findings);
        let network = self.network.as_ref().map(|(network, devices)| (network, devices.as_slice()));
        let mut findings = Findings::default();
        // In the initramfs there are no cards yet, and a drive that a person names is not about this machine's.
        let cards = if self.looks_elsewhere() { Vec::new() } else { attributes::cards(&self.options.root) };
        let attributes = Attributes::of(&meta_data, network, &cards, &mut findings);
        for finding in findings.kept() {
            warn!(self.log, "warning about the machine's document"; "finding" => %finding);
        }
        self.report.metadata_findings.extend(findings.into_parts().0);
        Some(Machine { meta_data, attributes })
    }

    /// A drive that a person names for a look says nothing about the machine on which it is looked at.
    fn looks_elsewhere(&self) -> bool {
        self.options.dry_run && self.options.source != Source::Machine
    }

    fn command_line(&self) -> Result<CommandLine, Stop> {
        if self.looks_elsewhere() {
            return Ok(CommandLine::default());
        }
        CommandLine::read_from(&self.options.root).map_err(|e| Stop::Refused(format!("reading /proc/cmdline: {e}")))
    }

    /// A person at a boot loader has no other switch.
    fn override_options(&mut self, command_line: &CommandLine) -> Result<(), Stop> {
        fn read<T: FromStr<Err: fmt::Display>>(line: &CommandLine, key: &str) -> Result<Option<T>, Stop> {
            let Some(value) = line.value(key) else { return Ok(None) };
            value.parse().map(Some).map_err(|e| Stop::Refused(format!("kernel command line: {key}={value}: {e}")))
        }
        if let Some(wait) = read::<Wait>(command_line, "glowplug.wait")? {
            self.options.wait = wait.into();
        }
        if let Some(on_error) = read(command_line, "glowplug.on-error")? {
            self.options.on_error = on_error;
        }
        if let Some(renderer) = read(command_line, "glowplug.renderer")? {
            self.options.renderer = renderer;
        }
        Ok(())
    }

    /// The platform, unless it is known not to be ours.
    fn platform(&mut self, command_line: &CommandLine) -> Result<Platform, Stop> {
        let platform = match &self.options.selection {
            // What would tell is this machine's.
            Selection::CommandLine | Selection::Detect if self.looks_elsewhere() => {
                Platform::kubevirt("the drive was named")
            }
            selection => Platform::of(selection, command_line, &self.options.root),
        };
        self.report.platform = Some(platform.clone());
        let may_be_ours =
            platform.is_kubevirt() || (platform.id.is_none() && self.options.selection == Selection::Detect);
        if may_be_ours { Ok(platform) } else { Err(not_ours(&platform)) }
    }

    fn find(&mut self, platform: Platform) -> Result<Found, Stop> {
        let known = platform.is_kubevirt();
        let found = match self.options.source.clone() {
            Source::Machine => self.search(known)?,
            Source::Drive(path) => Some(self.read_path(&path, false)?),
            Source::DriveOrDocument(path) => Some(self.read_path(&path, true)?),
        };
        match found {
            Some(found) if known => Ok(found),
            Some(found) if found.is_kubevirts => {
                self.report.platform = Some(Platform::kubevirt("the drive has the shape that KubeVirt gives it"));
                Ok(found)
            }
            None if known => {
                let waited = self.options.wait.as_secs();
                Err(Stop::Default(format!("no config drive was there within {waited} s")))
            }
            _ => Err(not_ours(&platform)),
        }
    }

    fn search(&mut self, known: bool) -> Result<Option<Found>, Stop> {
        let search = Search {
            root: &self.options.root,
            system: self.system,
            log: self.log,
            machine_known: known,
            wait: self.options.wait,
            poll: Search::POLL,
        };
        let found = search.run().map_err(|e| Stop::Refused(Chain(&e).to_string()))?;
        Ok(found.map(|found| {
            let drive = Drive {
                path: found.device.display().to_string(),
                file_system: Some(found.volume.file_system.to_string()),
                label: Some(found.volume.label),
                layout: found.drive.as_ref().map(|drive| drive.layout.to_string()),
                reason: found.why.to_string(),
                waited_ms: u64::try_from(found.waited.as_millis()).unwrap_or(u64::MAX),
            };
            // On a machine that nobody knows, no other drive is found.
            let document = found.drive.and_then(|drive| drive.network);
            Found { drive: Some(drive), document, meta_data: found.meta_data, is_kubevirts: true }
        }))
    }

    fn read_path(&mut self, path: &Path, or_document: bool) -> Result<Found, Stop> {
        match storage::read_path(path, self.log) {
            Ok(given) => {
                let is_kubevirts = given.has_shape();
                let drive = Drive {
                    path: path.display().to_string(),
                    file_system: given.volume.as_ref().map(|volume| volume.file_system.to_string()),
                    label: given.volume.map(|volume| volume.label),
                    layout: Some(given.drive.layout.to_string()),
                    reason: "named".to_owned(),
                    waited_ms: 0,
                };
                let (document, meta_data) = (given.drive.network, given.meta_data);
                Ok(Found { drive: Some(drive), document, meta_data, is_kubevirts })
            }
            Err(SearchError::NoDrive { .. }) if or_document && path.is_file() => {
                let bytes =
                    read_document(path).map_err(|e| Stop::Refused(format!("reading {}: {e}", path.display())))?;
                let document = crate::drive::Document { path: path.display().to_string(), bytes };
                let (document, meta_data) = (Some(document), MetaData::default());
                Ok(Found { drive: None, document, meta_data, is_kubevirts: false })
            }
            Err(e) => Err(Stop::Refused(Chain(&e).to_string())),
        }
    }

    fn render(&mut self, document: &crate::drive::Document) -> Result<String, Stop> {
        let reading = formats::read_network(&document.bytes);
        self.report.document = Some(Document {
            path: document.path.clone(),
            format: reading.format.map(|format| format.to_string()),
            size: document.bytes.len(),
        });
        let mut findings = reading.findings;
        let line = match reading.meaning {
            Meaning::Refused => Err(Stop::Refused(String::new())),
            Meaning::Disabled => Err(Stop::NothingToDo(format!("{} disables the network", document.path))),
            Meaning::Unconfigured => Err(Stop::Default(format!("{} configures nothing", document.path))),
            Meaning::Network(network) => {
                let rendered = dracut::render(&network, &mut findings);
                if rendered.kargs.is_empty() && !findings.has_errors() {
                    (self.report.findings, self.report.further_findings) = findings.into_parts();
                    return Err(Stop::Default(format!("{} configures nothing", document.path)));
                }
                let called = |link: crate::network::LinkIndex| rendered.devices[link.0].bare();
                self.report.links = LinkReport::of(&network, &called);
                self.report.nameservers = network.nameservers.iter().map(ToString::to_string).collect();
                let mut line = dracut::line(&rendered.kargs);
                if self.options.neednet {
                    line.push_str(" rd.neednet=1");
                }
                self.network = Some((network, rendered.devices));
                Ok(line)
            }
        };
        let errors = findings.errors();
        (self.report.findings, self.report.further_findings) = findings.into_parts();
        if errors > 0 {
            return Err(Stop::Refused(format!("{}: {errors} {}", document.path, plural(errors, "error", "errors"))));
        }
        line
    }

    fn use_default(&mut self, reason: String) -> Option<String> {
        let value = match &self.options.default_value {
            Ok(value) => value.as_ref().map(|value| value.0.trim_ascii().to_owned()),
            Err(missing) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = format!("{reason}, and the default is missing: {missing}");
                return None;
            }
        };
        self.report.outcome = Outcome::Default;
        self.report.reason = reason;
        value.filter(|value| !value.is_empty())
    }

    fn other_fragments(&self) -> usize {
        if self.looks_elsewhere() {
            return 0;
        }
        let own = self.options.root.join(FRAGMENT);
        let Some(entries) = own.parent().and_then(|directory| fs::read_dir(directory).ok()) else { return 0 };
        let others = entries.flatten().filter(|entry| {
            entry.path() != own && entry.path().extension().is_some_and(|extension| extension == "conf")
        });
        others.filter_map(|entry| usize::try_from(entry.metadata().ok()?.len()).ok()).sum()
    }

    fn say(&self) {
        let report = &self.report;
        for finding in &report.findings {
            match finding.severity {
                Severity::Error => error!(self.log, "error in the network document"; "finding" => %finding),
                Severity::Warning => warn!(self.log, "warning about the network document"; "finding" => %finding),
            }
        }
        if report.further_findings > 0 {
            warn!(self.log, "further findings in the network document"; "count" => report.further_findings);
        }
        let reason = report.reason.as_str();
        let arguments = report.arguments.join(" ");
        let drive = report.drive.as_ref().map_or("", |drive| drive.path.as_str());
        match report.outcome {
            Outcome::Configured => {
                let document = report.document.as_ref().map_or("", |document| document.path.as_str());
                info!(self.log, "configured the network from the config drive";
                    "drive" => drive, "document" => document, "arguments" => arguments);
            }
            Outcome::Default => {
                info!(self.log, "left the network to the default"; "reason" => reason, "arguments" => arguments);
            }
            Outcome::NothingToDo => info!(self.log, "nothing to do"; "reason" => reason),
            Outcome::Refused => error!(self.log, "refused to configure the network"; "reason" => reason),
        }
    }
}

fn not_ours(platform: &Platform) -> Stop {
    Stop::NothingToDo(format!("this is not known to be KubeVirt: {}", platform.reason))
}

/// The document of a person, who may name a pipe or a directory by mistake.
fn read_document(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than is taken, so that the reader of documents says what is wrong with a longer one.
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX).saturating_add(1);
    fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn plural(count: usize, one: &'static str, many: &'static str) -> &'static str {
    if count == 1 { one } else { many }
}

// === impl OnError, DefaultValue, Wait, OptionError ===

impl FromStr for OnError {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        match text {
            "fail" => Ok(Self::Fail),
            "default" => Ok(Self::Default),
            _ => Err(OptionError { expected: "fail or default" }),
        }
    }
}

impl FromStr for DefaultValue {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        if dracut::is_legal(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(OptionError { expected: "kernel arguments of letters, digits, blanks and . _ : [ ] , / = + -" })
        }
    }
}

impl FromStr for Wait {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        text.parse().map(Self).map_err(|_| OptionError { expected: "a whole number of seconds" })
    }
}

impl From<Wait> for Duration {
    fn from(Wait(seconds): Wait) -> Self {
        Self::from_secs(seconds)
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.expected)
    }
}

impl std::error::Error for OptionError {}
