//! Tests of accounts, and of the key files in home directories.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tempfile::TempDir;

use super::*;

const ED25519: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEvOyfbMc45QK4WHdcfY2I+o08HFV62AVFgSIDtGR1K+";

// === accounts ===

/// Finds a user in an `/etc/passwd` with this content, in a temporary root. The home directory is returned as if the
/// root was `/`; an error has `ROOT` for the path of the root.
fn find(passwd: &[u8], user: &str) -> Result<Account, String> {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/passwd"), passwd).unwrap();
    let error = |e: io::Error| e.to_string().replace(root.path().to_str().unwrap(), "ROOT");
    let account = Account::find(user, root.path()).map_err(error)?;
    let home = Path::new("/").join(account.home.strip_prefix(root.path()).unwrap());
    Ok(Account { home, ..account })
}

#[test]
fn a_user_is_found_only_by_the_complete_name() {
    let passwd = b"root:x:0:0:root:/root:/bin/bash\ncored:x:1:1::/:/bin/sh\n\xe4:x\n\n\
        core:x:1000:1001:\xe4:/var/home/core:/bin/bash\ncore:x:0:0::/root:\n";
    let core = Account { home: "/var/home/core".into(), uid: 1000, gid: 1001 };
    assert_eq!(find(passwd, "core"), Ok(core));
    assert_eq!(find(passwd, "root"), Ok(Account { home: "/root".into(), uid: 0, gid: 0 }));
    assert_eq!(find(passwd, "cor"), Err("unknown user \"cor\", expected one of ROOT/etc/passwd".to_owned()));
    let empty = tempfile::tempdir().unwrap();
    let error = Account::find("core", empty.path()).unwrap_err();
    let path = empty.path().join("etc/passwd");
    let expected = format!("unknown user \"core\", expected one of {}", path.display());
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::NotFound, expected));
    fs::create_dir_all(&path).unwrap();
    let error = Account::find("core", empty.path()).unwrap_err().to_string();
    assert_eq!(error, format!("{}: Is a directory (os error 21)", path.display()));
}

#[test]
fn an_invalid_line_of_the_user_in_passwd_is_an_error() {
    let expected = "expected name:password:uid:gid:comment:/home:shell";
    let error = Err(format!("ROOT/etc/passwd: invalid line of user \"core\", {expected}"));
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
    assert_eq!(find(&long, "core"), Err("ROOT/etc/passwd: too many bytes, expected at most 1048576".to_owned()));
}

#[test]
fn an_invalid_user_name_is_an_error() {
    let expected = "expected letters, digits, '_', '.', '@', '$' and '-'";
    for name in ["", "/", "../root", "a:b", "a\nb", "a b", "-core", ".", "ä", &"a".repeat(257)] {
        assert_eq!(find(b"a b:x:1:1::/:\n", name), Err(format!("invalid user name {name:?}, {expected}")));
    }
}

// === files ===

/// A home directory, and a directory `outside`; both belong to one user. The user is never root, even if the tests run
/// as root.
struct FakeMachine {
    directory: TempDir,
    account: Account,
}

impl FakeMachine {
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

    /// Makes a directory that belongs to the user.
    fn make(&self, path: &str, mode: u32) {
        fs::create_dir(self.path(path)).unwrap();
        chown(self.path(path), Some(self.account.uid), Some(self.account.gid)).unwrap();
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    fn write(&self, lines: &[&str]) -> Result<PathBuf, String> {
        let keys: Vec<_> = lines.iter().map(|line| line.parse().unwrap()).collect();
        write(&self.account, KeyFile::Glowplug, &keys).map_err(|e| e.to_string())
    }

    /// Checks that the path belongs to the user, and returns its mode.
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
fn the_file_and_its_directories_are_created_for_the_user_only() {
    let machine = FakeMachine::new();
    let second = format!("{ED25519} b");
    assert_eq!(machine.write(&[ED25519, &second]), Ok(machine.path(FILE)));
    assert_eq!(machine.written(), format!("{ED25519}\n{second}\n"));
    let modes = ["home", "home/.ssh", DIRECTORY, FILE].map(|path| machine.mode(path));
    assert_eq!(modes, [0o755, 0o700, 0o700, 0o600]);
    assert_eq!(machine.names(DIRECTORY), ["glowplug"]);
}

#[test]
fn a_second_write_replaces_the_file_and_keeps_the_files_of_other_programs() {
    let machine = FakeMachine::new();
    machine.write(&[ED25519]).unwrap();
    fs::write(machine.path(DIRECTORY).join("ignition"), "theirs").unwrap();
    // A killed run may have left a temporary file. The worst case is a link to another directory.
    let temporary = machine.path(DIRECTORY).join(format!(".glowplug-{}", process::id()));
    symlink(machine.path("outside/file"), &temporary).unwrap();
    let other = format!("{ED25519} other");
    machine.write(&[&other]).unwrap();
    assert_eq!((machine.written(), machine.mode(FILE)), (format!("{other}\n"), 0o600));
    assert_eq!(machine.names(DIRECTORY), ["glowplug", "ignition"]);
    assert_eq!(machine.names("outside"), [""; 0]);
}

#[test]
fn the_key_file_can_have_the_name_that_afterburn_uses() {
    let machine = FakeMachine::new();
    let path = write(&machine.account, "afterburn".parse().unwrap(), &[ED25519.parse().unwrap()]).unwrap();
    assert_eq!(path, machine.path(DIRECTORY).join("afterburn"));
    assert_eq!(machine.names(DIRECTORY), ["afterburn"]);
    assert_eq!("../x".parse::<KeyFile>(), Err(KeyFileError));
}

#[test]
fn without_keys_the_file_is_removed() {
    let machine = FakeMachine::new();
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
fn existing_directories_lose_only_the_write_permission_of_group_and_others() {
    let machine = FakeMachine::new();
    machine.make("home/.ssh", 0o775);
    machine.make(DIRECTORY, 0o757);
    machine.write(&[ED25519]).unwrap();
    assert_eq!((machine.mode("home/.ssh"), machine.mode(DIRECTORY)), (0o755, 0o755));
}

#[test]
fn a_symbolic_link_inside_the_home_directory_is_followed() {
    let machine = FakeMachine::new();
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
fn a_symbolic_link_out_of_the_home_directory_is_refused() {
    let machine = FakeMachine::new();
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
fn a_symbolic_link_in_place_of_the_key_file_is_replaced() {
    let machine = FakeMachine::new();
    machine.write(&[ED25519]).unwrap();
    fs::write(machine.path("outside/file"), "theirs").unwrap();
    fs::remove_file(machine.path(FILE)).unwrap();
    symlink(machine.path("outside/file"), machine.path(FILE)).unwrap();
    machine.write(&[ED25519]).unwrap();
    assert_eq!((machine.written(), machine.mode(FILE)), (format!("{ED25519}\n"), 0o600));
    assert_eq!(fs::read_to_string(machine.path("outside/file")).unwrap(), "theirs");
}

#[test]
fn an_unusable_directory_is_named_in_the_error_and_no_file_is_left() {
    let machine = FakeMachine::new();
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
fn a_directory_of_another_user_is_not_changed() {
    let machine = FakeMachine::new();
    if nix::unistd::geteuid().is_root() {
        fs::create_dir(machine.path("home/.ssh")).unwrap();
        let error = format!("~/.ssh: a directory of user 0, expected one of user {}", machine.account.uid);
        assert_eq!(machine.write(&[ED25519]), Err(error));
        assert_eq!(machine.names("home/.ssh"), [""; 0]);
        // After the call, the process has the rights of root again.
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
fn a_user_who_replaces_directories_by_symbolic_links_cannot_redirect_the_write() {
    let machine = FakeMachine::new();
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
