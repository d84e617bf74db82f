//! Checks the alerts and the dashboard against the metrics of a running program.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use glowplug_controller::kinds::mac_pool::{MACPool, MacPoolSpec};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::support::controller::Site;
use crate::support::hosted::poll;
use crate::support::http::get;
use crate::support::manifests::{config, documents};
use crate::support::program::Program;
use crate::support::promql::{Expr, History, Labels, Scrape};
use crate::support::replica::write_certificate;
use crate::support::start_server;

/// Labels that Prometheus adds to each series of a target.
const TARGET: [(&str, &str); 3] = [("instance", "10.0.0.2:8443"), ("pod", "manager-0"), ("job", "glowplug-controller")];

/// An alert or a query of a panel.
#[derive(Debug)]
struct Query {
    name: String,
    text: String,
    expr: Expr,
    /// Labels that the annotations of an alert or the legend of a panel show.
    shown: BTreeSet<String>,
}

/// Returns the alerts, in the order of the file.
fn alerts() -> Vec<Query> {
    let rules = documents(&config("prometheus/alerts.yaml")).remove(0);
    let rules = rules["spec"]["groups"][0]["rules"].as_array().unwrap().iter();
    let query = |rule: &Value| {
        let annotations = rule["annotations"].to_string();
        let shown = annotations.split("$labels.").skip(1).map(first_word);
        query(rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap(), shown)
    };
    rules.map(query).collect()
}

/// Returns the queries of the dashboard, in the order of the panels.
fn panels() -> Vec<Query> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/prometheus/dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let legend = target["legendFormat"].as_str().unwrap();
            let shown = legend.split("{{").skip(1).map(first_word);
            queries.push(query(panel["title"].as_str().unwrap(), target["expr"].as_str().unwrap(), shown));
        }
    }
    queries
}

fn query(name: &str, text: &str, shown: impl Iterator<Item = String>) -> Query {
    let expr = Expr::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    Query { name: name.to_owned(), text: text.to_owned(), expr, shown: shown.collect() }
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

/// Returns the problems of a query: metrics and labels that the scraped program does not have.
fn problems(query: &Query, scrape: &Scrape) -> Vec<String> {
    // Metrics whose names begin with `apiserver_` come from the API server.
    let is_of_program = |name: &str| !name.starts_with("apiserver_");
    let mut problems = Vec::new();
    for selector in query.expr.selectors().into_iter().filter(|selector| is_of_program(&selector.name)) {
        let found = scrape.select(selector);
        if found.is_empty() {
            problems.push(format!("{}: no series of {selector:?}", query.name));
        }
        let has = |label: &String| found.iter().all(|(labels, _)| labels.contains_key(label));
        let missing = selector.matchers.iter().map(|(label, ..)| label).filter(|label| !has(label));
        problems.extend(missing.map(|label| format!("{}: {} has no label {label}", query.name, selector.name)));
    }
    for (label, selectors) in query.expr.labels() {
        for selector in selectors.into_iter().filter(|selector| is_of_program(&selector.name)) {
            if scrape.select(selector).iter().any(|(labels, _)| !labels.contains_key(label)) {
                problems.push(format!("{}: {} has no label {label}", query.name, selector.name));
            }
        }
    }
    let named: BTreeSet<&String> = query.expr.labels().into_iter().map(|(label, _)| label).collect();
    let is_known = |shown: &&String| named.contains(shown) || TARGET.iter().any(|(label, _)| label == shown);
    let unknown = query.shown.iter().filter(|shown| !is_known(shown));
    problems
        .extend(unknown.map(|shown| format!("{}: shows the label {shown}, which {} lacks", query.name, query.text)));
    problems
}

#[tokio::test]
async fn every_alert_and_panel_has_data_and_no_alert_fires_in_a_healthy_cluster() {
    let (_server, cluster) = start_server().await;
    let folder = tempfile::tempdir().unwrap();
    write_certificate(folder.path());
    let site = Site::new(&cluster).await;
    site.pool("p", &["10.0.0.16/28"]).await;
    let ranges = vec!["0a:00:00:00:00:00-0a:00:00:00:00:0f".to_owned()];
    let spec = MacPoolSpec { ranges, namespaces: vec![site.namespace.clone()], ..MacPoolSpec::default() };
    let macs: Api<MACPool> = Api::all(cluster.client());
    macs.create(&PostParams::default(), &MACPool::new("workers", spec)).await.unwrap();
    let program = Program::start(cluster.config(), folder.path(), "");
    site.claim("a", &json!({})).await;
    site.address_of("a").await;
    let pool = format!("{}/p", site.namespace);
    let has_pools = |text: &str| {
        let used = |line: &str| line.contains(&pool) && line.contains("state=\"free\"") && line.ends_with(" 15");
        text.lines().any(used)
            && text.contains("glowplug_macpool_waiting_machines{")
            && text.contains("glowplug_leading 1\n")
    };
    let text = poll("metrics of the pools", async || {
        let (_, text) = get(program.diagnostics, "/metrics", None).await;
        has_pools(&text).then_some(text)
    })
    .await;
    // Prometheus must be able to read the whole page. promtool creates a block only from samples with a time.
    let with_time = |line: &str| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1800000000\n"),
    };
    let timed: String = text.lines().map(with_time).collect();
    let blocks = run_promtool(&["tsdb", "create-blocks-from", "openmetrics"], "metrics.txt", &timed);
    assert!(blocks.contains("NUM SERIES"), "{blocks}");
    let now = 1_800_000_000.0;
    let [first, scrape] = [now - 60.0, now].map(|time| Scrape::read(&text, time, &TARGET));
    let queries: Vec<Query> = alerts().into_iter().chain(panels()).collect();
    let problems: Vec<String> = queries.iter().flat_map(|query| problems(query, &scrape)).collect();
    assert_eq!(problems, [] as [&str; 0]);
    // The certificate of the test is valid at the time of the scrape.
    let history = History(vec![first, scrape]);
    let ringing = alerts().into_iter().filter(|alert| !alert.expr.eval(&history, now).is_empty());
    assert_eq!(ringing.map(|alert| alert.name).collect::<Vec<_>>(), [] as [&str; 0]);
}

/// Returns the path of promtool, the program of Prometheus that checks rules and metrics.
fn promtool() -> &'static Path {
    static PROMTOOL: OnceLock<PathBuf> = OnceLock::new();
    PROMTOOL.get_or_init(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promtool");
        let output = Command::new(&script).stderr(Stdio::inherit()).output().unwrap();
        assert!(output.status.success(), "{}: {}", script.display(), output.status);
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    })
}

/// Runs promtool in a folder of its own, with a file of this content as its last argument. Returns what it prints.
fn run_promtool(arguments: &[&str], name: &str, content: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), content).unwrap();
    let output = Command::new(promtool()).args(arguments).arg(name).current_dir(folder.path()).output().unwrap();
    let [printed, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{arguments:?}: {printed}{errors}\n{content}");
    printed + &errors
}

/// Lets promtool evaluate the alerts for these scrapes, and compares the result with the evaluation of these tests. The
/// scrapes are a minute apart.
fn check_with_promtool(history: &History) {
    let scrapes = &history.0;
    let mut series: Vec<(String, Vec<String>)> = Vec::new();
    for (at, scrape) in scrapes.iter().enumerate() {
        for (name, (labels, value)) in scrape.series.iter().flat_map(|(name, all)| all.iter().map(move |it| (name, it)))
        {
            let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
            let name = format!("{name}{{{}}}", labels.join(","));
            let known = series.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
                series.push((name, vec!["_".to_owned(); scrapes.len()]));
                series.len() - 1
            });
            series[known].1[at] = value.to_string();
        }
    }
    let series: Vec<Value> =
        series.iter().map(|(name, values)| json!({"series": name, "values": values.join(" ")})).collect();
    let time = format!("{}m", scrapes.len() - 1);
    let expected = alerts().into_iter().map(|alert| {
        let samples = alert.expr.eval(history, scrapes.last().unwrap().time).into_iter().map(|(labels, value)| {
            let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
            json!({"labels": format!("{{{}}}", labels.join(",")), "value": value})
        });
        json!({"expr": alert.text, "eval_time": time, "exp_samples": samples.collect::<Vec<Value>>()})
    });
    let test = json!({"interval": "1m", "input_series": series, "promql_expr_test": expected.collect::<Vec<Value>>()});
    run_promtool(&["test", "rules"], "test.yaml", &json!({"evaluation_interval": "1m", "tests": [test]}).to_string());
}

#[test]
fn promtool_accepts_the_rules() {
    let rules = documents(&config("prometheus/alerts.yaml")).remove(0)["spec"].to_string();
    let printed = run_promtool(&["check", "rules"], "rules.yaml", &rules);
    assert!(printed.contains(&format!("SUCCESS: {} rules found", alerts().len())), "{printed}");
}

/// Returns the alerts that fire at the last of these scrapes, each alert with its labels. The scrapes are a minute
/// apart.
fn ringing(scrapes: &[&str]) -> Vec<(String, String)> {
    let scrapes = scrapes.iter().zip(0_u32..).map(|(text, minute)| {
        let text = text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
        Scrape::read(&format!("{text}# EOF\n"), f64::from(minute) * 60.0, &[])
    });
    let history = History(scrapes.collect());
    check_with_promtool(&history);
    let now = history.0.last().unwrap().time;
    let labels = |labels: Labels| labels.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
    let of_alert = |alert: Query| {
        let series = alert.expr.eval(&history, now).into_iter();
        series.map(|(series, _)| (alert.name.clone(), labels(series).join(","))).collect::<Vec<_>>()
    };
    alerts().into_iter().flat_map(of_alert).collect()
}

#[test]
fn each_alert_fires_only_in_the_state_that_it_describes() {
    let well = "glowplug_leading 1\nglowplug_certificate_expiry_timestamp_seconds 1000000";
    assert_eq!(ringing(&[well]), []);
    let alone = |scrapes: &[&str], alert: &str, labels: &str| {
        let scrapes: Vec<String> = scrapes.iter().map(|more| format!("{more}\n{well}")).collect();
        let scrapes: Vec<&str> = scrapes.iter().map(String::as_str).collect();
        assert_eq!(ringing(&scrapes), [(alert.to_owned(), labels.to_owned())]);
    };
    let pool = |family: &str, state: &str, number: u32| {
        format!(
            "glowplug_ippool_addresses{{pool=\"c/w\",group=\"c/w\",family=\"{family}\",state=\"{state}\"}} {number}"
        )
    };
    let full = format!(
        "{}\n{}\n{}\n{}\nglowplug_ippool_waiting_machines{{pool=\"c/w\"}} 2",
        pool("IPv4", "free", 0),
        pool("IPv4", "excluded", 9),
        pool("IPv6", "free", 7),
        pool("IPv6", "byRecord", 1),
    );
    alone(&[&full], "GlowplugPoolExhausted", "family=IPv4,pool=c/w");
    let almost = [pool("IPv4", "free", 1), pool("IPv4", "byReport", 10)].join("\n");
    alone(&[&almost], "GlowplugPoolAlmostExhausted", "family=IPv4,group=c/w");
    // The addresses of a pool and its overflow count together.
    let overflow = |free| {
        let overflow = pool("IPv4", "free", free).replace("pool=\"c/w\"", "pool=\"c/o\"");
        format!("{almost}\n{overflow}\n{well}")
    };
    assert_eq!(ringing(&[&overflow(1)]), []);
    assert_eq!(
        ringing(&[&overflow(0)]),
        [("GlowplugPoolAlmostExhausted".to_owned(), "family=IPv4,group=c/w".to_owned())]
    );
    let macs =
        "glowplug_macpool_addresses{pool=\"w\",state=\"free\"} 0\nglowplug_macpool_waiting_machines{pool=\"w\"} 1";
    alone(&[macs], "GlowplugMACPoolExhausted", "pool=w");
    alone(&["glowplug_duplicate_records 1"], "GlowplugDuplicateRecords", "");
    alone(&["glowplug_unreadable_leases{addresses=\"mac\"} 1"], "GlowplugUnreadableLeases", "addresses=mac");
    let webhook = |calls: u32| {
        format!("apiserver_admission_webhook_fail_open_count{{name=\"machine-updates.ipam.glowplug.dev\"}} {calls}")
    };
    alone(&[&webhook(1), &webhook(3)], "GlowplugWebhookNotCalled", "name=machine-updates.ipam.glowplug.dev");
    let passes = |done: u32, failed: u32| {
        let passes =
            |result, number| format!("glowplug_passes_total{{queue=\"machines\",result=\"{result}\"}} {number}");
        [passes("done", done), passes("failed", failed)].join("\n")
    };
    alone(&[&passes(5, 0), &passes(6, 2)], "GlowplugNoProgress", "queue=machines");
    alone(&["glowplug_standstill_seconds 31", "glowplug_standstill_seconds 0"], "GlowplugNoProgress", "");
    let not_leading = "glowplug_leading 0\nglowplug_certificate_expiry_timestamp_seconds 1000000";
    for scrape in [not_leading, "glowplug_certificate_expiry_timestamp_seconds 1000000"] {
        assert_eq!(ringing(&[scrape]), [("GlowplugNotLeading".to_owned(), String::new())]);
    }
    for seconds in [0, 604_799] {
        let expires = format!("glowplug_leading 1\nglowplug_certificate_expiry_timestamp_seconds {seconds}");
        assert_eq!(ringing(&[&expires]), [("GlowplugCertificateExpires".to_owned(), String::new())]);
    }
}

#[test]
fn a_promql_expression_with_a_mistake_is_refused() {
    let refused = |text: &str| Expr::parse(text).unwrap_err();
    assert_eq!(refused("sun by (pool) (a)"), r#"unexpected "by" in "sun by (pool) (a)""#);
    assert_eq!(refused("sum by (pool) (a"), "an expression without its end");
    assert_eq!(refused("a{b=c}"), "no string");
    assert_eq!(refused("rate(a[5])"), "no unit of time");
    assert_eq!(refused("a b"), r#"unexpected "b" in "a b""#);
}
