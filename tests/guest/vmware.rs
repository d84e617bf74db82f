//! Runs the guest with the arguments of a VMware machine. No VMware machine was available, so a value in the test
//! replaces the hypervisor.
#![cfg(feature = "vmware")]

use glowplug::guest::platform::Selection;
use glowplug::guest::system::Linux;
use glowplug::guest::{self, DefaultValue, Options, Source};
use glowplug::host::vsphere::network_kargs;

use super::machine::{FakeMachine, Run};

/// Runs the program with a kernel command line and a value of the guest property. Returns outcome, reason and fragment.
fn decided(command_line: &str, value: Result<Option<&str>, &str>) -> (String, String, Option<String>) {
    let machine = FakeMachine::new().with("proc/cmdline", command_line);
    let value = value.map(|value| value.map(|text| text.as_bytes().to_vec())).map_err(str::to_owned);
    let selection = Selection::Provider("vmware".to_owned());
    let default_value = Ok("ip=auto".parse::<DefaultValue>().ok());
    let options = Options { default_value, ..Options::new(selection, Source::Property(value), machine.path("")) };
    let log = slog::Logger::root(slog::Discard, slog::o!());
    let plan = guest::plan(&options, &Linux::default(), &log);
    guest::apply(&plan, &options.root, &log).unwrap();
    (plan.report.outcome.to_string(), plan.report.reason, machine.fragment())
}

const PROPERTY: &str = "guestinfo.afterburn.initrd.network-kargs";

fn expected(outcome: &str, reason: &str, fragment: Option<&str>) -> (String, String, Option<String>) {
    (outcome.to_owned(), reason.to_owned(), fragment.map(str::to_owned))
}

#[test]
fn the_guest_property_is_written_as_the_fragment() {
    let line = "ip=192.168.1.100::192.168.1.1:24::ens192:none nameserver=192.168.1.53";
    let reason = format!("by {PROPERTY}");
    assert_eq!(decided("quiet", Ok(Some(line))), expected("configured", &reason, Some(&format!("{line}\n"))));
}

#[test]
fn the_guest_writes_the_arguments_that_the_host_makes_for_a_machine() {
    for device in [
        "{ipAddrs: [192.168.1.2/24], gateway: 192.168.1.1, nameservers: [192.168.1.100]}",
        "{ipAddrs: ['2001::2/64'], gateway: '2001::1', nameservers: ['2001::100']}",
        "{ipAddrs: [192.168.1.2/24, '2001::2/64'], gateway: 'fe80::1'}",
    ] {
        let kargs = network_kargs(&[("device".to_owned(), device.into())], None).kargs.unwrap();
        let reason = format!("by {PROPERTY}");
        let fragment = format!("{kargs}\n");
        assert_eq!(decided("quiet", Ok(Some(kargs.property()))), expected("configured", &reason, Some(&fragment)));
    }
}

#[test]
fn without_the_guest_property_the_default_arguments_apply() {
    let reason = format!("{PROPERTY} is not set");
    assert_eq!(decided("quiet", Ok(None)), expected("default", &reason, Some("ip=auto\n")));
}

#[test]
fn a_property_with_a_word_that_is_no_network_argument_is_refused_as_a_whole() {
    let reason = format!("{PROPERTY}: 1 error");
    assert_eq!(decided("quiet", Ok(Some("ip=dhcp rd.break"))), expected("refused", &reason, None));
}

#[test]
fn a_hypervisor_that_does_not_answer_is_an_error() {
    let reason = format!("reading {PROPERTY}: no answer");
    assert_eq!(decided("quiet", Err("no answer")), expected("refused", &reason, None));
}

#[test]
fn arguments_on_the_kernel_command_line_take_precedence_over_the_property() {
    let reason = "the kernel command line configures the network with ip=dhcp";
    assert_eq!(decided("ip=dhcp", Ok(Some("ip=off"))), expected("nothing to do", reason, None));
}

#[test]
fn on_another_hypervisor_the_program_does_not_touch_the_backdoor() {
    let machine = FakeMachine::new();
    let Run { code, stderr, .. } = machine.network_kargs(&["--provider", "vmware"]);
    let reason = format!("reading {PROPERTY}: the hypervisor is not VMware's");
    assert_eq!((code, stderr), (Some(1), format!("<3>refused to configure the network reason={reason:?}\n")));
}
