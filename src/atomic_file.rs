//! Writes files in one step, so that no reader sees a part of a file.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// Prefix of the names of unfinished files. A run that was interrupted may leave such a file.
pub const UNFINISHED_PREFIX: &str = ".glowplug-";

/// Checks the path of a file that a program writes. `-` means standard input in other options, so it is not the name of an
/// output file.
///
/// # Errors
///
/// The path is `-`.
pub fn output_path(path: PathBuf) -> Result<PathBuf, &'static str> {
    if path.as_os_str() == "-" { Err("expected the name of a file") } else { Ok(path) }
}

/// Writes a file of mode 0666 without the bits of the umask. Replaces an existing file. If the path is a symbolic link,
/// replaces the link itself.
///
/// # Errors
///
/// The error of the system call, without the name of the unfinished file. After an error, the old file is unchanged.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(ErrorKind::InvalidInput)?;
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED_PREFIX).permissions(Permissions::from_mode(0o666));
    finish(builder.tempfile_in(directory).map_err(without_name)?, path, content)
}

/// Writes a file of mode 0644, regardless of the umask. Creates the directory if it is missing. Replaces an existing
/// file. If the path is a symbolic link, replaces the link itself.
///
/// # Errors
///
/// The error of the system call, without the name of the unfinished file. After an error, the old file is unchanged.
pub fn write_public(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = unfinished(path)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    finish(file, path, content)
}

/// Writes a file of mode 0600. Creates the directory if it is missing. Replaces an existing file. If the path is a
/// symbolic link, replaces the link itself.
///
/// # Errors
///
/// The error of the system call, without the name of the unfinished file. After an error, the old file is unchanged.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    finish(unfinished(path)?, path, content)
}

/// Creates an unfinished file of mode 0600 next to a path, and the directory if it is missing.
fn unfinished(path: &Path) -> io::Result<NamedTempFile> {
    let directory = path.parent().ok_or(ErrorKind::InvalidInput)?;
    fs::create_dir_all(directory)?;
    tempfile::Builder::new().prefix(UNFINISHED_PREFIX).tempfile_in(directory).map_err(without_name)
}

fn finish(file: NamedTempFile, path: &Path, content: &[u8]) -> io::Result<()> {
    file.as_file().write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Removes the name of the unfinished file from an error, because the name means nothing to a reader.
fn without_name(error: io::Error) -> io::Error {
    error.kind().into()
}
