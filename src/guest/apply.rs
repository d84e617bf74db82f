//! Writes the output of a plan and the report of the run.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use slog::{Logger, debug, warn};

use super::plan::{FRAGMENT, Output, Plan};
use super::recorded::{PAGE, PLAN};
use super::report::Outcome;
use crate::atomic_file::{UNFINISHED_PREFIX, write_private, write_public};
use crate::render::network_manager_profiles;
use crate::render::networkd::{self, File};

/// Files that an earlier run may have left, below a root: a directory, and the prefix of our file names in it.
const LEFT_BEHIND: [(&str, &str); 9] = [
    ("etc/cmdline.d", UNFINISHED_PREFIX),
    ("etc/cmdline.d", "50-glowplug-network-kargs.conf"),
    ("run/systemd/network", UNFINISHED_PREFIX),
    ("run/systemd/network", networkd::PREFIXES[0]),
    ("run/systemd/network", networkd::PREFIXES[1]),
    (network_manager_profiles::DIRECTORY, UNFINISHED_PREFIX),
    (network_manager_profiles::DIRECTORY, network_manager_profiles::PREFIX),
    (network_manager_profiles::COPIES, network_manager_profiles::PREFIX),
    ("run/glowplug", UNFINISHED_PREFIX),
];

/// Writes the output of a plan, each file in one step, and the report of the run.
///
/// Files of an earlier run are removed first. A file with kernel arguments is replaced instead, if it is the only file
/// to write. [`PLAN`] is removed before all other files and written last, so that it never describes a network of which
/// an interrupted run has written only a part.
///
/// # Errors
///
/// The output could not be written or removed; the report has the same error. After such an error, the files of the
/// output are removed, because a part of a network must not be used. If a file cannot be removed, a warning is logged.
pub fn apply(plan: &Plan, root: &Path, log: &Logger) -> io::Result<()> {
    let mut report = plan.report.clone();
    // This error is ignored: if no new report can be written either, a warning is logged below.
    let _ = remove(&root.join(PLAN));
    let written = plan.output.write(root);
    debug!(log, "tried to write the files of the plan"; "outcome" => written.as_ref().err().map_or("done".to_owned(), io::Error::to_string));
    match &written {
        Ok(()) => report.fragment = plan.output.line.as_ref().map(|_| format!("/{FRAGMENT}")),
        Err(e) => {
            report.outcome = Outcome::Refused;
            report.reason = e.to_string();
            if let Err(e) = Output::default().write(root) {
                warn!(log, "cannot remove the written files"; "error" => %e);
            }
        }
    }
    let json = serde_json::to_string_pretty(&report).map_err(io::Error::from);
    let recorded = json.and_then(|json| {
        write_public(&root.join(PAGE), report.to_string().as_bytes())?;
        write_public(&root.join(PLAN), format!("{json}\n").as_bytes())
    });
    if let Err(e) = recorded {
        // The report is informational: failing to write it does not fail the boot.
        warn!(log, "cannot record the plan"; "path" => format_args!("/{PLAN}"), "error" => %e);
    }
    written
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Lists the names in a directory. The list is empty when there is no such directory.
fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    match fs::read_dir(directory) {
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        entries => entries?.map(|entry| Ok(entry?.file_name())).collect(),
    }
}

// === impl Output ===

impl Output {
    /// Removes the files of earlier runs, then writes, so that files of two networks never exist together. A file with
    /// kernel arguments is replaced in one step if it is the only file to write. If a file cannot be removed, the other
    /// files are still removed, nothing is written, and the first error is returned.
    fn write(&self, root: &Path) -> io::Result<()> {
        let at = |path: &str, e: io::Error| io::Error::new(e.kind(), format!("writing /{path}: {e}"));
        let mut removed = Ok(());
        for (directory, prefix) in LEFT_BEHIND {
            let names = names_in(&root.join(directory)).map_err(|e| at(directory, e));
            for name in names.as_deref().unwrap_or_default() {
                let path = format!("{directory}/{}", name.to_string_lossy());
                let is_replaced = self.line.is_some() && self.files.is_empty() && path == FRAGMENT;
                if name.as_encoded_bytes().starts_with(prefix.as_bytes()) && !is_replaced {
                    // An error for one file must not prevent the removal of the other files.
                    removed = removed.and(remove(&root.join(&path)).map_err(|e| at(&path, e)));
                }
            }
            removed = removed.and(names.map(drop));
        }
        removed?;
        let fragment = self.line.as_ref().map(|line| {
            let (path, text) = (FRAGMENT.to_owned(), format!("{line}\n"));
            File { path, text, is_private: false }
        });
        for file in self.files.iter().chain(&fragment) {
            let write = if file.is_private { write_private } else { write_public };
            write(&root.join(&file.path), file.text.as_bytes()).map_err(|e| at(&file.path, e))?;
        }
        Ok(())
    }
}
