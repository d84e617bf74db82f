//! Checks every diagnostic of a document with its exact text, and the result of the document.
//!
//! If the severity of a diagnostic depends on the use of the value, both severities have a case. Two diagnostics have
//! no case, because no document leads to them: one is about a reference to a link that has become invalid after its
//! check, the other about an illegal byte in the arguments.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod damage;
mod network_config;
mod network_data;

use glowplug::diagnostic::{Diagnostic, Diagnostics, Severity};
use glowplug::formats::{Meaning, read_network};
use glowplug::render::dracut;

/// The expectation in a diagnostic about an interface name.
const NAME: &str = "1 to 15 letters, digits, '.', '_' or '-', not only digits, and not all, default or lo";
/// The expectation in a diagnostic about a MAC address.
const MAC: &str = "six pairs of hex digits, unicast and not zero";
const MODE: &str =
    "balance-rr, active-backup, balance-xor, broadcast, 802.3ad, balance-tlb, balance-alb or their number, 0 to 6";
const MASK: &str = "a netmask without holes, or a prefix length above 0";
const DESTINATION: &str = "an address, a CIDR with a length above 0, or default";
const KNOWN_BY: &str = "also an ethernet_mac_address or a name, or an id that is an interface name";
const READABLE: &str = "a JSON or YAML document";
/// The expectation in a diagnostic of a document that begins with a brace or a bracket.
const JSON: &str = "JSON, since the document begins with a brace or a bracket";
/// The expectation in a diagnostic of a document whose format is unknown.
const FORMATS: &str = "links, networks and services, or the version of a network-config";

/// Returns the result of a document and all of its diagnostics.
fn diagnose(document: &[u8]) -> (&'static str, Vec<String>) {
    let mut reading = read_network(document);
    let verdict = match &reading.meaning {
        Meaning::Refused => "refused",
        Meaning::Unconfigured => "unconfigured",
        Meaning::Disabled => "disabled",
        Meaning::Network(network) => match dracut::render(network, &mut reading.diagnostics) {
            _ if reading.diagnostics.has_errors() => "refused",
            rendered if rendered.kargs.is_empty() => "unconfigured",
            _ => "configured",
        },
    };
    (verdict, printed(&reading.diagnostics))
}

fn printed(diagnostics: &Diagnostics) -> Vec<String> {
    assert_eq!(diagnostics.further(), 0);
    let line = |diagnostic: &Diagnostic| match diagnostic.severity {
        Severity::Error => format!("error {diagnostic}"),
        Severity::Warning => format!("warning {diagnostic}"),
        Severity::Debug => format!("debug {diagnostic}"),
    };
    diagnostics.kept().iter().map(line).collect()
}

/// Creates a test for each document. A line has the text of the document, its result, and its diagnostics.
macro_rules! texts {
    ($($name:ident: $text:expr => $verdict:ident [$($diagnostic:literal),*];)*) => {
        $(#[test] fn $name() {
            let expected: Vec<String> = vec![$(format!($diagnostic)),*];
            let text = Vec::from($text);
            assert_eq!(diagnose(&text), (stringify!($verdict), expected));
        })*
    };
}

// === The document as a whole ===

texts! {
    an_empty_document_configures_nothing: "" => unconfigured [];
    a_document_of_comments_configures_nothing: "# nothing\n\n  # here\r\n" => unconfigured [];
    an_empty_object_configures_nothing: "{}" => unconfigured [];
    a_document_of_null_configures_nothing: "null" => unconfigured [];
    a_byte_order_mark_before_an_empty_object_configures_nothing: "\u{feff}{}" => unconfigured [];
    unknown_keys_alone_configure_nothing: r#"{"name": "test", "size": 1, "network": {}, "nothing": null}"#
        => unconfigured [
            r#"warning name: unknown member "test", expected {FORMATS}"#, r#"warning size: unknown member "1", expected {FORMATS}"#
        ];
    arrays_of_null_are_empty: r#"{"links": null, "networks": null, "services": null}"# => unconfigured [];
    empty_lists_configure_nothing: r#"{"links": [], "networks": [], "services": []}"# => unconfigured [];
    the_last_value_of_a_repeated_key_is_used: r#"{"links": 5, "links": [], "networks": []}"# => unconfigured [];
    an_array_is_no_document: "[]" => refused [r#"error document: invalid document "an array", expected an object"#];
    a_string_is_no_document: r#""links""#
        => refused [r#"error document: invalid document "links", expected an object"#];
    the_error_about_broken_json_has_line_and_column: "{\n  \"links\": [,]\n}"
        => refused [r#"error line 2 column 13: not readable as JSON "expected value", expected {JSON}"#];
    the_error_about_a_document_that_ends_early_has_line_and_column: "{\"links\": ["
        => refused [r#"error line 1 column 11: not readable as JSON "EOF while parsing a list", expected {JSON}"#];
    a_word_without_quotes_is_a_string_and_no_document: "FakeNetwork" => refused [r#"error document: invalid document "FakeNetwork", expected an object"#];
    the_error_about_broken_yaml_has_line_and_column: "links:\n- id: [\n"
        => refused [
            r#"error line 3 column 1: not readable as YAML "while parsing a node, did not find expected node content", expected {READABLE}"#
        ];
    the_error_about_a_control_character_has_line_and_column: "links:\n- \u{7}"
        => refused [
            r#"error line 2 column 3: control character "\u{{7}}", expected a document without control characters"#
        ];
    the_error_about_invalid_utf_8_has_line_and_column: b"links: \xff"
        => refused [r#"error line 1 column 8: not readable as YAML "invalid UTF-8", expected {READABLE}"#];
    the_config_disabled_of_cloud_init_disables_the_network: r#"{"config": "disabled"}"# => disabled [];
    the_config_disabled_within_network_disables_the_network: "network:\n  config: disabled\n" => disabled [];
    a_document_over_a_mebibyte_is_refused: vec![b' '; 1024 * 1024 + 1]
        => refused [r#"error document: too many bytes "1048577", expected at most 1048576"#];
    a_document_with_more_than_64_levels_is_refused: "[".repeat(65)
        => refused [r#"error document: nested too deep "more than 64", expected at most 64 levels"#];
    a_document_with_more_than_65536_values_is_refused: format!("[{}1]", "1,".repeat(65_535))
        => refused [r#"error document: too many values "more than 65536", expected at most 65536"#];
    a_document_in_yaml_gives_the_same_warning_as_in_json:
        "links:\n- {id: eno101, type: phy, mtu: 5}\nnetworks:\n- {link: eno101, type: ipv4, ip_address: 10.0.0.5/24}\n"
        => configured [r#"warning links[0].mtu: invalid MTU "5", expected 68 to 65535 bytes"#];
    a_word_that_yaml_reads_as_a_boolean_is_no_name:
        "links: [{id: on, type: phy}]\nnetworks: [{link: on, type: ipv4_dhcp}]"
        => refused [r#"error links[0].id: NIC without a MAC address or a name "true (a boolean)", expected {KNOWN_BY}"#];
}
