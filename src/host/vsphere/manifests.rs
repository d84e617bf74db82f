//! Writes the Machines of the compute hosts.

use serde_json::{Value as Json, json};

use super::hosts::{EMPTY, Host, InstallHosts, Role, objects, replicas, text};
use crate::diagnostic::{Diagnostic, Diagnostics, FieldPath, Severity};
use crate::formats::value::{Object, Value};
use crate::host::members::Members;

/// The sizes of a machine: name in the installer's machine pool, name in a Machine, and the installer's default.
const SIZES: [(&str, &str, i64); 3] =
    [("cpus", "numCPUs", 4), ("coresPerSocket", "numCoresPerSocket", 4), ("memoryMB", "memoryMiB", 16_384)];

/// The installer's default size of a disk, in GiB.
const DISK: i64 = 120;

impl InstallHosts {
    /// Makes the Machines of the compute hosts, with the static network of each host in the first device.
    ///
    /// The hosts are divided among the machine pools of `compute`: each pool in turn gets as many of the next hosts as
    /// it has replicas. A Machine has the name `<infra_id>-<pool>-<number>`. The workspace of a Machine is that of the
    /// failure domain of its host. For a host without a failure domain, the zones of the machine pool or of the default
    /// of all machine pools are used in turn, or else all failure domains. `template` is the virtual machine to clone,
    /// for failure domains that name no template.
    ///
    /// # Errors
    ///
    /// A Machine has no known failure domain, or a member that a Machine needs is missing or invalid.
    pub fn machines(&self, infra_id: &str, template: Option<&str>) -> Result<Vec<Json>, Diagnostics> {
        let mut diagnostics = Diagnostics::default();
        let vsphere = self.config.object("platform").and_then(|platform| platform.object("vsphere")).unwrap_or(&EMPTY);
        let pools = objects(&self.config, "compute");
        let pools = if pools.is_empty() { vec![&EMPTY] } else { pools };
        let mut hosts = self.hosts.iter().enumerate().filter(|(_, host)| host.role == Role::Compute);
        let mut machines = Vec::new();
        for pool in pools {
            let count = replicas(Some(pool)).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
            let name = text(pool, "name").unwrap_or("worker");
            for (number, (at, host)) in hosts.by_ref().take(count).enumerate() {
                let maker = Maker { vsphere, pool, infra_id, template };
                let name = format!("{infra_id}-{name}-{number}");
                machines.extend(maker.machine(&name, number, (at, host), &mut diagnostics));
            }
        }
        if diagnostics.has_errors() { Err(diagnostics) } else { Ok(machines) }
    }
}

/// Makes the Machines of one machine pool.
struct Maker<'d> {
    vsphere: &'d Object,
    pool: &'d Object,
    infra_id: &'d str,
    template: Option<&'d str>,
}

impl<'d> Maker<'d> {
    fn machine(
        &self,
        name: &str,
        number: usize,
        (at, host): (usize, &Host),
        diagnostics: &mut Diagnostics,
    ) -> Option<Json> {
        let Some((index, domain)) = self.domain(number, host) else {
            let path = format!("platform.vsphere.hosts[{at}].failureDomain");
            let expected = "a failure domain, for the workspace of the Machine";
            diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
            return None;
        };
        let platform = FieldPath::Document.field("platform");
        let vsphere = platform.field("vsphere");
        let list = vsphere.field("failureDomains");
        let domain_path = list.index(index);
        let topology_path = domain_path.field("topology");
        let topology = domain.object("topology").unwrap_or(&EMPTY);
        let mut needed = |object: &'d Object, path: FieldPath<'_>, name: &str| {
            let value = text(object, name);
            if value.is_none() {
                let expected = "a string, for the workspace of the Machine";
                diagnostics.push(Diagnostic::without_value(Severity::Error, path.field(name), "missing", expected));
            }
            value.unwrap_or_default()
        };
        let server = needed(domain, domain_path, "server");
        let datacenter = needed(topology, topology_path, "datacenter");
        let datastore = needed(topology, topology_path, "datastore");
        let cluster = needed(topology, topology_path, "computeCluster");
        let folder = text(topology, "folder").map(str::to_owned);
        let resources = text(topology, "resourcePool").map(str::to_owned);
        let template = text(topology, "template").or(self.template);
        if template.is_none() {
            let expected = "the virtual machine to clone, or --template";
            let path = topology_path.field("template");
            diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
        }
        let networks = Members::new(topology, topology_path).texts("networks", diagnostics);
        if networks.is_empty() {
            let path = topology_path.field("networks");
            let expected = "at least one port group";
            diagnostics.push(Diagnostic::without_value(Severity::Error, path, "missing", expected));
        }
        let mut devices: Vec<Json> = networks.iter().map(|network| json!({"networkName": network})).collect();
        if let Some(first) = devices.first_mut() {
            let device = &host.network_device;
            first["ipAddrs"] = device.ip_addrs.iter().map(ToString::to_string).collect();
            if let Some(gateway) = device.gateway {
                first["gateway"] = gateway.to_string().into();
            }
            first["nameservers"] = device.nameservers.iter().map(ToString::to_string).collect();
        }
        let mut value = json!({
            "apiVersion": "machine.openshift.io/v1beta1",
            "kind": "VSphereMachineProviderSpec",
            "credentialsSecret": {"name": "vsphere-cloud-credentials"},
            "userDataSecret": {"name": "worker-user-data"},
            "template": template.unwrap_or_default(),
            "network": {"devices": devices},
            "workspace": {
                "server": server,
                "datacenter": datacenter,
                "datastore": datastore,
                "folder": folder.unwrap_or_else(|| format!("/{datacenter}/vm/{}", self.infra_id)),
                "resourcePool": resources.unwrap_or_else(|| format!("{cluster}/Resources")),
            },
            "diskGiB": self.size(DISK, |of| of_disk(of)),
        });
        for (from, to, default) in SIZES {
            value[to] = self.size(default, |of| of.get(from)).into();
        }
        Some(json!({
            "apiVersion": "machine.openshift.io/v1beta1",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "namespace": "openshift-machine-api",
                "labels": {
                    "machine.openshift.io/cluster-api-cluster": self.infra_id,
                    "machine.openshift.io/cluster-api-machine-role": "worker",
                    "machine.openshift.io/cluster-api-machine-type": "worker",
                },
            },
            "spec": {"metadata": {}, "providerSpec": {"value": value}},
        }))
    }

    /// The platforms whose settings apply: first the platform of the machine pool, then the default of all machine
    /// pools.
    fn platforms(&self) -> impl Iterator<Item = &'d Object> {
        let own = self.pool.object("platform").and_then(|platform| platform.object("vsphere"));
        own.into_iter().chain(self.vsphere.object("defaultMachinePlatform"))
    }

    /// The failure domain of a host, and its index.
    fn domain(&self, number: usize, host: &Host) -> Option<(usize, &'d Object)> {
        let domains = objects(self.vsphere, "failureDomains");
        let zones = self.platforms().map(|platform| match platform.get("zones") {
            Some(Value::Array(zones)) => zones.as_slice(),
            _ => &[],
        });
        let zones = zones.into_iter().find(|zones| !zones.is_empty()).unwrap_or_default();
        let name = match (&host.failure_domain, zones.get(number.checked_rem(zones.len()).unwrap_or(0))) {
            (Some(name), _) => name.clone(),
            (None, Some(zone)) => zone.to_string(),
            (None, None) => {
                let index = number.checked_rem(domains.len())?;
                return domains.get(index).map(|domain| (index, *domain));
            }
        };
        let mut domains = domains.into_iter().enumerate();
        domains.find(|(_, domain)| text(domain, "name") == Some(&name))
    }

    /// Returns a positive number: from the machine pool, else from the default of all machine pools, else `default`.
    fn size(&self, default: i64, read: impl Fn(&'d Object) -> Option<&'d Value>) -> i64 {
        let number = |of: &'d Object| match read(of) {
            Some(Value::Integer(number)) if *number > 0 => Some(*number),
            _ => None,
        };
        self.platforms().find_map(number).unwrap_or(default)
    }
}

fn of_disk(platform: &Object) -> Option<&Value> {
    platform.object("osDisk")?.get("diskSizeGB")
}
