//! `make dashboard`: draws `docs/dashboard.svg`, the panels of the dashboard for a healthy cluster of ten pools.
//!
//! The controller runs on the API server of the tests, while claims and machines come and go. This program reads the
//! metrics as Prometheus does, and evaluates the queries of the panels over these metrics. The arguments are the file
//! and the number of seconds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![allow(clippy::disallowed_types, reason = "the objects come from the test, so their managed fields are readable")]

mod support;

use std::collections::{BTreeMap, VecDeque};
use std::f64::consts::TAU;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use glowplug_controller::kinds::virtual_machine::MACHINES_LABEL;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::{SignedDuration, Timestamp, tz::TimeZone};
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::time::sleep;

use support::controller::Site;
use support::hosted::{Hosted, poll};
use support::http::get;
use support::manifests::webhooks_at;
use support::program::Program;
use support::promql::{Expr, History, Labels, Scrape};
use support::replica::configurations;
use support::start_server;

/// Number of pools for claims. The cluster has one more pool, for machines.
const POOLS: usize = 9;
/// Number of addresses in each pool for claims.
const ADDRESSES: usize = 60;
/// Time between two scrapes.
const PERIOD: Duration = Duration::from_secs(2);
const MIB: f64 = 1_048_576.0;
/// Number of points in each line of a panel.
const POINTS: u32 = 80;
const COLOURS: [&str; 10] =
    ["#3b7dd8", "#d9822b", "#3a9d5d", "#c23f3f", "#7d57c2", "#2f9fa8", "#b0589b", "#7a8b2f", "#8c6a4f", "#56606e"];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, seconds] = arguments.as_slice() else { panic!("expected a file and a number of seconds") };
    let history = run(Duration::from_secs(seconds.parse().unwrap())).await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    fs::write(file, picture(&dashboard, &history)).unwrap();
}

/// Runs the controller for this time, and returns its metrics.
async fn run(time: Duration) -> History {
    let (_server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    let roots = write_certificate(folder.path());
    let site = Site::new(&cluster).await;
    let hosted = Hosted::new(&cluster).await;
    hosted.node_pool("workers", 0, &json!({})).await;
    hosted.pool("workers", &["10.0.100.0-10.0.100.15"]).await;
    let mut program = Program::start(cluster.config(), folder.path(), "");
    program.until("serving").await;
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let configuration = webhooks_at(kind, &format!("https://{}", program.webhooks), &roots);
        let configuration = serde_json::from_value(configuration).unwrap();
        configurations(&cluster, kind).create(&PostParams::default(), &configuration).await.unwrap();
    }
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    poll("the label for the webhook", async || {
        namespaces.get(&hosted.namespace).await.unwrap().labels().contains_key(MACHINES_LABEL).then_some(())
    })
    .await;
    for pool in 0..POOLS {
        site.pool(&format!("pool-{pool}"), &[&format!("10.0.{pool}.1-10.0.{pool}.{ADDRESSES}")]).await;
    }

    let mut claims = vec![VecDeque::new(); POOLS];
    let (mut history, began, mut scraped, mut number) = (History::default(), Instant::now(), None::<Instant>, 0);
    while began.elapsed() < time {
        let share = began.elapsed().as_secs_f64() / time.as_secs_f64();
        for (pool, claims) in claims.iter_mut().enumerate() {
            let middle = 8 + pool * 4;
            let wave = (TAU * (share * 2.0 + pool as f64 / 9.0)).sin() * 6.0;
            let wanted = (middle as f64 * (share * 6.0).min(1.0) + wave).max(1.0) as usize;
            if claims.len() < wanted {
                number += 1;
                let name = format!("worker-{number}");
                let reference = json!({"spec": {"poolRef": {"name": format!("pool-{pool}")}}});
                site.claim(&name, &reference).await;
                claims.push_back(name);
            } else if claims.len() > wanted || number % 5 == 0 {
                site.delete(&claims.pop_front().unwrap()).await;
            }
        }
        hosted.scale("workers", 4 + (2.0 * (TAU * share * 2.0).sin()).round() as usize).await;
        if scraped.is_none_or(|at| at.elapsed() >= PERIOD) {
            scraped = Some(Instant::now());
            let (_, text) = get(program.diagnostics, "/metrics", None).await;
            let now = Timestamp::now().as_millisecond() as f64 / 1000.0;
            history.0.push(Scrape::read(&text, now, &[("instance", "manager-0"), ("pod", "manager-0")]));
        }
        sleep(Duration::from_millis(200)).await;
    }
    history
}

/// Writes a certificate that is valid for 90 days. Returns the certificate for the clients.
fn write_certificate(folder: &Path) -> String {
    let end = (Timestamp::now() + SignedDuration::from_hours(90 * 24)).to_zoned(TimeZone::UTC).date();
    let mut parameters = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    parameters.not_after = rcgen::date_time_ymd(end.year().into(), end.month() as u8, end.day() as u8);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = parameters.self_signed(&key).unwrap().pem();
    fs::write(folder.join("tls.crt"), &certificate).unwrap();
    fs::write(folder.join("tls.key"), key.serialize_pem()).unwrap();
    certificate
}

/// Draws all panels. A panel without data is an error.
fn picture(dashboard: &Value, history: &History) -> String {
    let panels = dashboard["panels"].as_array().unwrap();
    let number = |panel: &Value, member: &str| panel["gridPos"][member].as_f64().unwrap();
    let height = panels.iter().map(|panel| number(panel, "y") + number(panel, "h")).fold(0.0, f64::max) * 26.0 + 44.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1200 {height}\" font-family=\"sans-serif\">\
         <title>The Grafana dashboard of glowplug, for a healthy cluster of ten pools</title>\
         <style>.p{{fill:#fff;stroke:#d8dbe2}}.t{{font-size:14px;font-weight:600;fill:#24292e}}\
         .a{{font-size:11px;fill:#55606e}}.g{{stroke:#e7e9ee}}.l{{fill:none;stroke-width:1.5}}\
         .s{{font-size:30px;font-weight:600;fill:#24292e}}.h{{font-size:18px;font-weight:600;fill:#24292e}}</style>\
         <rect width=\"1200\" height=\"{height}\" fill=\"#f4f5f8\"/><text x=\"12\" y=\"28\" class=\"h\">glowplug</text>\n"
    );
    for panel in panels {
        let (x, y) = (number(panel, "x") * 50.0 + 4.0, number(panel, "y") * 26.0 + 44.0);
        let (width, height) = (number(panel, "w") * 50.0 - 8.0, number(panel, "h") * 26.0 - 8.0);
        let title = panel["title"].as_str().unwrap();
        let _ = write!(
            svg,
            "<g transform=\"translate({x} {y})\"><rect width=\"{width}\" height=\"{height}\" class=\"p\"/>\
             <text x=\"10\" y=\"18\" class=\"t\">{title}</text>"
        );
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap();
        let lines = lines(panel, history);
        assert!(lines.iter().any(|(_, points)| !points.is_empty()), "{title}: no data");
        match panel["type"].as_str().unwrap() {
            "stat" => {
                let last = lines[0].1.last().unwrap().1;
                let _ = write!(
                    svg,
                    "<text x=\"{}\" y=\"{}\" class=\"s\" text-anchor=\"middle\">{}</text>",
                    width / 2.0,
                    height / 2.0 + 18.0,
                    shown(last, unit)
                );
            }
            _ => svg += &chart(&lines, (width, height), unit, history),
        }
        svg += "</g>\n";
    }
    svg + "</svg>\n"
}

/// Returns the lines of a panel: the legend and the points of each line. A point is the elapsed share of the run, from
/// 0 to 1, and the value.
fn lines(panel: &Value, history: &History) -> Vec<(String, Vec<(f64, f64)>)> {
    let (first, last) = (history.0[0].time, history.0.last().unwrap().time);
    let mut lines: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for target in panel["targets"].as_array().unwrap() {
        let expr = Expr::parse(target["expr"].as_str().unwrap()).unwrap();
        let legend = target["legendFormat"].as_str().unwrap();
        for point in 1..=POINTS {
            let share = f64::from(point) / f64::from(POINTS);
            for (labels, value) in expr.eval(history, first + (last - first) * share) {
                lines.entry(name(legend, &labels)).or_default().push((share, value));
            }
        }
    }
    lines.into_iter().collect()
}

fn name(legend: &str, labels: &Labels) -> String {
    let mut name = legend.to_owned();
    for (label, value) in labels {
        name = name.replace(&format!("{{{{{label}}}}}"), value);
    }
    // The namespace before the slash is a random name of the test, so the legend leaves it out.
    name.rsplit_once('/').map_or(name.clone(), |(_, name)| name.to_owned())
}

/// Draws lines, a scale and a legend.
fn chart(lines: &[(String, Vec<(f64, f64)>)], (width, height): (f64, f64), unit: &str, history: &History) -> String {
    let (left, top, right, bottom) = (64.0, 30.0, width - 150.0, height - 24.0);
    let most = lines.iter().flat_map(|(_, points)| points).map(|(_, value)| *value).fold(0.0, f64::max);
    let most = if unit == "bytes" { scale(most / MIB) * MIB } else { scale(most) };
    let mut svg = String::new();
    for part in 0..=4 {
        let share = f64::from(part) / 4.0;
        let y = bottom - (bottom - top) * share;
        let label = shown(most * share, unit);
        let _ = write!(
            svg,
            "<path d=\"M{left} {y:.0}H{right}\" class=\"g\"/><text x=\"{}\" y=\"{:.0}\" class=\"a\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    let seconds = history.0.last().unwrap().time - history.0[0].time;
    for part in [0.0, 0.5, 1.0] {
        let (x, label) = (left + (right - left) * part, shown(seconds * part, "s"));
        let _ =
            write!(svg, "<text x=\"{x:.0}\" y=\"{}\" class=\"a\" text-anchor=\"middle\">{label}</text>", bottom + 15.0);
    }
    for (at, (name, points)) in lines.iter().enumerate() {
        let (colour, y) = (COLOURS[at % COLOURS.len()], top + 13.0 * at as f64);
        let place = |(share, value): &(f64, f64)| {
            format!("{:.0} {:.0}", left + (right - left) * share, bottom - (bottom - top) * value / most)
        };
        let path: Vec<String> = points.iter().map(place).collect();
        let _ = write!(svg, "<path d=\"M{}\" class=\"l\" stroke=\"{colour}\"/>", path.join("L"));
        let _ = write!(
            svg,
            "<path d=\"M{0} {y:.0}h10\" stroke=\"{colour}\" stroke-width=\"3\"/><text x=\"{1}\" y=\"{2:.0}\" class=\"a\">{name}</text>",
            right + 10.0,
            right + 24.0,
            y + 4.0
        );
    }
    svg
}

/// Returns the end of an axis for values up to `most`.
fn scale(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0].map(|step| step * power).into_iter().find(|end| *end >= most).unwrap()
}

/// Returns a value with its unit, as the dashboard shows it.
fn shown(value: f64, unit: &str) -> String {
    let short = |value: f64| {
        let digits = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            3
        };
        let text = format!("{value:.digits$}");
        if digits == 0 { text } else { text.trim_end_matches('0').trim_end_matches('.').to_owned() }
    };
    match unit {
        "percentunit" => format!("{} %", short(value * 100.0)),
        "bytes" => format!("{} MiB", short(value / MIB)),
        "ops" => format!("{}/s", short(value)),
        "s" if value >= 172_800.0 => format!("{} days", short((value / 86_400.0).floor())),
        "s" if value >= 120.0 => format!("{} min", short((value / 6.0).round() / 10.0)),
        "s" if value >= 10.0 => format!("{value:.0} s"),
        "s" if value >= 1.0 || value == 0.0 => format!("{} s", short(value)),
        "s" => format!("{} ms", short(value * 1000.0)),
        _ => short(value),
    }
}
