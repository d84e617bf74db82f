//! Runs the commands that print and write metadata.

use std::fs;
use std::process::Command;

use super::machine::{FakeMachine, Run, drive, run};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

fn openstack(meta_data: &str) -> FakeMachine {
    FakeMachine::new().with("openstack/latest/meta_data.json", meta_data).with(
        "openstack/latest/network_data.json",
        r#"{"links":[{"id":"eno1","type":"phy"}],
            "networks":[{"link":"eno1","type":"ipv4","ip_address":"10.0.0.5/24"}]}"#,
    )
}

fn typical() -> FakeMachine {
    openstack(
        r#"{"instance_id":"worker-0.clusters","uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223","hostname":"worker-0",
            "instance_type":"u1 large"}"#,
    )
}

/// Runs a command with `--config-drive`.
fn with_drive(drive: &FakeMachine, arguments: &[&str]) -> Run {
    let path = drive.path("");
    run(&[arguments, &["--config-drive", path.to_str().unwrap()]].concat())
}

fn printed(run: Run) -> (Option<i32>, String, String) {
    (run.code, run.stdout, run.stderr)
}

fn answer(code: i32, stdout: &str) -> (Option<i32>, String, String) {
    (Some(code), stdout.to_owned(), String::new())
}

#[test]
fn metadata_without_a_key_prints_all_attributes_as_a_table() {
    let table = "\
hostname       worker-0
instance_id    worker-0.clusters
instance_type  u1 large
interface      eno1
ipv4           10.0.0.5
name           worker-0
namespace      clusters
uuid           5d307ca9-b3ef-428c-8861-06e72d69f223
";
    assert_eq!(printed(with_drive(&typical(), &["metadata"])), answer(0, table));
}

#[test]
fn metadata_with_keys_prints_only_the_values_one_on_each_line() {
    let drive = typical();
    assert_eq!(printed(with_drive(&drive, &["metadata", "instance-type"])), answer(0, "u1 large\n"));
    let several = ["metadata", "ipv4", "GLOWPLUG_KUBEVIRT_HOSTNAME"];
    assert_eq!(printed(with_drive(&drive, &several)), answer(0, "10.0.0.5\nworker-0\n"));
}

#[test]
fn a_key_without_a_value_gives_exit_status_1_and_no_value() {
    let drive = typical();
    assert_eq!(printed(with_drive(&drive, &["metadata", "ipv6"])), answer(1, ""));
    assert_eq!(printed(with_drive(&drive, &["metadata", "ipv6", "ipv4"])), answer(1, "\n10.0.0.5\n"));
}

#[test]
fn an_unknown_key_is_refused_even_if_standard_error_is_full() {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplug"));
    assert_eq!(command.args(["metadata", "colour"]).stderr(full).status().unwrap().code(), Some(2));
}

#[test]
fn the_error_about_an_unknown_key_lists_the_known_keys() {
    let Run { code, stdout, stderr } = with_drive(&typical(), &["metadata", "colour"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(
        stderr,
        "error: unknown key \"colour\", expected one of hostname, instance_id, instance_type, name, namespace, uuid, \
         interface, ipv4, ipv6, mac (for further interfaces with the suffix _1, _2 and so on), and with the prefix device_0_, \
         device_1_ and so on: address, aligned_cpus, bus, mac, numa_node, serial, tags, type\n"
    );
}

#[test]
fn metadata_is_printed_as_json_on_request() {
    let Run { code, stdout, .. } = with_drive(&typical(), &["metadata", "--json", "hostname", "ipv6"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, json), (Some(1), serde_json::json!({"hostname": "worker-0"})));
}

#[test]
fn attributes_are_read_from_the_file_of_the_unit_without_a_search_for_a_drive() {
    let file = "GLOWPLUG_KUBEVIRT_HOSTNAME=\"a \\\"b\\\"\"\nGLOWPLUG_KUBEVIRT_IPV4=10.0.0.9\n";
    // The disks are not readable, so the run succeeds only because it reads the file.
    let machine = FakeMachine::kubevirt().with("run/metadata/glowplug", file).with("sys/class/block", "");
    assert_eq!(printed(machine.run(&["metadata", "hostname"])), answer(0, "a \"b\"\n"));
    assert_eq!(printed(machine.run(&["metadata", "uuid"])), answer(1, ""));
}

#[test]
fn the_names_of_interfaces_are_those_of_the_renderer_of_the_boot() {
    let drive = drive(
        r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:00:00:01"},
                     {"id":"v","name":"storage","type":"vlan","vlan_link":"a","vlan_id":5}],
            "networks":[{"link":"a","type":"ipv4","ip_address":"10.0.0.5/24"},
                        {"link":"v","type":"ipv4","ip_address":"10.0.1.5/24"}]}"#,
    );
    let drive = drive.path("");
    let drive = ["--config-drive", drive.to_str().unwrap()];
    let names = |renderer: &str| {
        let machine = FakeMachine::kubevirt()
            .with("sys/class/net/enp1s0/address", "52:54:00:00:00:01\n")
            .with("sys/class/net/enp1s0/device/vendor", "");
        machine.network_kargs(&[&drive[..], &["--renderer", renderer]].concat());
        machine.run(&[&["metadata", "interface", "interface_1"], &drive[..]].concat()).stdout
    };
    assert_eq!(names("network-manager"), "kv0\nkv0.5\n");
    assert_eq!(names("systemd-networkd"), "\nstorage\n");
}

#[test]
fn without_the_file_of_the_unit_attributes_are_read_from_the_drive() {
    let image = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/images/hypershift.iso");
    let machine = FakeMachine::kubevirt().with_disk("vdb", fs::read(image).unwrap());
    assert_eq!(printed(machine.run(&["metadata", "namespace"])), answer(0, "clusters-prod\n"));
}

#[test]
fn commands_for_metadata_refuse_drives_that_differ_only_in_their_metadata() {
    let image = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/images/hypershift.iso")).unwrap();
    // No checksum covers the files of the image.
    let mut other = image.clone();
    let at = image.windows(20).position(|bytes| bytes == br#""hostname":"worker-0"#).unwrap();
    other[at + 12..at + 18].copy_from_slice(b"attack");
    let machine = FakeMachine::kubevirt()
        .with("etc/passwd", "core:x:0:0::/home/core:/bin/sh\n")
        .with("home/core/.ssh/id", "")
        .with_disk("vda", other)
        .with_disk("vdb", image);
    let out = machine.path("out");
    let output = ["--wait=0", "--output", out.to_str().unwrap()];
    let before = machine.files();
    for arguments in [
        &["metadata"][..],
        &[&["attributes"], &output[..]].concat(),
        &[&["hostname"], &output[..]].concat(),
        &["ssh-keys", "--wait=0", "--user=core"],
    ] {
        let Run { code, stderr, .. } = machine.run(arguments);
        let error = "<3>failed error=\"/dev/vda, /dev/vdb: config drives that disagree about the metadata, expected one drive \
                     or the same metadata on each\"";
        assert_eq!((code, stderr.lines().last()), (Some(1), Some(error)), "{arguments:?}");
    }
    assert_eq!(machine.files(), before);

    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    let of_network =
        serde_json::json!({"ipv4": "192.168.1.100", "ipv6": "2620:0:860:2::10", "mac": "52:54:00:12:34:56"});
    assert_eq!((&plan["outcome"], &plan["metadata"]), (&serde_json::json!("configured"), &of_network));
}

#[test]
fn a_machine_of_another_platform_has_no_metadata() {
    let machine = FakeMachine::new();
    assert_eq!(printed(machine.run(&["metadata", "hostname"])), answer(1, ""));
    let Run { code, stderr, .. } = machine.run(&["attributes", "--output", machine.path("out").to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stderr,
        "<6>nothing to do reason=\"this is not known to be KubeVirt: neither the kernel command line nor DMI names the platform\"\n"
    );
    assert_eq!(machine.read("out"), None);
}

#[test]
fn a_named_drive_on_a_machine_of_another_platform_is_used_only_with_provider() {
    let drive = FakeMachine::new().with("meta-data", "local-hostname: web1\n");
    let (machine, path) = (FakeMachine::new(), drive.path(""));
    let output = machine.path("out");
    let arguments = ["attributes", "--config-drive", path.to_str().unwrap(), "--output", output.to_str().unwrap()];
    let Run { code, stderr, .. } = machine.run(&arguments);
    let reason = "this is not known to be KubeVirt: neither the kernel command line nor DMI names the platform, \
                  and the drive does not have the layout of KubeVirt drives; --provider kubevirt sets the platform";
    assert_eq!((code, stderr), (Some(0), format!("<6>nothing to do reason=\"{reason}\"\n")));
    assert_eq!(machine.run(&[&arguments[..], &["--provider", "kubevirt"]].concat()).code, Some(0));
    assert_eq!(machine.read("out").as_deref(), Some("GLOWPLUG_KUBEVIRT_HOSTNAME=web1\n"));
}

#[test]
fn attributes_are_written_for_units() {
    let (drive, out) = (typical(), FakeMachine::new());
    let file = out.path("metadata/glowplug");
    let arguments = ["attributes", "--provider", "kubevirt", "--output", file.to_str().unwrap()];
    assert_eq!(with_drive(&drive, &arguments).code, Some(0));
    assert_eq!(
        out.read("metadata/glowplug").as_deref(),
        Some(
            "\
GLOWPLUG_KUBEVIRT_HOSTNAME=worker-0
GLOWPLUG_KUBEVIRT_INSTANCE_ID=worker-0.clusters
GLOWPLUG_KUBEVIRT_INSTANCE_TYPE=\"u1 large\"
GLOWPLUG_KUBEVIRT_INTERFACE=eno1
GLOWPLUG_KUBEVIRT_IPV4=10.0.0.5
GLOWPLUG_KUBEVIRT_NAME=worker-0
GLOWPLUG_KUBEVIRT_NAMESPACE=clusters
GLOWPLUG_KUBEVIRT_UUID=5d307ca9-b3ef-428c-8861-06e72d69f223
"
        )
    );
    assert_eq!(out.mode("metadata/glowplug"), 0o644);
}

#[test]
fn attributes_can_have_the_names_of_afterburn() {
    let (drive, out) = (typical(), FakeMachine::new());
    let file = out.path("afterburn");
    let arguments =
        ["attributes", "--provider", "kubevirt", "--prefix", "AFTERBURN_", "--output", file.to_str().unwrap()];
    assert_eq!(with_drive(&drive, &arguments).code, Some(0));
    let text = out.read("afterburn").unwrap();
    let lines: Vec<&str> = text.lines().take(3).collect();
    assert_eq!(
        lines,
        [
            "AFTERBURN_KUBEVIRT_HOSTNAME=worker-0",
            "AFTERBURN_KUBEVIRT_INSTANCE_ID=5d307ca9-b3ef-428c-8861-06e72d69f223",
            "AFTERBURN_KUBEVIRT_INSTANCE_TYPE=\"u1 large\"",
        ]
    );
}

#[test]
fn attributes_are_written_even_if_the_network_is_refused() {
    let drive = FakeMachine::new()
        .with("openstack/latest/meta_data.json", r#"{"hostname":"worker-0"}"#)
        .with("openstack/latest/network_data.json", r#"{"networks":[{"type":"ipv4","link":"x"}]}"#);
    let out = FakeMachine::new();
    let file = out.path("out");
    let run = with_drive(&drive, &["attributes", "--provider", "kubevirt", "--output", file.to_str().unwrap()]);
    assert_eq!(printed(run), answer(0, ""));
    assert_eq!(out.read("out").as_deref(), Some("GLOWPLUG_KUBEVIRT_HOSTNAME=worker-0\n"));
}

#[test]
fn an_invalid_network_option_on_the_kernel_command_line_does_not_affect_attributes() {
    let drive = typical();
    let machine = FakeMachine::kubevirt().with("proc/cmdline", "glowplug.renderer=none glowplug.on-error=x");
    let (named, output) = (drive.path(""), machine.path("attributes"));
    let run =
        machine.run(&["attributes", "--config-drive", named.to_str().unwrap(), "--output", output.to_str().unwrap()]);
    assert_eq!(printed(run), answer(0, ""));
    assert!(machine.read("attributes").unwrap().starts_with("GLOWPLUG_KUBEVIRT_HOSTNAME=worker-0\n"));
}

#[test]
fn a_command_that_cannot_write_its_file_fails() {
    let out = FakeMachine::new().with("file", "");
    let file = out.path("file/out");
    let file = file.to_str().unwrap();
    let Run { code, stderr, .. } = with_drive(&typical(), &["attributes", "--provider", "kubevirt", "--output", file]);
    assert_eq!(code, Some(1));
    assert_eq!(stderr, format!("<3>failed error=\"writing {file}: File exists (os error 17)\"\n"));
}

/// Runs `glowplug hostname` on a drive. Returns exit status, last log line, and the file.
fn hostname(meta_data: &str) -> (Option<i32>, String, Option<String>) {
    let out = FakeMachine::new();
    let file = out.path("etc/hostname");
    let arguments = ["hostname", "--provider", "kubevirt", "--output", file.to_str().unwrap()];
    let Run { code, stderr, .. } = with_drive(&openstack(meta_data), &arguments);
    let message = stderr.lines().last().unwrap_or_default().replace(file.to_str().unwrap(), "FILE");
    (code, message, out.read("etc/hostname"))
}

#[test]
fn the_hostname_of_the_drive_is_written() {
    assert_eq!(
        hostname(r#"{"hostname":"worker-0"}"#),
        (Some(0), "<6>wrote the hostname hostname=worker-0 path=FILE".to_owned(), Some("worker-0\n".to_owned()))
    );
}

#[test]
fn without_a_hostname_on_the_drive_nothing_is_written() {
    assert_eq!(hostname("{}"), (Some(0), String::new(), None));
}

#[test]
fn a_hostname_that_is_too_long_or_ends_with_a_dot_is_shortened_for_linux() {
    for (written, name) in [
        ("worker-0.example.org.".to_owned(), "worker-0.example.org"),
        (format!("worker-0.{}.example.org", "a".repeat(60)), "worker-0"),
    ] {
        let out = FakeMachine::new();
        let file = out.path("etc/hostname");
        let arguments = ["hostname", "--provider", "kubevirt", "--output", file.to_str().unwrap()];
        let meta_data = serde_json::json!({"hostname": written}).to_string();
        let Run { code, stderr, .. } = with_drive(&openstack(&meta_data), &arguments);
        assert_eq!((code, out.read("etc/hostname")), (Some(0), Some(format!("{name}\n"))));
        let warning = format!("<4>shortened the hostname from={written} hostname={name}");
        assert_eq!(stderr.lines().filter(|line| line.starts_with("<4>")).collect::<Vec<_>>(), [warning]);
    }
}

#[test]
fn the_error_about_an_invalid_hostname_has_its_value() {
    let (code, message, file) = hostname(r#"{"hostname":"a\nb"}"#);
    assert_eq!((code, file), (Some(1), None));
    assert_eq!(
        message,
        "<3>failed error=\"hostname: invalid hostname \\\"a\\\\nb\\\", expected a host name: at most 64 letters, digits, '-' and '.', each label of 1 to 63 characters, without '-' at either end\""
    );
}

#[test]
fn the_public_keys_of_the_drive_are_written_and_an_invalid_key_is_reported() {
    let drive =
        openstack(&format!(r##"{{"public_keys":{{"0":"# both of us\n{KEY} a@b\nssh-foo AAAA\n","1":"{KEY} c@d"}}}}"##));
    let (uid, gid) = owner();
    let machine = FakeMachine::new().with("etc/passwd", format!("core:x:{uid}:{gid}::/home/core:/bin/bash\n"));
    fs::create_dir_all(machine.path("home/core")).unwrap();
    let drive_path = drive.path("");
    let Run { code, stderr, .. } = machine.run(&[
        "ssh-keys",
        "--provider",
        "kubevirt",
        "--user",
        "core",
        "--config-drive",
        drive_path.to_str().unwrap(),
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    let file = "home/core/.ssh/authorized_keys.d/glowplug";
    assert_eq!(machine.read(file), Some(format!("{KEY} a@b\n{KEY} c@d\n")));
    assert_eq!(
        [machine.mode(file), machine.mode("home/core/.ssh"), machine.mode("home/core/.ssh/authorized_keys.d")],
        [0o600, 0o700, 0o700]
    );
    let first = stderr.lines().next().unwrap();
    assert!(first.starts_with("<4>ignored an invalid public key diagnostic=\"public_keys.0 line 3: "), "{first}");
}

#[test]
fn keys_of_an_earlier_run_stay_until_the_drive_has_an_empty_list() {
    let (uid, gid) = owner();
    let file = "home/core/.ssh/authorized_keys.d/glowplug";
    let machine = FakeMachine::new().with("etc/passwd", format!("core:x:{uid}:{gid}::/home/core:/bin/bash\n"));
    fs::create_dir_all(machine.path("home/core")).unwrap();
    let ssh_keys = |meta_data: &str| {
        let drive = openstack(meta_data);
        let drive = drive.path("");
        let named = ["--config-drive", drive.to_str().unwrap()];
        machine.run(&[&["ssh-keys", "--provider", "kubevirt", "--user", "core"][..], &named].concat()).code
    };
    assert_eq!(ssh_keys(&format!(r#"{{"public_keys":"{KEY}"}}"#)), Some(0));
    for unreadable in ["{", "[]", r#"{"public_keys":7}"#, r#"{"public_keys":[["a"]]}"#, r#"{"public_keys":"ssh-foo"}"#]
    {
        assert_eq!(ssh_keys(unreadable), Some(1), "{unreadable}");
        assert_eq!(machine.read(file), Some(format!("{KEY}\n")), "{unreadable}");
    }
    assert_eq!(ssh_keys(r#"{"public_keys":{}}"#), Some(0));
    assert_eq!(machine.read(file), None);
}

#[test]
fn an_unknown_user_is_refused() {
    let drive = openstack(&format!(r#"{{"public_keys":"{KEY}"}}"#));
    let machine = FakeMachine::new().with("etc/passwd", "root:x:0:0::/root:/bin/sh\n");
    let passwd = machine.path("etc/passwd");
    let drive_path = drive.path("");
    let arguments =
        ["ssh-keys", "--provider", "kubevirt", "--user", "core", "--config-drive", drive_path.to_str().unwrap()];
    assert_eq!(
        printed(machine.run(&arguments)),
        (
            Some(1),
            String::new(),
            format!("<3>failed error=\"unknown user \\\"core\\\", expected one of {}\"\n", passwd.display())
        )
    );
}

/// Returns the user and the group of the test process. Only root could write files for another user.
fn owner() -> (String, String) {
    let id = |flag| {
        let output = Command::new("id").arg(flag).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    (id("-u"), id("-g"))
}
