//! Writes the values of a document as YAML, in styles that people use.

use serde_json::Value;

use crate::support::random::Random;

/// Writes a document in a random style.
pub(crate) fn spell(tree: &Value, random: &mut Random) -> String {
    let mut text = String::new();
    if random.chance(1, 6) {
        text.push_str("#cloud-config\n");
    }
    if random.chance(1, 8) {
        text.push_str("---\n");
    }
    block(tree, 0, &mut text, random);
    if random.chance(1, 10) { text.replace('\n', "\r\n") } else { text }
}

/// Writes a value that begins on its own line. Each line is indented by `indent` blanks.
fn block(value: &Value, indent: usize, text: &mut String, random: &mut Random) {
    let margin = " ".repeat(indent);
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (name, value) in members {
                if random.chance(1, 40) {
                    text.push_str(&format!("{margin}# {name}\n"));
                }
                text.push_str(&format!("{margin}{}:", scalar_text(name, random, false)));
                inside(value, indent, text, random);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&margin);
                text.push('-');
                match item {
                    // The first member of a mapping in a list is on the line of the dash.
                    Value::Object(members) if !members.is_empty() && random.chance(3, 4) => {
                        let mut inner = String::new();
                        block(item, indent + 2, &mut inner, random);
                        if inner.trim_start().starts_with('#') {
                            text.push('\n');
                            text.push_str(&inner);
                        } else {
                            text.push_str(&inner[indent + 1..]);
                        }
                    }
                    item => inside(item, indent + 2, text, random),
                }
            }
        }
        scalar => {
            text.push_str(&format!("{margin}{}\n", flow(scalar, random)));
        }
    }
}

/// Writes a value that follows a name or a dash.
fn inside(value: &Value, indent: usize, text: &mut String, random: &mut Random) {
    let is_block = match value {
        Value::Object(members) => !members.is_empty() && random.chance(4, 5),
        Value::Array(items) => !items.is_empty() && random.chance(2, 3),
        _ => false,
    };
    if is_block {
        text.push('\n');
        // A list may have the indentation of its name, but a mapping must be indented further.
        let deeper = match value {
            Value::Array(_) if random.chance(1, 3) => 0,
            _ => *random.pick(&[2, 2, 4]),
        };
        block(value, indent + deeper, text, random);
    } else {
        let comment = if random.chance(1, 30) { "  # as told" } else { "" };
        text.push_str(&format!(" {}{comment}\n", flow(value, random)));
    }
}

fn flow(value: &Value, random: &mut Random) -> String {
    match value {
        Value::Null => random.pick(&["null", "~", "Null"]).to_string(),
        Value::Bool(true) => random.pick(&["true", "true", "yes", "on", "True", "TRUE", "Yes"]).to_string(),
        Value::Bool(false) => random.pick(&["false", "false", "no", "off", "False", "NO"]).to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(string) => scalar_text(string, random, true),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| flow(item, random)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}: {}", scalar_text(name, random, false), flow(value, random))
            };
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}}}", members.join(", "))
        }
    }
}

/// Writes a string, usually without quotes if YAML then reads the same string. People also omit the quotes of a MAC
/// address that YAML then reads as a number, so this function does, too.
fn scalar_text(string: &str, random: &mut Random, is_value: bool) -> String {
    let is_mac = string.len() == 17 && string.split(':').count() == 6;
    let is_plain = string.starts_with(|c: char| c.is_ascii_alphanumeric())
        && string.chars().all(|c| c.is_ascii_alphanumeric() || "._/-:".contains(c))
        && !string.ends_with(':')
        && (is_mac || string.contains(|c: char| c.is_ascii_alphabetic()) || string.matches('.').count() > 1);
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain = is_plain && !words.contains(&string.to_ascii_lowercase().as_str());
    match random.between(0, 5) {
        0 if is_value => format!("'{}'", string.replace('\'', "''")),
        1 if is_value => Value::from(string).to_string(),
        _ if is_plain => string.to_owned(),
        _ => format!("\"{string}\""),
    }
}
