//! The `matchConditions` of webhooks: expressions in CEL, as API servers since 1.28 evaluate them.
//!
//! A real server also checks the types of an expression when a configuration is written. This server finds such a
//! mistake only when it evaluates the expression.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::{Context, Env, Program, extensions};
use serde_json::Value;

use super::store::Refusal;

/// What the conditions of a webhook decide about one request.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Every condition is true.
    Call,
    /// A condition is false.
    Skip,
    /// No condition is false, and at least one condition cannot be evaluated: an error for each such condition.
    Failed(Vec<String>),
}

/// The libraries that API servers provide and the crate `cel` implements: the standard library, strings and optional
/// values.
static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    env.add_extension(extensions::strings).expect("the extension has names of its own");
    Arc::new(env)
});

/// Checks the expressions of a webhook configuration that is written.
pub fn check(configuration: &Value) -> Result<(), Refusal> {
    for (index, webhook) in configuration["webhooks"].as_array().into_iter().flatten().enumerate() {
        for (of_webhook, (_, expression)) in conditions(webhook).enumerate() {
            if let Err(error) = ENV.compile(expression) {
                let path = format!("webhooks[{index}].matchConditions[{of_webhook}].expression");
                let message = format!("{path}: Invalid value: {expression:?}: compilation failed: {error}");
                return Err(Refusal::invalid(message));
            }
        }
    }
    Ok(())
}

/// Evaluates the conditions of a webhook for the request of a review.
pub fn decide(webhook: &Value, request: &Value) -> Decision {
    let mut errors = Vec::new();
    for (name, expression) in conditions(webhook) {
        match evaluate(expression, request) {
            Ok(true) => {}
            Ok(false) => return Decision::Skip,
            Err(error) => errors.push(format!("{name}: expression '{expression}' resulted in error: {error}")),
        }
    }
    if errors.is_empty() { Decision::Call } else { Decision::Failed(errors) }
}

/// Returns the name and the expression of each condition.
fn conditions(webhook: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = webhook["matchConditions"].as_array().into_iter().flatten();
    all.map(|one| ["name", "expression"].map(|member| one[member].as_str().unwrap_or_default())).map(Into::into)
}

fn evaluate(expression: &str, request: &Value) -> Result<bool, String> {
    let program: Program = ENV.compile(expression).map_err(|error| error.to_string())?;
    let mut context = Context::with_env(Arc::clone(&ENV));
    context.add_variable_from_value("object", value(&request["object"]));
    context.add_variable_from_value("oldObject", value(&request["oldObject"]));
    let mut rest = request.clone();
    for member in ["object", "oldObject"] {
        rest.as_object_mut().and_then(|request| request.remove(member));
    }
    context.add_variable_from_value("request", value(&rest));
    match program.execute(&context) {
        Ok(cel::Value::Bool(is_true)) => Ok(is_true),
        Ok(other) => Err(format!("{other:?} is not a boolean")),
        Err(error) => Err(error.to_string()),
    }
}

/// Converts JSON to a value of CEL. A whole number becomes an `int`, as in API servers.
fn value(json: &Value) -> cel::Value {
    match json {
        Value::Null => cel::Value::Null,
        Value::Bool(bool) => cel::Value::Bool(*bool),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| cel::Value::Float(number.as_f64().unwrap_or_default()), cel::Value::Int)
        }
        Value::String(text) => text.as_str().into(),
        Value::Array(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Value::Object(members) => {
            let members = members.iter().map(|(name, member)| (name.clone(), value(member)));
            members.collect::<HashMap<String, cel::Value>>().into()
        }
    }
}
