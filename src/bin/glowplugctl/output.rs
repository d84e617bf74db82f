//! Shared output of commands: tables, JSON, atomic writes of files.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use glowplug::atomic_file;
use glowplug::host::Timestamp;
use glowplug::host::claim::{Allocation, Claimant};
use glowplug::terminal::{self, acts_on_terminal, escaped};
use serde::Serialize;
use slog::{Logger, debug};

/// Version of the structure of all JSON output.
pub(crate) const VERSION: u32 = 1;

pub(crate) fn print(text: &str) -> Result<()> {
    io::stdout().write_all(text.as_bytes()).context("writing to standard output")
}

/// Prints one line for people. A failure to print is ignored, because the allocated addresses must still be printed.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", escaped(&line.to_string()));
}

/// Prints a note that no entry of the ledger matches the conditions of the command line: a name may be misspelt.
pub(crate) fn note_no_match() {
    say(format_args!("note: nothing matches"));
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    // Characters that act on a terminal are always inside strings, where escapes of JSON are valid.
    let lines: Vec<String> = serde_json::to_string_pretty(value)?.lines().map(escaped_json).collect();
    print(&(lines.join("\n") + "\n"))
}

/// Escapes the characters of a line of JSON that act on a terminal, as [`escaped`] does for other output. The name or
/// an annotation of an object can contain any character.
pub(crate) fn escaped_json(text: &str) -> String {
    let escape = |c: char| if acts_on_terminal(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Exit status: a pool is exhausted for at least one machine, and nothing failed.
pub(crate) const EXHAUSTED: u8 = 3;

/// Exit status: the command did its work and has diagnostics.
pub(crate) const DIAGNOSTICS: u8 = 4;

/// The exit status of a command that did not fail. `is_right` is false when there are diagnostics.
pub(crate) fn exit_code(is_right: bool) -> ExitCode {
    if is_right { ExitCode::SUCCESS } else { ExitCode::from(DIAGNOSTICS) }
}

/// Writes a file in one step, so that no reader sees a part of the file. A device or a pipe is written to directly. If
/// the path is a symbolic link, the link is kept and its target is replaced.
pub(crate) fn write_in_one_step(path: &Path, content: &[u8], log: &Logger) -> Result<()> {
    let writing = || format!("writing {}", path.display());
    let target = path.canonicalize();
    let path = target.as_deref().unwrap_or(path);
    let written = if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        fs::write(path, content).with_context(writing)
    } else {
        check_directory(path).and_then(|()| Ok(atomic_file::write(path, content)?)).with_context(writing)
    };
    written?;
    debug!(log, "wrote file"; "path" => %path.display(), "bytes" => content.len());
    Ok(())
}

/// Refuses a new file whose directory does not exist.
pub(crate) fn check_directory(path: &Path) -> Result<()> {
    let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) else { return Ok(()) };
    if directory.metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        bail!("no such directory {directory:?}, expected an existing directory");
    }
    Ok(())
}

/// Formats a table with columns as wide as their widest cell. Without rows, the result is an empty string.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = head.map(|title| vec![title.to_owned()]);
    let rows = rows.iter().map(|row| row.each_ref().map(|cell| vec![cell.clone()]));
    terminal::table(std::iter::once(head).chain(rows).collect(), usize::MAX)
}

/// Joins tables with an empty line between them.
pub(crate) fn sections<const N: usize>(tables: [String; N]) -> String {
    tables.into_iter().filter(|table| !table.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Formats a time without the fraction of a second.
pub(crate) fn whole_seconds(time: Timestamp) -> String {
    format!("{time:.0}")
}

pub(crate) fn allocations_table<'a>(head: &str, allocations: impl IntoIterator<Item = &'a Allocation>) -> String {
    let row = |allocation: &Allocation| {
        let Claimant { machine, interface } = &allocation.claimant;
        let addresses: Vec<_> = allocation.addresses.iter().map(ToString::to_string).collect();
        [machine.title(), machine.uid.clone(), interface.to_string(), addresses.join(" ")]
    };
    let rows: Vec<_> = allocations.into_iter().map(row).collect();
    table([head, "UID", "INTERFACE", "ADDRESSES"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_a_second_is_not_printed() {
        let times = ["2025-11-20T15:13:41Z", "2025-11-20T15:13:41.999Z", "9999-12-30T22:00:00.999999999Z"];
        assert_eq!(
            times.map(|time| whole_seconds(time.parse().unwrap())),
            ["2025-11-20T15:13:41Z", "2025-11-20T15:13:41Z", "9999-12-30T22:00:00Z"]
        );
    }

    #[test]
    fn json_output_escapes_characters_that_act_on_a_terminal() {
        let hostile = "a\u{1b}[2J\r\nerror: b\u{9b}31m\u{202e}c";
        let json = escaped_json(&serde_json::to_string(hostile).unwrap_or_default());
        assert_eq!(json, r#""a\u001b[2J\r\nerror: b\u009b31m\u202ec""#);
    }
}
