//! Checks the command line of the program.

use std::process::Command;

use super::machine::{FakeMachine, Run, drive, run};

const STATIC: &str = r#"{"links":[{"id":"a","type":"phy","ethernet_mac_address":"52:54:00:12:34:56"}],
    "networks":[{"link":"a","type":"ipv4","ip_address":"10.0.0.5/24"}]}"#;

#[test]
fn print_writes_the_arguments_to_standard_output_and_changes_no_file() {
    let (drive, machine) = (drive(STATIC), FakeMachine::new().with("proc/cmdline", "ip=dhcp"));
    let before = machine.files();
    let path = drive.path("");
    let Run { code, stdout, .. } = machine.network_kargs(&["--print", "--config-drive", path.to_str().unwrap()]);
    assert_eq!((code, stdout.as_str()), (Some(0), "ip=10.0.0.5:::24::[52:54:00:12:34:56]:none\n"));
    assert_eq!(machine.files(), before);
}

#[test]
fn print_of_a_named_drive_does_not_read_the_kernel_command_line() {
    let drive = drive(r#"{"links":[{"id":"eno1","type":"phy"}],"networks":[{"link":"eno1","type":"ipv4_dhcp"}]}"#);
    let machine = FakeMachine::new().with("proc/cmdline", "ignition.platform.id=aws ip=dhcp");
    let path = drive.path("");
    let run = machine.network_kargs(&["--cmdline", "--print", "--config-drive", path.to_str().unwrap()]);
    assert_eq!((run.code, run.stdout), (Some(0), "ip=eno1:dhcp\n".to_owned()));
}

#[test]
fn the_option_root_of_check_and_metadata_must_name_an_existing_directory() {
    for command in ["check", "metadata"] {
        let run = run(&[command, "--root", "/nowhere/root"]);
        let expected = "error: invalid value '/nowhere/root' for '--root <DIR>': no such directory\n\n\
                        For more information, try '--help'.\n";
        assert_eq!((run.code, run.stderr.as_str()), (Some(2), expected), "{command}");
    }
}

#[test]
fn the_log_of_a_run_that_cannot_write_does_not_say_that_the_network_is_configured() {
    let (machine, drive) = (FakeMachine::kubevirt().with("etc", ""), drive(STATIC));
    let path = drive.path("");
    let run = machine.network_kargs(&["--config-drive", path.to_str().unwrap()]);
    let expected = format!(
        "<6>read the network of the config drive drive={} document=openstack/latest/network_data.json \
         arguments=ip=10.0.0.5:::24::[52:54:00:12:34:56]:none\n\
         <3>failed error=\"writing /etc/cmdline.d/50-glowplug-network-kargs.conf: Not a directory (os error 20)\"\n",
        path.display()
    );
    assert_eq!((run.code, run.stderr), (Some(1), expected));
}

#[test]
fn the_option_output_accepts_the_name_of_a_file_but_no_dash() {
    let machine = FakeMachine::new();
    for command in ["attributes", "hostname"] {
        let run = machine.run(&[command, "--output", "-"]);
        let expected = "error: invalid value '-' for '--output <FILE>': expected the name of a file\n\n\
                        For more information, try '--help'.\n";
        assert_eq!((run.code, run.stderr.as_str()), (Some(2), expected), "{command}");
    }
}

#[test]
fn rd_neednet_is_printed_with_the_option_neednet() {
    let drive = drive(STATIC);
    let path = drive.path("");
    let run = run(&["network-kargs", "--print", "--neednet", "--config-drive", path.to_str().unwrap()]);
    assert_eq!(run.stdout, "ip=10.0.0.5:::24::[52:54:00:12:34:56]:none rd.neednet=1\n");
}

#[test]
fn exp_rd_network_kargs_is_an_alias_of_network_kargs() {
    let machine = FakeMachine::new().with("proc/cmdline", "ignition.platform.id=kubevirt");
    let drive = drive(STATIC);
    let path = drive.path("");
    let arguments = [
        "exp",
        "rd-network-kargs",
        "--cmdline",
        "--default-value",
        "ip=auto",
        "--config-drive",
        path.to_str().unwrap(),
    ];
    assert_eq!(machine.run(&arguments).code, Some(0));
    assert_eq!(machine.fragment().as_deref(), Some("ip=10.0.0.5:::24::[52:54:00:12:34:56]:none\n"));
}

/// Runs the program with this value of `GLOWPLUG_LOG`, and returns its log.
fn logged(value: &str) -> String {
    let machine = FakeMachine::new().with("proc/cmdline", "ignition.platform.id=metal");
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplug"));
    command.args(["network-kargs", "--root"]).arg(machine.path("")).env("GLOWPLUG_LOG", value);
    Run::of(&mut command).stderr
}

const NOTHING_TO_DO: &str = "<6>nothing to do reason=\"this is not known to be KubeVirt: kernel command line has \
    ignition.platform.id=metal\"\n";

#[test]
fn the_variable_glowplug_log_sets_the_lowest_level_that_is_logged() {
    assert_eq!((logged("info").as_str(), logged("warning").as_str()), (NOTHING_TO_DO, ""));
    assert!(logged("debug").starts_with("<7>started version="));
    assert_eq!(logged(""), NOTHING_TO_DO);
}

#[test]
fn an_unknown_log_level_is_reported_and_ignored() {
    let warning = "<4>ignored GLOWPLUG_LOG value=loud expected=\"error, warning, info or debug\"\n";
    assert_eq!(logged("loud"), format!("{warning}{NOTHING_TO_DO}"));
}

fn usage_error(arguments: &[&str]) -> String {
    let Run { code, stdout, stderr } = run(arguments);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    stderr.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn an_unknown_renderer_is_refused() {
    assert_eq!(
        usage_error(&["network-kargs", "--renderer", "ifupdown"]),
        "error: invalid value 'ifupdown' for '--renderer <NAME>': \
         unknown renderer \"ifupdown\", expected network-manager, network-manager-profiles, systemd-networkd or \
         network-legacy"
    );
}

#[test]
fn a_default_value_with_characters_that_are_special_to_a_shell_is_refused() {
    assert_eq!(
        usage_error(&["network-kargs", "--default-value", "ip=dhcp $(id)"]),
        "error: invalid value 'ip=dhcp $(id)' for '--default-value <KARGS>': \
         expected kernel arguments of letters, digits, blanks and . _ : [ ] , / = + -"
    );
}

#[test]
fn the_options_cmdline_and_provider_exclude_each_other() {
    assert_eq!(
        usage_error(&["network-kargs", "--cmdline", "--provider", "kubevirt"]),
        "error: the argument '--cmdline' cannot be used with '--provider <NAME>'"
    );
}

#[test]
fn the_error_about_a_path_without_a_drive_names_the_expectation() {
    let machine = FakeMachine::new().with("empty/x", "");
    let path = machine.path("empty");
    let path = path.to_str().unwrap();
    let Run { code, stdout, stderr } = run(&["network-kargs", "--print", "--config-drive", path]);
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    assert_eq!(
        stderr,
        format!(
            "<3>refused to configure the network reason=\"{path}: no config drive, expected a directory with \
             openstack/latest or meta-data, or an ISO 9660 or FAT image\"\n"
        )
    );
}

#[test]
fn the_error_about_a_document_in_place_of_a_drive_names_the_command_for_documents() {
    let machine = FakeMachine::new().with("document", STATIC);
    let path = machine.path("document");
    let path = path.to_str().unwrap();
    let Run { code, stderr, .. } = run(&["network-kargs", "--print", "--config-drive", path]);
    assert_eq!(
        (code, stderr),
        (
            Some(1),
            format!(
                "<3>refused to configure the network reason=\"{path}: no config drive, expected a directory with \
                 openstack/latest or meta-data, or an ISO 9660 or FAT image; glowplug check accepts a document alone\"\n"
            )
        )
    );
}

#[test]
fn check_prints_tables_and_diagnostics_of_a_drive() {
    let drive = drive(
        r#"{"links":[
            {"id":"tap0","type":"ovs","name":"data","ethernet_mac_address":"52:54:00:12:34:56","mtu":9000},
            {"id":"v","type":"vlan","vlan_link":"tap0","vlan_id":7,"vlan_mac_address":"52:54:00:12:34:99"}],
           "networks":[
            {"link":"v","type":"ipv4","ip_address":"10.0.0.5","netmask":"255.255.255.0","routes":[
                {"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"},
                {"network":"10.8.0.0/16","gateway":"10.0.0.254"}]},
            {"link":"v","type":"ipv6_slaac"}],
           "services":[{"type":"dns","address":"10.0.0.53"},{"type":"ntp","address":"10.0.0.123"}]}"#,
    );
    let path = drive.path("");
    let path = path.to_str().unwrap();
    let Run { code, stdout, stderr } = run(&["check", path]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert_eq!(
        stdout,
        format!(
            "\
platform      kubevirt (the drive was named)
drive         {path}, openstack
document      openstack/latest/network_data.json, network_data, 645 bytes

link  device  made of                mtu   addresses    routes
tap0  data    nic                    9000
              mac 52:54:00:12:34:56
v     data.7  vlan 7 on data         -     10.0.0.5/24  default via 10.0.0.1
              mac 52:54:00:12:34:99        slaac        10.8.0.0/16 via 10.0.0.254

name servers  10.0.0.53

metadata
  hostname     worker-0
  instance_id  worker-0.clusters
  interface    data.7
  ipv4         10.0.0.5
  mac          52:54:00:12:34:99
  name         worker-0
  namespace    clusters

diagnostics
  warning  services[1].type: unknown service \"ntp\", expected dns

kernel arguments
  ifname=data:52:54:00:12:34:56
  vlan=data.7:data
  ip=10.0.0.5::10.0.0.1:24::data.7:on::52:54:00:12:34:99
  rd.route=10.8.0.0/16:10.0.0.254:data.7
  ip=data:off:9000
  nameserver=10.0.0.53

configured: by openstack/latest/network_data.json
"
        )
    );
}

#[test]
fn check_prints_the_options_of_a_bridge() {
    let document = r#"{"version":2,"ethernets":{"eno1":{},"eno2":{}},"bridges":{"br0":{"interfaces":["eno1","eno2"],
        "addresses":["10.0.0.5/24"],"parameters":{"stp":true,"forward-delay":4,"path-cost":{"eno2":50},
        "port-priority":{"eno1":28,"eno2":9}}}}}"#;
    let machine = FakeMachine::new().with("document", document);
    let path = machine.path("document");
    let path = path.to_str().unwrap();
    let Run { stdout, .. } = run(&["check", "--renderer", "systemd-networkd", path]);
    let links: String = stdout.split_inclusive('\n').skip(3).take_while(|line| *line != "\n").collect();
    assert_eq!(
        links,
        "\
link  device  made of                mtu  addresses    routes
eno1  eno1    nic                    -
eno2  eno2    nic                    -
br0   br0     bridge of eno1, eno2   -    10.0.0.5/24
              stp=true
              forward_delay=4
              path_cost=eno2:50
              port_priority=eno2:9
              port_priority=eno1:28
"
    );
    let report: serde_json::Value =
        serde_json::from_str(&run(&["check", "--json", "--renderer", "systemd-networkd", path]).stdout).unwrap();
    let options = ["stp=true", "forward_delay=4", "path_cost=eno2:50", "port_priority=eno2:9", "port_priority=eno1:28"];
    assert_eq!(report["links"][2]["options"], serde_json::json!(options));
}

#[test]
fn check_reports_invalid_metadata_of_the_drive() {
    for (meta_data, diagnostic) in [
        (r#"{"hostname":["a"]}"#, "hostname: invalid value \"an array\", expected a string"),
        (r#"{"hostname":"a\nb"}"#, "hostname: invalid attribute \"a\\nb\", expected at most 4096 bytes"),
        ("[]", "document: invalid document \"an array\", expected an object"),
    ] {
        let drive = drive(STATIC).with("openstack/latest/meta_data.json", meta_data);
        let Run { code, stdout, .. } = run(&["check", drive.path("").to_str().unwrap()]);
        assert_eq!(code, Some(0));
        assert!(stdout.contains(&format!("\n\ndiagnostics about the machine\n  warning  {diagnostic}")), "{stdout}");
    }
}

#[test]
fn check_has_exit_status_1_when_the_boot_would_fail() {
    let drive = drive(r#"{"links":[{"id":"a","type":"phy"}],"networks":[{"link":"a","type":"ipv4"}]}"#);
    let document = drive.path("openstack/latest/network_data.json");
    let document = document.to_str().unwrap();
    let Run { code, stdout, .. } = run(&["check", document]);
    assert_eq!(
        (code, stdout),
        (
            Some(1),
            format!(
                "\
platform      kubevirt (a document was named)
document      {document}, network_data, 75 bytes

diagnostics
  error    networks[0].ip_address: missing, expected an IPv4 address of a machine

refused: {document}: 1 error
"
            )
        )
    );
}

#[test]
fn check_prints_json_for_programs() {
    let drive = drive(STATIC);
    let path = drive.path("");
    let Run { code, stdout, .. } = run(&["check", "--json", path.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    let expected = serde_json::json!({
        "version": 1,
        "outcome": "configured",
        "reason": "by openstack/latest/network_data.json",
        "renderer": "network-manager",
        "platform": {"id": "kubevirt", "reason": "the drive was named"},
        "drive": {
            "path": path, "file_system": null, "label": null, "layout": "openstack", "reason": "named", "waited_ms": 0
        },
        "document": {"path": "openstack/latest/network_data.json", "format": "network_data", "size": 150},
        "links": [{
            "id": "a", "kind": "nic", "device": "52:54:00:12:34:56", "on": [], "vlan_id": null, "options": [],
            "mac_address": "52:54:00:12:34:56", "mtu": null, "addresses": ["10.0.0.5/24"], "routes": []
        }],
        "nameservers": [],
        "metadata": {
            "hostname": "worker-0", "instance_id": "worker-0.clusters", "name": "worker-0", "namespace": "clusters",
            "ipv4": "10.0.0.5", "mac": "52:54:00:12:34:56"
        },
        "metadata_diagnostics": [],
        "arguments": ["ip=10.0.0.5:::24::[52:54:00:12:34:56]:none"],
        "fragment": null,
        "files": [],
        "diagnostics": [],
        "further_diagnostics": 0
    });
    assert_eq!((code, report), (Some(0), expected));
}

#[test]
fn the_short_help_has_one_line_of_80_columns_for_each_command_and_option() {
    let mut wide = Vec::new();
    for command in ["", "network-kargs", "check", "attributes", "metadata", "hostname", "ssh-keys"] {
        let words: &[&str] = if command.is_empty() { &["-h"] } else { &[command, "-h"] };
        let help = run(words).stdout;
        // A line that begins with many blanks continues the previous line.
        let is_wide = |line: &&str| line.chars().count() > 80 || line.starts_with("          ");
        wide.extend(help.lines().filter(is_wide).map(|line| format!("{command}: {line}")));
    }
    assert_eq!(wide, Vec::<String>::new());
}
