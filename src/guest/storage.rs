//! Finds the config drive of this machine: loads drivers, waits for the drive, chooses between several drives, and
//! reads the chosen drive.
//!
//! In the initramfs, udev has not run yet: there are no symbolic links by label, and only built-in drivers and the
//! drivers that the unit requested are loaded. All facts about devices come from the kernel's own directories below the
//! root.
//!
//! A config drive is recognised by its label. It is the machine's own drive if its uuid is the uuid in the firmware. A
//! label alone is weak evidence: a rescue drive, or the drive of a clone or of another machine, may be attached too.
//! `candidate::OwnUuid` describes when a different uuid proves that a drive belongs to another machine.

mod candidate;
mod drivers;
mod error;
mod mount;
mod named;
mod sysfs;
#[cfg(test)]
mod tests;

pub use candidate::Why;
pub(super) use error::Chain;
pub use error::SearchError;
pub use named::{NamedDrive, read_path};

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use slog::{Logger, debug, info, warn};

use super::system::System;
use crate::drive::{ConfigDrive, ReadError, Volume};
use crate::formats::meta_data::MetaData;
use candidate::{Candidate, OwnUuid, Which, ignored_meta_data};
use error::List;
use mount::{MountedDrive, reason_to_mount};
use sysfs::{BLOCK_DEVICES, Sysfs, device_path};

/// Labels of config drives. Upper and lower case count as equal, because some tools can write only upper case.
const LABELS: [&str; 2] = ["config-2", "cidata"];

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
    /// Whether the metadata decides something, such as the hostname or the SSH keys. If so, several drives agree only if
    /// they also have the same metadata.
    pub uses_metadata: bool,
    /// How long to wait for a drive after the drivers are loaded.
    pub wait: Duration,
    /// Time between two scans of the devices, such as [`Search::POLL`].
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
    /// Metadata of the drive; empty when the metadata cannot be read, or when equally good drives have other metadata.
    pub meta_data: MetaData,
    /// Time since the start of the search.
    pub waited: Duration,
    /// Why the search chose this drive.
    pub why: Why,
    /// Other drives that may belong to this machine and have a network document.
    pub others: Vec<PathBuf>,
}

/// Result of the last scan of each device, by the kernel's name of the device.
type Seen = BTreeMap<String, Device>;

/// Result of one scan of a device.
enum Device {
    /// Not ready: the device has size zero or no medium, or it failed with this error number. The search scans the
    /// device again.
    Silent(Option<i32>),
    /// Not a config drive.
    Other,
    /// A config drive that cannot be read, and whether the device still exists.
    Unreadable(ReadError, bool),
    /// A config drive.
    Drive(Box<Candidate>),
}

/// Returns whether the error shows that a device does not exist yet, or no longer exists.
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

/// Lists the drives that may belong to this machine and have a network document.
fn with_network(seen: &Seen) -> Vec<PathBuf> {
    let mut drives = Vec::new();
    for (name, device) in seen {
        if let Device::Drive(drive) = device
            && drive.why != Why::NothingBetter
            && matches!(drive.document(Which::Network), Ok(Some(_)))
        {
            drives.push(device_path(name));
        }
    }
    drives
}

/// Lists the devices of the search, for messages.
fn names(seen: &Seen) -> String {
    List(&seen.keys().map(|name| device_path(name)).collect::<Vec<_>>()).to_string()
}

// === impl Search ===

impl Search<'_> {
    /// Default time between two scans. A device appears some milliseconds after its driver, and a scan costs only a few
    /// system calls.
    pub const POLL: Duration = Duration::from_millis(20);

    /// Finds and reads the drive of this machine. `None` when no drive appeared in time.
    ///
    /// The search takes drives in this order:
    ///
    /// 1. A drive with the uuid of the machine, as soon as it appears. Small devices are read before large devices, even
    ///    if their drivers must be loaded first, because a large device may take minutes to answer.
    /// 2. A drive whose uuid does not show to which machine the drive belongs: after all drivers have been requested. If
    ///    this drive lacks a uuid that the machine's own drive must have, only at the end of the wait, because the own
    ///    drive may still appear.
    /// 3. A drive of another machine, at the end of the wait and only with [`Search::any_drive`].
    ///
    /// On a machine of unknown platform, the search takes no drive that it would take only at the end of the wait.
    ///
    /// Several drives that disagree are an error at once if they have the uuid of the machine. Else they are an error
    /// only if no better drive appears in time. Drives disagree if their networks differ, and with
    /// [`Search::uses_metadata`] also if their metadata differs.
    ///
    /// # Errors
    ///
    /// * [`SearchError::Ambiguous`]: several drives are equally good and disagree.
    /// * [`SearchError::Unreadable`]: a drive is broken, and no other drive was chosen before the end of the wait.
    /// * [`SearchError::OtherMachine`]: every drive belongs to another machine.
    /// * [`SearchError::Io`]: no drive was chosen, and a device that may be a drive fails; or the devices cannot be
    ///   listed.
    /// * [`SearchError::Permission`]: the process has no permission to read a device.
    pub fn run(&self) -> Result<Option<Found>, SearchError> {
        let start = self.system.now();
        let mut loaded = Duration::ZERO;
        let own = self.own_uuid();
        let mut seen = Seen::new();
        let (mut asked, mut sleeping) = (false, false);
        let known = self.machine_known;
        loop {
            self.look(&mut seen, own.as_ref(), true)?;
            let waited = self.system.now().saturating_sub(start);
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid && (known || it.has_shape))? {
                return Ok(Some(found));
            }
            if known && !asked {
                let missing = self.sysfs().missing_drivers();
                if !missing.is_empty() {
                    asked = true;
                    self.load(missing);
                    // On a slow machine the drivers alone may take longer than the wait, and their devices appear afterwards.
                    loaded = self.system.now().saturating_sub(start);
                    continue;
                }
            }
            self.look(&mut seen, own.as_ref(), false)?;
            let waited = self.system.now().saturating_sub(start);
            if !known {
                // Only a drive that KubeVirt made for this machine identifies the platform of this machine.
                let found = self.take(&mut seen, waited, |it| it.has_shape && !it.lacks_own_uuid)?;
                if found.is_none() {
                    debug!(self.log, "no drive identifies the platform"; "devices" => %names(&seen));
                    self.explain(&seen, None);
                }
                return Ok(found);
            }
            if let Some(found) = self.take(&mut seen, waited, |it| it.why == Why::OwnUuid)? {
                return Ok(Some(found));
            }
            // If several drives disagree, the search goes on: the machine's own drive may still appear.
            if let Ok(Some(found)) = self.take(&mut seen, waited, |it| !it.lacks_own_uuid) {
                return Ok(Some(found));
            }
            let left = self.wait.saturating_sub(waited.saturating_sub(loaded));
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

    /// Decides the result of the search at the end of the wait.
    fn settle(&self, mut seen: Seen, waited: Duration, own: Option<OwnUuid>) -> Result<Option<Found>, SearchError> {
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
            if found.why == Why::NothingBetter {
                let uuid = found.meta_data.uuid.as_deref().unwrap_or_default();
                warn!(self.log, "using the config drive of another machine, as any-drive allows"; "device" => %device, "uuid" => uuid);
            } else if let Some(own) = own {
                warn!(self.log, "using a config drive without the uuid of the machine"; "device" => %device, "expected" => own.uuid);
            }
            return Ok(Some(found));
        }
        if let Some(error) = own.and_then(|own| other_machines(&seen, own.uuid)) {
            return Err(error);
        }
        warn!(self.log, "no config drive"; "waited_ms" => waited.as_millis(), "devices" => %looked_at);
        Ok(None)
    }

    /// Scans every device, or every small device, that is new or was not ready before.
    fn look(&self, seen: &mut Seen, own: Option<&OwnUuid>, only_small: bool) -> Result<(), SearchError> {
        let names =
            self.sysfs().block_devices().map_err(|e| SearchError::io(&Path::new("/").join(BLOCK_DEVICES), e))?;
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
            if only_small && !self.sysfs().is_small(&name) {
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

    fn examine(&self, name: &str, own: Option<&OwnUuid>, before: Option<Option<i32>>) -> Result<Device, SearchError> {
        if self.sysfs().sectors(name) == Some(0) {
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
                debug!(self.log, "examined a device without a label"; "device" => %device.display());
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
                    debug!(self.log, "device does not exist yet"; "device" => %device.display(), "reason" => %e);
                } else {
                    warn!(self.log, "ignored a device"; "device" => %device.display(), "reason" => %e);
                }
                return Ok(Device::Silent(error));
            }
        };
        if !LABELS.iter().any(|label| volume.label.eq_ignore_ascii_case(label)) {
            debug!(self.log, "examined a device"; "device" => %device.display(), "label" => &volume.label);
            return Ok(Device::Other);
        }
        match self.read(&device, &file, &volume) {
            Ok(drive) => Ok(Device::Drive(Box::new(Candidate::new(&device, volume, drive, own, self.log)))),
            Err(e) => {
                let device = device.display();
                warn!(self.log, "ignored a broken drive"; "device" => %device, "reason" => %Chain(&e));
                Ok(Device::Unreadable(e, true))
            }
        }
    }

    /// Reads a drive in process. If [`reason_to_mount`] returns a reason, mounts the drive and reads the mounted files.
    fn read(&self, device: &Path, file: &File, volume: &Volume) -> Result<Option<ConfigDrive>, ReadError> {
        debug!(self.log, "reading the drive"; "device" => %device.display());
        let in_process = volume.open(file).and_then(|files| ConfigDrive::read_from(&files));
        let Some(reason) = reason_to_mount(&in_process) else { return in_process };
        debug!(self.log, "mounting the drive"; "device" => %device.display(), "reason" => reason);
        let mounted = match MountedDrive::mount(self.system, self.log, self.root, &self.at(device), volume.file_system)
        {
            Ok(mounted) => mounted.read(),
            Err(e) => {
                debug!(self.log, "the kernel did not mount the drive"; "device" => %device.display(), "reason" => %e);
                return match in_process {
                    Err(ReadError::NeedsMount(file_system)) => {
                        let what = "which only the unit glowplug-network-kargs may mount";
                        Err(ReadError::io(format!("{file_system}, {what}"), e))
                    }
                    in_process => in_process,
                };
            }
        };
        match (mounted, in_process) {
            // If the mounted drive cannot be read, the result of our own reader is used.
            (Err(_), in_process) => in_process,
            // Our own reader may find a damaged document that the kernel does not find. Such a document is an error.
            (Ok(None), Ok(Some(drive))) => Ok(Some(drive)),
            (mounted, _) => mounted,
        }
    }

    /// Takes the best drive that is good enough out of `seen`. Several equally good drives that disagree are an error.
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
        let mut ignored = None;
        if drives.len() > 1 {
            let devices: Vec<PathBuf> = drives.iter().map(|(name, _)| device_path(name)).collect();
            let differ = |which| drives.iter().any(|(_, drive)| drive.document(which) != first.document(which));
            if differ(Which::Network) {
                return Err(SearchError::Ambiguous { devices, about: "network" });
            }
            // Drives without a network always agree here. One of them may be the drive of another machine, with the SSH
            // keys of another owner.
            let differ = differ(Which::MetaData);
            if differ && self.uses_metadata {
                return Err(SearchError::Ambiguous { devices, about: "metadata" });
            }
            info!(self.log, "several drives have the same network"; "devices" => %List(&devices));
            if differ {
                let reason = format!("the metadata differs on {}", List(&devices));
                let expected = "one drive, or the same metadata on each";
                ignored = Some(ignored_meta_data(&device_path(name), &reason, expected, self.log));
            }
        }
        let name = (*name).clone();
        let Some(Device::Drive(drive)) = seen.remove(&name) else { return Ok(None) };
        let Candidate { volume, drive, meta_data, why, .. } = *drive;
        let meta_data = ignored.unwrap_or(meta_data);
        let others = with_network(seen);
        let found = Found { device: device_path(&name), volume, drive, meta_data, waited, why, others };
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
                (_, None) if drive.has_shape => "it does not have the uuid of this machine".to_owned(),
                (_, None) => "it does not have the layout of KubeVirt drives".to_owned(),
                (_, Some(taken)) => {
                    let device = taken.device.display();
                    match taken.why {
                        why if why == drive.why => format!("{device} has the same network"),
                        Why::OwnUuid => format!("{device} has the uuid of this machine"),
                        _ => format!("{device} has the layout of KubeVirt drives"),
                    }
                }
            };
            info!(self.log, "did not use a config drive"; "device" => %device_path(name).display(),
                "label" => &drive.volume.label, "reason" => reason);
        }
    }

    fn load(&self, names: BTreeSet<String>) {
        let names: Vec<String> = names.into_iter().collect();
        debug!(self.log, "requesting storage drivers from modprobe"; "names" => names.join(" "));
        let outcome = self.system.load_modules(&names);
        // An error does not end the search: a driver may be built in, or missing in this initramfs.
        let outcome = outcome.err().map_or_else(|| "done".to_owned(), |e| e.to_string());
        info!(self.log, "requested storage drivers from modprobe"; "names" => names.join(" "), "outcome" => outcome);
    }

    fn sysfs(&self) -> Sysfs<'_> {
        Sysfs { root: self.root, log: self.log }
    }

    /// Returns the uuid of this machine from the firmware.
    fn own_uuid(&self) -> Option<OwnUuid> {
        let [uuid, serial] =
            ["product_uuid", "product_serial"].map(|name| self.sysfs().attribute(&format!("sys/class/dmi/id/{name}")));
        OwnUuid::of(&uuid?, serial.as_deref())
    }

    /// Maps an absolute path to a path below the root.
    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }
}
