//! Runs each session as a test.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;
use std::{env, fs};

use glowplug::host::change::{Change, Update};
use glowplug::host::ledger::{Ledger, SqliteLedger};

use crate::support::shell;

/// Creates a test for each session. The name of the test is the name of the file.
macro_rules! sessions {
    ($($name:ident)*) => {
        $(#[test] fn $name() {
            session(stringify!($name));
        })*

        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

sessions! {
    a_claim_is_applied_to_the_cluster_with_its_record_first
    a_claim_is_printed_in_every_format
    a_claim_reports_other_users_of_the_addresses_that_it_prints
    a_claim_with_a_list_allocates_no_address_that_an_object_of_the_list_records
    a_drive_is_the_same_for_the_same_input_and_has_all_given_metadata
    a_drive_that_the_guest_could_not_read_is_not_written
    a_file_that_is_not_a_ledger_of_these_pools_is_refused
    a_gateway_that_the_machine_does_not_reach_is_refused
    a_ledger_gains_a_network_by_its_name_alone
    a_ledger_has_a_history_and_is_verified_and_copied
    a_ledger_is_listed_as_json
    a_link_local_gateway_needs_no_subnet
    a_list_has_what_its_options_name
    a_list_in_yaml_is_refused_with_what_was_expected
    a_machine_confirms_its_virtual_machine_in_another_namespace
    a_machine_gets_the_lowest_free_address_and_keeps_it
    a_machine_on_vsphere_gets_its_kernel_arguments
    a_machine_that_is_being_deleted_gets_no_new_address
    a_named_address_is_given_or_refused_with_the_reason
    a_note_says_that_a_drive_needs_a_secret
    a_pool_that_is_being_deleted_gets_no_record
    a_rebuild_and_an_audit_know_the_pools_of_the_ledger
    a_rebuild_of_right_records_has_nothing_to_report
    a_rebuild_takes_over_records_and_reports_what_does_not_fit
    a_release_needs_the_uid_and_frees_no_address_of_another_machine
    a_release_of_a_list_needs_the_place_of_the_virtual_machine
    a_release_of_a_list_takes_only_machines_that_are_gone
    a_released_address_stays_reserved_for_another_machine_whose_object_records_it
    a_resize_keeps_the_addresses_of_all_machines
    a_status_shows_the_use_of_pools_and_waiting_machines
    a_sticky_claim_gets_the_last_address_of_its_name
    a_template_adds_what_the_pool_does_not_have
    a_verbose_command_names_its_files
    a_waiting_machine_gets_a_new_address_only_after_the_records_are_adopted
    a_widened_subnet_and_a_new_name_are_reported
    addresses_that_a_template_names_are_never_allocated
    all_mistakes_in_pools_are_reported_together
    an_address_is_kept_for_one_name
    an_address_that_one_pool_reserves_is_reserved_on_its_network
    an_annotation_sets_the_subnet_of_a_node_pool
    an_audit_releases_nothing_with_incomplete_or_old_lists
    an_audit_releases_only_on_request_and_after_two_audits
    an_audit_reports_duplicates_and_unknown_machines_and_changes_nothing
    an_audit_reports_what_only_one_side_knows
    an_interface_that_no_annotation_can_name_is_refused_before_a_claim
    an_invalid_command_line_is_a_usage_error
    an_unreadable_record_reserves_its_address_until_it_is_gone
    control_characters_of_an_object_are_escaped_on_output
    every_command_prints_json_for_programs
    exhaustion_has_its_own_message_and_exit_status_and_ends_with_a_resize
    from_a_claim_to_the_kernel_arguments_of_the_guest
    hosts_of_the_installer_are_checked_and_become_machines
    init_creates_a_ledger_and_no_other_command_does
    labels_of_another_namespace_change_nothing_for_the_machine_that_they_name
    machines_come_from_a_list_of_kubernetes
    metadata_of_a_drive_is_checked
    metrics_have_the_enhancements_name_and_also_totals
    mistakes_in_hosts_of_the_installer_are_reported_together
    network_data_needs_no_ledger
    node_pools_are_translated_for_the_machine_template
    of_several_pools_for_one_interface_the_node_pool_decides
    one_bad_pool_stops_only_its_own_machines
    overlapping_pools_are_refused_with_both_names
    pools_are_checked_with_sizes_and_what_is_reserved
    pools_of_a_cluster_are_read_from_several_documents
    several_machines_are_served_in_their_order
    the_leases_of_a_cluster_are_compared_with_its_machines
    the_settings_of_a_pool_become_part_of_its_documents
    two_families_and_two_interfaces_are_one_claim
    waiting_machines_are_served_in_the_order_of_creation_when_an_address_is_released
}

#[test]
fn every_session_file_has_a_test() {
    let files = fs::read_dir(fixtures().join("sessions")).unwrap().map(|file| file.unwrap().file_name());
    let mut files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
    files.sort_unstable();
    assert_eq!(files, NAMES.iter().map(|name| format!("{name}.txt")).collect::<Vec<_>>());
}

pub(crate) fn fixtures() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/host"))
}

/// Sets the time since which each missing machine is missing this many minutes earlier.
fn pass(ledger: &Path, minutes: u64) {
    let mut ledger = SqliteLedger::open(ledger).unwrap();
    let mut transaction = ledger.begin().unwrap();
    let (Update::Snapshot(known) | Update::Delta(known)) = transaction.catch_up().unwrap();
    let earlier = known.into_iter().filter_map(|change| match change {
        Change::Missing { machine, since } => {
            Some(Change::Missing { machine, since: since.map(|since| since - Duration::from_secs(60 * minutes)) })
        }
        _ => None,
    });
    transaction.commit(&earlier.collect::<Vec<_>>()).unwrap();
}

fn session(name: &str) {
    let path = fixtures().join(format!("sessions/{name}.txt"));
    let expected = fs::read_to_string(&path).unwrap();
    let directory = tempfile::tempdir().unwrap();
    symlink(fixtures(), directory.path().join("host")).unwrap();
    let mut printed = String::new();
    for line in expected.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            printed += &format!("$ {command}\n{}", shell::run(directory.path(), command, "! "));
        } else if let Some(pause) = line.strip_prefix("~ ") {
            let minutes = pause.strip_suffix(" minutes later").unwrap().parse().unwrap();
            pass(&directory.path().join("ledger"), minutes);
            printed += &format!("{line}\n");
        }
    }
    if crate::support::is_update() {
        fs::write(&path, &printed).unwrap();
    }
    assert_eq!(printed, expected);
}
