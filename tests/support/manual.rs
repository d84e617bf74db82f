//! Checks that the manual pages agree with the command lines of the programs. Each command has its own page.
//!
//! clap and `clap_mangen` render the parts of a page between `.\" of clap: NAME` and `.\" end`. Everything else is
//! written by hand. The unit tests of the programs include this file, because a command line is private to its program.
//! The pages are in `man/` of the package of the program.
//!
//! `UPDATE=1 cargo test --all-features --bins manual_pages` renders these parts again. For the pages of the controller, add
//! `--manifest-path controller/Cargo.toml`, and leave out `--all-features`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;

/// Starts of the lines that define an apostrophe. Each rendered part has these lines, but a page needs them only once.
const APOSTROPHE: [&str; 2] = [".ie \\n(.g .ds Aq", ".el .ds Aq"];

/// Compares the pages of a program with its command line. With `UPDATE=1`, renders the parts of the pages again.
pub(crate) fn check(program: Command, section: &str) {
    let mut program = program.disable_help_subcommand(true);
    program.build();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("man");
    let commands = commands_of(&program);
    let names: BTreeSet<String> = commands.iter().map(|command| file_name(command, section)).collect();
    let found = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let is_of_program = |name: &String| {
        let stem = name.strip_suffix(&format!(".{section}")).filter(|stem| !stem.ends_with(".service"));
        stem.is_some_and(|stem| stem == program.get_name() || stem.starts_with(&format!("{}-", program.get_name())))
    };
    assert_eq!(found.filter(is_of_program).collect::<BTreeSet<_>>(), names, "pages in man/");
    for command in commands {
        let path = folder.join(file_name(command, section));
        let old = fs::read_to_string(&path).unwrap();
        let new = rendered(&old, command, section);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&path, new).unwrap();
        } else {
            assert_eq!(old, new, "UPDATE=1 cargo test --all-features --bins manual_pages");
        }
        let header = old.lines().find(|line| line.starts_with(".TH ")).unwrap();
        let version = header.split('"').nth(3);
        assert_eq!(version, Some(concat!("glowplug ", env!("CARGO_PKG_VERSION"))), "{}", path.display());
    }
}

/// Returns a command and all commands below it, without hidden commands.
fn commands_of(command: &Command) -> Vec<&Command> {
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).flat_map(commands_of);
    [command].into_iter().chain(below).collect()
}

fn file_name(command: &Command, section: &str) -> String {
    format!("{}.{section}", command.get_display_name().unwrap_or_else(|| command.get_name()))
}

/// Returns a synopsis with the usage from the help of a command. The synopsis of `clap_mangen` lacks the values of
/// options.
fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string().replace('-', "\\-");
    let usage = usage.strip_prefix("Usage: ").unwrap();
    format!(".SH SYNOPSIS\n.nh\n{usage}\n.hy\n")
}

/// Replaces the parts of a page that clap renders.
fn rendered(page: &str, command: &Command, section: &str) -> String {
    let man = Man::new(command.clone()).section(section);
    let mut new = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        new += &format!("{line}\n");
        let Some(name) = line.strip_prefix(".\\\" of clap: ") else { continue };
        let mut part = Vec::new();
        match name {
            "name" => man.render_name_section(&mut part),
            "synopsis" => write!(part, "{}", synopsis(command)),
            "options" => man.render_options_section(&mut part),
            "commands" => man.render_subcommands_section(&mut part),
            other => panic!("unknown part of a page {other:?}"),
        }
        .unwrap();
        for line in String::from_utf8(part).unwrap().lines() {
            if name == "name" || !APOSTROPHE.iter().any(|start| line.starts_with(start)) {
                new += &format!("{line}\n");
            }
        }
        new += &format!("{}\n", lines.find(|line| *line == ".\\\" end").unwrap());
    }
    new
}
