//! Serves the endpoints `/healthz`, `/readyz` and `/metrics`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::request::Reason;
use crate::ledger::types::Progress;
use crate::metrics::Metrics;
use crate::repeated::Repeated;
use crate::serve::{Certificate, Phase, answer};

/// Answers probes, and requests for metrics if there are metrics.
#[derive(Clone)]
pub struct Diagnostics {
    phase: watch::Receiver<Phase>,
    is_ready: watch::Receiver<bool>,
    metrics: Option<Arc<Metrics>>,
    /// The certificate of the webhooks. `None`: readiness does not depend on a certificate.
    certificate: Option<Arc<Certificate>>,
    /// The progress of the registry of the current term. It is measured when the metrics are read.
    progress: Option<watch::Receiver<Progress>>,
    /// Decides which clients have the right to read the metrics. `None`: every client has this right.
    authority: Option<Arc<Authority>>,
}

/// Asks the API server which tokens have the right to read the metrics. Keeps the answers for a while, because every
/// scrape sends a token, and every client in the cluster can send tokens.
struct Authority {
    client: Client,
    /// The kept answers. The oldest answer comes first.
    answers: Mutex<VecDeque<Answered>>,
    /// Locked while the API server is asked.
    asking: tokio::sync::Mutex<()>,
    lines: Repeated,
}

struct Answered {
    token: String,
    at: Instant,
    result: Result<(), StatusCode>,
}

/// Time for which an answer of the API server about a token is kept.
const KEPT: Duration = Duration::from_secs(60);
/// Maximum number of tokens whose answers are kept.
const MOST_KEPT: usize = 64;
/// Maximum length of a token about which the API server is asked, in bytes. Tokens of service accounts have about 1
/// KiB.
const LONGEST_TOKEN: usize = 16 << 10;
/// Content type of the metrics.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// === impl Diagnostics ===

impl Diagnostics {
    /// Creates a value that answers only probes. The program is ready while `is_ready` is `true` and `phase` is
    /// [`Phase::Serving`].
    #[must_use]
    pub fn probes(phase: watch::Receiver<Phase>, is_ready: watch::Receiver<bool>) -> Self {
        Self { phase, is_ready, certificate: None, metrics: None, progress: None, authority: None }
    }

    /// Adds the certificate of the webhooks. The program is ready only while new connections get this certificate, and
    /// the metrics include its expiry.
    #[must_use]
    pub fn with_certificate(self, certificate: Arc<Certificate>) -> Self {
        Self { certificate: Some(certificate), ..self }
    }

    /// Adds the metrics. With an `authority`, a request needs the bearer token of a user who has the right to `get` the
    /// path `/metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<Metrics>, authority: Option<Client>) -> Self {
        let authority = authority.map(|client| {
            let (answers, asking) = (Mutex::default(), tokio::sync::Mutex::default());
            Arc::new(Authority { client, answers, asking, lines: Repeated::default() })
        });
        Self { metrics: Some(metrics), authority, ..self }
    }

    /// Adds the progress of the registry, which the metrics include.
    #[must_use]
    pub fn measuring(self, progress: watch::Receiver<Progress>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Responds to a request.
    pub async fn answer(self, request: Request<Bytes>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n");
        }
        match (request.uri().path(), &self.metrics) {
            ("/healthz", _) => text(StatusCode::OK, "ok\n"),
            ("/readyz", _) if *self.phase.borrow() != Phase::Serving => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the program is ending\n")
            }
            ("/readyz", _) if !*self.is_ready.borrow() => {
                text(StatusCode::SERVICE_UNAVAILABLE, "the program is starting\n")
            }
            ("/readyz", _) => match self.certificate.as_ref().map(|certificate| certificate.check()) {
                Some(Err(error)) => {
                    let problem = format!("the certificate of the webhooks cannot be read: {error}\n");
                    text(StatusCode::SERVICE_UNAVAILABLE, problem)
                }
                None | Some(Ok(())) => text(StatusCode::OK, "ok\n"),
            },
            ("/metrics", Some(metrics)) => match self.authorize(&request).await {
                Ok(()) => {
                    if let Some(certificate) = &self.certificate {
                        metrics.set_certificate_expiry(certificate.expiry());
                    }
                    if let Some(progress) = &self.progress {
                        let progress = progress.borrow();
                        let standstill = progress.last().map(|last| last.elapsed()).unwrap_or_default();
                        metrics.set_progress(progress.queued(), standstill);
                    }
                    answer(StatusCode::OK, TEXT, metrics.text())
                }
                Err(status) => text(status, "the metrics need a token of a user who may get /metrics\n"),
            },
            _ => text(StatusCode::NOT_FOUND, "no such path\n"),
        }
    }

    async fn authorize(&self, request: &Request<Bytes>) -> Result<(), StatusCode> {
        let Some(authority) = &self.authority else { return Ok(()) };
        authority.check(token(request.headers()).ok_or(StatusCode::UNAUTHORIZED)?).await
    }
}

/// Returns the bearer token of a request. `None`: the request has no token, or an empty one, which no user has.
fn token(headers: &HeaderMap) -> Option<&str> {
    let token = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
    Some(token).filter(|token| !token.trim().is_empty())
}

// === impl Authority ===

impl Authority {
    /// Checks whether the user of a token has the right to read the metrics.
    async fn check(&self, token: &str) -> Result<(), StatusCode> {
        if let Some(result) = self.kept(token) {
            return result;
        }
        if token.len() > LONGEST_TOKEN {
            return Err(StatusCode::UNAUTHORIZED);
        }
        // Only one token is checked at a time, so many unknown tokens cannot overload the API server.
        let _asking = self.asking.lock().await;
        if let Some(result) = self.kept(token) {
            return result;
        }
        let result = self.ask(token).await;
        if result != Err(StatusCode::SERVICE_UNAVAILABLE) {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            if answers.len() == MOST_KEPT {
                // Refusals are removed first, because every client can send tokens that are refused.
                let refused = answers.iter().position(|answered| answered.result.is_err());
                answers.remove(refused.unwrap_or_default());
            }
            answers.push_back(Answered { token: token.to_owned(), at: Instant::now(), result });
        }
        result
    }

    fn kept(&self, token: &str) -> Option<Result<(), StatusCode>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|answered| answered.at.elapsed() < KEPT);
        answers.iter().find(|answered| answered.token == token).map(|answered| answered.result)
    }

    async fn ask(&self, token: &str) -> Result<(), StatusCode> {
        let unavailable = |error: kube::Error| {
            let error = Reason(&error).to_string();
            if let Some(hidden) = self.lines.note(&error, Instant::now()) {
                tracing::warn!(error, hidden, "could not authorize a reader of the metrics");
            }
            StatusCode::SERVICE_UNAVAILABLE
        };
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await.map_err(unavailable)?;
        let status = review.status.unwrap_or_default();
        let user = status.user.filter(|_| status.authenticated == Some(true)).ok_or(StatusCode::UNAUTHORIZED)?;
        let path = NonResourceAttributes { path: Some("/metrics".to_owned()), verb: Some("get".to_owned()) };
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            non_resource_attributes: Some(path),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let reviews = Api::all(self.client.clone());
        let review = reviews.create(&PostParams::default(), &review).await.map_err(unavailable)?;
        review.status.filter(|status| status.allowed).map(drop).ok_or(StatusCode::FORBIDDEN)
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_token_is_no_token() {
        let of = |value: &'static str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, http::HeaderValue::from_static(value))]);
            token(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc"), Some("abc".to_owned()));
        for value in ["Bearer ", "Bearer   ", "Bearer", "", "Basic abc"] {
            assert_eq!(of(value), None, "{value:?}");
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
