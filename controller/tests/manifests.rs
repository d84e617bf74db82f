//! Checks that the manifests in `config` agree with the program, with each other, and with the requirements of Cluster
//! API for a provider.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use glowplug_controller::kinds::network_data::{NETWORK_DATA_LABEL, VM_ANNOTATION};
use glowplug_controller::kinds::pool::definitions;
use glowplug_controller::kinds::virtual_machine::{
    MAC_ADDRESSES_LABEL, MAC_POOLS_LABEL, MACHINES_LABEL, instances, virtual_machines,
};
use glowplug_controller::pools::reference::{MACHINES_PATH, UPDATES_PATH};
use glowplug_controller::program::run::Options;
use glowplug_controller::webhook::{INSTANCES_PATH, MACS_PATH, POOLS_PATH};
use kube::api::ApiResource;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::manifests::{config, documents, object, render, render_folder};
use crate::support::server::conditions::{self, Decision};
use crate::support::{CONTROLLER, SYSTEM};

/// The folders from which the controller can be installed in a cluster.
const INSTALLED: [&str; 3] = ["default", "openshift", "clusterctl"];
/// Name of the Deployment, and of its service account, roles and bindings.
const MANAGER: &str = "glowplug-controller-manager";
/// Name of the Service, the webhook configurations and the certificate.
const SERVICE: &str = "glowplug-controller";
/// Name of the account whose token Prometheus uses, and of its Secret, role and binding.
const METRICS_READER: &str = "glowplug-controller-metrics-reader";
/// The kinds of webhook configurations.
const WEBHOOKS: [&str; 2] = ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"];

/// The arguments of `glowplug-controller run`.
#[derive(Parser)]
struct Run {
    #[command(flatten)]
    options: Options,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

/// Returns the string with each `${NAME:=default}` replaced by its default, as clusterctl does for a user who sets no
/// variable.
fn substituted(text: &str) -> String {
    let mut parts = text.split("${");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |done, part| {
        let (variable, rest) = part.split_once('}').unwrap();
        let (_, default) = variable.split_once(":=").unwrap();
        done + default + rest
    })
}

/// Returns the specification of the pod of the manager, and of its only container.
fn pod(objects: &[Value]) -> (&Value, &Value) {
    let pod = &object(objects, "Deployment", MANAGER)["spec"]["template"]["spec"];
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1);
    (pod, &pod["containers"][0])
}

fn port<'a>(ports: &'a Value, name: &str) -> &'a Value {
    ports.as_array().unwrap().iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no port {name}"))
}

#[test]
fn the_manifest_of_the_crds_is_what_the_program_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_glowplug-controller")).arg("crd").output().unwrap();
    assert!(output.status.success());
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(
        fs::read_to_string(config("crd/glowplug.yaml")).is_ok_and(|written| written == printed),
        "config/crd/glowplug.yaml differs: write it with `glowplug-controller crd`",
    );
}

#[test]
fn the_names_of_the_crds_are_those_that_cluster_api_computes() {
    let names: BTreeSet<String> =
        definitions().into_iter().map(|definition| definition.metadata.name.unwrap()).collect();
    let expected = ["globalstaticippools", "macpools", "staticipleases", "staticippools"];
    assert_eq!(names, expected.map(|plural| format!("{plural}.ipam.glowplug.dev")).into());
}

#[test]
fn every_member_of_a_crd_has_a_description_and_every_leaf_has_an_example() {
    fn walk(schema: &Value, at: &str, lacking: &mut Vec<String>) {
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            let description = member["description"].as_str().unwrap_or_default();
            // Kubernetes itself describes the members of its own types.
            let is_foreign = ["machineSelector", "namespaceSelector", "conditions"].contains(&name.as_str());
            let is_leaf = member.get("properties").is_none();
            let has_example = description.contains("Example: `")
                || description.contains("`IPv4`")
                || description.contains("`KubevirtMachine`");
            if description.is_empty() || (is_leaf && !is_foreign && !has_example && name != "families") {
                lacking.push(at.clone());
            }
            if !is_foreign {
                walk(member, &at, lacking);
                walk(&member["items"], &at, lacking);
            }
        }
    }
    let mut lacking = Vec::new();
    for definition in definitions() {
        let definition = serde_json::to_value(definition).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap();
        for part in ["spec", "status"] {
            walk(&schema["properties"][part], &format!("{kind}.{part}"), &mut lacking);
        }
    }
    assert_eq!(lacking, [] as [String; 0]);
}

#[test]
fn the_generated_manifests_are_what_kustomize_makes_of_their_folders() {
    for (file, folder) in [
        ("clusterctl/ipam-components.yaml", "clusterctl"),
        ("install/install.yaml", "default"),
        ("install/install-openshift.yaml", "openshift"),
    ] {
        let (file, rendered) = (config(file), render(folder));
        if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
            let pages = rendered.iter().map(|object| format!("---\n{}", serde_saphyr::to_string(object).unwrap()));
            fs::write(&file, pages.collect::<String>()).unwrap();
        }
        assert!(documents(&file) == rendered, "{} differs: write it with UPDATE=1", file.display());
    }
}

#[test]
fn every_object_has_the_label_of_the_provider_and_namespaced_objects_share_one_namespace() {
    for folder in INSTALLED {
        let objects = render(folder);
        for object in &objects {
            let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
            assert_eq!(metadata["labels"]["cluster.x-k8s.io/provider"], "ipam-glowplug", "{kind} {metadata}");
            let is_of_cluster = kind.starts_with("Cluster")
                || kind.ends_with("WebhookConfiguration")
                || ["CustomResourceDefinition", "Namespace"].contains(&kind);
            let namespace = if is_of_cluster { Value::Null } else { SYSTEM.into() };
            assert_eq!(metadata["namespace"], namespace, "{kind} {metadata}");
        }
        assert_eq!(objects.iter().filter(|object| object["kind"] == "Namespace").count(), 1);
        object(&objects, "Namespace", SYSTEM);
    }
}

#[test]
fn the_arguments_of_the_manager_are_options_of_the_program() {
    for folder in INSTALLED {
        let objects = render(folder);
        let (pod, container) = pod(&objects);
        let arguments = container["args"].as_array().unwrap().iter().map(|argument| substituted(text(argument)));
        let Run { options } = Run::try_parse_from(arguments).unwrap();
        assert!(options.leader_elect && !options.insecure_diagnostics && options.namespace.is_empty());
        let ports = [
            ("metrics", options.diagnostics_address.unwrap().port()),
            ("health", options.health_addr.unwrap().port()),
            ("webhook", options.webhook_port),
        ];
        let expected: Vec<Value> =
            ports.iter().map(|(name, number)| json!({"name": name, "containerPort": number})).collect();
        assert_eq!(container["ports"], Value::from(expected));
        let mounts = json!([{
            "name": "certificate", "mountPath": options.webhook_cert_dir, "readOnly": true,
        }]);
        assert_eq!(container["volumeMounts"], mounts);
        assert_eq!(pod["volumes"].as_array().unwrap().len(), 1);
        assert_eq!(pod["volumes"][0]["name"], "certificate");
        for probe in ["livenessProbe", "readinessProbe"] {
            assert_eq!(container[probe]["httpGet"]["port"], "health");
        }
    }
}

#[test]
fn the_image_of_the_manager_has_the_version_of_the_package() {
    let image = concat!("glowplug-controller:v", env!("CARGO_PKG_VERSION"));
    for folder in INSTALLED {
        assert_eq!(substituted(text(&pod(&render(folder)).1["image"])), image);
    }
}

#[test]
fn the_pod_of_the_manager_needs_no_privileges_on_its_node() {
    let objects = render("manager");
    let (pod, container) = pod(&objects);
    let of_pod = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
    assert_eq!(pod["securityContext"], of_pod);
    let of_container = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    assert_eq!(container["securityContext"], of_container);
    let namespace = object(&objects, "Namespace", SYSTEM);
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn only_the_pods_of_the_manager_get_a_token_of_their_service_account() {
    for folder in INSTALLED {
        let objects = render(folder);
        assert_eq!(object(&objects, "ServiceAccount", MANAGER)["automountServiceAccountToken"], false);
        assert_eq!(pod(&objects).0["automountServiceAccountToken"], true);
    }
}

#[test]
fn an_update_ends_a_replica_only_after_a_new_replica_is_ready() {
    for folder in INSTALLED {
        let objects = render(folder);
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
        assert_eq!(object(&objects, "Deployment", MANAGER)["spec"]["strategy"], strategy);
    }
}

#[test]
fn a_pod_of_the_manager_is_killed_only_after_the_longest_shutdown_of_the_program() {
    for folder in INSTALLED {
        let seconds = [10, 10, 5, 5, 1].into_iter().sum::<u64>();
        assert!(pod(&render(folder)).0["terminationGracePeriodSeconds"].as_u64().unwrap() > seconds);
    }
}

#[test]
fn the_service_selects_the_pods_and_the_ports_of_the_manager() {
    let objects = render("default");
    let (service, deployment) = (object(&objects, "Service", SERVICE), object(&objects, "Deployment", MANAGER));
    let selector = &service["spec"]["selector"];
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], *selector);
    assert_eq!(deployment["spec"]["template"]["metadata"]["labels"], *selector);
    for service_port in service["spec"]["ports"].as_array().unwrap() {
        port(&pod(&objects).1["ports"], text(&service_port["targetPort"]));
    }
}

#[test]
fn a_network_policy_and_a_disruption_budget_select_the_pods_of_the_manager() {
    let objects = render("manager");
    let deployment = object(&objects, "Deployment", MANAGER);
    let labels = &deployment["spec"]["selector"];
    let policy = &object(&objects, "NetworkPolicy", MANAGER)["spec"];
    assert_eq!(policy["podSelector"], *labels);
    for allowed in policy["ingress"][0]["ports"].as_array().unwrap() {
        port(&pod(&objects).1["ports"], text(&allowed["port"]));
    }
    let budget = &object(&objects, "PodDisruptionBudget", MANAGER)["spec"];
    let expected = json!({"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": labels});
    assert_eq!(*budget, expected);
}

#[test]
fn prometheus_reads_the_metrics_of_the_service_with_the_certificate_of_the_manager() {
    let (installed, monitoring) = (render("default"), render("prometheus"));
    let service = object(&installed, "Service", SERVICE);
    let monitor = object(&monitoring, "ServiceMonitor", SERVICE);
    assert_eq!(monitor["metadata"]["namespace"], service["metadata"]["namespace"]);
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]);
    let endpoint = &monitor["spec"]["endpoints"][0];
    port(&service["spec"]["ports"], text(&endpoint["port"]));
    assert_eq!(endpoint["honorLabels"], true, "the alerts need the namespace of the pool");
    let tls = &endpoint["tlsConfig"];
    let secret = &pod(&installed).0["volumes"][0]["secret"]["secretName"];
    assert_eq!(tls["ca"]["secret"], json!({"name": secret, "key": "ca.crt"}));
    assert_eq!(tls["serverName"], format!("{SERVICE}.{SYSTEM}.svc"));
    let files: Vec<&String> = endpoint.as_object().unwrap().keys().filter(|member| member.ends_with("File")).collect();
    assert_eq!(files, [] as [&String; 0], "OpenShift allows no files of the pod of Prometheus");
    let secret = object(&monitoring, "Secret", METRICS_READER);
    let credentials = json!({"type": "Bearer", "credentials": {"name": secret["metadata"]["name"], "key": "token"}});
    assert_eq!(endpoint["authorization"], credentials);
    assert_eq!(secret["type"], "kubernetes.io/service-account-token");
    let account = object(&monitoring, "ServiceAccount", METRICS_READER);
    assert_eq!(account["automountServiceAccountToken"], false);
    assert_eq!(secret["metadata"]["annotations"]["kubernetes.io/service-account.name"], account["metadata"]["name"]);
    let binding = object(&monitoring, "ClusterRoleBinding", METRICS_READER);
    assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": METRICS_READER, "namespace": SYSTEM}]));
    let reader = object(&monitoring, "ClusterRole", text(&binding["roleRef"]["name"]));
    assert_eq!(reader["rules"], json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]));
}

#[test]
fn on_openshift_prometheus_trusts_the_service_ca_and_has_the_right_to_find_the_pods() {
    let monitoring = render("openshift-monitoring");
    let ca = &object(&monitoring, "ServiceMonitor", SERVICE)["spec"]["endpoints"][0]["tlsConfig"]["ca"];
    assert_eq!(*ca, json!({"configMap": {"name": "openshift-service-ca.crt", "key": "service-ca.crt"}}));
    let binding = object(&monitoring, "RoleBinding", "prometheus-k8s");
    let platform = json!([{"kind": "ServiceAccount", "name": "prometheus-k8s", "namespace": "openshift-monitoring"}]);
    assert_eq!(binding["subjects"], platform);
    object(&monitoring, "Role", text(&binding["roleRef"]["name"]));
    let installed = render("openshift");
    let namespace = object(&installed, "Namespace", SYSTEM);
    assert_eq!(namespace["metadata"]["labels"]["openshift.io/cluster-monitoring"], "true");
}

#[test]
fn on_openshift_the_pods_have_the_settings_of_platform_pods() {
    let objects = render("openshift");
    let template = &object(&objects, "Deployment", MANAGER)["spec"]["template"];
    let annotations = json!({
        "kubectl.kubernetes.io/default-container": "manager",
        "openshift.io/required-scc": "restricted-v2",
        "target.workload.openshift.io/management": "{\"effect\": \"PreferredDuringScheduling\"}",
    });
    assert_eq!(template["metadata"]["annotations"], annotations);
    assert_eq!(template["spec"]["priorityClassName"], "system-cluster-critical");
    let tolerations = ["control-plane", "master"]
        .map(|role| json!({"key": format!("node-role.kubernetes.io/{role}"), "effect": "NoSchedule"}));
    assert_eq!(template["spec"]["tolerations"], json!(tolerations));
    assert_eq!(template["spec"]["containers"][0]["terminationMessagePolicy"], "FallbackToLogsOnError");
    let namespace = object(&objects, "Namespace", SYSTEM);
    assert_eq!(namespace["metadata"]["annotations"], json!({"workload.openshift.io/allowed": "management"}));
}

#[test]
fn the_roles_for_people_give_rights_to_pools_but_not_to_leases() {
    let objects = render("rbac");
    let pools: Vec<String> = definitions().into_iter().map(|definition| definition.spec.names.plural).collect();
    let pools: BTreeSet<String> = pools.into_iter().filter(|plural| plural.ends_with("pools")).collect();
    let read = ["get", "list", "watch"];
    let write = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    for (role, verbs, aggregated) in
        [("view", &read[..], vec!["rbac.authorization.k8s.io/aggregate-to-view"]), ("edit", &write[..], vec![])]
    {
        let role = object(&objects, "ClusterRole", &format!("glowplug-pools-{role}"));
        let rules = role["rules"].as_array().unwrap();
        assert_eq!(rules.len(), 1);
        let resources: BTreeSet<String> = serde_json::from_value(rules[0]["resources"].clone()).unwrap();
        assert_eq!((&resources, &rules[0]["verbs"]), (&pools, &json!(verbs)));
        let labels = role["metadata"]["labels"].as_object().unwrap().keys();
        let labels: Vec<&String> = labels.filter(|label| label.contains("aggregate")).collect();
        assert_eq!(labels, aggregated);
    }
}

/// Returns every string in a value, at any depth.
fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(string) => vec![string],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(members) => members.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

/// Returns the folders of an administrator, with copies of the manifests and this `kustomization.yaml`.
fn installation(page: &str) -> (TempDir, PathBuf) {
    let work = tempfile::tempdir().unwrap();
    let (controller, install) = (work.path().join("controller"), work.path().join("install"));
    [&controller, &install].iter().for_each(|folder| fs::create_dir(folder).unwrap());
    let copy = Command::new("cp").arg("-r").args([&config(""), &controller.join("config")]).status();
    assert!(copy.unwrap().success());
    fs::write(install.join("kustomization.yaml"), page).unwrap();
    (work, install)
}

/// Returns the examples of a `kustomization.yaml` on the page about the installation. The second one completes the first.
fn examples() -> [String; 4] {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```yaml\n").skip(1).filter_map(|block| block.split("```").next());
    let blocks: Vec<&str> = blocks.filter(|block| block.contains("controller/config/")).collect();
    let [plain, namespace, first, second] = blocks[..] else { panic!("{blocks:#?}") };
    [plain.to_owned(), format!("{plain}{namespace}"), first.to_owned(), second.to_owned()]
}

#[test]
fn the_manifests_can_be_installed_in_another_namespace() {
    let [_, page, ..] = examples();
    for (folder, page) in [("default", page.clone()), ("openshift", page.replace("config/default", "config/openshift"))]
    {
        let page = match folder {
            "openshift" => page.split("transformers:").next().unwrap().to_owned(),
            _ => page,
        };
        let (_work, install) = installation(&page);
        let objects = render_folder(&install);
        let left: Vec<&str> = objects.iter().flat_map(strings).filter(|string| string.contains(SYSTEM)).collect();
        assert_eq!(left, [] as [&str; 0], "{folder}");
        object(&objects, "Namespace", "network-addresses");
        let subjects = &object(&objects, "ClusterRoleBinding", MANAGER)["subjects"];
        assert_eq!(*subjects, json!([{"kind": "ServiceAccount", "name": MANAGER, "namespace": "network-addresses"}]));
        if folder == "default" {
            let names = ["svc", "svc.cluster.local"].map(|end| format!("{SERVICE}.network-addresses.{end}"));
            assert_eq!(object(&objects, "Certificate", SERVICE)["spec"]["dnsNames"], json!(names));
            for kind in WEBHOOKS {
                let annotations = &object(&objects, kind, SERVICE)["metadata"]["annotations"];
                let expected = json!({"cert-manager.io/inject-ca-from": format!("network-addresses/{SERVICE}")});
                assert_eq!(*annotations, expected);
            }
        }
    }
}

#[test]
fn a_second_controller_shares_only_the_definitions_with_the_first_controller() {
    let [.., first, second] = examples();
    let [(_of_first, first), (_of_second, second)] = [first, second].map(|page| installation(&page));
    let [first, second] = [first, second].map(|install| render_folder(&install));
    let id = |object: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]))
    };
    let [of_first, of_second] = [&first, &second].map(|objects| objects.iter().map(id).collect::<BTreeSet<_>>());
    assert_eq!(of_first.intersection(&of_second).collect::<Vec<_>>(), [] as [&(String, String, String); 0]);
    let kinds = |of: &BTreeSet<(String, String, String)>| {
        let mut kinds: Vec<String> = of.iter().map(|(kind, ..)| kind.clone()).collect();
        kinds.retain(|kind| kind != "CustomResourceDefinition");
        kinds
    };
    assert_eq!((kinds(&of_first), of_second.len()), (kinds(&of_second), kinds(&of_second).len()));

    let last = |objects: &[Value], name: &str| {
        let deployment = object(objects, "Deployment", name);
        deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().last().unwrap().clone()
    };
    let (manager, service) = (format!("{MANAGER}-team-a"), format!("{SERVICE}-team-a"));
    assert_eq!(last(&first, MANAGER), "--watch-filter=shared");
    assert_eq!(last(&second, &manager), "--namespace=team-a");
    let left: Vec<&str> = second.iter().flat_map(strings).filter(|string| string.contains(SYSTEM)).collect();
    assert_eq!(left, [] as [&str; 0]);
    let account = json!([{"kind": "ServiceAccount", "name": manager, "namespace": "glowplug-team-a"}]);
    let binding = object(&second, "ClusterRoleBinding", &manager);
    assert_eq!((&binding["subjects"], &binding["roleRef"]["name"]), (&account, &json!(manager)));
    let pod = &object(&second, "Deployment", &manager)["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], json!(manager));
    let certificate = &object(&second, "Certificate", &service)["spec"];
    let names = ["svc", "svc.cluster.local"].map(|end| format!("{service}.glowplug-team-a.{end}"));
    assert_eq!((&certificate["dnsNames"], &certificate["issuerRef"]["name"]), (&json!(names), &json!(service)));
    object(&second, "Issuer", &service);
    for kind in WEBHOOKS {
        let configuration = object(&second, kind, &service);
        let annotations = json!({"cert-manager.io/inject-ca-from": format!("glowplug-team-a/{service}")});
        assert_eq!(configuration["metadata"]["annotations"], annotations);
        for webhook in configuration["webhooks"].as_array().unwrap() {
            let of_webhook = &webhook["clientConfig"]["service"];
            assert_eq!((&of_webhook["name"], &of_webhook["namespace"]), (&json!(service), &json!("glowplug-team-a")));
        }
    }
}

/// The other tests use a renderer of their own instead of kustomize. If kubectl is installed, this test compares the
/// renderer with kubectl.
#[test]
fn kubectl_renders_the_same_manifests_as_the_renderer_of_the_tests() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("kubectl: not found, so the rendered manifests are not compared");
        return;
    }
    let kustomize = |folder: &Path| {
        let output = Command::new("kubectl").arg("kustomize").arg(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        sorted(serde_saphyr::from_multiple(&text).unwrap())
    };
    for folder in ["default", "openshift", "clusterctl", "prometheus", "openshift-monitoring"] {
        assert!(kustomize(&config(folder)) == sorted(render(folder)), "{folder}");
    }
    for page in examples() {
        let (_work, install) = installation(&page);
        assert!(kustomize(&install) == sorted(render_folder(&install)), "{page}");
    }
}

/// Sorts objects by kind and name, for a comparison. Also normalizes numbers and white space, because kubectl writes
/// `0.0` as `0`, and repeats some line breaks of expressions.
fn sorted(objects: Vec<Value>) -> Vec<Value> {
    fn plain(value: Value) -> Value {
        match value {
            Value::Number(number) => json!(number.as_f64()),
            Value::String(string) => string.split_whitespace().collect::<Vec<_>>().join(" ").into(),
            Value::Array(items) => items.into_iter().map(plain).collect(),
            Value::Object(members) => members.into_iter().map(|(name, member)| (name, plain(member))).collect(),
            other => other,
        }
    }
    let mut objects: Vec<Value> = objects.into_iter().map(plain).collect();
    objects.sort_by_key(|object| (object["kind"].to_string(), object["metadata"]["name"].to_string()));
    objects
}

#[test]
fn the_api_server_calls_the_webhook_for_every_change_of_a_pool() {
    let objects = render("default");
    let configuration = object(&objects, "ValidatingWebhookConfiguration", SERVICE);
    let webhook = &configuration["webhooks"][0];
    let service = object(&objects, "Service", SERVICE);
    let expected = json!({"service": {
        "name": SERVICE, "namespace": SYSTEM, "path": POOLS_PATH, "port": port(&service["spec"]["ports"], "webhook")["port"],
    }});
    assert_eq!(webhook["clientConfig"], expected);
    let plurals = definitions().into_iter().map(|definition| definition.spec.names.plural);
    let pools: BTreeSet<String> = plurals.filter(|plural| plural.ends_with("pools")).collect();
    let rule = &webhook["rules"][0];
    let resources: BTreeSet<String> = serde_json::from_value(rule["resources"].clone()).unwrap();
    assert_eq!(resources, pools);
    assert_eq!(rule["operations"], json!(["CREATE", "UPDATE", "DELETE"]));
    assert_eq!((&rule["apiGroups"], &rule["apiVersions"]), (&json!(["ipam.glowplug.dev"]), &json!(["v1alpha1"])));
    assert_eq!((&webhook["failurePolicy"], &webhook["sideEffects"]), (&json!("Fail"), &json!("None")));
}

/// Returns the webhook of this name in the configuration of this kind.
fn webhook(kind: &str, name: &str) -> Value {
    let objects = render("default");
    let webhooks = object(&objects, kind, SERVICE)["webhooks"].as_array().unwrap();
    let named = format!("{name}.ipam.glowplug.dev");
    webhooks.iter().find(|webhook| webhook["name"] == named).unwrap_or_else(|| panic!("no webhook {name}")).clone()
}

/// Returns the client configuration of a webhook with this path.
fn client_config(path: &str) -> Value {
    let objects = render("default");
    let port = &port(&object(&objects, "Service", SERVICE)["spec"]["ports"], "webhook")["port"];
    json!({"service": {"name": SERVICE, "namespace": SYSTEM, "path": path, "port": port}})
}

/// Returns the rules of a webhook for one operation on a kind.
fn rules(kind: &ApiResource, operation: &str) -> Value {
    json!([{
        "apiGroups": [kind.group], "apiVersions": [kind.version], "resources": [kind.plural], "operations": [operation],
    }])
}

#[test]
fn the_webhook_configurations_have_only_the_webhooks_that_these_tests_check() {
    let objects = render("default");
    let names = |kind: &str| {
        let webhooks = object(&objects, kind, SERVICE)["webhooks"].as_array().unwrap();
        webhooks.iter().map(|webhook| text(&webhook["name"]).to_owned()).collect::<Vec<_>>()
    };
    let expected = |names: &[&str]| names.iter().map(|name| format!("{name}.ipam.glowplug.dev")).collect::<Vec<_>>();
    assert_eq!(names(WEBHOOKS[0]), expected(&["pools", "instances", "network-data"]));
    assert_eq!(names(WEBHOOKS[1]), expected(&["machines", "machine-updates", "mac-addresses", "mac-address-updates"]));
}

#[test]
fn the_api_server_calls_the_webhooks_for_new_machines_in_labelled_namespaces() {
    for (name, path, label) in
        [("machines", MACHINES_PATH, MACHINES_LABEL), ("mac-addresses", MACS_PATH, MAC_POOLS_LABEL)]
    {
        let expected = json!({
            "name": format!("{name}.ipam.glowplug.dev"),
            "rules": rules(&virtual_machines(), "CREATE"),
            "namespaceSelector": {"matchLabels": {label: "true"}},
            "clientConfig": client_config(path),
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "matchPolicy": "Equivalent", "reinvocationPolicy": "IfNeeded", "timeoutSeconds": 5,
        });
        assert_eq!(webhook(WEBHOOKS[1], name), expected);
    }
}

#[test]
fn the_api_server_calls_the_webhook_for_changes_of_machines_and_ignores_its_failure() {
    for (name, label) in [("machine-updates", MACHINES_LABEL), ("mac-address-updates", MAC_POOLS_LABEL)] {
        let mut webhook = webhook(WEBHOOKS[1], name);
        webhook.as_object_mut().unwrap().remove("matchConditions").unwrap();
        let expected = json!({
            "name": format!("{name}.ipam.glowplug.dev"),
            "rules": rules(&virtual_machines(), "UPDATE"),
            "namespaceSelector": {"matchLabels": {label: "true"}},
            "clientConfig": client_config(UPDATES_PATH),
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "matchPolicy": "Equivalent", "reinvocationPolicy": "IfNeeded", "timeoutSeconds": 5,
        });
        assert_eq!(webhook, expected);
    }
}

#[test]
fn the_api_server_calls_no_webhook_for_a_deleted_machine_or_a_change_outside_the_template() {
    let old = json!({"metadata": {"name": "w"}, "spec": {"running": false, "template": {"spec": {"volumes": []}}}});
    let changed = |change: Value| {
        let mut new = old.clone();
        json_patch::merge(&mut new, &change);
        json!({"object": new, "oldObject": old, "namespace": "n"})
    };
    let template = json!({"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}});
    let mut deleted = template.clone();
    deleted["metadata"] = json!({"deletionTimestamp": "2026-08-14T10:00:00Z"});
    for name in ["machine-updates", "mac-address-updates"] {
        let webhook = webhook(WEBHOOKS[1], name);
        let decide = |change: &Value| conditions::decide(&webhook, &changed(change.clone()));
        assert_eq!(decide(&template), Decision::Call);
        assert_eq!(decide(&deleted), Decision::Skip);
        assert_eq!(decide(&json!({"spec": {"running": true}, "status": {"ready": true}})), Decision::Skip);
    }
}

#[test]
fn the_api_server_calls_the_webhook_only_for_instances_with_a_label_of_the_controller() {
    for (name, label) in [("instances", MAC_ADDRESSES_LABEL), ("network-data", NETWORK_DATA_LABEL)] {
        let mut webhook = webhook(WEBHOOKS[0], name);
        webhook.as_object_mut().unwrap().remove("matchConditions");
        let expected = json!({
            "name": format!("{name}.ipam.glowplug.dev"),
            "rules": rules(&instances(), "CREATE"),
            "objectSelector": {"matchExpressions": [{"key": label, "operator": "Exists"}]},
            "clientConfig": client_config(INSTANCES_PATH),
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
            "matchPolicy": "Equivalent", "timeoutSeconds": 5,
        });
        assert_eq!(webhook, expected);
    }
}

#[test]
fn the_api_server_calls_no_webhook_for_an_instance_with_network_data_of_its_own() {
    let webhook = webhook(WEBHOOKS[0], "network-data");
    let instance = |source: Value, vm: &str| {
        json!({
            "metadata": {"name": "w-0", "namespace": "n", "annotations": {(VM_ANNOTATION): vm}},
            "spec": {"volumes": [{"name": "root", "dataVolume": {"name": "root"}}, source]},
        })
    };
    let drive = |source: Value| json!({"name": "c", "cloudInitConfigDrive": source});
    let secret = |name: &str| drive(json!({"networkDataSecretRef": {"name": name}}));
    let own = secret("w-0-networkdata-abcdefghijklmnop");
    let no_cloud = json!({"name": "c", "cloudInitNoCloud": {"networkDataSecretRef": {"name": "w-0-networkdata-abcdefghijklmnop"}}});
    let skipped = [
        instance(own.clone(), "n/w-0"),
        instance(no_cloud, "n/w-0"),
        instance(secret("w-0-networkdata"), "n/w-0"),
        instance(drive(json!({"networkData": "x"})), "n/w-0"),
        instance(drive(json!({"networkDataBase64": "eA=="})), "n/w-0"),
    ];
    let mut without_annotations = instance(own.clone(), "n/w-0");
    without_annotations["metadata"].as_object_mut().unwrap().remove("annotations");
    let mut without_volumes = instance(own.clone(), "n/w-0");
    without_volumes["spec"].as_object_mut().unwrap().remove("volumes");
    let mut with_other_annotation = instance(own.clone(), "n/w-0");
    with_other_annotation["metadata"]["annotations"] = json!({"a": "b"});
    let mut second = instance(drive(json!({"secretRef": {"name": "u"}})), "n/w-0");
    second["spec"]["volumes"].as_array_mut().unwrap().push(own.clone());
    let asked = [
        instance(own.clone(), "n/w-1"),
        instance(own, "m/w-0"),
        instance(secret("w-1-networkdata-abcdefghijklmnop"), "n/w-0"),
        instance(drive(json!({"secretRef": {"name": "u"}})), "n/w-0"),
        instance(drive(json!({"networkData": "", "networkDataBase64": ""})), "n/w-0"),
        instance(json!({"name": "c", "emptyDisk": {}}), "n/w-0"),
        without_annotations,
        without_volumes,
        with_other_annotation,
        second,
    ];
    let decide = |object: &Value| conditions::decide(&webhook, &json!({"object": object, "namespace": "n"}));
    for object in skipped {
        assert_eq!(decide(&object), Decision::Skip, "{object}");
    }
    for object in asked {
        assert_eq!(decide(&object), Decision::Call, "{object}");
    }
}

#[test]
fn cert_manager_issues_the_certificate_of_the_service_and_injects_the_ca() {
    for folder in ["default", "clusterctl"] {
        let objects = render(folder);
        let certificate = &object(&objects, "Certificate", SERVICE)["spec"];
        assert_eq!(certificate["dnsNames"][0], format!("{SERVICE}.{SYSTEM}.svc"));
        assert_eq!(certificate["secretName"], pod(&objects).0["volumes"][0]["secret"]["secretName"]);
        object(&objects, text(&certificate["issuerRef"]["kind"]), text(&certificate["issuerRef"]["name"]));
        let expected = json!({"cert-manager.io/inject-ca-from": format!("{SYSTEM}/{SERVICE}")});
        for kind in WEBHOOKS {
            assert_eq!(object(&objects, kind, SERVICE)["metadata"]["annotations"], expected);
        }
    }
}

#[test]
fn the_service_ca_of_openshift_issues_the_certificate_of_the_service_and_injects_the_ca() {
    let objects = render("openshift");
    let secret = &pod(&objects).0["volumes"][0]["secret"]["secretName"];
    let annotations = |kind: &str| object(&objects, kind, SERVICE)["metadata"]["annotations"].clone();
    assert_eq!(annotations("Service"), json!({"service.beta.openshift.io/serving-cert-secret-name": secret}));
    let expected = json!({"service.beta.openshift.io/inject-cabundle": "true"});
    for kind in WEBHOOKS {
        assert_eq!(annotations(kind), expected);
    }
}

#[test]
fn the_roles_of_the_controller_are_bound_to_the_service_account_of_the_manager() {
    let objects = render("default");
    let account = text(&pod(&objects).0["serviceAccountName"]);
    assert_eq!(CONTROLLER, format!("system:serviceaccount:{SYSTEM}:{account}"));
    object(&objects, "ServiceAccount", account);
    let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": SYSTEM}]);
    for binding in ["ClusterRoleBinding", "RoleBinding"] {
        let binding = object(&objects, binding, MANAGER);
        assert_eq!(binding["subjects"], subjects);
        object(&objects, text(&binding["roleRef"]["kind"]), text(&binding["roleRef"]["name"]));
    }
}

#[test]
fn the_clusterctl_metadata_has_the_release_series_and_the_contract_of_this_version() {
    let version: Vec<u64> = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap()).collect();
    let metadata = json!({
        "apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3",
        "kind": "Metadata",
        "releaseSeries": [{"major": version[0], "minor": version[1], "contract": "v1beta2"}],
    });
    assert_eq!(documents(&config("clusterctl/metadata.yaml")), [metadata]);
}

#[test]
fn the_image_is_built_with_the_oldest_allowed_compiler_and_does_not_run_as_root() {
    let read = |file: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let after = |text: &str, start: &str| {
        let line = text.lines().rev().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no line that begins with {start}")).to_owned()
    };
    let (image, package) = (read("Containerfile"), read("Cargo.toml"));
    let version = after(&package, "rust-version = ");
    assert_eq!(after(&image, "FROM docker.io/library/rust:"), format!("{}-alpine AS build", version.trim_matches('"')));
    assert_eq!(after(&image, "USER "), "65532:65532");
    assert_eq!(after(&image, "ENTRYPOINT "), "[\"/glowplug-controller\"]");
}

#[test]
fn the_archive_of_the_image_is_reproducible_and_its_program_runs_as_an_unprivileged_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let run = |program: &Path, arguments: &[&Path]| {
        let output = Command::new(program).current_dir(root).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    fs::write(path("glowplug-controller"), "a program").unwrap();
    let packed = |name: &str| {
        let program = format!("arm64={}", path("glowplug-controller").display());
        let digest = run(&root.join("packaging/image"), &[&path(name), Path::new("1.2.3"), Path::new(&program)]);
        (fs::read(path(name)).unwrap(), digest)
    };
    let (archive, digest) = packed("image.tar");
    assert!((archive, digest.clone()) == packed("again.tar"), "the archives differ");

    fs::create_dir(path("layout")).unwrap();
    run(Path::new("tar"), &[Path::new("-xf"), &path("image.tar"), Path::new("-C"), &path("layout")]);
    let blob = |descriptor: &Value| {
        let (digest, size) = (text(&descriptor["digest"]), descriptor["size"].as_u64());
        let file = path("layout/blobs/sha256").join(digest.strip_prefix("sha256:").unwrap());
        let sum = run(Path::new("sha256sum"), &[&file]);
        assert_eq!((sum.split(' ').next(), Some(fs::metadata(&file).unwrap().len())), (digest.get(7..), size));
        file
    };
    let read = |file: &Path| -> Value { serde_json::from_slice(&fs::read(file).unwrap()).unwrap() };
    let index = read(&path("layout/index.json"));
    assert_eq!(text(&index["manifests"][0]["digest"]), digest.trim());
    assert_eq!(index["manifests"][0]["platform"], json!({"architecture": "arm64", "os": "linux"}));
    let manifest = read(&blob(&index["manifests"][0]));
    let config = read(&blob(&manifest["config"]));
    let home = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let home = home.lines().find_map(|line| line.strip_prefix("repository = ")).unwrap().trim_matches('"');
    let labels = json!({"org.opencontainers.image.source": home, "org.opencontainers.image.version": "1.2.3"});
    let of_program = json!({"User": "65532:65532", "Entrypoint": ["/glowplug-controller"], "Labels": labels});
    assert_eq!(config["config"], of_program);
    assert_eq!(config["rootfs"]["diff_ids"], json!([manifest["layers"][0]["digest"]]));
    let files =
        run(Path::new("tar"), &[Path::new("--numeric-owner"), Path::new("-tvf"), &blob(&manifest["layers"][0])]);
    let files: Vec<Vec<&str>> = files.lines().map(|line| line.split_whitespace().collect()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}: expected one file") };
    assert_eq!((file[0], file[1], file[2], file[5]), ("-rwxr-xr-x", "0/0", "9", "glowplug-controller"));
    assert_eq!(fs::read_dir(path("layout/blobs/sha256")).unwrap().count(), 3);
}

#[test]
fn an_archive_of_several_architectures_is_one_image_with_one_digest() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, "a program").unwrap();
    let archive = folder.path().join("image.tar");
    let output = Command::new(root.join("packaging/image"))
        .current_dir(root)
        .args([&archive, Path::new("1.2.3")])
        .args(["amd64", "arm64"].map(|name| format!("{name}={}", program.display())))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Command::new("tar").current_dir(&folder).arg("-xf").arg(&archive).status().unwrap().success());
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(name)).unwrap()).unwrap() };
    let top = &read("index.json")["manifests"];
    assert_eq!(top.as_array().unwrap().len(), 1);
    let digest = text(&top[0]["digest"]);
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), digest);
    let blob = |digest: &str| read(&format!("blobs/sha256/{}", digest.strip_prefix("sha256:").unwrap()));
    let index = blob(digest);
    let architectures = index["manifests"].as_array().unwrap().iter().map(|manifest| {
        let config = blob(text(&blob(text(&manifest["digest"]))["config"]["digest"]));
        assert_eq!(config["architecture"], manifest["platform"]["architecture"]);
        text(&config["architecture"]).to_owned()
    });
    assert_eq!(architectures.collect::<Vec<_>>(), ["amd64", "arm64"]);
}

#[test]
fn the_manifests_of_a_release_name_the_image_by_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let program = folder.path().join("glowplug-controller");
    fs::write(&program, "a program").unwrap();
    let archive = folder.path().join(format!("glowplug-controller-v{version}.tar"));
    let run = |script: &str, arguments: &[&Path]| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let output = Command::new(root.join(script)).current_dir(root).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let program = format!("amd64={}", program.display());
    let digest = run("packaging/image", &[&archive, Path::new(version), Path::new(&program)]);
    let image = format!("registry.example.org/team/glowplug-controller@{}", digest.trim());
    let registry = Path::new("registry.example.org/team");
    run("packaging/release", &[Path::new("manifests"), folder.path(), Path::new(version), registry]);
    for (file, rendered) in
        [("install.yaml", "default"), ("install-openshift.yaml", "openshift"), ("ipam-components.yaml", "clusterctl")]
    {
        let objects = documents(&folder.path().join(file));
        assert_eq!(substituted(text(&pod(&objects).1["image"])), image);
        assert_eq!(objects.len(), render(rendered).len());
    }
}
