//! System calls of the guest for drivers, mounts and time.

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

/// System calls that the search for a drive needs. All other facts about the machine come from files below the root.
#[cfg_attr(test, mockall::automock)]
pub trait System {
    /// Loads the drivers with these names or aliases and their dependencies, and waits until they are loaded.
    ///
    /// # Errors
    ///
    /// At least one driver could not be loaded. The other drivers may be loaded.
    fn load_modules(&self, names: &[String]) -> io::Result<()>;

    /// Mounts the device read-only. No file on it can be executed or used as a device.
    ///
    /// # Errors
    ///
    /// The error of the system call. After an error, nothing is mounted.
    fn mount_read_only(&self, device: &Path, file_system: FileSystem, at: &Path) -> io::Result<()>;

    /// Unmounts a device that [`System::mount_read_only`] mounted.
    ///
    /// # Errors
    ///
    /// The error of the system call. After an error, the device is still mounted.
    fn unmount(&self, at: &Path) -> io::Result<()>;

    /// Time since a fixed moment in the past. The time never goes back.
    fn now(&self) -> Duration;

    /// Sleeps for this time.
    fn sleep(&self, time: Duration);
}

/// The kernel of this machine.
///
/// The first mount moves the program to its own mount namespace. So no other program sees the mounts, and the kernel
/// removes the mounts when the program ends, even after a crash.
#[derive(Debug)]
pub struct Linux {
    start: Instant,
    alone: Cell<bool>,
}

// === impl Linux ===

impl Linux {
    /// Starts the clock of [`System::now`]. The mount namespace changes only at the first mount.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now(), alone: Cell::new(false) }
    }

    fn be_alone(&self) -> io::Result<()> {
        if !self.alone.get() {
            unshare(CloneFlags::CLONE_NEWNS)?;
            // Without this call, mounts in the new namespace would still appear in the old namespace.
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
        // -a loads all names, and -q prints nothing about names that this kernel does not know.
        let arguments = ["modprobe", "-a", "-q", "--"].into_iter().chain(names.iter().map(String::as_str));
        let arguments: Vec<CString> = arguments.map(CString::new).collect::<Result<_, _>>()?;
        // `std::process` would make the program larger.
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
