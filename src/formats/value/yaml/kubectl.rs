//! Reads scalars without quotes in the same way as kubectl, whose parser is version 2 of go-yaml (through
//! `sigs.k8s.io/yaml`).
//!
//! The rules are those of YAML 1.1, with the number formats of Go; numbers to base 60 and times are strings. The table
//! in the tests has the output of kubectl 1.32.

use crate::formats::value::Value;

/// The value of a scalar. `None` for a number that JSON cannot express, such as infinity: kubectl refuses such a file.
pub(super) fn scalar(text: &str) -> Option<Value> {
    Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN"
        | ".NAN" => {
            return None;
        }
        _ => number(text).unwrap_or_else(|| Value::String(text.to_owned())),
    })
}

/// Whether a scalar is a number with a fraction or an exponent, or a whole number outside of the range of `i64`.
pub(super) fn is_float(text: &str) -> bool {
    match number(text) {
        Some(Value::Fraction(_)) => true,
        Some(_) => integer(&text.replace('_', "")).is_none(),
        None => false,
    }
}

fn number(text: &str) -> Option<Value> {
    match text.as_bytes().first()? {
        b'.' => float(text),
        b'0'..=b'9' | b'+' | b'-' => {
            let digits = text.replace('_', "");
            integer(&digits).or_else(|| float(&digits))
        }
        _ => None,
    }
}

/// Parses a whole number, with or without a prefix of Go: `0x`, `0o` or `0`, and `0b`.
fn integer(text: &str) -> Option<Value> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, radix) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (&unsigned[2..], 16),
        [b'0', b'o' | b'O', _, ..] => (&unsigned[2..], 8),
        [b'0', b'b' | b'B', _, ..] => (&unsigned[2..], 2),
        [b'0', _, ..] => (&unsigned[1..], 8),
        _ => (unsigned, 10),
    };
    // `from_str_radix` would accept a sign after the prefix.
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let number = i128::from_str_radix(digits, radix).ok()?;
    let number = if text.starts_with('-') { -number } else { number };
    let is_large = || text == unsigned && u64::try_from(number).is_ok();
    match i64::try_from(number) {
        Ok(number) => Some(Value::Integer(number)),
        Err(_) => is_large().then(|| Value::number(number as f64)),
    }
}

/// Parses a number with a fraction or an exponent. `None` for a number beyond the range of floats, which kubectl reads
/// as a string.
fn float(text: &str) -> Option<Value> {
    let is_decimal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let number = text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite());
    number.map(Value::number)
}

#[cfg(test)]
mod tests {
    use crate::formats::value::parse_documents;

    /// Reads the documents of a file, and returns them as JSON.
    fn read(document: &str) -> Result<String, String> {
        let documents = parse_documents(document.as_bytes()).map_err(|diagnostic| diagnostic.to_string())?;
        Ok(documents.iter().map(|value| serde_json::to_string(value).unwrap()).collect())
    }

    /// Each row has scalars, and the value that `kubectl annotate --local -o json` of version 1.32 prints for each of
    /// them.
    #[test]
    fn a_scalar_has_the_same_value_as_in_kubectl() {
        for (scalars, json) in [
            ("y Y yes Yes YES true True TRUE on On ON", "true"),
            ("n N no No NO false False FALSE off Off OFF", "false"),
            ("yEs tRUE oN", "\"\""),
            ("~ null Null NULL", "null"),
            ("nULL = <<a", "\"\""),
            (
                "0x5dc 0X5DC 0x5_dc 1500 +1500 1_500 1500_ 1500.0 1500. 1.5e3 1.5E+3 15e2 0o2734 0O2734 02734 1_5e2",
                "1500",
            ),
            ("0b10111011100 0B1011_1011_100 0_2734 15000e-1", "1500"),
            ("-0x5dc -1500 -02734 -0o2734 -0b10111011100 -1_500 -1500.0", "-1500"),
            ("0 00 -0 +0 0.0 0x0 0e7", "0"),
            ("08 008 08.0", "8"),
            ("010 0o10 0_10", "8"),
            (".5 0.5 +.5 5e-1 .5e0", "0.5"),
            (
                "0x 0b 0o 0b12 0o8 0x1p4 0x1.8 1e 1e400 1:30 190:20:30 52:54:00:12:34:56 10.0.0.8 1.2.3 _1 + . -- +-5 0x+5",
                "\"\"",
            ),
            ("2001-01-01 2001-12-14t21:59:43.10-05:00 infinity +inf NaN nan ._5 10.0.0.0/24 fd00::8", "\"\""),
            ("9223372036854775807", "9223372036854775807"),
            ("0xffffffffffffffff 18446744073709551615", "1.8446744073709552e+19"),
            ("-9223372036854775809", "-9.223372036854776e+18"),
        ] {
            for scalar in scalars.split(' ') {
                let expected = if json == "\"\"" { format!("\"{scalar}\"") } else { json.to_owned() };
                assert_eq!(read(&format!("a: {scalar}")), Ok(format!("{{\"a\":{expected}}}")), "{scalar}");
            }
        }
    }

    #[test]
    fn a_scalar_with_quotes_or_with_the_tag_str_is_a_string() {
        assert_eq!(read("a: ['y', \"0x5dc\", !!str 017, !!str ~]"), Ok(r#"{"a":["y","0x5dc","017","~"]}"#.to_owned()));
    }

    #[test]
    fn a_boolean_or_a_number_as_a_key_becomes_its_string_in_json() {
        let keys = r#"{"true":1,"false":1,"1500":1,"on":1,"1.50":1,"role":1,"_1":1,"2.50":1}"#.to_owned();
        let document = "y: 1\noff: 1\n0x5dc: 1\n'on': 1\n'1.50': 1\nrole: 1\n_1: 1\n!!str 2.50: 1\n";
        assert_eq!(read(document), Ok(keys));
        // kubectl writes 1000000.0 as 1e+06.
        for number in ["1.50", "1e6", "1000000.0", "08", ".5"] {
            let expected = "expected quotes around a number with a fraction or an exponent";
            assert_eq!(
                read(&format!("{number}: 1")),
                Err(format!("line 1 column 1: invalid key {number:?}, {expected}"))
            );
        }
        let repeated = r#"line 2 column 1: repeated key "true", expected each key of a mapping once"#.to_owned();
        assert_eq!(read("y: 1\non: 1\n"), Err(repeated));
        let null = r#"line 1 column 1: invalid key "~", expected a string as the key of a mapping"#.to_owned();
        assert_eq!(read("~: 1\n"), Err(null));
    }

    #[test]
    fn a_tag_that_could_change_a_value_is_refused() {
        assert_eq!(read("a: !!map {b: !!seq [!!str 1]}"), Ok(r#"{"a":{"b":["1"]}}"#.to_owned()));
        for (value, tag, expected) in [
            ("!!int '5'", "!int", "str"),
            ("!!float 5", "!float", "str"),
            ("!!bool 'y'", "!bool", "str"),
            ("!x 5", "!x", "str"),
            ("!!binary aGk=", "!binary", "str"),
            ("!!set {b}", "!set", "map"),
            ("!!omap [b: 1]", "!omap", "seq"),
        ] {
            let error = read(&format!("a: {value}")).unwrap_err();
            let (_, error) = error.split_once(": ").unwrap();
            assert_eq!(error, format!("unknown tag {tag:?}, expected no tag, or !!{expected}"), "{value}");
        }
    }

    #[test]
    fn a_merge_that_kubectl_would_read_in_another_way_is_refused() {
        let of = |members: &str| read(&format!("a: &x {{b: 1, c: 2}}\nd: {{{members}}}\n"));
        assert_eq!(of("<<: *x, c: 3, e: 4"), Ok(r#"{"a":{"b":1,"c":2},"d":{"b":1,"c":3,"e":4}}"#.to_owned()));
        assert_eq!(of("e: 4, <<: *x"), Ok(r#"{"a":{"b":1,"c":2},"d":{"b":1,"c":2,"e":4}}"#.to_owned()));
        let refused = |column: usize, line: &str| Err(format!("line 2 column {column}: {line}"));
        let own = "key before the merge \"c\", expected << first: kubectl lets a merged key replace a key that stands before <<";
        assert_eq!(of("c: 3, <<: *x"), refused(11, own));
        assert_eq!(of("<<: 5"), refused(5, "invalid merge \"5\", expected a mapping, or a list of mappings"));
        assert_eq!(of("'<<': *x"), refused(5, "invalid key \"<<\", expected << without quotes"));
    }

    #[test]
    fn a_number_that_json_cannot_express_is_refused() {
        let expected = "expected a finite number, or quotes around a string";
        for text in [".inf", "-.Inf", "+.INF", ".nan", ".NaN"] {
            assert_eq!(read(&format!("a: {text}")), Err(format!("line 1 column 4: not in JSON {text:?}, {expected}")));
        }
    }
}
