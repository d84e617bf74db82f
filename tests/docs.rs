//! Runs the commands in README.md and in every page of `docs`.
//!
//! The fence of a block gives its kind:
//!
//! - `console` has commands after `$`. After each command comes its complete output, then its exit status in brackets,
//!   unless the status is 0.
//! - `sh` is one script, which must succeed.
//! - `console repository` runs in the repository. `console` and `sh` run in a scratch directory of the document, which
//!   has a link to the `fixtures` of the repository.
//! - `console elsewhere` needs a cluster, an image, a booted machine or several minutes. Its commands do not run, but
//!   [`ELSEWHERE`] must list each of them.
//! - Every other block has no commands.
//!
//! `UPDATE=1` rewrites the documents; read the difference before you commit it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper of a test may fail the test")]

mod backup;
mod home;
mod rules;
mod versions;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::{env, fs};

use crate::support::shell;

/// Commands of `console elsewhere` blocks, for each document. These commands do not run here. People and continuous
/// integration run the `make` commands, and `tests/boot` runs some of the other commands.
const ELSEWHERE: &[(&str, &[&str])] = &[
    (
        "README.md",
        &[
            "sha256sum --check --quiet SHA256SUMS",
            "kubectl apply --server-side -f install.yaml",
            "kubectl rollout status deployment/glowplug-controller-manager -n ipam-glowplug-system",
            "make demo    # from a pool of addresses to kernel arguments, each step shown",
            "make demo-controller    # the controller without a cluster: pools, claims, machines, exhaustion, growth",
            "cargo build --release && PATH=\"$PWD/target/release:$PATH\"    # both programs, for the commands on this page",
            "kubectl get ipaddresses.ipam.cluster.x-k8s.io,staticippools -n clusters",
            "kubectl get kubevirtmachines,vm,vmi -A -o json | glowplugctl claim --pool pools.yaml --ledger ledger --machines - --format apply | kubectl apply --server-side -f -",
            "kubectl patch vm worker-0 -n clusters --type json -p '[{\"op\": \"add\", \"path\": \"/spec/template/spec/volumes/N/cloudInitConfigDrive/networkDataSecretRef\", \"value\": {\"name\": \"worker-0-networkdata\"}}]'",
            "virtctl start worker-0 -n clusters",
        ],
    ),
    (
        "docs/backup.md",
        &[
            "jq 'del(.items[].metadata[\"uid\", \"resourceVersion\", \"ownerReferences\"])' ipamclaims.json > restored.json",
            "kubectl create -f restored.json",
            "kubectl apply --server-side --subresource=status -f restored.json",
            "kubectl get nodepool workers -n clusters -o jsonpath='{.metadata.uid}'",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"hypershift.openshift.io/v1beta1\",\"kind\":\"NodePool\",\"name\":\"workers\",\"uid\":\"UID\",\"controller\":true}]}}'",
            "kubectl get vm db-0 -n tenants -o jsonpath='{.metadata.uid}'",
            "kubectl patch ipamclaim db-0.net1 -n tenants --type merge -p '{\"metadata\":{\"ownerReferences\":[{\"apiVersion\":\"kubevirt.io/v1\",\"kind\":\"VirtualMachine\",\"name\":\"db-0\",\"uid\":\"UID\",\"controller\":true,\"blockOwnerDeletion\":true}]}}'",
            "kubectl scale deployment virt-operator -n kubevirt --replicas=0",
            "kubectl scale deployment virt-controller -n kubevirt --replicas=0",
            "kubectl wait --for=delete pods -n kubevirt -l 'kubevirt.io in (virt-operator,virt-controller)' --timeout=5m",
            "kubectl scale replicasets --all -n ipam-glowplug-system --replicas=0",
            "kubectl scale replicasets --all -n kubevirt --replicas=0",
            "kubectl delete pods -n ipam-glowplug-system --all --force",
            "kubectl delete pods -n kubevirt -l 'kubevirt.io in (virt-operator,virt-controller)' --force",
            "kubectl label crd staticippools.ipam.glowplug.dev globalstaticippools.ipam.glowplug.dev clusterctl.cluster.x-k8s.io=",
        ],
    ),
    (
        "docs/changes.md",
        &[
            "kubectl get staticippool workers -n clusters -o jsonpath='{.metadata.ownerReferences}'",
            "kubectl get staticippool workers -n clusters -o jsonpath='{.spec.excludedAddresses}'",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"excludedAddresses\":[\"192.168.1.1\",\"192.168.1.2\"]}}'",
            "kubectl get staticipleases | grep -w -e NETWORK -e 192.168.1.2",
            "kubectl get vm,vmi,kubevirtmachines -A -o yaml | grep -wF 192.168.1.2",
            "kubectl get services,clusters.cluster.x-k8s.io -A -o yaml | grep -wF 192.168.1.2",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"gateway\":[\"192.168.1.2\"]}}'",
            "kubectl get staticippools -n clusters -o wide",
            "virtctl restart db-0 -n shop",
            "kubectl delete machines.cluster.x-k8s.io NAME -n clusters-c1",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"machineNetwork\":[{\"cidr\":\"192.168.0.0/23\"}],\"addresses\":[\"192.168.1.10-192.168.1.50\",\"192.168.0.10-192.168.0.250\"]}}'",
            "kubectl get staticippools -n clusters -o wide",
            "kubectl get staticippool workers -n clusters -o yaml > earlier.yaml",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"addresses\":[\"192.168.1.250\"],\"preAllocations\":null}}'",
            "kubectl delete staticippool workers -n clusters --wait=false",
            "kubectl apply -f nodes.yaml",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"nodePoolRef\":null}}'",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"nodePoolRef\":null}}'",
            "kubectl patch staticippool spare -n clusters --type merge -p '{\"spec\":{\"nodePoolRef\":{\"name\":\"workers\"}}}'",
            "kubectl get staticipleases -o custom-columns=ADDRESS:.spec.address,POOL:.spec.pool,RELEASED:.spec.released",
            "velero restore create --from-backup nightly --include-namespaces clusters-c1 --exclude-resources staticipleases.ipam.glowplug.dev",
            "kubectl get staticippools -A -o yaml > pools.yaml",
            "kubectl get globalstaticippools -o yaml > global-pools.yaml",
            "kubectl get staticippools -A --no-headers -o custom-columns=:metadata.namespace,:metadata.name | xargs -r -n 2 sh -c 'kubectl patch staticippool \"$2\" -n \"$1\" --type merge -p \"{\\\"metadata\\\":{\\\"finalizers\\\":null}}\"' pools",
            "kubectl get globalstaticippools -o name | xargs -r -n 1 kubectl patch --type merge -p '{\"metadata\":{\"finalizers\":null}}'",
            "kubectl wait --for=delete crd/staticippools.ipam.glowplug.dev crd/globalstaticippools.ipam.glowplug.dev --timeout=2m",
            "sed '/^ *resourceVersion:/d' pools.yaml | kubectl create -f -",
            "sed '/^ *resourceVersion:/d' global-pools.yaml | kubectl create -f -",
        ],
    ),
    (
        "docs/existing-machines.md",
        &[
            "kubectl glowplug plan fixtures/existing/pool.yaml",
            "kubectl glowplug adopt --file fixtures/existing/pool.yaml",
            "kubectl glowplug adopt --file fixtures/existing/pool.yaml shop/db-0",
            "kubectl glowplug adopt --file fixtures/existing/pool.yaml shop/db-0 --apply 0d94be3161f24c0f9a8a5b7c20fe6b11",
            "kubectl annotate vm NAME -n shop kubevirt.cluster.x-k8s.io/allocated-ip-eno101='[\"192.168.1.12/24\"]'",
            "kubectl apply -f fixtures/existing/pool.yaml",
            "kubectl glowplug adopt --pool shop/machines",
            "virtctl restart db-0 -n shop",
            "kubectl annotate vm web-0 -n shop ipam.glowplug.dev/left-alone-",
            "virtctl restart web-0 -n shop",
            "kubectl patch staticippool machines -n shop --type merge -p '{\"spec\":{\"excludedAddresses\":[]}}'",
            "kubectl annotate virtualmachines.kubevirt.io db-0 -n shop ipam.glowplug.dev/network-eno101- kubevirt.cluster.x-k8s.io/allocated-ip-eno101-",
            "kubectl get kubevirtmachines,vm,vmi -A -o json > machines.json",
        ],
    ),
    (
        "docs/guest.md",
        &[
            "glowplug attributes --output /run/metadata/afterburn --prefix AFTERBURN_",
            "glowplug hostname --output /sysroot/etc/hostname",
            "glowplug ssh-keys --user core",
        ],
    ),
    (
        "docs/hypershift.md",
        &[
            "kubectl apply --server-side -k install",
            "kubectl rollout status deployment/glowplug-controller-manager -n ipam-glowplug-system",
            "kubectl get nodepool workers -n clusters -o jsonpath='{.spec.platform.kubevirt}'",
            "kubectl apply -f workers.yaml",
            "kubectl get staticippool workers -n clusters",
            "kubectl get namespace clusters-c1 --show-labels",
            "kubectl scale nodepool workers -n clusters --replicas=3",
            "kubectl get staticipleases",
            "kubectl get vmi -n clusters-c1 -o wide",
            "kubectl get machines.cluster.x-k8s.io -n clusters-c1",
            "kubectl delete machines.cluster.x-k8s.io NAME -n clusters-c1",
            "kubectl get kubevirtmachine NAME -n clusters-c1 -o jsonpath='{.status.conditions}'",
            "kubectl describe vm NAME -n clusters-c1",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"spec\":{\"nodePoolRef\":null}}'",
            "kubectl patch staticippool workers -n clusters --type merge \\",
            "kubectl delete machines.cluster.x-k8s.io NAME -n clusters-c1",
            "kubectl get staticipleases -o wide | grep -E '^NAME| clusters/workers( |$)'",
            "kubectl delete staticippool workers -n clusters",
        ],
    ),
    (
        "docs/image-builders.md",
        &[
            "make install-guest DESTDIR=$image PREFIX=/usr",
            "systemctl --root=$image preset glowplug-metadata.service glowplug-ssh-keys@.service",
            "chroot $image dracut --force --no-hostonly --kver \"$(ls $image/usr/lib/modules)\"",
            "oc get secret pull-secret -n openshift-config -o jsonpath='{.data.\\.dockerconfigjson}' | base64 -d > pull-secret.json",
            "base=$(oc adm release info \"$(kubectl get nodepool workers -n clusters -o jsonpath='{.spec.release.image}')\" --image-for rhel-coreos)",
            "podman build --authfile pull-secret.json --build-arg BASE=\"$base\" -t registry.example.org/rhcos-glowplug:4.20 -f packaging/Containerfile .",
            "skopeo copy containers-storage:registry.example.org/rhcos-glowplug:4.20 oci-archive:rhcos-glowplug.ociarchive",
            "sudo ./custom-coreos-disk-images.sh --ociarchive rhcos-glowplug.ociarchive --platforms kubevirt --osname rhcos",
            "skopeo copy oci-archive:rhcos-glowplug-kubevirt.x86_64.ociarchive docker://registry.example.org/rhcos-glowplug-disk:4.20",
            "kubectl patch nodepool workers -n clusters --type merge \\",
        ],
    ),
    (
        "docs/install.md",
        &[
            "make release REGISTRY=registry.example.org/glowplug",
            "make publish REGISTRY=registry.example.org/glowplug",
            "kubectl apply --server-side -f install.yaml",
            "kubectl rollout status deployment/glowplug-controller-manager -n ipam-glowplug-system",
            "oc apply --server-side -f install-openshift.yaml",
            "kubectl apply --server-side -k install",
            "kubectl rollout status deployment/glowplug-controller-manager -n ipam-glowplug-system",
            "kubectl apply --validate=false -f install.yaml",
            "clusterctl init --ipam glowplug",
            "kubectl create clusterrolebinding network-administrators --clusterrole=glowplug-pools-edit --group=network-administrators",
            "kubectl create clusterrolebinding glowplug-plugin --clusterrole=glowplug-plugin --group=network-administrators",
            "kubectl label clusterrole glowplug-pools-edit rbac.authorization.k8s.io/aggregate-to-edit=true",
            "kubectl exec -n ipam-glowplug-system deploy/glowplug-controller-manager -- /glowplug-controller run --help",
            "kubectl get leases -n ipam-glowplug-system",
            "kubectl delete lease glowplug-controller-DIGEST -n ipam-glowplug-system",
            "kubectl label namespace NAME ipam.glowplug.dev/machines- ipam.glowplug.dev/mac-pools-",
            "kubectl delete staticippools --all -A --wait=false",
            "kubectl delete globalstaticippools,macpools --all --wait=false",
            "kubectl scale deployment glowplug-controller-manager -n ipam-glowplug-system --replicas=0",
            "kubectl delete validatingwebhookconfiguration glowplug-controller",
            "kubectl patch staticippool workers -n clusters --type merge -p '{\"metadata\":{\"finalizers\":null}}'",
            "kubectl patch ipamclaim NAME -n NAMESPACE --type merge -p '{\"metadata\":{\"finalizers\":null}}'",
            "kubectl patch ipaddressclaim NAME -n NAMESPACE --type merge -p '{\"metadata\":{\"finalizers\":null}}'",
            "kubectl patch ipaddresses.ipam.cluster.x-k8s.io NAME -n NAMESPACE --type merge -p '{\"metadata\":{\"finalizers\":null}}'",
            "kubectl get ipaddressclaims.ipam.cluster.x-k8s.io,ipaddresses.ipam.cluster.x-k8s.io -A -o yaml | grep ipam.glowplug.dev/",
            "kubectl get namespaces -l ipam.glowplug.dev/machines",
            "kubectl get namespaces -l ipam.glowplug.dev/mac-pools",
            "kubectl delete -k controller/config/prometheus",
            "kubectl delete rolebinding prometheus-finds-glowplug -n ipam-glowplug-system",
            "kubectl get staticippools,globalstaticippools -A",
            "kubectl delete -k install --ignore-not-found",
            "kubectl scale deployment glowplug-controller-manager -n ipam-glowplug-system --replicas=0",
            "kubectl wait --for=delete pods -l control-plane=glowplug-controller-manager -n ipam-glowplug-system",
            "kubectl delete staticipleases --all",
            "clusterctl delete --ipam glowplug --include-crd --include-namespace",
        ],
    ),
    ("docs/ipam-claims.md", &["kubectl get ipamclaim db-0.net1 -n tenants -o jsonpath='{.status.ips}'"]),
    (
        "docs/kubectl-glowplug.md",
        &[
            "kubectl glowplug status",
            "kubectl glowplug why clusters-c1/workers-8fm2k",
            "kubectl glowplug audit",
            "kubectl glowplug plan pool.yaml",
            "kubectl glowplug plan pools/ more.yaml",
            "kubectl glowplug adopt --file pool.yaml",
            "kubectl glowplug adopt --pool shop/machines shop/web-0",
            "kubectl glowplug adopt --pool shop/machines shop/web-0 --apply 5f3c1a9be07d46828c2f7ab1904e6d53",
            "kubectl annotate virtualmachines.kubevirt.io db-0 -n shop ipam.glowplug.dev/network-eno101- kubevirt.cluster.x-k8s.io/allocated-ip-eno101-",
            "kubectl patch staticippools.ipam.glowplug.dev machines -n shop --type merge -p '{\"spec\":{\"preAllocations\":{\"shop/web-0\":null}}}'",
            "kubectl create clusterrolebinding glowplug-plugin --clusterrole=glowplug-plugin --group=network-administrators",
        ],
    ),
    (
        "docs/mac-pools.md",
        &["kubectl apply -f mac-pool.yaml", "kubectl get macpools", "kubectl get namespace clusters-c1 --show-labels"],
    ),
    (
        "docs/migration.md",
        &[
            "kubectl get ipaddresses.ipam.cluster.x-k8s.io -n clusters -o jsonpath='{range .items[*]}{.spec.poolRef.kind}/{.spec.poolRef.name} {.spec.address}{\"\\n\"}{end}' | awk '$1 == \"InClusterIPPool/workers\" { print $2 }' | sort -u > used",
            "kubectl get ippools.ipam.metal3.io workers -n clusters -o jsonpath='{range .status.indexes.*}{@}{\"\\n\"}{end}' > used",
            "kubectl get ippools.whereabouts.cni.cncf.io 192.168.1.0-24 -n kube-system -o json > range.json",
            "kubectl apply -f reserved.yaml",
            "kubectl annotate vm db-0 -n clusters ipam.glowplug.dev/left-alone-",
            "kubectl get vm db-0 -n clusters -o jsonpath='{..networkDataSecretRef.name}'",
            "virtctl restart db-0 -n clusters",
            "kubectl get staticipleases",
        ],
    ),
    (
        "docs/monitoring.md",
        &[
            "kubectl apply --server-side -k controller/config/prometheus",
            "kubectl create rolebinding prometheus-finds-glowplug -n ipam-glowplug-system --clusterrole=view \\",
            "oc apply --server-side -k controller/config/openshift-monitoring",
        ],
    ),
    (
        "docs/network-data.md",
        &[
            "kubectl get vm workers-8fm2k -n clusters-c1 -o yaml | grep -A1 networkDataSecretRef",
            "kubectl get vmi workers-8fm2k -n clusters-c1 -o yaml | grep -A1 networkDataSecretRef",
            "kubectl get secret workers-8fm2k-networkdata-4hs7c2mzq6ty3kwa -n clusters-c1 -o jsonpath='{.data.networkdata}' | base64 -d",
            "kubectl patch vm workers-8fm2k -n clusters-c1 --type merge \\",
            "virtctl restart workers-8fm2k -n clusters-c1",
            "kubectl annotate vm NAME -n clusters-c1 ipam.glowplug.dev/left-alone-",
            "kubectl edit vm w-0 -n restored",
            "kubectl annotate vm w-0 -n restored kubevirt.cluster.x-k8s.io/allocated-ip-eno101- ipam.glowplug.dev/network-eno101-",
        ],
    ),
    (
        "docs/pools.md",
        &[
            "kubectl apply -f workers.yaml",
            "kubectl get staticippools -n clusters",
            "kubectl apply -f worker-0.yaml",
            "kubectl get ipaddresses.ipam.cluster.x-k8s.io worker-0 -n clusters",
            "kubectl get staticipleases",
        ],
    ),
    (
        "docs/recovery.md",
        &[
            "kubectl scale deployment glowplug-controller-manager -n ipam-glowplug-system --replicas=0",
            "kubectl wait --for=delete pods -l control-plane=glowplug-controller-manager -n ipam-glowplug-system --timeout=2m",
            "kubectl get staticippools,globalstaticippools -A -o yaml > pools.yaml",
            "kubectl get kubevirtmachines,vm,vmi -A -o json > machines.json",
            "kubectl get staticipleases -o yaml > leases.yaml",
            "kubectl get macpools -o yaml > mac-pools.yaml",
            "kubectl get ipaddressclaims.ipam.cluster.x-k8s.io,ipaddresses.ipam.cluster.x-k8s.io,ipamclaims -A -o yaml > claims.yaml",
            "kubectl get secrets -n clusters-c1 -o yaml > secrets.yaml",
            "glowplugctl audit --pool pools.yaml --leases leases.yaml --machines machines.json",
            "kubectl annotate kubevirtmachine worker-2 -n clusters-c1 kubevirt.cluster.x-k8s.io/allocated-ip-eno101-",
            "kubectl patch kubevirtmachine worker-2 -n clusters-c1 --subresource=status --type merge \\",
            "virtctl stop own-2 -n team-b",
            "kubectl edit vm own-2 -n team-b",
            "kubectl delete staticiplease 192-168-1-100.infra.vlan10",
            "kubectl get kubevirtmachine worker-2 -n clusters-c1 -o jsonpath='{.metadata.ownerReferences[?(@.kind==\"Machine\")].name}{\"\\n\"}'",
            "kubectl delete machines.cluster.x-k8s.io worker-2 -n clusters-c1",
            "kubectl scale deployment glowplug-controller-manager -n ipam-glowplug-system --replicas=2",
            "kubectl rollout status deployment/glowplug-controller-manager -n ipam-glowplug-system",
            "kubectl get staticippools,globalstaticippools -A -o jsonpath='{range .items[*]}{.metadata.name} {.status.conditions[?(@.type==\"DuplicateRecords\")].status}{\"\\n\"}{end}'",
            "kubectl get staticipleases",
        ],
    ),
    (
        "docs/troubleshooting.md",
        &[
            "virtctl console worker-0 -n clusters",
            "kubectl glowplug status",
            "kubectl glowplug why clusters-c1/workers-8fm2k",
            "kubectl glowplug audit",
            "kubectl logs -n ipam-glowplug-system -l control-plane=glowplug-controller-manager --prefix --tail=-1",
            "kubectl glowplug status",
            "kubectl glowplug why clusters-c1/workers-8fm2k",
            "kubectl patch staticippool workers -n clusters --type json -p '[{\"op\": \"add\", \"path\": \"/spec/addresses/-\", \"value\": \"192.168.1.128/26\"}]'",
            "kubectl get staticipleases -o wide | grep -E '^NAME| clusters/workers( |$)'",
            "kubectl get staticipleases | grep -w -e NETWORK -e 192.168.1.10",
            "kubectl get pods -n ipam-glowplug-system",
            "kubectl describe lease -n ipam-glowplug-system",
            "kubectl get kubevirtmachines,vm,vmi -A -o json > machines.json",
            "glowplugctl audit --pool pools.yaml --ledger trouble.ledger --machines machines.json --release-missing --dry-run",
            "glowplugctl audit --pool pools.yaml --ledger trouble.ledger --machines machines.json --release-missing",
        ],
    ),
    (
        "docs/vsphere.md",
        &[
            "oc scale machinesets.machine.openshift.io static-workers -n openshift-machine-api --replicas=2",
            "oc get ipaddressclaims.ipam.cluster.x-k8s.io,ipaddresses.ipam.cluster.x-k8s.io -n openshift-machine-api",
            "oc get machines.machine.openshift.io,ipaddressclaims.ipam.cluster.x-k8s.io,ipaddresses.ipam.cluster.x-k8s.io -n openshift-machine-api -o yaml | glowplugctl vsphere-kargs - --machine c1-static-0",
            "glowplugctl install-hosts manifests install-config.yaml --infra-id c1-x7k2p | oc apply -f -",
        ],
    ),
    (
        "docs/upgrade.md",
        &[
            "kubectl label namespace NAME ipam.glowplug.dev/machines- ipam.glowplug.dev/mac-pools-",
            "kubectl get sipp,gsipp -A -o custom-columns='NAMESPACE:.metadata.namespace,NAME:.metadata.name,VIOLATED:.status.conditions[?(@.type==\"SchemaViolated\")].message'",
            "kubectl patch sipp workers -n clusters --subresource=status --type merge -p '{\"status\":{\"conditions\":[]}}'",
            "kubectl patch gsipp shared --subresource=status --type merge -p '{\"status\":{\"conditions\":[]}}'",
        ],
    ),
];

/// Fences of blocks without commands.
const CONTENT: &[&str] = &["text", "ini", "json", "yaml"];

macro_rules! documents {
    ($($name:ident $path:literal)*) => {
        $(#[test] fn $name() {
            document($path);
        })*

        const PATHS: &[&str] = &[$($path),*];
    };
}

documents! {
    readme_md "README.md"
    pages_md "docs/README.md"
    address_sources_md "docs/address-sources.md"
    architecture_md "docs/architecture.md"
    backup_md "docs/backup.md"
    changes_md "docs/changes.md"
    cloud_init_md "docs/cloud-init.md"
    enhancement_tests_md "docs/enhancement-tests.md"
    existing_machines_md "docs/existing-machines.md"
    faq_md "docs/faq.md"
    formats_and_renderers_md "docs/formats-and-renderers.md"
    from_afterburn_md "docs/from-afterburn.md"
    gitops_md "docs/gitops.md"
    guest_md "docs/guest.md"
    hypershift_md "docs/hypershift.md"
    image_builders_md "docs/image-builders.md"
    install_md "docs/install.md"
    ipam_claims_md "docs/ipam-claims.md"
    kubectl_glowplug_md "docs/kubectl-glowplug.md"
    mac_pools_md "docs/mac-pools.md"
    measurements_md "docs/measurements.md"
    migration_md "docs/migration.md"
    monitoring_md "docs/monitoring.md"
    network_data_md "docs/network-data.md"
    pools_md "docs/pools.md"
    recovery_md "docs/recovery.md"
    stability_md "docs/stability.md"
    troubleshooting_md "docs/troubleshooting.md"
    upgrade_md "docs/upgrade.md"
    vmware_md "docs/vmware.md"
    vsphere_md "docs/vsphere.md"
}

#[test]
fn every_page_of_docs_is_in_the_list_of_documents() {
    let files = fs::read_dir(repository().join("docs")).unwrap().map(|file| file.unwrap().file_name());
    let files = files.map(|name| format!("docs/{}", name.into_string().unwrap()));
    let mut paths: Vec<_> = files.filter(|path| path.ends_with(".md")).collect();
    paths.sort_unstable();
    assert_eq!(PATHS[1..], paths);
}

/// Pages that may name tests: two pages for people who change glowplug, and a page whose last table names the test of
/// each step.
const WITH_TESTS: [&str; 3] = ["docs/architecture.md", "docs/enhancement-tests.md", "docs/recovery.md"];
/// Maximum number of words in a table cell. Longer explanations belong in sentences below the table.
const WORDS_OF_A_CELL: usize = 40;

#[test]
fn a_table_has_no_long_cell() {
    let mut long = Vec::new();
    for path in PATHS {
        let text = fs::read_to_string(repository().join(path)).unwrap();
        for (number, row) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
            let words = row.split('|').map(|cell| cell.split_whitespace().count()).max().unwrap_or_default();
            if words > WORDS_OF_A_CELL {
                long.push((*path, number + 1, words));
            }
        }
    }
    assert_eq!(long, []);
}

/// The name of a test, such as `a_machine_gets_an_address`, has a meaning only for readers of the sources.
#[test]
fn the_pages_for_users_name_no_tests() {
    let is_letter = |char: char| char.is_ascii_alphanumeric() || char == '_';
    let mut named = Vec::new();
    for path in PATHS.iter().filter(|path| !WITH_TESTS.contains(path)) {
        let text = fs::read_to_string(repository().join(path)).unwrap();
        let words = text.split(|char| !is_letter(char)).filter(|word| word.matches('_').count() > 3);
        // These prefixes belong to metrics, not to tests.
        let names = words.filter(|word| !word.starts_with("glowplug_") && !word.starts_with("kubevirt_"));
        named.extend(names.map(|name| (*path, name.to_owned())));
    }
    assert_eq!(named, []);
}

/// Every link to a file leads to an existing file and, if the link has a fragment, to an existing heading.
#[test]
fn every_link_in_the_documents_has_a_target() {
    let mut broken = Vec::new();
    for path in PATHS {
        let text = fs::read_to_string(repository().join(path)).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match file {
                _ if file.starts_with("https://") => continue,
                "" => repository().join(path),
                _ => repository().join(path).parent().unwrap().join(file),
            };
            let is_there = file.exists()
                && (heading.is_empty() || headings(&fs::read_to_string(&file).unwrap()).any(|it| it == heading));
            if !is_there {
                broken.push((*path, target.to_owned()));
            }
        }
    }
    assert_eq!(broken, []);
}

/// Returns the anchors that GitHub makes for the headings of a document.
fn headings(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| {
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    })
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn document(path: &str) {
    let expected = fs::read_to_string(repository().join(path)).unwrap();
    let directory = tempfile::tempdir().unwrap();
    symlink(repository().join("fixtures"), directory.path().join("fixtures")).unwrap();
    let mut elsewhere = Vec::new();
    let output = run(&expected, directory.path(), &mut elsewhere);
    if crate::support::is_update() {
        fs::write(repository().join(path), &output).unwrap();
    }
    for (number, (output, expected)) in output.lines().zip(expected.lines()).enumerate() {
        assert_eq!(output, expected, "{path}:{}", number + 1);
    }
    assert_eq!(output.len(), expected.len());
    let named = ELSEWHERE.iter().find(|(document, _)| *document == path).map_or(&[][..], |(_, commands)| commands);
    assert_eq!(elsewhere, named);
}

/// Runs the commands of a document, and returns the document with their actual output.
fn run(document: &str, directory: &Path, elsewhere: &mut Vec<String>) -> String {
    let mut output = String::new();
    let mut fence = None;
    let mut script = String::new();
    for line in document.lines() {
        let command = line.strip_prefix("$ ");
        match (fence, line.strip_prefix("```")) {
            (None, Some(info)) => fence = Some(info),
            (Some(info), Some(_)) => {
                if info == "sh" {
                    assert_eq!(shell::run(directory, &format!("set -eu\n{script}"), ""), "");
                    script.clear();
                }
                fence = None;
            }
            (Some("console"), None) => {
                output += &command.map(|command| printed(line, directory, command)).unwrap_or_default();
                continue;
            }
            (Some("console repository"), None) => {
                output += &command.map(|command| printed(line, repository(), command)).unwrap_or_default();
                continue;
            }
            (Some("console elsewhere"), None) => elsewhere.extend(command.map(str::to_owned)),
            (Some("sh"), None) => script += &format!("{line}\n"),
            (Some(info), None) => assert!(CONTENT.contains(&info) && command.is_none(), "{info:?}: {line}"),
            (None, None) => {}
        }
        output += &format!("{line}\n");
    }
    output
}

fn printed(line: &str, directory: &Path, command: &str) -> String {
    format!("{line}\n{}", shell::run(directory, command, ""))
}
