//! What each target does with its input, and what must hold whatever the input is.
//!
//! A target panics where something does not hold. It is an ordinary function, so that `tests/fuzz.rs` can run it without
//! libFuzzer; that is also why this is a `mod.rs`, which is found from there.

mod documents;
mod drives;
mod kargs;
mod networkd;
mod pools;
mod records;
mod texts;
mod words;

use glowplug::finding::{Finding, Findings};
use glowplug::formats::Format;

pub use words::document as document_of_words;

/// One input of a target.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its program, its seeds and its dictionary.
pub const TARGETS: [(&str, Target); 13] = [
    ("network_data", |input| documents::network(Format::NetworkData, input)),
    ("network_config_v1", |input| documents::network(Format::NetworkConfigV1, input)),
    ("network_config_v2", |input| documents::network(Format::NetworkConfigV2, input)),
    ("network_words", words::network),
    ("meta_data", documents::meta_data),
    ("command_line", texts::command_line),
    ("ssh_keys", texts::ssh_keys),
    ("iso9660", drives::iso9660),
    ("fat", drives::fat),
    ("pools", pools::pools),
    ("addresses", pools::addresses),
    ("records", records::records),
    ("templates", documents::template),
];

/// What holds for every finding: it has a place and says what was expected, and nothing of it leaves its line.
fn check_findings(findings: &Findings) {
    let kept = findings.kept();
    assert!(kept.len() <= 2 * Findings::KEPT);
    for finding in kept {
        check_finding(finding);
    }
    assert_eq!(findings.has_errors(), findings.errors() > 0);
    assert!(findings.further() == 0 || kept.len() >= Findings::KEPT);
}

fn check_finding(finding: &Finding) {
    let Finding { place, problem, expected, .. } = finding;
    assert!(!place.is_empty() && !problem.is_empty() && !expected.is_empty(), "{finding:?}");
    let shown = finding.to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    assert!(finding.value.as_ref().is_none_or(|value| value.chars().count() <= 65), "{shown:?}");
}
