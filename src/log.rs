//! The logger of the programs. The logger writes one line for each event to standard error, in the format that journald
//! reads.
//!
//! A message is a constant string in lower case; values follow as `key=value`. If standard error is not a terminal,
//! each line begins with the priority that journald reads (sd-daemon(3)): `<6>found config drive device=/dev/vdb`. If
//! debug messages are logged, each line ends with `monotonic=` and the seconds since the start of the kernel. systemd's
//! `…TimestampMonotonic` uses the same clock.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use nix::time::{ClockId, clock_gettime};
use slog::{Drain, KV, Key, Level, Logger, Never, OwnedKVList, Record, Serializer, o};

/// Returns a logger that writes to standard error, and drops messages below the level `least`.
pub fn to_standard_error(least: Level) -> Logger {
    let priorities = !io::stderr().is_terminal();
    Logger::root(StandardError { least, priorities }.ignore_res(), o!())
}

struct StandardError {
    least: Level,
    priorities: bool,
}

impl Drain for StandardError {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        if !record.level().is_at_least(self.least) {
            return Ok(());
        }
        let mut keys = Keys(Vec::new());
        // If a key cannot be written, this key and the keys after it are left out: there is no other place to report
        // the error.
        let _ = record.kv().serialize(record, &mut keys).and_then(|()| values.serialize(record, &mut keys));
        let mut line = String::new();
        if self.priorities {
            line.push_str(priority(record.level()));
        } else if record.level().is_at_least(Level::Warning) {
            line.push_str(record.level().as_str());
            line.push_str(": ");
        }
        line.push_str(&record.msg().to_string());
        // slog passes the last key first.
        for key in keys.0.iter().rev() {
            line.push(' ');
            line.push_str(key);
        }
        if Level::Debug.is_at_least(self.least)
            && let Ok(now) = clock_gettime(ClockId::CLOCK_MONOTONIC)
        {
            line.push_str(&format!(" monotonic={}.{:06}", now.tv_sec(), now.tv_nsec() / 1000));
        }
        line.push('\n');
        let _ = io::stderr().write_all(line.as_bytes());
        Ok(())
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::Critical => "<2>",
        Level::Error => "<3>",
        Level::Warning => "<4>",
        Level::Info => "<6>",
        Level::Debug | Level::Trace => "<7>",
    }
}

/// Pairs such as `key=value`, the last pair first. A value that is not one word is quoted.
struct Keys(Vec<String>);

impl Serializer for Keys {
    fn emit_arguments(&mut self, key: Key, value: &fmt::Arguments<'_>) -> slog::Result {
        let value = value.to_string();
        // A value from a drive must not start another line or another key.
        let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
        let is_word = !value.is_empty() && value.chars().all(plain);
        self.0.push(if is_word { format!("{key}={value}") } else { format!("{key}={value:?}") });
        Ok(())
    }
}
