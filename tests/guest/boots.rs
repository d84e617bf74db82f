//! Runs `network-kargs` with the input of a boot, and checks the files that the command writes.

use std::fs;
use std::process::Command;

use super::machine::{FakeMachine, Run, drive};

const HYPERSHIFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/images/hypershift.iso");
const HYPERSHIFT_LINE: &str = "ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none \
    ip=[2620:0:860:2::10]::[2620:0:860:2::1]:64::[52:54:00:12:34:56]:none nameserver=8.8.8.8\n";

fn hypershift() -> Vec<u8> {
    fs::read(HYPERSHIFT).unwrap()
}

/// Returns the outcome and the reason in the report of a run.
fn recorded(machine: &FakeMachine) -> (String, String) {
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    let text = |name: &str| plan[name].as_str().unwrap().to_owned();
    (text("outcome"), text("reason"))
}

#[test]
fn a_kubevirt_machine_gets_the_network_of_its_drive() {
    let machine = FakeMachine::kubevirt().with_disk("vda", vec![0; 65_536]).with_disk("vdb", hypershift());
    let Run { code, stdout, stderr } = machine.network_kargs(&[]);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert_eq!(machine.fragment().as_deref(), Some(HYPERSHIFT_LINE));
    assert_eq!(machine.mode("etc/cmdline.d/50-glowplug-network-kargs.conf"), 0o644);
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    assert_eq!(plan["platform"], serde_json::json!({"id": "kubevirt", "reason": "DMI has sys_vendor \"KubeVirt\""}));
    assert_eq!(plan["fragment"], "/etc/cmdline.d/50-glowplug-network-kargs.conf");
    let drive = &plan["drive"];
    assert_eq!(
        [&drive["path"], &drive["file_system"], &drive["label"], &drive["layout"]],
        ["/dev/vdb", "iso9660", "config-2", "openstack"]
    );
}

/// Runs `network-kargs` with a drive that has these files. Returns the exit status, and the outcome and diagnostics in
/// the report.
fn run_with(files: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String, serde_json::Value) {
    let drive = files.iter().fold(FakeMachine::new(), |drive, (path, content)| drive.with(path, content));
    let (machine, path) = (FakeMachine::kubevirt(), drive.path(""));
    let code = machine.network_kargs(&[&["--config-drive", path.to_str().unwrap()], arguments].concat()).code;
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    (code, recorded(&machine).0, plan["diagnostics"].clone())
}

#[test]
fn a_network_at_another_path_of_the_drive_is_reported_when_the_default_applies() {
    let meta_data = r#"{"hostname":"vm","network_config":{"name":"network_config","content_path":"/content/0000"}}"#;
    let of_files = [("openstack/latest/meta_data.json", meta_data), ("openstack/content/0000", "auto lo\n")];
    let nocloud = [("meta-data", "instance-id: i-1\nnetwork-interfaces: |\n  iface eth0 inet dhcp\n")];
    let both = [("openstack/latest/meta_data.json", "{}"), ("network-config", "version: 2\n")];
    let cases = [
        (
            &of_files[..],
            "openstack/latest/meta_data.json: network_config.content_path",
            "/content/0000",
            "the network in network_data.json",
        ),
        (&nocloud[..], "meta-data: network-interfaces", "a string", "the network in network-config"),
        (&both[..], "network-config", "a file", "the network in the same directory as the metadata"),
    ];
    for (files, path, value, expected) in cases {
        let diagnostic = |severity: &str| {
            let problem = "network that is not read";
            serde_json::json!([{"severity": severity, "path": path, "problem": problem, "value": value, "expected": expected}])
        };
        let with_default = run_with(files, &["--default-value", "ip=auto"]);
        assert_eq!(with_default, (Some(0), "default".to_owned(), diagnostic("warning")));
        let strict = run_with(files, &["--require-default"]);
        assert_eq!(strict, (Some(1), "refused".to_owned(), diagnostic("error")));
    }
}

#[test]
fn a_network_at_another_path_has_no_effect_if_the_drive_has_a_network_document() {
    let meta_data = r#"{"network_config":{"content_path":"/content/0000"}}"#;
    let network = r#"{"links":[{"id":"eno101","type":"phy"}],"networks":[{"link":"eno101","type":"ipv4_dhcp"}]}"#;
    let files = [("openstack/latest/meta_data.json", meta_data), ("openstack/latest/network_data.json", network)];
    assert_eq!(run_with(&files, &[]), (Some(0), "configured".to_owned(), serde_json::json!([])));
}

/// UUID that differs from the UUID on the drive.
const OTHER: &str = "11111111-2222-3333-4444-555555555555";

#[test]
fn the_drive_of_another_machine_is_refused() {
    let machine = FakeMachine::kubevirt().with("sys/class/dmi/id/product_uuid", OTHER).with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&["--wait", "0", "--default-value", "ip=auto"]).code, Some(1));
    assert_eq!(machine.fragment(), None);
    let reason = format!(
        "/dev/vdb: config drive of another machine, uuid \"5d307ca9-b3ef-428c-8861-06e72d69f223\", expected {OTHER}; \
         use the drive with --any-drive or glowplug.any-drive"
    );
    assert_eq!(recorded(&machine), ("refused".to_owned(), reason));
}

/// A VirtualMachineInstance without `spec.domain.firmware` has one random UUID on the drive and another UUID in the
/// firmware.
#[test]
fn the_drive_of_a_virtual_machine_instance_without_firmware_is_used() {
    let machine = FakeMachine::kubevirt()
        .with("sys/class/dmi/id/product_uuid", "0b1c8f1e-6a5f-4d42-9c8a-7d1f0e6c2b39\n")
        .with_disk("vdb", hypershift());
    let Run { code, stderr, .. } = machine.network_kargs(&["--wait", "0", "--default-value", "ip=auto"]);
    assert_eq!((code, machine.fragment().as_deref()), (Some(0), Some(HYPERSHIFT_LINE)), "{stderr}");
}

#[test]
fn the_drive_of_another_machine_is_used_with_any_drive() {
    for (line, option) in
        [("quiet", "--any-drive"), ("glowplug.any-drive", "--neednet"), ("glowplug.any-drive=1", "-v")]
    {
        let machine = FakeMachine::kubevirt()
            .with("proc/cmdline", line)
            .with("sys/class/dmi/id/product_uuid", OTHER)
            .with_disk("vdb", hypershift());
        assert_eq!(machine.network_kargs(&["--wait", "0", option]).code, Some(0), "{line} {option}");
        let fragment = machine.fragment().unwrap();
        assert!(fragment.starts_with(HYPERSHIFT_LINE.trim_end()), "{line} {option}: {fragment}");
    }
}

/// Returns log lines without the time, which differs between runs.
fn without_time(stderr: &str) -> Vec<&str> {
    stderr.lines().map(|line| line.split_once(" monotonic=").unwrap().0).collect()
}

#[test]
fn the_debug_log_names_each_examined_device() {
    let expected = [
        format!("<7>started version={}", glowplug::VERSION),
        "<7>decided the platform platform=kubevirt reason=\"DMI has sys_vendor \\\"KubeVirt\\\"\"".to_owned(),
        "<7>examined a device device=/dev/vda label=root".to_owned(),
    ];
    for (line, option) in [("", "-v"), ("", "--verbose"), ("glowplug.debug", "--wait=0")] {
        let machine = FakeMachine::kubevirt().with("proc/cmdline", line).with_disk("vda", labelled("root"));
        let Run { code, stderr, .. } =
            machine.network_kargs(&["--wait=0", option][usize::from(option == "--wait=0")..]);
        let lines = without_time(&stderr);
        assert_eq!(
            (code, &lines[..3]),
            (Some(0), expected.each_ref().map(String::as_str).as_slice()),
            "{line} {option}"
        );
    }
}

/// Builds an empty ISO 9660 volume with this label.
fn labelled(label: &str) -> Vec<u8> {
    let mut image = vec![0; 0x9000];
    image[0x8000..0x8007].copy_from_slice(b"\x01CD001\x01");
    image[0x8028..0x8048].fill(b' ');
    image[0x8028..0x8028 + label.len()].copy_from_slice(label.as_bytes());
    image
}

#[test]
fn a_run_creates_only_the_fragment_and_the_report() {
    let machine = FakeMachine::kubevirt().with_disk("sr0", hypershift());
    let before = machine.files();
    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    let mut left = machine.files();
    left.retain(|path, _| !before.contains_key(path));
    let left: Vec<_> = left.into_keys().collect();
    assert_eq!(
        left,
        [
            machine.path("etc/cmdline.d/50-glowplug-network-kargs.conf"),
            machine.path("run/glowplug/plan.json"),
            machine.path("run/glowplug/plan.txt"),
        ]
    );
}

#[test]
fn a_second_run_writes_the_same_kernel_arguments() {
    let machine = FakeMachine::kubevirt().with_disk("vdb", hypershift());
    machine.network_kargs(&[]);
    let first = machine.fragment();
    machine.network_kargs(&[]);
    assert_eq!((first.as_deref(), machine.fragment()), (Some(HYPERSHIFT_LINE), first.clone()));
}

#[test]
fn a_network_on_the_kernel_command_line_takes_precedence_over_the_document() {
    let machine = FakeMachine::kubevirt()
        .with("proc/cmdline", "root=/dev/vda ip=10.9.9.9::10.9.9.1:24::eth0:none quiet\n")
        .with_disk("vdb", hypershift());
    let Run { code, stderr, .. } = machine.network_kargs(&["--default-value", "ip=auto"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stderr,
        "<6>nothing to do reason=\"the kernel command line configures the network with \
         ip=10.9.9.9::10.9.9.1:24::eth0:none\"\n"
    );
    assert_eq!(machine.fragment(), None);
    assert_eq!(recorded(&machine).0, "nothing-to-do");
}

#[test]
fn arguments_that_configure_no_nic_do_not_stop_the_program() {
    let machine = FakeMachine::kubevirt()
        .with(
            "proc/cmdline",
            "nameserver=9.9.9.9 rd.route=10.0.0.0/8:10.1.1.1:eth0 rd.neednet=1 ifname=a0:52:54:00:00:00:01\n",
        )
        .with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some(HYPERSHIFT_LINE));
}

/// dracut joins the arguments of its files, so NetworkManager would use both networks.
#[test]
fn a_network_in_a_file_of_the_image_takes_precedence_over_the_document() {
    for file in ["etc/cmdline.d/01-default.conf", "etc/cmdline", "run/initramfs/cmdline.d/a.conf"] {
        let machine = FakeMachine::kubevirt().with(file, "rd.neednet=1\nip=dhcp\n").with_disk("vdb", hypershift());
        assert_eq!(machine.network_kargs(&["--default-value", "ip=auto"]).code, Some(0));
        assert_eq!(machine.fragment(), None);
        let reason = format!("/{file} configures the network with ip=dhcp");
        assert_eq!(recorded(&machine), ("nothing-to-do".to_owned(), reason));
    }
}

/// The default of the distribution is a setting of the unit, and is written to the same file as the network of a drive.
#[test]
fn the_default_arguments_of_an_earlier_run_do_not_keep_the_next_run_from_using_a_drive() {
    let machine = FakeMachine::kubevirt();
    assert_eq!(machine.network_kargs(&["--wait", "0", "--default-value", "ip=auto"]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("ip=auto\n"));
    let machine = machine.with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&["--default-value", "ip=auto"]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some(HYPERSHIFT_LINE));
}

#[test]
fn a_nic_that_the_boot_loader_or_the_image_names_keeps_this_name() {
    let document = "version: 2\nethernets: {a: {match: {macaddress: '52:54:00:aa:00:01'}}}\n\
                    vlans: {v: {id: 5, link: a, addresses: [10.0.0.5/24]}}\n";
    for file in ["proc/cmdline", "etc/cmdline.d/01-default.conf"] {
        let (machine, drive) = (FakeMachine::kubevirt().with(file, "ifname=lan0:52:54:00:AA:00:01\n"), drive(document));
        let path = drive.path("");
        assert_eq!(machine.network_kargs(&["--config-drive", path.to_str().unwrap()]).code, Some(0));
        assert_eq!(machine.fragment().as_deref(), Some("vlan=lan0.5:lan0 ip=10.0.0.5:::24::lan0.5:none\n"));
    }
}

#[test]
fn a_machine_of_another_platform_gets_no_network_configuration() {
    let machine =
        FakeMachine::kubevirt().with("proc/cmdline", "ignition.platform.id=openstack\n").with_disk("vdb", hypershift());
    let Run { code, stderr, .. } = machine.network_kargs(&["--default-value", "ip=auto"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stderr,
        "<6>nothing to do reason=\"this is not known to be KubeVirt: kernel command line has \
         ignition.platform.id=openstack\"\n"
    );
    assert_eq!(machine.fragment(), None);
}

#[test]
fn a_machine_without_dmi_is_recognised_by_the_layout_of_its_drive() {
    let machine = FakeMachine::new().with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some(HYPERSHIFT_LINE));
}

#[test]
fn an_unknown_machine_without_a_drive_is_not_configured_and_does_not_wait() {
    let machine = FakeMachine::new().with_disk("vda", vec![0; 65_536]);
    let Run { code, stderr, .. } = machine.network_kargs(&["--default-value", "ip=auto", "--wait", "3600"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stderr,
        "<6>nothing to do reason=\"this is not known to be KubeVirt: neither the kernel command line nor DMI names the platform\"\n"
    );
}

#[test]
fn a_run_without_a_drive_writes_the_default_arguments() {
    let machine = FakeMachine::kubevirt();
    let Run { code, .. } = machine.network_kargs(&["--wait", "0", "--default-value", "ip=dhcp,dhcp6 rd.neednet=1"]);
    assert_eq!(code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("ip=dhcp,dhcp6 rd.neednet=1\n"));
    assert_eq!(recorded(&machine), ("default".to_owned(), "no config drive appeared within 0 s".to_owned()));
}

#[test]
fn default_arguments_are_written_as_they_are_with_every_renderer() {
    for arguments in [&["--renderer", "network-legacy"][..], &["--neednet"]] {
        let machine = FakeMachine::kubevirt();
        let all = [arguments, &["--wait", "0", "--default-value", "ip=dhcp"]].concat();
        assert_eq!((machine.network_kargs(&all).code, machine.fragment()), (Some(0), Some("ip=dhcp\n".to_owned())));
    }
}

#[test]
fn a_warning_about_a_name_names_the_ifname_of_the_boot_loader() {
    let document = "version: 2\nethernets: {a: {match: {macaddress: '52:54:00:12:34:56'}, set-name: eno1}}\n\
                    vlans: {v: {id: 5, link: a, addresses: [10.0.0.5/24]}}\n";
    let machine = FakeMachine::kubevirt().with("proc/cmdline", "ifname=foo:52:54:00:12:34:56");
    let drive = drive(document);
    let run = machine.network_kargs(&["--config-drive", drive.path("").to_str().unwrap()]);
    let warning =
        r#"diagnostic="ethernets.a.set-name: name that cannot be set \"eno1\", expected foo, the name from ifname=""#;
    assert_eq!(run.stderr.lines().next(), Some(format!("<4>warning about the network document {warning}").as_str()));
}

const STATIC: &str = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:12:34:56"}],
    "networks":[{"link":"a","type":"ipv4","ip_address":"10.0.0.5/24"}]}"#;

/// Runs the program on a machine without a drive, with a value of `GLOWPLUG_NETWORK_KARGS_DEFAULT`.
fn with_variable(
    machine: &FakeMachine,
    value: Option<&str>,
    arguments: &[&str],
) -> (Option<i32>, Option<String>, String) {
    let root = machine.path("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplug"));
    command.args(["network-kargs", "--wait", "0", "--root", root.to_str().unwrap()]).args(arguments);
    if let Some(value) = value {
        command.env("GLOWPLUG_NETWORK_KARGS_DEFAULT", value);
    }
    let Run { code, .. } = Run::of(&mut command);
    (code, machine.fragment(), recorded(machine).1)
}

const NO_DRIVE: &str = "no config drive appeared within 0 s";

#[test]
fn the_option_default_value_takes_precedence_over_the_variable_of_the_distribution() {
    let cases: [(Option<&str>, &[&str], Option<&str>); 4] = [
        (None, &[], None),
        (Some(""), &["--require-default"], None),
        (Some("ip=dhcp"), &["--require-default"], Some("ip=dhcp\n")),
        (Some("ip=dhcp"), &["--default-value", "ip=auto"], Some("ip=auto\n")),
    ];
    for (value, arguments, fragment) in cases {
        let run = with_variable(&FakeMachine::kubevirt(), value, arguments);
        assert_eq!(run, (Some(0), fragment.map(str::to_owned), NO_DRIVE.to_owned()), "{value:?} {arguments:?}");
    }
}

#[test]
fn with_require_default_a_missing_default_fails_only_a_run_that_needs_the_default() {
    let missing = "GLOWPLUG_NETWORK_KARGS_DEFAULT is not set, expected kernel arguments, or nothing for none";
    let illegal = "GLOWPLUG_NETWORK_KARGS_DEFAULT: invalid value \"ip=$(id)\", \
                   expected kernel arguments of letters, digits, blanks and . _ : [ ] , / = + -";
    for (value, why) in [(None, missing), (Some("ip=$(id)"), illegal)] {
        let run = with_variable(&FakeMachine::kubevirt(), value, &["--require-default"]);
        assert_eq!(run, (Some(1), None, format!("{NO_DRIVE}, and the default is missing: {why}")));

        let elsewhere = "this is not known to be KubeVirt: neither the kernel command line nor DMI names the platform";
        let run = with_variable(&FakeMachine::new(), value, &["--require-default"]);
        assert_eq!(run, (Some(0), None, elsewhere.to_owned()));

        let (machine, drive) = (FakeMachine::kubevirt(), drive(STATIC));
        let path = drive.path("");
        let (code, fragment, _) =
            with_variable(&machine, value, &["--require-default", "--config-drive", path.to_str().unwrap()]);
        assert_eq!((code, fragment.as_deref()), (Some(0), Some("ip=10.0.0.5:::24::[52:54:00:12:34:56]:none\n")));
    }
}

#[test]
fn commands_for_metadata_ignore_glowplug_wait_on_the_kernel_command_line() {
    let machine = FakeMachine::kubevirt().with("proc/cmdline", "glowplug.wait=3600");
    let output = machine.path("attributes");
    assert_eq!(machine.run(&["attributes", "--wait=0", "--output", output.to_str().unwrap()]).code, Some(0));
}

#[test]
fn glowplug_wait_on_the_kernel_command_line_takes_precedence_over_the_option_wait() {
    let machine = FakeMachine::kubevirt().with("proc/cmdline", "glowplug.wait=0");
    assert_eq!(machine.network_kargs(&["--wait", "3600", "--default-value", "ip=auto"]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("ip=auto\n"));
}

#[test]
fn documents_that_configure_nothing_give_the_default_arguments() {
    for document in ["{}", "", "null", " \n", "# nothing here\n", "{\"links\": [], \"networks\": [], \"services\": []}"]
    {
        let (machine, drive) = (FakeMachine::kubevirt(), drive(document));
        let path = drive.path("");
        let arguments = ["--config-drive", path.to_str().unwrap(), "--default-value", "ip=auto"];
        assert_eq!(machine.network_kargs(&arguments).code, Some(0), "{document:?}");
        assert_eq!(machine.fragment().as_deref(), Some("ip=auto\n"), "{document:?}");
    }
}

#[test]
fn a_drive_without_network_data_gives_the_default_arguments() {
    let machine = FakeMachine::kubevirt();
    let drive = FakeMachine::new().with("openstack/latest/meta_data.json", "{}");
    let path = drive.path("");
    assert_eq!(machine.network_kargs(&["--config-drive", path.to_str().unwrap()]).code, Some(0));
    assert_eq!(machine.fragment(), None);
    assert_eq!(recorded(&machine), ("default".to_owned(), "the drive has no network configuration".to_owned()));
}

const BROKEN: &str = r#"{"links":[{"id":"a","type":"phy","name":"eth0"}],
    "networks":[{"link":"a","type":"ipv4","ip_address":"10.0.0.5","netmask":"255.0.255.0"}]}"#;

#[test]
fn a_broken_document_is_refused_and_the_fragment_of_an_earlier_run_is_removed() {
    let machine = FakeMachine::kubevirt().with("etc/cmdline.d/50-glowplug-network-kargs.conf", "ip=10.0.0.9\n");
    let drive = drive(BROKEN);
    let path = drive.path("");
    let arguments = ["--config-drive", path.to_str().unwrap(), "--default-value", "ip=auto"];
    let Run { code, stderr, .. } = machine.network_kargs(&arguments);
    assert_eq!(code, Some(1));
    assert_eq!(
        stderr,
        "<3>error in the network document diagnostic=\"networks[0].netmask: invalid netmask \\\"255.0.255.0\\\", \
         expected a netmask without holes, or a prefix length above 0\"\n\
         <3>refused to configure the network reason=\"openstack/latest/network_data.json: 1 error\"\n"
    );
    assert_eq!(machine.fragment(), None);
    assert_eq!(recorded(&machine), ("refused".to_owned(), "openstack/latest/network_data.json: 1 error".to_owned()));
}

#[test]
fn a_broken_document_gives_the_default_arguments_with_on_error_default() {
    for (line, flag) in [("", "default"), ("glowplug.on-error=default", "fail")] {
        let machine = FakeMachine::kubevirt().with("proc/cmdline", line);
        let drive = drive(BROKEN);
        let path = drive.path("");
        let arguments = ["--config-drive", path.to_str().unwrap(), "--default-value", "ip=auto", "--on-error", flag];
        assert_eq!(machine.network_kargs(&arguments).code, Some(0));
        assert_eq!(machine.fragment().as_deref(), Some("ip=auto\n"));
        assert_eq!(
            recorded(&machine),
            (
                "default".to_owned(),
                "openstack/latest/network_data.json: 1 error; the default is used as requested".to_owned()
            )
        );
    }
}

#[test]
fn an_option_with_an_invalid_value_on_the_kernel_command_line_is_refused() {
    for (line, reason) in [
        ("glowplug.wait=soon", "glowplug.wait=soon: expected a whole number of seconds"),
        ("glowplug.on-error=retry", "glowplug.on-error=retry: expected fail or default"),
        (
            "glowplug.renderer=ifupdown",
            "glowplug.renderer=ifupdown: unknown renderer \"ifupdown\", \
             expected network-manager, network-manager-profiles, systemd-networkd or network-legacy",
        ),
    ] {
        let machine = FakeMachine::kubevirt().with("proc/cmdline", line);
        assert_eq!(machine.network_kargs(&[]).code, Some(1), "{line}");
        assert_eq!(recorded(&machine), ("refused".to_owned(), format!("kernel command line: {reason}")));
    }
}

/// Returns the file names in the directory of systemd-networkd.
fn networkd_files(machine: &FakeMachine) -> Vec<String> {
    let entries = fs::read_dir(machine.path("run/systemd/network")).map_or_else(|_| Vec::new(), Iterator::collect);
    let mut names: Vec<String> =
        entries.into_iter().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_machine_with_networkd_gets_files_and_no_arguments() {
    let machine = FakeMachine::kubevirt().with_disk("vdb", hypershift());
    let arguments = ["--renderer", "systemd-networkd"];
    let printed = machine.network_kargs(&[&arguments[..], &["--print"]].concat());
    assert_eq!((printed.code, networkd_files(&machine)), (Some(0), Vec::new()));
    assert_eq!(machine.network_kargs(&arguments).code, Some(0));
    assert_eq!(machine.fragment(), None);
    let names = networkd_files(&machine);
    assert!(!names.is_empty());
    let mut expected = Vec::new();
    for name in &names {
        let path = format!("run/systemd/network/{name}");
        assert_eq!(machine.mode(&path), 0o644);
        expected.push(format!("# /{path}\n{}", machine.read(&path).unwrap()));
    }
    assert_eq!(printed.stdout, expected.join("\n"));
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    let recorded: Vec<String> = plan["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| format!("# {}\n{}", file["path"].as_str().unwrap(), file["text"].as_str().unwrap()))
        .collect();
    assert_eq!((recorded, &plan["fragment"]), (expected, &serde_json::Value::Null));
}

/// Directory of NetworkManager's profiles in the initramfs.
const PROFILES: &str = "etc/NetworkManager/system-connections";

fn profiles(machine: &FakeMachine) -> Vec<String> {
    let entries = fs::read_dir(machine.path(PROFILES)).map_or_else(|_| Vec::new(), Iterator::collect);
    let mut names: Vec<String> =
        entries.into_iter().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn profiles_of_network_manager_are_private_and_arguments_set_the_names_of_nics() {
    let document = "version: 2\nethernets: {a: {match: {macaddress: '52:54:00:12:34:56'}, set-name: lan0, \
                    addresses: [10.0.0.5/24]}, enp3s0: {dhcp4: false}}\n";
    let (machine, drive) = (FakeMachine::kubevirt(), drive(document));
    let path = drive.path("");
    let arguments = ["--config-drive", path.to_str().unwrap(), "--renderer", "network-manager-profiles"];
    assert_eq!(machine.network_kargs(&[&arguments[..], &["--neednet"]].concat()).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("ifname=lan0:52:54:00:12:34:56 rd.neednet=1\n"));
    let names = ["50-glowplug-0000-52-54-00-12-34-56.nmconnection", "50-glowplug-0001-enp3s0.nmconnection"];
    assert_eq!(profiles(&machine), names);
    for name in names {
        assert_eq!(machine.mode(&format!("{PROFILES}/{name}")), 0o600);
    }
    // The absent NIC also has a profile, because NetworkManager does not wait for a NIC without addresses.
    let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
    assert_eq!(plan["diagnostics"], serde_json::json!([]));
}

#[test]
fn profiles_and_their_copies_are_removed_when_another_renderer_runs() {
    let machine = FakeMachine::kubevirt()
        .with("etc/NetworkManager/system-connections/50-glowplug-9999-a.nmconnection", "of an earlier run")
        .with("run/NetworkManager/system-connections/50-glowplug-9999-a.nmconnection", "its copy")
        .with("etc/NetworkManager/system-connections/office.nmconnection", "of others")
        .with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    assert_eq!(profiles(&machine), ["office.nmconnection"]);
    assert_eq!(machine.read("run/NetworkManager/system-connections/50-glowplug-9999-a.nmconnection"), None);
    let machine = machine.with("proc/cmdline", "glowplug.renderer=network-manager-profiles");
    assert_eq!((machine.network_kargs(&[]).code, machine.fragment()), (Some(0), None));
    assert_eq!(profiles(&machine), ["50-glowplug-0000-52-54-00-12-34-56.nmconnection", "office.nmconnection"]);
}

#[test]
fn files_of_one_renderer_are_removed_when_another_renderer_runs() {
    let machine = FakeMachine::kubevirt()
        .with("run/systemd/network/50-glowplug-9999.network", "of an earlier run")
        .with("run/systemd/network/90-other.network", "of others")
        .with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&["--renderer", "systemd-networkd"]).code, Some(0));
    assert_eq!(networkd_files(&machine), ["50-glowplug-0000-52-54-00-12-34-56.network", "90-other.network"]);
    assert_eq!(machine.network_kargs(&[]).code, Some(0));
    assert_eq!(networkd_files(&machine), ["90-other.network"]);
    assert_eq!(machine.fragment().as_deref(), Some(HYPERSHIFT_LINE));
    let machine = machine.with("proc/cmdline", "glowplug.renderer=systemd-networkd");
    assert_eq!(machine.network_kargs(&["--neednet"]).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("rd.neednet=1\n"));
    assert_eq!(networkd_files(&machine), ["50-glowplug-0000-52-54-00-12-34-56.network", "90-other.network"]);
}

#[test]
fn a_networkd_file_of_an_earlier_run_for_a_pattern_is_removed() {
    let machine = FakeMachine::kubevirt();
    let pattern = drive("version: 2\nethernets: {all: {match: {driver: virtio_net}, dhcp4: true}}\n");
    let path = pattern.path("");
    let arguments = ["--config-drive", path.to_str().unwrap(), "--renderer", "systemd-networkd"];
    assert_eq!(machine.network_kargs(&arguments).code, Some(0));
    assert_eq!(networkd_files(&machine), ["51-glowplug-0000-any-card.network"]);
    let broken = drive(BROKEN);
    let path = broken.path("");
    let arguments = ["--config-drive", path.to_str().unwrap(), "--renderer", "systemd-networkd"];
    assert_eq!((machine.network_kargs(&arguments).code, networkd_files(&machine)), (Some(1), Vec::new()));
}

#[test]
fn the_default_of_a_machine_with_networkd_is_written_as_kernel_arguments() {
    let machine = FakeMachine::kubevirt();
    let arguments = ["--wait", "0", "--renderer", "systemd-networkd", "--default-value", "ip=any"];
    assert_eq!(machine.network_kargs(&arguments).code, Some(0));
    assert_eq!((machine.fragment().as_deref(), networkd_files(&machine)), (Some("ip=any\n"), Vec::new()));
}

#[test]
fn a_document_with_only_unused_nics_gives_the_default_arguments_with_networkd_too() {
    let (machine, drive) =
        (FakeMachine::kubevirt(), drive("version: 2\nethernets: {a: {match: {macaddress: '52:54:00:12:34:56'}}}\n"));
    let path = drive.path("");
    let arguments = ["--config-drive", path.to_str().unwrap(), "--renderer", "systemd-networkd"];
    assert_eq!(machine.network_kargs(&[&arguments[..], &["--default-value", "ip=any"]].concat()).code, Some(0));
    assert_eq!((machine.fragment().as_deref(), networkd_files(&machine)), (Some("ip=any\n"), Vec::new()));
    let reason = "openstack/latest/network_data.json configures nothing".to_owned();
    assert_eq!(recorded(&machine), ("default".to_owned(), reason));
}

#[test]
fn a_document_that_keeps_nics_without_addresses_never_gives_the_default_arguments() {
    let openstack = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:12:34:56"}],"networks":[]}"#;
    let version_1 = r#"{"version":1,"config":[{"type":"physical","mac_address":"52:54:00:12:34:56","subnets":[{"type":"manual"}]}]}"#;
    let version_2 = r#"{"version":2,"ethernets":{"a":{"match":{"macaddress":"52:54:00:12:34:56"},"dhcp4":false,
        "dhcp6":false}}}"#;
    for document in [openstack, version_1, version_2] {
        let configured_by = |renderer: &str| {
            let (machine, drive) = (FakeMachine::kubevirt(), drive(document));
            let path = drive.path("");
            let arguments = ["--config-drive", path.to_str().unwrap(), "--renderer", renderer];
            let code = machine.network_kargs(&[&arguments[..], &["--default-value", "ip=any"]].concat()).code;
            (code, machine.fragment(), networkd_files(&machine), recorded(&machine).0)
        };
        let outcome = |line: Option<&str>, files: &[&str], outcome: &str| {
            let files = files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>();
            (Some(0), line.map(str::to_owned), files, outcome.to_owned())
        };
        let line = "ip=[52:54:00:12:34:56]:off\n";
        assert_eq!(configured_by("network-manager"), outcome(Some(line), &[], "configured"), "{document}");
        let file = "50-glowplug-0000-52-54-00-12-34-56.network";
        assert_eq!(configured_by("systemd-networkd"), outcome(None, &[file], "configured"), "{document}");
        // network-legacy has no argument that keeps a NIC without addresses. Any other argument would start DHCP.
        assert_eq!(configured_by("network-legacy"), outcome(None, &[], "nothing-to-do"), "{document}");
    }
}

/// If an argument had the name of an absent NIC, NetworkManager would wait 60 seconds for this NIC.
#[test]
fn an_absent_nic_without_addresses_that_only_a_name_identifies_is_left_out() {
    let document = "version: 2\nethernets: {enp1s0: {addresses: [10.0.0.5/24]}, enp2s0: {dhcp4: false}, \
                    enp3s0: {match: {macaddress: '52:54:00:12:34:58'}, dhcp4: false}}\n";
    let drive = drive(document);
    let path = drive.path("");
    let line = |machine: &FakeMachine, options: &[&str]| {
        let run = machine.network_kargs(&[&["--config-drive", path.to_str().unwrap()], options].concat());
        let plan: serde_json::Value = serde_json::from_str(&machine.read("run/glowplug/plan.json").unwrap()).unwrap();
        (run.code, machine.fragment(), plan["diagnostics"].clone())
    };
    let (addresses, third) = ("ip=10.0.0.5:::24::enp1s0:none", "ip=[52:54:00:12:34:58]:off\n");
    let machine = FakeMachine::kubevirt().with("sys/class/net/enp2s0/address", "52:54:00:12:34:57\n");
    let all = format!("{addresses} ip=enp2s0:off {third}");
    assert_eq!(line(&machine, &[]), (Some(0), Some(all), serde_json::json!([])));
    let warning = serde_json::json!([{
        "severity": "warning",
        "path": "ethernets.enp2s0",
        "problem": "absent NIC without addresses",
        "value": "enp2s0",
        "expected": "the name of a NIC that exists in the initramfs, or a MAC address: NetworkManager may use DHCP on this NIC",
    }]);
    let others = format!("{addresses} {third}");
    assert_eq!(line(&FakeMachine::kubevirt(), &[]), (Some(0), Some(others), warning));
    // systemd-networkd does not wait for an absent NIC.
    let (code, _, diagnostics) = line(&FakeMachine::kubevirt(), &["--renderer", "systemd-networkd"]);
    assert_eq!((code, diagnostics), (Some(0), serde_json::json!([])));
}

#[test]
fn a_machine_that_is_its_own_name_server_is_configured() {
    let document = r#"{"links":[{"id":"a","type":"vif","ethernet_mac_address":"52:54:00:00:00:01"}],
        "networks":[{"link":"a","type":"ipv4","ip_address":"10.0.0.5/24"}],
        "services":[{"type":"dns","address":"10.0.0.5"},{"type":"dns","address":"10.0.0.6"}]}"#;
    let (machine, drive) = (FakeMachine::kubevirt(), drive(document));
    let path = drive.path("");
    assert_eq!(machine.network_kargs(&["--config-drive", path.to_str().unwrap()]).code, Some(0));
    let line = "ip=10.0.0.5:::24::[52:54:00:00:00:01]:none nameserver=10.0.0.5 nameserver=10.0.0.6\n";
    assert_eq!(machine.fragment().as_deref(), Some(line));
}

#[test]
fn with_network_legacy_a_nic_gets_one_address_and_warnings_name_the_lost_settings() {
    let machine = FakeMachine::kubevirt().with_disk("vdb", hypershift());
    let Run { code, stderr, .. } = machine.network_kargs(&["--renderer", "network-legacy"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        machine.fragment().as_deref(),
        Some("ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none nameserver=8.8.8.8 rd.neednet=1\n")
    );
    assert_eq!(
        stderr.lines().collect::<Vec<_>>()[1..3],
        [
            "<4>warning about the network document diagnostic=\"links[0]: \\\"2620:0:860:2::10/64\\\" ignored, network-legacy accepts one address on a link\"",
            "<4>warning about the network document diagnostic=\"networks[1].routes[0]: \\\"::/0\\\" ignored, its link has no address of its family\"",
        ]
    );
}

#[test]
fn arguments_that_exceed_the_limit_together_with_existing_arguments_are_rejected() {
    let machine = FakeMachine::kubevirt()
        .with("proc/cmdline", "quiet\n")
        .with("etc/cmdline.d/10-image.conf", vec![b'x'; 98_230])
        .with("etc/cmdline.d/README", vec![b'x'; 98_230])
        .with_disk("vdb", hypershift());
    assert_eq!(machine.network_kargs(&[]).code, Some(1));
    assert_eq!(
        recorded(&machine).1,
        "kernel arguments: 147 bytes in addition to 98236 existing bytes, expected at most 98304"
    );
}

#[test]
fn a_run_that_cannot_write_the_fragment_fails_and_reports_the_reason() {
    // `/etc` is a file, so the directory cannot be created.
    let machine = FakeMachine::kubevirt().with("etc", "").with_disk("vdb", hypershift());
    let Run { code, stderr, .. } = machine.network_kargs(&[]);
    assert_eq!(code, Some(1));
    assert_eq!(
        stderr.lines().last(),
        Some(
            "<3>failed error=\"writing /etc/cmdline.d/50-glowplug-network-kargs.conf: Not a directory (os error 20)\""
        )
    );
    assert_eq!(
        recorded(&machine),
        (
            "refused".to_owned(),
            "writing /etc/cmdline.d/50-glowplug-network-kargs.conf: Not a directory (os error 20)".to_owned()
        )
    );
}

#[test]
fn check_without_a_path_prints_the_report_of_the_boot() {
    let machine = FakeMachine::kubevirt().with_disk("vdb", hypershift());
    machine.network_kargs(&[]);
    let Run { code, stdout, stderr } = machine.run(&["check"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(
        stdout,
        "\
platform      kubevirt (DMI has sys_vendor \"KubeVirt\")
drive         /dev/vdb, iso9660 with label config-2, openstack
document      openstack/latest/network_data.json, network_data, 894 bytes

link    device             made of  mtu  addresses            routes
eno101  52:54:00:12:34:56  nic      -    192.168.1.100/24     default via 192.168.1.1
                                         2620:0:860:2::10/64  default via 2620:0:860:2::1

name servers  8.8.8.8

metadata
  hostname     worker-0
  instance_id  worker-0.clusters-prod
  ipv4         192.168.1.100
  ipv6         2620:0:860:2::10
  mac          52:54:00:12:34:56
  name         worker-0
  namespace    clusters-prod
  uuid         5d307ca9-b3ef-428c-8861-06e72d69f223

kernel arguments
  ip=192.168.1.100::192.168.1.1:24::[52:54:00:12:34:56]:none
  ip=[2620:0:860:2::10]::[2620:0:860:2::1]:64::[52:54:00:12:34:56]:none
  nameserver=8.8.8.8

configured: by openstack/latest/network_data.json
"
    );
}

#[test]
fn check_of_a_refused_boot_has_exit_status_1() {
    let machine = FakeMachine::kubevirt();
    let drive = drive(BROKEN);
    let path = drive.path("");
    machine.network_kargs(&["--config-drive", path.to_str().unwrap()]);
    assert_eq!(machine.run(&["check"]).code, Some(1));
}

#[test]
fn check_of_a_refused_boot_with_a_long_report_has_exit_status_1() {
    let vlan = |id: u32| {
        let (parent, tag) = (id / 4000, id % 4000 + 1);
        let mac_address = format!("52:54:00:00:{:02x}:{:02x}", id / 256, id % 256);
        format!(
            r#",{{"id":"v{id}","type":"vlan","vlan_link":"p{parent}","vlan_id":{tag},"vlan_mac_address":"{mac_address}"}}"#
        )
    };
    let links: String = (0..4090).map(vlan).collect();
    let nics = r#"{"id":"p0","type":"phy"},{"id":"p1","type":"phy"}"#;
    let document = format!(r#"{{"links":[{nics}{links}],"networks":[]}}"#);
    let drive = FakeMachine::new().with("openstack/latest/network_data.json", document);
    let machine = FakeMachine::kubevirt();
    assert_eq!(machine.network_kargs(&["--config-drive", drive.path("").to_str().unwrap()]).code, Some(1));
    assert!(machine.read("run/glowplug/plan.json").unwrap().len() > 1024 * 1024);
    assert_eq!(machine.run(&["check"]).code, Some(1));
}

#[test]
fn check_fails_on_a_damaged_report() {
    let machine = FakeMachine::new()
        .with("run/glowplug/plan.json", "{\n  \"outcome\": \"refused\"")
        .with("run/glowplug/plan.txt", "");
    let error =
        "<3>failed error=\"reading /run/glowplug/plan.json: EOF while parsing an object at line 2 column 22\"\n";
    let expected = Run { code: Some(1), stdout: String::new(), stderr: error.to_owned() };
    assert_eq!(machine.run(&["check"]), expected);
}

#[test]
fn check_without_a_path_and_without_a_report_fails() {
    let machine = FakeMachine::kubevirt().with_disk("vdb", hypershift());
    let error = "<3>failed error=\"no report of this boot, expected /run/glowplug/plan.json\"\n";
    let expected = Run { code: Some(1), stdout: String::new(), stderr: error.to_owned() };
    assert_eq!(machine.run(&["check"]), expected);
}
