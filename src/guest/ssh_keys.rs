//! The public keys that may log in, from the drive into the user's home directory.
//!
//! They go to a file of their own in `~/.ssh/authorized_keys.d`, where CoreOS has sshd read every file whose name does
//! not begin with a dot, and beside which Ignition and afterburn have theirs.
//!
//! Everything below the home directory is the user's, who may change it under our hands. So it is done with the
//! user's rights, as sshd reads it with the user's rights: what the user could not write, we do not write either.
//! Beyond that no link that leaves the home directory is followed, and every step is relative to an open directory.

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
    /// The home directory.
    pub home: PathBuf,
    /// The user's number.
    pub uid: u32,
    /// The number of the user's first group.
    pub gid: u32,
}

/// The file in `authorized_keys.d`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum KeyFile {
    /// `glowplug`
    #[default]
    Glowplug,
    /// `afterburn`, for an sshd that is told to read this one file.
    Afterburn,
}

/// A text that names no [`KeyFile`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeyFileError;

/// The user's own directory of sshd, below the home directory.
const SSH: &str = ".ssh";
/// The name of the directory of key files, and where it is below the home directory.
const KEY_FILES: (&str, &str) = ("authorized_keys.d", ".ssh/authorized_keys.d");

/// Writes the keys, one a line, to the file in the user's `~/.ssh/authorized_keys.d`, in one step, and says where that
/// is.
///
/// No keys are no file: the one of an earlier run is removed, so that a key that was taken off the drive does not open
/// the machine for ever. Whoever could not read the drive does not know that there are none, and must not call this.
///
/// Directories that are missing are made, for the user alone (0700), like the file (0600). One that is there must be
/// the user's own: a `.ssh` of root's in somebody's home is there to keep keys out. It keeps its mode, but others
/// may no longer write to it, since sshd would then refuse what is in it. It may be a link inside the home directory.
///
/// # Errors
///
/// What the system says, with the place below the home directory; or that a directory there belongs to someone else, or
/// is a link that leaves the home directory; or that we may not act with the user's rights, which takes root.
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

/// The user's home directory.
struct Home {
    directory: OwnedFd,
    uid: u32,
}

/// A file that does not outlive its use.
struct Temporary<'a> {
    directory: &'a OwnedFd,
    name: String,
}

/// The rights with which this thread uses files. Dropped, it has its former ones again.
struct Rights {
    former_gid: Gid,
    former_uid: Uid,
}

// === impl Account ===

impl Account {
    /// The largest `/etc/passwd`, in bytes.
    const MAX_PASSWD: u64 = 1024 * 1024;

    /// Finds a user in the `/etc/passwd` below a root. `None` when there is no such user, or no such file.
    ///
    /// A static program asks no other directory of users.
    ///
    /// # Errors
    ///
    /// That this is no name of a user, that the user's line cannot be understood, or what the system says.
    pub fn find(user: &str, root: &Path) -> io::Result<Option<Self>> {
        let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'@' | b'$' | b'-');
        if user.is_empty() || user.len() > 256 || user.starts_with(['-', '.']) || !user.bytes().all(legal) {
            let message = format!("invalid user name {user:?}, expected letters, digits, '_', '.', '@', '$' and '-'");
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let mut passwd = Vec::new();
        match File::open(root.join("etc/passwd")) {
            Ok(file) => file.take(Self::MAX_PASSWD + 1).read_to_end(&mut passwd)?,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        if passwd.len() as u64 > Self::MAX_PASSWD {
            return Err(invalid(format!("/etc/passwd: too many bytes, expected at most {}", Self::MAX_PASSWD)));
        }
        // The first one counts, as it does for everybody else. In between there may be any bytes.
        let mut lines = passwd.split(|b| *b == b'\n').map(|line| line.split(|b| *b == b':').collect::<Vec<_>>());
        let Some(fields) = lines.find(|fields| fields.first() == Some(&user.as_bytes())) else { return Ok(None) };
        let account = match fields[..] {
            [_, _, uid, gid, _, home, _] => number(uid).zip(number(gid)).zip(home.strip_prefix(b"/")),
            _ => None,
        };
        let Some(((uid, gid), home)) = account else {
            let expected = "name:password:uid:gid:comment:/home:shell";
            return Err(invalid(format!("/etc/passwd: invalid line of user {user:?}, expected {expected}")));
        };
        Ok(Some(Self { home: root.join(OsStr::from_bytes(home)), uid, gid }))
    }
}

/// A number in digits alone, which `parse` does not insist on.
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

    /// The directory at the path, which is `name` in `parent` unless the user has just moved it.
    fn make(&self, parent: &OwnedFd, name: &str, path: &str) -> io::Result<OwnedFd> {
        let made = match mkdirat(parent, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(e) => return Err(at(path, e)),
        };
        // A link to nothing is there, too, and cannot be opened.
        let directory = self.open(path)?.ok_or_else(|| at(path, Errno::ENOENT))?;
        let mode = Mode::from_bits_truncate(fstat(&directory).map_err(|e| at(path, e))?.st_mode);
        let right = if made { Mode::S_IRWXU } else { mode - (Mode::S_IWGRP | Mode::S_IWOTH) };
        if mode != right {
            fchmod(&directory, right).map_err(|e| at(path, e))?;
        }
        Ok(directory)
    }

    /// The user's directory at the path below the home directory, `None` when there is nothing.
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
    // A name with a dot, so that nobody reads it half-written.
    let temporary = Temporary { directory, name: format!(".{name}-{}", process::id()) };
    // A process that had our number may have died here.
    temporary.remove();
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IWUSR;
    let mut file = File::from(openat(directory, temporary.name.as_str(), flags, mode)?);
    file.write_all(text.as_bytes())?;
    // The umask may have taken something away.
    fchmod(&file, mode)?;
    file.sync_all()?;
    renameat(directory, temporary.name.as_str(), directory, name)?;
    Ok(fsync(directory)?)
}

/// Says where below the home directory the system found something wrong.
fn at(path: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("~/{path}: {error}"))
}

fn refused(path: &str, reason: &str) -> io::Error {
    at(path, io::Error::new(ErrorKind::PermissionDenied, reason))
}

// === impl Temporary ===

impl Temporary<'_> {
    /// When it cannot be removed, it cannot be made either, and that is said.
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
    /// Takes the user's rights to files. The kernel takes root's power over files away with them.
    fn of(account: &Account) -> io::Result<Self> {
        let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
        let rights = Self { former_gid: setfsgid(gid), former_uid: setfsuid(uid) };
        // Neither call says whether it was successful, but each says what was there before.
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
