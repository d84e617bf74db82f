//! Requests to the API server: their timeout, their answers, and the question which kinds the API server serves.

use std::fmt;
use std::future::Future;
use std::time::Duration;

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

/// Returns the object that a write stored. `None`: the API server has another version of the object, or no object.
pub(crate) fn stored<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(object) => Ok(Some(object)),
        Err(Error::Request(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes values as a list for a log line.
pub(crate) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Unanswered => f.write_str("no answer of the API server"),
            Self::Unreadable(error) => write!(f, "the API server answered with another object: {error}"),
        }
    }
}
