//! Targets for lines: kernel arguments and SSH keys.

use glowplug::diagnostic::{Diagnostics, Severity};
use glowplug::guest::CommandLine;
use glowplug::guest::ssh_keys::{AuthorizedKey, keys_in};

/// Reads a kernel command line.
pub(super) fn command_line(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let line = CommandLine::parse(&text);
    assert_eq!(line, CommandLine::parse(&text));
    assert_eq!(line.length(), text.len());
    let words = words(&text);
    for key in ["ip", "glowplug.wait", "glowplug.on-error", "glowplug.renderer", "ignition.platform.id"] {
        let value = words.iter().rev().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        assert_eq!(line.value(key), value, "{text:?}");
    }
    let configures = |word: &&String| {
        let keys = ["ip=", "bond=", "vlan=", "bridge=", "team="];
        keys.iter().any(|key| word.strip_prefix(key).is_some_and(|value| !value.is_empty()))
    };
    assert_eq!(line.configures_network(), words.iter().find(configures).map(String::as_str), "{text:?}");
}

/// Splits a line into words. Blanks in quoted parts are replaced before the split, and restored afterwards.
fn words(line: &str) -> Vec<String> {
    let hide = |(at, piece): (usize, &str)| {
        let hidden = piece.chars().map(|c| match c {
            c if at % 2 == 1 && c.is_ascii_whitespace() => char::from_u32(0xf0000 + u32::from(c)).unwrap(),
            c => c,
        });
        hidden.collect::<String>()
    };
    let line: String = line.split('"').enumerate().map(hide).collect();
    let show = |c: char| match u32::from(c) {
        hidden @ 0xf0000..=0xf00ff => char::from_u32(hidden - 0xf0000).unwrap(),
        _ => c,
    };
    line.split(|c: char| c.is_ascii_whitespace()).map(|word| word.chars().map(show).collect()).collect()
}

/// Reads lines of keys. Checks that each accepted key is written as one line, that this line is read as the same key
/// again, and that all diagnostics are warnings.
pub(super) fn ssh_keys(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let [mut diagnostics, mut again] = [Diagnostics::default(), Diagnostics::default()];
    let keys = keys_in(&text, "public_keys.key", &mut diagnostics);
    assert_eq!((&keys, diagnostics.kept()), (&keys_in(&text, "public_keys.key", &mut again), again.kept()));
    super::check_diagnostics(&diagnostics);
    assert!(diagnostics.kept().iter().all(|diagnostic| diagnostic.severity == Severity::Warning));
    for key in keys {
        let line = key.to_string();
        assert!(line.len() <= AuthorizedKey::MAX, "{line:?}");
        assert!(!line.chars().any(|c| c.is_control() && c != '\t'), "{line:?}");
        assert_eq!(line.parse(), Ok(key), "{line:?}");
    }
}
