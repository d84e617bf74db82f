//! The decision of a webhook about a change of a pool.

use glowplug::diagnostic::{Diagnostics, Severity};
use http::StatusCode;
use kube::core::Status;

/// The response to a change of a pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Verdict {
    /// Every reason to reject the change, one line each. Empty: the change is allowed.
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

/// The response to a request that gets no decision, or that is refused.
pub(super) fn failure(code: StatusCode, reason: &str, message: &str) -> Box<Status> {
    Status::failure(message, reason).with_code(code.as_u16()).boxed()
}
