//! The standard metrics of a process, under the names that Prometheus uses. Linux reports their values in `/proc`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Ticks per second of the times in `/proc`: `USER_HZ`, which is 100 on every architecture of this program.
const TICKS: f64 = 100.0;

/// Returns the metrics in the OpenMetrics text format, without the last line `# EOF`. `proc` is the folder `/proc`.
/// Leaves out a metric that cannot be read.
pub(super) fn text(proc: &Path) -> String {
    let mut text = String::new();
    let read = |path: &str| fs::read_to_string(proc.join(path)).ok();
    let mut add = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        let Some(value) = value else { return };
        let suffix = if kind == "counter" { "_total" } else { "" };
        // Writing to a `String` cannot fail.
        let _ = write!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name}{suffix} {value}\n");
    };
    let stat = read("self/stat");
    // The name of the program may contain spaces and parentheses. After the name comes field 3, the state of the
    // process.
    let fields: Option<Vec<f64>> = stat
        .as_deref()
        .and_then(|stat| stat.rsplit_once(") "))
        .map(|(_, fields)| fields.split_whitespace().map(|field| field.parse().unwrap_or_default()).collect());
    let field = |number: usize| fields.as_ref().and_then(|fields| fields.get(number - 3)).copied();
    let cpu = field(14).zip(field(15)).map(|(user, system)| (user + system) / TICKS);
    add("process_cpu_seconds", "counter", "CPU time of the process, in user and system mode", cpu);
    let boot = read("stat").and_then(|stat| value_of(&stat, "btime ", 1));
    let start = boot.zip(field(22)).map(|(boot, ticks)| boot + ticks / TICKS);
    add("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970", start);
    let status = read("self/status").unwrap_or_default();
    let bytes = |name: &str| value_of(&status, name, 1).map(|kib| kib * 1024.0);
    add("process_resident_memory_bytes", "gauge", "Resident memory of the process", bytes("VmRSS:"));
    add("process_virtual_memory_bytes", "gauge", "Virtual memory of the process", bytes("VmSize:"));
    // One of these descriptors is open only for reading the folder.
    let open = fs::read_dir(proc.join("self/fd")).ok().map(|open| open.count().saturating_sub(1));
    let open = open.and_then(|open| u32::try_from(open).ok()).map(f64::from);
    add("process_open_fds", "gauge", "Open file descriptors", open);
    let most = read("self/limits").and_then(|limits| value_of(&limits, "Max open files", 3));
    add("process_max_fds", "gauge", "Largest number of open file descriptors", most);
    text
}

/// Finds the line that starts with `name`, and returns the number in the word with this index.
fn value_of(text: &str, name: &str, word: usize) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(word)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metrics_of_the_process_have_the_values_of_the_files_in_proc() {
        let proc = tempfile::tempdir().unwrap();
        let own = proc.path().join("self");
        fs::create_dir_all(own.join("fd")).unwrap();
        (0..4).for_each(|n| fs::write(own.join("fd").join(n.to_string()), "").unwrap());
        let stat = "7 (a) (b c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 250 1 2";
        fs::write(own.join("stat"), stat).unwrap();
        fs::write(proc.path().join("stat"), "cpu 1 2\nbtime 1700000000\nprocesses 3\n").unwrap();
        fs::write(own.join("status"), "Name:\tb c\nVmSize:\t    20 kB\nVmRSS:\t    10 kB\n").unwrap();
        fs::write(own.join("limits"), "Limit  Soft  Hard\nMax open files            1024       4096    files\n")
            .unwrap();
        let text = text(proc.path());
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "process_cpu_seconds_total 2",
            "process_start_time_seconds 1700000002.5",
            "process_resident_memory_bytes 10240",
            "process_virtual_memory_bytes 20480",
            "process_open_fds 3",
            "process_max_fds 1024",
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn a_metric_of_the_process_that_cannot_be_read_is_left_out() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("self")).unwrap();
        fs::write(proc.path().join("self/limits"), "Max open files            unlimited\n").unwrap();
        assert_eq!(text(proc.path()), "");
    }
}
