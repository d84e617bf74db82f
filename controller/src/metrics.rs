//! Figures for Prometheus.

use glowplug::host::allocator::ClaimError;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use tokio::sync::watch;

use crate::registry::Answer;

/// Histograms by two labels.
pub type Histograms = Family<[(&'static str, &'static str); 2], Histogram, fn() -> Histogram>;

/// The metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leading: Gauge,
    leads: watch::Receiver<bool>,
    claims: Family<[(&'static str, &'static str); 1], Counter>,
    /// `glowplug_ledger_conflicts_total`: writes of leases that the API server refused for another one.
    pub ledger_conflicts: Counter,
    /// `glowplug_ledger_write_seconds`: time of a write of a lease.
    pub ledger_write_seconds: Histogram,
    /// `glowplug_webhook_seconds`: time of an answer of a webhook, by the labels `webhook` and `result`.
    pub webhook_seconds: Histograms,
}

// === impl Metrics ===

impl Metrics {
    /// The metrics of a replica that leads while `leads` is `true`.
    ///
    /// `glowplug_leading` is 1 while it does.
    #[must_use]
    pub fn new(leads: watch::Receiver<bool>) -> Self {
        let mut registry = Registry::with_prefix("glowplug");
        let leading = Gauge::default();
        registry.register("leading", "Whether this replica leads", leading.clone());
        let claims = Family::default();
        registry.register("claims", "Answers to claims, repeated claims included", claims.clone());
        let ledger_conflicts = Counter::default();
        let help = "Writes of leases that the API server refused because another lease was there";
        registry.register("ledger_conflicts", help, ledger_conflicts.clone());
        let ledger_write_seconds = seconds();
        registry.register("ledger_write_seconds", "Time of a write of a lease", ledger_write_seconds.clone());
        let webhook_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        registry.register("webhook_seconds", "Time of an answer of a webhook", webhook_seconds.clone());
        Self { registry, leading, leads, claims, ledger_conflicts, ledger_write_seconds, webhook_seconds }
    }

    /// Counts the answer to a claim: `glowplug_claims_total{result="allocated|exhausted|refused"}`.
    pub fn count_claim(&self, answer: &Answer) {
        let result = match answer {
            Ok(_) => "allocated",
            Err(ClaimError::Exhausted { .. }) => "exhausted",
            Err(_) => "refused",
        };
        self.claims.get_or_create(&[("result", result)]).inc();
    }

    /// Writes the metrics in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        self.leading.set(i64::from(*self.leads.borrow()));
        let mut text = String::new();
        // A string takes whatever is written.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Buckets from 1 ms to 16 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}
