//! Requests to the API server: their timeout and their answers, and the discovery of the kinds that the API server
//! serves.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::Status;
use kube::core::response::StatusDetails;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use crate::cluster::backoff::BackOff;
use crate::cluster::object::Object;
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
    /// The object is being deleted, and its finalizers keep the object.
    Kept,
}

/// Writes why a request failed, as one short line. An API server, or a server that pretends to be one, can answer with
/// any characters and any length.
pub(crate) struct Reason<'e>(pub(crate) &'e kube::Error);

/// A definite answer that a request has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Refusal<'e> {
    /// 404 with the reason `NotFound`: the API server has no such object, or no such namespace.
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

/// Waits until the API server serves other kinds than `kinds`. The other parameters are as for [`discover`].
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

/// Reads an object. `None`: the object certainly does not exist.
///
/// Every part of the program reads with this function, because the absence of an object can release addresses. For
/// [`Api::get_opt`] of kube, each answer with the code 404 means that the object does not exist.
///
/// # Errors
///
/// The request failed, or an answer with the code 404 does not say that this object does not exist.
pub(crate) async fn find(api: &Api<Object>, name: &str) -> kube::Result<Option<Object>> {
    let error = match api.get(name).await {
        Ok(object) => return Ok(Some(object)),
        Err(error) => error,
    };
    let plural = api.resource_url().rsplit('/').next();
    let absent = absent(&error).filter(|absent| absent.name == name && Some(&*absent.kind) == plural);
    if absent.is_some() { Ok(None) } else { Err(error) }
}

/// Returns the object that does not exist, according to the answer of an API server. `None`: the request failed for
/// another reason.
///
/// A proxy in front of the API server, and the API server for a version of a kind that it does not serve, also answer
/// with the code 404. Such an answer is a text, or has the reason `NotFound` without the name of an object. If a program
/// in Go passes such an answer on, it adds the reason and the name, and names the answer as the cause.
fn absent(error: &kube::Error) -> Option<&StatusDetails> {
    let kube::Error::Api(status) = error else { return None };
    let details = status.details.as_ref().filter(|details| !details.name.is_empty() && details.causes.is_empty());
    details.filter(|_| status.code == 404 && status.reason == "NotFound")
}

/// Returns the definite answer that a request has changed nothing. `None`: the request may have had an effect, or a
/// repetition of the request may succeed.
pub(crate) fn refusal(error: &kube::Error) -> Option<Refusal<'_>> {
    let kube::Error::Api(status) = error else { return None };
    match status.code {
        404 => absent(error).map(|_| Refusal::Absent),
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

/// Sends a patch that the API server must reject if it has another version of the object than `tested`. Returns the
/// object that the API server has now, and whether the patch is stored. `None`: there is no such object.
///
/// # Errors
///
/// The API server or a webhook refuses this change of the version `tested`. A repetition of the patch would have the
/// same result.
pub(crate) async fn patch_version<P: Serialize + fmt::Debug>(
    api: &Api<Object>,
    name: &str,
    patch: &Patch<P>,
    tested: Option<&str>,
) -> Result<(Option<Object>, bool), Error> {
    match ask(api.patch(name, &PatchParams::default(), patch)).await {
        Ok(object) => Ok((Some(object), true)),
        Err(error) => match error.refusal() {
            // The status codes for an absent object and for another version can also be the answer of a webhook.
            Some(Refusal::Absent | Refusal::Other | Refusal::ForGood(_)) => match ask(find(api, name)).await? {
                Some(object) if object.metadata.resource_version.as_deref() == tested => Err(error),
                object => Ok((object, false)),
            },
            None => Err(error),
        },
    }
}

/// Joins values with commas, for a log line.
pub(crate) fn list(values: impl IntoIterator<Item = impl ToString>) -> String {
    values.into_iter().map(|value| value.to_string()).collect::<Vec<_>>().join(", ")
}

// === impl Error ===

impl Error {
    /// Returns the answer of the API server if it proves that the request has changed nothing, as [`refusal`] does.
    pub(crate) fn refusal(&self) -> Option<Refusal<'_>> {
        match self {
            Self::Request(error) => refusal(error),
            Self::Unanswered | Self::Unreadable(_) | Self::Kept => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => Reason(error).fmt(f),
            Self::Unanswered => f.write_str("no answer of the API server"),
            Self::Kept => f.write_str("its finalizers keep the object"),
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
    use k8s_openapi::api::core::v1::Secret;
    use kube::Client;
    use kube::api::ApiResource;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn error(code: u16) -> Error {
        let (reason, details) = match code {
            404 => ("NotFound".to_owned(), Some(details(json!({"name": "a", "kind": "secrets"})))),
            _ => (String::new(), None),
        };
        Error::Request(kube::Error::Api(Box::new(Status { code, reason, details, ..Status::default() })))
    }

    fn details(details: Value) -> StatusDetails {
        serde_json::from_value(details).unwrap()
    }

    /// Reads Secret `n/a` from an API server that answers with this code and this body.
    async fn found(code: u16, body: &str) -> Result<Option<Object>, String> {
        let body = body.to_owned();
        let answer = move |_: http::Request<Body>| {
            let response = http::Response::builder().status(code).body(Body::from(body.clone().into_bytes())).unwrap();
            async { Ok::<_, kube::Error>(response) }
        };
        let client = Client::new(tower::service_fn(answer), "n");
        let secrets: Api<Object> = Api::namespaced_with(client, "n", &ApiResource::erase::<Secret>(&()));
        find(&secrets, "a").await.map_err(|error| Reason(&error).to_string())
    }

    #[tokio::test]
    async fn only_the_api_server_itself_says_that_an_object_does_not_exist() {
        let status = |reason: &str, details: Value| {
            json!({
                "kind": "Status", "status": "Failure", "code": 404, "reason": reason, "message": "x", "details": details,
            })
            .to_string()
        };
        let absent = |name: &str, kind: &str| status("NotFound", json!({"name": name, "kind": kind}));
        let object = json!({"metadata": {"namespace": "n", "name": "a"}});
        assert_eq!(found(200, &object.to_string()).await, Ok(serde_json::from_value(object).unwrap()));
        assert_eq!(found(404, &absent("a", "secrets")).await, Ok(None));
        let not_found = "the API server answered 404 NotFound: x";
        let cause = json!({"reason": "UnexpectedServerResponse", "message": "404 page not found"});
        let passed_on = status("NotFound", json!({"name": "a", "kind": "secrets", "causes": [cause]}));
        let nameless = [Value::Null, json!({}), json!({"kind": "secrets"})].map(|details| status("NotFound", details));
        for body in [absent("b", "secrets"), absent("a", "namespaces"), passed_on].into_iter().chain(nameless) {
            assert_eq!(found(404, &body).await, Err(not_found.to_owned()), "{body}");
        }
        let unserved = "the API server answered 404 Failed to parse error data: 404 page not found";
        assert_eq!(found(404, "404 page not found\n").await, Err(unserved.to_owned()));
        let other = "the API server answered 404 Other: x";
        assert_eq!(found(404, &status("Other", json!({"name": "a", "kind": "secrets"}))).await, Err(other.to_owned()));
        assert_eq!(
            found(404, r#"{"message": "no route"}"#).await,
            Err("the API server answered 0 no route".to_owned())
        );
    }

    #[test]
    fn an_answer_404_without_the_absent_object_is_no_refusal() {
        for reason in ["", "NotFound", "Failed to parse error data"] {
            let details = Some(details(json!({})));
            let status = Status { code: 404, reason: reason.to_owned(), details, ..Status::default() };
            let error = || Error::Request(kube::Error::Api(Box::new(status.clone())));
            assert_eq!((error().refusal(), stored::<()>(Err(error())).is_err()), (None, true), "{reason}");
        }
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
