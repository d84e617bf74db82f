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
#[cfg(feature = "vmware")]
pub mod vmware;

pub use command_line::CommandLine;

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use slog::{Logger, debug, error, info, warn};

use crate::drive::MAX_FILE;
use crate::finding::{Finding, Findings, Severity};
use crate::formats::meta_data::MetaData;
use crate::formats::{self, Meaning};
use crate::network::{Link, NetworkConfig};
use crate::render::networkd::{self, File};
use crate::render::{Device, Renderer, dracut, network_legacy};
use attributes::Attributes;
use platform::{Platform, Selection};
use report::{Document, Drive, LinkReport, Outcome, Report, WrittenFile};
use storage::{Chain, Search, SearchError};
use system::System;

/// The fragment of the kernel command line that is written, below a root. dracut asks outside modules to use the numbers
/// 50 to 59, and reads the suffix `.conf` alone.
pub const FRAGMENT: &str = "etc/cmdline.d/50-glowplug-network-kargs.conf";

/// What the names of files begin with that are not written to their end. Without a suffix nobody reads them.
const UNFINISHED_PREFIX: &str = ".glowplug-";

/// Whatever a run may leave, below a root: a directory, and what the names of our files there begin with.
const LEFT_BEHIND: [(&str, &str); 6] = [
    ("etc/cmdline.d", UNFINISHED_PREFIX),
    ("etc/cmdline.d", "50-glowplug-network-kargs.conf"),
    ("run/systemd/network", UNFINISHED_PREFIX),
    ("run/systemd/network", networkd::PREFIXES[0]),
    ("run/systemd/network", networkd::PREFIXES[1]),
    ("run/glowplug", UNFINISHED_PREFIX),
];

/// Where every outcome is recorded, below a root. `/run` survives the switch to the real root.
pub const PLAN: &str = "run/glowplug/plan.json";

/// The same as a page for a person, who may have nothing but `cat` at an emergency shell.
pub const PAGE: &str = "run/glowplug/plan.txt";

/// The longest that all kernel arguments together may be, in bytes: at 128 KiB even `root=` cannot be read any more.
const MAX_ALL_ARGUMENTS: usize = 96 * 1024;

/// The longest that all files for systemd-networkd together may be, in bytes. They are in memory, and so is the record.
const MAX_ALL_FILES: usize = 1024 * 1024;

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
    /// Whether to take the drive of another machine where this machine's own is not there.
    pub any_drive: bool,
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
    /// Standard input.
    StandardInput,
    /// In a property of the machine, which has been read, or why it cannot be read.
    #[cfg(feature = "vmware")]
    Property(Result<Option<Vec<u8>>, String>),
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
    /// What is to be written.
    pub output: Output,
}

/// What is to be written.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Kernel arguments, as one line without a final newline.
    pub line: Option<String>,
    /// Files for a network program that reads no kernel arguments.
    pub files: Vec<File>,
}

/// A document with where it came from, or why it cannot be read.
struct Found {
    drive: Option<Drive>,
    document: Result<Option<crate::drive::Document>, SearchError>,
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
    network: Option<(NetworkConfig, Vec<Device>)>,
    log: &'a Logger,
    system: &'a dyn System,
}

/// Why a run ends before there is a document to render.
enum Stop {
    NothingToDo(String),
    Default(String),
    Refused(String),
}

/// Reads who this machine is. `None` when it is not ours, or when there is no drive to ask.
///
/// # Errors
///
/// Why the drive cannot be read, as one sentence.
pub fn machine(options: &Options, system: &dyn System, log: &Logger) -> Result<Option<Machine>, String> {
    let mut planner = Planner::new(options, system, log);
    let decided = planner.command_line().and_then(|line| {
        let platform = planner.platform(&line)?;
        // An invalid option costs the network, not what the drive says about the machine. How long to wait is for the unit
        // that configures the network: the units after it find the drive or do not.
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

/// Writes what was decided, each file in one step, and the record of the run.
///
/// What an earlier run wrote does not outlive its reason: it is removed first, but for the arguments, which are replaced.
/// A run that is ended on its way leaves no record, and the next one is as if it had not been.
///
/// # Errors
///
/// What could not be written or removed. The record says so too. A part of a network is none, so nothing is left then.
pub fn apply(plan: &Plan, root: &Path, log: &Logger) -> io::Result<()> {
    let mut report = plan.report.clone();
    // Where that fails, and a new one cannot be written either, it is said below.
    let _ = remove(&root.join(PLAN));
    let written = plan.output.write(root);
    debug!(log, "wrote what was decided"; "outcome" => written.as_ref().err().map_or("done".to_owned(), io::Error::to_string));
    match &written {
        Ok(()) => report.fragment = plan.output.line.as_ref().map(|_| format!("/{FRAGMENT}")),
        Err(e) => {
            report.outcome = Outcome::Refused;
            report.reason = e.to_string();
            if let Err(e) = Output::default().write(root) {
                warn!(log, "cannot remove what was written"; "error" => %e);
            }
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
    // The name of a temporary file, which it would say as well, means nothing to anybody.
    let without_name = |e: io::Error| io::Error::from(e.kind());
    let file = tempfile::Builder::new().prefix(UNFINISHED_PREFIX).tempfile_in(directory).map_err(without_name)?;
    file.as_file().write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The names in a directory; none when there is no such directory.
fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name())).collect(),
    }
}

// === impl Output ===

impl Output {
    /// Removes what earlier runs have left, and only then writes, so that there never are parts of two networks. Kernel
    /// arguments alone are replaced in one step.
    fn write(&self, root: &Path) -> io::Result<()> {
        let at = |path: &str, e: io::Error| io::Error::new(e.kind(), format!("writing /{path}: {e}"));
        for (directory, prefix) in LEFT_BEHIND {
            for name in names_in(&root.join(directory)).map_err(|e| at(directory, e))? {
                let path = format!("{directory}/{}", name.to_string_lossy());
                let is_replaced = self.line.is_some() && self.files.is_empty() && path == FRAGMENT;
                if name.as_encoded_bytes().starts_with(prefix.as_bytes()) && !is_replaced {
                    remove(&root.join(&path)).map_err(|e| at(&path, e))?;
                }
            }
        }
        let fragment = self.line.as_ref().map(|line| File { path: FRAGMENT.to_owned(), text: format!("{line}\n") });
        for file in self.files.iter().chain(&fragment) {
            write_in_one_step(&root.join(&file.path), &file.text).map_err(|e| at(&file.path, e))?;
        }
        Ok(())
    }
}

impl fmt::Display for Output {
    /// As a person reads it: the line, then each file below its path.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = &self.line {
            writeln!(f, "{line}")?;
        }
        for (at, File { path, text }) in self.files.iter().enumerate() {
            let gap = if at == 0 && self.line.is_none() { "" } else { "\n" };
            write!(f, "{gap}# /{path}\n{text}")?;
        }
        Ok(())
    }
}

// === impl Options ===

impl Options {
    /// What most runs ask: write for NetworkManager, wait for nothing, have no default, and fail on an error.
    #[must_use]
    pub fn new(selection: Selection, source: Source, root: PathBuf) -> Self {
        let (renderer, default_value, on_error) = (Renderer::default(), Ok(None), OnError::Fail);
        let (wait, any_drive, dry_run, neednet) = (Duration::ZERO, false, false, false);
        Self { selection, source, renderer, default_value, on_error, wait, any_drive, root, dry_run, neednet }
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
            Err(Stop::Default(reason)) => self.use_default(reason),
            Err(Stop::Refused(reason)) if self.options.on_error == OnError::Default => {
                error!(self.log, "cannot use the drive's network"; "reason" => %reason);
                self.use_default(format!("{reason}; the default was asked for in this case"))
            }
            Err(Stop::Refused(reason)) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = reason;
                Output::default()
            }
        };
        let words = output.line.iter().flat_map(|line| line.split_ascii_whitespace());
        self.report.arguments = words.map(str::to_owned).collect();
        self.report.files = output.files.iter().map(WrittenFile::of).collect();
        if let Some(machine) = self.conclude() {
            self.report.metadata = machine.attributes.by_key();
        }
        self.say();
        Plan { report: self.report, output }
    }

    fn decide(&mut self, command_line: &CommandLine) -> Result<Output, Stop> {
        let platform = self.platform(command_line)?;
        self.override_wait(command_line)?;
        self.override_options(command_line)?;
        self.read(platform, command_line)
    }

    fn read(&mut self, platform: Platform, command_line: &CommandLine) -> Result<Output, Stop> {
        #[cfg(feature = "vmware")]
        if let Source::Property(value) = self.options.source.clone() {
            return self.property(value, command_line);
        }
        let found = self.find(platform)?;
        self.report.drive = found.drive;
        self.meta_data = Some(found.meta_data);
        let document = found.document.map_err(|e| Stop::Refused(Chain(&e).to_string()))?;
        let Some(document) = document else {
            return Err(Stop::Default("the drive has no network configuration".to_owned()));
        };
        let output = self.render(&document)?;
        self.within_limits(output, &document.path, command_line)
    }

    /// The output of a document, unless all kernel arguments together would be too long.
    fn within_limits(&mut self, output: Output, document: &str, command_line: &CommandLine) -> Result<Output, Stop> {
        self.report.reason = format!("{document} says so");
        let length = output.line.as_ref().map_or(0, String::len);
        let already = command_line.length() + self.other_fragments();
        if length > 0 && already + length > MAX_ALL_ARGUMENTS {
            let reason = format!(
                "kernel arguments: {length} bytes beside the {already} that are there, expected at most {MAX_ALL_ARGUMENTS}"
            );
            return Err(Stop::Refused(reason));
        }
        Ok(output)
    }

    /// Takes the arguments of a property of the machine.
    #[cfg(feature = "vmware")]
    fn property(&mut self, value: Result<Option<Vec<u8>>, String>, command_line: &CommandLine) -> Result<Output, Stop> {
        let name = vmware::PROPERTY;
        let value = value.map_err(|e| Stop::Refused(format!("reading {name}: {e}")))?;
        let Some(bytes) = value else { return Err(Stop::Default(format!("{name} is not set"))) };
        self.report.document = Some(Document { path: name.to_owned(), format: None, size: bytes.len() });
        let mut findings = Findings::default();
        let line = vmware::arguments(&bytes, &mut findings);
        let errors = findings.errors();
        (self.report.findings, self.report.further_findings) = findings.into_parts();
        let Some(line) = line else {
            return Err(Stop::Refused(format!("{name}: {errors} {}", plural(errors, "error", "errors"))));
        };
        self.within_limits(Output { line: Some(line), files: Vec::new() }, name, command_line)
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

    /// Takes the time to wait from the kernel command line, where it is set.
    fn override_wait(&mut self, command_line: &CommandLine) -> Result<(), Stop> {
        if let Some(wait) = option_of::<Wait>(command_line, "glowplug.wait")? {
            self.options.wait = wait.into();
        }
        Ok(())
    }

    /// Takes the other options from the kernel command line: a person at a boot loader has no other switch.
    fn override_options(&mut self, command_line: &CommandLine) -> Result<(), Stop> {
        self.options.any_drive |= command_line.has_switch("glowplug.any-drive");
        if let Some(on_error) = option_of(command_line, "glowplug.on-error")? {
            self.options.on_error = on_error;
        }
        if let Some(renderer) = option_of(command_line, "glowplug.renderer")? {
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
        debug!(self.log, "decided the platform"; "platform" => platform.id.as_deref().unwrap_or("unknown"),
            "reason" => &platform.reason);
        self.report.platform = Some(platform.clone());
        #[cfg(feature = "vmware")]
        if matches!(self.options.source, Source::Property(_)) {
            return Ok(platform);
        }
        let may_be_ours =
            platform.is_kubevirt() || (platform.id.is_none() && self.options.selection == Selection::Detect);
        if may_be_ours { Ok(platform) } else { Err(not_ours(&platform, "")) }
    }

    fn find(&mut self, platform: Platform) -> Result<Found, Stop> {
        let known = platform.is_kubevirt();
        let found = match self.options.source.clone() {
            Source::Machine => self.search(known)?,
            Source::Drive(path) => Some(self.read_path(&path, false)?),
            Source::DriveOrDocument(path) => Some(self.read_path(&path, true)?),
            Source::StandardInput => {
                let bytes = read_document(io::stdin());
                Some(self.document("standard input".to_owned(), bytes)?)
            }
            #[cfg(feature = "vmware")]
            Source::Property(_) => None,
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
            None => Err(not_ours(&platform, "")),
            Some(_) => Err(not_ours(&platform, ", nor the shape of the drive; --provider kubevirt would")),
        }
    }

    fn search(&mut self, known: bool) -> Result<Option<Found>, Stop> {
        let search = Search {
            root: &self.options.root,
            system: self.system,
            log: self.log,
            machine_known: known,
            any_drive: self.options.any_drive,
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
            let document = found.drive.map_or(Ok(None), |drive| drive.network);
            let document = document.map_err(|source| SearchError::Unreadable { device: found.device, source });
            Found { drive: Some(drive), document, meta_data: found.meta_data, is_kubevirts: true }
        }))
    }

    /// A document without a drive.
    fn document(&mut self, path: String, bytes: io::Result<Vec<u8>>) -> Result<Found, Stop> {
        let bytes = bytes.map_err(|e| Stop::Refused(format!("reading {path}: {e}")))?;
        self.report.platform = Some(Platform::kubevirt("a document was named"));
        let document = Ok(Some(crate::drive::Document { path, bytes }));
        Ok(Found { drive: None, document, meta_data: MetaData::default(), is_kubevirts: false })
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
                let unreadable = |source| SearchError::Unreadable { device: path.to_owned(), source };
                let document = given.drive.network.map_err(unreadable);
                Ok(Found { drive: Some(drive), document, meta_data: given.meta_data, is_kubevirts })
            }
            Err(SearchError::NoDrive { .. }) if or_document && path.is_file() => {
                self.document(path.display().to_string(), fs::File::open(path).and_then(read_document))
            }
            Err(e @ SearchError::NoDrive { .. }) if path.is_file() => {
                Err(Stop::Refused(format!("{e}; a document alone is for glowplug check")))
            }
            Err(e) => Err(Stop::Refused(Chain(&e).to_string())),
        }
    }

    fn render(&mut self, document: &crate::drive::Document) -> Result<Output, Stop> {
        let reading = formats::read_network(&document.bytes);
        self.report.document = Some(Document {
            path: document.path.clone(),
            format: reading.format.map(|format| format.to_string()),
            size: document.bytes.len(),
        });
        let mut findings = reading.findings;
        let output = self.rendered(reading.meaning, document, &mut findings);
        for finding in findings.details() {
            debug!(self.log, "detail of the network document"; "finding" => %finding);
        }
        let errors = findings.errors();
        (self.report.findings, self.report.further_findings) = findings.into_parts();
        if errors > 0 {
            return Err(Stop::Refused(format!("{}: {errors} {}", document.path, plural(errors, "error", "errors"))));
        }
        output
    }

    fn rendered(
        &mut self,
        meaning: Meaning,
        document: &crate::drive::Document,
        findings: &mut Findings,
    ) -> Result<Output, Stop> {
        match meaning {
            Meaning::Refused => Err(Stop::Refused(String::new())),
            Meaning::Disabled => Err(Stop::NothingToDo(format!("{} disables the network", document.path))),
            Meaning::Unconfigured => Err(Stop::Default(format!("{} configures nothing", document.path))),
            Meaning::Network(network) => {
                let (mut output, devices) = self.output(&network, findings);
                if output == Output::default() && network.states_no_addresses() {
                    return Err(Stop::NothingToDo(format!("{} asks for no addresses", document.path)));
                }
                if output == Output::default() {
                    return Err(Stop::Default(format!("{} configures nothing", document.path)));
                }
                let called = |link: crate::network::LinkIndex| devices[link.0].bare();
                self.report.links = LinkReport::of(&network, &called);
                self.report.nameservers = network.nameservers().iter().map(ToString::to_string).collect();
                // dracut's own scripts bring cards up for as long as somebody waits for them, or else for none at all.
                if self.options.neednet || self.options.renderer == Renderer::NetworkLegacy {
                    let line = output.line.as_deref().map_or_else(String::new, |line| format!("{line} "));
                    output.line = Some(line + "rd.neednet=1");
                }
                self.network = Some((network, devices));
                Ok(output)
            }
        }
    }

    /// Writes the network for the program of this initramfs.
    fn output(&self, network: &NetworkConfig, findings: &mut Findings) -> (Output, Vec<Device>) {
        let render = match self.options.renderer {
            Renderer::NetworkManager => dracut::render,
            Renderer::NetworkLegacy => network_legacy::render,
            Renderer::SystemdNetworkd => {
                let networkd::Rendered { mut files, devices } = networkd::render(network, findings);
                if !network.links().iter().any(Link::asks) && !network.states_no_addresses() {
                    // Files that only keep others from cards would keep the default from them.
                    files.clear();
                }
                let length = files.iter().map(|file| file.text.len()).sum::<usize>();
                if length > MAX_ALL_FILES {
                    let expected = format!("at most {MAX_ALL_FILES}");
                    findings.push(Finding::error("files of systemd-networkd", "too many bytes", length, &expected));
                }
                return (Output { line: None, files }, devices);
            }
        };
        let dracut::Rendered { line, devices, .. } = render(network, findings);
        (Output { line: Some(line).filter(|line| !line.is_empty()), files: Vec::new() }, devices)
    }

    fn use_default(&mut self, reason: String) -> Output {
        let value = match &self.options.default_value {
            Ok(value) => value.as_ref().map(|value| value.0.trim_ascii().to_owned()),
            Err(missing) => {
                self.report.outcome = Outcome::Refused;
                self.report.reason = format!("{reason}, and the default is missing: {missing}");
                return Output::default();
            }
        };
        self.report.outcome = Outcome::Default;
        self.report.reason = reason;
        Output { line: value.filter(|value| !value.is_empty()), files: Vec::new() }
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
                Severity::Debug => debug!(self.log, "detail of the network document"; "finding" => %finding),
            }
        }
        if report.further_findings > 0 {
            warn!(self.log, "further findings in the network document"; "count" => report.further_findings);
        }
        let reason = report.reason.as_str();
        let files = report.files.iter().map(|file| file.path.as_str());
        let arguments: Vec<&str> = report.arguments.iter().map(String::as_str).chain(files).collect();
        let arguments = arguments.join(" ");
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

/// The value of an option on the kernel command line. `None` when it is not there.
fn option_of<T: FromStr<Err: fmt::Display>>(line: &CommandLine, key: &str) -> Result<Option<T>, Stop> {
    let Some(value) = line.value(key) else { return Ok(None) };
    value.parse().map(Some).map_err(|e| Stop::Refused(format!("kernel command line: {key}={value}: {e}")))
}

fn not_ours(platform: &Platform, further: &str) -> Stop {
    Stop::NothingToDo(format!("this is not known to be KubeVirt: {}{further}", platform.reason))
}

/// The document of a person, who may name a pipe or a directory by mistake.
fn read_document(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than is taken, so that the reader of documents says what is wrong with a longer one.
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX).saturating_add(1);
    from.take(most).read_to_end(&mut bytes)?;
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
