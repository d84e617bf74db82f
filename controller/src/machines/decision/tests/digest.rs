//! Tests of the digest of a Secret: a pass that trusts the digest does not read the Secret.

use super::*;
use crate::kinds::network_data::DIGEST_ANNOTATION;

/// Creates the view of a machine whose objects have everything that the controller writes. A leader that starts has
/// this view.
fn listed() -> View {
    listed_with(served())
}

/// Adds to a view what the controller writes for a served machine, and removes the Secrets that the pass has read.
fn listed_with(mut view: View) -> View {
    let Step::PatchMachine(patch) = decide(&view) else { panic!("{:?}", decide(&view)) };
    let status = json!({"allocatedBootstrapAddresses": {"eno101": ["10.0.0.8/16"]}});
    let annotations = patch["metadata"]["annotations"].clone();
    view.machine = Some(machine(&json!({"metadata": {"annotations": annotations}, "status": status})));
    assert_eq!(decide(&view), Step::Wait);
    View { secrets: BTreeMap::new(), ..view }
}

/// Returns whether a pass trusts the digest, and the first step of this pass.
fn first(mut view: View) -> (bool, Step) {
    view.trust_digest();
    (view.trusts_digest, decide(&view))
}

fn annotate(view: &mut View, digest: Option<&str>) {
    let annotations = view.machine.as_mut().unwrap().metadata.annotations.as_mut().unwrap();
    match digest {
        Some(digest) => drop(annotations.insert(DIGEST_ANNOTATION.to_owned(), digest.to_owned())),
        None => drop(annotations.remove(DIGEST_ANNOTATION)),
    }
}

fn reads() -> Step {
    Step::ReadSecret(NAME.to_owned())
}

#[test]
fn the_secret_of_a_settled_machine_is_not_read() {
    assert_eq!(first(listed()), (true, Step::Wait));
    assert_eq!(decide(&listed()), reads(), "a pass for a change reads it");
    let running = View { instance: Some(reading(Some(NAME), &running())), ..listed() };
    assert_eq!(first(running.clone()), (true, Step::Wait));
    let outdated = View { instance: Some(reading(Some(EARLIER), &json!({"status": {"phase": "Running"}}))), ..running };
    assert_eq!(first(outdated), (false, Step::ReadSecret(EARLIER.to_owned())));
}

#[test]
fn a_secret_is_read_if_its_digest_is_missing_or_wrong() {
    for digest in
        [None, Some(""), Some("@"), Some("4180ab244d4fdcf40581bd2ad06cc82d"), Some("\u{0}é@2026-08-14T10:00:00Z")]
    {
        let mut view = listed();
        annotate(&mut view, digest);
        assert_eq!(first(view), (false, reads()), "{digest:?}");
    }
}

#[test]
fn a_secret_is_read_if_the_machine_would_get_other_network_data() {
    let mut other_gateway = listed();
    let text = br#"{"namespace": "n", "name": "p", "network": "infra/vlan10", "addresses": ["10.0.0.8/30"],
        "gateway": ["10.0.0.2"], "machineNetwork": [{"cidr": "10.0.0.0/16"}]}"#;
    other_gateway.ledger.pools = [("n/p".to_owned(), Pool::parse(text).unwrap().remove(0))].into();
    let mut other_prefix = listed();
    other_prefix.ledger.held[0].prefix = 24;
    let mut other_template = listed();
    let template = Some(r#"{"links": [], "networks": []}"#.to_owned());
    other_template.pools = [("n/p".to_owned(), PoolSettings { template, ..PoolSettings::default() })].into();
    let interface = json!({"name": "iface1", "acpiIndex": 101, "macAddress": "02:00:00:00:00:02"});
    let spec = json!({"domain": {"devices": {"interfaces": [interface]}}});
    let other_mac = View { vm: Some(vm(&json!({"spec": {"template": {"spec": spec}}}))), ..listed() };
    let other_vm = View { vm: Some(vm(&json!({"metadata": {"uid": "v-2"}}))), ..listed() };
    let other_reference = View { vm: Some(vm(&referring(Some(EARLIER)))), ..listed() };
    let unselected = View { selected: Ok(Vec::new()), ..listed() };
    for view in [other_gateway, other_prefix, other_template, other_mac, other_vm, unselected] {
        assert_eq!(first(view), (false, reads()));
    }
    assert_eq!(first(other_reference), (false, Step::ReadSecret(EARLIER.to_owned())));
}

#[test]
fn a_secret_is_read_if_the_leases_do_not_match_its_addresses() {
    let mut lost = listed();
    lost.ledger.held.clear();
    let mut of_another = listed();
    of_another.ledger.held[0].claimant.machine = holder("m-2");
    let mut other_address = listed();
    other_address.ledger.held[0].address = "10.0.0.9".parse().unwrap();
    let mut double = listed();
    double.ledger.held.push(held("m-1", "10.0.0.9"));
    let mut other_network = listed();
    other_network.ledger.held[0].network = "infra/vlan11".to_owned();
    let mut unnamed = listed();
    unnamed.ledger.held[0].secrets = names([EARLIER]);
    let mut views = [lost, of_another, other_address, double, other_network, unnamed];
    for (at, view) in views.iter_mut().enumerate() {
        // Only `m-1` is known, so no step checks whether a holder is gone.
        view.ledger.known = [holder("m-1")].into();
        assert_eq!(first(view.clone()), (false, reads()), "{at}");
    }
}

#[test]
fn the_secret_of_an_instance_that_starts_is_read() {
    for phase in ["", "Pending", "Scheduling"] {
        let starting = instance(&json!({"status": {"phase": phase}}));
        assert_eq!(first(View { instance: Some(starting), ..listed() }), (false, reads()), "{phase}");
    }
}

#[test]
fn a_pass_that_trusts_a_digest_makes_no_request() {
    // The machine lacks its status map, so there is something to do. The pass first reads the Secret.
    let mut view = listed();
    let annotations = view.machine.as_ref().unwrap().metadata.annotations.clone();
    view.machine = Some(machine(&json!({"metadata": {"annotations": annotations}})));
    view.trust_digest();
    assert!(view.trusts_digest && matches!(decide(&view), Step::PatchStatus(_)));
    view.distrust_digest();
    assert_eq!((view.trusts_digest, decide(&view)), (false, reads()));
}

#[test]
fn a_secret_without_a_current_document_gets_no_digest() {
    let old = OwnSecret { document: b"{}".to_vec(), is_immutable: true, ..own("m-1", "v-1") };
    let mut view = View { secrets: secrets([old]), ..served() };
    let Step::PatchMachine(patch) = decide(&view) else { panic!("{:?}", decide(&view)) };
    assert_eq!(patch["metadata"]["annotations"].get(DIGEST_ANNOTATION), None);
    view.machine = Some(machine(&json!({"metadata": {"annotations": patch["metadata"]["annotations"]}})));
    assert!(matches!(decide(&view), Step::PatchStatus(_)));
}

#[test]
fn a_digest_has_the_time_at_which_the_secret_was_updated() {
    let updated: Timestamp = "2026-08-14T10:00:00.123456789Z".parse().unwrap();
    let later = OwnSecret { updated: Some(updated), ..own("m-1", "v-1") };
    let mut view = listed_with(View { secrets: secrets([later]), ..served() });
    let annotations = view.machine.as_ref().unwrap().metadata.annotations.as_ref().unwrap();
    let digest = "4180ab244d4fdcf40581bd2ad06cc82c@2026-08-14T10:00:00.123456789Z";
    assert_eq!(annotations[DIGEST_ANNOTATION], digest);
    assert_eq!(first(view.clone()), (true, Step::Wait));
    // The guest is older than the update.
    view.instance = Some(reading(Some(NAME), &running()));
    assert_eq!(first(view), (false, reads()));
}

#[test]
fn the_order_of_leases_changes_no_digest() {
    let both = |order: [&str; 2]| {
        let text =
            br#"{"namespace": "n", "name": "p", "network": "infra/vlan10", "addresses": ["10.0.0.8/30", "fd00::8/126"],
            "gateway": ["10.0.0.1"], "machineNetwork": [{"cidr": "10.0.0.0/16"}, {"cidr": "fd00::/64"}]}"#;
        let mut view = served();
        view.ledger.pools = [("n/p".to_owned(), Pool::parse(text).unwrap().remove(0))].into();
        view.ledger.held = order.map(|address| held("m-1", address)).into();
        view.ledger.held.iter_mut().for_each(|held| held.prefix = if held.address.is_ipv4() { 16 } else { 64 });
        let mut own = own("m-1", "v-1");
        own.interfaces[0].addresses = vec!["10.0.0.8/16".parse().unwrap(), "fd00::8/64".parse().unwrap()];
        let allocations = [own.interfaces[0].allocation(&own)];
        let (vm, selected) = (view.vm.clone().unwrap(), [selected()]);
        own.document = view.document(&vm, &selected, &allocations, &BTreeMap::new()).unwrap().text().into();
        let digest = view.digest_of(&view.served(&vm, &own)).unwrap();
        view.machine = Some(machine(&json!({"metadata": {"annotations": {(DIGEST_ANNOTATION): digest}}})));
        View { secrets: BTreeMap::new(), ..view }
    };
    for order in [["10.0.0.8", "fd00::8"], ["fd00::8", "10.0.0.8"]] {
        assert!(first(both(order)).0, "{order:?}");
    }
}

/// A user has deleted the Secret. Returns the time of the last update in the Secret that a pass creates anew.
fn rewritten(view: View) -> Updated {
    let absent = [NAME, EARLIER].map(|name| (name.to_owned(), NetworkSecret::Absent)).into();
    let mut view = View { granted: granted("m-1"), secrets: absent, ..view };
    view.ledger.held[0].secrets = names([NAME, EARLIER]);
    view.done.insert(Once::DropSecrets);
    match decide(&view) {
        Step::CreateSecret(_, updated, ..) => updated,
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_secret_that_is_written_again_notes_whether_its_guest_may_have_read_another_document() {
    let with = |instance: Option<Instance>, view: View| View { instance, ..view };
    let guest = || Some(reading(Some(NAME), &running()));
    assert_eq!(rewritten(with(guest(), listed())), Updated::Never);
    assert_eq!(rewritten(with(guest(), with_gateway(listed(), "10.0.0.2"))), Updated::Now);
    let mut unknown = with(guest(), listed());
    annotate(&mut unknown, None);
    assert_eq!(rewritten(unknown), Updated::Now);
    // No guest has read a Secret of this name.
    for instance in [None, Some(instance(&json!({}))), Some(reading(Some(EARLIER), &running()))] {
        assert_eq!(rewritten(with(instance, with_gateway(listed(), "10.0.0.2"))), Updated::Never);
    }
}

#[test]
fn a_secret_that_is_written_again_keeps_the_time_of_its_last_update() {
    let listed = |updated: &str| {
        let updated = OwnSecret { updated: Some(updated.parse().unwrap()), ..own("m-1", "v-1") };
        listed_with(View { secrets: secrets([updated]), ..served() })
    };
    // The instance is created at 10:00:03.
    let guest = |view: View| View { instance: Some(reading(Some(NAME), &running())), ..view };
    let earlier = "2026-08-01T10:00:03.5Z";
    assert_eq!(rewritten(listed(earlier)), Updated::At(earlier.parse().unwrap()));
    assert_eq!(rewritten(guest(listed(earlier))), Updated::At(earlier.parse().unwrap()));
    assert_eq!(rewritten(guest(listed("2026-08-01T10:00:04Z"))), Updated::Now);
}
