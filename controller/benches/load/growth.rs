//! Measures what one more machine costs in clusters of several sizes, and how long a leader needs to start. Command:
//! `make bench-growth`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use tokio::time::sleep;

use super::support::Cluster;
use super::support::real::RealServer;
use super::{
    Fleet, SCALE_POOLS, addresses_in, megabytes, memory, microseconds, milliseconds, percentile, processor_time, row,
    run, until_idle, until_ready, until_served, version,
};

/// Number of machines that are created one after the other at each size.
const MORE: usize = 200;
/// Titles of the charts, each with its unit. Each chart shows one figure for all sizes.
const CHARTS: [&str; 4] = [
    "one more machine, processor time, ms",
    "one more machine to its Secret, median, ms",
    "start until /readyz, s",
    "memory of the leader, MB",
];
/// Width and height of a chart.
const CHART: (f64, f64) = (330.0, 210.0);

/// Measures the controller with each of these numbers of machines, and draws the figures into a file. `sizes` must be
/// in ascending order.
pub(super) async fn growth(assets: &Path, sizes: &[usize], picture_file: &Path) {
    let server = RealServer::start(assets).await;
    let cluster = Cluster::new(server.config()).await;
    let version = version(&cluster).await;
    row("kube-apiserver", &version, "");
    let most = sizes.iter().max().expect("SIZES: no number");
    let mut fleets = Vec::new();
    for _ in 0..SCALE_POOLS {
        fleets.push(Fleet::with(&cluster, addresses_in(1, *most)).await);
    }
    let (mut program, [_, health]) = run(&server, &[]);
    until_ready(health).await;
    let mut figures = Vec::new();
    for size in sizes {
        let each = (size / SCALE_POOLS).saturating_sub(fleets[0].count);
        stream::iter(&mut fleets).for_each_concurrent(16, |fleet| fleet.create(each)).await;
        until_served(&cluster, fleets.iter().map(|fleet| fleet.count).sum()).await;
        until_idle(&server).await;
        until_quiet(&program).await;
        row("machines", &fleets.iter().map(|fleet| fleet.count).sum::<usize>().to_string(), "");

        let (used, mut times) = (processor_time(&program), Vec::new());
        for n in 0..MORE {
            times.push(fleets[n * 7 % SCALE_POOLS].serve(1, 1).await[0]);
        }
        let used = (processor_time(&program) - used) / MORE as u32;
        let [median, last] = [50, 99].map(|percent| percentile(&times, percent));
        row("one more VirtualMachine to its Secret, p50", &milliseconds(median), "");
        row("one more VirtualMachine to its Secret, p99", &milliseconds(last), "");
        row("processor time of the controller for this machine", &microseconds(used), "");
        program.kill().unwrap();
        program.wait().unwrap();

        let began = Instant::now();
        let health;
        (program, [_, health]) = run(&server, &[]);
        until_ready(health).await;
        let time = began.elapsed();
        row("start with served machines until /readyz", &milliseconds(time), "");
        row("processor time of the controller for this start", &milliseconds(processor_time(&program)), "");
        let largest = memory(&program, "VmHWM:");
        row("largest memory of this start", &megabytes(largest), "");
        until_quiet(&program).await;
        row("processor time until each machine was compared", &milliseconds(processor_time(&program)), "");
        let seconds = |time: Duration| time.as_secs_f64();
        figures.push((*size as f64, [seconds(used) * 1e3, seconds(median) * 1e3, seconds(time), largest as f64 / 1e6]));
    }
    program.kill().unwrap();
    program.wait().unwrap();
    fs::write(picture_file, picture(&version, &figures)).unwrap();
}

/// Waits until a program hardly uses the processor. After a start, the leader still compares the network data of each
/// machine for some time.
async fn until_quiet(program: &Child) {
    let mut last = processor_time(program);
    loop {
        sleep(Duration::from_secs(5)).await;
        let now = processor_time(program);
        if now - last < Duration::from_millis(250) {
            return;
        }
        last = now;
    }
}

/// Draws one chart for each figure. The x-axis is the number of machines, and the y-axis is the figure. Both axes begin
/// at 0.
fn picture(version: &str, figures: &[(f64, [f64; CHARTS.len()])]) -> String {
    let (width, height) = (CHART.0 * 2.0, CHART.1 * 2.0 + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\">\
         <title>What a machine costs in clusters of several sizes, with kube-apiserver {version}</title>\
         <style>.t{{font-size:13px;font-weight:600;fill:#24292e}}.a{{font-size:11px;fill:#55606e}}.g{{stroke:#d8dbe2;fill:none}}\
         .l{{fill:none;stroke:#3b7dd8;stroke-width:2}}.p{{fill:#3b7dd8}}</style>\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let right = figures.iter().map(|(size, _)| *size).fold(0.0, f64::max);
    for (at, title) in CHARTS.iter().enumerate() {
        let (x, y) = (CHART.0 * (at % 2) as f64, CHART.1 * (at / 2) as f64);
        let top = figures.iter().map(|(_, figures)| figures[at]).fold(0.0, f64::max);
        let place = |size: f64, figure: f64| (30.0 + 260.0 * size / right, 180.0 - 130.0 * figure / top);
        let points: Vec<((f64, f64), f64)> =
            figures.iter().map(|(size, figures)| (place(*size, figures[at]), figures[at])).collect();
        let path: Vec<String> = points.iter().map(|((x, y), _)| format!("{x:.0} {y:.0}")).collect();
        let _ = write!(
            svg,
            "<g transform=\"translate({x} {y})\"><text x=\"20\" y=\"24\" class=\"t\">{title}</text>\
             <path d=\"M30 40V180H300\" class=\"g\"/><path d=\"M{}\" class=\"l\"/>",
            path.join("L")
        );
        for ((x, y), figure) in points {
            let digits = usize::from(figure < 10.0);
            let _ = write!(
                svg,
                "<circle cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"3\" class=\"p\"/>\
                 <text x=\"{x:.0}\" y=\"{:.0}\" class=\"a\" text-anchor=\"middle\">{figure:.digits$}</text>",
                y - 8.0
            );
        }
        for (size, _) in figures {
            let _ = write!(
                svg,
                "<text x=\"{:.0}\" y=\"196\" class=\"a\" text-anchor=\"middle\">{}</text>",
                place(*size, 0.0).0,
                size / 1000.0
            );
        }
        svg += "</g>\n";
    }
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" class=\"a\" text-anchor=\"middle\">thousands of machines in {SCALE_POOLS} pools, kube-apiserver {version}</text>",
        width / 2.0,
        height - 8.0
    );
    svg + "</svg>\n"
}
