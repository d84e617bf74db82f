//! The drive of this machine: having its driver loaded, waiting for it, telling it from others, reading it.
//!
//! Nothing has run before us: no udev, so no link by label and no driver but those that are built in or that the unit asked
//! for. What is there is asked of the kernel's own directories below the root.
//!
//! A drive is known by its label, and is the machine's own when its uuid is the one that the firmware names. A label alone
//! proves little: a clone, a rescue drive or the drive of another machine may be attached as well.

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
use crate::drive::directory::Directory;
use crate::drive::{ConfigDrive, FileSystem, Layout, ReadError, Volume};
use crate::finding::{Finding, Findings, Severity};
use crate::formats::meta_data::{MetaData, is_uuid};

/// The labels of config drives, in any case: some tools know upper case only.
const LABELS: [&str; 2] = ["config-2", "cidata"];

/// What these names begin with is made of other devices or of memory, or, as a floppy drive, takes seconds to say no.
const NOT_DRIVES: [&str; 7] = ["dm-", "fd", "loop", "md", "nbd", "ram", "zram"];

/// The most sectors of 512 bytes of a device that is looked at before the others: 64 MiB, which is what OpenStack makes.
/// KubeVirt's drives have 1 MiB.
const SMALL: u64 = 64 * 2048;

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
    /// Whether to take the drive of another machine where there is no better one.
    pub any_drive: bool,
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
    /// Its uuid is not the machine's own, no better drive came in time, and any drive was asked for.
    NothingBetter,
}

/// A drive that a person named, with `--config-drive` or as what is to be checked.
#[derive(Debug)]
pub struct NamedDrive {
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
    /// The only drive is another machine's.
    OtherMachine {
        /// Such as `/dev/vdb`.
        device: PathBuf,
        /// The uuid on the drive, as written.
        uuid: String,
        /// The uuid that the firmware names, lower case.
        own: String,
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

/// The error for a machine with this uuid whose only drive is another machine's.
fn other_machines(seen: &Seen, own: String) -> Option<SearchError> {
    let (name, drive) = seen.iter().find_map(|(name, device)| match device {
        Device::Drive(drive) if drive.why == Why::NothingBetter => Some((name, drive)),
        _ => None,
    })?;
    let uuid = drive.meta_data.uuid.clone().unwrap_or_default();
    Some(SearchError::OtherMachine { device: device_path(name), uuid, own })
}

/// Such as `/dev/vdb`. The kernel writes `!` for what divides a path.
fn device_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// The devices that were looked at.
fn names(seen: &Seen) -> String {
    List(&seen.keys().map(|name| device_path(name)).collect::<Vec<_>>()).to_string()
}

// === impl NamedDrive ===

impl NamedDrive {
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
    /// A drive that is the machine's own by its uuid is taken at once, a small one without a look at the larger devices:
    /// one of them may take minutes to answer. A drive that cannot be told to be the machine's own is taken when every
    /// driver is there. One that is another machine's is taken only with [`Search::any_drive`] and when nothing better
    /// came in time, and several that disagree are an error only then.
    ///
    /// # Errors
    ///
    /// [`SearchError::Ambiguous`] instead of a guess, [`SearchError::Unreadable`] when the only drive is broken,
    /// [`SearchError::OtherMachine`] when it is another machine's, [`SearchError::Io`] when there is none and a device
    /// that may be one fails, and [`SearchError::Permission`].
    pub fn run(&self) -> Result<Option<Found>, SearchError> {
        let start = self.system.now();
        let own = self.own_uuid();
        let mut seen = Seen::new();
        let (mut asked, mut sleeping) = (false, false);
        let known = self.machine_known;
        loop {
            self.look(&mut seen, own.as_deref(), Some(SMALL))?;
            let waited = self.system.now().saturating_sub(start);
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid && (known || it.has_shape))? {
                return Ok(Some(found));
            }
            self.look(&mut seen, own.as_deref(), None)?;
            let waited = self.system.now().saturating_sub(start);
            if !self.machine_known {
                // A drive that is another machine's does not tell what this machine is.
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
                return self.settle(seen, waited, own);
            }
            if !sleeping {
                sleeping = true;
                debug!(self.log, "waiting for a config drive"; "devices" => %names(&seen));
            }
            self.system.sleep(left.min(self.poll));
        }
    }

    /// What is to be said when nothing better comes any more.
    fn settle(&self, mut seen: Seen, waited: Duration, own: Option<String>) -> Result<Option<Found>, SearchError> {
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
        if let Some(found) = self.take(&mut seen, waited, |it| self.any_drive || it.why != Why::NothingBetter)? {
            let device = found.device.display();
            let uuid = found.meta_data.uuid.as_deref().unwrap_or_default();
            warn!(self.log, "the drive names another machine"; "device" => %device, "uuid" => ?uuid);
            return Ok(Some(found));
        }
        if let Some(error) = own.and_then(|own| other_machines(&seen, own)) {
            return Err(error);
        }
        warn!(self.log, "no config drive"; "waited_ms" => waited.as_millis(), "devices" => %looked_at);
        Ok(None)
    }

    /// Looks at every device that is new, or that was silent before, and has at most so many sectors.
    fn look(&self, seen: &mut Seen, own: Option<&str>, most: Option<u64>) -> Result<(), SearchError> {
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
            if most.is_some_and(|most| self.sectors(&name).is_some_and(|sectors| sectors > most)) {
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

    /// The size of a device, in sectors of 512 bytes whatever its own are. `None` when the kernel does not say it.
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

    /// Reads a drive in process, or through the kernel where that does not work: FAT, and what our own reader does not
    /// understand. The first mount of ISO 9660 has the kernel load a driver, which takes longer than the rest of a run.
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
        // Where neither can read it, our own reader says what is wrong.
        mounted.read().or(in_process)
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
        self.explain(seen, Some(&found));
        info!(self.log, "found config drive"; "device" => %found.device.display(),
            "file_system" => %found.volume.file_system, "label" => ?found.volume.label, "why" => %why,
            "waited_ms" => waited.as_millis());
        Ok(Some(found))
    }

    /// Logs why each drive that was seen is not the one that was taken.
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
                "label" => ?drive.volume.label, "reason" => reason);
        }
    }

    fn load(&self, names: BTreeSet<String>) {
        let names: Vec<String> = names.into_iter().collect();
        debug!(self.log, "asking for storage drivers"; "names" => names.join(" "));
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
