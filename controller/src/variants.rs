//! Derives objects that no honest user writes, for the tests of every reader: valid objects with a few changed members.
//!
//! The derived objects are the same in every run. API servers check the metadata of every object, but check other
//! members only against the definition of the kind. So the generator changes any member except the identity of the
//! object.
//!
//! In the tests, the object of another user has the name `honest`. The generator also uses this name, to try references
//! to the other user's object.
//!
//! Each test with derived objects has `content` in its name. `make fuzz-controller` runs these tests with many more
//! objects.
//!
//! | kind | readers | tests |
//! |---|---|---|
//! | every kind | `object::Object` | `object` |
//! | StaticIPPool, GlobalStaticIPPool | `facts::PoolObject`, `selection::MachinePool`, `webhook` | `pools::status`, `selection`, `tests/hostile.rs` |
//! | StaticIPLease | `ledger::leases::object::read`, `macs::objects::Objects::apply_lease`, `webhook::warn_of_holders` | `ledger::leases::object`, `macs::plan`, `webhook::pools` |
//! | MACPool | `macs::objects::Objects::apply_pool`, `webhook` | `macs::plan`, `tests/hostile.rs` |
//! | IPAddressClaim, IPAddress | `cluster_api::IpAddressClaim`, `cluster_api::IpAddress` | `claims::known_claims` |
//! | IPAddressClaim of a machine | `machines::source::MachineClaim` | `machines::any_content`, `machines::decision` |
//! | IPAddress of another provider | `cluster_api::IpAddress` | `machines::decision` |
//! | Cluster | `cluster_api::is_paused`, `neighbour::of_cluster` | `claims::known_claims`, `neighbour` |
//! | Service | `neighbour::of_service` | `neighbour` |
//! | IPAMClaim | `ipam_claim::IpamClaim` | `claims::ipam::known_ipam_claims`, `machines::any_content`, `machines::decision` |
//! | NetworkAttachmentDefinition | `ipam_claim::network_name` | `claims::ipam::known_ipam_claims` |
//! | KubevirtMachine | `kubevirt_machine::KubevirtMachine`, `glowplug::host::records` | `machines::any_content` |
//! | VirtualMachine | `virtual_machine::VirtualMachine`, `macs::machine::Vm`, `webhook` | `machines::any_content`, `macs::plan`, `pools::reference`, `selection` |
//! | VirtualMachineInstance | `kubevirt_machine::Instance`, `macs::machine::Guest`, `claims::ipam::guest_of` | `machines::any_content`, `macs::plan`, `claims::ipam::known_ipam_claims` |
//! | NodePool, HostedCluster | `node_pools::derive`, `node_pools::conditions`, `selection::cluster_of` | `node_pools`, `selection` |
//! | Secret | `kubevirt_machine::NetworkSecret`, `kubevirt_machine::addresses_of` | `machines::any_content` |
//! | Namespace | `namespaces::Known`, `selection_cache::Objects` | `namespaces`, `selection_cache` |
//! | CustomResourceDefinition | `definitions::missing` | `definitions` |
//! | Lease | `election::View` | `election` |
//! | AdmissionReview | `webhook::Webhooks` | `tests/hostile.rs` |
//!
//! `tests/hostile.rs` also stores such objects in an API server while the controller works.

#[path = "../../tests/support/random.rs"]
mod random;

pub(crate) use random::Random;

use super::cluster::object::Object;
use serde_json::{Map, Value, json};

/// Number of objects that are derived from each valid object. `HOSTILE_VARIANTS` sets another number.
const VARIANTS: u64 = 250;
/// Maximum length of an object in a test, in bytes. API servers do not store longer objects, because etcd rejects them.
const MAX_BYTES: usize = 1_500_000;
/// Maximum length of a value that is repeated, in bytes.
const MAX_REPEATED: usize = 5_000;
/// Members of the metadata that the API server itself sets or checks, and that are not changed.
const IDENTITY: [&str; 7] =
    ["namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"];

/// The seed of an object. If the test fails, the seed is printed, so that the same object can be derived again.
pub(crate) struct Seed(pub(crate) u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {} of the hostile objects: HOSTILE_VARIANTS={} repeats it", self.0, self.0 + 1);
        }
    }
}

/// Returns the number of objects to derive: the value of `HOSTILE_VARIANTS`, or `default` if the variable is not set.
pub(crate) fn variants(default: u64) -> u64 {
    std::env::var("HOSTILE_VARIANTS").map_or(default, |number| number.parse().expect("HOSTILE_VARIANTS is a number"))
}

/// Calls `check` with each object that is derived from `valid`. Leaves out objects whose metadata an API server
/// rejects.
pub(crate) fn each_object(valid: &Value, mut check: impl FnMut(Object)) {
    each_text(valid, |text| {
        let object = serde_json::from_str(text);
        object.is_ok_and(|object| {
            check(object);
            true
        })
    });
}

/// Calls `check` with the text of each object that is derived from `valid`. `check` returns whether an API server would
/// store the object.
pub(crate) fn each_text(valid: &Value, mut check: impl FnMut(&str) -> bool) {
    let (mut stored, variants) = (0, variants(VARIANTS));
    for seed in 0..variants {
        let seed = Seed(seed);
        let text = variant(&mut Random(seed.0), valid).to_string();
        stored += u64::from(text.len() <= MAX_BYTES && check(&text));
    }
    assert!(stored > variants / 3, "{stored} of {variants} objects have valid metadata");
}

/// Returns a copy of `valid` with up to three changes of members or items. Never changes the identity of the object.
pub(crate) fn variant(random: &mut Random, valid: &Value) -> Value {
    let mut value = valid.clone();
    for _ in 0..=random.below(3) {
        let mut pointers = Vec::new();
        collect(&value, &mut String::new(), &mut pointers);
        pointers.retain(|pointer| {
            let identity = pointer.strip_prefix("/metadata").map(|member| member.trim_start_matches('/'));
            !identity.is_some_and(|member| member.is_empty() || IDENTITY.contains(&member))
        });
        if pointers.is_empty() {
            return value;
        }
        let pointer = pointers.swap_remove(random.below(pointers.len()));
        match random.below(12) {
            0 => drop(remove(&mut value, &pointer)),
            1 => {
                if let Some((name, member)) = remove(&mut value, &pointer)
                    && let Some((parent, _)) = pointer.rsplit_once('/')
                    && let Some(Value::Object(members)) = value.pointer_mut(parent)
                {
                    members.insert(neighbour(random, &name), member);
                }
            }
            2 if !pointers.is_empty() => {
                let other = value.pointer(&pointers[random.below(pointers.len())]).cloned();
                let old = value.pointer_mut(&pointer);
                old.zip(other.filter(is_short)).into_iter().for_each(|(old, other)| *old = other);
            }
            _ => value.pointer_mut(&pointer).into_iter().for_each(|old| *old = replacement(random, old)),
        }
    }
    value
}

/// Removes a member of an object. Returns the name and the value of the member.
fn remove(value: &mut Value, pointer: &str) -> Option<(String, Value)> {
    let (parent, member) = pointer.rsplit_once('/')?;
    let members = value.pointer_mut(parent)?.as_object_mut()?;
    members.remove_entry(&member.replace("~1", "/").replace("~0", "~"))
}

/// Returns a string that differs from `text` in one character, or only in its case.
fn neighbour(random: &mut Random, text: &str) -> String {
    let (first, last) = (text.chars().next(), text.chars().next_back());
    match random.below(7) {
        0 => text.strip_suffix(|_: char| true).unwrap_or_default().to_owned(),
        1 => text.strip_prefix(|_: char| true).unwrap_or_default().to_owned(),
        2 => format!("{text}{}", last.unwrap_or('x')),
        3 => format!("{}{text}", first.unwrap_or('x')),
        4 => format!("{text} "),
        5 => text.to_uppercase(),
        _ => format!("{text}\u{301}"),
    }
}

fn is_short(value: &Value) -> bool {
    value.to_string().len() <= MAX_REPEATED
}

/// Collects the JSON pointers of all members and items below a value.
fn collect(value: &Value, pointer: &mut String, all: &mut Vec<String>) {
    let mut below = |name: String, value: &Value| {
        let length = pointer.len();
        pointer.push('/');
        pointer.push_str(&name);
        all.push(pointer.clone());
        collect(value, pointer, all);
        pointer.truncate(length);
    };
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| below(name.replace('~', "~0").replace('/', "~1"), value));
        }
        Value::Array(items) => items.iter().take(8).enumerate().for_each(|(nth, item)| below(nth.to_string(), item)),
        _ => {}
    }
}

fn replacement(random: &mut Random, old: &Value) -> Value {
    const TEXTS: [&str; 46] = [
        "",
        " ",
        "\0",
        "\u{7f}",
        "\r\n",
        "\u{1b}[2J\n",
        "\u{202e}x",
        "\u{feff}",
        "../../etc",
        "/",
        ".",
        "..",
        "a/b/c/d",
        "%2e%2e%2f",
        "~1~0",
        "True",
        "False",
        "null",
        "-1",
        "+1",
        "1e3",
        "18446744073709551616",
        "10.0.0.9",
        "10.0.0.8/24",
        "10.0.0.8/99",
        "10.0.0.8/-1",
        "010.000.000.010",
        "\u{661}\u{660}.\u{660}.\u{660}.\u{668}",
        "\u{ff11}\u{ff10}.0.0.8",
        "0.0.0.0/0",
        "::/0",
        "0.0.0.0-255.255.255.255",
        "fd00::9-fd00::1",
        "fe80::1%eno101",
        "::ffff:10.0.0.8",
        "9999-12-31T23:59:59Z",
        "{}",
        "[[",
        "*a: &a [*a]",
        // The names and UIDs of the object `honest` in the tests.
        "n",
        "honest",
        "honest-eno101",
        "n/honest",
        "u",
        "u-honest",
        "uid-honest",
    ];
    let limits = [
        json!(0),
        json!(-1),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(-1e300),
        json!(5e-324),
        json!(0.5),
    ];
    match random.below(18) {
        0 => Value::Null,
        1 => (random.below(2) == 0).into(),
        2 => limits[random.below(limits.len())].clone(),
        3 => json!({}),
        4 => json!([]),
        5 => match old.as_array() {
            // The new list has each item twice.
            Some(items) => items.iter().chain(items.iter().rev()).cloned().collect(),
            None => json!([old, old]),
        },
        6 => json!({ "name": old, "": old }),
        7 if is_short(old) => Value::Array(vec![old.clone(); 100]),
        8 if is_short(old) => (0..100).map(|nth| (format!("k{nth}"), old.clone())).collect::<Map<_, _>>().into(),
        // The tests of the module `object` use deeper values.
        9 => (0..80).fold(old.clone(), |inner, nth| if nth % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) }),
        10 => ["x", "[", "{\"a\":", "10.0.0.0/24,", "- "][random.below(5)]
            .repeat([64, 254, 5_000][random.below(3)])
            .into(),
        // Annotations may contain a document as a string. The generator changes this document, too.
        11 | 12 => match old.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            Some(document) if document.is_object() => variant(random, &document).to_string().into(),
            _ => old.to_string().into(),
        },
        13 | 14 if old.is_string() => neighbour(random, old.as_str().unwrap_or_default()).into(),
        _ => TEXTS[random.below(TEXTS.len())].into(),
    }
}

mod tests {
    use super::*;

    #[test]
    fn the_derived_objects_are_the_same_in_every_run_and_rarely_repeated() {
        let valid = json!({"metadata": {"name": "n", "labels": {"a/b": "c"}}, "spec": {"list": [1, {"x": "y"}]}});
        let all = || (0..200).map(|seed| variant(&mut Random(seed), &valid).to_string());
        assert!(all().eq(all()));
        let different: std::collections::BTreeSet<String> = all().collect();
        assert!(different.len() > 150, "{}", different.len());
        assert!(all().all(|text| text.contains(r#""name":"n""#)));
    }
}
