//! Checks the help texts: each line fits 80 columns, the short help has one line for each option and command, and each
//! command whose output is for people has the option `--json`.

use std::process::Command;

fn help(words: &[String], option: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_glowplugctl"));
    let output = command.args(words).arg(option).env("COLUMNS", "80").output().unwrap();
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the lines of a section of a help text.
fn section<'h>(help: &'h str, name: &str) -> Vec<&'h str> {
    let lines = help.lines().skip_while(|line| *line != format!("{name}:")).skip(1);
    lines.take_while(|line| line.starts_with(' ')).collect()
}

/// Returns the words of a command, and of all commands below it. An empty list is the program itself.
fn commands(words: &[String]) -> Vec<Vec<String>> {
    let mut all = vec![words.to_vec()];
    let help = help(words, "-h");
    let names = section(&help, "Commands").into_iter().filter_map(|line| line.split_whitespace().next());
    for name in names.filter(|name| *name != "help") {
        all.extend(commands(&[words, &[name.to_owned()]].concat()));
    }
    all
}

#[test]
fn no_line_of_any_help_is_wider_than_80_columns() {
    let mut wide = Vec::new();
    let all = commands(&[]);
    assert!(all.len() > 10, "{all:?}");
    for words in all {
        for option in ["-h", "--help"] {
            let help = help(&words, option);
            wide.extend(help.lines().filter(|line| line.chars().count() > 80).map(|line| format!("{words:?}: {line}")));
        }
    }
    assert_eq!(wide, [""; 0]);
}

#[test]
fn the_short_help_has_one_line_for_each_option_and_command() {
    let mut long = Vec::new();
    for words in commands(&[]) {
        let help = help(&words, "-h");
        for name in ["Commands", "Options"] {
            let lines = section(&help, name);
            let begins =
                |line: &&&str| line.trim_start().starts_with('-') || name == "Commands" && !line.starts_with("    ");
            // If the names are long, every description is on the line after its name.
            let is_below = lines.iter().filter(begins).all(|line| !line.trim_start().contains("  "));
            let expected = lines.iter().filter(begins).count() * if is_below { 2 } else { 1 };
            if lines.len() > expected {
                long.push(format!("{words:?} {name}: {}", lines.join("\n")));
            }
        }
    }
    assert_eq!(long, [""; 0]);
}

#[test]
fn every_command_whose_output_is_for_people_prints_json_too() {
    let has_json = |words: &Vec<String>| help(words, "-h").contains("--json");
    let has_commands = |words: &Vec<String>| !section(&help(words, "-h"), "Commands").is_empty();
    let without = commands(&[]).into_iter().filter(|words| !has_json(words) && !has_commands(words));
    let without: Vec<String> = without.map(|words| words.join(" ")).collect();
    // These commands always print JSON, metrics in the format of Prometheus, or scripts.
    assert_eq!(without, ["network-data", "nodepool", "install-hosts manifests", "metrics", "completions"]);
}
