//! Checks that the shell completions in `completions/` agree with the command line of the guest's program.
//!
//! The program itself cannot write its completions: every initramfs would contain the code. So the files are in the
//! repository, and `UPDATE=1 cargo test --all-features --bins completions` writes the files again.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command};
use clap_complete::{Generator as _, Shell};

/// Values of options that the program parses itself, by the name of the option. The shell completes these values.
const VALUES: [(&str, &[&str]); 3] = [
    ("renderer", &["network-manager", "network-manager-profiles", "systemd-networkd", "network-legacy"]),
    ("on_error", &["fail", "default"]),
    ("key_file", &["glowplug", "afterburn"]),
];

/// Returns the command with the values of its options, and without hidden commands.
fn shown(command: &Command) -> Command {
    let with_values = |argument: &Arg| match VALUES.iter().find(|(name, _)| argument.get_id() == name) {
        Some((_, values)) => {
            let defaults = argument.get_default_values();
            assert!(defaults.iter().all(|default| values.iter().any(|value| default == value)), "{argument}");
            argument.clone().value_parser(PossibleValuesParser::new(*values))
        }
        None => argument.clone(),
    };
    let leaked = |text: &str| -> &'static str { text.to_owned().leak() };
    let mut shown = Command::new(leaked(command.get_name()))
        .args(command.get_arguments().map(with_values))
        .subcommands(command.get_subcommands().filter(|command| !command.is_hide_set()).map(shown));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    match command.get_version() {
        Some(version) => shown.version(leaked(version)),
        None => shown,
    }
}

/// Compares the completions of a program with its command line. With `UPDATE=1`, writes the completions again.
pub(crate) fn check(program: Command) {
    let mut program = shown(&program);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("completions");
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        let name = program.get_name().to_owned();
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut program, &name, &mut text);
        let (path, text) = (folder.join(shell.file_name(&name)), String::from_utf8(text).unwrap());
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, text).unwrap();
        } else {
            let found = fs::read_to_string(&path).unwrap();
            assert_eq!(found, text, "UPDATE=1 cargo test --all-features --bins completions");
        }
    }
}
