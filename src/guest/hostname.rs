//! Writes the hostname from the drive to `/etc/hostname`.

use std::io;
use std::path::Path;

use crate::atomic_file::write_public;
use crate::network::Hostname;

/// Writes the name and a newline in one step. Replaces an existing file. If the path is a symbolic link, replaces the
/// link itself.
///
/// # Errors
///
/// The error of the system call.
pub fn write(path: &Path, name: &Hostname) -> io::Result<()> {
    write_public(path, format!("{name}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn the_hostname_file_has_one_line_and_every_user_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("etc/hostname");
        for name in ["worker-0", "w"] {
            write(&path, &name.parse().unwrap()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{name}\n"));
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(root.path().join("etc")).unwrap().count(), 1);
    }

    #[test]
    fn a_symbolic_link_is_replaced_and_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let (path, other) = (root.path().join("hostname"), root.path().join("other"));
        fs::write(&other, "other").unwrap();
        symlink(&other, &path).unwrap();
        write(&path, &"worker-0".parse().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }
}
