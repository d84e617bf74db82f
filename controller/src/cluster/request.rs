//! Requests to the API server: their timeout and their answers, and the discovery of the kinds that the API server
//! serves.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::core::Status;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::backoff::BackOff;
use crate::repeated::Repeated;

/// Timeout of a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Pauses after a failed discovery, or after a failed start of a part of the leader.
pub(crate) const PAUSES: BackOff = BackOff::new(Duration::from_secs(1), Duration::from_secs(30));

/// Longest text of an error in a line of the log, in characters.
const LONGEST_REASON: usize = 500;

/// Interval between two discoveries of the kinds that the API server serves.
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

/// Writes why a request failed, as one short line. An API server, or a server that pretends to be one, can answer with
/// any characters and any length.
pub(crate) struct Reason<'e>(pub(crate) &'e kube::Error);

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

/// Asks the API server repeatedly, until it answers, which kinds it serves.
///
/// `what` is the noun for the kinds in log messages. Example: `kinds of KubeVirt`.
pub(crate) async fn discover<K, F>(what: &'static str, question: &impl Fn() -> F) -> K
where
    F: Future<Output = Result<K, Error>>,
{
    let (mut pauses, lines) = (PAUSES, Repeated::default());
    loop {
        match question().await {
            Ok(kinds) => return kinds,
            Err(error) => {
                if let Some(hidden) = lines.note(&error.to_string(), Instant::now()) {
                    tracing::warn!(%error, hidden, "could not discover the {what}");
                }
            }
        }
        sleep(pauses.pause()).await;
    }
}

/// Returns when the API server serves kinds that differ from `kinds`. The other parameters are as for [`discover`].
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

/// Returns the definite answer that a request has changed nothing. `None`: the request may have had an effect, or a
/// repetition of the request may succeed.
pub(crate) fn refusal(error: &kube::Error) -> Option<Refusal<'_>> {
    let kube::Error::Api(status) = error else { return None };
    match status.code {
        404 => Some(Refusal::Absent),
        409 => Some(Refusal::Other),
        400 | 403 | 413 | 422 => Some(Refusal::ForGood(status)),
        _ => None,
    }
}

/// Returns the object that a write stored. `None`: the API server has another version of the object, or does not have
/// the object.
pub(crate) fn stored<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(error) => match error.refusal() {
            Some(Refusal::Absent | Refusal::Other) => Ok(None),
            Some(Refusal::ForGood(_)) | None => Err(error),
        },
    }
}

/// Joins values with commas, for a log line.
pub(crate) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

// === impl Error ===

impl Error {
    /// Returns the definite answer that the request has changed nothing, like [`refusal`].
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
            Self::Request(error) => Reason(error).fmt(f),
            Self::Unanswered => f.write_str("no answer of the API server"),
            Self::Unreadable(error) => {
                f.write_str(&one_line(&format!("the API server answered with another object: {error}")))
            }
        }
    }
}

// === impl Reason ===

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            kube::Error::Api(status) => describe(status),
            error => with_causes(error),
        };
        f.write_str(&one_line(&text))
    }
}

/// Returns the answer of an API server as text: code, reason and message.
pub(crate) fn describe(Status { code, reason, message, .. }: &Status) -> String {
    let parts = [reason, message].map(|part| part.trim());
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let separator = if parts.is_empty() { "" } else { " " };
    format!("the API server answered {code}{separator}{}", parts.join(": "))
}

/// Returns the text of an error, followed by each cause that the text does not contain.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Prepares a string of another program for a line of the log: escapes control characters and limits the length.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut characters = text.chars();
    for character in characters.by_ref().take(LONGEST_REASON) {
        match character {
            // Characters that end a line or change the direction of the text.
            '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => line.extend(character.escape_unicode()),
            _ if character.is_control() => line.extend(character.escape_default()),
            _ => line.push(character),
        }
    }
    if characters.next().is_some() {
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16) -> Error {
        Error::Request(kube::Error::Api(Box::new(Status { code, ..Status::default() })))
    }

    #[test]
    fn an_answer_is_a_refusal_only_if_the_request_has_changed_nothing() {
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
    fn an_answer_of_the_api_server_is_logged_as_one_line_with_code_reason_and_message() {
        let status = |code: u16, reason: &str, message: &str| {
            let (reason, message) = (reason.to_owned(), message.to_owned());
            Error::Request(kube::Error::Api(Box::new(Status { code, reason, message, ..Status::default() })))
                .to_string()
        };
        let busy = status(429, "TooManyRequests", "storage is (re)initializing");
        assert_eq!(busy, "the API server answered 429 TooManyRequests: storage is (re)initializing");
        assert_eq!(status(404, "", "404 page not found\n"), "the API server answered 404 404 page not found");
        assert_eq!(status(500, "", ""), "the API server answered 500");
        assert_eq!(
            status(403, "Forbidden", "a\n\u{1b}[31mb\u{202e}c"),
            r"the API server answered 403 Forbidden: a\n\u{1b}[31mb\u{202e}c"
        );
        let long = status(500, "", &"x".repeat(1000));
        assert_eq!(long, format!("the API server answered 500 {}…", "x".repeat(LONGEST_REASON - 28)));
    }

    #[test]
    fn the_message_of_a_request_without_an_answer_has_its_cause() {
        let refused = std::io::Error::other("connection refused");
        let error = Error::Request(kube::Error::ReadEvents(refused));
        assert_eq!(error.to_string(), "Error reading events stream: connection refused");
        let service =
            Error::Request(kube::Error::Service(Box::new(Outer(std::io::Error::other("connection refused")))));
        assert_eq!(service.to_string(), "ServiceError: cannot connect: connection refused");
    }

    #[derive(Debug)]
    struct Outer(std::io::Error);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("cannot connect")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_write_stores_nothing_if_the_api_server_has_another_version_or_no_object() {
        let stores = |code: u16| stored::<()>(Err(error(code))).ok();
        assert_eq!([404, 409, 403, 500].map(stores), [Some(None), Some(None), None, None]);
        assert_eq!(stored(Ok(7)).ok(), Some(Some(7)));
    }
}
