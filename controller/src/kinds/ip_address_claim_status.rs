//! The status of a claim: the reference to its address, the condition `Ready` in the forms of both versions, and the
//! condition `Paused`, which has the current form only.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::cluster::conditions::{head, status_patch};
use crate::cluster::key::PoolId;
use crate::kinds::cluster_api::{IpAddressClaim, Version, pool_kind};

/// State of a claim in its conditions.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Readiness {
    /// `Ready` is `True` with reason `AddressAllocated`: the IPAddress with the name of the claim exists. The value is
    /// the pool of the address, if `spec.poolRef` of the claim names another pool.
    Ready(Option<PoolId>),
    /// `Ready` is `False`: a reason, and a message for people.
    NotReady(NotReady, String),
    /// `Paused` is `True`, and `Ready` does not change. The string is a message for people: what pauses the claim.
    Paused(String),
}

/// Reasons for a claim without an address, as the IPAM contract defines them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotReady {
    /// The claim, or an object with its name, prevents the allocation.
    AllocationFailed,
    /// The pool does not exist or allocates nothing, or it has two families and the claim requests neither of the two.
    PoolNotReady,
    /// The pool has no free address.
    PoolExhausted,
}

/// The two forms of a condition.
#[derive(Clone, Copy)]
enum Form {
    /// The form of Kubernetes, with a reason and a generation.
    Current,
    /// The form of Cluster API before `v1beta2`, with a severity.
    Old,
}

// === impl Readiness ===

impl Readiness {
    /// Returns the conditions in this form. `Paused` exists in the current form only.
    fn conditions(&self, form: Form, generation: Option<i64>) -> Vec<Value> {
        let current = |type_: &str, status: &str, reason: &str, message: &str| {
            let mut condition = json!({"type": type_, "status": status, "reason": reason, "message": message});
            if let Some(generation) = generation {
                condition["observedGeneration"] = generation.into();
            }
            condition
        };
        let not_paused = || current("Paused", "False", "NotPaused", "The claim is not paused");
        match (form, self) {
            (Form::Current, Self::Ready(other)) => {
                let message = other.as_ref().map_or_else(|| "The claim has an address".to_owned(), |pool| {
                    let kind = pool_kind(pool).kind;
                    format!(
                        "The claim has an address of {kind} {pool}: a change of spec.poolRef has no effect, create the claim again"
                    )
                });
                vec![current("Ready", "True", "AddressAllocated", &message), not_paused()]
            }
            (Form::Current, Self::NotReady(reason, message)) => {
                vec![current("Ready", "False", reason.name(), head(message)), not_paused()]
            }
            (Form::Current, Self::Paused(message)) => vec![current("Paused", "True", "Paused", head(message))],
            (Form::Old, Self::Ready(_)) => vec![json!({"type": "Ready", "status": "True"})],
            (Form::Old, Self::NotReady(reason, message)) => vec![json!({
                "type": "Ready", "status": "False", "severity": "Error", "reason": reason.name(), "message": head(message),
            })],
            (Form::Old, Self::Paused(_)) => Vec::new(),
        }
    }
}

// === impl NotReady ===

impl NotReady {
    fn name(self) -> &'static str {
        match self {
            Self::AllocationFailed => "AllocationFailed",
            Self::PoolNotReady => "PoolNotReady",
            Self::PoolExhausted => "PoolExhausted",
        }
    }
}

// === impl IpAddressClaim ===

impl IpAddressClaim {
    /// Returns the JSON patch that sets this readiness in the status. `None`: the status already has this readiness.
    ///
    /// Conditions of other controllers are kept. `now` is the time of a transition.
    #[must_use]
    pub fn status_patch(&self, version: Version, readiness: &Readiness, now: Timestamp) -> Option<Value> {
        let (current, old) = match version {
            Version::V1Beta2 => (0, 1),
            Version::V1Beta1 => (2, 0),
        };
        let condition = |(list, form): (usize, Form)| {
            self.conditions[list].set(readiness.conditions(form, self.metadata.generation), now)
        };
        let mut operations: Vec<Value> =
            [(current, Form::Current), (old, Form::Old)].into_iter().flat_map(condition).collect();
        if matches!(readiness, Readiness::Ready(_)) && !self.has_address {
            let address = json!({"name": self.metadata.name});
            operations.push(json!({"op": "add", "path": "/status/addressRef", "value": address}));
        }
        status_patch(&self.metadata, self.has_status, operations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::conditions::patched;

    const EARLIER: &str = "1970-01-01T00:00:05Z";
    const NOW: &str = "1970-01-01T00:01:40Z";

    fn claim(status: &Value) -> IpAddressClaim {
        let object = json!({
            "metadata": {"name": "c", "namespace": "n", "generation": 2, "resourceVersion": "7"},
            "spec": {"poolRef": {"kind": "StaticIPPool", "name": "p"}},
            "status": status,
        });
        IpAddressClaim::read(serde_json::from_value(object).unwrap()).unwrap()
    }

    /// Returns the status of a claim after the patch. `None`: there is no patch.
    fn patch(version: Version, status: &Value, readiness: &Readiness) -> Option<Value> {
        let patch = claim(status).status_patch(version, readiness, Timestamp::from_second(100).unwrap())?;
        Some(patched(status, &patch))
    }

    fn exhausted() -> Readiness {
        Readiness::NotReady(NotReady::PoolExhausted, "No available IPs in pool for interface eno101".to_owned())
    }

    fn not_paused() -> Value {
        json!({"type": "Paused", "status": "False", "reason": "NotPaused", "message": "The claim is not paused", "observedGeneration": 2,
               "lastTransitionTime": NOW})
    }

    fn wanted(status: &Value) -> Option<Value> {
        Some(status.clone())
    }

    #[test]
    fn a_ready_claim_names_its_address_and_has_its_condition_in_both_forms() {
        let current = json!([{"type": "Ready", "status": "True", "reason": "AddressAllocated", "message": "The claim has an address",
                              "observedGeneration": 2, "lastTransitionTime": NOW}, not_paused()]);
        let old = json!([{"type": "Ready", "status": "True", "lastTransitionTime": NOW}]);
        let status =
            json!({"addressRef": {"name": "c"}, "conditions": current, "deprecated": {"v1beta1": {"conditions": old}}});
        assert_eq!(patch(Version::V1Beta2, &Value::Null, &Readiness::Ready(None)), wanted(&status));
        assert_eq!(patch(Version::V1Beta2, &status, &Readiness::Ready(None)), None);
        let status = json!({"addressRef": {"name": "c"}, "conditions": old, "v1beta2": {"conditions": current}});
        assert_eq!(patch(Version::V1Beta1, &Value::Null, &Readiness::Ready(None)), wanted(&status));
        assert_eq!(patch(Version::V1Beta1, &status, &Readiness::Ready(None)), None);
    }

    #[test]
    fn a_claim_that_waits_has_a_reason_in_both_forms_of_its_condition_and_no_address() {
        let message = "No available IPs in pool for interface eno101";
        let current = json!([{"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": message,
                              "observedGeneration": 2, "lastTransitionTime": NOW}, not_paused()]);
        let old = json!([{"type": "Ready", "status": "False", "severity": "Error", "reason": "PoolExhausted",
                          "message": message, "lastTransitionTime": NOW}]);
        let status = json!({"conditions": current, "deprecated": {"v1beta1": {"conditions": old}}});
        assert_eq!(patch(Version::V1Beta2, &json!({}), &exhausted()), wanted(&status));
    }

    #[test]
    fn conditions_of_other_controllers_stay_and_a_time_changes_only_with_a_transition() {
        let other =
            json!({"type": "Other", "status": "False", "reason": "x", "message": "", "lastTransitionTime": EARLIER});
        let ready = json!({"type": "Ready", "status": "False", "reason": "PoolNotReady", "message": "x",
                           "observedGeneration": 1, "lastTransitionTime": EARLIER});
        let patch = patch(Version::V1Beta2, &json!({"conditions": [ready, other]}), &exhausted()).unwrap();
        let message = "No available IPs in pool for interface eno101";
        let ready = json!({"type": "Ready", "status": "False", "reason": "PoolExhausted", "message": message,
                           "observedGeneration": 2, "lastTransitionTime": EARLIER});
        assert_eq!(patch["conditions"], json!([ready, other, not_paused()]));
    }

    #[test]
    fn a_paused_claim_gets_the_condition_paused_and_keeps_its_other_conditions() {
        let pause = Readiness::Paused("Cluster n/c is paused".to_owned());
        let paused = json!({"type": "Paused", "status": "True", "reason": "Paused", "message": "Cluster n/c is paused",
                            "observedGeneration": 2, "lastTransitionTime": NOW});
        let status = json!({"conditions": [paused]});
        assert_eq!(patch(Version::V1Beta2, &Value::Null, &pause), wanted(&status));
        assert_eq!(patch(Version::V1Beta2, &status, &pause), None);
        assert_eq!(patch(Version::V1Beta1, &Value::Null, &pause), Some(json!({"v1beta2": {"conditions": [paused]}})));
        let ready = patch(Version::V1Beta2, &Value::Null, &Readiness::Ready(None)).unwrap();
        let mut both = ready.clone();
        both["conditions"][1] = paused;
        assert_eq!(patch(Version::V1Beta2, &ready, &pause), Some(both.clone()));
        assert_eq!(patch(Version::V1Beta2, &both, &Readiness::Ready(None)), Some(ready));
    }

    #[test]
    fn a_claim_in_memory_has_no_conditions_of_other_controllers() {
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": EARLIER});
        let status = |others: usize| {
            let other = json!({"type": "Other", "status": "False", "message": "x".repeat(100)});
            let conditions: Vec<Value> = [ready.clone()].into_iter().chain(vec![other; others]).collect();
            json!({"conditions": conditions, "unknown": "x".repeat(others)})
        };
        assert_eq!(claim(&status(10_000)), claim(&status(1)));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let long = Readiness::NotReady(NotReady::AllocationFailed, "é".repeat(10_000));
        let patch = patch(Version::V1Beta2, &json!({}), &long).unwrap();
        assert_eq!(patch["conditions"][0]["message"], "é".repeat(5_120));
    }
}
