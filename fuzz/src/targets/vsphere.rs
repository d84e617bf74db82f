//! Target for Machines on vSphere, and for hosts of the installer.

use glowplug::host::vsphere::{Host, KargsReading, NetworkKargs, Role, network_kargs, read_install_config};
use glowplug::render::dracut::is_legal;

use super::{check_diagnostic, check_diagnostics};

/// Reads a document as objects of Machine API and as an `install-config.yaml`. Checks that kernel arguments have a
/// fixed alphabet, and that a Machine written for an installer host has the arguments of that host.
pub(super) fn vsphere(document: &[u8]) {
    let KargsReading { kargs, diagnostics } = read(document);
    diagnostics.iter().for_each(|(_, diagnostic)| check_diagnostic(diagnostic));
    kargs.iter().for_each(check_kargs);

    let (hosts, diagnostics) = read_install_config(document);
    check_diagnostics(&diagnostics);
    assert_eq!(hosts.is_none(), diagnostics.has_errors());
    let Some(hosts) = hosts else { return };
    hosts.hosts.iter().for_each(|host| check_kargs(&host.kargs()));
    match hosts.machines("c1", Some("rhcos")) {
        Ok(machines) => {
            let written = machines.iter().map(|machine| read(machine.to_string().as_bytes()).kargs.unwrap());
            let compute = hosts.hosts.iter().filter(|host| host.role == Role::Compute);
            assert_eq!(written.collect::<Vec<_>>(), compute.map(Host::kargs).collect::<Vec<_>>());
        }
        Err(diagnostics) => check_diagnostics(&diagnostics),
    }
}

fn read(document: &[u8]) -> KargsReading {
    network_kargs(&[("file".to_owned(), document.to_vec())], None)
}

fn check_kargs(kargs: &NetworkKargs) {
    let property = kargs.property();
    assert!(is_legal(property) && property.len() <= 4096, "{property:?}");
    let is_known = |word: &str| word.starts_with("ip=") || word.starts_with("nameserver=");
    assert!(property.split(' ').all(|word| word.is_empty() || is_known(word)), "{property:?}");
    assert_eq!(kargs.to_string(), property.trim_end());
}
