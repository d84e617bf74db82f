//! Reads the leases of a cluster from a file: the `StaticIPLease`s of the controller, as
//! `kubectl get staticipleases -o yaml` prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::change::Change;
use super::claim::{Claimant, HolderKind, Lease, Machine, is_object_name};
use super::lease_name::lease_name;
use super::ledger::{Ledger, LedgerError, MemoryLedger};
use super::members::Members;
use super::records::Inventory;
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};
use crate::network::InterfaceName;

/// The network in the leases of MAC addresses. No network of IP addresses has this name.
pub const MAC_NETWORK: &str = "mac";

/// The leases of a cluster.
#[derive(Debug, Default)]
pub struct Leases {
    leases: BTreeMap<(Arc<str>, IpAddr), Lease>,
    /// Number of held leases of MAC addresses.
    pub mac_addresses: usize,
}

/// Reads the leases of a file, as JSON or YAML: a list of StaticIPLeases, a single StaticIPLease, or several YAML
/// documents.
///
/// A lease with an error is left out. An unknown member is a warning: a later version of the controller may have
/// written the member.
#[must_use]
pub fn read_leases(file: &[u8]) -> (Leases, Diagnostics) {
    let mut reader = Reader::default();
    let path = FieldPath::Document;
    match value::parse_documents(file) {
        Ok(documents) => match documents.as_slice() {
            [document] => reader.document(document, path),
            documents => {
                let path = path.field("documents");
                for (at, document) in documents.iter().enumerate() {
                    reader.document(document, path.index(at));
                }
            }
        },
        Err(diagnostic) => reader.diagnostics.push(diagnostic),
    }
    let is_list_of_none = reader.has_list && !reader.has_others;
    if reader.count == 0 && !is_list_of_none && !reader.diagnostics.has_errors() {
        let diagnostic = Diagnostic::without_value(Severity::Error, path, "no lease in it", EXPECTED);
        reader.diagnostics.push(diagnostic);
    }
    (reader.leases, reader.diagnostics)
}

/// Description of a valid file, for messages.
const EXPECTED: &str = "StaticIPLeases, or a list of them";

#[derive(Default)]
struct Reader {
    leases: Leases,
    /// Number of StaticIPLeases in the file.
    count: usize,
    /// Whether the file has a list. The list of a cluster without leases is empty.
    has_list: bool,
    /// Whether the file has objects of other kinds.
    has_others: bool,
    diagnostics: Diagnostics,
}

// === impl Reader ===

impl Reader {
    fn document(&mut self, document: &Value, path: FieldPath<'_>) {
        let list = match document {
            Value::Object(object) => object.get("items").is_some().then_some(object),
            Value::Null => return,
            _ => None,
        };
        let Some(object) = list else { return self.item(document, path) };
        let is_page = |metadata: &Object| matches!(metadata.get("continue"), Some(Value::String(it)) if !it.is_empty());
        if object.object("metadata").is_some_and(is_page) {
            let expected = "the whole list: the other pages have further leases";
            let path = path.field("metadata").field("continue").path();
            self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "page of a list", expected));
        }
        let mut members = Members::new(object, path);
        let items = members.list("items", &mut self.diagnostics);
        let path = path.field("items");
        self.has_list = true;
        for (at, item) in items.iter().enumerate() {
            self.item(item, path.index(at));
        }
    }

    fn item(&mut self, item: &Value, path: FieldPath<'_>) {
        match item {
            Value::Object(object) => match object.get("kind") {
                Some(Value::String(kind)) if kind == "StaticIPLease" => {
                    self.count += 1;
                    self.lease(object, path);
                }
                Some(kind) => {
                    self.has_others = true;
                    let diagnostic = Diagnostic::warning(path.field("kind"), "no lease", kind, "StaticIPLease");
                    self.diagnostics.push(diagnostic);
                }
                None => {
                    let path = path.field("kind");
                    self.diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", "StaticIPLease"));
                }
            },
            other => self.diagnostics.push(Diagnostic::error(path, "invalid lease", other, "an object")),
        }
    }

    fn lease(&mut self, object: &Object, path: FieldPath<'_>) {
        let diagnostics = &mut self.diagnostics;
        let (spec_path, empty) = (path.field("spec"), Object::EMPTY);
        let mut spec = Members::new(object.object("spec").unwrap_or(&empty), spec_path);
        let network = spec.required_text("network", "the network of the address", diagnostics);
        if network.as_deref() == Some(MAC_NETWORK) {
            let is_held = !spec.has("released");
            self.leases.mac_addresses += usize::from(is_held);
            return;
        }
        let address = spec.required_text("address", "an IP address", diagnostics);
        let address = address.and_then(|text| {
            let parsed = text.parse::<IpAddr>();
            parsed.map_err(|_| invalid(spec_path.field("address"), "address", &text, "an IP address", diagnostics)).ok()
        });
        let prefix = spec.get("prefix");
        let pool = spec.required_text("pool", "the name of a pool", diagnostics);
        let holder = spec.object("holder", diagnostics);
        let since = time(&mut spec, "since", diagnostics);
        let released = time(&mut spec, "released", diagnostics);
        let reuse_after = time(&mut spec, "reuseAfter", diagnostics);
        let migrated = time(&mut spec, "migrated", diagnostics);
        spec.allow(&["secrets"]);
        for (name, expected) in [("holder", "the holder of the lease"), ("since", "a time of RFC 3339")] {
            if !spec.has(name) {
                let path = spec_path.field(name);
                diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
            }
        }
        spec.finish(Severity::Warning, diagnostics);
        let claimant = holder.and_then(|holder| claimant(holder, spec_path.field("holder"), diagnostics));
        let (Some(network), Some(address)) = (network, address) else { return };
        let longest = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            Some(Value::Integer(prefix)) => u8::try_from(*prefix).ok().filter(|prefix| *prefix <= longest),
            _ => None,
        };
        if prefix.is_none() {
            let (path, expected) = (spec_path.field("prefix"), format!("a number from 0 to {longest}"));
            diagnostics.push(Diagnostic::without_value(Severity::Error, path, "invalid prefix length", &expected));
        }
        match (lease_name(address, &network), object.object("metadata").and_then(|metadata| metadata.get("name"))) {
            (Ok(expected), Some(Value::String(name))) if *name == expected => {}
            (Ok(expected), Some(name)) => {
                let (path, expected) =
                    (path.field("metadata").field("name").path(), format!("{expected:?} as in spec"));
                return diagnostics.push(Diagnostic::error(path, "name of another lease", name, &expected));
            }
            (Ok(_), None) => {
                let (path, expected) = (path.field("metadata").field("name").path(), "the name of the lease");
                return diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
            }
            (Err(_), _) => {
                let expected = "namespace/name or default";
                let path = spec_path.field("network");
                return diagnostics.push(Diagnostic::error(path, "invalid network", network, expected));
            }
        }
        let (Some(claimant), Some(pool), Some(prefix), Some(since)) = (claimant, pool, prefix, since) else { return };
        let (claimant, pool) = (Arc::new(claimant), pool.as_str().into());
        let secrets = BTreeSet::new();
        let lease = Lease { claimant, pool, prefix, since, released, reuse_after, secrets, migrated };
        if self.leases.leases.insert((network.as_str().into(), address), lease).is_some() {
            let expected = "one lease of an address";
            diagnostics.push(Diagnostic::error(path, "second lease of the address", address, expected));
        }
    }
}

/// Reads a member with a time. `None`: the member is missing, or has an error.
fn time(members: &mut Members<'_>, name: &'static str, diagnostics: &mut Diagnostics) -> Option<Timestamp> {
    let text = members.text(name, diagnostics)?;
    let parsed = text.parse();
    parsed.map_err(|_| invalid(members.path.field(name), "time", &text, "a time of RFC 3339", diagnostics)).ok()
}

fn invalid(path: FieldPath<'_>, what: &str, text: impl fmt::Display, expected: &str, diagnostics: &mut Diagnostics) {
    diagnostics.push(Diagnostic::error(path, &format!("invalid {what}"), text, expected));
}

/// Reads the holder of a lease.
fn claimant(holder: &Object, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<Claimant> {
    let mut members = Members::new(holder, path);
    let kind = members.required_text("kind", "the kind of the holder", diagnostics);
    let mut text = |name: &'static str| members.required_text(name, &format!("the {name} of the holder"), diagnostics);
    let (namespace, name, uid, interface) = (text("namespace"), text("name"), text("uid"), text("interface"));
    let vm_namespace = members.text("virtualMachineNamespace", diagnostics);
    members.finish(Severity::Warning, diagnostics);
    let kind = kind.and_then(|text| {
        let kind: Result<HolderKind, _> = serde_json::from_value(text.as_str().into());
        let expected = "KubevirtMachine, VirtualMachine, IPAddressClaim or IPAMClaim";
        kind.map_err(|_| invalid(path.field("kind"), "kind", &text, expected, diagnostics)).ok()
    });
    let interface = interface.and_then(|text| {
        let interface: Result<InterfaceName, _> = text.parse();
        let expected = InterfaceName::EXPECTED;
        interface.map_err(|_| invalid(path.field("interface"), "interface name", &text, expected, diagnostics)).ok()
    });
    let names =
        [("namespace", Some(&namespace)), ("name", Some(&name)), ("virtualMachineNamespace", Some(&vm_namespace))];
    let mut has_invalid_name = false;
    for (member, text) in names.into_iter().filter_map(|(member, text)| Some((member, text?.as_ref()?))) {
        if !is_object_name(text) {
            let expected = "lower case letters, digits, '-' and '.'";
            invalid(path.field(member), "name", text, expected, diagnostics);
            has_invalid_name = true;
        }
    }
    let machine = Machine::new(namespace?, name?, uid?).of_kind(kind?);
    let claimant = Claimant { machine: Machine { vm_namespace, ..machine }, interface: interface? };
    Some(claimant).filter(|_| !has_invalid_name)
}

// === impl Leases ===

impl Leases {
    /// The leases that are held: the network, the address, and the lease.
    pub fn held(&self) -> impl Iterator<Item = (&str, IpAddr, &Lease)> {
        let held = self.leases.iter().filter(|(_, lease)| lease.released.is_none());
        held.map(|((network, address), lease)| (&**network, *address, lease))
    }

    /// Whether there is no lease of an IP address, neither held nor released, and no held lease of a MAC address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty() && self.mac_addresses == 0
    }

    /// Number of the addresses that claims hold.
    #[must_use]
    pub fn of_claims(&self) -> usize {
        self.held().filter(|(_, _, lease)| lease.claimant.machine.kind.is_claim()).count()
    }

    /// Replaces each machine of an inventory by the holder of a lease with the same namespace, name and UID. Then the
    /// machine equals the holder: only the lease says whether the controller knows the machine as a KubevirtMachine or
    /// as a VirtualMachine.
    pub fn name_machines(&self, inventory: &mut Inventory) {
        let identity = |machine: &Machine| (machine.namespace.clone(), machine.name.clone(), machine.uid.clone());
        let holders: BTreeMap<_, &Machine> = self
            .leases
            .values()
            .map(|lease| &lease.claimant.machine)
            .filter(|machine| !machine.kind.is_claim())
            .map(|machine| (identity(machine), machine))
            .collect();
        inventory.each_machine(|machine| {
            if let Some(holder) = holders.get(&identity(machine)) {
                *machine = Machine::clone(holder);
            }
        });
    }

    /// A ledger with the leases, in memory.
    ///
    /// # Errors
    ///
    /// The ledger failed.
    pub fn ledger(&self) -> Result<MemoryLedger, LedgerError> {
        let changes = self.leases.iter().map(|((network, address), lease)| Change::Lease {
            network: Arc::clone(network),
            address: *address,
            lease: Some(lease.clone()),
        });
        let changes: Vec<Change> = changes.collect();
        let mut ledger = MemoryLedger::default();
        ledger.begin()?.commit(&changes)?;
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::change::Update;
    use crate::host::records::Objects;

    /// A lease in flow style. `holder` and `spec` add members, or replace them.
    fn lease(address: &str, holder: &str, spec: &str) -> String {
        let name = address.replace('.', "-");
        format!(
            "{{kind: StaticIPLease, metadata: {{name: {name}.infra.vlan10}}, spec: {{network: infra/vlan10, \
             address: {address}, prefix: 24, pool: clusters/workers, since: '2026-08-14T10:00:00.000000Z', \
             holder: {{kind: KubevirtMachine, namespace: c, name: w, uid: u, interface: eno101{holder}}}{spec}}}}}"
        )
    }

    fn read(file: &str) -> (Vec<String>, Vec<String>) {
        let (leases, diagnostics) = read_leases(file.as_bytes());
        let held = leases
            .held()
            .map(|(network, address, lease)| format!("{network} {address}/{} {}", lease.prefix, lease.claimant));
        (held.collect(), diagnostics.kept().iter().map(ToString::to_string).collect())
    }

    fn refusal(file: &str) -> Vec<String> {
        let (held, diagnostics) = read(file);
        assert_eq!(held, [""; 0], "{file}");
        diagnostics
    }

    #[test]
    fn leases_are_read_from_a_list_and_from_a_stream_of_documents() {
        let [first, second] = ["10.0.0.5", "10.0.0.6"].map(|address| lease(address, "", ""));
        let held = ["infra/vlan10 10.0.0.5/24 eno101 of c/w (u)", "infra/vlan10 10.0.0.6/24 eno101 of c/w (u)"];
        let expected = (held.map(str::to_owned).into(), vec![]);
        assert_eq!(read(&format!("kind: List\nitems:\n- {first}\n- {second}\n")), expected);
        assert_eq!(read(&format!("{first}\n---\n{second}\n")), expected);
        assert_eq!(read("{kind: List, items: []}"), (vec![], vec![]));
    }

    #[test]
    fn a_released_lease_is_not_held_and_stays_in_the_ledger() {
        let (leases, _) = read_leases(
            lease("10.0.0.5", "", ", released: '2026-08-15T10:00:00Z', reuseAfter: '2026-08-15T10:05:00Z'").as_bytes(),
        );
        assert_eq!(leases.held().count(), 0);
        let update = leases.ledger().unwrap().catch_up().unwrap();
        let Update::Snapshot(changes) = update else { panic!("{update:?}") };
        let [Change::Lease { lease: Some(lease), .. }] = &changes[..] else { panic!("{changes:?}") };
        let times = [lease.released, lease.reuse_after].map(|time| time.map(|time| time.to_string()));
        assert_eq!(times, ["2026-08-15T10:00:00Z", "2026-08-15T10:05:00Z"].map(|time| Some(time.to_owned())));
    }

    #[test]
    fn leases_of_claims_and_of_mac_addresses_are_counted() {
        let claim = lease("10.0.0.5", "", "").replace("KubevirtMachine", "IPAddressClaim");
        let mac = "{kind: StaticIPLease, metadata: {name: 02-00-00-00-00-01.mac}, spec: {network: mac, \
                   address: 02:00:00:00:00:01}}";
        let released = mac.replace("address:", "released: '2026-08-15T10:00:00Z', address:");
        let (leases, diagnostics) = read_leases(format!("{{items: [{claim}, {mac}, {released}]}}").as_bytes());
        assert_eq!(diagnostics.kept(), []);
        assert_eq!((leases.of_claims(), leases.mac_addresses), (1, 1));
    }

    #[test]
    fn a_lease_with_errors_is_left_out_and_each_error_is_reported() {
        let spec = "{network: infra/vlan10, address: 10.0.0.256, prefix: 33, since: yesterday, released: 1, later: 1, \
                    holder: {kind: Pod, namespace: A, name: w, uid: u, interface: 'a b'}}";
        assert_eq!(
            refusal(&format!("{{kind: List, items: [{{kind: StaticIPLease, metadata: {{name: a}}, spec: {spec}}}]}}")),
            [
                r#"items[0].spec.address: invalid address "10.0.0.256", expected an IP address"#,
                r#"items[0].spec.holder.interface: invalid interface name "a b", expected 1 to 15 letters, digits, '.', '_' or '-', not only digits, and not all, default or lo"#,
                r#"items[0].spec.holder.kind: invalid kind "Pod", expected KubevirtMachine, VirtualMachine, IPAddressClaim or IPAMClaim"#,
                r#"items[0].spec.holder.namespace: invalid name "A", expected lower case letters, digits, '-' and '.'"#,
                "items[0].spec.later: unknown key, expected one of network, address, prefix, pool, holder, since, released, \
                 reuseAfter, migrated, secrets",
                "items[0].spec.pool: missing, expected the name of a pool",
                r#"items[0].spec.released: invalid value "1", expected a string, written with quotes in YAML"#,
                r#"items[0].spec.since: invalid time "yesterday", expected a time of RFC 3339"#,
            ]
        );
        assert_eq!(
            refusal("{kind: StaticIPLease, metadata: {name: a}, spec: {}}"),
            [
                "spec.address: missing, expected an IP address",
                "spec.holder: missing, expected the holder of the lease",
                "spec.network: missing, expected the network of the address",
                "spec.pool: missing, expected the name of a pool",
                "spec.since: missing, expected a time of RFC 3339",
            ]
        );
        assert_eq!(
            refusal(&lease("10.0.0.5", "", "").replace("prefix: 24", "prefix: 33")),
            ["spec.prefix: invalid prefix length, expected a number from 0 to 32"]
        );
    }

    #[test]
    fn the_name_of_a_lease_must_fit_its_address_and_network() {
        assert_eq!(
            refusal(&lease("10.0.0.5", "", "").replace("10-0-0-5", "10-0-0-6")),
            [
                r#"metadata.name: name of another lease "10-0-0-6.infra.vlan10", expected "10-0-0-5.infra.vlan10" as in spec"#
            ]
        );
        assert_eq!(
            refusal(&lease("10.0.0.5", "", "").replace("infra/vlan10", "vlan10")),
            [r#"spec.network: invalid network "vlan10", expected namespace/name or default"#]
        );
    }

    #[test]
    fn a_second_lease_of_an_address_is_an_error() {
        let lease = lease("10.0.0.5", "", "");
        let (_, diagnostics) = read(&format!("{lease}\n---\n{lease}\n"));
        assert_eq!(
            diagnostics,
            [r#"documents[1]: second lease of the address "10.0.0.5", expected one lease of an address"#]
        );
    }

    #[test]
    fn a_file_that_is_no_list_of_leases_is_refused() {
        let none = ["document: no lease in it, expected StaticIPLeases, or a list of them"];
        assert_eq!(refusal(""), none);
        let pool = "{kind: StaticIPPool, metadata: {name: a}}";
        let warning = "no lease \"StaticIPPool\", expected StaticIPLease";
        assert_eq!(refusal(pool), [none[0].to_owned(), format!("kind: {warning}")]);
        assert_eq!(refusal(&format!("{{items: [{pool}]}}")), [none[0].to_owned(), format!("items[0].kind: {warning}")]);
        assert_eq!(
            refusal("{items: [{}, 1]}"),
            ["items[0].kind: missing, expected StaticIPLease", "items[1]: invalid lease \"1\", expected an object",]
        );
        assert_eq!(
            refusal("{metadata: {continue: abc}, items: []}"),
            ["metadata.continue: page of a list, expected the whole list: the other pages have further leases"]
        );
    }

    #[test]
    fn a_holder_and_the_machine_of_an_object_are_one_machine() {
        let lease =
            lease("10.0.0.5", ", virtualMachineNamespace: infra", "").replace("KubevirtMachine", "VirtualMachine");
        let (leases, _) = read_leases(lease.as_bytes());
        let machine = r#"{"kind": "VirtualMachine", "metadata": {"namespace": "c", "name": "w", "uid": "u",
            "annotations": {"kubevirt.cluster.x-k8s.io/allocated-ip-eno101": "10.0.0.5"}}}"#;
        let mut objects = Objects::default();
        objects.read("list", machine.as_bytes()).unwrap();
        let mut inventory = objects.inventory();
        leases.name_machines(&mut inventory);
        let found = &inventory.records[0].claimant.machine;
        let (_, _, lease) = leases.held().next().unwrap();
        assert_eq!((found, found.served_in()), (&lease.claimant.machine, "infra"));
    }

    proptest! {
        #[test]
        fn no_file_makes_the_reader_of_leases_panic(file in any::<Vec<u8>>()) {
            let _ = read_leases(&file);
        }

        #[test]
        fn no_lease_makes_the_reader_of_leases_panic(spec in "[{}\\[\\]:, a-z0-9./'-]{0,60}", holder in "[{}\\[\\]:, a-z0-9./'-]{0,60}") {
            let _ = read_leases(lease("10.0.0.5", &holder, &spec).as_bytes());
        }
    }
}
