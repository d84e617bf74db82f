//! Checks whether a file can be a ledger, and defines the errors of opening a ledger.

use std::error::Error;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use nix::fcntl::{self, OFlag};
use nix::sys::stat::Mode;
use nix::sys::statfs::statfs;
use nix::unistd::{AccessFlags, access};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::host::ledger::LedgerError;

/// Why a ledger cannot be opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The file does not exist.
    Absent(PathBuf),
    /// Creating a ledger would replace this file, which is a ledger or the log of a ledger.
    Exists(PathBuf),
    /// The file is on a network file system of this kind.
    NetworkFileSystem(PathBuf, &'static str),
    /// The path is a directory.
    Directory(PathBuf),
    /// The path is not a file, or the file is empty or no database of this program.
    NotALedger(PathBuf),
    /// The file is a ledger, or the start of a ledger, and its content is damaged. The string describes the damage.
    Damaged(PathBuf, String),
    /// The file has, or may have, a second path. The string is the reason. Each path has a log of its own, so two
    /// processes would not see each other's changes.
    SecondPath(PathBuf, String),
    /// The write-ahead log or its index cannot be read, and the index cannot be created.
    NoLog(PathBuf),
    /// The file was copied or moved without its write-ahead log, or the log was removed. The log may have leases that
    /// the file lacks.
    WithoutLog(PathBuf),
    /// The process has no right to write the file, or to create it in its folder.
    NotWritable(PathBuf),
    /// Another version of this program created the ledger.
    OtherSchema {
        /// Path of the ledger.
        path: PathBuf,
        /// Version of the schema of the ledger.
        found: i64,
        /// The version that this program reads.
        known: i64,
    },
    /// The file or the database failed.
    Store {
        /// Path of the ledger.
        path: PathBuf,
        /// The error of the system or of SQLite.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// The path of an open ledger, and the files of the ledger and of the index of its log at the opening. The locks of
/// SQLite are in the index.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    file: Option<FileId>,
    index: PathBuf,
    /// `None`: the ledger was opened for reading only, without an index.
    index_file: Option<FileId>,
}

/// Device and inode of a file. While a process has the file open, no other file has the same two numbers.
type FileId = (u64, u64);

/// Size of the smallest database of SQLite: one page of the smallest size.
const SMALLEST_DATABASE: u64 = 512;

/// File systems whose locks or shared memory do not work between the hosts that mount them, by the magic number of
/// `statfs` (linux/magic.h, coreutils' stat.c and the headers of the file systems). FUSE is in the list because it hides
/// the file system behind it, which may be a network file system: sshfs, GlusterFS and virtiofs use FUSE.
const NETWORK_FILE_SYSTEMS: [(u32, &str); 25] = [
    (0x0000_517b, "SMB"),
    (0x0000_564c, "NCP"),
    (0x0000_6969, "NFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x0116_1970, "GFS2"),
    (0x0131_11a8, "IBRIX"),
    (0x0bd0_0bd0, "Lustre"),
    (0x1803_1977, "WekaFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "OrangeFS"),
    (0x4750_4653, "GPFS"),
    (0x5346_414f, "AFS"),
    (0x6163_6673, "ACFS"),
    (0x6573_5546, "FUSE"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x7461_636f, "OCFS2"),
    (0x786f_4256, "VirtualBox's shared folders"),
    (0x7c7c_6673, "Parallels' shared folders"),
    (0xaad7_aaea, "PanFS"),
    (0xbacb_acbc, "VMware's shared folders"),
    (0xbeef_dead, "StorNext"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
];

// === impl Place ===

impl Place {
    pub(super) fn new(path: &Path, file: Option<FileId>) -> Self {
        // The process may change its directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let index = beside(&path.canonicalize().unwrap_or_else(|_| path.clone()), "-shm");
        let index_file = file_of(&index);
        Self { path, file, index, index_file }
    }

    /// Fails if the path of the ledger, or the path of its index, now leads to another file: other processes use the
    /// new file.
    pub(super) fn check(&self) -> Result<(), LedgerError> {
        let is_same = file_of(&self.path).is_some_and(|file| self.file == Some(file));
        match is_same && (self.index_file.is_none() || file_of(&self.index) == self.index_file) {
            true => Ok(()),
            false => Err(LedgerError::Replaced(self.path.clone())),
        }
    }
}

pub(super) fn file_of(path: &Path) -> Option<FileId> {
    path.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The kind of network file system on which a file is, or will be. `None` for a local file system.
pub(super) fn network_file_system(path: &Path) -> Result<Option<&'static str>, OpenError> {
    let at = if path.try_exists().unwrap_or(false) { path } else { directory_of(path) };
    let magic = match statfs(at) {
        Ok(statfs) => statfs.filesystem_type().0 as u32,
        Err(error) => return Err(OpenError::Store { path: path.to_owned(), source: Box::new(error) }),
    };
    Ok(kind_of(magic))
}

/// Refuses a ledger that can be reached under a second path, because SQLite names the log and the shared memory after
/// the path. A symbolic link is no second path, because SQLite follows the link. Several paths of the folder are safe:
/// all of them lead to the same log.
pub(super) fn check_path(path: &Path) -> Result<(), OpenError> {
    let Ok(real) = path.canonicalize() else { return Ok(()) };
    let failed = |source: io::Error| OpenError::Store { path: path.to_owned(), source: source.into() };
    let links = real.metadata().map_err(failed)?.nlink();
    if links > 1 {
        return Err(OpenError::SecondPath(path.to_owned(), format!("the file has {links} hard links")));
    }
    if mount_of(&real).map_err(failed)? != mount_of(directory_of(&real)).map_err(failed)? {
        let why = "the file is mounted here from another path".to_owned();
        return Err(OpenError::SecondPath(path.to_owned(), why));
    }
    Ok(())
}

/// Whether a ledger is in the mode with a write-ahead log, and the log does not exist.
pub(super) fn lacks_log(path: &Path) -> bool {
    // SQLite names the log after the file to which a symbolic link leads.
    let Ok(real) = path.canonicalize() else { return false };
    !beside(&real, "-wal").exists() && is_in_wal_mode(&real)
}

/// The number of bytes of a ledger that is too short for a database, although its log exists. SQLite would treat an
/// empty file as a new database, and delete its log, which may have leases. An interrupted creation leaves no such file:
/// SQLite writes the first page of the file before it creates the log.
pub(super) fn cut_to(path: &Path) -> Option<u64> {
    let real = path.canonicalize().ok()?;
    // The log comes first: while another process creates the ledger, a file whose log exists already has its first page.
    let has_log = beside(&real, "-wal").exists();
    let bytes = real.metadata().ok()?.len();
    (has_log && bytes < SMALLEST_DATABASE).then_some(bytes)
}

/// The path of a file that SQLite keeps beside a database: its log or the index of its log.
fn beside(database: &Path, suffix: &str) -> PathBuf {
    let mut path = database.to_owned().into_os_string();
    path.push(suffix);
    path.into()
}

/// Whether the header of a database says that there is a write-ahead log. This function does not read the header
/// itself: closing the file would release the locks of SQLite in this process. So it makes SQLite read the header,
/// without locks. In this mode, SQLite cannot open a database with a write-ahead log, and creates no log in the
/// attempt.
fn is_in_wal_mode(path: &Path) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    let escaped = |byte: &u8| if is_plain(*byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") };
    let path: String = path.as_os_str().as_bytes().iter().map(escaped).collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let Ok(database) = Connection::open_with_flags(format!("file:{path}?nolock=1"), flags) else { return false };
    let read = database.query_row("PRAGMA schema_version", [], |_| Ok(()));
    read.is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::CannotOpen))
}

/// The ID of the mount to which a file or folder belongs.
fn mount_of(path: &Path) -> io::Result<String> {
    // `O_PATH` is necessary: closing a normal descriptor of the ledger would release the locks of SQLite in this
    // process.
    let file = fcntl::open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or_else(|| io::Error::other("no mnt_id in the fdinfo of the file"))
}

fn kind_of(magic: u32) -> Option<&'static str> {
    NETWORK_FILE_SYSTEMS.iter().find(|(known, _)| *known == magic).map(|(_, kind)| *kind)
}

/// Whether the process has the right to create files in a folder.
pub(super) fn is_writable(directory: &Path) -> bool {
    access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

// === impl OpenError ===

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent(path) => write!(f, "{}: no such ledger", path.display()),
            Self::Exists(path) => {
                write!(f, "{}: exists, expected no file, since a ledger is created once", path.display())
            }
            Self::NetworkFileSystem(path, kind) => write!(
                f,
                "{}: on a network file system ({kind}), expected a local disk, on which file locks are reliable",
                path.display()
            ),
            Self::Directory(path) => write!(f, "{}: a directory, expected a file", path.display()),
            Self::NotALedger(path) => write!(f, "{}: not a ledger", path.display()),
            Self::Damaged(path, what) => write!(f, "{}: damaged ({what})", path.display()),
            Self::SecondPath(path, why) => {
                write!(f, "{}: {why}, expected one path: each path would have a log of its own", path.display())
            }
            Self::NoLog(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path}: log not readable, expected the right to read {path}-wal and {path}-shm, or a directory to \
                     make {path}-shm in"
                )
            }
            Self::WithoutLog(path) => {
                let path = path.display();
                write!(
                    f,
                    "{path}: copied, moved or left without its log, expected {path}-wal, which may have further leases"
                )
            }
            Self::NotWritable(path) => {
                write!(f, "{}: not writable, expected the right to write the file and its folder", path.display())
            }
            Self::OtherSchema { path, found, known } => write!(
                f,
                "{}: schema version {found}, expected {known}: use the glowplugctl that created the ledger, or a newer one",
                path.display()
            ),
            Self::Store { path, .. } => write!(f, "opening {}", path.display()),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Store { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_magic_numbers() {
        let kinds = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x00c3_6400, 0x6573_5546].map(kind_of);
        assert_eq!(kinds, [Some("NFS"), Some("CIFS"), Some("SMB"), Some("9p"), Some("Ceph"), Some("FUSE")]);
        let kinds = [0x1983_0326, 0x2003_0528, 0xaad7_aaea, 0xbeef_dead, 0x6163_6673, 0x1803_1977].map(kind_of);
        let expected = ["BeeGFS", "OrangeFS", "PanFS", "StorNext", "ACFS", "WekaFS"];
        assert_eq!(kinds, expected.map(Some));
        // ext4, XFS, Btrfs, tmpfs and overlayfs are not network file systems.
        let kinds = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630].map(kind_of);
        assert_eq!(kinds, [None; 5]);
    }

    #[test]
    fn a_ledger_on_a_network_file_system_is_refused_with_the_reason() {
        assert_eq!(
            OpenError::NetworkFileSystem(PathBuf::from("/mnt/ledger"), "NFS").to_string(),
            "/mnt/ledger: on a network file system (NFS), expected a local disk, on which file locks are reliable"
        );
    }
}
