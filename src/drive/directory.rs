//! Reads a drive from a directory: a mounted drive, or a copy of a drive.
//!
//! The kernel resolves every path beneath the directory (`openat2`). A symbolic link can lead to another file of the
//! drive, but not off the drive, even if the link is changed during the read.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::source::{Files, MAX_ENTRIES, ReadError, is_name, parts};

/// An open directory with the files of a drive.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
}

// === impl Directory ===

impl Directory {
    /// Opens the directory. The result refers to this directory even if its path is later renamed or hidden by a mount.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self { root: nix::fcntl::open(path, flags, Mode::empty())? })
    }

    /// Opens the path beneath the directory. `None` when the path does not exist.
    fn open_at(&self, path: &str, flags: OFlag) -> Result<Option<OwnedFd>, ReadError> {
        parts(path)?;
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        match openat2(&self.root, if path.is_empty() { "." } else { path }, how) {
            Ok(opened) => Ok(Some(opened)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
            // A symbolic link leads off the drive, or symbolic links form a loop.
            Err(Errno::EXDEV | Errno::ELOOP) => Err(ReadError::NotAFile { path: path.to_owned() }),
            Err(e) => Err(ReadError::io(path, e.into())),
        }
    }
}

impl Files for Directory {
    fn read(&self, path: &str, limit: usize) -> Result<Option<Vec<u8>>, ReadError> {
        // O_PATH gives the type of the file without opening it: opening a device can have side effects.
        let Some(found) = self.open_at(path, OFlag::O_PATH)? else { return Ok(None) };
        regular(path, found.into())?;
        // The file may have been replaced since the check. O_NONBLOCK prevents a wait if the new file is a FIFO, and
        // the type is checked again.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        let Some(opened) = self.open_at(path, flags)? else { return Ok(None) };
        let (file, size) = regular(path, opened.into())?;
        let too_large = |size| ReadError::TooLarge { path: path.to_owned(), size, limit };
        if size > limit as u64 {
            return Err(too_large(size));
        }
        // The file may grow during the read, so its length is checked again.
        let mut content = Vec::new();
        file.take((limit as u64).saturating_add(1)).read_to_end(&mut content).map_err(|e| ReadError::io(path, e))?;
        if content.len() > limit {
            return Err(too_large(content.len() as u64));
        }
        Ok(Some(content))
    }

    fn list(&self, path: &str) -> Result<Option<Vec<String>>, ReadError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NONBLOCK;
        let Some(opened) = self.open_at(path, flags)? else { return Ok(None) };
        let mut names = Vec::new();
        let entries = Dir::from_fd(opened).map_err(|e| ReadError::io(path, e.into()))?;
        for entry in entries {
            let entry = entry.map_err(|e| ReadError::io(path, e.into()))?;
            if let Ok(name) = entry.file_name().to_str()
                && is_name(name)
            {
                names.push(name.to_owned());
            }
            if names.len() == MAX_ENTRIES {
                break;
            }
        }
        names.sort_unstable();
        Ok(Some(names))
    }
}

/// Returns the file and its size in bytes, or an error if the file is not a regular file.
fn regular(path: &str, file: File) -> Result<(File, u64), ReadError> {
    let metadata = file.metadata().map_err(|e| ReadError::io(path, e))?;
    if !metadata.is_file() {
        return Err(ReadError::NotAFile { path: path.to_owned() });
    }
    Ok((file, metadata.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use nix::unistd::mkfifo;
    use tempfile::TempDir;

    use super::*;

    /// Creates a drive in a directory, and next to this directory a file `secret` that is not on the drive.
    fn drive() -> (TempDir, Directory) {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("drive");
        fs::create_dir_all(root.join("openstack/latest")).unwrap();
        fs::write(root.join("openstack/latest/user_data"), "hello").unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let drive = Directory::open(&root).unwrap();
        (outside, drive)
    }

    fn is_not_a_file<T>(answer: Result<T, ReadError>, expected: &str) -> bool {
        matches!(answer, Err(ReadError::NotAFile { path }) if path == expected)
    }

    #[test]
    fn a_file_is_read_and_a_missing_file_is_none() {
        let (_outside, drive) = drive();
        assert_eq!(drive.read("openstack/latest/user_data", 5).unwrap(), Some(b"hello".to_vec()));
        assert_eq!(drive.read("openstack/latest/vendor_data", 5).unwrap(), None);
        assert_eq!(drive.read("openstack/latest/user_data/below", 5).unwrap(), None);
    }

    #[test]
    fn the_error_about_a_file_over_the_limit_has_both_numbers() {
        let (_outside, drive) = drive();
        let error = drive.read("openstack/latest/user_data", 3).unwrap_err();
        assert_eq!(error.to_string(), "openstack/latest/user_data: file of 5 bytes, expected at most 3");
    }

    #[test]
    fn a_symbolic_link_inside_the_drive_is_followed() {
        let (outside, drive) = drive();
        let root = outside.path().join("drive");
        symlink("latest", root.join("openstack/2018-08-27")).unwrap();
        symlink("../openstack/latest/user_data", root.join("openstack/link")).unwrap();
        assert_eq!(drive.read("openstack/2018-08-27/user_data", 5).unwrap(), Some(b"hello".to_vec()));
        assert_eq!(drive.read("openstack/link", 5).unwrap(), Some(b"hello".to_vec()));
        assert_eq!(drive.list("openstack/2018-08-27").unwrap(), Some(vec!["user_data".to_owned()]));
    }

    #[test]
    fn a_symbolic_link_never_leads_off_the_drive() {
        let (outside, drive) = drive();
        let root = outside.path().join("drive");
        symlink("../secret", root.join("relative")).unwrap();
        symlink(outside.path().join("secret"), root.join("absolute")).unwrap();
        symlink(root.join("openstack/latest/user_data"), root.join("absolute-but-back")).unwrap();
        symlink("..", root.join("above")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        for path in ["relative", "absolute", "absolute-but-back", "above/secret", "magic/etc/passwd"] {
            assert!(is_not_a_file(drive.read(path, 100), path), "{path}");
        }
        assert!(is_not_a_file(drive.list("above"), "above"));
    }

    #[test]
    fn a_loop_of_symbolic_links_is_not_a_file() {
        let (outside, drive) = drive();
        symlink("loop", outside.path().join("drive/loop")).unwrap();
        assert!(is_not_a_file(drive.read("loop", 100), "loop"));
    }

    #[test]
    fn a_path_with_a_part_that_is_not_a_plain_name_is_not_a_file() {
        let (_outside, drive) = drive();
        for path in ["../secret", "/etc/passwd", "openstack/../../secret", "openstack//latest", "."] {
            assert!(is_not_a_file(drive.read(path, 100), path), "{path}");
            assert!(is_not_a_file(drive.list(path), path), "{path}");
        }
    }

    #[test]
    fn a_fifo_is_refused_without_blocking() {
        let (outside, drive) = drive();
        mkfifo(&outside.path().join("drive/fifo"), Mode::S_IRWXU).unwrap();
        assert!(is_not_a_file(drive.read("fifo", 100), "fifo"));
        assert_eq!(drive.list("fifo").unwrap(), None);
    }

    #[test]
    fn a_device_and_a_directory_are_not_files() {
        let (_outside, drive) = drive();
        assert!(is_not_a_file(drive.read("openstack", 100), "openstack"));
        assert!(is_not_a_file(drive.read("", 100), ""));
        let devices = Directory::open(Path::new("/dev")).unwrap();
        assert!(is_not_a_file(devices.read("zero", 100), "zero"));
    }

    #[test]
    fn no_more_than_the_limit_and_one_byte_is_read_from_a_file_that_reports_size_zero() {
        let process = Directory::open(Path::new("/proc/self")).unwrap();
        let error = process.read("status", 10).unwrap_err();
        assert_eq!(error.to_string(), "status: file of 11 bytes, expected at most 10");
    }

    #[test]
    fn listed_names_are_sorted_and_at_most_4096() {
        let (outside, drive) = drive();
        let root = outside.path().join("drive");
        fs::write(root.join("a"), "").unwrap();
        assert_eq!(drive.list("").unwrap(), Some(vec!["a".to_owned(), "openstack".to_owned()]));
        assert_eq!(drive.list("a").unwrap(), None);
        assert_eq!(drive.list("b").unwrap(), None);
        fs::create_dir(root.join("many")).unwrap();
        for name in 0..MAX_ENTRIES + 10 {
            fs::write(root.join(format!("many/{name}")), "").unwrap();
        }
        assert_eq!(drive.list("many").unwrap().map(|names| names.len()), Some(MAX_ENTRIES));
    }

    #[test]
    fn a_file_cannot_be_opened_as_the_directory_of_a_drive() {
        let (outside, _drive) = drive();
        let error = Directory::open(&outside.path().join("secret")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
