//! A policy of an administrator that denies the controller's writes of one kind in one namespace. The policy is a
//! validating webhook, because every version of the API server supports webhooks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::time::{Duration, sleep};

use crate::place::ELSEWHERE;
use crate::random::Random;
use crate::settle;
use crate::support::hook::Hook;
use crate::support::replica::configurations;
use crate::support::{CONTROLLER, Cluster};
use crate::witness::Witness;

const KIND: &str = "ValidatingWebhookConfiguration";
const NAME: &str = "denial";
/// Plural names of kinds. Each policy denies the writes of one kind.
const KINDS: [&str; 6] =
    ["staticipleases", "secrets", "ipaddresses", "ipaddressclaims", "virtualmachines", "staticippools"];
/// Time limit for the first denied write.
const FIRST: Duration = Duration::from_secs(10);
/// Number of quick attempts for one object. After these attempts, the controller pauses between two attempts.
const ATTEMPTS: u64 = 12;

pub struct Denial {
    hook: Hook,
    state: Arc<Mutex<State>>,
    /// Number of policies so far.
    count: usize,
    /// Whether a policy has denied writes of leases since the last call of [`Denial::take_denied_leases`].
    has_denied_leases: bool,
}

#[derive(Default)]
struct State {
    /// The writes that are denied now: plural of the kind, namespace, and the reason in the answer.
    denied: Option<(&'static str, String, String)>,
    /// Number of denied writes of each object.
    attempts: BTreeMap<String, u64>,
}

// === impl Denial ===

impl Denial {
    pub async fn new() -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let decided = Arc::clone(&state);
        let hook = Hook::without_records(move |request| decided.lock().unwrap().decide(request)).await;
        Self { hook, state, count: 0, has_denied_leases: false }
    }

    /// Returns whether policies have denied writes of leases since the last call. The controller writes such a lease
    /// again after up to five minutes, and the machine that waits for the lease claims again up to five minutes later.
    pub fn take_denied_leases(&mut self) -> bool {
        std::mem::take(&mut self.has_denied_leases)
    }

    /// Denies writes of one kind in one namespace for some time. Returns a violation if the claim of the witness is not
    /// served, if the controller tries without pauses, or if no log contains the reason. `logs` returns the logs of the
    /// replicas.
    pub async fn run(
        &mut self,
        random: &mut Random,
        cluster: &Cluster,
        (namespace, witness): (&str, &Witness),
        logs: impl Fn() -> String,
    ) -> Vec<String> {
        self.count += 1;
        let kind = KINDS[random.below(KINDS.len())];
        let reason = format!("denied by policy {}", self.count);
        let fault = format!("a policy denies {kind} in {namespace}");
        self.state.lock().unwrap().denied = Some((kind, namespace.to_owned(), reason.clone()));
        let rule = json!({
            "operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": [kind, format!("{kind}/*")],
        });
        let members = json!({"rules": [rule], "failurePolicy": "Ignore"});
        settle(async || self.hook.configure(cluster, KIND, NAME, &members).await).await;
        let began = Instant::now();
        while self.state.lock().unwrap().attempts.is_empty() && began.elapsed() < FIRST {
            sleep(Duration::from_millis(200)).await;
        }
        let mut violations: Vec<String> = witness.serve(&fault).await.err().into_iter().collect();
        sleep(Duration::from_millis(random.below(20_000) as u64)).await;
        let (denied, seconds) = (self.end(cluster).await, began.elapsed().as_secs());
        self.has_denied_leases |= kind == "staticipleases" && !denied.is_empty();
        if let Some((object, attempts)) = denied.iter().max_by_key(|(_, attempts)| **attempts) {
            println!("{:>8} denied writes of {object}, the most of one object, in {seconds} s: {fault}", attempts);
            if *attempts > ATTEMPTS + seconds {
                violations.push(format!("{fault}: {attempts} writes of {object} in {seconds} s"));
            }
            if !logs().contains(&reason) {
                violations.push(format!("{fault}: no log of a replica contains {reason:?}"));
            }
        }
        violations
    }

    /// Ends the policy. Returns the number of denied writes of each object.
    async fn end(&self, cluster: &Cluster) -> BTreeMap<String, u64> {
        let configurations = configurations(cluster, KIND);
        settle(async || configurations.delete(NAME, &DeleteParams::default()).await).await;
        let mut state = self.state.lock().unwrap();
        state.denied = None;
        std::mem::take(&mut state.attempts)
    }
}

// === impl State ===

impl State {
    fn decide(&mut self, request: &Value) -> Value {
        let allowed = json!({"allowed": true});
        let Some((kind, namespace, reason)) = &self.denied else { return allowed };
        let object = if request["object"].is_null() { &request["oldObject"] } else { &request["object"] };
        let of_object = match *kind {
            "staticipleases" => &object["spec"]["holder"]["namespace"],
            _ => &request["namespace"],
        };
        let of_object = of_object.as_str().unwrap_or_default();
        let is_denied = request["userInfo"]["username"] == CONTROLLER
            && request["resource"]["resource"] == *kind
            && of_object.strip_suffix(ELSEWHERE).unwrap_or(of_object) == namespace;
        if !is_denied {
            return allowed;
        }
        // A Secret gets a new name in each attempt, so the name of its owner identifies the object.
        let owner = object["metadata"]["ownerReferences"][0]["name"].as_str();
        let name = owner.or(request["name"].as_str().filter(|name| !name.is_empty()));
        let name = name.or(object["metadata"]["name"].as_str()).unwrap_or_default();
        let name = format!("{} {name}", request["operation"].as_str().unwrap_or_default());
        *self.attempts.entry(name).or_default() += 1;
        json!({"allowed": false, "status": {"code": 403, "reason": "Forbidden", "message": reason}})
    }
}
