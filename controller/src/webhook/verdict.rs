//! The decision of a webhook about a change of a pool, as errors and warnings.

use glowplug::diagnostic::{Diagnostics, Severity};
use http::StatusCode;
use kube::core::Status;

/// The decision about a change of a pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Verdict {
    /// All reasons to reject the change, one line each. Empty: the change is allowed.
    pub errors: Vec<String>,
    /// Warnings for the user who makes the change, one line each.
    pub warnings: Vec<String>,
}

// === impl Verdict ===

impl Verdict {
    pub(super) fn of(diagnostics: &Diagnostics) -> Self {
        let lines = |severity: Severity| -> Vec<String> {
            let kept = diagnostics.kept().iter().filter(|diagnostic| diagnostic.severity == severity);
            kept.map(ToString::to_string).collect()
        };
        let (mut errors, warnings) = (lines(Severity::Error), lines(Severity::Warning));
        if let further @ 1.. = diagnostics.errors().saturating_sub(errors.len()) {
            errors.push(format!("{further} further errors"));
        }
        Self { errors, warnings }
    }
}

/// Returns the status for a request that is refused, or about which no decision is possible.
pub(super) fn failure(code: StatusCode, reason: &str, message: &str) -> Box<Status> {
    Status::failure(message, reason).with_code(code.as_u16()).boxed()
}
