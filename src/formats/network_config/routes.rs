//! The routes of a device.

use super::converter::Converter;
use crate::diagnostic::{Diagnostic, FieldPath, Severity};
use crate::formats::convert::{self, WrittenRoute};
use crate::formats::reader::Members;
use crate::formats::value::{Object, Scalar, Value};
use crate::network::{Family, Route};

/// All members of a route in both versions, including members with a separate diagnostic.
const ROUTE_MEMBERS: &[&str] = &[
    "advertised-receive-window",
    "congestion-window",
    "destination",
    "from",
    "gateway",
    "id",
    "metric",
    "mtu",
    "netmask",
    "network",
    "on-link",
    "prefix",
    "scope",
    "table",
    "to",
    "type",
    "via",
];

// === impl Converter ===

impl Converter<'_, '_> {
    /// Reads the routes of a device or a subnet. The destination `default` belongs to `family` when the route has no
    /// gateway.
    pub(super) fn routes(
        &mut self,
        parent: &Object,
        path: &FieldPath<'_>,
        family: Option<Family>,
        routes: &mut Vec<Route>,
    ) {
        let list = path.field("routes");
        for (index, value) in self.reader.values(parent, (path, "routes"), Severity::Error).iter().enumerate() {
            let path = list.index(index);
            match value {
                Value::Object(object) => routes.extend(self.route(object, &path, family)),
                other => self.diagnostics().push(Diagnostic::error(path, "invalid item", other, "an object")),
            }
        }
    }

    /// Reads a route. The names of both versions are accepted.
    pub(super) fn route(&mut self, object: &Object, path: &FieldPath<'_>, family: Option<Family>) -> Option<Route> {
        let destination = member(object, &[self.dialect.destination, "network", "destination", "to"]);
        let netmask = member(object, &["netmask", "prefix"]);
        let gateway = member(object, &["via", "gateway"]);
        let metric = member(object, &["metric"]);
        let written = WrittenRoute {
            destination: (destination.0, destination.1.as_ref()),
            netmask: (netmask.0, netmask.1.as_ref()),
            gateway: (gateway.0, gateway.1.as_ref()),
            metric: (metric.0, metric.1.as_ref()),
        };
        let route = convert::route(self.diagnostics(), path, &written, family);
        let on_link = self.reader.switch(object, (path, "on-link"), Severity::Warning).unwrap_or(false);
        let table = self.table(object, path);
        let members = Members { named: [self.dialect.route_members, &[]], others: ROUTE_MEMBERS };
        self.reader.report_unknown_members(object, path, members, Severity::Warning, "");
        for name in ["type", "scope", "from", "mtu", "advertised-receive-window", "congestion-window"] {
            // In version 1, a route of the machine is an item of the list `config` with the type `route`.
            let is_usual =
                |value: &&Value| matches!(value, Value::String(word) if word == "unicast" || word == "route");
            let Some(value) = object.get(name).filter(|value| !is_usual(value)) else { continue };
            let is_type = name == "type";
            let because = if is_type { "only unicast routes are supported" } else { "glowplug does not support it" };
            self.diagnostics().push(Diagnostic::ignored(path.field(name), value, because));
            // A route of another type, such as `blackhole`, must not become a normal route.
            if is_type {
                return None;
            }
        }
        let mut route = route?;
        route.on_link = on_link;
        route.table = table;
        Some(route)
    }

    /// Reads the number of a routing table. `None`: the main table.
    pub(super) fn table(&mut self, object: &Object, path: &FieldPath<'_>) -> Option<u32> {
        let written = object.get("table").and_then(Scalar::of)?;
        let table = written.integer().and_then(|table| u32::try_from(table).ok());
        if table.is_none() {
            let expected = "a number from 0 to 4294967295; the main table is used instead";
            self.diagnostics().push(Diagnostic::warning(path.field("table"), "invalid table", &written, expected));
        }
        // 254 is the number of the main table.
        table.filter(|table| *table != 254)
    }
}

/// Returns the first of these names whose member has a value, and the value. If no member has a value, returns the
/// first name and `None`.
pub(super) fn member(object: &Object, names: &[&'static str]) -> (&'static str, Option<Scalar>) {
    let given = |name: &&'static str| Some((*name, Some(Scalar::of(object.get(name)?)?)));
    names.iter().find_map(given).unwrap_or((names[0], None))
}
