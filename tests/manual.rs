//! The manual pages agree with `--help` of the programs: commands, arguments, options and their texts have one source.
//!
//! `UPDATE=1 cargo test --all-features --test quick manual::` rewrites these parts of the pages.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Help of one command.
struct Help {
    /// For example `glowplugctl pool check`.
    name: String,
    about: String,
    /// Positional arguments with their descriptions, spelled as in the usage: `[KEY]...`.
    arguments: Vec<(String, String)>,
    options: Vec<Opt>,
}

struct Opt {
    flag: String,
    value: Option<String>,
    text: String,
    is_required: bool,
}

/// Returns the help of a program and of each of its commands, in the program's order.
fn help_of(program: &str, words: &[&str]) -> Vec<Help> {
    let output = Command::new(program).args(words).arg("-h").output().unwrap();
    assert!(output.status.success(), "{program} {words:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: ")).unwrap_or_default();
    let name = Path::new(program).file_name().unwrap().to_str().unwrap();
    let mut help = Help {
        name: [&[name], words].concat().join(" "),
        about: text.lines().next().unwrap_or_default().to_owned(),
        arguments: Vec::new(),
        options: Vec::new(),
    };
    let mut below = Vec::new();
    let mut section = "";
    for line in text.lines() {
        if !line.starts_with(' ') {
            section = line.trim_end_matches(':');
            continue;
        }
        // A description may continue or begin on the next line.
        if line.starts_with("        ") {
            let text = match section {
                "Arguments" => help.arguments.last_mut().map(|(_, text)| text),
                "Options" => help.options.last_mut().map(|option| &mut option.text),
                _ => None,
            };
            text.into_iter().for_each(|text| *text = format!("{text} {}", line.trim()).trim_start().to_owned());
            continue;
        }
        // Two blanks separate a term from its description.
        let (left, right) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        let right = right.trim().to_owned();
        match section {
            "Commands" if left != "help" => below.push(left.to_owned()),
            "Arguments" => help.arguments.push((left.to_owned(), right)),
            "Options" => {
                let long = left.rsplit(", ").next().unwrap();
                let (flag, value) = long.split_once(' ').map_or((long, None), |(flag, value)| (flag, Some(value)));
                help.options.push(Opt {
                    flag: flag.to_owned(),
                    value: value.map(|value| value.replace(['<', '>'], "")),
                    text: right,
                    is_required: usage.split(' ').any(|word| word == flag),
                });
            }
            _ => {}
        }
    }
    // Only now, since their descriptions may be on lines of their own.
    help.options.retain(|option| !["--help", "--version"].contains(&option.flag.as_str()));
    let mut all = vec![help];
    for word in below {
        all.extend(help_of(program, &[words, &[&word]].concat()));
    }
    all
}

/// Escapes a text for roff, so that it has no requests, escapes or hyphens.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

/// Returns the synopsis of each command, with required options first, as in the usage.
fn synopsis(all: &[Help]) -> String {
    let mut page = String::new();
    for help in all.iter().filter(|help| !help.options.is_empty() || !help.arguments.is_empty()) {
        page += &format!(".SY \"{}\"\n", roff(&help.name));
        for option in help.options.iter().filter(|option| option.is_required) {
            page +=
                &format!(".B {}\n.I {}\n", roff(&option.flag), option.value.as_deref().map(roff).unwrap_or_default());
        }
        for option in help.options.iter().filter(|option| !option.is_required) {
            page += &format!(".OP {}", roff(&option.flag));
            page += &option.value.as_deref().map(|value| format!(" {}", roff(value))).unwrap_or_default();
            page += "\n";
        }
        for (argument, _) in &help.arguments {
            page += &format!(".I {}\n", roff(argument));
        }
        page += ".YS\n";
    }
    page
}

/// Returns every option once. An option with different texts appears once for each text, with its commands.
fn options(all: &[Help]) -> String {
    let mut seen: Vec<(&Opt, Vec<&str>)> = Vec::new();
    for help in all {
        for option in &help.options {
            let known = seen
                .iter_mut()
                .find(|(it, _)| (&it.flag, &it.value, &it.text) == (&option.flag, &option.value, &option.text));
            match known {
                Some((_, commands)) => commands.push(&help.name),
                None => seen.push((option, vec![&help.name])),
            }
        }
    }
    let mut page = String::new();
    for (option, commands) in &seen {
        page += &match &option.value {
            Some(value) => format!(".TP\n.BI {} \" {}\"\n", roff(&option.flag), roff(value)),
            None => format!(".TP\n.B {}\n", roff(&option.flag)),
        };
        if seen.iter().filter(|(it, _)| it.flag == option.flag).count() > 1 {
            let commands: Vec<_> = commands.iter().map(|name| name.split_once(' ').map_or(*name, |it| it.1)).collect();
            page += &format!("With {}:\n", roff(&commands.join(", ")));
        }
        page += &format!("{}.\n", roff(&option.text));
    }
    page
}

/// Returns one section for each command: its purpose and its arguments.
fn commands(all: &[Help]) -> String {
    let mut page = String::new();
    for help in all.iter().filter(|help| !help.options.is_empty() || !help.arguments.is_empty()) {
        let Some((_, name)) = help.name.split_once(' ') else { continue };
        page += &format!(".SS {}\n{}.\n", roff(name), roff(&help.about));
        for (argument, text) in &help.arguments {
            page += &format!(".TP\n.I {}\n{}.\n", roff(argument), roff(text));
        }
    }
    page
}

/// Replaces each part of a page between `.\" of --help: NAME` and `.\" end`.
fn renewed(page: &str, program: &str) -> String {
    let all = help_of(program, &[]);
    let mut new = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        new += &format!("{line}\n");
        if let Some(part) = line.strip_prefix(".\\\" of --help: ") {
            new += &match part {
                "synopsis" => synopsis(&all),
                "commands" => commands(&all),
                "options" => options(&all),
                other => unreachable!("no part of a page is called {other}"),
            };
            new += &format!("{}\n", lines.find(|line| *line == ".\\\" end").unwrap());
        }
    }
    new
}

fn is_as_its_program_says(page: &str, program: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("man").join(page);
    let old = fs::read_to_string(&path).unwrap();
    let new = renewed(&old, program);
    if crate::support::is_update() {
        fs::write(&path, new).unwrap();
    } else {
        assert_eq!(old, new, "UPDATE=1 cargo test --all-features --test quick manual::");
    }
}

#[test]
fn the_manual_page_of_the_guest_has_the_texts_of_its_help() {
    is_as_its_program_says("glowplug.8", env!("CARGO_BIN_EXE_glowplug"));
}

#[test]
fn the_manual_page_of_the_host_has_the_texts_of_its_help() {
    is_as_its_program_says("glowplugctl.1", env!("CARGO_BIN_EXE_glowplugctl"));
}

#[test]
fn every_page_names_the_version_of_this_release() {
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        // The page only refers to another page.
        if text.starts_with(".so ") {
            continue;
        }
        let header = text.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert_eq!(
            header.split('"').nth(3),
            Some(concat!("glowplug ", env!("CARGO_PKG_VERSION"))),
            "{}",
            path.display()
        );
    }
}
