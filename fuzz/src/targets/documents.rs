//! Targets for the documents of a drive, and for templates of these documents.

use glowplug::diagnostic::Diagnostics;
use glowplug::drive::{Files, ReadError};
use glowplug::formats::meta_data::MetaData;
use glowplug::formats::{Format, Meaning, Reading, read_network};
use glowplug::guest::attributes::{Attributes, Prefix};
use glowplug::host::expand::{ExpandError, Grant, Template};
use glowplug::host::pool::{Settings, StaticRoute};
use glowplug::network::{Hostname, NetworkConfig};
use glowplug::render::{dracut, network_legacy, network_manager_profiles, networkd};
use ipnetwork::IpNetwork;

use super::{check_diagnostics, kargs};

/// Reads a network document. A document of another format is not rendered, because another target renders it.
pub(super) fn network(format: Format, document: &[u8]) {
    let reading = read_network(document);
    let config = check_reading(&reading, document);
    if let Some(config) = config.filter(|_| reading.format == Some(format)) {
        render(config);
    }
}

/// Checks properties that every reading of a document must have. Returns the network of the document, if there is one.
pub(super) fn check_reading<'r>(reading: &'r Reading, document: &[u8]) -> Option<&'r NetworkConfig> {
    let Reading { format, meaning, diagnostics, .. } = reading;
    check_diagnostics(diagnostics);
    assert_eq!(diagnostics.has_errors(), matches!(meaning, Meaning::Refused));
    let again = read_network(document);
    assert_eq!(
        (*format, diagnostics.kept(), diagnostics.further()),
        (again.format, again.diagnostics.kept(), again.diagnostics.further())
    );
    match (meaning, &again.meaning) {
        (Meaning::Network(config), Meaning::Network(again)) => {
            assert!(config == again);
            assert!(!config.is_empty() && format.is_some());
            Some(config)
        }
        (Meaning::Unconfigured, Meaning::Unconfigured)
        | (Meaning::Disabled, Meaning::Disabled)
        | (Meaning::Refused, Meaning::Refused) => None,
        (first, second) => panic!("read as {first:?}, and then as {second:?}"),
    }
}

/// Renders a network for every network program, and checks the output with an independent reader.
pub(super) fn render(config: &NetworkConfig) {
    for legacy in [false, true] {
        let render = if legacy { network_legacy::render } else { dracut::render };
        let (rendered, diagnostics) = twice(config, render);
        let line = &rendered.line;
        assert!(dracut::is_legal(line), "{line:?}");
        if !diagnostics.has_errors() {
            assert!(line.len() <= dracut::MAX_BYTES);
            kargs::check(config, &rendered.devices, line, legacy);
        }
    }
    let (rendered, diagnostics) = twice(config, networkd::render);
    super::networkd::check(config, &rendered, diagnostics.has_errors());
    let (rendered, _) = twice(config, network_manager_profiles::render);
    super::profiles::check(config, &rendered);
}

fn twice<T: std::fmt::Debug + PartialEq>(
    config: &NetworkConfig,
    render: fn(&NetworkConfig, &mut Diagnostics) -> T,
) -> (T, Diagnostics) {
    let [mut diagnostics, mut again] = [Diagnostics::default(), Diagnostics::default()];
    let (rendered, second) = (render(config, &mut diagnostics), render(config, &mut again));
    check_diagnostics(&diagnostics);
    assert!(rendered == second && diagnostics.kept() == again.kept(), "{rendered:?}\n{second:?}");
    (rendered, diagnostics)
}

/// Reads a metadata document. Checks that every attribute is unchanged after it is written to an environment file and
/// read again.
pub(super) fn meta_data(document: &[u8]) {
    for read in [MetaData::read_openstack, MetaData::read_nocloud] {
        let [mut diagnostics, mut again] = [Diagnostics::default(), Diagnostics::default()];
        let meta_data = read(document, &mut diagnostics);
        assert_eq!((&meta_data, diagnostics.kept()), (&read(document, &mut again), again.kept()));
        check_diagnostics(&diagnostics);
        meta_data.diagnostics.iter().for_each(super::check_diagnostic);
        let attributes = Attributes::of(&meta_data, None, &[], &mut diagnostics);
        check_diagnostics(&diagnostics);
        let file = attributes.environment_file(&Prefix::default());
        assert_eq!(Attributes::read_environment_file(&file).by_key(), attributes.by_key(), "{file:?}");
        // A string that is accepted as a host name must have only valid characters and a valid length.
        if let Some(Ok(name)) = meta_data.hostname.as_deref().map(str::parse::<Hostname>) {
            assert!(name.as_str().len() <= Hostname::MAX);
            assert!(
                name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)),
                "{name:?}"
            );
        }
    }
}

/// Checks that a path that leads off the drive finds no file.
pub(super) fn check_no_way_out(files: &dyn Files) {
    for path in ["/etc/passwd", "../a", "openstack/../../a", "a//b", "."] {
        assert!(matches!(files.read(path, 16), Err(ReadError::NotAFile { .. })), "{path:?}");
    }
}

/// Expands a template for a machine, and checks that the guest reads each allocated address from the document.
pub(super) fn template(document: &[u8]) {
    let Ok(template) = Template::parse(document) else { return };
    let addresses = ["10.20.0.5/24".parse().unwrap(), "fd00:20::5/64".parse().unwrap()];
    for addresses in [&addresses[..1], &addresses[1..], &addresses[..]] {
        let allocation = super::pools::allocation(addresses);
        let via = "10.20.0.3".parse().unwrap();
        let settings = Settings {
            gateways: vec!["10.20.0.1".parse().unwrap(), "fd00:20::1".parse().unwrap()],
            nameservers: vec!["10.20.0.2".parse().unwrap()],
            search_domains: vec!["example.com".parse().unwrap()],
            mtu: Some(9000.try_into().unwrap()),
            routes: vec![StaticRoute { to: "10.21.0.0/16".parse().unwrap(), via }],
        };
        let grants = [Grant { allocation: &allocation, settings, mac_address: None, is_named: true }];
        match template.expand(&grants) {
            Ok(document) => {
                assert_eq!(template.expand(&grants).unwrap().text(), document.text());
                document.warnings().iter().for_each(super::check_diagnostic);
                assert!(!document.text().contains('\n'));
                let reading = read_network(document.text().as_bytes());
                let config = check_reading(&reading, document.text().as_bytes()).unwrap();
                let links = config.links().iter();
                let read: Vec<String> = links
                    .flat_map(|link| {
                        let ipv4 = link.ipv4.addresses.iter().map(ToString::to_string);
                        ipv4.chain(link.ipv6.addresses.iter().map(ToString::to_string))
                    })
                    .collect();
                let allocated = |address: &IpNetwork| read.iter().filter(|read| **read == address.to_string()).count();
                assert!(addresses.iter().all(|address| allocated(address) == 1), "{read:?}");
                render(config);
            }
            Err(ExpandError::Differs { .. }) => panic!("the guest would read other addresses than were allocated"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
