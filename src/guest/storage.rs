//! The drive of this machine: having its driver loaded, waiting for it, telling it from others, reading it.
//!
//! Nothing has run before us: no udev, so no link by label and no driver but those that are built in or that the unit asked
//! for. What is there is asked of the kernel's own directories below the root.
//!
//! A drive is known by its label, and is the machine's own when its uuid is the one that the firmware names. A label alone
//! proves little: a clone, a rescue drive or the drive of another machine may be attached as well.

mod drivers;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use serde::Serialize;
use slog::{Logger, debug, info, warn};

use super::system::System;
use crate::drive::directory::Directory;
use crate::drive::{ConfigDrive, FileSystem, Files, Layout, ReadError, Volume};
use crate::finding::{Finding, Findings, Severity};
use crate::formats::meta_data::{MetaData, is_uuid};

/// The labels of config drives, in any case: some tools know upper case only.
const LABELS: [&str; 2] = ["config-2", "cidata"];

/// What these names begin with is made of other devices or of memory, or, as a floppy drive, takes seconds to say no.
const NOT_DRIVES: [&str; 7] = ["dm-", "fd", "loop", "md", "nbd", "ram", "zram"];

/// A search for the drive of this machine.
pub struct Search<'a> {
    /// The directory that has `sys`, `dev` and `run`.
    pub root: &'a Path,
    /// Who mounts, loads and waits.
    pub system: &'a dyn System,
    /// Who is told.
    pub log: &'a Logger,
    /// Whether this is known to be a machine that has a drive. If not, a drive is taken only where it says so itself, and
    /// nothing is loaded or waited for.
    pub machine_known: bool,
    /// How long a drive is waited for, from the start of the search.
    pub wait: Duration,
    /// How long between two looks, such as [`Search::POLL`].
    pub poll: Duration,
}

/// The drive that was chosen.
#[derive(Debug)]
pub struct Found {
    /// Such as `/dev/vdb`, whatever the root.
    pub device: PathBuf,
    /// Its file system and label.
    pub volume: Volume,
    /// What it holds, `None` when nothing on it is laid out as on a config drive.
    pub drive: Option<ConfigDrive>,
    /// What it says about its machine; nothing, when that cannot be read.
    pub meta_data: MetaData,
    /// From the start of the search.
    pub waited: Duration,
    /// Why this one.
    pub why: Why,
}

/// Why a drive was chosen, the best reason first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// Its uuid is the machine's own.
    OwnUuid,
    /// It looks as `KubeVirt` makes them, and nothing says that it is another machine's.
    Shape,
    /// Its label, and nothing says that it is another machine's.
    Label,
    /// Its uuid is not the machine's own, and no better drive came in time.
    NothingBetter,
}

/// A drive that a person pointed at.
#[derive(Debug)]
pub struct Given {
    /// Its file system and label, `None` for a directory.
    pub volume: Option<Volume>,
    /// What it holds.
    pub drive: ConfigDrive,
    /// What it says about its machine; nothing, when that cannot be read.
    pub meta_data: MetaData,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum SearchError {
    /// A device may not be read.
    Permission {
        /// Such as `/dev/vdb`.
        device: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// What should say which drives there are, or a device that may be one, cannot be read.
    Io {
        /// What was read.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The only drive is broken.
    Unreadable {
        /// Such as `/dev/vdb`.
        device: PathBuf,
        /// The cause.
        source: ReadError,
    },
    /// Several drives are as good as each other and do not say the same about the network.
    Ambiguous {
        /// Such as `/dev/vdb`, sorted.
        devices: Vec<PathBuf>,
    },
    /// The path that a person gave leads to no drive.
    NoDrive {
        /// As given.
        path: PathBuf,
    },
}

/// What one look at a device found, under its name in the kernel.
type Seen = BTreeMap<String, Device>;

/// What one look at a device found.
enum Device {
    /// Not there yet: it has no size or no medium, or it failed with this error. It is looked at again.
    Silent(Option<i32>),
    /// Something else.
    Other,
    /// A drive that cannot be read, and whether it is still there.
    Unreadable(ReadError, bool),
    /// A drive.
    Drive(Box<Candidate>),
}

struct Candidate {
    volume: Volume,
    drive: Option<ConfigDrive>,
    meta_data: MetaData,
    has_shape: bool,
    why: Why,
}

/// What the kernel says about its devices.
#[derive(Clone, Copy)]
struct Sysfs<'a> {
    root: &'a Path,
    log: &'a Logger,
}

/// A drive that is mounted as long as this value lives.
struct MountedDrive<'a> {
    system: &'a dyn System,
    log: &'a Logger,
    at: PathBuf,
}

/// An error and its causes on one line.
pub(super) struct Chain<'a>(pub(super) &'a dyn Error);

/// Devices, as in a sentence.
struct List<'a>(&'a [PathBuf]);

/// Reads the drive that a person pointed at: a directory, an image, or a device, which is not mounted and whose label does
/// not matter.
///
/// # Errors
///
/// [`SearchError::NoDrive`] when there is something else, [`SearchError::Unreadable`] when it is broken, and what the
/// system says.
pub fn read_path(path: &Path, log: &Logger) -> Result<Given, SearchError> {
    let no_drive = || SearchError::NoDrive { path: path.to_owned() };
    let io = |source| SearchError::io(path, source);
    let unreadable = |source| SearchError::Unreadable { device: path.to_owned(), source };
    let kind = fs::metadata(path).map_err(io)?.file_type();
    let (volume, drive) = if kind.is_dir() {
        let directory = Directory::open(path).map_err(io)?;
        (None, ConfigDrive::read_from(&directory).map_err(unreadable)?)
    } else if kind.is_file() || kind.is_block_device() {
        let file = File::open(path).map_err(io)?;
        let volume = Volume::probe(&file).map_err(io)?.ok_or_else(no_drive)?;
        let drive = read_in_process(&volume, &file).map_err(unreadable)?;
        (Some(volume), drive)
    } else {
        (None, None)
    };
    let drive = drive.ok_or_else(no_drive)?;
    let meta_data = meta_data(&drive, path, log);
    Ok(Given { volume, drive, meta_data })
}

fn read_in_process(volume: &Volume, file: &File) -> Result<Option<ConfigDrive>, ReadError> {
    let files: Box<dyn Files> = volume.open(file)?;
    ConfigDrive::read_from(&*files)
}

/// What the drive says about its machine. That it cannot be read is said here and costs nothing else.
fn meta_data(drive: &ConfigDrive, device: &Path, log: &Logger) -> MetaData {
    let ignored = |reason: &dyn fmt::Display| {
        warn!(log, "ignored what the drive says about its machine"; "device" => %device.display(), "reason" => %reason);
        let expected = "a document that can be read";
        let finding = Finding::without_value(Severity::Warning, "document", &reason.to_string(), expected);
        MetaData { findings: vec![finding], ..MetaData::unread() }
    };
    let document = match &drive.meta_data {
        Ok(Some(document)) => document,
        Ok(None) => return MetaData::default(),
        Err(e) => return ignored(&Chain(e)),
    };
    let mut findings = Findings::default();
    let read = match drive.layout {
        Layout::OpenStack { .. } => MetaData::read_openstack(&document.bytes, &mut findings),
        Layout::NoCloud => MetaData::read_nocloud(&document.bytes, &mut findings),
    };
    for finding in findings.kept() {
        warn!(log, "warning about the machine's document"; "device" => %device.display(),
            "path" => &document.path, "finding" => %finding);
    }
    MetaData { findings: findings.into_parts().0, ..read }
}

/// Whether the drive looks as `KubeVirt` makes them.
fn has_shape(drive: &ConfigDrive, meta_data: &MetaData) -> bool {
    match drive.layout {
        Layout::OpenStack { latest_only } => latest_only && meta_data.name_and_namespace().is_some(),
        Layout::NoCloud => {
            let is_json = |bytes: &[u8]| bytes.trim_ascii_start().starts_with(b"{");
            let document = drive.meta_data.as_ref().ok().and_then(Option::as_ref);
            document.is_some_and(|document| is_json(&document.bytes)) && meta_data.uuid.as_deref().is_some_and(is_uuid)
        }
    }
}

/// The uuid, lower case, when it can tell machines apart. Firmware without one says all zeros or all ones.
fn telling(text: &str) -> Option<String> {
    let uuid = text.trim().to_ascii_lowercase();
    let is_all = |digit: char| uuid.chars().all(|c| c == digit || c == '-');
    (is_uuid(&uuid) && !is_all('0') && !is_all('f')).then_some(uuid)
}

/// What a failed device may say while it is not there yet, or not any more.
fn is_absence(error: &io::Error) -> bool {
    let absent = [Errno::ENOENT, Errno::ENXIO, Errno::ENODEV, Errno::ENOMEDIUM];
    error.raw_os_error().is_some_and(|number| absent.contains(&Errno::from_raw(number)))
}

/// Such as `/dev/vdb`. The kernel writes `!` for what divides a path.
fn device_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// The devices that were looked at.
fn names(seen: &Seen) -> String {
    List(&seen.keys().map(|name| device_path(name)).collect::<Vec<_>>()).to_string()
}

// === impl Given ===

impl Given {
    /// Whether the drive looks as KubeVirt makes them.
    #[must_use]
    pub fn has_shape(&self) -> bool {
        has_shape(&self.drive, &self.meta_data)
    }
}

// === impl Search ===

impl Search<'_> {
    /// A device appears some milliseconds after its driver. Looking costs a few system calls.
    pub const POLL: Duration = Duration::from_millis(20);

    /// Finds the drive of this machine and reads it. `None` when there is none in time.
    ///
    /// A drive that is the machine's own by its uuid is taken at once. One that cannot be told to be is taken when every
    /// driver is there. One that is another machine's is taken only when nothing better came in time, and several that
    /// disagree are an error only then.
    ///
    /// # Errors
    ///
    /// [`SearchError::Ambiguous`] instead of a guess, [`SearchError::Unreadable`] when the only drive is broken,
    /// [`SearchError::Io`] when there is none and a device that may be one fails, and [`SearchError::Permission`].
    pub fn run(&self) -> Result<Option<Found>, SearchError> {
        let start = self.system.now();
        let own = self.own_uuid();
        let mut seen = Seen::new();
        let mut asked = false;
        loop {
            self.look(&mut seen, own.as_deref())?;
            let waited = self.system.now().saturating_sub(start);
            if !self.machine_known {
                // A drive that is another machine's does not tell what this machine is.
                let found = self.take(&mut seen, waited, |it| it.has_shape && it.why != Why::NothingBetter)?;
                if found.is_none() {
                    debug!(self.log, "no drive tells what this machine is"; "devices" => %names(&seen));
                }
                return Ok(found);
            }
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid)? {
                return Ok(Some(found));
            }
            if !asked {
                let missing = self.sysfs().missing_drivers();
                if !missing.is_empty() {
                    asked = true;
                    self.load(missing);
                    continue;
                }
            }
            // Where several disagree, the machine's own may still come and settle it.
            if let Ok(Some(found)) = self.take(&mut seen, waited, |it| it.why != Why::NothingBetter) {
                return Ok(Some(found));
            }
            let left = self.wait.saturating_sub(waited);
            if left.is_zero() {
                return self.settle(seen, waited);
            }
            self.system.sleep(left.min(self.poll));
        }
    }

    /// What is to be said when nothing better comes any more.
    fn settle(&self, mut seen: Seen, waited: Duration) -> Result<Option<Found>, SearchError> {
        let looked_at = names(&seen);
        // First, since the broken one may be the machine's own.
        let broken =
            seen.iter().find(|(_, device)| matches!(device, Device::Unreadable(..))).map(|(name, _)| name.clone());
        if let Some(name) = broken
            && let Some(Device::Unreadable(source, _)) = seen.remove(&name)
        {
            return Err(SearchError::Unreadable { device: device_path(&name), source });
        }
        // And so may one of which not even the label could be read.
        for (name, device) in &seen {
            if let Device::Silent(Some(error)) = device {
                let source = io::Error::from_raw_os_error(*error);
                if !is_absence(&source) {
                    return Err(SearchError::Io { path: device_path(name), source });
                }
            }
        }
        let found = self.take(&mut seen, waited, |_| true)?;
        match &found {
            Some(found) => {
                let device = found.device.display();
                let uuid = found.meta_data.uuid.as_deref().unwrap_or_default();
                warn!(self.log, "the drive names another machine"; "device" => %device, "uuid" => ?uuid);
            }
            None => {
                warn!(self.log, "no config drive"; "waited_ms" => waited.as_millis(), "devices" => %looked_at);
            }
        }
        Ok(found)
    }

    /// Looks at every device that is new, or that was silent before.
    fn look(&self, seen: &mut Seen, own: Option<&str>) -> Result<(), SearchError> {
        let names = self.block_devices()?;
        // Whoever pulls a drive out while it is read does not mean that there is none.
        seen.retain(|name, device| match device {
            Device::Unreadable(_, is_there) => {
                *is_there &= names.contains(name);
                true
            }
            _ => names.contains(name),
        });
        for name in names {
            let before = match seen.get(&name) {
                None | Some(Device::Unreadable(_, false)) => None,
                Some(Device::Silent(error)) => Some(*error),
                Some(_) => continue,
            };
            let now = self.examine(&name, own, before)?;
            seen.insert(name, now);
        }
        Ok(())
    }

    fn block_devices(&self) -> Result<BTreeSet<String>, SearchError> {
        let path = "sys/class/block";
        let mut names = self.sysfs().entries(path).map_err(|e| SearchError::io(&Path::new("/").join(path), e))?;
        names.retain(|name| !NOT_DRIVES.iter().any(|prefix| name.starts_with(prefix)));
        Ok(names)
    }

    fn examine(&self, name: &str, own: Option<&str>, before: Option<Option<i32>>) -> Result<Device, SearchError> {
        if self.sysfs().attribute(&format!("sys/class/block/{name}/size")).is_some_and(|size| size == "0") {
            return Ok(Device::Silent(None));
        }
        let device = device_path(name);
        let opened = File::open(self.at(&device));
        let probed = opened.and_then(|file| Ok(Volume::probe(&file)?.map(|volume| (file, volume))));
        let (file, volume) = match probed {
            Ok(Some(probed)) => probed,
            Ok(None) => {
                debug!(self.log, "looked at a device without a label"; "device" => %device.display());
                return Ok(Device::Other);
            }
            Err(source) if source.kind() == ErrorKind::PermissionDenied => {
                return Err(SearchError::Permission { device, source });
            }
            Err(e) => {
                let error = e.raw_os_error();
                if before == Some(error) {
                    // Said already.
                } else if is_absence(&e) {
                    debug!(self.log, "device is not there yet"; "device" => %device.display(), "reason" => %e);
                } else {
                    warn!(self.log, "ignored a device"; "device" => %device.display(), "reason" => %e);
                }
                return Ok(Device::Silent(error));
            }
        };
        if !LABELS.iter().any(|label| volume.label.eq_ignore_ascii_case(label)) {
            debug!(self.log, "looked at a device"; "device" => %device.display(), "label" => ?volume.label);
            return Ok(Device::Other);
        }
        match self.read(name, &file, &volume) {
            Ok(drive) => Ok(Device::Drive(Box::new(self.candidate(&device, volume, drive, own)))),
            Err(e) => {
                let device = device.display();
                warn!(self.log, "ignored a broken drive"; "device" => %device, "reason" => %Chain(&e));
                Ok(Device::Unreadable(e, true))
            }
        }
    }

    fn candidate(&self, at: &Path, volume: Volume, drive: Option<ConfigDrive>, own: Option<&str>) -> Candidate {
        let meta_data = drive.as_ref().map(|drive| meta_data(drive, at, self.log)).unwrap_or_default();
        let has_shape = drive.as_ref().is_some_and(|drive| has_shape(drive, &meta_data));
        let why = match (own, meta_data.uuid.as_deref().and_then(telling)) {
            (Some(own), Some(uuid)) if own == uuid => Why::OwnUuid,
            (Some(_), Some(_)) => Why::NothingBetter,
            _ if has_shape => Why::Shape,
            _ => Why::Label,
        };
        Candidate { volume, drive, meta_data, has_shape, why }
    }

    /// Reads a drive through the kernel, or in process where the kernel will not.
    fn read(&self, name: &str, file: &File, volume: &Volume) -> Result<Option<ConfigDrive>, ReadError> {
        let mounted = match MountedDrive::mount(self, name, volume.file_system) {
            Ok(mounted) => mounted,
            Err(e) => return self.read_unmounted(name, file, volume, &e),
        };
        match mounted.read() {
            // Among them that this kernel lacks a call.
            Err(e @ ReadError::Io { .. }) | Ok(Some(ConfigDrive { network: Err(e @ ReadError::Io { .. }), .. })) => {
                self.read_unmounted(name, file, volume, &Chain(&e))
            }
            read => read,
        }
    }

    fn read_unmounted(
        &self,
        name: &str,
        file: &File,
        volume: &Volume,
        reason: &dyn fmt::Display,
    ) -> Result<Option<ConfigDrive>, ReadError> {
        let device = device_path(name);
        debug!(self.log, "reading the drive in process"; "device" => %device.display(), "reason" => %reason);
        read_in_process(volume, file)
    }

    /// The best of the drives that are good enough, removed from those that were seen.
    fn take(
        &self,
        seen: &mut Seen,
        waited: Duration,
        is_good_enough: impl Fn(&Candidate) -> bool,
    ) -> Result<Option<Found>, SearchError> {
        let mut drives: Vec<(&String, &Candidate)> = Vec::new();
        for (name, device) in seen.iter() {
            match device {
                Device::Drive(drive) if is_good_enough(drive) => drives.push((name, drive)),
                _ => {}
            }
        }
        let best = drives.iter().map(|(_, drive)| drive.why).min();
        drives.retain(|(_, drive)| Some(drive.why) == best);
        let Some((name, first)) = drives.first() else { return Ok(None) };
        if drives.len() > 1 {
            let devices: Vec<PathBuf> = drives.iter().map(|(name, _)| device_path(name)).collect();
            if drives.iter().any(|(_, drive)| drive.network() != first.network()) {
                return Err(SearchError::Ambiguous { devices });
            }
            info!(self.log, "several drives say the same about the network"; "devices" => %List(&devices));
        }
        let name = (*name).clone();
        let Some(Device::Drive(drive)) = seen.remove(&name) else { return Ok(None) };
        let Candidate { volume, drive, meta_data, why, .. } = *drive;
        let found = Found { device: device_path(&name), volume, drive, meta_data, waited, why };
        info!(self.log, "found config drive"; "device" => %found.device.display(),
            "file_system" => %found.volume.file_system, "label" => ?found.volume.label, "why" => %why,
            "waited_ms" => waited.as_millis());
        Ok(Some(found))
    }

    fn load(&self, names: BTreeSet<String>) {
        let names: Vec<String> = names.into_iter().collect();
        let outcome = self.system.load_modules(&names);
        // A driver that is built in, or not in this initramfs, is no reason to stop.
        let outcome = outcome.err().map_or_else(|| "done".to_owned(), |e| e.to_string());
        info!(self.log, "asked for storage drivers"; "names" => names.join(" "), "outcome" => outcome);
    }

    fn sysfs(&self) -> Sysfs<'_> {
        Sysfs { root: self.root, log: self.log }
    }

    /// The firmware's uuid for this machine, lower case.
    fn own_uuid(&self) -> Option<String> {
        telling(&self.sysfs().attribute("sys/class/dmi/id/product_uuid")?)
    }

    /// A path that was written as seen from the root.
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

// === impl Sysfs ===

impl Sysfs<'_> {
    fn has(&self, path: &str) -> bool {
        // Not followed: a driver is a link.
        !matches!(fs::symlink_metadata(self.root.join(path)), Err(e) if e.kind() == ErrorKind::NotFound)
    }

    /// The names in a directory; none when it is not there.
    fn entries(&self, path: &str) -> io::Result<BTreeSet<String>> {
        let entries = match fs::read_dir(self.root.join(path)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(e) => return Err(e),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            // The kernel's names are plain.
            if let Ok(name) = entry?.file_name().into_string() {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// What the kernel says about a device, `None` when it says nothing.
    fn attribute(&self, path: &str) -> Option<String> {
        match fs::read_to_string(self.root.join(path)) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(e) => {
                if e.kind() != ErrorKind::NotFound {
                    debug!(self.log, "ignored an attribute"; "path" => path, "reason" => %e);
                }
                None
            }
        }
    }
}

// === impl Candidate ===

impl Candidate {
    /// The document, or why it cannot be read.
    fn network(&self) -> Result<Option<&[u8]>, String> {
        let Some(drive) = &self.drive else { return Ok(None) };
        let document = drive.network.as_ref().map_err(|e| Chain(e).to_string())?;
        Ok(document.as_ref().map(|document| document.bytes.as_slice()))
    }
}

// === impl MountedDrive ===

impl<'a> MountedDrive<'a> {
    /// Mounts at a directory of its own, which no other run of the program uses.
    fn mount(search: &Search<'a>, name: &str, file_system: FileSystem) -> io::Result<Self> {
        let above = search.root.join("run/glowplug");
        fs::create_dir_all(&above)?;
        let at = above.join(format!("drive-{}-{name}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&at)?;
        let device = search.at(&device_path(name));
        if let Err(e) = search.system.mount_read_only(&device, file_system, &at) {
            remove(&at, search.log);
            return Err(e);
        }
        Ok(Self { system: search.system, log: search.log, at })
    }

    /// Nothing of the drive is open any more when this returns, or it could not be unmounted.
    fn read(&self) -> Result<Option<ConfigDrive>, ReadError> {
        let files = Directory::open(&self.at).map_err(|e| ReadError::io("the root directory", e))?;
        ConfigDrive::read_from(&files)
    }
}

impl Drop for MountedDrive<'_> {
    fn drop(&mut self) {
        match self.system.unmount(&self.at) {
            Ok(()) => remove(&self.at, self.log),
            Err(e) => warn!(self.log, "drive stays mounted"; "path" => %self.at.display(), "reason" => %e),
        }
    }
}

/// Removes a mount point: an empty directory, or nothing at all.
fn remove(mount_point: &Path, log: &Logger) {
    if let Err(e) = fs::remove_dir(mount_point) {
        debug!(log, "mount point stays"; "path" => %mount_point.display(), "reason" => %e);
    }
}

// === impl Why ===

impl fmt::Display for Why {
    /// As it is serialized.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OwnUuid => "own-uuid",
            Self::Shape => "shape",
            Self::Label => "label",
            Self::NothingBetter => "nothing-better",
        })
    }
}

// === impl SearchError ===

impl SearchError {
    fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Permission { device, .. } => {
                write!(f, "{}: not allowed to read the device, expected to be run as root", device.display())
            }
            Self::Io { path, .. } => write!(f, "reading {}", path.display()),
            Self::Unreadable { device, .. } => write!(f, "reading config drive {}", device.display()),
            Self::Ambiguous { devices } => {
                let devices = List(devices);
                write!(f, "{devices}: config drives that disagree about the network, expected one or the same on each")
            }
            Self::NoDrive { path } => write!(
                f,
                "{}: no config drive, expected a directory with openstack/latest or meta-data, or an ISO 9660 or FAT image",
                path.display()
            ),
        }
    }
}

impl Error for SearchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Permission { source, .. } | Self::Io { source, .. } => Some(source),
            Self::Unreadable { source, .. } => Some(source),
            Self::Ambiguous { .. } | Self::NoDrive { .. } => None,
        }
    }
}

// === impl Chain ===

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

// === impl List ===

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, device) in self.0.iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, device.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::process::Command;
    use std::sync::{Arc, Mutex};

    use mockall::Sequence;
    use tempfile::TempDir;

    use super::super::system::MockSystem;
    use super::*;

    const OWN: &str = "6aa1c2f8-39e5-5b71-8d0f-2c5f3b8f7d10";
    const OTHER: &str = "11111111-2222-3333-4444-555555555555";

    // === a machine in a directory ===

    /// A root directory, a clock that only sleep moves, and what was logged.
    struct Machine {
        root: Arc<TempDir>,
        system: MockSystem,
        lines: Arc<Mutex<Vec<String>>>,
        known: bool,
    }

    /// What a search is asked for. `Found` cannot be compared, since an error cannot.
    #[derive(Debug, Eq, PartialEq)]
    struct Answer {
        device: String,
        label: String,
        layout: Option<Layout>,
        uuid: Option<String>,
        network: Option<String>,
        waited: Duration,
        why: Why,
    }

    impl Machine {
        /// A machine that is known to have a drive, with this uuid and no device. Its kernel mounts nothing.
        fn new(uuid: Option<&str>) -> Self {
            Self::unmountable(uuid, Errno::EBUSY)
        }

        fn unmountable(uuid: Option<&str>, errno: Errno) -> Self {
            let mut machine = Self::with_clock(uuid, |_, _| {});
            machine.refuse(errno);
            machine
        }

        /// Things happen while the search sleeps for the nth time.
        fn with_clock(uuid: Option<&str>, mut happens: impl FnMut(&Path, u64) + Send + 'static) -> Self {
            let mut machine = Self::without_sleep(uuid);
            let clock = Arc::new(Mutex::new((Duration::from_secs(7), 0)));
            let (read, root) = (clock.clone(), machine.root.clone());
            machine.system.checkpoint();
            machine.system.expect_now().returning(move || read.lock().unwrap().0);
            machine.system.expect_sleep().returning(move |time| {
                let mut clock = clock.lock().unwrap();
                *clock = (clock.0 + time, clock.1 + 1);
                happens(root.path(), clock.1);
            });
            machine
        }

        /// A sleep fails the test.
        fn without_sleep(uuid: Option<&str>) -> Self {
            let root = Arc::new(tempfile::tempdir().unwrap());
            let mut system = MockSystem::new();
            system.expect_now().return_const(Duration::from_secs(7));
            let machine = Self { root, system, lines: Arc::default(), known: true };
            if let Some(uuid) = uuid {
                machine.file("sys/class/dmi/id/product_uuid", format!("{uuid}\n"));
            }
            machine
        }

        fn refuse(&mut self, errno: Errno) {
            self.system.expect_mount_read_only().returning(move |_, _, _| Err(errno.into()));
        }

        fn file(&self, path: &str, content: impl AsRef<[u8]>) {
            file(self.root.path(), path, content);
        }

        fn device(&self, name: &str, content: impl AsRef<[u8]>) {
            device(self.root.path(), name, content);
        }

        /// A device on a bus, with its attributes.
        fn on_bus(&self, bus: &str, name: &str, attributes: &[(&str, &str)]) {
            for (attribute, value) in attributes {
                self.file(&format!("sys/bus/{bus}/devices/{name}/{attribute}"), format!("{value}\n"));
            }
        }

        fn on_pci(&self, class: &str, vendor: &str, device: &str, alias: &str) {
            let slot = format!("0000:00:{}", &device[4..]);
            let ids = [("class", class), ("vendor", vendor), ("device", device), ("modalias", alias)];
            self.on_bus("pci", &slot, &ids);
        }

        /// The loader is called once, with these names.
        fn expects(&mut self, names: &[&str]) {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            self.system.expect_load_modules().withf(move |asked| asked == names).times(1).returning(|_| Ok(()));
        }

        fn search(&self) -> Result<Option<Answer>, SearchError> {
            let log = Logger::root(Lines(self.lines.clone()), slog::o!());
            let search = Search {
                root: self.root.path(),
                system: &self.system,
                log: &log,
                machine_known: self.known,
                wait: Duration::from_millis(100),
                poll: Search::POLL,
            };
            Ok(search.run()?.map(Answer::from))
        }

        fn found(&self) -> Option<Answer> {
            self.search().unwrap()
        }

        fn error(&self) -> String {
            let error = self.search().unwrap_err();
            Chain(&error).to_string()
        }

        /// What was logged, but for attempts.
        fn lines(&self) -> Vec<String> {
            let lines = self.lines.lock().unwrap();
            lines.iter().filter(|line| !line.starts_with("DEBG")).cloned().collect()
        }

        fn left_behind(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(self.root.path().join("run/glowplug")).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        }
    }

    impl From<Found> for Answer {
        fn from(found: Found) -> Self {
            let layout = found.drive.as_ref().map(|drive| drive.layout);
            let network = found.drive.map_or(Ok(None), |drive| drive.network);
            Self {
                device: found.device.display().to_string(),
                label: found.volume.label,
                layout,
                uuid: found.meta_data.uuid,
                network: match network {
                    Ok(document) => document.map(|document| String::from_utf8(document.bytes).unwrap()),
                    Err(e) => Some(Chain(&e).to_string()),
                },
                waited: found.waited,
                why: found.why,
            }
        }
    }

    /// What a search answers for a drive of [`config_2`].
    fn answer(device: &str, uuid: &str, network: &str, waited: u64, why: Why) -> Answer {
        Answer {
            device: device.to_owned(),
            label: "config-2".to_owned(),
            layout: Some(Layout::OpenStack { latest_only: true }),
            uuid: (!uuid.is_empty()).then(|| uuid.to_owned()),
            network: Some(network.to_owned()),
            waited: Duration::from_millis(waited),
            why,
        }
    }

    /// Keeps what is logged as lines.
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl slog::Drain for Lines {
        type Ok = ();
        type Err = slog::Never;

        fn log(&self, record: &slog::Record<'_>, values: &slog::OwnedKVList) -> Result<(), slog::Never> {
            let mut line = Line(format!("{} {}", record.level().as_short_str(), record.msg()));
            slog::KV::serialize(&record.kv(), record, &mut line).unwrap();
            slog::KV::serialize(values, record, &mut line).unwrap();
            self.0.lock().unwrap().push(line.0);
            Ok(())
        }
    }

    impl slog::Serializer for Line {
        fn emit_arguments(&mut self, key: slog::Key, value: &fmt::Arguments<'_>) -> slog::Result {
            self.0 += &format!(" {key}={value}");
            Ok(())
        }
    }

    fn file(root: &Path, path: &str, content: impl AsRef<[u8]>) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn device(root: &Path, name: &str, content: impl AsRef<[u8]>) {
        let size = content.as_ref().len() / 512;
        file(root, &format!("sys/class/block/{name}/size"), format!("{size}\n"));
        file(root, &format!("dev/{}", name.replace('!', "/")), content);
    }

    // === drives ===

    /// A drive as `KubeVirt` makes it.
    fn config_2(uuid: &str, network: &str) -> Vec<u8> {
        let uuid = if uuid.is_empty() { String::new() } else { format!(r#","uuid":"{uuid}""#) };
        let meta_data = format!(r#"{{"instance_id":"worker-0.clusters"{uuid}}}"#);
        let files =
            [("openstack/latest/meta_data.json", meta_data.as_str()), ("openstack/latest/network_data.json", network)];
        image("config-2", &files)
    }

    fn image(label: &str, files: &[(&str, &str)]) -> Vec<u8> {
        let made = tempfile::tempdir().unwrap();
        let (tree, image) = (made.path().join("tree"), made.path().join("image"));
        fs::create_dir(&tree).unwrap();
        for (path, content) in files {
            file(&tree, path, content);
        }
        let mut xorrisofs = Command::new("xorrisofs");
        xorrisofs.args(["-quiet", "-joliet", "-rock", "-volid", label, "-o"]).args([&image, &tree]);
        let output = match xorrisofs.output() {
            Ok(output) => output,
            Err(e) => panic!("xorrisofs: {e}: install the Debian package xorriso"),
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(image).unwrap()
    }

    /// A label and nothing that could be read in process.
    fn torn() -> Vec<u8> {
        let mut image = vec![0; 0x9000];
        image[0x8000..0x8007].copy_from_slice(b"\x01CD001\x01");
        image[0x8028..0x8048].fill(b' ');
        image[0x8028..0x8030].copy_from_slice(b"config-2");
        image
    }

    // === which drive ===

    #[test]
    fn the_machines_own_drive_is_taken_at_once() {
        let mut machine = Machine::without_sleep(Some(&OWN.to_uppercase()));
        machine.refuse(Errno::EBUSY);
        machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
        machine.device("vda", vec![1; 0x10000]);
        machine.device("vdb", config_2(OWN, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
        let line =
            r#"INFO found config drive waited_ms=0 why=own-uuid label="config-2" file_system=iso9660 device=/dev/vdb"#;
        assert_eq!(machine.lines(), [line]);
    }

    #[test]
    fn a_late_drive_is_waited_for() {
        let image = config_2(OWN, "{}");
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 3 {
                device(root, "sr0", &image);
            }
        });
        machine.refuse(Errno::EBUSY);
        assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "{}", 60, Why::OwnUuid)));
    }

    #[test]
    fn a_device_that_is_listed_before_it_can_be_opened_is_looked_at_again() {
        let image = config_2(OWN, "{}");
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 2 {
                device(root, "vdb", &image);
            }
        });
        machine.refuse(Errno::EBUSY);
        machine.file("sys/class/block/vdb/size", "2048\n");
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 40, Why::OwnUuid)));
    }

    #[test]
    fn a_medium_may_come_late() {
        let image = config_2(OWN, "{}");
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 2 {
                fs::remove_file(root.join("dev/sr0")).unwrap();
                device(root, "sr0", &image);
            }
        });
        machine.refuse(Errno::EBUSY);
        machine.device("sr0", "");
        machine.file("sys/class/block/sr0/size", "2097151\n");
        // Opening a socket fails with ENXIO.
        fs::remove_file(machine.root.path().join("dev/sr0")).unwrap();
        let _socket = UnixListener::bind(machine.root.path().join("dev/sr0")).unwrap();
        assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "{}", 40, Why::OwnUuid)));
    }

    #[test]
    fn a_device_that_fails_does_not_end_the_search() {
        let machine = Machine::new(Some(OWN));
        failing_device(machine.root.path(), "sda");
        machine.device("vdb", config_2("", "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
        let line = format!("WARN ignored a device reason={} device=/dev/sda", io::Error::from(Errno::EIO));
        assert_eq!(machine.lines()[0], line);
    }

    /// A device that lists and fails to read with EIO: nothing is mapped there.
    fn failing_device(root: &Path, name: &str) {
        file(root, &format!("sys/class/block/{name}/size"), "2048\n");
        fs::create_dir_all(root.join("dev")).unwrap();
        symlink("/proc/self/mem", root.join("dev").join(name)).unwrap();
    }

    #[test]
    fn a_device_that_fails_may_be_the_own_drive_so_neither_none_nor_another_machines_is_taken() {
        let expected = format!("reading /dev/sda: {}", io::Error::from(Errno::EIO));
        let machine = Machine::new(Some(OWN));
        failing_device(machine.root.path(), "sda");
        assert_eq!(machine.error(), expected);
        machine.device("vdb", config_2(OTHER, "{}"));
        assert_eq!(machine.error(), expected);
    }

    #[test]
    fn a_drive_that_is_pulled_out_while_it_is_read_is_an_error_unless_it_comes_back() {
        let gone = |root: &Path| {
            fs::remove_dir_all(root.join("sys/class/block/vdb")).unwrap();
            fs::remove_file(root.join("dev/vdb")).unwrap();
        };
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 1 {
                gone(root);
            }
        });
        machine.refuse(Errno::EBUSY);
        machine.device("vdb", torn());
        let expected = "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes";
        assert_eq!(machine.error(), expected);

        let image = config_2(OWN, "{}");
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| match nth {
            1 => gone(root),
            2 => device(root, "vdb", &image),
            _ => {}
        });
        machine.refuse(Errno::EBUSY);
        machine.device("vdb", torn());
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 40, Why::OwnUuid)));
    }

    #[test]
    fn a_clock_that_leaps_ends_the_wait_after_one_more_look() {
        let image = config_2(OWN, "{}");
        for comes in [true, false] {
            let mut machine = Machine::without_sleep(Some(OWN));
            machine.system.checkpoint();
            let clock = Arc::new(Mutex::new(Duration::ZERO));
            let (read, root, image) = (clock.clone(), machine.root.clone(), image.clone());
            machine.system.expect_now().returning(move || *read.lock().unwrap());
            // As on a machine that was halted for a year.
            machine.system.expect_sleep().times(1).returning(move |_| {
                *clock.lock().unwrap() += Duration::from_secs(365 * 24 * 3600);
                if comes {
                    device(root.path(), "vdb", &image);
                }
            });
            machine.refuse(Errno::EBUSY);
            assert_eq!(machine.found().map(|found| found.device), comes.then(|| "/dev/vdb".to_owned()));
        }
    }

    #[test]
    fn the_own_drive_wins_over_a_clones_that_was_there_before() {
        let (own, clone) = (config_2(OWN, "own"), config_2(OTHER, "clone"));
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 4 {
                device(root, "vdb", &own);
            }
        });
        machine.refuse(Errno::EBUSY);
        machine.device("sda", &clone);
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "own", 80, Why::OwnUuid)));
    }

    #[test]
    fn the_own_drive_wins_over_one_that_disagrees() {
        let machine = Machine::new(Some(OWN));
        machine.device("sda", config_2("", "without"));
        machine.device("vdb", config_2(OWN, "own"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "own", 0, Why::OwnUuid)));
    }

    #[test]
    fn another_machines_drive_is_the_last_resort() {
        let machine = Machine::new(Some(OWN));
        machine.device("vdb", config_2(OTHER, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OTHER, "{}", 100, Why::NothingBetter)));
        let line = format!("WARN the drive names another machine uuid={OTHER:?} device=/dev/vdb");
        assert_eq!(machine.lines()[1], line);
    }

    #[test]
    fn without_a_uuid_on_either_side_the_shape_decides() {
        let other = [("openstack/latest/meta_data.json", "{}"), ("openstack/2018-08-27/network_data.json", "")];
        for (uuid, drive) in [(Some(OWN), ""), (None, OWN), (Some("00000000-0000-0000-0000-000000000000"), OWN)] {
            let machine = Machine::new(uuid);
            machine.device("sda", image("config-2", &other));
            machine.device("vdb", config_2(drive, "{}"));
            assert_eq!(machine.found(), Some(answer("/dev/vdb", drive, "{}", 0, Why::Shape)));
        }
    }

    #[test]
    fn drives_that_say_the_same_are_one_drive() {
        let machine = Machine::new(None);
        machine.device("vdb", config_2("", "{}"));
        machine.device("sr0", config_2(OTHER, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/sr0", OTHER, "{}", 0, Why::Shape)));
        let line = "INFO several drives say the same about the network devices=/dev/sr0, /dev/vdb";
        assert_eq!(machine.lines()[0], line);
    }

    #[test]
    fn drives_that_disagree_are_an_error() {
        let machine = Machine::new(None);
        machine.device("vdb", config_2("", "{}"));
        machine.device("sr0", config_2("", "{} "));
        let expected =
            "/dev/sr0, /dev/vdb: config drives that disagree about the network, expected one or the same on each";
        assert_eq!(machine.error(), expected);
    }

    #[test]
    fn drives_that_disagree_do_not_matter_once_the_own_one_is_there() {
        let own = config_2(OWN, "own");
        let mut machine = Machine::with_clock(Some(OWN), move |root, nth| {
            if nth == 2 {
                device(root, "vdc", &own);
            }
        });
        machine.refuse(Errno::EBUSY);
        machine.device("sr0", config_2("", "{}"));
        machine.device("vdb", config_2("", "{} "));
        assert_eq!(machine.found(), Some(answer("/dev/vdc", OWN, "own", 40, Why::OwnUuid)));
    }

    #[test]
    fn own_drives_that_disagree_are_an_error_at_once() {
        let mut machine = Machine::without_sleep(Some(OWN));
        machine.refuse(Errno::EBUSY);
        machine.device("sr0", config_2(OWN, "{}"));
        machine.device("vdb", config_2(OWN, "{} "));
        let expected =
            "/dev/sr0, /dev/vdb: config drives that disagree about the network, expected one or the same on each";
        assert_eq!(machine.error(), expected);
    }

    #[test]
    fn labels_are_read_in_any_case() {
        let machine = Machine::new(Some(OWN));
        let meta_data = format!(r#"{{"instance-id":"{OWN}","local-hostname":"worker-0"}}"#);
        machine.device("vdb", image("CIDATA", &[("meta-data", &meta_data)]));
        let expected = Answer {
            label: "CIDATA".to_owned(),
            layout: Some(Layout::NoCloud),
            network: None,
            ..answer("/dev/vdb", OWN, "", 0, Why::OwnUuid)
        };
        assert_eq!(machine.found(), Some(expected));
    }

    #[test]
    fn a_drive_without_a_layout_is_a_drive_without_configuration() {
        let machine = Machine::new(Some(OWN));
        machine.device("vdb", image("config-2", &[("user-data", "")]));
        let expected = Answer { layout: None, network: None, ..answer("/dev/vdb", "", "", 0, Why::Label) };
        assert_eq!(machine.found(), Some(expected));
    }

    #[test]
    fn meta_data_that_cannot_be_read_costs_nothing_else() {
        let machine = Machine::new(Some(OWN));
        machine.device("vdb", image("cidata", &[("meta-data", "a: b: c\n"), ("network-config", "{}")]));
        let expected = Answer {
            label: "cidata".to_owned(),
            layout: Some(Layout::NoCloud),
            ..answer("/dev/vdb", "", "{}", 0, Why::Label)
        };
        assert_eq!(machine.found(), Some(expected));
        let line = "WARN warning about the machine's document finding=line 1 column 5: not readable as YAML \
                    \"mapping values are not allowed in this context\", expected a JSON or YAML document \
                    path=meta-data device=/dev/vdb";
        assert_eq!(machine.lines()[0], line);
    }

    #[test]
    fn no_drive_in_time_is_none_and_said() {
        let machine = Machine::new(Some(OWN));
        machine.device("vda", image("root", &[]));
        // What stands in for a drive during a live migration.
        machine.device("vdb", vec![0; 0x100000]);
        machine.device("sr0", "");
        for name in ["loop0", "ram0", "zram0", "dm-0", "md127", "nbd0", "fd0"] {
            machine.device(name, config_2(OWN, "{}"));
        }
        assert_eq!(machine.found(), None);
        assert_eq!(machine.lines(), ["WARN no config drive devices=/dev/sr0, /dev/vda, /dev/vdb waited_ms=100"]);
    }

    #[test]
    fn a_machine_without_block_devices_has_no_drive() {
        let machine = Machine::new(Some(OWN));
        assert_eq!(machine.found(), None);
        assert_eq!(machine.lines(), ["WARN no config drive devices= waited_ms=100"]);
    }

    #[test]
    fn a_device_that_lies_deeper_is_named_as_its_path() {
        let machine = Machine::new(Some(OWN));
        machine.device("cciss!c0d0", config_2(OWN, "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/cciss/c0d0", OWN, "{}", 0, Why::OwnUuid)));
    }

    #[test]
    fn a_broken_drive_is_skipped_while_there_is_another() {
        let machine = Machine::new(Some(OWN));
        machine.device("sda", torn());
        machine.device("vdb", config_2("", "{}"));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
    }

    #[test]
    fn a_broken_drive_alone_is_an_error_with_its_cause() {
        let machine = Machine::new(Some(OWN));
        machine.device("vdb", torn());
        assert_eq!(
            machine.error(),
            "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes"
        );
    }

    #[test]
    fn a_broken_drive_may_be_the_own_one_so_another_machines_is_not_taken() {
        let machine = Machine::new(Some(OWN));
        machine.device("sda", config_2(OTHER, "{}"));
        machine.device("vdb", torn());
        assert_eq!(
            machine.error(),
            "reading config drive /dev/vdb: invalid block size of the volume, expected 2048 bytes"
        );
    }

    #[test]
    fn a_missing_permission_is_said_as_such() {
        let source = io::Error::from(Errno::EACCES);
        let error = SearchError::Permission { device: PathBuf::from("/dev/vdb"), source };
        let expected = "/dev/vdb: not allowed to read the device, expected to be run as root: \
                        Permission denied (os error 13)";
        assert_eq!(Chain(&error).to_string(), expected);
    }

    // === a machine that may be anything ===

    #[test]
    fn an_unknown_machine_is_looked_at_once() {
        let mut machine = Machine::without_sleep(Some(OWN));
        machine.known = false;
        machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
        machine.device("vda", image("root", &[]));
        assert_eq!(machine.found(), None);
        assert_eq!(machine.lines(), [""; 0]);
        assert!(!machine.root.path().join("run").exists());
    }

    #[test]
    fn an_unknown_machine_is_told_by_a_drive_of_the_right_shape() {
        for (own, why) in [(Some(OWN), Why::OwnUuid), (None, Why::Shape)] {
            let mut machine = Machine::without_sleep(own);
            machine.refuse(Errno::EBUSY);
            machine.known = false;
            machine.device("vdb", config_2(OWN, "{}"));
            assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, why)));

            let mut machine = Machine::without_sleep(own);
            machine.refuse(Errno::EBUSY);
            machine.known = false;
            let meta_data = format!(r#"{{"instance-id":"{OWN}"}}"#);
            machine.device("vdb", image("cidata", &[("meta-data", &meta_data)]));
            let (label, layout) = ("cidata".to_owned(), Some(Layout::NoCloud));
            let expected = Answer { label, layout, network: None, ..answer("/dev/vdb", OWN, "", 0, why) };
            assert_eq!(machine.found(), Some(expected));
        }
    }

    #[test]
    fn an_unknown_machine_is_not_told_by_another_drive() {
        let uuid = format!(r#"{{"uuid":"{OWN}","instance_id":"i-00000001"}}"#);
        let dated = format!(r#"{{"uuid":"{OWN}","instance_id":"worker-0.clusters"}}"#);
        let drives = [
            config_2(OTHER, "{}"),
            image("config-2", &[("openstack/latest/meta_data.json", &uuid)]),
            image("config-2", &[("openstack/latest/meta_data.json", &dated), ("openstack/2018-08-27/a", "")]),
            image("cidata", &[("meta-data", r#"{"instance-id":"i-00000001"}"#)]),
            image("cidata", &[("user-data", "")]),
            torn(),
        ];
        for drive in drives {
            let mut machine = Machine::without_sleep(Some(OWN));
            machine.refuse(Errno::EBUSY);
            machine.known = false;
            machine.device("vdb", drive);
            assert_eq!(machine.found(), None);
        }
    }

    // === reading ===

    /// A machine that mounts, once, a drive with these files.
    fn mounting(files: &'static [(&'static str, &'static str)], unmounts: fn(&Path) -> io::Result<()>) -> Machine {
        let mut machine = Machine::with_clock(Some(OWN), |_, _| {});
        machine.device("vdb", torn());
        let at = machine.root.path().join(format!("run/glowplug/drive-{}-vdb", std::process::id()));
        let (device, mounted) = (machine.root.path().join("dev/vdb"), at.clone());
        let mut order = Sequence::new();
        machine
            .system
            .expect_mount_read_only()
            .withf(move |from, file_system, to| (from, *file_system, to) == (&device, FileSystem::Iso9660, &mounted))
            .times(1)
            .in_sequence(&mut order)
            .returning(move |_, _, at| {
                for (path, content) in files {
                    file(at, path, content);
                }
                Ok(())
            });
        let unmount = machine.system.expect_unmount().withf(move |from| from == at).times(1).in_sequence(&mut order);
        unmount.returning(unmounts);
        machine
    }

    fn unmount(at: &Path) -> io::Result<()> {
        fs::remove_dir_all(at)?;
        fs::create_dir(at)
    }

    #[test]
    fn a_drive_is_mounted_and_read_and_unmounted() {
        let machine = mounting(&[("openstack/latest/network_data.json", "{}")], unmount);
        let expected = Answer { uuid: None, ..answer("/dev/vdb", "", "{}", 0, Why::Label) };
        assert_eq!(machine.found(), Some(expected));
        assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn a_drive_is_unmounted_when_its_content_is_broken() {
        let machine = mounting(&[("openstack/latest/network_data.json/is-a-directory", "")], unmount);
        let why = "openstack/latest/network_data.json: expected a regular file that is on the drive itself";
        let expected = Answer { uuid: None, ..answer("/dev/vdb", "", why, 0, Why::Label) };
        assert_eq!(machine.found(), Some(expected));
        assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
    }

    #[test]
    fn a_mounted_drive_that_fails_is_read_in_process() {
        let mut machine = Machine::with_clock(Some(OWN), |_, _| {});
        machine.device("vdb", config_2(OWN, "{}"));
        // What is mounted cannot be opened any more.
        machine.system.expect_mount_read_only().times(1).returning(|_, _, at| fs::remove_dir(at));
        machine.system.expect_unmount().times(1).returning(|_| Ok(()));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
    }

    #[test]
    fn a_drive_that_stays_mounted_loses_nothing() {
        let machine = mounting(&[("network-config", "{}")], |_| Err(Errno::EBUSY.into()));
        let expected = Answer { layout: Some(Layout::NoCloud), ..answer("/dev/vdb", "", "{}", 0, Why::Label) };
        assert_eq!(machine.found(), Some(expected));
        let at = machine.left_behind().remove(0);
        assert_eq!(fs::read(at.join("network-config")).unwrap(), b"{}");
        let reason = io::Error::from(Errno::EBUSY);
        let line = format!("WARN drive stays mounted reason={reason} path={}", at.display());
        assert_eq!(machine.lines()[0], line);
    }

    #[test]
    fn a_drive_is_read_once_however_long_the_search_takes() {
        // Another machine's, so that the search goes on.
        let machine = mounting(
            &[("meta-data", r#"{"instance-id":"11111111-2222-3333-4444-555555555555"}"#), ("network-config", "{}")],
            unmount,
        );
        let expected =
            Answer { layout: Some(Layout::NoCloud), ..answer("/dev/vdb", OTHER, "{}", 100, Why::NothingBetter) };
        assert_eq!(machine.found(), Some(expected));
    }

    #[test]
    fn a_drive_that_the_kernel_does_not_mount_is_read_in_process() {
        for errno in [Errno::EBUSY, Errno::ENODEV, Errno::EPERM, Errno::EINVAL] {
            let machine = Machine::unmountable(Some(OWN), errno);
            machine.device("vdb", config_2(OWN, "{}"));
            assert_eq!(machine.found(), Some(answer("/dev/vdb", OWN, "{}", 0, Why::OwnUuid)));
            let reason = io::Error::from(errno);
            let line = format!("DEBG reading the drive in process reason={reason} device=/dev/vdb");
            assert!(machine.lines.lock().unwrap().contains(&line));
            assert_eq!(machine.left_behind(), [""; 0].map(PathBuf::from));
        }
    }

    // === drivers ===

    #[test]
    fn a_device_without_a_driver_is_enough_however_late_it_comes() {
        let mut machine = Machine::with_clock(Some(OWN), |root, nth| {
            if nth == 2 {
                file(root, "sys/bus/scsi/devices/0:0:0:0/type", "5\n");
                file(root, "sys/bus/scsi/devices/host0/unique_id", "1\n");
            }
        });
        machine.expects(&["sr_mod"]);
        assert_eq!(machine.found(), None);

        let mut machine = Machine::with_clock(Some(OWN), |root, nth| {
            if nth == 2 {
                file(root, "sys/bus/usb/devices/1-1:1.0/bInterfaceClass", "08\n");
            }
        });
        machine.expects(&["sd_mod", "sr_mod", "uas", "usb_storage"]);
        assert_eq!(machine.found(), None);
    }

    #[test]
    fn a_drive_without_proof_waits_for_the_drivers_of_the_others() {
        let mut machine = Machine::with_clock(Some(OWN), |_, _| panic!("slept"));
        machine.refuse(Errno::EBUSY);
        machine.device("vdb", config_2("", "without"));
        machine.on_pci("0x010601", "0x8086", "0x2922", "pci:ahci");
        let (root, own) = (machine.root.clone(), config_2(OWN, "own"));
        machine.system.expect_load_modules().times(1).returning(move |_| {
            device(root.path(), "sr0", &own);
            Ok(())
        });
        assert_eq!(machine.found(), Some(answer("/dev/sr0", OWN, "own", 0, Why::OwnUuid)));
    }

    #[test]
    fn a_driver_that_does_not_load_is_said_and_the_search_goes_on() {
        let mut machine = Machine::new(Some(OWN));
        machine.device("vdb", config_2("", "{}"));
        machine.on_pci("0x010802", "0x1b36", "0x0010", "pci:nvme");
        machine.system.expect_load_modules().times(1).returning(|_| Err(io::Error::other("modprobe: exit status: 1")));
        assert_eq!(machine.found(), Some(answer("/dev/vdb", "", "{}", 0, Why::Shape)));
        let line = "INFO asked for storage drivers outcome=modprobe: exit status: 1 names=pci:nvme";
        assert_eq!(machine.lines()[0], line);
    }

    // === a path that a person gave ===

    fn given(path: &Path) -> Result<(Option<String>, Layout, Option<String>), String> {
        let log = Logger::root(slog::Discard, slog::o!());
        let given = read_path(path, &log).map_err(|e| Chain(&e).to_string())?;
        Ok((given.volume.map(|volume| volume.label), given.drive.layout, given.meta_data.uuid))
    }

    #[test]
    fn a_path_may_be_a_directory_or_an_image_whatever_its_label() {
        let root = tempfile::tempdir().unwrap();
        file(root.path(), "drive/meta-data", format!(r#"{{"instance-id":"{OWN}"}}"#));
        assert_eq!(given(&root.path().join("drive")), Ok((None, Layout::NoCloud, Some(OWN.to_owned()))));

        file(root.path(), "image", image("any", &[("openstack/latest/network_data.json", "{}")]));
        let layout = Layout::OpenStack { latest_only: true };
        assert_eq!(given(&root.path().join("image")), Ok((Some("any".to_owned()), layout, None)));
    }

    #[test]
    fn a_path_that_is_no_drive_says_what_is_one() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("directory")).unwrap();
        file(root.path(), "file", "network:\n");
        file(root.path(), "image", image("config-2", &[("user-data", "")]));
        let _socket = UnixListener::bind(root.path().join("socket")).unwrap();
        for name in ["directory", "file", "image", "socket"] {
            let path = root.path().join(name);
            let expected = "no config drive, expected a directory with openstack/latest or meta-data, \
                            or an ISO 9660 or FAT image";
            assert_eq!(given(&path), Err(format!("{}: {expected}", path.display())));
        }
    }

    #[test]
    fn a_path_that_is_not_there_and_an_image_that_is_broken_have_a_cause() {
        let root = tempfile::tempdir().unwrap();
        let missing = root.path().join("missing");
        let expected = format!("reading {}: No such file or directory (os error 2)", missing.display());
        assert_eq!(given(&missing), Err(expected));

        file(root.path(), "image", torn());
        let image = root.path().join("image");
        let expected = "invalid block size of the volume, expected 2048 bytes";
        assert_eq!(given(&image), Err(format!("reading config drive {}: {expected}", image.display())));
    }
}
