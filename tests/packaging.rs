//! Builds the packages from the tarballs of `make dist` with the tools of the distributions, without a network.
//! Compares the files of each package with a list. Each build takes minutes; `make packages` runs only these tests.
//!
//! `tests/packaging/fedora.macros` replaces the macro packages of Fedora: paths, flags, scriptlets. Fedora's generators
//! for debug packages and for bundled libraries do not run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the output of a program. The test fails if the program is missing or fails.
fn ask(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; tests/setup installs what is missing"));
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout
}

fn run(program: &str, arguments: &[&str]) -> String {
    ask(Command::new(program).args(arguments))
}

/// Runs `make` with a target and variables. The packages are compiled from scratch, without files of the current build.
fn make(target: &str, variables: &[String]) {
    let mut command = Command::new("make");
    command.current_dir(ROOT).arg(target).arg(format!("REF={}", state())).args(variables);
    for name in ["CARGO_TARGET_DIR", "GLOWPLUG_VERSION", "MAKEFLAGS", "MFLAGS", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    // Packages are built without optimization, because it takes most of the time, and changes neither the files nor the
    // dependencies of a package.
    for profile in ["GUEST", "RELEASE"] {
        command.env(format!("CARGO_PROFILE_{profile}_LTO"), "off");
        command.env(format!("CARGO_PROFILE_{profile}_OPT_LEVEL"), "0");
        command.env(format!("CARGO_PROFILE_{profile}_CODEGEN_UNITS"), "16");
    }
    ask(&mut command);
}

/// Returns the commit for `make dist`, which includes uncommitted changes. All packages get the same commit: one second
/// later, git would make another commit of the same changes.
fn state() -> &'static str {
    static STATE: OnceLock<String> = OnceLock::new();
    STATE.get_or_init(|| {
        let stashed = ask(Command::new("git").current_dir(ROOT).args(["stash", "create"]));
        if stashed.is_empty() { "HEAD".to_owned() } else { stashed.trim().to_owned() }
    })
}

fn dist_below(directory: &Path) -> (PathBuf, String) {
    let dist = directory.join("dist");
    let variable = format!("DIST={}", dist.display());
    (dist, variable)
}

/// Returns the files of a package without its directories, sorted, one on each line.
fn files(listing: &str) -> String {
    let files: BTreeSet<_> = listing.lines().map(str::trim).filter(|line| !line.ends_with('/')).collect();
    files.into_iter().map(|file| format!("{file}\n")).collect()
}

/// Replaces the pages of `docs` in a list of files by one line, so that a new page needs no change of the lists. Debian
/// compresses long pages.
fn pages_as_one_line(listing: &str) -> String {
    let written: BTreeSet<_> = fs::read_dir(format!("{ROOT}/docs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    let mut packed = BTreeSet::new();
    let mut lines = Vec::new();
    for line in listing.lines() {
        match line.rsplit_once("/docs/") {
            None => lines.push(line.to_owned()),
            Some((before, page)) => {
                if packed.is_empty() {
                    lines.push(format!("{before}/docs/PAGES"));
                }
                packed.insert(OsString::from(page.trim_end_matches(".gz")));
            }
        }
    }
    assert!(packed.is_empty() || packed == written, "of docs, the package has {packed:?}");
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns the terms that `AND` joins in licence expressions. The alternatives of each term are sorted.
fn terms(expressions: &[&str]) -> BTreeSet<String> {
    let terms = expressions.iter().flat_map(|expression| expression.split(" AND "));
    terms
        .map(|term| {
            let term = term.trim_matches(['(', ')']).replace('/', " OR ");
            term.split(" OR ").collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(" OR ")
        })
        .collect()
}

#[test]
fn a_tarball_has_the_same_bytes_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let (dist, variable) = dist_below(directory.path());
    let bytes = || {
        make("dist", std::slice::from_ref(&variable));
        let names = ["", "-vendor"].map(|kind| dist.join(format!("glowplug-{VERSION}{kind}.tar.gz")));
        names.map(|name| run("sha256sum", &[name.to_str().unwrap()]))
    };
    assert_eq!(bytes(), bytes());
}

#[test]
fn the_rpm_packages_have_exactly_the_expected_files_and_glowplug_runs() {
    let directory = tempfile::tempdir().unwrap();
    let (dist, variable) = dist_below(directory.path());
    // The new network namespace has no network. The build does not run the library's tests, which `make test` runs.
    let macros = format!("{ROOT}/tests/packaging/fedora.macros");
    let rpmbuild = format!("RPMBUILD=unshare -rn rpmbuild --nodeps --without check --load={macros}");
    make("rpm", &[variable, rpmbuild]);

    let machine = run("uname", &["-m"]).trim().to_owned();
    let unpacked = directory.path().join("root");
    for (name, architecture) in [("glowplug", &*machine), ("glowplug-dracut", "noarch"), ("glowplugctl", &*machine)] {
        let package = dist.join(format!("rpm/RPMS/{architecture}/{name}-{VERSION}-1.{architecture}.rpm"));
        let package = package.to_str().unwrap();
        let listed = run("rpm", &["-qp", "--qf", "[%{FILEMODES:perms} %{FILENAMES}\n]", package]);
        let listed: Vec<_> = listed.lines().filter(|line| !line.starts_with('d')).collect();
        let expected = fs::read_to_string(format!("{ROOT}/tests/packaging/{name}.rpm.files")).unwrap();
        assert_eq!(pages_as_one_line(&listed.join("\n")), expected.replace("VERSION", VERSION), "{name}");

        fs::create_dir_all(&unpacked).unwrap();
        let unpack = format!("rpm2cpio '{package}' | cpio --quiet -idm");
        ask(Command::new("sh").current_dir(&unpacked).args(["-c", &unpack]));
        if name == "glowplug" {
            let version = run(unpacked.join("usr/bin").join(name).to_str().unwrap(), &["--version"]);
            let tarball = dist.join(format!("glowplug-{VERSION}.tar.gz"));
            let file = format!("glowplug-{VERSION}/packaging/commit");
            let commit = run("tar", &["-xzOf", tarball.to_str().unwrap(), &file]);
            assert_eq!(version, format!("{name} {VERSION} ({})\n", commit.trim()));
        }
        if architecture != "noarch" {
            let crates = unpacked.join(format!("usr/share/licenses/{name}-{VERSION}/LICENSE.dependencies"));
            let crates = fs::read_to_string(crates).unwrap();
            let linked: Vec<_> =
                crates.lines().map(|line| line.split_once(": ").unwrap().0).chain(["Apache-2.0"]).collect();
            let license = run("rpm", &["-qp", "--qf", "%{LICENSE}", package]);
            assert_eq!(terms(&[&license]), terms(&linked), "{name}");
        }
    }
    let package = dist.join(format!("rpm/RPMS/{machine}/glowplug-{VERSION}-1.{machine}.rpm"));
    let scripts = run("rpm", &["-qp", "--scripts", package.to_str().unwrap()]);
    let helper = "/usr/lib/systemd/systemd-update-helper";
    let units = "glowplug-metadata.service glowplug-ssh-keys@.service";
    assert_eq!(
        scripts,
        format!(
            "postinstall scriptlet (using /bin/sh):\n{helper} install-system-units {units} || :\n\
             preuninstall scriptlet (using /bin/sh):\n{helper} remove-system-units {units} || :\n\
             postuninstall scriptlet (using /bin/sh):\n:\n"
        )
    );
    the_program_starts_in_an_initramfs_that_is_made_of(&unpacked, directory.path());
}

/// Builds an initramfs with dracut and starts the program in it. The program is linked to libraries, which dracut must
/// copy.
fn the_program_starts_in_an_initramfs_that_is_made_of(root: &Path, directory: &Path) {
    // dracut searches for modules next to its own program, so the tree has links to all files of dracut. The link to
    // our module is made first, because an existing link is not replaced.
    let tree = directory.join("dracut");
    fs::create_dir_all(tree.join("modules.d")).unwrap();
    let module = root.join("usr/lib/dracut/modules.d/50glowplug");
    run("ln", &["-s", module.to_str().unwrap(), tree.join("modules.d").to_str().unwrap()]);
    let link = "cp /usr/bin/dracut . && \
                for entry in /usr/lib/dracut/* /usr/lib/dracut/modules.d/*; do \
                    link=${entry#/usr/lib/dracut/}; [ -e \"$link\" ] || ln -s \"$entry\" \"$link\"; done";
    ask(Command::new("sh").current_dir(&tree).args(["-c", link]));
    let image = directory.join("initramfs");
    ask(Command::new(tree.join("dracut"))
        .args(["--local", "--force", "--no-kernel", "--no-hostonly", "--no-hostonly-cmdline", "--no-early-microcode"])
        .args(["--nofscks", "--nostrip", "--compress", "cat"])
        .args(["--modules", "base systemd systemd-initrd network-manager glowplug"])
        .arg(&image)
        .env("DRACUT_PATH", format!("{} /usr/sbin /usr/bin /sbin /bin", root.join("usr/bin").display())));
    let unpacked = directory.join("initramfs-root");
    fs::create_dir(&unpacked).unwrap();
    ask(Command::new("sh").current_dir(&unpacked).args(["-c", &format!("cpio --quiet -idm <'{}'", image.display())]));
    let inside = |program: &str| run("unshare", &["-r", "chroot", unpacked.to_str().unwrap(), program, "--version"]);
    assert_eq!(inside("/usr/bin/glowplug"), run(root.join("usr/bin/glowplug").to_str().unwrap(), &["--version"]));
}

#[test]
fn the_packages_of_debian_have_their_files_and_dependencies() {
    let directory = tempfile::tempdir().unwrap();
    let (dist, variable) = dist_below(directory.path());
    // The compiler of Debian 12 is too old for the program. With `-d`, the build does not require this compiler and
    // uses the current one.
    make("deb", &[variable, "DPKG_BUILDPACKAGE=unshare -rn dpkg-buildpackage -d".to_owned()]);

    let machine = run("dpkg", &["--print-architecture"]).trim().to_owned();
    for (name, architecture, depends) in [
        ("glowplug", &*machine, "libc6, libgcc-s1"),
        ("glowplug-dracut", "all", "glowplug, dracut-network, kmod, network-manager"),
        ("glowplugctl", &*machine, "libc6, libgcc-s1, libsqlite3-0"),
    ] {
        let package = dist.join(format!("deb/{name}_{VERSION}_{architecture}.deb"));
        let package = package.to_str().unwrap();
        let listed = run("sh", &["-c", &format!("dpkg-deb --fsys-tarfile '{package}' | tar -t | sed 's,^\\.,,'")]);
        let expected = fs::read_to_string(format!("{ROOT}/tests/packaging/{name}.deb.files")).unwrap();
        assert_eq!(pages_as_one_line(&files(&listed)), expected, "{name}");
        let printed = run("dpkg-deb", &["--field", package, "Depends"]);
        let names: Vec<_> = printed.trim().split(", ").map(|one| one.split(' ').next().unwrap()).collect();
        assert_eq!(names.join(", "), depends, "{name}");
    }
}
