//! Requests to the API server: their timeout, their answers, and the question which kinds the API server serves.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use tokio::time::{sleep, timeout};

/// Timeout of a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Pause after a failure at the start.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Interval between two questions which kinds the API server serves.
pub(crate) const DISCOVERY: Duration = Duration::from_secs(60);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The API server rejected the request, or could not be reached.
    Request(kube::Error),
    /// The request got no response before its timeout.
    Unanswered,
    /// The response has an unexpected structure.
    Unreadable(serde_json::Error),
}

/// A definite answer that a request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal<'e> {
    /// 404: the API server has no such object or kind.
    Absent,
    /// 409: the API server has another version of the object, or already has an object of this name.
    Other,
    /// 400, 403, 413, 422: the API server refuses the content of the request, and gives a reason.
    ForGood(&'e Status),
}

/// Asks which kinds the API server serves, until it answers.
///
/// `what` is the noun for the kinds in log messages. Example: `kinds of KubeVirt`.
pub(crate) async fn discover<K, F>(what: &'static str, question: &impl Fn() -> F) -> K
where
    F: Future<Output = Result<K, Error>>,
{
    loop {
        match question().await {
            Ok(kinds) => return kinds,
            Err(error) => tracing::warn!(%error, "could not discover the {what}"),
        }
        sleep(PAUSE).await;
    }
}

/// Returns when the API server serves other kinds than `kinds`. The other parameters are those of [`discover`].
pub(crate) async fn until_other<K, F>(what: &'static str, question: &impl Fn() -> F, kinds: &K)
where
    K: PartialEq,
    F: Future<Output = Result<K, Error>>,
{
    loop {
        sleep(DISCOVERY).await;
        if discover(what, question).await != *kinds {
            tracing::info!("the {what} have changed");
            return;
        }
    }
}

/// Sends a request and waits for the response, at most 30 seconds.
pub(crate) async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    timeout(PATIENCE, request).await.map_err(|_| Error::Unanswered)?.map_err(Error::Request)
}

/// Returns the definite answer that a request has changed nothing. `None`: the request may have had an effect, or another
/// attempt may have one.
pub(crate) fn refusal(error: &kube::Error) -> Option<Refusal<'_>> {
    let kube::Error::Api(status) = error else { return None };
    match status.code {
        404 => Some(Refusal::Absent),
        409 => Some(Refusal::Other),
        400 | 403 | 413 | 422 => Some(Refusal::ForGood(status)),
        _ => None,
    }
}

/// Returns the object that a write stored. `None`: the API server has another version of the object, or no object.
pub(crate) fn stored<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) => match error.refusal() {
            Some(Refusal::Absent | Refusal::Other) => Ok(None),
            Some(Refusal::ForGood(_)) | None => Err(error),
        },
    }
}

/// Writes values as a list for a log line.
pub(crate) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

// === impl Error ===

impl Error {
    /// Returns the definite answer that the request has changed nothing, as [`refusal`].
    pub(crate) fn refusal(&self) -> Option<Refusal<'_>> {
        match self {
            Self::Request(error) => refusal(error),
            Self::Unanswered | Self::Unreadable(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(kube::Error::Api(status)) => describe(status, f),
            Self::Request(error) => error.fmt(f),
            Self::Unanswered => f.write_str("no answer of the API server"),
            Self::Unreadable(error) => write!(f, "the API server answered with another object: {error}"),
        }
    }
}

/// Writes the answer of an API server: code, reason and message.
fn describe(Status { code, reason, message, .. }: &Status, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "the API server answered {code}")?;
    let parts = [reason, message].into_iter().filter(|part| !part.trim().is_empty());
    parts.enumerate().try_for_each(|(at, part)| write!(f, "{}{}", if at == 0 { " " } else { ": " }, part.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16) -> Error {
        Error::Request(kube::Error::Api(Box::new(Status { code, ..Status::default() })))
    }

    #[test]
    fn an_answer_is_definite_only_if_the_request_has_changed_nothing() {
        let kind = |code: u16| match error(code).refusal() {
            Some(Refusal::Absent) => "absent",
            Some(Refusal::Other) => "other",
            Some(Refusal::ForGood(status)) => {
                assert_eq!(status.code, code);
                "for good"
            }
            None => "doubtful",
        };
        let kinds = [404, 409, 400, 403, 413, 422, 401, 429, 500, 503, 504].map(kind);
        let doubtful = ["doubtful"; 5];
        assert_eq!(kinds[..6], ["absent", "other", "for good", "for good", "for good", "for good"]);
        assert_eq!(kinds[6..], doubtful);
        assert_eq!(Error::Unanswered.refusal(), None);
    }

    #[test]
    fn an_answer_of_the_api_server_is_one_line_without_its_structure() {
        let status = |code: u16, reason: &str, message: &str| {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            Error::Request(kube::Error::Api(Box::new(Status { code, reason, message, ..Status::default() })))
                .to_string()
        };
        let busy = status(429, "TooManyRequests", "storage is (re)initializing");
        assert_eq!(busy, "the API server answered 429 TooManyRequests: storage is (re)initializing");
        assert_eq!(status(404, "", "404 page not found\n"), "the API server answered 404 404 page not found");
        assert_eq!(status(500, "", ""), "the API server answered 500");
    }

    #[test]
    fn a_write_that_meets_another_object_or_none_stores_nothing() {
        let stores = |code: u16| stored::<()>(Err(error(code))).ok();
        assert_eq!([404, 409, 403, 500].map(stores), [Some(None), Some(None), None, None]);
        assert_eq!(stored(Ok(7)).ok(), Some(Some(7)));
    }
}
