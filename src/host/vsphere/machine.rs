//! Makes the kernel arguments of a Machine from its devices and from the addresses of its claims.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use super::device::{AddressesFromPool, At, Place, ReadDevice, check};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{self, Object, Value};
use crate::host::address::{parse_address, parse_gateway};
use crate::render::vsphere::{MAX_BYTES, StaticDevice, property};

/// The kernel arguments of a machine. `Display` writes them without the final blank.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NetworkKargs(String);

/// The result of [`network_kargs`].
#[derive(Debug, Default)]
pub struct KargsReading {
    /// The arguments. `None` when a document has an error.
    pub kargs: Option<NetworkKargs>,
    /// Errors and warnings, each with the name of its document.
    pub diagnostics: Vec<(String, Diagnostic)>,
}

/// An object of a document.
#[derive(Clone, Copy)]
struct Item<'d> {
    object: &'d Object,
    document: usize,
    position: Position,
}

/// Position of an object in its document.
#[derive(Clone, Copy)]
enum Position {
    Whole,
    Element(usize),
    Item(usize),
}

/// The objects of all documents, by their kind.
#[derive(Default)]
struct Objects<'d> {
    /// Machines, and devices without a Machine.
    machines: Vec<Item<'d>>,
    claims: BTreeMap<&'d str, Vec<Item<'d>>>,
    /// IPAddresses in the order of the documents, by their own name.
    addresses: BTreeMap<&'d str, Vec<Item<'d>>>,
    /// IPAddresses by the name of their claim.
    addresses_by_claim: BTreeMap<&'d str, Vec<Item<'d>>>,
    /// IPAddresses by the group and name of their pool, in the order of the documents.
    addresses_by_pool: BTreeMap<(String, String), VecDeque<Item<'d>>>,
}

/// The reader of the documents.
struct Reader<'d> {
    /// The diagnostics of each document.
    diagnostics: Vec<Diagnostics>,
    objects: Objects<'d>,
}

/// An address of a pool, with the gateway of the pool.
struct PoolAddress {
    address: At<IpNetwork>,
    gateway: Option<At<IpAddr>>,
}

/// Makes the kernel arguments of a machine, as Machine API writes them into [`PROPERTY`](super::PROPERTY).
///
/// The documents, each with its name, are JSON or YAML. Together they have
///
/// - one Machine, or one network device alone. With several Machines, `machine` is the name of the Machine.
/// - the IPAddresses of its pools, and optionally their IPAddressClaims.
///
/// Each document is one object or a list of objects, such as `oc get -o yaml` prints. A Machine gets the IPAddress of
/// the claim `<machine>-claim-<device>-<pool>`. A device without a Machine gets the IPAddresses of the pools that it
/// names, in the order of the documents.
///
/// ```
/// use glowplug::host::vsphere::network_kargs;
///
/// let device = b"{gateway: 192.168.1.1, ipAddrs: [192.168.1.2/24], nameservers: [192.168.1.100]}".to_vec();
/// let kargs = network_kargs(&[("device.yaml".to_owned(), device)], None).kargs.unwrap();
/// assert_eq!(
///     kargs.to_string(),
///     "ip=192.168.1.2::192.168.1.1:255.255.255.0:::none nameserver=192.168.1.100"
/// );
/// ```
#[must_use]
pub fn network_kargs(documents: &[(String, Vec<u8>)], machine: Option<&str>) -> KargsReading {
    let mut diagnostics: Vec<Diagnostics> = documents.iter().map(|_| Diagnostics::default()).collect();
    let mut values = Vec::new();
    for (at, (_, document)) in documents.iter().enumerate() {
        match value::parse_list(document) {
            Ok(value) => values.push((at, value)),
            Err(diagnostic) => diagnostics[at].push(diagnostic),
        }
    }
    let mut reader = Reader { diagnostics, objects: Objects::default() };
    for (at, value) in &values {
        reader.document(*at, value);
    }
    let line = reader.machine(machine).and_then(|item| reader.kargs(item));
    let is_right = !reader.diagnostics.iter().any(Diagnostics::has_errors);
    let kargs = line.filter(|_| is_right).map(NetworkKargs);
    let mut found = Vec::new();
    for ((name, _), diagnostics) in documents.iter().zip(reader.diagnostics) {
        let (kept, further) = diagnostics.into_parts();
        found.extend(kept.into_iter().map(|diagnostic| (name.clone(), diagnostic)));
        if further > 0 {
            let (problem, expected) = (format!("{further} further diagnostics"), "fewer");
            let diagnostic = Diagnostic::without_value(Severity::Warning, "document", &problem, expected);
            found.push((name.clone(), diagnostic));
        }
    }
    KargsReading { kargs, diagnostics: found }
}

// === impl NetworkKargs ===

impl NetworkKargs {
    pub(super) fn of(devices: &[StaticDevice]) -> Self {
        Self(property(devices))
    }

    /// The value of the property as Machine API writes it: with a blank after each argument, also after the last
    /// argument.
    #[must_use]
    pub fn property(&self) -> &str {
        &self.0
    }

    /// Reports arguments that are too long for the guest.
    pub(super) fn check(&self, path: &str, diagnostics: &mut Diagnostics) {
        if self.0.len() > MAX_BYTES {
            let expected = format!("at most {MAX_BYTES}");
            diagnostics.push(Diagnostic::error(path, "too many bytes of kernel arguments", self.0.len(), &expected));
        }
    }
}

impl fmt::Display for NetworkKargs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end())
    }
}

// === impl Item ===

impl<'d> Item<'d> {
    /// Calls `then` with the path of the object in its document.
    fn at<R>(&self, then: impl FnOnce(FieldPath<'_>) -> R) -> R {
        match self.position {
            Position::Whole => then(FieldPath::Document),
            Position::Element(at) => then(FieldPath::Document.index(at)),
            Position::Item(at) => then(FieldPath::Document.field("items").index(at)),
        }
    }

    /// Returns the string at a path in the object. `None` when the member is missing or has another type.
    fn text(&self, path: &[&str]) -> Option<&'d str> {
        let (name, parents) = path.split_last()?;
        let mut object = self.object;
        for parent in parents {
            object = object.object(parent)?;
        }
        match object.get(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    fn name(&self) -> &'d str {
        self.text(&["metadata", "name"]).unwrap_or_default()
    }

    /// Whether the object may be in the namespace of `other`. A manifest may have no namespace.
    fn is_near(&self, other: &Item<'_>) -> bool {
        let namespace = |item: &Item<'_>| item.text(&["metadata", "namespace"]).map(str::to_owned);
        match (namespace(self), namespace(other)) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => true,
        }
    }
}

/// Description of the documents, for messages.
const EXPECTED: &str = "one Machine of vSphere or one network device, and IPAddresses";

/// Kind of the provider specification of a vSphere machine. A manifest may lack this kind.
const PROVIDER: &str = "VSphereMachineProviderSpec";

// === impl Reader ===

impl<'d> Reader<'d> {
    fn document(&mut self, document: usize, value: &'d Value) {
        match value {
            Value::Array(elements) => self.list(document, elements, Position::Element),
            Value::Object(object) if object.get("items").is_some() => match object.get("items") {
                Some(Value::Array(items)) => self.list(document, items, Position::Item),
                Some(other) => {
                    self.diagnostics[document].push(Diagnostic::error("items", "invalid list", other, "an array"));
                }
                None => {}
            },
            Value::Object(object) => self.object(Item { object, document, position: Position::Whole }),
            Value::Null => {}
            other => {
                self.diagnostics[document].push(Diagnostic::error("document", "invalid document", other, "an object"));
            }
        }
    }

    fn list(&mut self, document: usize, elements: &'d [Value], position: fn(usize) -> Position) {
        for (at, element) in elements.iter().enumerate() {
            match element {
                Value::Object(object) => self.object(Item { object, document, position: position(at) }),
                other => {
                    let path = match position(at) {
                        Position::Item(at) => format!("items[{at}]"),
                        _ => format!("[{at}]"),
                    };
                    self.diagnostics[document].push(Diagnostic::error(path, "invalid object", other, "an object"));
                }
            }
        }
    }

    fn object(&mut self, item: Item<'d>) {
        let objects = &mut self.objects;
        match item.object.get("kind") {
            None | Some(Value::Null) => objects.machines.push(item),
            Some(Value::String(kind)) if kind == "Machine" => objects.machines.push(item),
            Some(Value::String(kind)) if kind == "IPAddressClaim" => {
                objects.claims.entry(item.name()).or_default().push(item);
            }
            Some(Value::String(kind)) if kind == "IPAddress" => {
                let text = |path: &[&str]| item.text(path).unwrap_or_default();
                let of_pool = |name: &str| text(&["spec", "poolRef", name]).to_owned();
                let pool = (of_pool("apiGroup"), of_pool("name"));
                objects.addresses.entry(item.name()).or_default().push(item);
                objects.addresses_by_claim.entry(text(&["spec", "claimRef", "name"])).or_default().push(item);
                objects.addresses_by_pool.entry(pool).or_default().push_back(item);
            }
            Some(kind) => {
                let path = item.at(|path| path.field("kind").path());
                let expected = "Machine, IPAddressClaim or IPAddress";
                self.diagnostics[item.document].push(Diagnostic::warning(path, "not used", kind, expected));
            }
        }
    }

    /// Returns the Machine for which the arguments are made. Reports an error if there is no such Machine, or more than
    /// one.
    fn machine(&mut self, name: Option<&str>) -> Option<Item<'d>> {
        let named = |item: &&Item<'_>| name.is_none_or(|name| item.name() == name);
        let found: Vec<Item<'d>> = self.objects.machines.iter().filter(named).copied().collect();
        match found[..] {
            [] if self.diagnostics.iter().any(Diagnostics::has_errors) => None,
            [] => {
                let diagnostic = match name {
                    Some(name) => Diagnostic::error("document", "no Machine of that name", name, EXPECTED),
                    None => Diagnostic::without_value(Severity::Error, "document", "no Machine", EXPECTED),
                };
                self.diagnostics.first_mut()?.push(diagnostic);
                None
            }
            [machine] => Some(machine),
            [_, second, ..] => {
                let path = second.at(|path| path.path());
                let expected = "one Machine, or the name of the Machine";
                self.diagnostics[second.document].push(Diagnostic::error(
                    path,
                    "second Machine",
                    second.name(),
                    expected,
                ));
                None
            }
        }
    }

    /// Makes the arguments of a machine. A result with errors in the diagnostics must not be used.
    fn kargs(&mut self, machine: Item<'d>) -> Option<String> {
        let is_machine = machine.object.get("kind").is_some_and(|kind| *kind != Value::Null);
        let devices = if is_machine {
            self.devices(machine)?
        } else {
            let diagnostics = &mut self.diagnostics[machine.document];
            vec![
                machine
                    .at(|path| ReadDevice::read(machine.object, machine.document, path, Place::Machine, diagnostics)),
            ]
        };
        let mut of_pools = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let refs = device.pools.iter().enumerate().filter_map(|(pool, of)| Some((pool, of.as_ref()?)));
            let mut addresses = Vec::new();
            for (pool, of) in refs {
                let path = device.at(&format!("addressesFromPools[{pool}]"));
                let claim = is_machine.then(|| format!("{}-claim-{at}-{pool}", machine.name()));
                addresses.extend(self.pool_address(machine, path, of, claim.as_deref()));
            }
            of_pools.push(addresses);
        }
        if !is_machine {
            self.report_unused();
        }
        if !devices.iter().any(ReadDevice::is_static) {
            let path = machine.at(|path| if is_machine { path.field("spec").path() } else { path.path() });
            let (problem, expected) =
                ("no static configuration", "ipAddrs or addressesFromPools, unless DHCP is meant");
            let diagnostic = Diagnostic::without_value(Severity::Warning, path, problem, expected);
            self.diagnostics[machine.document].push(diagnostic);
        }
        let mut seen = BTreeMap::new();
        let joined = devices.iter().zip(&of_pools);
        let rendered: Vec<StaticDevice> =
            joined.map(|(device, of_pools)| self.device(device, of_pools, &mut seen)).collect();
        let with_addresses = devices.iter().zip(&rendered).filter(|(_, rendered)| !rendered.addresses.is_empty());
        for (device, _) in with_addresses.skip(1) {
            let (problem, expected) = ("second device with addresses", "one: the arguments name no interface");
            let diagnostic = Diagnostic::without_value(Severity::Warning, device.at("ipAddrs"), problem, expected);
            self.diagnostics[machine.document].push(diagnostic);
        }
        let kargs = NetworkKargs::of(&rendered);
        kargs.check("kernel arguments", &mut self.diagnostics[machine.document]);
        Some(kargs.0)
    }

    /// The devices of a Machine. `None`: the Machine has no valid provider specification.
    fn devices(&mut self, machine: Item<'d>) -> Option<Vec<ReadDevice>> {
        let diagnostics = &mut self.diagnostics[machine.document];
        machine.at(|path| {
            let metadata = path.field("metadata");
            if machine.name().is_empty() {
                let path = metadata.field("name");
                diagnostics.push(Diagnostic::without_value(
                    Severity::Error,
                    path,
                    "missing",
                    "the name of the Machine",
                ));
            }
            let (spec, provider) = (path.field("spec"), "providerSpec");
            let provider_path = spec.field(provider);
            let value_path = provider_path.field("value");
            let value = machine.object.object("spec").and_then(|spec| spec.object(provider));
            let Some(value) = value.and_then(|provider| provider.object("value")) else {
                let expected = "the specification of a vSphere machine";
                diagnostics.push(Diagnostic::without_value(Severity::Error, value_path, "missing", expected));
                return None;
            };
            if let Some(kind) = value.get("kind").filter(|kind| **kind != Value::Null && kind.to_string() != PROVIDER) {
                diagnostics.push(Diagnostic::error(value_path.field("kind"), "other provider", kind, PROVIDER));
                return None;
            }
            let network_path = value_path.field("network");
            let list = network_path.field("devices");
            let elements = match value.object("network").and_then(|network| network.get("devices")) {
                None | Some(Value::Null) => &[][..],
                Some(Value::Array(elements)) => elements,
                Some(other) => {
                    diagnostics.push(Diagnostic::error(list, "invalid list", other, "an array"));
                    return None;
                }
            };
            let mut devices = Vec::new();
            for (at, element) in elements.iter().enumerate() {
                let path = list.index(at);
                match element {
                    Value::Object(object) => {
                        devices.push(ReadDevice::read(object, machine.document, path, Place::Machine, diagnostics));
                    }
                    other => {
                        devices.push(ReadDevice::default());
                        diagnostics.push(Diagnostic::error(path, "invalid device", other, "an object"));
                    }
                }
            }
            Some(devices)
        })
    }

    /// Returns the address that a device gets from a pool. `claim` is the name of the claim for this address, or `None`
    /// if the device has no Machine.
    fn pool_address(
        &mut self,
        machine: Item<'d>,
        path: String,
        pool: &AddressesFromPool,
        claim: Option<&str>,
    ) -> Option<PoolAddress> {
        let missing = |problem: &str, value: &str, expected: &str| Diagnostic::error(&path, problem, value, expected);
        let objects = &mut self.objects;
        let found = match claim {
            None => {
                let of_pool = objects.addresses_by_pool.get_mut(&(pool.group.clone(), pool.name.clone()));
                let found = of_pool.and_then(VecDeque::pop_front);
                found.ok_or_else(|| missing("no IPAddress of the pool", &pool.name, "one IPAddress for each pool"))
            }
            Some(claim) => {
                let near = |items: Option<&Vec<Item<'d>>>| -> Vec<Item<'d>> {
                    items.into_iter().flatten().filter(|item| item.is_near(&machine)).copied().collect()
                };
                let addresses = match near(objects.claims.get(claim))[..] {
                    [] => near(objects.addresses_by_claim.get(claim)),
                    [claim, ..] => match claim.text(&["status", "addressRef", "name"]).unwrap_or_default() {
                        "" => Vec::new(),
                        name => near(objects.addresses.get(name)),
                    },
                };
                match addresses[..] {
                    [] => {
                        let problem = "no IPAddress is bound to claim";
                        Err(missing(problem, claim, "a claim that has an address, and its IPAddress"))
                    }
                    [address] => Ok(address),
                    [_, _, ..] => Err(missing("several IPAddresses of claim", claim, "one IPAddress")),
                }
            }
        };
        let item = found.map_err(|diagnostic| self.diagnostics[machine.document].push(diagnostic)).ok()?;
        let diagnostics = &mut self.diagnostics[item.document];
        item.at(|path| read_address(item, path.field("spec"), diagnostics))
    }

    /// Reports the IPAddresses that a device without a Machine does not use. Otherwise their order would decide which
    /// addresses are used.
    fn report_unused(&mut self) {
        for item in self.objects.addresses_by_pool.values().flatten() {
            let path = item.at(|path| path.path());
            let (problem, expected) = ("IPAddress without a pool in the device", "one IPAddress for each pool");
            self.diagnostics[item.document].push(Diagnostic::error(path, problem, item.name(), expected));
        }
    }

    /// Joins a device and the addresses of its pools, as Machine API does.
    fn device(
        &mut self,
        device: &ReadDevice,
        of_pools: &[PoolAddress],
        seen: &mut BTreeMap<IpAddr, String>,
    ) -> StaticDevice {
        let mut gateway = device.own_gateway();
        for next in of_pools.iter().filter_map(|of| of.gateway.as_ref()) {
            if let Some(lost) = gateway.replace(next.clone()).filter(|lost| lost.value != next.value) {
                let because = format!("Machine API uses the gateway of the last pool, {}", next.value);
                self.diagnostics[lost.document].push(Diagnostic::ignored(lost.path, lost.value, &because));
            }
        }
        let mut addresses = device.addresses();
        addresses.extend(of_pools.iter().map(|of| of.address.clone()));
        for at in &addresses {
            match seen.get(&at.value.ip()) {
                Some(first) => {
                    let expected = format!("another address than at {first}");
                    at.report(Severity::Error, "repeated address", &expected, &mut self.diagnostics);
                }
                None => drop(seen.insert(at.value.ip(), at.path.clone())),
            }
        }
        check(&addresses, gateway.as_ref(), Place::Machine, &mut self.diagnostics);
        StaticDevice {
            addresses: addresses.into_iter().map(|at| at.value).collect(),
            gateway: gateway.map(|gateway| gateway.value),
            nameservers: device.nameservers().into_iter().map(|at| at.value).collect(),
        }
    }
}

/// Reads the specification of an IPAddress.
fn read_address(item: Item<'_>, path: FieldPath<'_>, diagnostics: &mut Diagnostics) -> Option<PoolAddress> {
    let text = |name: &str| item.text(&["spec", name]).unwrap_or_default();
    let mut refused = |diagnostic: Diagnostic| diagnostics.push(diagnostic);
    let address_path = path.field("address");
    let address = parse_address(text("address")).map_err(|error| refused(error.at(address_path))).ok();
    let gateway_path = path.field("gateway");
    let gateway = Some(text("gateway")).filter(|gateway| !gateway.is_empty()).and_then(|gateway| {
        let value = parse_gateway(gateway).map_err(|error| refused(error.at(gateway_path))).ok()?;
        Some(At { document: item.document, path: gateway_path.path(), value })
    });
    let prefix = item.object.object("spec").and_then(|spec| spec.get("prefix"));
    let length = match prefix {
        Some(Value::Integer(length)) => u8::try_from(*length).ok().filter(|length| *length > 0),
        _ => None,
    };
    let network = address.zip(length).and_then(|(address, length)| IpNetwork::new(address, length).ok());
    if network.is_none() && (address.is_some() || length.is_none()) {
        let value = prefix.unwrap_or(&Value::Null);
        refused(Diagnostic::error(
            path.field("prefix"),
            "invalid prefix length",
            value,
            "the prefix length of the subnet",
        ));
    }
    let address = At { document: item.document, path: address_path.path(), value: network? };
    Some(PoolAddress { address, gateway })
}
