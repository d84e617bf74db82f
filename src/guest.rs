//! Configures the guest: reads the kernel command line and the config drive, and writes files that dracut reads.
//!
//! [`plan`] makes all decisions and writes nothing; [`apply`] writes the result. A plan has these steps:
//!
//! 1. Do nothing if a person has configured the network at the boot loader.
//! 2. Decide whether the machine runs on KubeVirt.
//! 3. Find the drive.
//! 4. Read its network document.
//! 5. Render the network.

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

use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::drive::MAX_FILE;
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

/// Path of the file with the kernel arguments, below a root. dracut reserves the numbers 50 to 59 for external modules
/// and reads only files with the suffix `.conf`.
pub const FRAGMENT: &str = "etc/cmdline.d/50-glowplug-network-kargs.conf";

/// Prefix of the names of unfinished files. No program reads them, because they have no suffix.
const UNFINISHED_PREFIX: &str = ".glowplug-";

/// Files that an earlier run may have left, below a root: a directory, and the prefix of our file names in it.
const LEFT_BEHIND: [(&str, &str); 6] = [
    ("etc/cmdline.d", UNFINISHED_PREFIX),
    ("etc/cmdline.d", "50-glowplug-network-kargs.conf"),
    ("run/systemd/network", UNFINISHED_PREFIX),
    ("run/systemd/network", networkd::PREFIXES[0]),
    ("run/systemd/network", networkd::PREFIXES[1]),
    ("run/glowplug", UNFINISHED_PREFIX),
];

/// Path of the report of the last run, below a root. `/run` is kept in the real root.
pub const PLAN: &str = "run/glowplug/plan.json";

/// Path of the same report as a page for people: an emergency shell may have only `cat`.
pub const PAGE: &str = "run/glowplug/plan.txt";

/// Largest size of all kernel arguments together, in bytes. Above 128 KiB dracut can read no argument, not even
/// `root=`.
const MAX_ALL_ARGUMENTS: usize = 96 * 1024;

/// Largest size of all files for systemd-networkd together, in bytes. The files and the report are kept in memory.
const MAX_ALL_FILES: usize = 1024 * 1024;

/// Options of one run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to decide the platform of the machine.
    pub selection: Selection,
    /// Source of the document.
    pub source: Source,
    /// Network program of the initramfs.
    pub renderer: Renderer,
    /// Kernel arguments of the distribution for a machine whose drive configures nothing. `Err` has the reason why
    /// required arguments are missing; it matters only if the run needs the default.
    pub default_value: Result<Option<DefaultValue>, String>,
    /// What the run does if the document is invalid.
    pub on_error: OnError,
    /// How long to wait for a drive on a machine that is known to run on KubeVirt.
    pub wait: Duration,
    /// Directory below which all files are read and written: `/`, except in tests.
    pub root: PathBuf,
    /// Whether to accept the drive of another machine if this machine's own drive is missing.
    pub any_drive: bool,
    /// Whether to decide only and write nothing. If the source is a named drive or document too, the run reads nothing
    /// of this machine.
    pub dry_run: bool,
    /// Whether to make dracut start the network even if nothing needs the network.
    pub neednet: bool,
}

/// Source of the document.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// A config drive of this machine.
    Machine,
    /// This drive: a directory, an image or a device.
    Drive(PathBuf),
    /// This drive, or this file as the document.
    DriveOrDocument(PathBuf),
    /// Standard input.
    StandardInput,
    /// A property of the machine: its value, `None` if it is not set, or the error of reading it.
    #[cfg(feature = "vmware")]
    Property(Result<Option<Vec<u8>>, String>),
}

/// What a run does if the document is invalid.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnError {
    /// The run fails, and so does the boot.
    #[default]
    Fail,
    /// The boot continues with the default arguments of the distribution.
    Default,
}

/// Default kernel arguments of the distribution. They use the alphabet of [`dracut::is_legal`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DefaultValue(String);

/// Time to wait, in whole seconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wait(u64);

/// Error: the value of an option is invalid.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OptionError {
    expected: &'static str,
}

/// Decisions of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the run found and decided.
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

/// A document and its source, or the error of reading the document.
struct Found {
    drive: Option<Drive>,
    document: Result<Option<crate::drive::Document>, SearchError>,
    meta_data: MetaData,
    is_kubevirts: bool,
}

/// Data about this machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Metadata from the drive.
    pub meta_data: MetaData,
    /// Attributes that units and people may request.
    pub attributes: Attributes,
}

/// Report of an earlier run, as stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recorded {
    /// Content of [`PLAN`].
    pub json: String,
    /// Content of [`PAGE`].
    pub page: String,
    /// Whether the earlier run refused the document.
    pub is_refused: bool,
}

/// State of a run before its decision.
struct Planner<'a> {
    options: Options,
    report: Report,
    /// Metadata of the drive; `None` until a drive has been read.
    meta_data: Option<MetaData>,
    /// The network and how the output identifies its links; `None` until the network has been rendered.
    network: Option<(NetworkConfig, Vec<Device>)>,
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
/// One sentence that says why the drive cannot be read.
pub fn machine(options: &Options, system: &dyn System, log: &Logger) -> Result<Option<Machine>, String> {
    let mut planner = Planner::new(options, system, log);
    let decided = planner.command_line().and_then(|line| {
        let platform = planner.platform(&line)?;
        // An invalid option affects the network only, so its error is ignored here. `glowplug.wait=` is for the unit
        // that configures the network: later units do not wait for the drive.
        let _ = planner.override_options(&line);
        planner.read(platform, &line)
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

/// Writes the output of a plan, each file in one step, and the report of the run.
///
/// Files of an earlier run are removed first, except the file with kernel arguments, which is replaced. An interrupted
/// run leaves no report, and the next run starts afresh.
///
/// # Errors
///
/// The output could not be written or removed; the report has the same error. No file of the output is left then,
/// because a part of a network must not be used.
pub fn apply(plan: &Plan, root: &Path, log: &Logger) -> io::Result<()> {
    let mut report = plan.report.clone();
    // If the old report stays and no new report can be written, a warning below reports it.
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
        // The report is informational: failing to write it does not fail the boot.
        warn!(log, "cannot record the plan"; "path" => format_args!("/{PLAN}"), "error" => %e);
    }
    written
}

/// Reads the report of an earlier run. `None` when there is no report.
///
/// # Errors
///
/// The error of the system call.
pub fn recorded(root: &Path) -> io::Result<Option<Recorded>> {
    let json = match fs::read_to_string(root.join(PLAN)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    // A line break occurs only between members, because JSON strings have none. So the search finds only the top-level
    // `outcome`. The report is not parsed, because it may be larger than any document.
    let is_refused = json.contains(&format!("\n  \"outcome\": \"{}\"", Outcome::Refused.word()));
    Ok(Some(Recorded { page: fs::read_to_string(root.join(PAGE))?, json, is_refused }))
}

/// Writes a file of mode 0644 in one step, so that no reader sees a part of the file. Creates the directory if it is
/// missing.
///
/// # Errors
///
/// The error of the system call. The old file is unchanged then.
pub fn write_in_one_step(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    // The error would name the temporary file, which means nothing to a reader.
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

/// Lists the names in a directory. The list is empty when there is no such directory.
fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name())).collect(),
    }
}

// === impl Output ===

impl Output {
    /// Removes the files of earlier runs, then writes, so that files of two networks never exist together. A file with
    /// kernel arguments is replaced in one step if it is the only file to write.
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
    /// Prints the kernel arguments, then each file below its path.
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
    /// Makes options for NetworkManager that wait for nothing, have no default, and fail on an error.
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

    /// Returns the output of a document. An error if all kernel arguments together would be too long.
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

    /// Reads the kernel arguments from a property of the machine.
    #[cfg(feature = "vmware")]
    fn property(&mut self, value: Result<Option<Vec<u8>>, String>, command_line: &CommandLine) -> Result<Output, Stop> {
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
        self.within_limits(Output { line: Some(line), files: Vec::new() }, name, command_line)
    }

    /// Collects the data about the machine, whether or not its network is valid. `None` when no drive was read.
    fn conclude(&mut self) -> Option<Machine> {
        let mut meta_data = self.meta_data.take()?;
        self.report.metadata_diagnostics = std::mem::take(&mut meta_data.diagnostics);
        let network = self.network.as_ref().map(|(network, devices)| (network, devices.as_slice()));
        let mut diagnostics = Diagnostics::default();
        // NICs are not known in the initramfs yet. A drive that a person names for a dry run does not describe this
        // machine's NICs.
        let nics = if self.looks_elsewhere() { Vec::new() } else { attributes::nics(&self.options.root) };
        let attributes = Attributes::of(&meta_data, network, &nics, &mut diagnostics);
        for diagnostic in diagnostics.kept() {
            warn!(self.log, "warning about the machine's document"; "diagnostic" => %diagnostic);
        }
        self.report.metadata_diagnostics.extend(diagnostics.into_parts().0);
        Some(Machine { meta_data, attributes })
    }

    /// Reports whether this is a dry run of a named drive or document, which is independent of this machine.
    fn looks_elsewhere(&self) -> bool {
        self.options.dry_run && self.options.source != Source::Machine
    }

    fn command_line(&self) -> Result<CommandLine, Stop> {
        if self.looks_elsewhere() {
            return Ok(CommandLine::default());
        }
        CommandLine::read_from(&self.options.root).map_err(|e| Stop::Refused(format!("reading /proc/cmdline: {e}")))
    }

    /// Takes the time to wait from the kernel command line, if it is set there.
    fn override_wait(&mut self, command_line: &CommandLine) -> Result<(), Stop> {
        if let Some(wait) = option_of::<Wait>(command_line, "glowplug.wait")? {
            self.options.wait = wait.into();
        }
        Ok(())
    }

    /// Takes the other options from the kernel command line, which is the only way to set them at the boot loader.
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

    /// Decides the platform. An error if the platform is known and is not KubeVirt.
    fn platform(&mut self, command_line: &CommandLine) -> Result<Platform, Stop> {
        let platform = match &self.options.selection {
            // The kernel command line and DMI describe this machine, not the machine of the named drive.
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
            // On a machine of unknown platform, the search finds only drives with the shape of KubeVirt.
            let document = found.drive.map_or(Ok(None), |drive| drive.network);
            let document = document.map_err(|source| SearchError::Unreadable { device: found.device, source });
            Found { drive: Some(drive), document, meta_data: found.meta_data, is_kubevirts: true }
        }))
    }

    /// Makes a result for a document without a drive.
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
        document: &crate::drive::Document,
        diagnostics: &mut Diagnostics,
    ) -> Result<Output, Stop> {
        match meaning {
            Meaning::Refused => Err(Stop::Refused(String::new())),
            Meaning::Disabled => Err(Stop::NothingToDo(format!("{} disables the network", document.path))),
            Meaning::Unconfigured => Err(Stop::Default(format!("{} configures nothing", document.path))),
            Meaning::Network(network) => {
                let (mut output, devices) = self.output(&network, diagnostics);
                if output == Output::default() && network.states_no_addresses() {
                    return Err(Stop::NothingToDo(format!("{} asks for no addresses", document.path)));
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

    /// Renders the network for the network program of the initramfs.
    fn output(&self, network: &NetworkConfig, diagnostics: &mut Diagnostics) -> (Output, Vec<Device>) {
        let render = match self.options.renderer {
            Renderer::NetworkManager => dracut::render,
            Renderer::NetworkLegacy => network_legacy::render,
            Renderer::SystemdNetworkd => {
                let networkd::Rendered { mut files, devices } = networkd::render(network, diagnostics);
                if !network.links().iter().any(Link::asks) && !network.states_no_addresses() {
                    // These files would only mark NICs as unmanaged, and so hide the NICs from the default arguments.
                    files.clear();
                }
                let length = files.iter().map(|file| file.text.len()).sum::<usize>();
                if length > MAX_ALL_FILES {
                    let expected = format!("at most {MAX_ALL_FILES}");
                    diagnostics.push(Diagnostic::error(
                        "files of systemd-networkd",
                        "too many bytes",
                        length,
                        &expected,
                    ));
                }
                return (Output { line: None, files }, devices);
            }
        };
        let dracut::Rendered { line, devices, .. } = render(network, diagnostics);
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

/// Parses an option of the kernel command line. `None` when the option is not set.
fn option_of<T: FromStr<Err: fmt::Display>>(line: &CommandLine, key: &str) -> Result<Option<T>, Stop> {
    let Some(value) = line.value(key) else { return Ok(None) };
    value.parse().map(Some).map_err(|e| Stop::Refused(format!("kernel command line: {key}={value}: {e}")))
}

fn not_ours(platform: &Platform, further: &str) -> Stop {
    Stop::NothingToDo(format!("this is not known to be KubeVirt: {}{further}", platform.reason))
}

/// Reads a document from a path that a person named. The path may be a pipe without end by mistake, so the size is
/// limited.
fn read_document(from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than the limit, so that the parser reports a document that is too long.
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
