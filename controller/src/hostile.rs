//! Objects that no honest user writes: valid objects with a few members replaced, for the tests of every reader.
//!
//! The objects are always the same. API servers check the metadata of every object, but they check the rest only as
//! well as the definition of its kind does. So the generator changes any member except the identity of the object.

use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

/// Number of objects that are derived from each valid object.
const VARIANTS: u64 = 250;
/// Members of the metadata that the API server itself sets or checks.
const IDENTITY: [&str; 7] =
    ["namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"];

/// The generator SplitMix64: small, and with the same numbers on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit.max(1) as u64).unwrap()
    }
}

/// Calls `check` with each object that is derived from `valid`. Objects whose metadata no API server stores are left
/// out.
pub(crate) fn each_object(valid: &Value, mut check: impl FnMut(DynamicObject)) {
    let mut stored = 0;
    for seed in 0..VARIANTS {
        let value = variant(&mut Random::new(seed), valid);
        if let Ok(object) = serde_json::from_value(value) {
            stored += 1;
            check(object);
        }
    }
    assert!(stored > VARIANTS / 3, "{stored} of {VARIANTS} objects have valid metadata");
}

/// Derives a document from a valid document.
pub(crate) fn variant(random: &mut Random, valid: &Value) -> Value {
    let mut value = valid.clone();
    for _ in 0..=random.below(3) {
        let mut pointers = Vec::new();
        collect(&value, &mut String::new(), &mut pointers);
        pointers.retain(|pointer| {
            let identity = pointer.strip_prefix("/metadata").map(|member| member.trim_start_matches('/'));
            !identity.is_some_and(|member| member.is_empty() || IDENTITY.contains(&member))
        });
        let nth = random.below(pointers.len());
        let Some(pointer) = pointers.get(nth) else { return value };
        if random.below(8) == 0
            && let Some((parent, member)) = pointer.rsplit_once('/')
            && let Some(Value::Object(members)) = value.pointer_mut(parent)
        {
            members.remove(&member.replace("~1", "/").replace("~0", "~"));
            continue;
        }
        if let Some(old) = value.pointer_mut(pointer) {
            *old = replacement(random, old);
        }
    }
    value
}

/// Collects the pointers of all members and items below a value.
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
    const TEXTS: [&str; 24] = [
        "",
        " ",
        "\0",
        "\u{1b}[2J\n",
        "\u{202e}x",
        "../../etc",
        "a/b/c/d",
        "%2e%2e%2f",
        "True",
        "False",
        "null",
        "-1",
        "10.0.0.9",
        "10.0.0.8/24",
        "10.0.0.8/99",
        "0.0.0.0/0",
        "::/0",
        "0.0.0.0-255.255.255.255",
        "fd00::9-fd00::1",
        "::ffff:10.0.0.8",
        "9999-12-31T23:59:59Z",
        "{}",
        "[[",
        "*a: &a [*a]",
    ];
    match random.below(14) {
        0 => Value::Null,
        1 => (random.below(2) == 0).into(),
        2 => [json!(0), json!(-1), json!(u64::MAX), json!(i64::MIN), json!(1e308), json!(0.5)][random.below(6)].clone(),
        3 => json!({}),
        4 => json!([]),
        5 => json!([old, old]),
        6 => json!({ "name": old, "": old }),
        7 => Value::Array(vec![old.clone(); 100]),
        8 => (0..100).map(|nth| (format!("k{nth}"), old.clone())).collect::<Map<_, _>>().into(),
        9 => (0..100).fold(old.clone(), |inner, nth| if nth % 2 == 0 { json!([inner]) } else { json!({ "a": inner }) }),
        10 => ["x", "[", "{\"a\":", "10.0.0.0/24,"][random.below(4)].repeat(5_000).into(),
        // Annotations contain documents as text.
        11 => match old.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            Some(document) if document.is_object() => variant(random, &document).to_string().into(),
            _ => old.to_string().into(),
        },
        _ => TEXTS[random.below(TEXTS.len())].into(),
    }
}

mod tests {
    use super::*;

    #[test]
    fn the_derived_objects_are_always_the_same_and_rarely_twice() {
        let valid = json!({"metadata": {"name": "n", "labels": {"a/b": "c"}}, "spec": {"list": [1, {"x": "y"}]}});
        let all = || (0..200).map(|seed| variant(&mut Random::new(seed), &valid).to_string());
        assert!(all().eq(all()));
        let different: std::collections::BTreeSet<String> = all().collect();
        assert!(different.len() > 150, "{}", different.len());
        assert!(all().all(|text| text.contains(r#""name":"n""#)));
    }
}
