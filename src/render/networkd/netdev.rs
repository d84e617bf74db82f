//! Writes the options of bonds and bridges.

use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::network::{BondOptions, BridgeOptions};
use crate::render::text::Text;

/// Number of ARP targets that the kernel accepts for a bond.
const ARP_TARGETS: usize = 16;

/// Bond options: the kernel's name, the name in networkd, and the unit of the number.
const BOND_OPTIONS: &[(&str, &str, &str)] = &[
    ("ad_actor_sys_prio", "AdActorSystemPriority", ""),
    ("ad_select", "AdSelect", ""),
    ("ad_user_port_key", "AdUserPortKey", ""),
    ("all_slaves_active", "AllSlavesActive", ""),
    ("arp_all_targets", "ARPAllTargets", ""),
    ("arp_interval", "ARPIntervalSec", "ms"),
    ("arp_validate", "ARPValidate", ""),
    ("downdelay", "DownDelaySec", "ms"),
    ("fail_over_mac", "FailOverMACPolicy", ""),
    ("lacp_rate", "LACPTransmitRate", ""),
    // networkd 252 accepts this option but does not set it in the kernel.
    ("lp_interval", "LearnPacketIntervalSec", ""),
    ("miimon", "MIIMonitorSec", "ms"),
    ("min_links", "MinLinks", ""),
    // The kernel stores one number for these two options.
    ("num_grat_arp", "GratuitousARP", ""),
    ("num_unsol_na", "GratuitousARP", ""),
    ("packets_per_slave", "PacketsPerSlave", ""),
    ("primary_reselect", "PrimaryReselectPolicy", ""),
    ("resend_igmp", "ResendIGMP", ""),
    ("tlb_dynamic_lb", "DynamicTransmitLoadBalancing", ""),
    ("updelay", "UpDelaySec", "ms"),
    ("xmit_hash_policy", "TransmitHashPolicy", ""),
];

/// Option values that networkd does not support.
const UNKNOWN: &[(&str, &str)] = &[
    ("arp_validate", "filter"),
    ("arp_validate", "filter_active"),
    ("arp_validate", "filter_backup"),
    ("xmit_hash_policy", "vlan+srcmac"),
];

pub(super) fn bond(text: &mut Text, options: &BondOptions, diagnostics: &mut Diagnostics) {
    text.section("Bond");
    text.line("Mode", &options.mode);
    for option in options.others() {
        let known = BOND_OPTIONS.iter().find(|(name, ..)| *name == option.name);
        match known {
            Some((_, key, unit)) if !UNKNOWN.contains(&(option.name, option.value.as_str())) => {
                text.line(key, &format_args!("{}{unit}", option.value));
            }
            // This value is the kernel's default, so no line is needed.
            None if option.name == "use_carrier" && option.value == "1" => {}
            _ => ignore(&options.path, option.name, &option.value, diagnostics),
        }
    }
    let asks = options.get("arp_interval").is_some_and(|interval| interval != "0");
    if options.get("miimon").is_none() && !asks {
        // 100 ms is the default of NetworkManager. With the kernel's default, 0, the bond never detects a failed
        // member.
        text.line("MIIMonitorSec", &"100ms");
    }
    for (at, target) in options.arp_ip_target.iter().enumerate() {
        if at < ARP_TARGETS {
            text.line("ARPIPTargets", target);
        } else {
            ignore(&options.path, "arp_ip_target", &target.to_string(), diagnostics);
        }
    }
}

pub(super) fn bridge(text: &mut Text, options: &BridgeOptions, diagnostics: &mut Diagnostics) {
    text.section("Bridge");
    text.switch("STP", options.stp);
    text.option("AgeingTimeSec", options.ageing_time);
    text.option("ForwardDelaySec", options.forward_delay);
    text.option("HelloTimeSec", options.hello_time);
    text.option("MaxAgeSec", options.max_age);
    if options.priority == Some(0) {
        ignore(&options.path, "priority", "0", diagnostics);
    } else {
        text.option("Priority", options.priority);
    }
}

fn ignore(path: &str, name: &str, value: &str, diagnostics: &mut Diagnostics) {
    let because = "systemd-networkd cannot express it";
    diagnostics.push(Diagnostic::ignored(path, format_args!("{name}={value}"), because));
}
