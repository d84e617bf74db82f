//! The public keys that may log in, from the drive into the user's home directory.
//!
//! They go to a file of their own in `~/.ssh/authorized_keys.d`, where CoreOS has sshd read every file whose name does
//! not begin with a dot, and beside which Ignition and afterburn have theirs.
//!
//! Everything below the home directory is the user's, who may change it under our hands. So it is done with the
//! user's rights, as sshd reads it with the user's rights: what the user could not write, we do not write either.
//! Beyond that no link that leaves the home directory is followed, and every step is relative to an open directory.

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

use crate::finding::{Finding, Findings};

/// One line of an `authorized_keys` file that sshd can use: options, kind, key, comment (sshd(8)).
///
/// The line is written again from its parts. The key is whole: its base64 text is canonical, and what it holds is a
/// complete key of the kind that stands before it, so one that was cut off while it was copied is found here and not at
/// the first attempt to log in. The names of options are left to sshd, which learns new ones.
///
/// Not taken are DSA keys, which sshd no longer has, and certificates, which sshd does not look for in such a file.
///
/// ```
/// use glowplug::guest::ssh_keys::{AuthorizedKey, AuthorizedKeyError};
///
/// let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA  me@example";
/// assert_eq!(line.parse::<AuthorizedKey>().unwrap().to_string(), line.replace("  ", " "));
/// assert_eq!(line.replace("AAAA  me", "  me").parse::<AuthorizedKey>(), Err(AuthorizedKeyError::Key));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AuthorizedKey(String);

/// Why a line is no [`AuthorizedKey`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AuthorizedKeyError {
    /// It is longer than [`AuthorizedKey::MAX`].
    TooLong,
    /// It has a control character other than a tab.
    ControlCharacter,
    /// What stands before the kind cannot be read as options.
    Options,
    /// There is no kind, or an unknown one.
    Kind,
    /// It is a certificate.
    Certificate,
    /// The key is not base64, or not a complete key of its kind.
    Key,
}

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

/// The kinds of keys, each with the number of fields in a key of it.
const KINDS: [(&str, usize); 7] = [
    ("ssh-ed25519", 2),
    ("ssh-rsa", 3),
    ("ecdsa-sha2-nistp256", 3),
    ("ecdsa-sha2-nistp384", 3),
    ("ecdsa-sha2-nistp521", 3),
    ("sk-ssh-ed25519@openssh.com", 3),
    ("sk-ecdsa-sha2-nistp256@openssh.com", 4),
];

/// What stands between the parts of a line.
const BLANKS: [char; 2] = [' ', '\t'];

/// The user's own directory of sshd, below the home directory.
const SSH: &str = ".ssh";
/// The name of the directory of key files, and where it is below the home directory.
const KEY_FILES: (&str, &str) = ("authorized_keys.d", ".ssh/authorized_keys.d");

/// Reads a value that has one key a line, as KubeVirt copies it from a Secret: empty lines and comments between them,
/// lines ended as on Windows.
///
/// A line that is no key is a warning, and the others are kept. No message shows more than the beginning of a line; of
/// a private key, which somebody may have put there, that of its first one.
pub fn keys_in(text: &str, place: &str, findings: &mut Findings) -> Vec<AuthorizedKey> {
    const SHOWN: usize = 16;
    let mut keys = Vec::new();
    let mut in_private_key = false;
    let several = text.trim_end().contains('\n');
    for (number, line) in (1..).zip(text.split('\n')) {
        let line = line.strip_suffix('\r').unwrap_or(line).trim_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is_edge = |word| line.starts_with("----") && line.contains(word);
        let begins = is_edge("BEGIN ");
        match line.parse::<AuthorizedKey>() {
            Ok(key) => keys.push(key),
            Err(_) if in_private_key && !begins => in_private_key = !is_edge("END "),
            Err(e) => {
                in_private_key = begins;
                let value = match line.char_indices().nth(SHOWN) {
                    Some((end, _)) => format!("{}…", &line[..end]),
                    None => line.to_owned(),
                };
                let (problem, expected) = e.text();
                findings.push(if several {
                    Finding::warning(format_args!("{place} line {number}"), problem, value, expected)
                } else {
                    Finding::warning(place, problem, value, expected)
                });
            }
        }
    }
    keys
}

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

// === impl AuthorizedKey ===

impl AuthorizedKey {
    /// The longest line, in bytes. OpenSSH takes no longer key either.
    pub const MAX: usize = 16 * 1024;
}

impl FromStr for AuthorizedKey {
    type Err = AuthorizedKeyError;

    fn from_str(line: &str) -> Result<Self, AuthorizedKeyError> {
        if line.len() > Self::MAX {
            return Err(AuthorizedKeyError::TooLong);
        }
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return Err(AuthorizedKeyError::ControlCharacter);
        }
        let line = line.trim_matches(BLANKS);
        let is_none = |word| kind_of(word) == Err(AuthorizedKeyError::Kind);
        // As sshd does: what does not begin with a kind begins with options.
        let (options, rest) = match kind_of(word(line).0) {
            Ok(_) => ("", line),
            // Without any kind, that is what is wrong with the line.
            Err(e) if e == AuthorizedKeyError::Certificate || line.split(BLANKS).all(is_none) => return Err(e),
            Err(_) => split_options(line)?,
        };
        let (kind, rest) = word(rest);
        let (key, comment) = word(rest);
        let (kind, fields) = kind_of(kind)?;
        if !decode_base64(key).is_some_and(|key| is_whole(&key, kind, fields)) {
            return Err(AuthorizedKeyError::Key);
        }
        let mut written = String::new();
        for part in [options, kind, key, comment].into_iter().filter(|part| !part.is_empty()) {
            if !written.is_empty() {
                written.push(' ');
            }
            written.push_str(part);
        }
        Ok(Self(written))
    }
}

impl fmt::Display for AuthorizedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kind of this name, with the number of its fields.
fn kind_of(name: &str) -> Result<(&'static str, usize), AuthorizedKeyError> {
    match KINDS.into_iter().find(|(kind, _)| *kind == name) {
        Some(kind) => Ok(kind),
        None if name.ends_with("-cert-v01@openssh.com") => Err(AuthorizedKeyError::Certificate),
        None => Err(AuthorizedKeyError::Kind),
    }
}

/// What stands before the first blank, and what stands behind the blanks.
fn word(text: &str) -> (&str, &str) {
    text.split_once(BLANKS).map_or((text, ""), |(word, rest)| (word, rest.trim_start_matches(BLANKS)))
}

/// The options and what follows them. An option is a name, or `name="value"`; commas stand between them.
fn split_options(line: &str) -> Result<(&str, &str), AuthorizedKeyError> {
    let mut rest = line;
    loop {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-');
        if after.len() == rest.len() {
            return Err(AuthorizedKeyError::Options);
        }
        rest = match after.strip_prefix("=\"") {
            Some(value) => after_value(value).ok_or(AuthorizedKeyError::Options)?,
            None => after,
        };
        match rest.strip_prefix(',') {
            Some(next) => rest = next,
            None if rest.is_empty() || rest.starts_with(BLANKS) => break,
            None => return Err(AuthorizedKeyError::Options),
        }
    }
    Ok((&line[..line.len() - rest.len()], rest.trim_start_matches(BLANKS)))
}

/// What follows the quote that ends a value. A backslash means something before a quote only.
fn after_value(value: &str) -> Option<&str> {
    let bytes = value.as_bytes();
    let mut at = 0;
    loop {
        match (bytes.get(at)?, bytes.get(at + 1)) {
            (b'\\', Some(b'"')) => at += 2,
            (b'"', _) => return Some(&value[at + 1..]),
            _ => at += 1,
        }
    }
}

/// The bytes of a canonical base64 text (RFC 4648, section 4): padded, and no bit set that stands for nothing.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for digit in digits.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    (bits == 0).then_some(bytes)
}

/// Whether a key is so many fields, each behind its length, of which the first is the kind (RFC 4253, section 6.6).
fn is_whole(key: &[u8], kind: &str, fields: usize) -> bool {
    let (mut rest, mut count) = (key, 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let Some((field, after)) = after.split_at_checked(u32::from_be_bytes(*length) as usize) else { return false };
        if count == 0 && field != kind.as_bytes() {
            return false;
        }
        (rest, count) = (after, count + 1);
    }
    rest.is_empty() && count == fields
}

// === impl AuthorizedKeyError ===

impl AuthorizedKeyError {
    /// What is wrong, and what would have been right.
    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::TooLong => ("line too long", "at most 16384 bytes"),
            Self::ControlCharacter => ("control character", "text without any"),
            Self::Options => ("invalid options", "name or name=\"value\", between commas, before the kind of key"),
            Self::Kind => (
                "no known kind of key",
                "a public key of ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256, -384 or -521, or of a security key",
            ),
            Self::Certificate => {
                ("certificate", "a public key, such as that of the authority with cert-authority before it")
            }
            Self::Key => ("damaged key", "the whole base64 text of a key of the kind before it"),
        }
    }
}

impl fmt::Display for AuthorizedKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, expected) = self.text();
        write!(f, "{problem}, expected {expected}")
    }
}

impl std::error::Error for AuthorizedKeyError {}

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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvOyfbMc45QK4WHdcfY2I+o08HFV62AVFgSIDtGR1K+";

    fn encode_base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in bytes.chunks(3) {
            let bits = (0..3).fold(0, |bits, i| bits << 8 | usize::from(chunk.get(i).copied().unwrap_or(0)));
            for digit in 0..4 {
                text.push(if digit > chunk.len() { '=' } else { char::from(DIGITS[bits >> (18 - 6 * digit) & 63]) });
            }
        }
        text
    }

    /// The kind, and a key of these fields behind the kind.
    fn key(kind: &str, fields: &[&[u8]]) -> String {
        let mut bytes = Vec::new();
        for field in [kind.as_bytes()].iter().chain(fields) {
            bytes.extend(u32::try_from(field.len()).unwrap().to_be_bytes());
            bytes.extend(*field);
        }
        format!("{kind} {}", encode_base64(&bytes))
    }

    fn read(line: &str) -> Result<String, AuthorizedKeyError> {
        line.parse().map(|key: AuthorizedKey| key.to_string())
    }

    macro_rules! accepts {
        ($($name:ident: $line:expr => $written:expr;)*) => {
            $(#[test] fn $name() {
                assert_eq!(read(&$line), Ok(String::from($written)));
            })*
        };
    }

    macro_rules! rejects {
        ($($name:ident: $line:expr => $error:ident;)*) => {
            $(#[test] fn $name() {
                assert_eq!(read(&$line), Err(AuthorizedKeyError::$error));
            })*
        };
    }

    accepts! {
        a_key_alone: ED25519 => ED25519;
        a_comment_of_words: format!("{ED25519} José on his laptop") => format!("{ED25519} José on his laptop");
        other_blanks: format!("\t {}\t a  b \t", ED25519.replace(' ', " \t")) => format!("{ED25519} a  b");
        options: format!("no-pty,restrict  {ED25519}") => format!("no-pty,restrict {ED25519}");
        options_with_blanks_and_quotes:
            format!(r#"command="echo \"a, b\" \\n",from="10.0.0.0/8,!*.example",X11-forwarding {ED25519} c"#)
            => format!(r#"command="echo \"a, b\" \\n",from="10.0.0.0/8,!*.example",X11-forwarding {ED25519} c"#);
        an_option_that_is_empty: format!(r#"from="" {ED25519}"#) => format!(r#"from="" {ED25519}"#);
        the_longest_line: format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len() - 1))
            => format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len() - 1));
        a_security_key: key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"])
            => key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"]);
        an_older_security_key: key("sk-ecdsa-sha2-nistp256@openssh.com", &[b"nistp256", &[4; 65], b"ssh:"])
            => key("sk-ecdsa-sha2-nistp256@openssh.com", &[b"nistp256", &[4; 65], b"ssh:"]);
    }

    rejects! {
        nothing: "" => Kind;
        a_comment_line: format!("# {ED25519}") => Options;
        one_word: "hello" => Kind;
        the_key_without_its_kind: ED25519.replace("ssh-ed25519 ", "") => Kind;
        a_kind_in_capitals: ED25519.replace("ssh-ed", "SSH-ED") => Kind;
        dsa: key("ssh-dss", &[&[1; 9], &[1; 9], &[1; 9], &[1; 9]]) => Kind;
        a_private_key: "-----BEGIN OPENSSH PRIVATE KEY-----" => Kind;
        options_twice: format!("no-pty restrict {ED25519}") => Kind;
        an_option_without_quotes: format!("from=10.0.0.1 {ED25519}") => Options;
        an_open_quote: format!(r#"command="a {ED25519}"#) => Options;
        an_open_quote_behind_a_backslash: format!(r#"command="a\" {ED25519}"#) => Options;
        something_behind_a_quote: format!(r#"command="a"b {ED25519}"#) => Options;
        an_option_that_is_missing: format!("no-pty,,restrict {ED25519}") => Options;
        a_comma_at_the_end: format!("no-pty, {ED25519}") => Options;
        a_certificate: key("ssh-ed25519-cert-v01@openssh.com", &[&[1; 32], &[1; 32]]) => Certificate;
        a_certificate_behind_options: format!("no-pty {}", key("ssh-rsa-cert-v01@openssh.com", &[])) => Certificate;
        a_kind_alone: "ssh-ed25519" => Key;
        another_kind_than_the_keys: ED25519.replace("ssh-ed25519", "ssh-rsa") => Key;
        the_end_is_missing: &ED25519[..ED25519.len() - 4] => Key;
        something_behind_the_key: format!("{ED25519}AAAA") => Key;
        the_last_digit_is_missing: &ED25519[..ED25519.len() - 1] => Key;
        another_alphabet: ED25519.replace('+', "-") => Key;
        one_field_too_few: key("ssh-rsa", &[&[1; 3]]) => Key;
        one_field_too_many: key("ssh-ed25519", &[&[1; 32], b""]) => Key;
        a_length_beyond_the_end: format!("ssh-ed25519 {}", encode_base64(b"\xff\xff\xff\xffssh-ed25519")) => Key;
        padding_that_is_missing: key("ssh-ed25519", &[&[1; 33]]).replace('=', "") => Key;
        padding_in_the_middle: key("ssh-ed25519", &[&[1; 33]]).replace('=', "=A") => Key;
        bits_for_nothing: key("ssh-ed25519", &[&[0; 33]]).replace("A==", "B==") => Key;
        padding_alone: "ssh-ed25519 ====" => Key;
        a_newline: format!("{ED25519} a\nssh-rsa") => ControlCharacter;
        a_return: format!("{ED25519} a\rb") => ControlCharacter;
        an_escape: format!("{ED25519} \u{1b}[2J") => ControlCharacter;
        a_zero: format!("{ED25519}\0") => ControlCharacter;
        too_long: format!("{ED25519} {}", "c".repeat(AuthorizedKey::MAX - ED25519.len())) => TooLong;
    }

    #[test]
    fn every_base64_text_is_decoded() {
        let bytes: Vec<u8> = (0..=255).collect();
        for length in 0..=bytes.len() {
            assert_eq!(decode_base64(&encode_base64(&bytes[..length])).as_deref(), Some(&bytes[..length]));
        }
    }

    /// The keys of a value and what is said about it.
    fn keys_and_findings(text: &str) -> (Vec<String>, Vec<String>) {
        let mut findings = Findings::default();
        let keys = keys_in(text, "public_keys[1]", &mut findings);
        assert!(!findings.has_errors());
        let said = findings.kept().iter().map(Finding::to_string).collect();
        (keys.iter().map(AuthorizedKey::to_string).collect(), said)
    }

    #[test]
    fn a_value_may_hold_several_keys_and_comments() {
        let text = format!("# mine\r\n{ED25519} a\r\n\r\n  \t\n #another\n\t{ED25519} b\n\n");
        assert_eq!(keys_and_findings(&text), (vec![format!("{ED25519} a"), format!("{ED25519} b")], vec![]));
        assert_eq!(keys_and_findings(""), (vec![], vec![]));
        assert_eq!(keys_and_findings("\n# nothing\n"), (vec![], vec![]));
    }

    #[test]
    fn a_bad_line_costs_itself() {
        let cut = &ED25519[..ED25519.len() - 4];
        let text = format!("{ED25519} a\n{cut}\n{ED25519} b\nno,,pty {ED25519}\nssh-dss A\u{7} me\n");
        let said = [
            (2, r#"damaged key "ssh-ed25519 AAAA…""#, "the whole base64 text of a key of the kind before it"),
            (
                4,
                r#"invalid options "no,,pty ssh-ed25…""#,
                r#"name or name="value", between commas, before the kind of key"#,
            ),
            (5, r#"control character "ssh-dss A\u{7} me""#, "text without any"),
        ]
        .map(|(line, problem, expected)| format!("public_keys[1] line {line}: {problem}, expected {expected}"));
        let keys = vec![format!("{ED25519} a"), format!("{ED25519} b")];
        assert_eq!(keys_and_findings(&text), (keys, said.to_vec()));
    }

    #[test]
    fn a_value_of_one_line_has_no_line_numbers() {
        let long = "x".repeat(16385);
        for (text, problem, expected) in [
            (
                "ssh-dss AAAA\n",
                r#"no known kind of key "ssh-dss AAAA""#,
                "a public key of ssh-ed25519, ssh-rsa, ecdsa-sha2-nistp256, -384 or -521, or of a security key",
            ),
            (
                "ssh-rsa-cert-v01@openssh.com AAAA",
                r#"certificate "ssh-rsa-cert-v01…""#,
                "a public key, such as that of the authority with cert-authority before it",
            ),
            (&long, r#"line too long "xxxxxxxxxxxxxxxx…""#, "at most 16384 bytes"),
        ] {
            let said = format!("public_keys[1]: {problem}, expected {expected}");
            assert_eq!(keys_and_findings(text), (vec![], vec![said]));
        }
    }

    #[test]
    fn nothing_of_a_private_key_is_shown() {
        let (begin, end) = ("-----BEGIN OPENSSH PRIVATE KEY-----", "-----END OPENSSH PRIVATE KEY-----");
        let (keys, said) = keys_and_findings(&format!("{begin}\nc2VjcmV0\nc2VjcmV0\n{end}\n{ED25519}\nbad\n"));
        let expected = AuthorizedKeyError::Kind.text().1;
        let shown = [(1, "-----BEGIN OPENS…"), (6, "bad")];
        let shown = shown.map(|(line, value)| {
            format!(r#"public_keys[1] line {line}: no known kind of key "{value}", expected {expected}"#)
        });
        assert_eq!((keys, said), (vec![ED25519.to_owned()], shown.to_vec()));
        let (keys, said) = keys_and_findings(&format!("{begin}\nc2VjcmV0\n{ED25519}\n"));
        assert_eq!((keys.len(), said.len()), (1, 1));
    }

    #[test]
    fn what_passes_is_what_openssh_reads() {
        let directory = tempfile::tempdir().unwrap();
        let keygen = |arguments: &[&str]| {
            let output = Command::new("ssh-keygen").current_dir(&directory).args(arguments).output();
            let output = output.expect("running ssh-keygen of the package openssh-client");
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let mut lines = vec![key("sk-ssh-ed25519@openssh.com", &[&[1; 32], b"ssh:"])];
        for (kind, bits) in [("ed25519", "256"), ("rsa", "2048"), ("ecdsa", "256"), ("ecdsa", "384"), ("ecdsa", "521")]
        {
            let name = format!("{kind}{bits}");
            keygen(&["-q", "-t", kind, "-b", bits, "-N", "", "-C", "a comment", "-f", &name]);
            lines.push(fs::read_to_string(directory.path().join(name + ".pub")).unwrap());
        }
        lines.push(format!(r#"command="echo \"a b\"",no-pty {ED25519} with options"#));
        let (keys, said) = keys_and_findings(&lines.join("\n"));
        assert_eq!((keys.len(), said), (7, vec![]));
        fs::write(directory.path().join("authorized_keys"), keys.join("\n")).unwrap();
        let read = keygen(&["-l", "-f", "authorized_keys"]);
        let kinds: Vec<_> = read.lines().filter_map(|line| line.rsplit(' ').next()).collect();
        assert_eq!(kinds, ["(ED25519-SK)", "(ED25519)", "(RSA)", "(ECDSA)", "(ECDSA)", "(ECDSA)", "(ED25519)"]);
    }

    // === accounts ===

    fn find(passwd: &[u8], user: &str) -> Result<Option<Account>, String> {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        let account = Account::find(user, root.path()).map_err(|e| e.to_string())?;
        Ok(account.map(|account| {
            let home = Path::new("/").join(account.home.strip_prefix(root.path()).unwrap());
            Account { home, ..account }
        }))
    }

    #[test]
    fn a_user_is_found_by_the_whole_name() {
        let passwd = b"root:x:0:0:root:/root:/bin/bash\ncored:x:1:1::/:/bin/sh\n\xe4:x\n\n\
            core:x:1000:1001:\xe4:/var/home/core:/bin/bash\ncore:x:0:0::/root:\n";
        let core = Account { home: "/var/home/core".into(), uid: 1000, gid: 1001 };
        assert_eq!(find(passwd, "core"), Ok(Some(core)));
        assert_eq!(find(passwd, "root"), Ok(Some(Account { home: "/root".into(), uid: 0, gid: 0 })));
        assert_eq!(find(passwd, "cor"), Ok(None));
        assert_eq!(Account::find("core", tempfile::tempdir().unwrap().path()).unwrap(), None);
    }

    #[test]
    fn a_line_that_is_not_understood_is_an_error() {
        let expected = "expected name:password:uid:gid:comment:/home:shell";
        let error = Err(format!("/etc/passwd: invalid line of user \"core\", {expected}"));
        for line in [
            "core",
            "core:x:1000:1000::/home/core",
            "core:x:1000:1000::/home/core::",
            "core:x:+1:1000::/home/core:",
            "core:x::1000::/home/core:",
            "core:x:4294967296:1::/home/core:",
            "core:x:1:-1::/home/core:",
            "core:x:1:1::home/core:",
            "core:x:1:1:::",
        ] {
            assert_eq!(find(line.as_bytes(), "core"), error, "{line}");
        }
        let long = vec![b'\n'; 1024 * 1024 + 1];
        assert_eq!(find(&long, "core"), Err("/etc/passwd: too many bytes, expected at most 1048576".to_owned()));
    }

    #[test]
    fn what_is_no_name_is_looked_up_nowhere() {
        let expected = "expected letters, digits, '_', '.', '@', '$' and '-'";
        for name in ["", "/", "../root", "a:b", "a\nb", "a b", "-core", ".", "ä", &"a".repeat(257)] {
            assert_eq!(find(b"a b:x:1:1::/:\n", name), Err(format!("invalid user name {name:?}, {expected}")));
        }
    }

    // === files ===

    /// A home directory, of another user when we are root, with something outside that is the user's, too.
    struct Machine {
        directory: TempDir,
        account: Account,
    }

    impl Machine {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
            let (uid, gid) = match nix::unistd::geteuid().as_raw() {
                0 => (61_234, 61_235),
                uid => (uid, nix::unistd::getegid().as_raw()),
            };
            let account = Account { home: directory.path().join("home"), uid, gid };
            let machine = Self { directory, account };
            machine.make("home", 0o755);
            machine.make("outside", 0o755);
            machine
        }

        fn path(&self, path: &str) -> PathBuf {
            self.directory.path().join(path)
        }

        /// Makes a directory of the user's.
        fn make(&self, path: &str, mode: u32) {
            fs::create_dir(self.path(path)).unwrap();
            chown(self.path(path), Some(self.account.uid), Some(self.account.gid)).unwrap();
            fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
        }

        fn write(&self, lines: &[&str]) -> Result<PathBuf, String> {
            let keys: Vec<_> = lines.iter().map(|line| line.parse().unwrap()).collect();
            write(&self.account, KeyFile::Glowplug, &keys).map_err(|e| e.to_string())
        }

        /// Mode, and that it is the user's.
        fn mode(&self, path: &str) -> u32 {
            let found = fs::symlink_metadata(self.path(path)).unwrap();
            assert_eq!((found.uid(), found.gid()), (self.account.uid, self.account.gid), "{path}");
            found.mode() & 0o7777
        }

        fn names(&self, path: &str) -> Vec<String> {
            let entries = fs::read_dir(self.path(path)).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }

        fn written(&self) -> String {
            fs::read_to_string(self.path(FILE)).unwrap()
        }
    }

    const DIRECTORY: &str = "home/.ssh/authorized_keys.d";
    const FILE: &str = "home/.ssh/authorized_keys.d/glowplug";

    #[test]
    fn everything_is_made_for_the_user_alone() {
        let machine = Machine::new();
        let second = format!("{ED25519} b");
        assert_eq!(machine.write(&[ED25519, &second]), Ok(machine.path(FILE)));
        assert_eq!(machine.written(), format!("{ED25519}\n{second}\n"));
        let modes = ["home", "home/.ssh", DIRECTORY, FILE].map(|path| machine.mode(path));
        assert_eq!(modes, [0o755, 0o700, 0o700, 0o600]);
        assert_eq!(machine.names(DIRECTORY), ["glowplug"]);
    }

    #[test]
    fn a_second_write_replaces_the_first_and_leaves_the_others() {
        let machine = Machine::new();
        machine.write(&[ED25519]).unwrap();
        fs::write(machine.path(DIRECTORY).join("ignition"), "theirs").unwrap();
        // What a run that was killed left behind, in the worst case: a link.
        let temporary = machine.path(DIRECTORY).join(format!(".glowplug-{}", process::id()));
        symlink(machine.path("outside/file"), &temporary).unwrap();
        let other = format!("{ED25519} other");
        machine.write(&[&other]).unwrap();
        assert_eq!((machine.written(), machine.mode(FILE)), (format!("{other}\n"), 0o600));
        assert_eq!(machine.names(DIRECTORY), ["glowplug", "ignition"]);
        assert_eq!(machine.names("outside"), [""; 0]);
    }

    #[test]
    fn the_file_may_have_afterburns_name() {
        let machine = Machine::new();
        let path = write(&machine.account, "afterburn".parse().unwrap(), &[ED25519.parse().unwrap()]).unwrap();
        assert_eq!(path, machine.path(DIRECTORY).join("afterburn"));
        assert_eq!(machine.names(DIRECTORY), ["afterburn"]);
        assert_eq!("../x".parse::<KeyFile>(), Err(KeyFileError));
    }

    #[test]
    fn no_keys_are_no_file() {
        let machine = Machine::new();
        assert_eq!(machine.write(&[]), Ok(machine.path(FILE)));
        assert_eq!(machine.names("home"), [""; 0]);
        machine.write(&[ED25519]).unwrap();
        fs::write(machine.path(DIRECTORY).join("ignition"), "theirs").unwrap();
        for _ in 0..2 {
            assert_eq!(machine.write(&[]), Ok(machine.path(FILE)));
            assert_eq!(machine.names(DIRECTORY), ["ignition"]);
        }
    }

    #[test]
    fn directories_that_are_there_lose_the_writers_alone() {
        let machine = Machine::new();
        machine.make("home/.ssh", 0o775);
        machine.make(DIRECTORY, 0o757);
        machine.write(&[ED25519]).unwrap();
        assert_eq!((machine.mode("home/.ssh"), machine.mode(DIRECTORY)), (0o755, 0o755));
    }

    #[test]
    fn a_link_inside_the_home_directory_is_followed() {
        let machine = Machine::new();
        machine.make("home/dotfiles", 0o755);
        machine.make("home/dotfiles/keys", 0o700);
        symlink("dotfiles", machine.path("home/.ssh")).unwrap();
        symlink("../dotfiles/keys", machine.path("home/dotfiles/authorized_keys.d")).unwrap();
        machine.write(&[ED25519]).unwrap();
        assert_eq!(machine.names("home/dotfiles/keys"), ["glowplug"]);
        machine.write(&[]).unwrap();
        assert_eq!(machine.names("home/dotfiles/keys"), [""; 0]);
    }

    #[test]
    fn a_link_out_of_the_home_directory_is_refused() {
        let machine = Machine::new();
        let reason = "a link out of the home directory, expected a directory in it";
        machine.make("outside/authorized_keys.d", 0o755);
        fs::write(machine.path("outside/authorized_keys.d/glowplug"), "theirs").unwrap();
        for target in [Path::new("../outside"), &machine.path("outside")] {
            symlink(target, machine.path("home/.ssh")).unwrap();
            assert_eq!(machine.write(&[ED25519]), Err(format!("~/.ssh: {reason}")));
            assert_eq!(machine.write(&[]), Err(format!("~/.ssh/authorized_keys.d: {reason}")));
            fs::remove_file(machine.path("home/.ssh")).unwrap();
        }
        machine.make("home/.ssh", 0o700);
        symlink("../../outside/authorized_keys.d", machine.path(DIRECTORY)).unwrap();
        assert_eq!(machine.write(&[ED25519]), Err(format!("~/.ssh/authorized_keys.d: {reason}")));
        assert_eq!(machine.names("outside"), ["authorized_keys.d"]);
        assert_eq!(machine.names("outside/authorized_keys.d"), ["glowplug"]);
        assert_eq!(fs::read_to_string(machine.path("outside/authorized_keys.d/glowplug")).unwrap(), "theirs");
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_replaced() {
        let machine = Machine::new();
        machine.write(&[ED25519]).unwrap();
        fs::write(machine.path("outside/file"), "theirs").unwrap();
        fs::remove_file(machine.path(FILE)).unwrap();
        symlink(machine.path("outside/file"), machine.path(FILE)).unwrap();
        machine.write(&[ED25519]).unwrap();
        assert_eq!((machine.written(), machine.mode(FILE)), (format!("{ED25519}\n"), 0o600));
        assert_eq!(fs::read_to_string(machine.path("outside/file")).unwrap(), "theirs");
    }

    #[test]
    fn what_cannot_be_used_is_named_and_nothing_is_left() {
        let machine = Machine::new();
        fs::write(machine.path("home/.ssh"), "").unwrap();
        assert_eq!(machine.write(&[ED25519]), Err("~/.ssh: Not a directory (os error 20)".to_owned()));
        fs::remove_file(machine.path("home/.ssh")).unwrap();
        symlink("nowhere", machine.path("home/.ssh")).unwrap();
        assert_eq!(machine.write(&[ED25519]), Err("~/.ssh: No such file or directory (os error 2)".to_owned()));
        fs::remove_file(machine.path("home/.ssh")).unwrap();
        machine.make("home/.ssh", 0o700);
        machine.make(DIRECTORY, 0o700);
        machine.make(FILE, 0o700);
        let error = "~/.ssh/authorized_keys.d: Is a directory (os error 21)";
        assert_eq!(machine.write(&[ED25519]), Err(error.to_owned()));
        assert_eq!(machine.names(DIRECTORY), ["glowplug"]);
        let gone = Account { home: machine.path("gone"), ..machine.account.clone() };
        let error = write(&gone, KeyFile::Glowplug, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("{}: ENOENT: No such file or directory", gone.home.display()));
    }

    #[test]
    fn a_directory_of_somebody_else_is_left_alone() {
        let machine = Machine::new();
        if nix::unistd::geteuid().is_root() {
            fs::create_dir(machine.path("home/.ssh")).unwrap();
            let error = format!("~/.ssh: a directory of user 0, expected one of user {}", machine.account.uid);
            assert_eq!(machine.write(&[ED25519]), Err(error));
            assert_eq!(machine.names("home/.ssh"), [""; 0]);
            // The rights of root are back.
            fs::write(machine.path("ours"), "").unwrap();
            assert_eq!(fs::metadata(machine.path("ours")).unwrap().uid(), 0);
        } else {
            let root = Account { uid: 0, gid: 0, ..machine.account.clone() };
            let error = write(&root, KeyFile::Glowplug, &[ED25519.parse().unwrap()]).unwrap_err().to_string();
            assert_eq!(error, "no permission to act for user 0 and group 0, expected to run as root");
        }
        let nobody = Account { uid: u32::MAX, ..machine.account.clone() };
        assert_eq!(write(&nobody, KeyFile::Glowplug, &[]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_user_who_changes_directories_for_links_meanwhile_leads_us_nowhere() {
        let machine = Machine::new();
        machine.make("outside/authorized_keys.d", 0o755);
        machine.make("home/keys", 0o700);
        symlink("keys", machine.path("home/.ssh")).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for target in ["../outside", "keys"].into_iter().cycle() {
                    symlink(target, machine.path("home/link")).unwrap();
                    fs::rename(machine.path("home/link"), machine.path("home/.ssh")).unwrap();
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            for _ in 0..500 {
                let _ = machine.write(&[ED25519]);
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!(machine.names("outside"), ["authorized_keys.d"]);
        assert_eq!(machine.names("outside/authorized_keys.d"), [""; 0]);
    }
}
