//! Figures for Prometheus.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// The metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leading: Gauge,
    leads: watch::Receiver<bool>,
}

// === impl Metrics ===

impl Metrics {
    /// The metrics of a replica that leads while `leads` is `true`.
    ///
    /// - `glowplug_leading`: 1 while this replica leads, else 0.
    #[must_use]
    pub fn new(leads: watch::Receiver<bool>) -> Self {
        let mut registry = Registry::with_prefix("glowplug");
        let leading = Gauge::default();
        registry.register("leading", "Whether this replica leads", leading.clone());
        Self { registry, leading, leads }
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
