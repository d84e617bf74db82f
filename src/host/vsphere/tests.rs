use serde_json::{Value as Json, json};

use super::*;

/// Returns the value of the property, and all diagnostics, each with its document.
fn written(documents: &[&str], machine: Option<&str>) -> (Option<String>, Vec<String>) {
    let named = |(at, text): (usize, &&str)| (format!("file{at}"), text.as_bytes().to_vec());
    let documents: Vec<_> = documents.iter().enumerate().map(named).collect();
    let KargsReading { kargs, diagnostics } = network_kargs(&documents, machine);
    let diagnostics = diagnostics.iter().map(|(file, it)| format!("{}: {file}: {it}", it.severity)).collect();
    (kargs.map(|kargs| kargs.property().to_owned()), diagnostics)
}

/// A Machine with these devices, in flow style.
fn machine(devices: &str) -> String {
    format!(
        "{{kind: Machine, metadata: {{name: test, namespace: openshift-machine-api}}, \
         spec: {{providerSpec: {{value: {{network: {{devices: [{devices}]}}}}}}}}}}"
    )
}

/// An IPAddress of a claim on pool `test-pool`.
fn address(claim: &str, address: &str, gateway: &str) -> String {
    format!(
        "{{kind: IPAddress, metadata: {{name: {claim}, namespace: openshift-machine-api}}, spec: {{\
         claimRef: {{name: {claim}}}, poolRef: {{apiGroup: ipam.test.io, kind: ippools, name: test-pool}}, \
         address: '{address}', prefix: 24, gateway: '{gateway}'}}}}"
    )
}

const POOL: &str = "addressesFromPools: [{group: ipam.test.io, resource: ippools, name: test-pool}]";

/// Checks the value of the property of a Machine without diagnostics.
macro_rules! vectors {
    ($($name:ident: $devices:expr, [$($object:expr),*] => $line:literal;)*) => {
        $(#[test] fn $name() {
            let machine = machine($devices);
            let objects: Vec<String> = vec![machine, $($object),*];
            let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
            assert_eq!(written(&objects, None), (Some(format!("{} ", $line)), Vec::new()));
        })*
    };
}

// The first five cases come from the tests of machine-api-operator.
vectors! {
    a_static_ipv4_address: "{gateway: 192.168.1.1, ipAddrs: [192.168.1.2/24], nameservers: [192.168.1.100]}", []
        => "ip=192.168.1.2::192.168.1.1:255.255.255.0:::none nameserver=192.168.1.100";
    a_static_ipv6_address: "{gateway: '2001::1', ipAddrs: ['2001::2/64'], nameservers: ['2001::100']}", []
        => "ip=[2001::2]::[2001::1]:64:::none nameserver=[2001::100]";
    two_families_with_the_gateway_of_one:
        "{gateway: 192.168.1.1, ipAddrs: [192.168.1.2/24, '2001::2/64'], nameservers: [192.168.1.100]}", []
        => "ip=192.168.1.2::192.168.1.1:255.255.255.0:::none ip=[2001::2]:::64:::none nameserver=192.168.1.100";
    an_address_of_a_pool: &format!("{{{POOL}, nameservers: [192.168.1.100]}}"),
        [address("test-claim-0-0", "192.168.1.11", "192.168.1.1")]
        => "ip=192.168.1.11::192.168.1.1:255.255.255.0:::none nameserver=192.168.1.100";
    an_address_of_a_pool_after_a_static_address:
        &format!("{{{POOL}, gateway: 192.168.1.1, ipAddrs: [192.168.1.2/24], nameservers: [192.168.1.100]}}"),
        [address("test-claim-0-0", "192.168.1.11", "192.168.1.1")]
        => "ip=192.168.1.2::192.168.1.1:255.255.255.0:::none ip=192.168.1.11::192.168.1.1:255.255.255.0:::none nameserver=192.168.1.100";
    an_address_without_a_gateway: "{ipAddrs: [192.168.1.2/23], gateway: ''}", []
        => "ip=192.168.1.2:::255.255.254.0:::none";
    every_spelling_of_an_address_is_written_in_one_form: "{ipAddrs: ['FD00:0::02/64'], gateway: 'FE80::01'}", []
        => "ip=[fd00::2]::[fe80::1]:64:::none";
    a_device_without_addresses_writes_nothing: "{networkName: lab}, {ipAddrs: [10.0.0.2/24]}", []
        => "ip=10.0.0.2:::255.255.255.0:::none";
    the_name_servers_of_a_device_follow_its_addresses: "{nameservers: [10.0.0.53]}, {ipAddrs: [10.0.0.2/24]}", []
        => "nameserver=10.0.0.53 ip=10.0.0.2:::255.255.255.0:::none";
}

#[test]
fn the_arguments_have_no_final_blank_when_they_are_displayed() {
    let device = b"{ipAddrs: [10.0.0.2/24], nameservers: [10.0.0.53]}".to_vec();
    let kargs = network_kargs(&[("file0".to_owned(), device)], None).kargs.unwrap();
    assert_eq!(kargs.to_string(), "ip=10.0.0.2:::255.255.255.0:::none nameserver=10.0.0.53");
}

#[test]
fn a_claim_names_its_ipaddress() {
    let claim = "{kind: IPAddressClaim, metadata: {name: test-claim-0-0, namespace: openshift-machine-api}, \
                 status: {addressRef: {name: test-test-0}}}";
    let list = format!("[{claim}, {}]", address("test-test-0", "192.168.1.11", ""));
    let line = Some("ip=192.168.1.11:::255.255.255.0:::none ".to_owned());
    assert_eq!(written(&[&machine(&format!("{{{POOL}}}")), &list], None), (line, Vec::new()));
}

#[test]
fn a_claim_without_an_address_is_an_error() {
    let machine = machine(&format!("{{{POOL}}}"));
    let error = "error: file0: spec.providerSpec.value.network.devices[0].addressesFromPools[0]: \
                 no IPAddress is bound to claim \"test-claim-0-0\", \
                 expected a claim that has an address, and its IPAddress";
    assert_eq!(written(&[&machine], None), (None, vec![error.to_owned()]));
    let claim =
        "{kind: IPAddressClaim, metadata: {name: test-claim-0-0, namespace: openshift-machine-api}, status: {}}";
    let address = address("test-claim-0-0", "192.168.1.11", "");
    assert_eq!(written(&[&machine, &format!("[{claim}, {address}]")], None), (None, vec![error.to_owned()]));
}

#[test]
fn an_ipaddress_of_another_namespace_is_not_used() {
    let address = address("test-claim-0-0", "192.168.1.11", "").replace("openshift-machine-api", "other");
    let (kargs, diagnostics) = written(&[&machine(&format!("{{{POOL}}}")), &address], None);
    assert_eq!((kargs, diagnostics.len()), (None, 1));
}

#[test]
fn two_ipaddresses_of_one_claim_are_an_error() {
    let [one, two] = ["192.168.1.11", "192.168.1.12"].map(|ip| address("test-claim-0-0", ip, ""));
    let error = "error: file0: spec.providerSpec.value.network.devices[0].addressesFromPools[0]: \
                 several IPAddresses of claim \"test-claim-0-0\", expected one IPAddress";
    let machine = machine(&format!("{{{POOL}}}"));
    assert_eq!(written(&[&machine, &one, &two], None), (None, vec![error.to_owned()]));
}

#[test]
fn the_gateway_of_the_last_pool_is_used_and_the_other_gateways_are_reported() {
    let device = "{gateway: 10.0.0.1, addressesFromPools: [{resource: a, name: v4}, {resource: a, name: v6}]}";
    let v6 = "{kind: IPAddress, metadata: {name: b}, spec: {claimRef: {name: test-claim-0-1}, \
              address: 'fd00::5', prefix: 64, gateway: 'fd00::1'}}";
    let lost = |file: usize, path: &str, gateway: &str, used: &str| {
        format!(
            "warning: file{file}: {path}: {gateway:?} ignored, Machine API uses the gateway of the last pool, {used}"
        )
    };
    assert_eq!(
        written(&[&machine(device), &address("test-claim-0-0", "192.168.1.11", "192.168.1.1"), v6], None),
        (
            Some("ip=192.168.1.11:::255.255.255.0:::none ip=[fd00::5]::[fd00::1]:64:::none ".to_owned()),
            vec![
                lost(0, "spec.providerSpec.value.network.devices[0].gateway", "10.0.0.1", "192.168.1.1"),
                lost(1, "spec.gateway", "192.168.1.1", "fd00::1"),
            ]
        )
    );
}

#[test]
fn a_device_without_a_machine_gets_the_ipaddresses_of_its_pools() {
    let device = format!("{{{POOL}}}");
    let of_pool = address("any-name", "192.168.1.11", "192.168.1.1");
    let line = Some("ip=192.168.1.11::192.168.1.1:255.255.255.0:::none ".to_owned());
    assert_eq!(written(&[&device, &of_pool], None), (line, Vec::new()));
    let missing = "error: file0: addressesFromPools[0]: no IPAddress of the pool \"test-pool\", \
                   expected one IPAddress for each pool";
    assert_eq!(written(&[&device], None), (None, vec![missing.to_owned()]));
    let second = "error: file2: document: IPAddress without a pool in the device \"other\", \
                  expected one IPAddress for each pool";
    let other = address("other", "192.168.1.12", "");
    assert_eq!(written(&[&device, &of_pool, &other], None), (None, vec![second.to_owned()]));
}

#[test]
fn one_machine_of_several_is_selected_by_its_name() {
    let one = machine("{ipAddrs: [10.0.0.2/24]}");
    let list = format!("{{kind: List, items: [{one}, {}]}}", one.replace("name: test", "name: other"));
    let line = Some("ip=10.0.0.2:::255.255.255.0:::none ".to_owned());
    assert_eq!(written(&[&list], Some("other")), (line, Vec::new()));
    let second = "error: file0: items[1]: second Machine \"other\", expected one Machine, or the name of the Machine";
    assert_eq!(written(&[&list], None), (None, vec![second.to_owned()]));
    let absent = "error: file0: document: no Machine of that name \"absent\", \
                  expected one Machine of vSphere or one network device, and IPAddresses";
    assert_eq!(written(&[&list], Some("absent")), (None, vec![absent.to_owned()]));
}

#[test]
fn a_machine_without_a_static_configuration_has_no_arguments() {
    let warning = "warning: file0: spec: no static configuration, \
                   expected ipAddrs or addressesFromPools, unless DHCP is meant";
    assert_eq!(written(&[&machine("{networkName: lab}")], None), (Some(String::new()), vec![warning.to_owned()]));
}

#[test]
fn every_mistake_of_a_machine_is_reported_at_once() {
    let devices = "{networkName: 1, gateway: '::ffff:10.0.0.1', ipAddrs: ['::ffff:10.0.0.2/120', 10.0.0.3, 10.0.0.4/24, \
                   10.0.0.4/24, 10.0.0.255/24, 10.0.0.05/24], nameservers: [dns, 10.0.0.53, 'fe80::1%eth0', 10.0.0.55], \
                   addressesFromPools: [1, {name: A}, {group: [], resource: r, name: p, kind: k}], gateway4: 10.0.0.1}, lab";
    let list = "spec.providerSpec.value.network.devices";
    let expected = [
        "[0].addressesFromPools[0]: invalid pool \"1\", expected an object with group, resource and name",
        "[0].addressesFromPools[1].name: invalid name \"A\", expected lower case letters, digits, '-' and '.'",
        "[0].addressesFromPools[1].resource: missing, expected the kind of the pool",
        "[0].addressesFromPools[2].group: invalid value \"[]\", expected a string",
        "[0].addressesFromPools[2].kind: unknown key, expected one of group, resource, name",
        "[0].gateway: IPv4-mapped address \"::ffff:10.0.0.1\", expected 10.0.0.1",
        "[0].gateway4: unknown key, expected one of networkName, gateway, ipAddrs, nameservers, addressesFromPools",
        "[0].ipAddrs[0]: IPv4-mapped address \"::ffff:10.0.0.2/120\", expected 10.0.0.2",
        "[0].ipAddrs[1]: address without a prefix length \"10.0.0.3\", expected an address as CIDR, such as 10.0.0.5/24",
        "[0].ipAddrs[3]: repeated address \"10.0.0.4/24\", expected another address than at \
         spec.providerSpec.value.network.devices[0].ipAddrs[2]",
        "[0].ipAddrs[4]: broadcast address \"10.0.0.255/24\", expected another address of the subnet",
        "[0].ipAddrs[5]: leading zero in an address \"10.0.0.05/24\", expected 10.0.0.5",
        "[0].nameservers: too many name servers \"4\", expected at most 3",
        "[0].nameservers[0]: invalid address \"dns\", expected an IPv4 or IPv6 address",
        "[0].nameservers[2]: address with a zone \"fe80::1%eth0\", expected an address without a zone",
        "[0].networkName: invalid value \"1\", expected a string, written with quotes in YAML",
        "[1]: invalid device \"lab\", expected an object",
    ];
    let severity = |text: &str| if text.contains("too many name servers") { "warning" } else { "error" };
    let expected = expected.map(|text| format!("{}: file0: {list}{text}", severity(text)));
    assert_eq!(written(&[&machine(devices)], None), (None, expected.to_vec()));
}

#[test]
fn a_gateway_that_no_address_reaches_is_a_warning_for_a_machine() {
    let diagnostics = |device: &str| {
        let (kargs, diagnostics) = written(&[device], None);
        (kargs.is_some(), diagnostics)
    };
    let outside =
        "warning: file0: gateway: gateway outside the subnet \"10.0.1.1\", expected an address of 10.0.0.0/24";
    assert_eq!(diagnostics("{ipAddrs: [10.0.0.2/24], gateway: 10.0.1.1}"), (true, vec![outside.to_owned()]));
    let family = "warning: file0: gateway: gateway of a family without addresses \"fd00::1\", expected an IPv6 address";
    assert_eq!(diagnostics("{ipAddrs: [10.0.0.2/24], gateway: 'fd00::1'}"), (true, vec![family.to_owned()]));
    let own = "error: file0: ipAddrs[0]: address of the gateway \"10.0.0.2/24\", expected another address";
    assert_eq!(diagnostics("{ipAddrs: [10.0.0.2/24], gateway: 10.0.0.2}"), (false, vec![own.to_owned()]));
    let end =
        "error: file0: gateway: gateway is the network address \"10.0.0.0\", expected another address of 10.0.0.0/24";
    assert_eq!(diagnostics("{ipAddrs: [10.0.0.2/24], gateway: 10.0.0.0}"), (false, vec![end.to_owned()]));
}

#[test]
fn two_devices_with_addresses_are_reported_because_no_argument_names_an_interface() {
    let (kargs, diagnostics) = written(&[&machine("{ipAddrs: [10.0.0.2/24]}, {ipAddrs: [10.0.1.2/24]}")], None);
    let line = "ip=10.0.0.2:::255.255.255.0:::none ip=10.0.1.2:::255.255.255.0:::none ";
    let warning = "warning: file0: spec.providerSpec.value.network.devices[1].ipAddrs: second device with addresses, \
                   expected one: the arguments name no interface";
    assert_eq!((kargs, diagnostics), (Some(line.to_owned()), vec![warning.to_owned()]));
}

#[test]
fn arguments_that_are_too_long_for_the_guest_are_an_error() {
    let list: Vec<String> = (1..=120).map(|last| format!("10.0.0.{last}/24")).collect();
    let device = format!("{{ipAddrs: [{}]}}", list.join(", "));
    let error = "error: file0: kernel arguments: too many bytes of kernel arguments \"4332\", expected at most 4096";
    assert_eq!(written(&[&device], None), (None, vec![error.to_owned()]));
}

#[test]
fn an_ipaddress_with_mistakes_is_reported_in_its_own_document() {
    let bad = "{kind: IPAddress, metadata: {name: a}, spec: {claimRef: {name: test-claim-0-0}, address: 10.0.0.256, \
               prefix: 240, gateway: 127.0.0.1}}";
    let expected = [
        "error: file1: spec.address: invalid address \"10.0.0.256\", expected an IPv4 or IPv6 address",
        "error: file1: spec.gateway: loopback address \"127.0.0.1\", expected an address outside 127.0.0.0/8",
        "error: file1: spec.prefix: invalid prefix length \"240\", expected the prefix length of the subnet",
    ];
    let (kargs, diagnostics) = written(&[&machine(&format!("{{{POOL}}}")), &bad.replace("240", "0")], None);
    assert_eq!((kargs, diagnostics), (None, expected.map(|text| text.replace("240", "0")).to_vec()));
}

#[test]
fn documents_without_a_machine_are_refused() {
    let no_machine = "document: no Machine, expected one Machine of vSphere or one network device, and IPAddresses";
    for (document, expected) in [
        ("", vec![format!("error: file0: {no_machine}")]),
        (
            "{kind: MachineSet}",
            vec![
                format!("error: file0: {no_machine}"),
                "warning: file0: kind: not used \"MachineSet\", expected Machine, IPAddressClaim or IPAddress"
                    .to_owned(),
            ],
        ),
        ("5", vec!["error: file0: document: invalid document \"5\", expected an object".to_owned()]),
        ("[1]", vec!["error: file0: [0]: invalid object \"1\", expected an object".to_owned()]),
        ("items: 1", vec!["error: file0: items: invalid list \"1\", expected an array".to_owned()]),
        (
            "{kind: Machine, metadata: {name: a}}",
            vec![
                "error: file0: spec.providerSpec.value: missing, expected the specification of a vSphere machine"
                    .to_owned(),
            ],
        ),
        (
            "{kind: Machine, metadata: {name: a}, spec: {providerSpec: {value: {kind: AWSMachineProviderConfig}}}}",
            vec![
                "error: file0: spec.providerSpec.value.kind: other provider \"AWSMachineProviderConfig\", \
                 expected VSphereMachineProviderSpec"
                    .to_owned(),
            ],
        ),
    ] {
        assert_eq!(written(&[document], None), (None, expected), "{document}");
    }
}

// === Hosts of the installer ===

const CONFIG: &str = "
controlPlane: {name: master, replicas: 1}
compute:
- name: worker
  replicas: 2
  platform: {vsphere: {cpus: 8, osDisk: {diskSizeGB: 200}}}
platform:
  vsphere:
    apiVIPs: [192.168.101.10]
    ingressVIPs: [192.168.101.11]
    defaultMachinePlatform: {cpus: 2, memoryMB: 8192}
    failureDomains:
    - name: us-east-1a
      server: test.vcenter.net
      topology:
        datacenter: testdc
        datastore: datastore-1
        computeCluster: /testdc/host/cluster1
        networks: [lab, storage]
        template: vm-template-rhcos
    - name: us-east-1b
      server: test.vcenter.net
      topology:
        datacenter: testdc
        datastore: datastore-2
        computeCluster: /testdc/host/cluster2
        networks: [lab]
        folder: /testdc/vm/others
        resourcePool: /testdc/host/cluster2/Resources/nodes
    hosts:
    - role: bootstrap
      networkDevice: {ipAddrs: [192.168.101.240/24], gateway: 192.168.101.1, nameservers: [192.168.101.2]}
    - role: control-plane
      failureDomain: us-east-1a
      networkDevice: {ipAddrs: [192.168.101.241/24], gateway: 192.168.101.1, nameservers: [192.168.101.2]}
    - role: compute
      networkDevice: {ipAddrs: [192.168.101.244/24], gateway: 192.168.101.1, nameservers: [192.168.101.2]}
    - role: compute
      failureDomain: us-east-1b
      networkDevice: {ipAddrs: [192.168.101.245/24], gateway: 192.168.101.1}
";

/// The diagnostics of a configuration with one replacement.
fn found(from: &str, to: &str) -> Vec<String> {
    assert!(CONFIG.contains(from));
    let (hosts, diagnostics) = read_install_config(CONFIG.replacen(from, to, 1).as_bytes());
    assert_eq!(hosts.is_none(), diagnostics.has_errors());
    diagnostics.kept().iter().map(|it| format!("{}: {it}", it.severity)).collect()
}

#[test]
fn the_hosts_of_an_install_config_are_read() {
    let (hosts, diagnostics) = read_install_config(CONFIG.as_bytes());
    assert_eq!(diagnostics.kept(), []);
    let row = |host: &Host| (host.role.to_string(), host.failure_domain.clone(), host.kargs().to_string());
    let kargs = |last: u8| format!("ip=192.168.101.{last}::192.168.101.1:255.255.255.0:::none");
    let served = |last: u8| format!("{} nameserver=192.168.101.2", kargs(last));
    let domain = |name: &str| Some(name.to_owned());
    assert_eq!(
        hosts.unwrap().hosts.iter().map(row).collect::<Vec<_>>(),
        [
            ("bootstrap".to_owned(), None, served(240)),
            ("control-plane".to_owned(), domain("us-east-1a"), served(241)),
            ("compute".to_owned(), None, served(244)),
            ("compute".to_owned(), domain("us-east-1b"), kargs(245)),
        ]
    );
}

macro_rules! refused {
    ($($name:ident: $from:literal => $to:literal, [$($error:literal),*];)*) => {
        $(#[test] fn $name() {
            let expected: Vec<String> = vec![$(format!("error: {}", $error)),*];
            assert_eq!(found($from, $to), expected);
        })*
    };
}

refused! {
    no_bootstrap_host: "role: bootstrap" => "role: compute", [
        "platform.vsphere.hosts: wrong number of bootstrap hosts \"0\", expected 1",
        "platform.vsphere.hosts: wrong number of compute hosts \"3\", expected 2, as the sum of compute[].replicas"];
    fewer_hosts_than_replicas: "replicas: 1" => "replicas: 3", [
        "platform.vsphere.hosts: wrong number of control-plane hosts \"1\", expected 3, as controlPlane.replicas"];
    the_default_number_of_replicas_of_the_installer: "replicas: 2" => "replicas: null", [
        "platform.vsphere.hosts: wrong number of compute hosts \"2\", expected 3, as the sum of compute[].replicas"];
    replicas_that_are_no_number: "replicas: 2" => "replicas: two", [
        "compute[0].replicas: invalid number, expected a number of machines, from 0"];
    an_unknown_role: "role: control-plane" => "role: master", [
        "platform.vsphere.hosts: wrong number of control-plane hosts \"0\", expected 1, as controlPlane.replicas",
        "platform.vsphere.hosts[1].role: unknown role \"master\", expected bootstrap, control-plane or compute"];
    an_unknown_failure_domain: "failureDomain: us-east-1b" => "failureDomain: us-east-1c", [
        "platform.vsphere.hosts[3].failureDomain: unknown failure domain \"us-east-1c\", expected the name of one of platform.vsphere.failureDomains"];
    a_host_without_a_network_device: "networkDevice: {ipAddrs: [192.168.101.245/24], gateway: 192.168.101.1}"
        => "networkDevice: null", [
        "platform.vsphere.hosts[3].networkDevice: missing, expected the addresses of the host"];
    a_host_without_an_address: "ipAddrs: [192.168.101.245/24]" => "ipAddrs: []", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs: missing, expected at least one address as CIDR"];
    an_address_without_a_prefix_length: "192.168.101.245/24" => "192.168.101.245", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: address without a prefix length \"192.168.101.245\", expected an address as CIDR, such as 10.0.0.5/24"];
    four_name_servers: "nameservers: [192.168.101.2]" => "nameservers: [1.1.1.1, 8.8.8.8, 8.8.4.4, 9.9.9.9]", [
        "platform.vsphere.hosts[0].networkDevice.nameservers: too many name servers \"4\", expected at most 3"];
    two_hosts_with_the_same_address: "192.168.101.245/24" => "192.168.101.240/25", [
        "platform.vsphere.hosts[3].networkDevice.gateway: gateway outside the subnet \"192.168.101.1\", expected an address of 192.168.101.128/25",
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: repeated address \"192.168.101.240\", expected another address than at platform.vsphere.hosts[0].networkDevice.ipAddrs[0]"];
    a_virtual_address_of_the_cluster: "192.168.101.245/24" => "192.168.101.11/24", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: repeated address \"192.168.101.11\", expected another address than at platform.vsphere.ingressVIPs[0]"];
    the_name_server_of_another_host: "192.168.101.245/24" => "192.168.101.2/24", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: address of a name server \"192.168.101.2\", expected another address than at platform.vsphere.hosts[0].networkDevice.nameservers[0]"];
    the_gateway_of_the_host_itself: "192.168.101.245/24" => "192.168.101.1/24", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: address of the gateway \"192.168.101.1/24\", expected another address"];
    a_host_with_the_network_address: "192.168.101.245/24" => "192.168.101.0/24", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: network address \"192.168.101.0/24\", expected another address of the subnet"];
    a_host_with_the_broadcast_address: "192.168.101.245/24" => "192.168.101.255/24", [
        "platform.vsphere.hosts[3].networkDevice.ipAddrs[0]: broadcast address \"192.168.101.255/24\", expected another address of the subnet"];
    a_gateway_outside_the_subnet: "192.168.101.245/24" => "192.168.102.245/24", [
        "platform.vsphere.hosts[3].networkDevice.gateway: gateway outside the subnet \"192.168.101.1\", expected an address of 192.168.102.0/24"];
    members_that_a_host_of_the_installer_does_not_have: "gateway: 192.168.101.1}" => "gateway4: 192.168.101.1, addressesFromPools: []}", [
        "platform.vsphere.hosts[3].networkDevice.addressesFromPools: unknown key, expected one of gateway, ipAddrs, nameservers",
        "platform.vsphere.hosts[3].networkDevice.gateway4: unknown key, expected one of gateway, ipAddrs, nameservers"];
    no_hosts: "    hosts:\n" => "    hosts: []\n    rest:\n", [
        "platform.vsphere.hosts: missing, expected the hosts of the cluster, with their static addresses"];
    a_platform_that_is_not_vsphere: "  vsphere:\n    apiVIPs" => "  aws:\n    apiVIPs", [
        "platform.vsphere: missing, expected the platform of an install-config.yaml"];
}

#[test]
fn the_machines_of_the_compute_hosts_have_their_static_network() {
    let (hosts, _) = read_install_config(CONFIG.as_bytes());
    let machines = hosts.as_ref().unwrap().machines("c1-x7k2p", Some("rhcos")).unwrap();
    let machine = |name: &str, value: Json| {
        let mut whole = json!({
            "apiVersion": "machine.openshift.io/v1beta1",
            "kind": "VSphereMachineProviderSpec",
            "credentialsSecret": {"name": "vsphere-cloud-credentials"},
            "userDataSecret": {"name": "worker-user-data"},
            "numCPUs": 8, "numCoresPerSocket": 4, "memoryMiB": 8192, "diskGiB": 200,
        });
        whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        json!({
            "apiVersion": "machine.openshift.io/v1beta1",
            "kind": "Machine",
            "metadata": {
                "name": name,
                "namespace": "openshift-machine-api",
                "labels": {
                    "machine.openshift.io/cluster-api-cluster": "c1-x7k2p",
                    "machine.openshift.io/cluster-api-machine-role": "worker",
                    "machine.openshift.io/cluster-api-machine-type": "worker",
                },
            },
            "spec": {"metadata": {}, "providerSpec": {"value": whole}},
        })
    };
    let first = json!({"networkName": "lab", "ipAddrs": ["192.168.101.244/24"], "gateway": "192.168.101.1", "nameservers": ["192.168.101.2"]});
    let second =
        json!({"networkName": "lab", "ipAddrs": ["192.168.101.245/24"], "gateway": "192.168.101.1", "nameservers": []});
    let expected = [
        machine(
            "c1-x7k2p-worker-0",
            json!({
                "template": "vm-template-rhcos",
                "network": {"devices": [first, {"networkName": "storage"}]},
                "workspace": {
                    "server": "test.vcenter.net", "datacenter": "testdc", "datastore": "datastore-1",
                    "folder": "/testdc/vm/c1-x7k2p", "resourcePool": "/testdc/host/cluster1/Resources",
                },
            }),
        ),
        machine(
            "c1-x7k2p-worker-1",
            json!({
                "template": "rhcos",
                "network": {"devices": [second]},
                "workspace": {
                    "server": "test.vcenter.net", "datacenter": "testdc", "datastore": "datastore-2",
                    "folder": "/testdc/vm/others", "resourcePool": "/testdc/host/cluster2/Resources/nodes",
                },
            }),
        ),
    ];
    assert_eq!(machines, expected);
    let errors = hosts.unwrap().machines("c1-x7k2p", None).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "platform.vsphere.failureDomains[1].topology.template: missing, expected the virtual machine to clone, or --template"
    );
}

#[test]
fn the_arguments_of_a_written_machine_are_those_of_its_host() {
    let (hosts, _) = read_install_config(CONFIG.as_bytes());
    let hosts = hosts.unwrap();
    let machines = hosts.machines("c1", Some("rhcos")).unwrap();
    let of_machines = machines.iter().map(|machine| {
        let document = ("machine".to_owned(), machine.to_string().into_bytes());
        network_kargs(&[document], None).kargs.unwrap()
    });
    let of_hosts = hosts.hosts.iter().filter(|host| host.role == Role::Compute).map(Host::kargs);
    assert_eq!(of_machines.collect::<Vec<_>>(), of_hosts.collect::<Vec<_>>());
}

#[test]
fn each_compute_host_becomes_a_machine_of_only_one_of_several_machine_pools() {
    let two = "- name: infra\n  replicas: 1\n- name: worker\n  replicas: 1";
    let config = CONFIG.replacen("- name: worker\n  replicas: 2", two, 1);
    let machines = read_install_config(config.as_bytes()).0.unwrap().machines("c1", Some("rhcos")).unwrap();
    let row = |machine: &Json| {
        let value = &machine["spec"]["providerSpec"]["value"];
        (machine["metadata"]["name"].clone(), value["network"]["devices"][0]["ipAddrs"][0].clone())
    };
    assert_eq!(
        machines.iter().map(row).collect::<Vec<_>>(),
        [(json!("c1-infra-0"), json!("192.168.101.244/24")), (json!("c1-worker-0"), json!("192.168.101.245/24"))]
    );
}

#[test]
fn a_machine_without_a_failure_domain_is_an_error() {
    let config = CONFIG
        .replace("failureDomains:", "others:")
        .replace("failureDomain: us-east-1a", "")
        .replace("failureDomain: us-east-1b", "");
    let hosts = read_install_config(config.as_bytes()).0.unwrap();
    assert_eq!(
        hosts.machines("c1", None).unwrap_err().to_string(),
        "platform.vsphere.hosts[2].failureDomain: missing, expected a failure domain, for the workspace of the Machine; \
         platform.vsphere.hosts[3].failureDomain: missing, expected a failure domain, for the workspace of the Machine"
    );
}

#[test]
fn a_failure_domain_keeps_its_index_after_an_invalid_failure_domain() {
    let config = CONFIG.replacen("failureDomains:\n", "failureDomains:\n    - 5\n", 1);
    let hosts = read_install_config(config.as_bytes()).0.unwrap();
    let errors = hosts.machines("c1", None).unwrap_err();
    assert_eq!(
        errors.kept().last().unwrap().to_string(),
        "platform.vsphere.failureDomains[2].topology.template: missing, expected the virtual machine to clone, or --template"
    );
}
