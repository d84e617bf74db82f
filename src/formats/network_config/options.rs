//! The options of bonds and bridges, with the kernel's names.

use std::borrow::Cow;

use super::converter::{Converter, DeviceKind, Entry};
use crate::diagnostic::{Diagnostic, FieldPath, Severity};
use crate::formats::convert::{self, Reported, WrittenOption};
use crate::formats::reader::switch;
use crate::formats::value::Value;
use crate::network::{BondOptions, BridgeOptions, BridgePort, LinkIndex};

/// Names of options in netplan and ifupdown, with the kernel's name of the same option.
const OPTIONS: &[(&str, &str)] = &[
    ("ageing", "ageing_time"),
    ("aging_time", "ageing_time"),
    ("all_members_active", "all_slaves_active"),
    ("arp_ip_targets", "arp_ip_target"),
    ("bridgeprio", "priority"),
    ("down_delay", "downdelay"),
    ("fail_over_mac_policy", "fail_over_mac"),
    ("fd", "forward_delay"),
    ("gratuitious_arp", "num_grat_arp"),
    ("gratuitous_arp", "num_grat_arp"),
    ("hello", "hello_time"),
    ("learn_packet_interval", "lp_interval"),
    ("maxage", "max_age"),
    ("mii_monitor_interval", "miimon"),
    ("packets_per_member", "packets_per_slave"),
    ("pathcost", "path_cost"),
    ("portprio", "port_priority"),
    ("primary_reselect_policy", "primary_reselect"),
    ("transmit_hash_policy", "xmit_hash_policy"),
    ("up_delay", "updelay"),
];

// === impl Converter ===

impl Converter<'_, '_> {
    /// The options of a bond or a bridge, with the kernel's names.
    fn options<'e>(&mut self, entry: &Entry<'e>) -> Vec<WrittenOption<'e>> {
        let Some(options) = self.reader.object(entry.object, (&entry.path, self.dialect.options), Severity::Warning)
        else {
            return Vec::new();
        };
        let option = |(written, value): (&'e str, &'e Value)| {
            let prefixes = ["bond-", "bond_", "bridge-", "bridge_"];
            let bare = prefixes.iter().find_map(|prefix| written.strip_prefix(prefix)).unwrap_or(written);
            let bare = bare.replace('-', "_");
            let kernels = OPTIONS.iter().find(|(name, _)| *name == bare).map(|(_, kernels)| Cow::Borrowed(*kernels));
            let name = kernels.unwrap_or(Cow::Owned(bare));
            let is_in_seconds = entry.kind == DeviceKind::Bridge || name == "lp_interval";
            let value = duration(value, is_in_seconds).map_or(Cow::Borrowed(value), Cow::Owned);
            (*value != Value::Null).then_some(WrittenOption { written, name, value })
        };
        options.members().into_iter().filter_map(option).collect()
    }

    pub(super) fn bond_options(&mut self, entry: &Entry<'_>, ports: &[LinkIndex]) -> Reported<BondOptions> {
        let options = self.options(entry);
        let path = entry.path.field(self.dialect.options);
        let Self { by_key, reader, .. } = self;
        let port = |wanted: &str| by_key.get(wanted).copied().filter(|port| ports.contains(port));
        convert::bond_options(reader.diagnostics, &path, &options, &port)
    }

    pub(super) fn bridge_options(&mut self, entry: &Entry<'_>, ports: &[LinkIndex]) -> BridgeOptions {
        let written = self.options(entry);
        let path = entry.path.field(self.dialect.options);
        let mut options = BridgeOptions { path: path.path(), ..BridgeOptions::default() };
        options.stp = written.iter().rfind(|option| option.name == "stp").and_then(|option| switch(&option.value));
        for option in &written {
            let (path, value) = (path.field(option.written), option.value.as_ref());
            let (field, least, most) = match option.name.as_ref() {
                "stp" => {
                    if options.stp.is_none() {
                        self.diagnostics().push(Diagnostic::warning(path, "invalid switch", value, "true or false"));
                    }
                    continue;
                }
                "path_cost" | "port_priority" => {
                    self.bridge_ports(&path, option, ports, &mut options.ports);
                    continue;
                }
                // 0 is outside the range of `forward_delay`. Documents often have 0 and do not enable the Spanning Tree
                // Protocol. Then no port waits, and the value has no effect.
                "forward_delay" if options.stp != Some(true) && value.to_string() == "0" => continue,
                // These options are ignored without a diagnostic: ifupdown's waiting times and garbage collection
                // interval, and a second list of the ports.
                "gcint" | "maxwait" | "ports" | "waitport" => continue,
                "priority" => {
                    options.priority = self.number(&path, value, 0, 65_535).and_then(|number| number.try_into().ok());
                    continue;
                }
                "ageing_time" => (&mut options.ageing_time, 0, u32::MAX),
                "forward_delay" => (&mut options.forward_delay, 2, 30),
                "hello_time" => (&mut options.hello_time, 1, 10),
                "max_age" => (&mut options.max_age, 6, 40),
                _ => {
                    let expected = "an option of netplan's bridges";
                    self.diagnostics().push(Diagnostic::warning(path, "unknown bridge option", value, expected));
                    continue;
                }
            };
            *field = self.number(&path, value, least, most);
        }
        options
    }

    fn number(&mut self, path: &FieldPath<'_>, value: &Value, least: u32, most: u32) -> Option<u32> {
        let number = value.to_string().parse().ok().filter(|number| (least..=most).contains(number));
        if number.is_none() {
            let expected = format!("a number from {least} to {most}");
            self.diagnostics().push(Diagnostic::warning(path, "invalid value", value, &expected));
        }
        number
    }

    /// Reads the options of single bridge ports: a mapping from port to number, or ifupdown's strings of a port and a
    /// number.
    fn bridge_ports(
        &mut self,
        path: &FieldPath<'_>,
        option: &WrittenOption<'_>,
        ports: &[LinkIndex],
        options: &mut Vec<BridgePort>,
    ) {
        let is_cost = option.name == "path_cost";
        let pair = |text: &Value| {
            let text = text.to_string();
            let (port, number) = text.split_once(' ').unwrap_or((&text, ""));
            (port.to_owned(), Value::String(number.trim().to_owned()))
        };
        let pairs: Vec<(String, Value)> = match option.value.as_ref() {
            Value::Object(pairs) => {
                pairs.members().into_iter().map(|(port, number)| (port.to_owned(), number.clone())).collect()
            }
            Value::Array(pairs) => pairs.iter().map(pair).collect(),
            other => vec![pair(other)],
        };
        for (port, number) in pairs {
            let path = path.field(&port);
            let Some(at) = self.by_key.get(&port).copied().filter(|at| ports.contains(at)) else {
                self.diagnostics().push(Diagnostic::warning(path, "unknown member", &port, "a member of this link"));
                continue;
            };
            let (least, most) = if is_cost { (1, 65_535) } else { (0, 63) };
            let Some(number) = self.number(&path, &number, least, most) else { continue };
            let index = options.iter().position(|options| options.port == at).unwrap_or_else(|| {
                options.push(BridgePort { port: at, path_cost: None, priority: None });
                options.len() - 1
            });
            if is_cost {
                options[index].path_cost = number.try_into().ok();
            } else {
                options[index].priority = number.try_into().ok();
            }
        }
    }
}

/// Converts a time with a unit to a number of seconds or milliseconds; `None` for a value that is not a whole number
/// with the unit `s` or `ms`.
fn duration(value: &Value, is_in_seconds: bool) -> Option<Value> {
    let Value::String(text) = value else { return None };
    let (number, is_milli) = match text.strip_suffix("ms") {
        Some(number) => (number, true),
        None => (text.strip_suffix('s')?, false),
    };
    let number: i64 = number.parse().ok()?;
    Some(Value::Integer(match (is_milli, is_in_seconds) {
        (true, true) => number / 1000,
        (false, false) => number.saturating_mul(1000),
        _ => number,
    }))
}
