//! Gives hostile input to the program. The program must refuse or render the input within one second of CPU time and 64
//! MiB of memory. Control characters and arguments from the input must not reach the output.

use std::os::unix::fs::symlink;
use std::process::Command;

use super::machine::{FakeMachine, Run, drive, run};

/// Runs the program on a drive, and kills the program if it exceeds the limits.
fn bounded(drive: &FakeMachine) -> Run {
    bounded_with(drive, &[])
}

fn bounded_with(drive: &FakeMachine, more: &[&str]) -> Run {
    let path = drive.path("");
    let arguments = ["network-kargs", "--print", "--provider", "kubevirt", "--config-drive", path.to_str().unwrap()];
    let mut command = Command::new("prlimit");
    Run::of(command.args(["--as=67108864", "--cpu=1", env!("CARGO_BIN_EXE_glowplug")]).args(arguments).args(more))
}

/// Returns the first log line about a refused document.
fn refusal(document: impl AsRef<[u8]>) -> String {
    let Run { code, stdout, stderr } = bounded(&drive(document));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr.lines().next().unwrap_or_default().to_owned()
}

/// Returns the log lines about a refused drive. DRIVE replaces the directory, which differs between runs.
fn refused_drive(drive: &FakeMachine) -> String {
    let Run { code, stdout, stderr } = bounded(drive);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr.replace(drive.path("").to_str().unwrap(), "DRIVE")
}

fn diagnostic(text: &str) -> String {
    format!("<3>error in the network document diagnostic={text:?}")
}

#[test]
fn a_network_document_of_16_mib_is_refused() {
    assert_eq!(
        refused_drive(&drive(vec![b' '; 16 * 1024 * 1024])),
        "<3>refused to configure the network reason=\"reading config drive DRIVE: openstack/latest/network_data.json: \
         file of 16777216 bytes, expected at most 1048576\"\n"
    );
}

#[test]
fn an_unreadable_network_document_does_not_affect_the_hostname() {
    let drive = drive(vec![b' '; 5 * 1024 * 1024]);
    let path = drive.path("");
    let Run { code, stdout, .. } = run(&["metadata", "--config-drive", path.to_str().unwrap(), "hostname"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "worker-0\n"));
}

#[test]
fn a_document_with_300_levels_is_refused() {
    let document = format!("{}{}", r#"{"links":["#.repeat(300), "]}".repeat(300));
    let expected = r#"document: nested too deep "more than 64", expected at most 64 levels"#;
    assert_eq!(refusal(document), diagnostic(expected));
}

#[test]
fn an_array_that_fills_a_mebibyte_with_short_elements_is_refused() {
    for element in ["{}", "0", "[]"] {
        let elements = 1_000_000 / (element.len() + 1);
        let document = format!(r#"{{"links":[{}{element}]}}"#, format!("{element},").repeat(elements));
        let expected = r#"document: too many values "more than 65536", expected at most 65536"#;
        assert_eq!(refusal(document), diagnostic(expected), "{element}");
    }
}

#[test]
fn a_document_with_4097_links_is_refused() {
    let document = format!(r#"{{"links":[{}{{}}]}}"#, "{},".repeat(4096));
    assert_eq!(refusal(document), diagnostic(r#"links: too many items "4097", expected at most 4096"#));
}

#[test]
fn a_document_that_needs_more_arguments_than_dracut_accepts_is_refused() {
    let network = r#"{"link":"eno1","type":"static6","ip_address":"2001:db8::%/64"}"#;
    let networks: Vec<String> = (1..=1000).map(|n| network.replace('%', &n.to_string())).collect();
    let document = format!(r#"{{"links":[{{"id":"eno1","type":"phy"}}],"networks":[{}]}}"#, networks.join(","));
    assert_eq!(refusal(document), diagnostic(r#"kernel arguments: too many bytes "34892", expected at most 32768"#));
}

#[test]
fn a_document_with_2048_nics_and_2048_vlans_is_refused() {
    let nics: Vec<String> =
        (0..2048).map(|n| format!(r#""a{n}x":{{"dhcp4-overrides":{{"use-dns":false}}}}"#)).collect();
    let vlans: Vec<String> = (0..2048).map(|n| format!(r#""v{n}x":{{"id":7,"link":"a{n}x","dhcp4":true}}"#)).collect();
    let document = format!(r#"{{"version":2,"ethernets":{{{}}},"vlans":{{{}}}}}"#, nics.join(","), vlans.join(","));
    assert_eq!(refusal(document), diagnostic(r#"kernel arguments: too many bytes "74493", expected at most 32768"#));
}

#[test]
fn a_document_with_a_nul_byte_is_refused() {
    let expected = r#"line 1 column 3: not readable as JSON "trailing characters", expected JSON, since the document begins with a brace or a bracket"#;
    assert_eq!(refusal(b"{}\0{}"), diagnostic(expected));
}

#[test]
fn a_document_with_invalid_utf_8_is_refused() {
    let expected = r#"line 1 column 14: not readable as JSON "invalid unicode code point", expected JSON, since the document begins with a brace or a bracket"#;
    assert_eq!(refusal(b"{\"services\":\"\xff\xfe\"}"), diagnostic(expected));
}

/// Names with characters that are special to a shell, a tokenizer or a path.
const NAMES: [&str; 12] = [
    "eth0 rd.break",
    "eth0\nip=dhcp",
    "eth0\" root=/dev/sdx \"",
    "$(reboot)",
    "`reboot`",
    "a;reboot",
    "../../etc",
    "eth*",
    "a:b:c",
    "eth0\u{0}",
    "\u{202e}0hte",
    "a_name_that_is_much_too_long",
];

#[test]
fn a_hostile_name_is_refused_if_only_the_name_identifies_the_nic() {
    for name in NAMES {
        for field in ["id", "name"] {
            let name = serde_json::Value::from(name);
            let (id, more) = if field == "id" {
                (name.to_string(), String::new())
            } else {
                ("\"a\"".to_owned(), format!(r#","name":{name}"#))
            };
            let document = format!(
                r#"{{"links":[{{"id":{id},"type":"phy"{more}}}],"networks":[{{"link":{id},"type":"ipv4_dhcp"}}]}}"#
            );
            let Run { code, stdout, stderr } = bounded(&drive(document));
            assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(1), "", 2), "{name} {stderr}");
        }
    }
}

#[test]
fn hostile_strings_in_other_members_have_no_effect() {
    for word in NAMES {
        let word = serde_json::Value::from(word);
        let document = format!(
            r#"{{"links":[{{"id":{word},"type":{word},"name":{word},"vif_id":{word},"mtu":{word},
                 "ethernet_mac_address":"52:54:00:12:34:56",{word}:{word}}}],
                "networks":[
                 {{"id":{word},"link":{word},"type":"ipv4","ip_address":"10.0.0.5/24","network_id":{word},"dns_search":[{word}],
                   "dns_nameservers":[{word}],"services":[{{"type":{word},"address":{word}}}]}},
                 {{"link":{word},"type":{word}}}],
                "services":[{{"type":"dns","address":{word}}}]}}"#
        );
        let Run { code, stdout, stderr } = bounded(&drive(document));
        let expected = "ip=10.0.0.5:::24::[52:54:00:12:34:56]:none\n";
        assert_eq!((code, stdout.as_str()), (Some(0), expected), "{word}: {stderr}");
    }
}

#[test]
fn a_symbolic_link_out_of_the_drive_is_refused() {
    let drive = FakeMachine::new().with("openstack/latest/meta_data.json", "{}");
    let secret = FakeMachine::new().with("secret", "{}");
    symlink(secret.path("secret"), drive.path("openstack/latest/network_data.json")).unwrap();
    assert_eq!(
        refused_drive(&drive),
        "<3>refused to configure the network reason=\"reading config drive DRIVE: openstack/latest/network_data.json: \
         expected a regular file that is on the drive itself\"\n"
    );
}

#[test]
fn a_network_with_60000_name_servers_is_refused() {
    let servers: Vec<String> =
        (0..60_000).map(|n| format!("\"10.{}.{}.{}\"", n >> 16, n >> 8 & 255, n & 255)).collect();
    let document = format!(
        r#"{{"links":[{{"id":"eno1","type":"phy"}}],
            "networks":[{{"link":"eno1","type":"ipv4_dhcp","dns_nameservers":[{}]}}]}}"#,
        servers.join(",")
    );
    let expected = r#"networks[0].dns_nameservers: too many items "60000", expected at most 4096"#;
    assert_eq!(refusal(document), diagnostic(expected));
}

#[test]
fn check_prints_a_bridge_with_the_largest_number_of_ports() {
    let mut document = "version: 2\nethernets:\n".to_owned();
    (0..4090).for_each(|port| document += &format!("  e{port}: {{}}\n"));
    document += "bridges:\n  br0:\n    interfaces: [";
    (0..4090).for_each(|port| document += &format!("e{port}, "));
    document += "]\n    addresses: [10.0.0.5/24]\n";
    let machine = FakeMachine::new().with("network-config", document);
    let path = machine.path("network-config");
    let mut command = Command::new("prlimit");
    command.args(["--as=67108864", env!("CARGO_BIN_EXE_glowplug"), "check", "--renderer", "systemd-networkd"]);
    let Run { code, stdout, stderr } = Run::of(command.arg(path));
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let row = stdout.lines().find(|line| line.starts_with("e0 "));
    assert_eq!(row, Some(format!("e0     e0      nic{}-", " ".repeat(59)).as_str()));
}

// === Documents with large output ===

const RENDERERS: [&str; 3] = ["network-manager", "systemd-networkd", "network-legacy"];

/// Returns the exit status and the log lines with each of the three network programs.
fn rendered(document: impl AsRef<[u8]>) -> [(Option<i32>, Vec<String>); 3] {
    let drive = drive(document);
    RENDERERS.map(|renderer| {
        let Run { code, stdout, stderr } = bounded_with(&drive, &["--renderer", renderer]);
        assert_eq!(stdout.is_empty(), code != Some(0), "{renderer}: {stderr}");
        let is_about_arguments = |line: &&str| !line.starts_with("<6>read the network");
        (code, stderr.lines().filter(is_about_arguments).map(str::to_owned).collect())
    })
}

fn too_long(bytes: usize) -> (Option<i32>, Vec<String>) {
    let problem = format!(r#"kernel arguments: too many bytes "{bytes}", expected at most 32768"#);
    let outcome = "<3>refused to configure the network reason=\"openstack/latest/network_data.json: 1 error\"";
    (Some(1), vec![diagnostic(&problem), outcome.to_owned()])
}

fn accepted() -> (Option<i32>, Vec<String>) {
    (Some(0), Vec::new())
}

/// Makes `count` elements of a list or an object.
fn listed(count: usize, one: impl Fn(usize) -> String) -> String {
    (0..count).map(one).collect::<Vec<_>>().join(",")
}

/// Checks that both renderers that write files refuse a document, because the files together would need too much
/// memory.
fn is_refused_for_its_files(document: &str) {
    let drive = drive(document);
    for (renderer, what) in
        [("network-manager-profiles", "profiles of NetworkManager"), ("systemd-networkd", "files of systemd-networkd")]
    {
        let Run { code, stdout, stderr } = bounded_with(&drive, &["--renderer", renderer]);
        let problem = format!(r#"{what}: too many bytes "more than 1048576", expected at most 1048576"#);
        assert_eq!((code, stdout.as_str()), (Some(1), ""), "{renderer}: {stderr}");
        assert_eq!(stderr.lines().next(), Some(diagnostic(&problem).as_str()), "{renderer}");
    }
}

#[test]
fn files_for_1024_nics_that_would_each_repeat_4096_name_servers_are_refused() {
    let links = listed(1024, |n| format!(r#"{{"id":"e{n}x","type":"phy"}}"#));
    let networks = listed(1024, |n| format!(r#"{{"link":"e{n}x","type":"ipv4_dhcp"}}"#));
    let services = listed(4096, |n| format!(r#"{{"type":"dns","address":"10.1.{}.{}"}}"#, n / 256, n % 256));
    is_refused_for_its_files(&format!(r#"{{"links":[{links}],"networks":[{networks}],"services":[{services}]}}"#));
}

#[test]
fn a_document_with_4096_nics_is_rendered_or_refused_within_the_limits() {
    let nics = listed(4096, |n| format!(r#""e{n}":{{"dhcp4":true}}"#));
    let document = format!(r#"{{"version":2,"ethernets":{{{nics}}}}}"#);
    assert_eq!(rendered(document), [too_long(56_233), accepted(), too_long(56_233)]);
}

#[test]
fn a_bridge_with_4090_ports_and_their_costs_is_rendered_within_the_limits() {
    let (nics, ports) = (listed(4090, |n| format!(r#""e{n}":{{}}"#)), listed(4090, |n| format!(r#""e{n}""#)));
    let costs = listed(4090, |n| format!(r#""e{n}":5"#));
    let document = format!(
        r#"{{"version":2,"ethernets":{{{nics}}},
             "bridges":{{"br0":{{"dhcp4":true,"interfaces":[{ports}],"parameters":{{"path-cost":{{{costs}}}}}}}}}}}"#
    );
    let problem = r#"bridges.br0.parameters: "port options" ignored, kernel arguments cannot express bridge options"#;
    let warned = (Some(0), vec![diagnostic(problem).replace("<3>error in", "<4>warning about")]);
    assert_eq!(rendered(document), [warned.clone(), accepted(), warned]);
}

#[test]
fn a_chain_of_2000_vlans_with_2000_vlans_on_top_is_rendered_or_refused_within_the_limits() {
    let deep = listed(2000, |n| {
        let parent = n.checked_sub(1).map_or_else(|| "e0".to_owned(), |parent| format!("v{parent}"));
        format!(r#""v{n}":{{"id":{},"link":"{parent}"}}"#, n + 1)
    });
    let beside = listed(2000, |n| format!(r#""s{n}":{{"id":{},"link":"v1999","dhcp4":true}}"#, n + 1));
    let document = format!(r#"{{"version":2,"ethernets":{{"e0":{{}}}},"vlans":{{{deep},{beside}}}}}"#);
    let codes = rendered(document).map(|(code, _)| code);
    assert_eq!(codes, [Some(1), Some(0), Some(1)]);
}

#[test]
fn a_device_with_30000_unknown_members_gives_256_warnings_and_a_count() {
    let members = listed(30_000, |n| format!(r#""x{n}":{n}"#));
    let document = format!(r#"{{"version":2,"ethernets":{{"e0":{{"dhcp4":true,{members}}}}}}}"#);
    for (code, lines) in rendered(document) {
        let last = "<4>further diagnostics in the network document count=29744";
        assert_eq!((code, lines.len(), lines.last().map(String::as_str)), (Some(0), 257, Some(last)));
    }
}

#[test]
fn a_member_that_is_repeated_20000_times_is_read_within_the_limits() {
    let document =
        format!(r#"{{"version":2,"ethernets":{{"e0":{{{}}}}}}}"#, listed(20_000, |_| r#""dhcp4":true"#.to_owned()));
    let Run { code, stdout, stderr } = bounded(&drive(document));
    assert_eq!((code, stdout.as_str()), (Some(0), "ip=e0:dhcp\n"), "{stderr}");
}

const TOO_MANY_VALUES: &str = r#"document: too many values "more than 65536", expected at most 65536"#;

#[test]
fn nested_yaml_aliases_are_refused() {
    let mut document = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (before, name) in ('a'..='h').zip('b'..='i') {
        document.push_str(&format!("{name}: &{name} [{}]\n", listed(9, |_| format!("*{before}"))));
    }
    assert_eq!(refusal(document), diagnostic(TOO_MANY_VALUES));
}

#[test]
fn a_document_with_2000_merges_of_2000_members_is_refused() {
    let mut document = format!("base: &base {{{}}}\nversion: 2\nethernets:\n", listed(2000, |n| format!("k{n}: 1")));
    (0..2000).for_each(|n| document.push_str(&format!("  e{n}: {{<<: *base, dhcp4: true}}\n")));
    assert_eq!(refusal(document), diagnostic(TOO_MANY_VALUES));
}

#[test]
fn a_document_with_100000_interfaces_is_refused() {
    let links = listed(100_000, |_| "{}".to_owned());
    assert_eq!(refusal(format!(r#"{{"version":1,"config":[{links}]}}"#)), diagnostic(TOO_MANY_VALUES));
    assert_eq!(refusal(format!(r#"{{"links":[{links}]}}"#)), diagnostic(TOO_MANY_VALUES));
    let items = "- {}\n".repeat(100_000);
    assert_eq!(refusal(format!("version: 1\nconfig:\n{items}")), diagnostic(TOO_MANY_VALUES));
}
