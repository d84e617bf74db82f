//! Reads the report of an earlier run.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use serde::Deserialize;

use super::report::Outcome;
use crate::render::Renderer;

/// Path of the report of the last run, below a root. `/run` is kept in the real root.
pub const PLAN: &str = "run/glowplug/plan.json";

/// Path of the same report as a page for people: an emergency shell may have only `cat`.
pub const PAGE: &str = "run/glowplug/plan.txt";

/// Report of an earlier run, as stored.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recorded {
    /// Content of [`PLAN`].
    pub json: String,
    /// Content of [`PAGE`].
    pub page: String,
    /// Whether the earlier run refused the document.
    pub is_refused: bool,
    /// Renderer of the earlier run; `None` if its report names no known renderer.
    pub renderer: Option<Renderer>,
}

/// The members of a stored report that decide the exit status and the names of interfaces.
#[derive(Deserialize)]
struct Summary {
    outcome: Outcome,
    renderer: Option<String>,
}

/// Reads the report of an earlier run. `None` when there is no report.
///
/// # Errors
///
/// The error of the system call, or [`ErrorKind::InvalidData`] if the report is damaged.
pub fn recorded(root: &Path) -> io::Result<Option<Recorded>> {
    let json = match fs::read_to_string(root.join(PLAN)) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    // Only these members become values, because the report may be larger than any document.
    let Summary { outcome, renderer } = serde_json::from_str(&json)?;
    let (page, is_refused) = (fs::read_to_string(root.join(PAGE))?, outcome == Outcome::Refused);
    Ok(Some(Recorded { page, json, is_refused, renderer: renderer.and_then(|name| name.parse().ok()) }))
}
