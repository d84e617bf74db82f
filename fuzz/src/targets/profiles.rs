//! Reads NetworkManager's profiles without any code of the writer, and compares the profiles with the network.

use std::collections::BTreeSet;

use glowplug::network::{LinkIndex, LinkKind, NetworkConfig};
use glowplug::render::dracut;
use glowplug::render::network_manager_profiles::Rendered;

const SECTIONS: [&str; 10] =
    ["connection", "match", "ethernet", "bond", "bridge", "bridge-port", "vlan", "ipv4", "ipv6", "hostname"];

/// The sections of a profile with their lines, in order.
type Profile<'t> = Vec<(&'t str, Vec<(&'t str, &'t str)>)>;

fn read(text: &str) -> Profile<'_> {
    let mut profile: Profile = Vec::new();
    assert!(text.ends_with('\n') && text.starts_with("[connection]\n"), "{text:?}");
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            assert!(SECTIONS.contains(&section) && profile.iter().all(|(name, _)| *name != section), "{text:?}");
            profile.push((section, Vec::new()));
            continue;
        }
        let (key, value) = line.split_once('=').unwrap();
        assert!(
            !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)),
            "{line:?}"
        );
        // No byte needs escaping: no backslash, no control character, no blank at the start.
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b" .:/_+-*?![],;=".contains(&byte);
        assert!(!value.is_empty() && !value.starts_with(' ') && value.bytes().all(is_legal), "{line:?}");
        let lines = &mut profile.last_mut().unwrap().1;
        assert!(lines.iter().all(|(other, _)| *other != key), "{key} twice in {text:?}");
        lines.push((key, value));
    }
    assert!(profile.iter().all(|(_, lines)| !lines.is_empty()), "{text:?}");
    profile
}

fn value<'t>(profile: &Profile<'t>, section: &str, key: &str) -> Option<&'t str> {
    let lines = profile.iter().filter(|(name, _)| *name == section).flat_map(|(_, lines)| lines);
    lines.filter(|(name, _)| *name == key).map(|(_, value)| *value).next()
}

/// Checks that every link has its own profile with the addresses of the link. A profile must refer to the profiles of
/// the link's controller and parent.
pub(super) fn check(config: &NetworkConfig, rendered: &Rendered) {
    assert!(dracut::is_legal(&rendered.line), "{:?}", rendered.line);
    assert_eq!((rendered.files.len(), rendered.devices.len()), (config.links().len(), config.links().len()));
    let profiles: Vec<Profile> = rendered.files.iter().map(|file| read(&file.text)).collect();
    let uuid = |index: LinkIndex| value(&profiles[index.position()], "connection", "uuid");
    let mut seen = BTreeSet::new();
    for (at, (link, file)) in config.links().iter().zip(&rendered.files).enumerate() {
        let (index, profile) = (LinkIndex::new(at), &profiles[at]);
        let name = file.path.strip_prefix("etc/NetworkManager/system-connections/50-glowplug-").unwrap();
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        assert!(name.bytes().all(is_legal) && name.len() < 64 && name.ends_with(".nmconnection"), "{name:?}");
        assert!(file.is_private && seen.insert(uuid(index).unwrap()) && seen.insert(&file.path), "{name:?} twice");
        let controller = config.controller_of(index);
        assert_eq!(value(profile, "connection", "master"), controller.and_then(uuid));
        let parent = match &link.kind {
            LinkKind::Vlan { parent, .. } => uuid(*parent),
            _ => None,
        };
        assert_eq!(value(profile, "vlan", "parent"), parent);
        if controller.is_some() {
            assert_eq!(value(profile, "ipv4", "method"), None);
            continue;
        }
        let written = |section: &str| {
            let lines = profile.iter().filter(|(name, _)| *name == section).flat_map(|(_, lines)| lines);
            let addresses = lines.filter(|(key, _)| key.starts_with("address"));
            addresses.map(|(_, value)| (*value).to_owned()).collect::<Vec<_>>()
        };
        let ipv4: Vec<String> = link.ipv4.addresses.iter().map(ToString::to_string).collect();
        let ipv6: Vec<String> = link.ipv6.addresses.iter().map(ToString::to_string).collect();
        assert_eq!((written("ipv4"), written("ipv6")), (ipv4, ipv6));
        assert_eq!(value(profile, "ipv4", "method") == Some("auto"), link.ipv4.dhcp);
    }
}
