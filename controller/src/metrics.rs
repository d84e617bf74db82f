//! The metrics of the controller for Prometheus.

mod process;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use glowplug::host::allocator::ClaimError;
use pnet_base::MacAddr;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

/// Histograms that are distinguished by two labels.
pub type Histograms = Family<[(&'static str, &'static str); 2], Histogram, fn() -> Histogram>;

/// The metrics of the controller.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    leading: Gauge,
    /// The text of the metrics of pools, as the library writes it. Empty while this replica does not lead. The lock is
    /// held while several metrics change together, and while the metrics are written.
    pools: Mutex<String>,
    duplicate_records: Gauge,
    /// `glowplug_unreadable_leases`: number of leases that cannot be read, by `addresses`: `ip` or `mac`.
    unreadable_leases: Family<[(&'static str, &'static str); 1], Gauge>,
    claims: Family<[(&'static str, &'static str); 1], Counter>,
    /// `glowplug_mac_collisions`: number of running machines that have the same MAC address, by `mac`. Only an address
    /// of at least two machines has a series.
    mac_collisions: Family<[(&'static str, String); 1], Gauge>,
    /// `glowplug_macpool_addresses`: number of addresses of a MACPool, by `pool` and `state`. The state is `free` or
    /// `used`.
    mac_pool_addresses: Family<[(&'static str, String); 2], Gauge>,
    /// `glowplug_macpool_waiting_machines`: number of machines that wait for an address of a MACPool, by `pool`.
    mac_pool_waiting: Family<[(&'static str, String); 1], Gauge>,
    /// `glowplug_api_requests_total`: number of requests to the API server, by `method` and `code`. The code is `none`
    /// for a request without an answer.
    api_requests: Family<[(&'static str, String); 2], Counter>,
    /// `glowplug_queue_depth`: number of names or commands that wait to be processed, by `queue`.
    queue_depth: Family<[(&'static str, &'static str); 1], Gauge>,
    /// `glowplug_passes_total`: number of ended passes, by `queue` and `result`. The result is `done`, `waits` or
    /// `failed`.
    passes: Family<[(&'static str, &'static str); 2], Counter>,
    /// `glowplug_standstill_seconds`: time for which the leader has worked on one command without recording anything. 0
    /// if there is no command.
    standstill_seconds: Gauge<f64, AtomicU64>,
    /// `glowplug_certificate_expiry_timestamp_seconds`: time at which the certificate of the webhooks expires, in
    /// seconds since 1970. 0 if the certificate cannot be read.
    certificate_expiry: Gauge,
    /// `glowplug_allocation_seconds`: time from the creation of a claim to its condition `Ready`, or from the creation
    /// of a VirtualMachine to its Secret. The API server stores the time of creation in whole seconds. A machine that
    /// is older than its pool is not measured.
    pub allocation_seconds: Histogram,
    /// `glowplug_rebuild_seconds`: time from the last election of this replica until the replica served claims.
    pub rebuild_seconds: Gauge<f64, AtomicU64>,
    /// `glowplug_ledger_conflicts_total`: number of writes of leases that the API server rejected because another
    /// version was stored.
    pub ledger_conflicts: Counter,
    /// `glowplug_ledger_write_seconds`: duration of a write of a lease.
    pub ledger_write_seconds: Histogram,
    /// `glowplug_webhook_seconds`: duration of a webhook response, by `webhook` and `result`.
    pub webhook_seconds: Histograms,
}

/// The metrics of one queue of passes.
#[derive(Clone, Debug)]
pub struct PassMetrics {
    /// Number of names that wait for their pass.
    pub depth: Gauge,
    /// Number of passes after which nothing is left to do.
    pub done: Counter,
    /// Number of passes after which the name waits, for example for an address.
    pub waits: Counter,
    /// Number of passes that failed and are repeated.
    pub failed: Counter,
}

/// Values of the label `webhook`.
const WEBHOOKS: [&str; 5] = ["pools", "machines", "machine-updates", "macs", "instances"];
/// Values of the label `queue` for queues of passes: see [`Metrics::passes`].
const QUEUES: [&str; 4] = ["claims", "IPAMClaims", "machines", "neighbours"];
/// Value of the label `queue` for the commands of the registry.
const REGISTRY: &str = "registry";

/// Counts of a `MACPool`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MacPoolCount {
    /// Number of addresses that the pool can allocate.
    pub free: u64,
    /// Number of addresses that are not free: a machine holds or uses them, or they have a reuse delay or an unreadable
    /// lease.
    pub used: u64,
    /// Number of machines that wait for an address of the pool.
    pub waiting: u32,
}

// === impl Metrics ===

impl Default for Metrics {
    /// Creates the metrics of a replica that does not lead.
    fn default() -> Self {
        let mut registry = Registry::with_prefix("glowplug");
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "Version of the program", build);
        let leading = Gauge::default();
        registry.register("leading", "Whether this replica leads and serves", leading.clone());
        let duplicate_records = Gauge::default();
        let help = "Addresses with two users";
        registry.register("duplicate_records", help, duplicate_records.clone());
        let unreadable_leases = Family::<_, Gauge>::default();
        for addresses in ["ip", "mac"] {
            drop(unreadable_leases.get_or_create(&[("addresses", addresses)]));
        }
        registry.register("unreadable_leases", "Leases that cannot be read", unreadable_leases.clone());
        // The buckets reach from 1 ms to 9 minutes, because a claim may wait for an address.
        let allocation_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 20));
        let help = "Time from the creation of a claim or VirtualMachine to its address";
        registry.register("allocation_seconds", help, allocation_seconds.clone());
        let rebuild_seconds = Gauge::default();
        let help = "Time from the last election of this replica until it served claims";
        registry.register("rebuild_seconds", help, rebuild_seconds.clone());
        let claims = Family::<_, Counter>::default();
        // Each series begins with 0: if a series begins with its first event, Prometheus sees no increase.
        for result in ["allocated", "exhausted", "refused"] {
            drop(claims.get_or_create(&[("result", result)]));
        }
        registry.register("claims", "Results of claims, including repeated claims", claims.clone());
        let mac_collisions = Family::default();
        let help = "Running machines that have the same MAC address";
        registry.register("mac_collisions", help, mac_collisions.clone());
        let mac_pool_addresses = Family::default();
        registry.register("macpool_addresses", "Addresses of a MACPool by state", mac_pool_addresses.clone());
        let mac_pool_waiting = Family::default();
        let help = "Machines that wait for an address of a MACPool";
        registry.register("macpool_waiting_machines", help, mac_pool_waiting.clone());
        let ledger_conflicts = Counter::default();
        let help = "Writes of leases that the API server rejected because another lease existed";
        registry.register("ledger_conflicts", help, ledger_conflicts.clone());
        let ledger_write_seconds = seconds();
        registry.register("ledger_write_seconds", "Time of a write of a lease", ledger_write_seconds.clone());
        let webhook_seconds = Family::new_with_constructor(seconds as fn() -> Histogram);
        for webhook in WEBHOOKS {
            for result in ["allowed", "refused"] {
                drop(webhook_seconds.get_or_create(&[("webhook", webhook), ("result", result)]));
            }
        }
        registry.register("webhook_seconds", "Time of a webhook response", webhook_seconds.clone());
        let api_requests = Family::default();
        registry.register("api_requests", "Requests to the API server", api_requests.clone());
        let queue_depth = Family::<_, Gauge>::default();
        registry.register("queue_depth", "Names that wait for a pass, and commands that wait", queue_depth.clone());
        let passes = Family::<_, Counter>::default();
        registry.register("passes", "Ended passes over the objects of a name", passes.clone());
        for queue in QUEUES {
            drop(queue_depth.get_or_create(&[("queue", queue)]));
            for result in ["done", "waits", "failed"] {
                drop(passes.get_or_create(&[("queue", queue), ("result", result)]));
            }
        }
        drop(queue_depth.get_or_create(&[("queue", REGISTRY)]));
        let standstill_seconds = Gauge::default();
        let help = "Time for which the leader has worked on one command without recording anything";
        registry.register("standstill_seconds", help, standstill_seconds.clone());
        let certificate_expiry = Gauge::default();
        let help = "When the certificate of the webhooks expires, in seconds since 1970";
        registry.register("certificate_expiry_timestamp_seconds", help, certificate_expiry.clone());
        let pools = Mutex::default();
        Self {
            registry,
            api_requests,
            queue_depth,
            passes,
            standstill_seconds,
            certificate_expiry,
            leading,
            pools,
            duplicate_records,
            unreadable_leases,
            claims,
            mac_collisions,
            mac_pool_addresses,
            mac_pool_waiting,
            allocation_seconds,
            rebuild_seconds,
            ledger_conflicts,
            ledger_write_seconds,
            webhook_seconds,
        }
    }
}

impl Metrics {
    /// Sets `glowplug_leading`: 1 while the replica leads, has finished its start, and gets answers from the API
    /// server.
    pub fn set_leading(&self, is_leading: bool) {
        self.leading.set(i64::from(is_leading));
    }

    /// Counts the result of a claim: `glowplug_claims_total{result="allocated|exhausted|refused"}`.
    ///
    /// `refusal` is the reason for which the claim got no address.
    pub fn count_claim(&self, refusal: Option<&ClaimError>) {
        let result = match refusal {
            None => "allocated",
            Some(ClaimError::Exhausted { .. }) => "exhausted",
            Some(_) => "refused",
        };
        self.claims.get_or_create(&[("result", result)]).inc();
    }

    /// Returns the metrics of the queue of passes with this name.
    #[must_use]
    pub fn passes(&self, queue: &'static str) -> PassMetrics {
        let result = |result| self.passes.get_or_create_owned(&[("queue", queue), ("result", result)]);
        PassMetrics {
            depth: self.queue_depth.get_or_create_owned(&[("queue", queue)]),
            done: result("done"),
            waits: result("waits"),
            failed: result("failed"),
        }
    }

    /// Counts a request to the API server. `code` is the status code of the answer. `None`: there was no answer.
    pub fn count_request(&self, method: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "none".to_owned(), |code| code.to_string());
        self.api_requests.get_or_create(&[("method", method.to_owned()), ("code", code)]).inc();
    }

    /// Sets the metrics of the leader's registry: the number of its waiting commands, and the time since its last
    /// progress.
    pub fn set_progress(&self, queued: usize, standstill: Duration) {
        let queued = i64::try_from(queued).unwrap_or(i64::MAX);
        self.queue_depth.get_or_create(&[("queue", REGISTRY)]).set(queued);
        self.standstill_seconds.set(standstill.as_secs_f64());
    }

    /// Sets the time at which the certificate of the webhooks expires, in seconds since 1970. 0: the certificate cannot
    /// be read.
    pub fn set_certificate_expiry(&self, seconds: i64) {
        self.certificate_expiry.set(seconds);
    }

    /// Sets the metrics of pools: `text` in the format of [`glowplug::host::metrics::text`], the number of addresses
    /// with two users, and the number of leases that cannot be read.
    pub fn set_pools(&self, text: String, conflicts: usize, unreadable: usize) {
        self.duplicate_records.set(i64::try_from(conflicts).unwrap_or(i64::MAX));
        self.set_unreadable("ip", unreadable);
        *self.pools.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn set_unreadable(&self, addresses: &'static str, leases: usize) {
        let leases = i64::try_from(leases).unwrap_or(i64::MAX);
        self.unreadable_leases.get_or_create(&[("addresses", addresses)]).set(leases);
    }

    /// Sets the metrics of MAC addresses: for each address of at least two running machines, the number of these
    /// machines; the counts of each valid `MACPool`, by name; and the number of leases that cannot be read.
    pub fn set_macs<'n>(
        &self,
        collisions: impl IntoIterator<Item = (MacAddr, usize)>,
        pools: impl IntoIterator<Item = (&'n str, MacPoolCount)>,
        unreadable: usize,
    ) {
        self.set_unreadable("mac", unreadable);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let _lock = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        self.mac_collisions.clear();
        for (address, machines) in collisions {
            let machines = i64::try_from(machines).unwrap_or(i64::MAX);
            self.mac_collisions.get_or_create(&[("mac", address.to_string())]).set(machines);
        }
        self.mac_pool_addresses.clear();
        self.mac_pool_waiting.clear();
        for (pool, MacPoolCount { free, used, waiting }) in pools {
            for (state, number) in [("free", free), ("used", used)] {
                let labels = [("pool", pool.to_owned()), ("state", state.to_owned())];
                self.mac_pool_addresses.get_or_create(&labels).set(count(number));
            }
            self.mac_pool_waiting.get_or_create(&[("pool", pool.to_owned())]).set(waiting.into());
        }
    }

    /// Writes the metrics in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self) -> String {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        // The metrics of `self.registry` come last, because their text ends with `# EOF`.
        let mut text = process::text(Path::new("/proc")) + &pools;
        // Writing to a `String` cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// Creates a histogram with buckets from 1 ms to 16 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 15))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of the metrics of MAC addresses, sorted.
    fn macs(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text();
        let mut lines: Vec<String> =
            text.lines().filter(|line| line.starts_with("glowplug_mac")).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn the_metrics_name_the_version_and_measure_long_waits() {
        let metrics = Metrics::default();
        metrics.allocation_seconds.observe(300.0);
        let text = metrics.text();
        let version = env!("CARGO_PKG_VERSION");
        assert!(text.contains(&format!("glowplug_build_info{{version=\"{version}\"}} 1\n")), "{text}");
        let buckets = text.lines().filter(|line| line.starts_with("glowplug_allocation_seconds_bucket"));
        let full: Vec<&str> = buckets.filter(|line| line.ends_with(" 1")).collect();
        let expected = [
            "glowplug_allocation_seconds_bucket{le=\"524.288\"} 1",
            "glowplug_allocation_seconds_bucket{le=\"+Inf\"} 1",
        ];
        assert_eq!(full, expected);
    }

    #[test]
    fn new_metrics_of_mac_addresses_replace_all_earlier_ones() {
        let metrics = Metrics::default();
        let count = MacPoolCount { free: 3, used: 1, waiting: 2 };
        metrics.set_macs([(MacAddr::new(2, 0, 0, 0, 0, 1), 2)], [("workers", count)], 0);
        let expected = [
            r#"glowplug_mac_collisions{mac="02:00:00:00:00:01"} 2"#,
            r#"glowplug_macpool_addresses{pool="workers",state="free"} 3"#,
            r#"glowplug_macpool_addresses{pool="workers",state="used"} 1"#,
            r#"glowplug_macpool_waiting_machines{pool="workers"} 2"#,
        ];
        assert_eq!(macs(&metrics), expected);
        metrics.set_macs([], [("others", MacPoolCount { free: u64::MAX, used: 0, waiting: 0 })], 0);
        let expected = [
            r#"glowplug_macpool_addresses{pool="others",state="free"} 9223372036854775807"#,
            r#"glowplug_macpool_addresses{pool="others",state="used"} 0"#,
            r#"glowplug_macpool_waiting_machines{pool="others"} 0"#,
        ];
        assert_eq!(macs(&metrics), expected);
    }
}
