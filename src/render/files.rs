//! The files for one network program.

use crate::diagnostic::{Diagnostic, Diagnostics};

/// Largest size of all files for one network program together, in bytes. The files and the report are kept in memory.
const MAX_BYTES: usize = 1024 * 1024;

/// One file for a network program.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct File {
    /// Path below the root directory, such as `run/systemd/network/50-glowplug-0000-bond0.netdev`.
    pub path: String,
    /// Content of the file.
    pub text: String,
    /// Whether only root has the right to read the file.
    pub is_private: bool,
}

/// The files of a network, in the order of the document.
#[derive(Default)]
pub(super) struct Files {
    files: Vec<File>,
    bytes: usize,
}

// === impl Files ===

impl Files {
    pub(super) fn push(&mut self, file: File) {
        self.bytes += file.text.len();
        self.files.push(file);
    }

    /// Whether the files together exceed the limit. A renderer stops at this limit: each file can repeat values of the
    /// whole document, such as its name servers, so all files could need hundreds of times the memory of the document.
    pub(super) fn are_too_large(&self) -> bool {
        self.bytes > MAX_BYTES
    }

    /// Returns the files, and reports an error if they are too large. `what` is the path of this error.
    pub(super) fn checked(self, what: &str, diagnostics: &mut Diagnostics) -> Vec<File> {
        if self.are_too_large() {
            let (found, expected) = (format!("more than {MAX_BYTES}"), format!("at most {MAX_BYTES}"));
            diagnostics.push(Diagnostic::error(what, "too many bytes", found, &expected));
        }
        self.files
    }
}
