//! Reads the kernel's descriptions of devices.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use slog::{Logger, debug};

/// Directory of the block devices, below a root.
pub(super) const BLOCK_DEVICES: &str = "sys/class/block";

/// Prefixes of the names of devices that are never config drives: devices made of other devices, of files or of memory,
/// network block devices, and floppy drives, which take seconds to report an error.
const NOT_DRIVES: [&str; 7] = ["dm-", "fd", "loop", "md", "nbd", "ram", "zram"];

/// Largest size of a small device, in sectors of 512 bytes: 64 MiB, the size of OpenStack's drives. KubeVirt's drives
/// have 1 MiB. Small devices are read before larger devices.
pub(super) const SMALL: u64 = 64 * 2048;

/// Reader of the kernel's descriptions of devices, which are in `sys` below a root.
#[derive(Clone, Copy)]
pub(super) struct Sysfs<'a> {
    pub(super) root: &'a Path,
    pub(super) log: &'a Logger,
}

/// Returns the path of a device, such as `/dev/vdb`. The kernel writes `!` instead of `/` in names.
pub(super) fn device_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

// === impl Sysfs ===

impl Sysfs<'_> {
    pub(super) fn has(&self, path: &str) -> bool {
        // The entry of a driver is a symbolic link. Only the link must exist, not its target.
        !matches!(fs::symlink_metadata(self.root.join(path)), Err(e) if e.kind() == ErrorKind::NotFound)
    }

    /// Lists the names in a directory. The list is empty when the directory does not exist.
    pub(super) fn entries(&self, path: &str) -> io::Result<BTreeSet<String>> {
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
    pub(super) fn attribute(&self, path: &str) -> Option<String> {
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

    /// Lists the devices that may be config drives.
    pub(super) fn block_devices(&self) -> io::Result<BTreeSet<String>> {
        let mut names = self.entries(BLOCK_DEVICES)?;
        names.retain(|name| !NOT_DRIVES.iter().any(|prefix| name.starts_with(prefix)));
        Ok(names)
    }

    /// Whether a device is read before the larger devices: a small device, or a device whose size the kernel does not
    /// report. A partition does not count as small, because it is part of a device that may be large.
    pub(super) fn is_small(&self, name: &str) -> bool {
        let is_partition = self.has(&format!("{BLOCK_DEVICES}/{name}/partition"));
        !is_partition && self.sectors(name).is_none_or(|sectors| sectors <= SMALL)
    }

    /// Returns the size of a device in sectors of 512 bytes, which the kernel uses for every device. `None` when the
    /// kernel reports no size.
    pub(super) fn sectors(&self, name: &str) -> Option<u64> {
        self.attribute(&format!("{BLOCK_DEVICES}/{name}/size"))?.parse().ok()
    }
}
