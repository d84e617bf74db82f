//! What the guest asks of the kernel and a directory tree cannot answer.

use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, posix_spawnp};
use nix::sys::wait::{WaitStatus, waitpid};

use crate::drive::FileSystem;

/// The kernel, as far as a drive needs it. Everything else that the guest wants to know is a file below its root.
#[cfg_attr(test, mockall::automock)]
pub trait System {
    /// Has the drivers of these names and aliases loaded, each with what it depends on, and waits for it.
    ///
    /// # Errors
    ///
    /// Not every one of them could be loaded. The others may well be.
    fn load_modules(&self, names: &[String]) -> io::Result<()>;

    /// Mounts the device, so that nothing on it can be written, executed or used as a device.
    ///
    /// # Errors
    ///
    /// What the system says. Nothing is mounted then.
    fn mount_read_only(&self, device: &Path, file_system: FileSystem, at: &Path) -> io::Result<()>;

    /// Undoes [`System::mount_read_only`].
    ///
    /// # Errors
    ///
    /// What the system says. The drive is still mounted then.
    fn unmount(&self, at: &Path) -> io::Result<()>;

    /// A time that never goes back, since some moment in the past.
    fn now(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The kernel that runs this program.
///
/// The first mount moves the program to a mount namespace of its own. What it mounts is seen by nobody else, and is gone
/// with the program, however that ends.
#[derive(Debug)]
pub struct Linux {
    start: Instant,
    alone: Cell<bool>,
}

// === impl Linux ===

impl Linux {
    /// Changes nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), alone: Cell::new(false) }
    }

    fn be_alone(&self) -> io::Result<()> {
        if !self.alone.get() {
            unshare(CloneFlags::CLONE_NEWNS)?;
            // The new namespace still hands its mounts on to the old one.
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
            self.alone.set(true);
        }
        Ok(())
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl System for Linux {
    fn load_modules(&self, names: &[String]) -> io::Result<()> {
        // All of them, quiet about those that this kernel does not know.
        let arguments = ["modprobe", "-a", "-q", "--"].into_iter().chain(names.iter().map(String::as_str));
        let arguments: Vec<CString> = arguments.map(CString::new).collect::<Result<_, _>>()?;
        // A fraction of what `std::process` weighs.
        let (files, attributes) = (PosixSpawnFileActions::init()?, PosixSpawnAttr::init()?);
        let environment: [&CStr; 0] = [];
        let child = posix_spawnp(c"modprobe", &files, &attributes, &arguments, &environment)?;
        match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(()),
            WaitStatus::Exited(_, code) => Err(io::Error::other(format!("modprobe: exit status {code}"))),
            _ => Err(io::Error::other("modprobe: ended by a signal")),
        }
    }

    fn mount_read_only(&self, device: &Path, file_system: FileSystem, at: &Path) -> io::Result<()> {
        self.be_alone()?;
        let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        Ok(mount(Some(device), at, Some(file_system.to_string().as_str()), flags, None::<&str>)?)
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        Ok(umount2(at, MntFlags::UMOUNT_NOFOLLOW)?)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether or not this machine has a modprobe, it has no such module.
    #[test]
    fn a_module_that_cannot_be_loaded_is_said() {
        let outcome = Linux::new().load_modules(&["glowplug-no-such-module".to_owned()]);
        let text = outcome.map_err(|e| e.to_string()).unwrap_err();
        let missing = io::Error::from(nix::errno::Errno::ENOENT).to_string();
        assert!(text == "modprobe: exit status 1" || text == missing, "{text}");
    }
}
