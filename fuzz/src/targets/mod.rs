//! The targets, and the properties that must hold for every input.
//!
//! A target panics if a property does not hold. A target is an ordinary function, so that `tests/fuzz.rs` can run the
//! target without libFuzzer. For the same reason this file is a `mod.rs`: `tests/fuzz.rs` includes it by path.

mod documents;
mod drives;
mod kargs;
mod networkd;
mod pools;
mod profiles;
mod records;
mod texts;
mod vsphere;
mod words;

use glowplug::diagnostic::{Diagnostic, Diagnostics, Reason};
use glowplug::formats::Format;

pub use words::document as document_of_words;

/// Runs a target on one input.
pub type Target = fn(&[u8]);

/// All targets by name. The program and the seeds of a target have the same name. `fuzz/run` finds its dictionary.
pub const TARGETS: [(&str, Target); 15] = [
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
    ("leases", pools::leases),
    ("records", records::records),
    ("templates", documents::template),
    ("vsphere", vsphere::vsphere),
];

/// Checks that every diagnostic has a path and a reason, and is one line.
fn check_diagnostics(diagnostics: &Diagnostics) {
    let kept = diagnostics.kept();
    assert!(kept.len() <= 2 * Diagnostics::KEPT);
    for diagnostic in kept {
        check_diagnostic(diagnostic);
    }
    assert_eq!(diagnostics.has_errors(), diagnostics.errors() > 0);
    assert!(diagnostics.further() == 0 || kept.len() >= Diagnostics::KEPT);
}

fn check_diagnostic(diagnostic: &Diagnostic) {
    let is_whole = match &diagnostic.reason {
        Reason::Mistake { problem, expected } => !problem.is_empty() && !expected.is_empty(),
        Reason::Ignored { because } => !because.is_empty(),
    };
    assert!(!diagnostic.path.is_empty() && is_whole, "{diagnostic:?}");
    let shown = diagnostic.to_string();
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
    assert!(diagnostic.value.as_ref().is_none_or(|value| value.chars().count() <= 65), "{shown:?}");
}
