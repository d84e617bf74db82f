//! The endpoints `/healthz`, `/readyz` and `/metrics`.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Bytes;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::serve::{Phase, answer};

/// Responds to probes, and to requests for metrics if there are metrics.
#[derive(Clone)]
pub struct Diagnostics {
    phase: watch::Receiver<Phase>,
    is_ready: watch::Receiver<bool>,
    metrics: Option<Arc<Metrics>>,
    /// API server that authorizes readers of the metrics. `None`: no authorization.
    authority: Option<Client>,
}

/// Content type of the metrics.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

// === impl Diagnostics ===

impl Diagnostics {
    /// Responds to probes only. The program is ready while `is_ready` is `true` and `phase` is [`Phase::Serving`].
    #[must_use]
    pub fn probes(phase: watch::Receiver<Phase>, is_ready: watch::Receiver<bool>) -> Self {
        Self { phase, is_ready, metrics: None, authority: None }
    }

    /// The same with metrics. With an `authority`, a reader needs a bearer token of a user who may `get` the path
    /// `/metrics`.
    #[must_use]
    pub fn with_metrics(self, metrics: Arc<Metrics>, authority: Option<Client>) -> Self {
        Self { metrics: Some(metrics), authority, ..self }
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
            ("/readyz", _) => text(StatusCode::OK, "ok\n"),
            ("/metrics", Some(metrics)) => match self.authorize(&request).await {
                Ok(()) => answer(StatusCode::OK, TEXT, metrics.text()),
                Err(status) => text(status, "the metrics need a token of a user who may get /metrics\n"),
            },
            _ => text(StatusCode::NOT_FOUND, "no such path\n"),
        }
    }

    async fn authorize(&self, request: &Request<Bytes>) -> Result<(), StatusCode> {
        let Some(client) = &self.authority else { return Ok(()) };
        let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = token.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
        let unavailable = |error: kube::Error| {
            tracing::warn!(%error, "could not authorize a reader of the metrics");
            StatusCode::SERVICE_UNAVAILABLE
        };
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let review = Api::all(client.clone()).create(&PostParams::default(), &review).await.map_err(unavailable)?;
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
        let review = Api::all(client.clone()).create(&PostParams::default(), &review).await.map_err(unavailable)?;
        review.status.filter(|status| status.allowed).map(drop).ok_or(StatusCode::FORBIDDEN)
    }
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    answer(status, "text/plain; charset=utf-8", body)
}
