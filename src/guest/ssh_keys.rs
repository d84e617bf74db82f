//! Copies public keys from the drive to the user's home directory, so that the owners of the keys can log in.
//!
//! The keys get a file of their own in `~/.ssh/authorized_keys.d`. On CoreOS sshd reads every file in this directory
//! whose name does not begin with a dot. Ignition and afterburn have their own files there.
//!
//! The user owns everything below the home directory and may change it at any time. So the program acts with the user's
//! rights, as sshd does when it reads the keys, and writes only what the user could write. Also, the program follows no
//! link that leaves the home directory, and every operation is relative to an open directory.

mod authorized_key;
#[cfg(test)]
mod tests;

pub use authorized_key::{AuthorizedKey, AuthorizedKeyError, keys_in};

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process;
use std::str::{self, FromStr};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, renameat};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fsync, setfsgid, setfsuid, unlinkat};

/// A user of this machine.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Account {
    /// Path of the home directory.
    pub home: PathBuf,
    /// User id.
    pub uid: u32,
    /// Id of the user's primary group.
    pub gid: u32,
}

/// Which file in `authorized_keys.d` gets the keys.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KeyFile {
    /// The file `glowplug`.
    #[default]
    Glowplug,
    /// The file `afterburn`, for an sshd that is configured to read only this file.
    Afterburn,
}

/// Error: a string is not the name of a [`KeyFile`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyFileError;

/// The user's directory for SSH, below the home directory.
const SSH: &str = ".ssh";
/// Directory of key files: its name, and its path below the home directory.
const KEY_FILES: (&str, &str) = ("authorized_keys.d", ".ssh/authorized_keys.d");

/// Writes the keys in one step to the file in the user's `~/.ssh/authorized_keys.d`, one key on each line. Returns the
/// path of the file.
///
/// If the list of keys is empty, the file of an earlier run is removed: the owner of a key that is no longer on the
/// drive must not be able to log in. A caller that could not read the drive must not call this function, because an
/// empty list means that the drive has no keys.
///
/// Missing directories are made with mode 0700, and the file has mode 0600. An existing directory must belong to the
/// user: root may have made a `.ssh` so that the user gets no keys. An existing directory keeps its mode, but only the
/// user keeps write permission, because sshd refuses keys that other users can change. The directory may be a link
/// inside the home directory.
///
/// # Errors
///
/// * A system call fails; the error has the path below the home directory.
/// * A directory belongs to another user, or is a link that leaves the home directory.
/// * The process cannot act with the user's rights, because it does not run as root.
pub fn write(account: &Account, file: KeyFile, keys: &[AuthorizedKey]) -> io::Result<PathBuf> {
    let _rights = Rights::of(account)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let directory = nix::fcntl::open(&account.home, flags, Mode::empty())
        .map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("{}: {e}", account.home.display())))?;
    let home = Home { directory, uid: account.uid };
    if keys.is_empty() {
        home.remove(file.name())?;
    } else {
        let text: String = keys.iter().map(|key| format!("{key}\n")).collect();
        home.replace(file.name(), &text)?;
    }
    Ok(account.home.join(KEY_FILES.1).join(file.name()))
}

/// The home directory of the user, which is kept open.
struct Home {
    directory: OwnedFd,
    uid: u32,
}

/// Temporary file that is removed when the value is dropped.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    name: String,
}

/// File access rights of this thread. The former rights are restored when the value is dropped.
struct Rights {
    former_gid: Gid,
    former_uid: Uid,
}

// === impl Account ===

impl Account {
    /// Largest `/etc/passwd` that is read, in bytes.
    const MAX_PASSWD: u64 = 1024 * 1024;

    /// Finds a user in `/etc/passwd` below a root.
    ///
    /// Only this file is searched: a static program cannot use other user databases.
    ///
    /// # Errors
    ///
    /// The string is not a valid user name, there is no such user or no such file, the user's line is invalid, or a system
    /// call fails. The error has the path of the file.
    pub fn find(user: &str, root: &Path) -> io::Result<Self> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'@' | b'$' | b'-');
        if user.is_empty() || user.len() > 256 || user.starts_with(['-', '.']) || !user.bytes().all(legal) {
            let message = format!("invalid user name {user:?}, expected letters, digits, '_', '.', '@', '$' and '-'");
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let path = root.join("etc/passwd");
        let at = path.display();
        let unknown = || io::Error::new(ErrorKind::NotFound, format!("unknown user {user:?}, expected one of {at}"));
        let mut passwd = Vec::new();
        match File::open(&path).and_then(|file| file.take(Self::MAX_PASSWD + 1).read_to_end(&mut passwd)) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Err(unknown()),
            Err(e) => return Err(io::Error::new(e.kind(), format!("{at}: {e}"))),
        }
        if passwd.len() as u64 > Self::MAX_PASSWD {
            return Err(invalid(format!("{at}: too many bytes, expected at most {}", Self::MAX_PASSWD)));
        }
        // The first line of the user is used, as in the C library. Other lines may have any bytes, so they are not
        // checked.
        let mut lines = passwd.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b':').collect::<Vec<_>>());
        let Some(fields) = lines.find(|fields| fields.first() == Some(&user.as_bytes())) else { return Err(unknown()) };
        let account = match fields[..] {
            [_, _, uid, gid, _, home, _] => number(uid).zip(number(gid)).zip(home.strip_prefix(b"/")),
            _ => None,
        };
        let Some(((uid, gid), home)) = account else {
            let expected = "name:password:uid:gid:comment:/home:shell";
            return Err(invalid(format!("{at}: invalid line of user {user:?}, expected {expected}")));
        };
        Ok(Self { home: root.join(OsStr::from_bytes(home)), uid, gid })
    }
}

/// Parses a number of digits only. `parse` would also accept a plus sign.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().all(u8::is_ascii_digit).then(|| str::from_utf8(digits).ok()?.parse().ok())?
}

fn invalid(message: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, message)
}

// === impl KeyFile ===

impl KeyFile {
    fn name(self) -> &'static str {
        match self {
            Self::Glowplug => "glowplug",
            Self::Afterburn => "afterburn",
        }
    }
}

impl FromStr for KeyFile {
    type Err = KeyFileError;

    fn from_str(text: &str) -> Result<Self, KeyFileError> {
        [Self::Glowplug, Self::Afterburn].into_iter().find(|file| file.name() == text).ok_or(KeyFileError)
    }
}

impl fmt::Display for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for KeyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected glowplug or afterburn")
    }
}

impl std::error::Error for KeyFileError {}

// === impl Home ===

impl Home {
    fn replace(&self, name: &str, text: &str) -> io::Result<()> {
        let ssh = self.make(&self.directory, SSH, SSH)?;
        let directory = self.make(&ssh, KEY_FILES.0, KEY_FILES.1)?;
        replace_in(&directory, name, text).map_err(|e| at(KEY_FILES.1, e))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let Some(directory) = self.open(KEY_FILES.1)? else { return Ok(()) };
        match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir).and_then(|()| fsync(&directory)) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(e) => Err(at(KEY_FILES.1, e)),
        }
    }

    /// Makes the directory `name` in `parent` if it is missing, and opens `path`. `path` is the path of this directory,
    /// unless the user has just moved the directory.
    fn make(&self, parent: &OwnedFd, name: &str, path: &str) -> io::Result<OwnedFd> {
        let made = match mkdirat(parent, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(e) => return Err(at(path, e)),
        };
        // A link without a target exists but cannot be opened.
        let directory = self.open(path)?.ok_or_else(|| at(path, Errno::ENOENT))?;
        let mode = Mode::from_bits_truncate(fstat(&directory).map_err(|e| at(path, e))?.st_mode);
        let right = if made { Mode::S_IRWXU } else { mode - (Mode::S_IWGRP | Mode::S_IWOTH) };
        if mode != right {
            fchmod(&directory, right).map_err(|e| at(path, e))?;
        }
        Ok(directory)
    }

    /// Opens the directory at the path below the home directory. `None` when the path does not exist. A directory that
    /// belongs to another user is an error.
    fn open(&self, path: &str) -> io::Result<Option<OwnedFd>> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let directory = match openat2(&self.directory, path, how) {
            Ok(directory) => directory,
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::EXDEV) => {
                return Err(refused(path, "a link out of the home directory, expected a directory in it"));
            }
            Err(e) => return Err(at(path, e)),
        };
        let owner = fstat(&directory).map_err(|e| at(path, e))?.st_uid;
        if owner != self.uid {
            return Err(refused(path, &format!("a directory of user {owner}, expected one of user {}", self.uid)));
        }
        Ok(Some(directory))
    }
}

fn replace_in(directory: &OwnedFd, name: &str, text: &str) -> io::Result<()> {
    // The name begins with a dot, so sshd does not read an unfinished file.
    let temporary = Temporary { directory, name: format!(".{name}-{}", process::id()) };
    // An earlier process with the same process id may have left this file.
    temporary.remove();
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let mut file = File::from(openat(directory, temporary.name.as_str(), flags, mode)?);
    file.write_all(text.as_bytes())?;
    // The umask may have removed bits of the mode.
    fchmod(&file, mode)?;
    file.sync_all()?;
    renameat(directory, temporary.name.as_str(), directory, name)?;
    Ok(fsync(directory)?)
}

/// Adds the path below the home directory to an error.
fn at(path: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("~/{path}: {error}"))
}

fn refused(path: &str, reason: &str) -> io::Error {
    at(path, io::Error::new(ErrorKind::PermissionDenied, reason))
}

// === impl Temporary ===

impl Temporary<'_> {
    /// Removes the file and ignores errors: if the file cannot be removed, it cannot be created either, and the error
    /// of the creation is reported.
    fn remove(&self) {
        let _ = unlinkat(self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir);
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

// === impl Rights ===

impl Rights {
    /// Gives this thread the file access rights of the user. The kernel also removes the rights with which root can
    /// access every file.
    fn of(account: &Account) -> io::Result<Self> {
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        let rights = Self { former_gid: setfsgid(gid), former_uid: setfsuid(uid) };
        // Neither call reports success, but each call returns the former id.
        if setfsgid(gid) == gid && setfsuid(uid) == uid {
            Ok(rights)
        } else {
            let message = format!("no permission to act for user {uid} and group {gid}, expected to run as root");
            Err(io::Error::new(ErrorKind::PermissionDenied, message))
        }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        setfsuid(self.former_uid);
        setfsgid(self.former_gid);
    }
}
