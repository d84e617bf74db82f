//! Input that means harm ends in a clean refusal, within a second of computing and 64 MiB, with no word of its own in
//! the output.

use std::os::unix::fs::symlink;
use std::process::Command;

use crate::machine::{Machine, Run, drive};

/// Runs on a drive with limits that end the program where it exceeds them.
fn bounded(drive: &Machine) -> Run {
    let path = drive.path("");
    let arguments = ["network-kargs", "--print", "--provider", "kubevirt", "--config-drive", path.to_str().unwrap()];
    let mut command = Command::new("prlimit");
    Run::of(command.args(["--as=67108864", "--cpu=1", env!("CARGO_BIN_EXE_glowplug")]).args(arguments))
}

/// The first line of the log of a document that is refused.
fn refusal(document: impl AsRef<[u8]>) -> String {
    let Run { code, stdout, stderr } = bounded(&drive(document));
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr.lines().next().unwrap_or_default().to_owned()
}

/// The same, where it is the drive that is refused, without the directory that differs from run to run.
fn refused_drive(drive: &Machine) -> String {
    let Run { code, stdout, stderr } = bounded(drive);
    assert_eq!((code, stdout.as_str()), (Some(1), ""), "{stderr}");
    stderr.replace(drive.path("").to_str().unwrap(), "DRIVE")
}

fn finding(text: &str) -> String {
    format!("<3>error in the network document finding={text:?}")
}

#[test]
fn a_file_of_5_mib() {
    assert_eq!(
        refused_drive(&drive(vec![b' '; 5 * 1024 * 1024])),
        "<3>refused to configure the network reason=\"reading config drive DRIVE: openstack/latest/network_data.json: \
         file of 5242880 bytes, expected at most 1048576\"\n"
    );
}

#[test]
fn nesting_300_deep() {
    let document = format!("{}{}", r#"{"links":["#.repeat(300), "]}".repeat(300));
    let expected = r#"document: nested too deep "more than 64", expected at most 64 levels"#;
    assert_eq!(refusal(document), finding(expected));
}

#[test]
fn an_array_of_as_many_elements_as_a_mebibyte_holds() {
    for element in ["{}", "0", "[]"] {
        let elements = 1_000_000 / (element.len() + 1);
        let document = format!(r#"{{"links":[{}{element}]}}"#, format!("{element},").repeat(elements));
        let expected = r#"document: too many values "more than 65536", expected at most 65536"#;
        assert_eq!(refusal(document), finding(expected), "{element}");
    }
}

#[test]
fn more_links_than_any_machine_has() {
    let document = format!(r#"{{"links":[{}{{}}]}}"#, "{},".repeat(4096));
    assert_eq!(refusal(document), finding(r#"links: too many items "4097", expected at most 4096"#));
}

#[test]
fn more_arguments_than_dracut_takes() {
    let network = r#"{"link":"eno1","type":"static6","ip_address":"2001:db8::%/64"}"#;
    let networks: Vec<String> = (1..=1000).map(|n| network.replace('%', &n.to_string())).collect();
    let document = format!(r#"{{"links":[{{"id":"eno1","type":"phy"}}],"networks":[{}]}}"#, networks.join(","));
    assert_eq!(refusal(document), finding(r#"kernel arguments: too many bytes "34892", expected at most 32768"#));
}

#[test]
fn a_nul_byte() {
    let expected = r#"line 1 column 3: not readable as JSON "trailing characters", expected a JSON or YAML document"#;
    assert_eq!(refusal(b"{}\0{}"), finding(expected));
}

#[test]
fn invalid_utf_8() {
    let expected =
        r#"line 1 column 14: not readable as JSON "invalid unicode code point", expected a JSON or YAML document"#;
    assert_eq!(refusal(b"{\"services\":\"\xff\xfe\"}"), finding(expected));
}

/// Names that a shell, a tokeniser or a path would take for more.
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
fn a_hostile_name_of_a_card_that_needs_one() {
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
fn hostile_words_everywhere_else_leave_the_rest_as_it_is() {
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
fn a_link_that_leaves_the_drive() {
    let drive = Machine::new().with("openstack/latest/meta_data.json", "{}");
    let secret = Machine::new().with("secret", "{}");
    symlink(secret.path("secret"), drive.path("openstack/latest/network_data.json")).unwrap();
    assert_eq!(
        refused_drive(&drive),
        "<3>refused to configure the network reason=\"reading config drive DRIVE: openstack/latest/network_data.json: \
         expected a regular file that is on the drive itself\"\n"
    );
}

#[test]
fn a_name_server_for_every_value_that_there_may_be() {
    let servers: Vec<String> =
        (0..60_000).map(|n| format!("\"10.{}.{}.{}\"", n >> 16, n >> 8 & 255, n & 255)).collect();
    let document = format!(
        r#"{{"links":[{{"id":"eno1","type":"phy"}}],
            "networks":[{{"link":"eno1","type":"ipv4_dhcp","dns_nameservers":[{}]}}]}}"#,
        servers.join(",")
    );
    let expected = r#"networks[0].dns_nameservers: too many items "60000", expected at most 4096"#;
    assert_eq!(refusal(document), finding(expected));
}
