//! Checks the systemd units with `systemd-analyze`, and the dracut module and the Containerfile with shellcheck.
//! `tests/boot/` boots machines with the units and the module.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/dracut/50glowplug");
const SYSTEMD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd");
const GLOWPLUG: &str = env!("CARGO_BIN_EXE_glowplug");

/// Returns the output of a program, with `failed` at the end if the program fails. The test fails if the program is
/// missing.
fn ask(program: &str, package: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let Output { status, stdout, stderr } =
        output.unwrap_or_else(|e| panic!("{program}: {e}; install the Debian package {package}"));
    let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    format!("{text}{}", if status.success() { "" } else { "failed" })
}

/// Returns the units (`service`) or the drop-ins (`conf`) of the initramfs and of the real root, sorted.
fn files(suffix: &str) -> Vec<PathBuf> {
    let entries = [MODULE, SYSTEMD].into_iter().flat_map(|directory| fs::read_dir(directory).unwrap());
    let entries = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|it| it == suffix)).collect();
    files.sort();
    files
}

/// Name of the unit that copies NetworkManager's profiles to `/run`. This unit does not run glowplug.
const COPIES: &str = "glowplug-network-profiles.service";

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// Returns systemd's messages about a unit with this text and an optional drop-in.
fn verify(unit: &str, text: &str, drop_in: Option<&str>) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(unit);
    // systemd checks that the programs of a unit are executable, so the unit gets paths that exist here.
    let here = |text: &str| text.replace("/usr/bin/glowplug", GLOWPLUG).replace("@GENERATOR@", "/bin/true");
    fs::write(&path, here(text)).unwrap();
    if let Some(drop_in) = drop_in {
        let drop_ins = directory.path().join(format!("{unit}.d"));
        fs::create_dir(&drop_ins).unwrap();
        fs::write(drop_ins.join("50-glowplug.conf"), here(drop_in)).unwrap();
    }
    ask("systemd-analyze", "systemd", &["verify", "--man=no", "--recursive-errors=no", path.to_str().unwrap()])
}

#[test]
fn systemd_understands_every_unit() {
    for unit in files("service") {
        assert_eq!(verify(name(&unit), &fs::read_to_string(&unit).unwrap(), None), "", "{}", unit.display());
    }
}

#[test]
fn systemd_understands_every_drop_in_for_a_unit_of_another_package() {
    let elses = "[Unit]\nDescription=Stand-in\n[Service]\nType=oneshot\nExecStart=/bin/false\n";
    for drop_in in files("conf") {
        let unit = format!("{}.service", drop_in.file_stem().unwrap().to_str().unwrap());
        let text = fs::read_to_string(&drop_in).unwrap();
        assert_eq!(verify(&unit, elses, Some(&text)), "", "{}", drop_in.display());
    }
}

/// Stand-ins for the units of CoreOS's first boot, with the order between them. `coreos-teardown-initramfs.service`
/// ends the network when the unit stops, so the unit starts early.
const FIRST_BOOT: [(&str, &str); 5] = [
    ("initrd.target", "Requires=ignition-complete.target glowplug-network-profiles.service\n"),
    (
        "ignition-complete.target",
        "Requires=ignition-mount.service ignition-files.service coreos-teardown-initramfs.service\nBefore=initrd.target\n",
    ),
    (
        "ignition-mount.service",
        "DefaultDependencies=no\nAfter=initrd-root-fs.target\nBefore=ignition-complete.target initrd-switch-root.target\n\
         [Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\nExecStop=/bin/true\n",
    ),
    (
        "ignition-files.service",
        "DefaultDependencies=no\nRequires=ignition-mount.service\nAfter=ignition-mount.service\n\
         Before=ignition-complete.target initrd-parse-etc.service\n[Service]\nType=oneshot\nExecStart=/bin/true\n",
    ),
    (
        "coreos-teardown-initramfs.service",
        "DefaultDependencies=no\nBefore=ignition-mount.service ignition-complete.target initrd-switch-root.target\n\
         Conflicts=initrd-switch-root.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStop=/bin/true\n",
    ),
];

/// Returns systemd's messages about a first boot of CoreOS. `unit` is the text of the unit that copies the profiles.
fn verify_first_boot(unit: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in FIRST_BOOT {
        fs::write(directory.path().join(name), format!("[Unit]\nDescription=Stand-in\n{text}")).unwrap();
    }
    fs::write(directory.path().join(COPIES), unit).unwrap();
    let target = directory.path().join("initrd.target");
    // systemd reads units only from this directory, not the units of this machine.
    let path = format!("SYSTEMD_UNIT_PATH={}", directory.path().display());
    ask("env", "coreutils", &[&path, "systemd-analyze", "verify", "--man=no", target.to_str().unwrap()])
}

#[test]
fn the_unit_that_copies_the_profiles_causes_no_ordering_cycle_in_a_first_boot_of_coreos() {
    let text = fs::read_to_string(Path::new(MODULE).join(COPIES)).unwrap();
    assert_eq!(verify_first_boot(&text), "");
    let cyclic = text.replace("\n[Service]\n", "Before=coreos-teardown-initramfs.service\n[Service]\n");
    let messages = verify_first_boot(&cyclic);
    assert!(messages.contains("ordering cycle") && messages.ends_with("failed"), "{messages}");
}

/// systemd counts a unit with an unmet condition as started. So without profiles, this unit cannot fail a boot.
#[test]
fn the_unit_that_copies_profiles_does_nothing_if_there_are_no_profiles() {
    let text = fs::read_to_string(Path::new(MODULE).join(COPIES)).unwrap();
    let expected = ["/etc/NetworkManager/system-connections/50-glowplug-*.nmconnection"];
    assert_eq!(values(&text, "ConditionPathExistsGlob"), expected);
}

/// Other programs in the real root must be able to read NetworkManager's directory in `/run`.
#[test]
fn the_copies_of_profiles_are_private_and_their_directories_are_readable() {
    let text = fs::read_to_string(Path::new(MODULE).join(COPIES)).unwrap();
    assert_eq!(values(&text, "UMask"), ["0077"]);
    let root = tempfile::tempdir().unwrap();
    let profiles = root.path().join("etc/NetworkManager/system-connections");
    fs::create_dir_all(&profiles).unwrap();
    fs::create_dir(root.path().join("run")).unwrap();
    fs::write(profiles.join("50-glowplug-0000-eno1.nmconnection"), "[connection]\n").unwrap();
    let here = |directory: &str| format!("{}/{directory}/", root.path().display());
    let [line] = values(&text, "ExecStart")[..] else { panic!("{text}") };
    let line = line.replace(" /etc/", &format!(" {}", here("etc"))).replace(" /run/", &format!(" {}", here("run")));
    assert_eq!(ask("sh", "dash", &["-c", &format!("umask 0077; {line}")]), "");
    let mode = |path: &str| fs::metadata(root.path().join(path)).unwrap().permissions().mode() & 0o7777;
    let modes = [
        mode("run/NetworkManager"),
        mode("run/NetworkManager/system-connections"),
        mode("run/NetworkManager/system-connections/50-glowplug-0000-eno1.nmconnection"),
    ];
    assert_eq!(modes, [0o755, 0o755, 0o600]);
}

#[test]
fn systemd_verify_detects_mistakes_in_units() {
    let text = fs::read_to_string(Path::new(MODULE).join("glowplug-network-kargs.service")).unwrap();
    let broken = text.replace("Before=dracut-cmdline.service", "Befor=dracut-cmdline.service");
    assert_ne!(verify("glowplug-network-kargs.service", &broken, None), "");
    assert_ne!(verify("glowplug-network-kargs.service", &text, Some("[Unit]\nConditionPath=/\n")), "");
}

#[test]
fn the_program_accepts_the_options_of_the_units() {
    for unit in files("service").into_iter().filter(|unit| name(unit) != COPIES) {
        let text = fs::read_to_string(&unit).unwrap();
        let lines: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/glowplug ")).collect();
        assert_ne!(lines, [""; 0], "{}", unit.display());
        for line in lines {
            let line = line
                .replace("${GLOWPLUG_RENDERER}", "network-manager")
                .replace("$GLOWPLUG_NETWORK_KARGS_OPTIONS", "--neednet --wait=0")
                .replace("%i", "core");
            // The kernel command line names another platform, so the program only reads its options and exits.
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("proc")).unwrap();
            fs::write(root.path().join("proc/cmdline"), "ignition.platform.id=metal\n").unwrap();
            let mut arguments: Vec<_> = line.split_ascii_whitespace().collect();
            arguments.extend(["--root", root.path().to_str().unwrap()]);
            let output = Command::new(GLOWPLUG).args(&arguments).output().unwrap();
            let expected = "<6>nothing to do reason=\"this is not known to be KubeVirt: \
                            kernel command line has ignition.platform.id=metal\"\n";
            assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), expected));
        }
    }
}

/// Returns all values of a key in a unit.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn no_unit_runs_in_a_crash_kernel() {
    for unit in files("service") {
        let text = fs::read_to_string(&unit).unwrap();
        let conditions = values(&text, "ConditionPathExists");
        assert!(conditions.contains(&"!/proc/vmcore"), "{}: {conditions:?}", unit.display());
    }
}

#[test]
fn every_unit_has_its_start_timeout() {
    let timeouts: Vec<(String, String)> = files("service")
        .iter()
        .map(|unit| (name(unit).to_owned(), values(&fs::read_to_string(unit).unwrap(), "TimeoutStartSec").join(" ")))
        .collect();
    let expected = [
        ("glowplug-hostname.service", "60"),
        ("glowplug-network-kargs.service", "300"),
        (COPIES, "60"),
        ("glowplug-metadata.service", "60"),
        ("glowplug-ssh-keys@.service", "60"),
    ];
    assert_eq!(timeouts, expected.map(|(unit, timeout)| (unit.to_owned(), timeout.to_owned())));
}

#[test]
fn only_the_unit_that_configures_the_network_waits_for_the_drive() {
    let others = |unit: &&PathBuf| !["glowplug-network-kargs.service", COPIES].contains(&name(unit));
    for unit in files("service").iter().filter(others) {
        for line in values(&fs::read_to_string(unit).unwrap(), "ExecStart") {
            assert!(line.split(' ').any(|word| word == "--wait=0"), "{}: {line}", unit.display());
        }
    }
}

/// dracut's own functions are not defined here, so the module fails if it calls one of them.
#[test]
fn the_module_adds_nothing_to_the_image_of_a_crash_kernel_and_does_not_fail_its_build() {
    let script = format!(". {MODULE}/module-setup.sh; check; echo $?; set -e; depends; installkernel; install");
    let output = Command::new("/bin/bash").args(["-c", &script]).env("IN_KDUMP", "1").env("PATH", "").output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!((output.status.code(), stdout.as_str(), stderr.as_str()), (Some(0), "255\n", ""));
}

/// dracut writes these arguments to `/etc/cmdline.d/01-default.conf` of the image.
#[test]
fn the_module_warns_if_the_arguments_of_the_image_configure_the_network() {
    let script = format!(". {MODULE}/module-setup.sh; dwarn() {{ echo \"$@\"; }}; _glowplug_arguments");
    let warned = |arguments: &str| {
        let output =
            Command::new("/bin/bash").args(["-ec", &script]).env("kernel_cmdline", arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let warning = "glowplug: kernel_cmdline configures the network, so no machine gets the network of its drive: set the \
                   default arguments with GLOWPLUG_NETWORK_KARGS_DEFAULT\n";
    for arguments in ["ip=dhcp", "quiet rd.neednet=1 ip=auto", "vlan=a.5:a"] {
        assert_eq!(warned(arguments), warning, "{arguments}");
    }
    for arguments in ["", "quiet", "rd.neednet=1 nameserver=9.9.9.9", "zip=1"] {
        assert_eq!(warned(arguments), "", "{arguments}");
    }
}

/// Only NetworkManager's profiles stay on the disk for later boots.
#[test]
fn the_network_is_written_at_the_first_boot_alone_if_the_image_has_ignition_and_only_networkmanager() {
    let target = |modules: &str, renderer: &str| {
        let script = format!(
            ". {MODULE}/module-setup.sh; dracut_module_included() {{ [[ \" {modules} \" == *\" $1 \"* ]]; }}; \
             _glowplug_target {renderer}"
        );
        let output = Command::new("/bin/bash").args(["-ec", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let targets = |modules| ["network-manager", "systemd-networkd", "network-legacy"].map(|it| target(modules, it));
    assert_eq!(targets("ignition"), ["ignition-complete.target\n", "initrd.target\n", "initrd.target\n"]);
    assert_eq!(targets("base"), ["initrd.target\n"; 3]);
    // The boot loader may choose networkd in this image.
    assert_eq!(targets("ignition systemd-networkd"), ["initrd.target\n"; 3]);
}

/// The limits are in tenths of the exposure that `systemd-analyze security` prints. SECURITY.md has the same figures.
#[test]
fn the_exposure_of_each_unit_is_at_most_its_limit() {
    for (directory, unit, most) in [
        (MODULE, "glowplug-network-kargs.service", 44),
        (MODULE, "glowplug-hostname.service", 32),
        (MODULE, COPIES, 32),
        (SYSTEMD, "glowplug-metadata.service", 9),
        (SYSTEMD, "glowplug-ssh-keys@.service", 18),
    ] {
        let path = Path::new(directory).join(unit);
        let threshold = format!("--threshold={most}");
        let arguments = ["security", "--offline=yes", "--no-pager", &threshold, path.to_str().unwrap()];
        let printed = ask("systemd-analyze", "systemd", &arguments);
        assert!(!printed.ends_with("failed"), "{printed}");
    }
}

/// A maintainer may remove an ordering only if its reason is gone, so a comment above each line must give the reason.
#[test]
fn every_ordering_and_condition_has_a_comment_with_its_reason() {
    let explained = ["After=", "Before=", "Condition", "DefaultDependencies=", "OnFailure=", "Requires=", "Wants="];
    for path in [files("service"), files("conf")].concat() {
        let text = fs::read_to_string(&path).unwrap();
        let mut reason = false;
        for line in text.lines() {
            if line.starts_with('#') {
                reason = true;
            } else if !explained.iter().any(|word| line.starts_with(word)) {
                reason = false;
            } else {
                assert!(reason, "{}: {line}", path.display());
            }
        }
    }
}

const CONTAINERFILE: &str = include_str!("../packaging/Containerfile");

/// Returns the commands of the Containerfile, each as one script.
fn commands() -> Vec<String> {
    let joined = CONTAINERFILE.replace("\\\n", "");
    joined.lines().filter_map(|line| line.strip_prefix("RUN ")).map(str::to_owned).collect()
}

#[test]
fn shellcheck_finds_no_mistake_in_the_commands_of_the_containerfile() {
    let directory = tempfile::tempdir().unwrap();
    for (at, command) in commands().iter().enumerate() {
        let script = directory.path().join(format!("{at}.sh"));
        fs::write(&script, format!("#!/bin/sh\n{command}\n")).unwrap();
        assert_eq!(ask("shellcheck", "shellcheck", &[script.to_str().unwrap()]), "", "{command}");
    }
}

/// The image of the last stage has neither a compiler nor the sources.
#[test]
fn the_containerfile_compiles_with_the_oldest_supported_compiler_in_a_separate_stage() {
    let stages: Vec<&str> = CONTAINERFILE.lines().filter(|line| line.starts_with("FROM ")).collect();
    let oldest = env!("CARGO_PKG_RUST_VERSION");
    assert_eq!(stages, [&format!("FROM docker.io/library/rust:{oldest}-alpine AS build"), "FROM ${BASE}"]);
    let copied: Vec<&str> = CONTAINERFILE.lines().filter(|line| line.starts_with("COPY ")).collect();
    assert_eq!(copied, ["COPY . .", "COPY --from=build /files /"]);
}

/// The Containerfile writes the same files as the page for image builders shows.
#[test]
fn the_containerfile_writes_the_files_that_image_builders_read() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().to_str().unwrap();
    let commands = commands();
    let script = commands.iter().find(|command| command.starts_with("mkdir ")).unwrap();
    let script = script.replace("/usr/lib/", &format!("{root}/usr/lib/"));
    assert_eq!(ask("sh", "dash", &["-c", &script]), "");
    let page = include_str!("../docs/image-builders.md");
    for path in [
        "usr/lib/dracut/dracut.conf.d/50-glowplug.conf",
        "usr/lib/systemd/system/glowplug-network-kargs.service.d/30-default.conf",
    ] {
        let text = fs::read_to_string(directory.path().join(path)).unwrap();
        assert!(page.contains(&format!("# /{path}\n{text}")), "{path}: {text}");
    }
}

#[test]
fn shellcheck_finds_no_mistake_in_the_dracut_module() {
    let module = Path::new(MODULE).join("module-setup.sh");
    assert_eq!(ask("shellcheck", "shellcheck", &[module.to_str().unwrap()]), "");
}
