//! Finds the config drive of this machine: loads drivers, waits for the drive, chooses between several drives, and
//! reads the chosen drive.
//!
//! udev has not run yet: there are no links by label, and only built-in drivers and the drivers that the unit requested
//! are loaded. All facts about devices come from the kernel's own directories below the root.
//!
//! A config drive is recognised by its label. It is the machine's own drive if its uuid is the uuid in the firmware. A
//! label alone is weak evidence: a rescue drive, or the drive of a clone or of another machine, may be attached too.

mod drivers;
#[cfg(test)]
mod tests;

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
use crate::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::drive::directory::Directory;
use crate::drive::{ConfigDrive, FileSystem, Layout, ReadError, Volume};
use crate::formats::meta_data::{MetaData, is_uuid};

/// Labels of config drives, compared without case: some tools can write only upper case.
const LABELS: [&str; 2] = ["config-2", "cidata"];

/// Prefixes of device names that are never a config drive: devices made of other devices or of memory, and floppy
/// drives, which take seconds to report an error.
const NOT_DRIVES: [&str; 7] = ["dm-", "fd", "loop", "md", "nbd", "ram", "zram"];

/// Largest size of a small device, in sectors of 512 bytes: 64 MiB, the size of OpenStack's drives. KubeVirt's drives
/// have 1 MiB. Small devices are read before larger devices.
const SMALL: u64 = 64 * 2048;

/// A search for the drive of this machine, with its options.
pub struct Search<'a> {
    /// Directory that has `sys`, `dev` and `run`.
    pub root: &'a Path,
    /// Mounts devices, loads drivers and sleeps.
    pub system: &'a dyn System,
    /// Receives the log messages of the search.
    pub log: &'a Logger,
    /// Whether the machine is known to run on KubeVirt. If not, the search takes only a drive with KubeVirt's shape,
    /// loads no driver and does not wait.
    pub machine_known: bool,
    /// Whether to accept the drive of another machine if there is no better drive.
    pub any_drive: bool,
    /// How long to wait for a drive, from the start of the search.
    pub wait: Duration,
    /// Time between two looks at the devices, such as [`Search::POLL`].
    pub poll: Duration,
}

/// The drive that the search chose.
#[derive(Debug)]
pub struct Found {
    /// Path such as `/dev/vdb`, without the root of the search.
    pub device: PathBuf,
    /// File system and label.
    pub volume: Volume,
    /// Documents of the drive; `None` when the drive has no known layout.
    pub drive: Option<ConfigDrive>,
    /// Metadata of the drive; empty when the metadata cannot be read.
    pub meta_data: MetaData,
    /// Time since the start of the search.
    pub waited: Duration,
    /// Why the search chose this drive.
    pub why: Why,
}

/// Why a drive was chosen. The best reason comes first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The uuid of the drive is the uuid of the machine.
    OwnUuid,
    /// The drive has the shape of KubeVirt's drives, and no uuid shows that it belongs to another machine.
    Shape,
    /// The drive has the label of a config drive, and no uuid shows that it belongs to another machine.
    Label,
    /// The uuid is not the uuid of the machine, no better drive appeared in time, and any drive is accepted.
    NothingBetter,
}

/// A drive that a person named, with `--config-drive` or as an argument of `check`.
#[derive(Debug)]
pub struct NamedDrive {
    /// File system and label; `None` for a directory.
    pub volume: Option<Volume>,
    /// Documents of the drive.
    pub drive: ConfigDrive,
    /// Metadata of the drive; empty when the metadata cannot be read.
    pub meta_data: MetaData,
}

/// Error: the search has no result.
#[derive(Debug)]
pub enum SearchError {
    /// The process has no permission to read a device.
    Permission {
        /// Path such as `/dev/vdb`.
        device: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The list of devices, or a device that may be a config drive, cannot be read.
    Io {
        /// Path that was read.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The only config drive is broken.
    Unreadable {
        /// Path such as `/dev/vdb`.
        device: PathBuf,
        /// Error of reading the drive.
        source: ReadError,
    },
    /// The only config drive belongs to another machine.
    OtherMachine {
        /// Path such as `/dev/vdb`.
        device: PathBuf,
        /// Uuid on the drive, as written there.
        uuid: String,
        /// Uuid from the firmware, in lower case.
        own: String,
    },
    /// Several drives are equally good, and their network documents differ.
    Ambiguous {
        /// Paths such as `/dev/vdb`, sorted.
        devices: Vec<PathBuf>,
    },
    /// The path that a person named is not a drive.
    NoDrive {
        /// Path as named.
        path: PathBuf,
    },
}

/// Result of the last look at each device, by the kernel's name of the device.
type Seen = BTreeMap<String, Device>;

/// Result of a look at one device.
enum Device {
    /// Not ready: the device has size zero or no medium, or it failed with this error number. The search looks again.
    Silent(Option<i32>),
    /// Not a config drive.
    Other,
    /// A config drive that cannot be read, and whether the device still exists.
    Unreadable(ReadError, bool),
    /// A config drive.
    Drive(Box<Candidate>),
}

struct Candidate {
    volume: Volume,
    drive: Option<ConfigDrive>,
    meta_data: MetaData,
    has_shape: bool,
    why: Why,
}

/// Reader of the kernel's descriptions of devices, which are in `sys` below a root.
#[derive(Clone, Copy)]
struct Sysfs<'a> {
    root: &'a Path,
    log: &'a Logger,
}

/// A mounted drive. It is unmounted when the value is dropped.
struct MountedDrive<'a> {
    system: &'a dyn System,
    log: &'a Logger,
    at: PathBuf,
}

/// An error and its causes, printed on one line.
pub(super) struct Chain<'a>(pub(super) &'a dyn Error);

/// Paths of devices, printed as a list in a sentence.
struct List<'a>(&'a [PathBuf]);

/// Reads the drive that a person named: a directory, an image, or a device. A device is not mounted, and its label may
/// be any string.
///
/// # Errors
///
/// [`SearchError::NoDrive`] when the path is not a drive, [`SearchError::Unreadable`] when the drive is broken, and
/// [`SearchError::Io`] when the path cannot be read.
pub fn read_path(path: &Path, log: &Logger) -> Result<NamedDrive, SearchError> {
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
    Ok(NamedDrive { volume, drive, meta_data })
}

fn read_in_process(volume: &Volume, file: &File) -> Result<Option<ConfigDrive>, ReadError> {
    ConfigDrive::read_from(&volume.open(file)?)
}

/// Reads the metadata of a drive. An error is logged and has no other effect.
fn meta_data(drive: &ConfigDrive, device: &Path, log: &Logger) -> MetaData {
    let ignored = |reason: &dyn fmt::Display| {
        warn!(log, "ignored what the drive says about its machine"; "device" => %device.display(), "reason" => %reason);
        let expected = "a document that can be read";
        let diagnostic = Diagnostic::without_value(Severity::Warning, "document", &reason.to_string(), expected);
        MetaData { diagnostics: vec![diagnostic], ..MetaData::unread() }
    };
    let document = match &drive.meta_data {
        Ok(Some(document)) => document,
        Ok(None) => return MetaData::default(),
        Err(e) => return ignored(&Chain(e)),
    };
    let mut diagnostics = Diagnostics::default();
    let read = match drive.layout {
        Layout::OpenStack { .. } => MetaData::read_openstack(&document.bytes, &mut diagnostics),
        Layout::NoCloud => MetaData::read_nocloud(&document.bytes, &mut diagnostics),
    };
    for diagnostic in diagnostics.kept() {
        warn!(log, "warning about the machine's document"; "device" => %device.display(),
            "path" => &document.path, "diagnostic" => %diagnostic);
    }
    MetaData { diagnostics: diagnostics.into_parts().0, ..read }
}

/// Reports whether the drive has the shape of KubeVirt's drives: their layout and their metadata.
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

/// Returns the uuid in lower case. `None` when it cannot identify a machine: firmware without a uuid reports all zeros
/// or all ones.
fn telling(text: &str) -> Option<String> {
    let uuid = text.trim().to_ascii_lowercase();
    let is_all = |digit: char| uuid.chars().all(|c| c == digit || c == '-');
    (is_uuid(&uuid) && !is_all('0') && !is_all('f')).then_some(uuid)
}

/// Reports whether this is an error of a device that does not exist yet, or no longer exists.
fn is_absence(error: &io::Error) -> bool {
    let absent = [Errno::ENOENT, Errno::ENXIO, Errno::ENODEV, Errno::ENOMEDIUM];
    error.raw_os_error().is_some_and(|number| absent.contains(&Errno::from_raw(number)))
}

/// Makes the error for a machine with this uuid whose only drive belongs to another machine.
fn other_machines(seen: &Seen, own: String) -> Option<SearchError> {
    let (name, drive) = seen.iter().find_map(|(name, device)| match device {
        Device::Drive(drive) if drive.why == Why::NothingBetter => Some((name, drive)),
        _ => None,
    })?;
    let uuid = drive.meta_data.uuid.clone().unwrap_or_default();
    Some(SearchError::OtherMachine { device: device_path(name), uuid, own })
}

/// Returns the path of a device, such as `/dev/vdb`. The kernel writes `!` instead of `/` in names.
fn device_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// Lists the devices of the search, for messages.
fn names(seen: &Seen) -> String {
    List(&seen.keys().map(|name| device_path(name)).collect::<Vec<_>>()).to_string()
}

// === impl NamedDrive ===

impl NamedDrive {
    /// Reports whether the drive has the shape of KubeVirt's drives.
    #[must_use]
    pub fn has_shape(&self) -> bool {
        has_shape(&self.drive, &self.meta_data)
    }
}

// === impl Search ===

impl Search<'_> {
    /// Default time between two looks. A device appears some milliseconds after its driver, and a look costs only a few
    /// system calls.
    pub const POLL: Duration = Duration::from_millis(20);

    /// Finds and reads the drive of this machine. `None` when no drive appeared in time.
    ///
    /// The search takes drives in this order:
    ///
    /// 1. A drive with the uuid of the machine, as soon as it appears. Small devices are read first, and again after
    ///    missing drivers were requested, because a large device may take minutes to answer.
    /// 2. A drive that may belong to any machine, after all drivers have been requested.
    /// 3. A drive of another machine, at the end of the wait and only with [`Search::any_drive`].
    ///
    /// Several drives that disagree are an error only if no better drive appears in time.
    ///
    /// # Errors
    ///
    /// * [`SearchError::Ambiguous`]: several drives are equally good and disagree.
    /// * [`SearchError::Unreadable`]: the only drive is broken.
    /// * [`SearchError::OtherMachine`]: the only drive belongs to another machine.
    /// * [`SearchError::Io`]: there is no drive, and a device that may be a drive fails.
    /// * [`SearchError::Permission`]: the process may not read a device.
    pub fn run(&self) -> Result<Option<Found>, SearchError> {
        let start = self.system.now();
        let own = self.own_uuid();
        let mut seen = Seen::new();
        let (mut asked, mut sleeping) = (false, false);
        let known = self.machine_known;
        loop {
            self.look(&mut seen, own.as_deref(), true)?;
            let waited = self.system.now().saturating_sub(start);
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid && (known || it.has_shape))? {
                return Ok(Some(found));
            }
            if known && !asked {
                let missing = self.sysfs().missing_drivers();
                if !missing.is_empty() {
                    asked = true;
                    self.load(missing);
                    continue;
                }
            }
            self.look(&mut seen, own.as_deref(), false)?;
            let waited = self.system.now().saturating_sub(start);
            if !known {
                // A drive of another machine does not identify the platform of this machine.
                let found = self.take(&mut seen, waited, |it| it.has_shape && it.why != Why::NothingBetter)?;
                if found.is_none() {
                    debug!(self.log, "no drive tells what this machine is"; "devices" => %names(&seen));
                    self.explain(&seen, None);
                }
                return Ok(found);
            }
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid)? {
                return Ok(Some(found));
            }
            // If several drives disagree, the search goes on: the machine's own drive may still appear.
            if let Ok(Some(found)) = self.take(&mut seen, waited, |it| it.why != Why::NothingBetter) {
                return Ok(Some(found));
            }
            let left = self.wait.saturating_sub(waited);
            if left.is_zero() {
                return self.settle(seen, waited, own);
            }
            if !sleeping {
                sleeping = true;
                debug!(self.log, "waiting for a config drive"; "devices" => %names(&seen));
            }
            self.system.sleep(left.min(self.poll));
        }
    }

    /// Decides at the end of the wait.
    fn settle(&self, mut seen: Seen, waited: Duration, own: Option<String>) -> Result<Option<Found>, SearchError> {
        let looked_at = names(&seen);
        // A broken drive comes first, because it may be the machine's own drive.
        let broken =
            seen.iter().find(|(_, device)| matches!(device, Device::Unreadable(..))).map(|(name, _)| name.clone());
        if let Some(name) = broken
            && let Some(Device::Unreadable(source, _)) = seen.remove(&name)
        {
            return Err(SearchError::Unreadable { device: device_path(&name), source });
        }
        // A device without a readable label may also be the machine's own drive.
        for (name, device) in &seen {
            if let Device::Silent(Some(error)) = device {
                let source = io::Error::from_raw_os_error(*error);
                if !is_absence(&source) {
                    return Err(SearchError::Io { path: device_path(name), source });
                }
            }
        }
        if let Some(found) = self.take(&mut seen, waited, |it| self.any_drive || it.why != Why::NothingBetter)? {
            let device = found.device.display();
            let uuid = found.meta_data.uuid.as_deref().unwrap_or_default();
            warn!(self.log, "the drive names another machine"; "device" => %device, "uuid" => uuid);
            return Ok(Some(found));
        }
        if let Some(error) = own.and_then(|own| other_machines(&seen, own)) {
            return Err(error);
        }
        warn!(self.log, "no config drive"; "waited_ms" => waited.as_millis(), "devices" => %looked_at);
        Ok(None)
    }

    /// Looks at every device, or at every small device, that is new or was not ready before.
    fn look(&self, seen: &mut Seen, own: Option<&str>, only_small: bool) -> Result<(), SearchError> {
        let names = self.block_devices()?;
        // A drive that was removed during the read stays in the list as broken, so that the search does not report "no
        // drive".
        seen.retain(|name, device| match device {
            Device::Unreadable(_, is_there) => {
                *is_there &= names.contains(name);
                true
            }
            _ => names.contains(name),
        });
        for name in names {
            if only_small && !self.is_small(&name) {
                continue;
            }
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

    /// Whether a device is read before the others. A partition is part of a device that may be large.
    fn is_small(&self, name: &str) -> bool {
        let is_partition = self.sysfs().has(&format!("sys/class/block/{name}/partition"));
        !is_partition && self.sectors(name).is_none_or(|sectors| sectors <= SMALL)
    }

    /// Returns the size of a device in sectors of 512 bytes, which the kernel uses for every device. `None` when the
    /// kernel reports no size.
    fn sectors(&self, name: &str) -> Option<u64> {
        self.sysfs().attribute(&format!("sys/class/block/{name}/size"))?.parse().ok()
    }

    fn block_devices(&self) -> Result<BTreeSet<String>, SearchError> {
        let path = "sys/class/block";
        let mut names = self.sysfs().entries(path).map_err(|e| SearchError::io(&Path::new("/").join(path), e))?;
        names.retain(|name| !NOT_DRIVES.iter().any(|prefix| name.starts_with(prefix)));
        Ok(names)
    }

    fn examine(&self, name: &str, own: Option<&str>, before: Option<Option<i32>>) -> Result<Device, SearchError> {
        if self.sectors(name) == Some(0) {
            if before.is_none() {
                debug!(self.log, "device has no medium"; "device" => %device_path(name).display());
            }
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
                    // This error was logged before.
                } else if is_absence(&e) {
                    debug!(self.log, "device is not there yet"; "device" => %device.display(), "reason" => %e);
                } else {
                    warn!(self.log, "ignored a device"; "device" => %device.display(), "reason" => %e);
                }
                return Ok(Device::Silent(error));
            }
        };
        if !LABELS.iter().any(|label| volume.label.eq_ignore_ascii_case(label)) {
            debug!(self.log, "looked at a device"; "device" => %device.display(), "label" => &volume.label);
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

    /// Reads a drive in process. If that fails, mounts the drive: FAT always, and ISO 9660 that our own reader does not
    /// support. The first mount of ISO 9660 makes the kernel load a driver, which takes longer than the rest of a run.
    fn read(&self, name: &str, file: &File, volume: &Volume) -> Result<Option<ConfigDrive>, ReadError> {
        let device = device_path(name);
        debug!(self.log, "reading the drive"; "device" => %device.display());
        let in_process = read_in_process(volume, file);
        let reason = match &in_process {
            Ok(Some(ConfigDrive { network: Err(e @ ReadError::Io { .. }), .. })) | Err(e) => Chain(e).to_string(),
            Ok(Some(_)) => return in_process,
            Ok(None) => "no files of a config drive".to_owned(),
        };
        debug!(self.log, "mounting the drive"; "device" => %device.display(), "reason" => reason);
        let mounted = match MountedDrive::mount(self, name, volume.file_system) {
            Ok(mounted) => mounted,
            Err(e) => {
                debug!(self.log, "the kernel did not mount the drive"; "device" => %device.display(), "reason" => %e);
                return in_process;
            }
        };
        // If both fail, the error of our own reader is reported.
        mounted.read().or(in_process)
    }

    /// Removes the best drive that is good enough from the list, and returns it.
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
        self.explain(seen, Some(&found));
        info!(self.log, "found config drive"; "device" => %found.device.display(),
            "file_system" => %found.volume.file_system, "label" => &found.volume.label, "why" => %why,
            "waited_ms" => waited.as_millis());
        Ok(Some(found))
    }

    /// Logs why each other drive was not chosen.
    fn explain(&self, seen: &Seen, taken: Option<&Found>) {
        for (name, device) in seen {
            let Device::Drive(drive) = device else { continue };
            let reason = match (drive.why, taken) {
                (Why::NothingBetter, _) => "its uuid is another machine's".to_owned(),
                (_, None) => "it does not have the shape that KubeVirt gives its drives".to_owned(),
                (_, Some(taken)) => {
                    let device = taken.device.display();
                    match taken.why {
                        why if why == drive.why => format!("{device} says the same"),
                        Why::OwnUuid => format!("{device} has the uuid of this machine"),
                        _ => format!("{device} has the shape that KubeVirt gives its drives"),
                    }
                }
            };
            info!(self.log, "did not take a config drive"; "device" => %device_path(name).display(),
                "label" => &drive.volume.label, "reason" => reason);
        }
    }

    fn load(&self, names: BTreeSet<String>) {
        let names: Vec<String> = names.into_iter().collect();
        debug!(self.log, "asking for storage drivers"; "names" => names.join(" "));
        let outcome = self.system.load_modules(&names);
        // A driver may be built in, or may be missing in this initramfs, so the search continues.
        let outcome = outcome.err().map_or_else(|| "done".to_owned(), |e| e.to_string());
        info!(self.log, "asked for storage drivers"; "names" => names.join(" "), "outcome" => outcome);
    }

    fn sysfs(&self) -> Sysfs<'_> {
        Sysfs { root: self.root, log: self.log }
    }

    /// Returns the uuid of this machine from the firmware, in lower case.
    fn own_uuid(&self) -> Option<String> {
        telling(&self.sysfs().attribute("sys/class/dmi/id/product_uuid")?)
    }

    /// Converts an absolute path to a path below the root of the search.
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

// === impl Sysfs ===

impl Sysfs<'_> {
    fn has(&self, path: &str) -> bool {
        // A driver is a link, so the link itself is checked.
        !matches!(fs::symlink_metadata(self.root.join(path)), Err(e) if e.kind() == ErrorKind::NotFound)
    }

    /// Lists the names in a directory. The list is empty when the directory does not exist.
    fn entries(&self, path: &str) -> io::Result<BTreeSet<String>> {
        let entries = match fs::read_dir(self.root.join(path)) {
            Ok(entries) => entries,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(e) => return Err(e),
        };
        let mut names = BTreeSet::new();
        for entry in entries {
            // Device names of the kernel are always UTF-8.
            if let Ok(name) = entry?.file_name().into_string() {
                names.insert(name);
            }
        }
        Ok(names)
    }

    /// Reads an attribute of a device. `None` when the attribute does not exist or cannot be read.
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
    /// Returns the network document, or the error of reading it.
    fn network(&self) -> Result<Option<&[u8]>, String> {
        let Some(drive) = &self.drive else { return Ok(None) };
        let document = drive.network.as_ref().map_err(|e| Chain(e).to_string())?;
        Ok(document.as_ref().map(|document| document.bytes.as_slice()))
    }
}

// === impl MountedDrive ===

impl<'a> MountedDrive<'a> {
    /// Mounts the drive at a new directory that no other run uses.
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

    /// Reads the documents. No file of the drive is open when this function returns; an open file would prevent the
    /// unmount.
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

/// Removes a mount point. The directory is empty, or does not exist.
fn remove(mount_point: &Path, log: &Logger) {
    if let Err(e) = fs::remove_dir(mount_point) {
        debug!(log, "mount point stays"; "path" => %mount_point.display(), "reason" => %e);
    }
}

// === impl Why ===

impl fmt::Display for Why {
    /// Prints the reason as it is serialized.
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
            Self::OtherMachine { device, uuid, own } => {
                let device = device.display();
                write!(
                    f,
                    "{device}: config drive of another machine, uuid {uuid:?}, expected {own}; \
                     --any-drive or glowplug.any-drive takes it"
                )
            }
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
            Self::OtherMachine { .. } | Self::Ambiguous { .. } | Self::NoDrive { .. } => None,
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
