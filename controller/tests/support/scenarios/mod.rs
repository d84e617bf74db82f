//! Scenarios for the server of the tests and for a real server.
//!
//! Each scenario creates its own namespace, so that scenarios can run concurrently.

mod adoption;
mod claims;
mod collection;
mod diagnostics;
mod election;
mod events;
mod exclusions;
mod hosted;
mod ipam_claims;
mod ledger;
mod machine_api;
mod machines;
mod macs;
mod manifests;
pub(crate) mod network_data;
mod node_pools;
mod overflow;
mod pools;
mod reconciler;
mod registry;
mod reports;
mod server;
pub(crate) mod shared;
mod sources;
mod upgrade;
mod webhook;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::Cluster;

/// Name and function of a scenario.
pub type Scenario = (&'static str, for<'c> fn(&'c Cluster) -> Pin<Box<dyn Future<Output = ()> + 'c>>);

/// Longest time of a scenario, also on a machine that is busy with other work. A scenario that waits for a state without end fails.
const LONGEST: Duration = Duration::from_secs(600);

/// The scenarios for a real server alone: the server of the tests does not merge the items of a list.
pub const REAL: &[Scenario] =
    &[("managers_of_the_exclusions_own_one_list_before_and_their_own_items_after_the_upgrade", |cluster| {
        Box::pin(exclusions::managers_of_the_exclusions_own_one_list_before_and_their_own_items_after_the_upgrade(
            cluster,
        ))
    })];

/// Lists scenarios in `ALL`, and defines a test for each scenario with its own server.
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// Every scenario.
        pub const ALL: &[Scenario] = &[$((stringify!($name), |cluster| Box::pin($module::$name(cluster)))),*];

        mod in_process {
            $(#[tokio::test] async fn $name() {
                let server = crate::support::server::Server::start().await;
                let cluster = crate::support::Cluster::of(&server).await;
                let scenario = tokio::time::timeout(super::LONGEST, super::$module::$name(&cluster));
                scenario.await.expect("the scenario ends");
            })*
        }
    };
}

scenarios! {
    server::a_second_object_of_one_name_is_refused,
    server::a_name_is_at_most_253_bytes,
    server::a_namespace_has_to_exist,
    server::a_replacement_needs_the_present_version,
    server::a_replacement_without_a_change_is_no_new_version,
    server::a_deletion_has_preconditions,
    server::a_finalizer_keeps_a_deleted_object,
    server::a_list_comes_in_pages,
    server::a_watch_reports_every_change_after_the_list,
    server::a_watch_with_a_selector_reports_objects_that_no_longer_match,
    server::a_dry_run_stores_nothing,
    server::the_status_is_an_endpoint_of_its_own,
    server::an_apply_conflicts_with_another_manager,
    server::an_apply_releases_fields_that_it_no_longer_has,
    server::a_later_apply_conflicts_with_a_manager_that_patched_a_list,
    server::an_apply_in_the_client_replaces_lists_and_removes_what_its_manifest_no_longer_has,
    server::a_json_patch_tests_before_it_changes,
    server::a_merge_patch_removes_with_null,
    server::members_outside_the_schema_are_pruned,
    server::values_that_the_schema_forbids_are_rejected,
    server::null_is_no_value,
    server::an_immutable_secret_keeps_its_data,
    server::metadata_alone_can_be_listed,
    server::discovery_names_the_kinds,
    server::a_user_without_a_role_is_refused,
    server::a_role_allows_what_it_names,
    server::the_deletion_of_an_owner_is_blocked_only_with_a_right_on_it,
    manifests::an_api_server_takes_over_every_member_of_the_manifests,
    manifests::the_definitions_that_a_cluster_has_installed_are_current,
    diagnostics::metrics_need_a_token_of_a_user_who_may_read_them,
    events::events_with_different_notes_are_different_events_and_equal_events_are_a_series,
    election::one_candidate_leads_and_another_follows_it,
    election::a_leader_whose_lease_is_taken_stops_leading,
    election::of_many_candidates_one_leads,
    hosted::a_node_pool_has_machines_with_the_labels_of_hypershift,
    hosted::a_guest_starts_when_the_secrets_of_its_drive_exist,
    hosted::only_kubevirt_writes_the_status_of_an_instance,
    hosted::a_halted_machine_has_no_guest_until_it_is_started,
    hosted::a_changed_template_reaches_a_guest_with_its_restart_and_not_with_a_migration,
    hosted::a_guest_stays_if_the_garbage_collector_orphans_it_before_kubevirt_looks,
    hosted::a_copy_has_the_reference_of_its_source,
    hosted::a_refused_virtual_machine_is_created_when_its_machine_changes,
    hosted::a_virtual_machine_that_is_gone_is_created_again,
    hosted::a_machine_is_gone_before_its_guest_has_ended,
    hosted::a_smaller_node_pool_deletes_its_newest_machines,
    hosted::the_machines_of_a_node_pool_share_a_secret_that_is_made_again_after_each_deletion,
    machines::a_machine_of_a_node_pool_starts_with_its_address,
    machines::a_machine_with_a_no_cloud_volume_reads_its_address_from_network_config,
    machines::a_machine_with_network_data_of_its_own_keeps_it_and_nobody_gets_its_address,
    machines::a_hundred_machines_of_two_clusters_have_equal_addresses_on_two_networks,
    machines::a_machine_that_an_exhausted_pool_refuses_is_created_when_the_pool_grows,
    machines::a_requested_address_that_a_machine_does_not_get_has_an_event,
    machines::a_machine_that_was_admitted_past_the_end_of_its_pool_says_why_it_waits,
    machines::machines_that_wait_get_addresses_in_the_order_of_their_creation,
    machines::a_virtual_machine_that_is_not_stored_leaves_nothing,
    machines::without_a_replica_machines_of_served_namespaces_are_refused_and_no_others,
    machines::a_secret_that_is_deleted_by_hand_is_written_again,
    machines::a_secret_of_another_author_stays_and_its_machine_gets_another_one,
    machines::a_machine_keeps_its_address_while_guests_come_and_go,
    machines::an_address_is_allocated_again_only_after_its_guest_has_ended,
    machines::each_virtual_machine_of_a_machine_has_a_secret_of_its_own,
    machines::a_guest_that_outlives_its_virtual_machine_keeps_its_address,
    machines::machines_of_another_namespace_reserve_and_keep_nothing,
    machines::an_ipaddress_whose_owner_has_the_uid_of_a_machine_releases_nothing,
    machines::a_machine_that_is_deleted_while_nobody_leads_is_released,
    machines::leases_outlive_a_deleted_namespace_until_its_guests_have_ended,
    machines::a_machine_keeps_its_address_when_its_pool_shrinks_or_is_deleted,
    machines::machines_keep_their_addresses_when_their_pool_gets_another_name,
    machines::a_machine_starts_without_an_address_of_a_deleted_pool_only_after_the_reference_is_removed,
    machines::nobody_gets_an_address_that_two_machines_record,
    machines::an_address_that_only_a_guest_reports_is_not_allocated,
    machines::an_address_that_a_guest_reports_is_free_on_other_networks,
    machines::after_the_loss_of_all_leases_machines_keep_what_their_records_say,
    machines::an_address_that_only_a_secret_records_is_not_allocated_when_no_pool_selects_its_machine,
    machines::a_machine_whose_lease_may_not_change_says_why_and_is_served_soon_after_the_policy,
    machines::damaged_records_are_repaired_by_the_procedure_of_the_guide,
    machines::the_status_map_is_written_where_the_definition_has_it,
    machines::a_machine_that_came_past_the_webhook_gets_its_network_before_it_has_an_instance,
    machines::a_machine_that_came_past_the_webhook_and_runs_is_left_alone,
    collection::an_address_is_free_only_without_the_ipaddress_of_a_claim_whose_finalizers_were_removed,
    collection::a_claim_that_is_created_again_gets_an_ipaddress_of_its_own,
    collection::a_later_leader_ends_the_ipaddress_that_an_earlier_one_has_deleted,
    collection::a_claim_ends_with_its_ipaddress_in_each_way_of_deletion,
    collection::a_pool_ends_after_its_claims_in_each_way_of_deletion,
    collection::a_machine_keeps_its_address_until_its_guest_ends_in_each_way_of_deletion,
    collection::a_node_pool_ends_with_its_machines_and_its_pool_in_each_way_of_deletion,
    collection::the_claims_of_a_namespace_that_is_deleted_are_released,
    collection::nothing_is_created_in_a_namespace_that_is_being_deleted,
    adoption::machines_with_records_keep_their_addresses_when_their_pool_comes,
    adoption::two_machines_with_one_record_both_get_a_conflict_when_their_pool_comes,
    adoption::a_pool_that_grows_allocates_no_recorded_address,
    adoption::a_pool_that_loses_an_exclusion_allocates_no_recorded_address,
    adoption::a_pool_that_becomes_valid_allocates_no_recorded_address,
    adoption::a_pool_that_gets_its_node_pool_allocates_no_recorded_address,
    adoption::a_pool_that_gets_its_selector_allocates_no_recorded_address,
    adoption::a_record_that_comes_after_its_pool_reserves_its_address_and_is_no_conflict,
    adoption::a_conflict_ends_when_the_record_of_the_other_machine_is_right_again,
    adoption::a_machine_keeps_its_excluded_address_when_leases_are_lost,
    adoption::a_machine_with_a_record_of_an_excluded_address_gets_it_when_the_exclusion_ends,
    adoption::a_machine_that_is_left_alone_is_served_when_its_pool_offers_the_recorded_address,
    adoption::an_ipaddress_without_its_claim_keeps_its_address_until_it_is_deleted_or_its_claim_comes,
    adoption::a_machine_that_runs_when_its_pool_comes_is_left_alone_until_its_annotation_is_removed,
    adoption::an_instance_that_has_not_started_when_its_pool_comes_is_served,
    adoption::running_machines_come_to_a_pool_by_the_steps_of_the_guide,
    adoption::restored_machines_keep_their_addresses,
    adoption::a_restored_machine_gets_another_address_when_its_own_is_in_use,
    sources::a_machine_starts_with_the_address_of_its_ipam_claim,
    sources::a_virtual_machine_that_is_created_again_gets_the_address_of_its_new_ipam_claim,
    sources::a_machine_gets_its_address_back_when_only_its_ipam_claim_is_left,
    sources::an_ipam_claim_that_changes_is_reported_and_not_followed,
    sources::a_machine_of_an_exhausted_network_starts_when_its_ipam_claim_is_filled,
    sources::a_machine_starts_after_the_machine_network_of_its_pool_is_corrected,
    sources::a_machine_starts_with_the_address_of_another_provider,
    sources::the_address_of_another_provider_is_free_only_after_the_guest_has_ended,
    sources::a_machine_keeps_the_claim_on_another_provider_when_its_virtual_machine_is_created_again,
    sources::a_machine_waits_for_the_address_of_an_exhausted_provider,
    sources::an_address_that_two_sources_give_is_given_once,
    sources::a_claim_of_another_author_stays_and_its_machine_waits,
    sources::a_claim_whose_machine_is_gone_is_ended_by_the_next_leader,
    ipam_claims::an_ipam_claim_gets_an_address_of_each_family,
    ipam_claims::claims_of_other_networks_and_pools_stay_as_they_are,
    ipam_claims::an_ipam_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_one,
    ipam_claims::an_ipam_claim_keeps_its_address_while_guests_come_and_go,
    ipam_claims::the_address_of_a_deleted_ipam_claim_is_free_only_after_its_guest,
    ipam_claims::a_new_virtual_machine_of_the_name_gets_a_new_ipam_claim_and_another_address,
    ipam_claims::addresses_that_ipam_claims_have_at_the_start_are_theirs,
    ipam_claims::an_address_that_another_program_writes_is_reported_and_not_replaced,
    ipam_claims::an_ipam_claim_gets_the_addresses_that_it_requests_or_that_its_pool_keeps,
    ipam_claims::a_global_pool_serves_the_ipam_claims_of_every_namespace,
    ipam_claims::an_ipam_claim_with_many_owners_is_released_after_the_last_guest,
    ipam_claims::an_ipam_claim_that_is_removed_by_force_leaves_nothing_behind,
    ledger::an_address_is_stored_before_it_is_known,
    ledger::another_leader_reads_the_stored_leases,
    ledger::two_leaders_at_once_never_allocate_one_address,
    ledger::a_released_address_goes_to_the_next_machine,
    ledger::a_deleted_lease_of_a_machine_is_written_again,
    ledger::a_released_lease_that_is_deleted_is_free,
    ledger::an_address_whose_lease_cannot_be_read_is_not_allocated,
    ledger::an_object_of_another_kind_with_the_same_uid_is_another_holder,
    pools::a_pool_is_protected_and_its_status_is_written,
    pools::a_lease_that_cannot_be_read_is_in_the_status_of_its_pool_until_it_is_gone,
    pools::a_pool_of_an_earlier_schema_works_and_has_a_condition_until_it_is_corrected,
    pools::a_pool_of_the_cluster_is_protected_and_its_status_is_written,
    pools::a_pool_says_by_family_what_is_free,
    pools::a_pool_of_a_node_pool_that_does_not_exist_has_a_condition,
    pools::an_exhausted_pool_has_a_condition_and_a_grown_pool_serves_waiting_claims,
    pools::a_deleted_pool_stays_until_its_last_lease_is_released,
    pools::the_younger_of_two_overlapping_pools_allocates_when_the_older_one_is_gone,
    pools::a_pool_with_an_error_keeps_its_leases_and_allocates_when_it_is_corrected,
    pools::the_next_leader_goes_on_where_the_last_one_stopped,
    shared::machines_of_two_clusters_get_addresses_of_one_pool,
    shared::machines_of_two_clusters_keep_their_addresses_when_leases_are_lost,
    shared::the_machines_of_a_node_pool_that_leaves_a_pool_keep_their_addresses,
    shared::namespaces_that_share_a_pool_are_served_fairly,
    shared::a_namespace_that_gets_the_label_of_a_pool_keeps_the_addresses_of_its_machines,
    registry::claims_of_many_tasks_are_stored_before_they_are_answered,
    registry::a_machine_that_waits_is_announced_when_it_is_served,
    registry::machines_that_wait_are_served_in_the_order_of_their_creation_when_a_pool_grows,
    registry::an_address_is_allocated_again_when_its_reuse_delay_is_over,
    registry::a_pool_that_is_gone_allocates_nothing_and_is_removed_with_its_last_lease,
    registry::a_refused_change_of_a_pool_does_not_hinder_the_others,
    registry::an_adopted_record_is_a_lease_of_its_claimant,
    node_pools::a_namespace_has_the_label_while_a_pool_serves_its_machines,
    node_pools::a_label_that_a_person_has_set_stays,
    node_pools::an_exhausted_pool_is_a_condition_and_an_event_of_its_node_pool,
    node_pools::a_configuration_of_a_node_pool_is_a_pool_of_its_name,
    node_pools::managed_fields_that_nobody_can_read_stop_no_node_pool,
    node_pools::a_pool_that_a_user_has_created_keeps_its_specification,
    node_pools::machines_of_a_node_pool_with_a_configuration_boot_with_its_addresses,
    webhook::every_example_is_accepted_with_all_its_members,
    webhook::an_invalid_pool_is_refused_with_every_error,
    webhook::a_second_pool_of_a_node_pool_is_refused_when_it_is_written,
    webhook::an_overlap_of_pools_of_either_kind_is_refused,
    webhook::a_pool_that_is_invalid_already_can_be_released_and_deleted,
    webhook::a_pool_in_use_shrinks_and_is_deleted_with_a_warning,
    webhook::a_request_that_is_no_review_of_a_pool_is_refused,
    webhook::a_machine_of_a_pool_is_created_with_a_reference_to_its_secret,
    webhook::machines_are_served_before_and_after_a_renewal_of_the_certificate,
    webhook::a_machine_of_an_exhausted_pool_is_refused_unless_it_has_an_address,
    webhook::a_replica_that_knows_no_pool_yet_asks_the_api_server,
    macs::a_machine_starts_with_the_mac_address_that_its_lease_records,
    macs::a_machine_that_is_replaced_while_no_webhook_answers_keeps_its_mac_address,
    macs::a_mac_address_is_allocated_again_only_after_its_guest_has_ended,
    macs::a_mac_address_that_a_machine_has_already_is_recorded_and_not_allocated,
    macs::two_guests_with_one_mac_address_are_reported,
    macs::a_machine_of_an_exhausted_mac_pool_starts_when_the_pool_grows,
    macs::a_mac_address_is_released_although_nobody_can_read_managed_fields,
    macs::an_invalid_mac_pool_is_refused_with_every_error,
    claims::a_claim_gets_an_ipaddress_of_its_name,
    claims::a_full_pool_grows_by_a_second_subnet_whose_records_are_adopted_first,
    claims::a_claim_gets_an_address_that_is_its_own_subnet_or_has_none,
    claims::a_claim_on_a_pool_with_settings_gets_what_its_kind_has,
    claims::a_claim_that_names_another_claim_as_a_machine_releases_no_address,
    claims::an_ipaddress_takes_no_address_of_a_pool_of_another_namespace,
    claims::a_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_one,
    claims::the_leases_of_deleted_claims_end_except_the_last_one_of_a_name_in_a_sticky_pool,
    claims::a_claim_with_managed_fields_that_nobody_can_read_is_released,
    claims::a_grown_pool_serves_claims_in_the_order_of_their_creation,
    claims::a_claim_of_a_paused_or_absent_cluster_waits_for_it,
    claims::a_claim_on_a_pool_of_two_families_selects_one_family,
    claims::a_claim_is_served_after_its_pool_has_only_one_family,
    claims::a_claim_waits_for_its_pool,
    claims::a_global_pool_serves_claims_of_every_namespace,
    claims::a_claim_of_machine_api_is_released_after_its_machine,
    claims::a_moved_claim_keeps_its_address,
    claims::a_paused_claim_that_comes_after_its_ipaddress_holds_the_address,
    claims::an_ipaddress_that_is_removed_by_force_is_written_again,
    claims::a_claim_that_is_removed_by_force_leaves_nothing_behind,
    claims::a_claim_made_again_under_its_name_does_not_inherit,
    claims::a_late_ipaddress_of_a_deleted_claim_is_removed,
    claims::a_watch_filter_excludes_other_claims,
    claims::an_ipaddress_of_another_provider_stays_as_it_is,
    machine_api::a_machine_set_on_vsphere_gets_addresses_and_reuses_them_after_its_machines,
    machine_api::a_machine_on_vsphere_that_waits_gets_the_address_of_a_deleted_one,
    machine_api::a_claim_without_an_owner_is_served_and_adopted_by_its_machine_on_vsphere,
    claims::a_claim_gets_the_address_that_its_pool_keeps_for_its_name,
    claims::a_claim_waits_for_the_address_that_it_requests,
    claims::a_policy_that_refuses_the_leases_of_one_claim_keeps_no_other_claim_waiting,
    claims::a_lease_that_the_api_server_never_changes_costs_its_address_only,
    reconciler::a_virtual_machine_gets_a_secret_with_the_address_of_its_kubevirt_machine,
    reconciler::a_virtual_machine_without_a_kubevirt_machine_holds_its_address_itself,
    reconciler::a_virtual_machine_gets_the_address_that_it_requests,
    reconciler::a_virtual_machine_that_the_webhook_did_not_see_is_patched,
    reconciler::a_secret_of_another_author_stays_and_nobody_gets_its_address,
    reconciler::an_address_is_released_after_the_guest_and_its_secret,
    reconciler::a_machine_of_the_same_name_never_starts_with_the_address_of_the_one_before,
    reconciler::labels_alone_give_no_virtual_machine_the_address_of_a_kubevirt_machine,
    reconciler::managed_fields_that_nobody_can_read_stop_no_other_machine,
    reconciler::a_deep_object_stops_no_other_machine,
    network_data::a_manifest_that_is_applied_again_before_the_first_start_keeps_the_network_data,
    network_data::a_manifest_that_is_applied_again_under_a_running_guest_keeps_the_network_data,
    network_data::five_applies_in_the_server_of_a_served_machine_cause_no_conflict,
    network_data::five_applies_in_the_server_of_a_machine_whose_pool_came_later_cause_no_conflict,
    network_data::five_applies_in_the_server_of_a_machine_of_a_mac_pool_cause_no_conflict,
    network_data::without_a_replica_a_machine_is_stopped_started_migrated_and_deleted,
    network_data::with_a_replica_without_the_new_path_a_machine_is_stopped_started_migrated_and_deleted,
    network_data::an_instance_without_its_reference_is_refused_until_a_leader_is_back,
    network_data::a_clone_starts_with_an_address_of_its_own_while_its_source_runs,
    network_data::a_copied_manifest_starts_with_an_address_of_its_own,
    network_data::a_snapshot_that_is_restored_in_place_keeps_the_address_of_the_machine,
    network_data::a_snapshot_with_an_earlier_reference_that_is_restored_in_place_keeps_the_present_one,
    network_data::a_snapshot_that_is_restored_under_another_name_gets_an_address_of_its_own,
    network_data::a_machine_of_a_namespace_that_is_restored_under_another_name_is_refused,
    network_data::a_changed_gateway_reaches_a_guest_with_its_restart,
    network_data::the_network_data_of_a_machine_follows_the_subnet_of_its_address,
    network_data::a_guest_whose_address_is_its_own_subnet_has_its_gateway_on_the_link,
    network_data::the_settings_of_a_pool_reach_a_guest_with_its_restart,
    network_data::a_changed_mac_address_gives_the_machine_a_secret_of_a_new_name,
    network_data::twenty_mac_addresses_under_one_guest_leave_the_secret_of_the_guest_and_the_newest_one,
    network_data::a_machine_keeps_its_address_when_leases_are_lost_while_its_guest_reads_an_earlier_secret,
    network_data::a_machine_on_another_network_gives_its_address_up_after_its_guest_has_read_the_new_one,
    network_data::a_machine_that_another_pool_of_its_network_selects_keeps_its_address,
    network_data::no_machine_gets_the_address_of_a_guest_that_migrated_to_another_cluster,
    network_data::a_machine_of_version_0_2_0_keeps_its_secret_until_it_is_created_again,
    network_data::a_manifest_with_the_name_of_version_0_2_0_gets_a_fresh_name,
    network_data::an_orphan_keeps_its_secret_if_the_garbage_collector_is_faster_than_kubevirt,
    network_data::an_orphan_keeps_its_secret_if_kubevirt_is_faster_than_the_garbage_collector,
    network_data::a_machine_never_reads_a_secret_that_is_stored_after_its_virtual_machine_is_gone,
    network_data::a_machine_with_sr_iov_starts_after_it_has_a_mac_address,
    network_data::network_data_of_the_user_is_kept_in_a_new_machine,
    network_data::network_data_of_the_user_replaces_that_of_the_controller,
    network_data::a_machine_that_leaves_its_pool_starts_without_network_data,
    overflow::the_overflow_of_a_full_pool_gives_addresses_with_its_own_gateway,
    overflow::a_machine_waits_for_a_pool_and_its_overflow_and_gets_the_first_address_of_either,
    overflow::pools_of_equal_priority_and_pools_of_another_interface_are_no_overflow,
    overflow::a_waiting_machine_gets_no_new_address_that_the_network_data_of_a_user_has,
    overflow::a_deleted_pool_keeps_its_machines_while_its_overflow_serves_new_ones,
    overflow::a_node_pool_is_exhausted_when_its_pool_and_the_overflow_are_full,
    reports::an_address_that_an_instance_reports_that_no_pool_selects_is_never_allocated,
    reports::an_address_that_a_guest_reports_before_its_pool_exists_is_never_allocated,
    reports::the_record_of_a_machine_without_a_guest_takes_no_address_from_a_running_guest,
    reports::an_instance_that_never_ran_reserves_nothing,
    reports::guests_that_lie_use_up_no_pool_of_another_namespace,
    reports::no_machine_gets_the_address_of_a_service_or_of_the_control_plane_of_a_cluster,
    reports::a_pool_ignores_services_if_it_says_so_and_other_namespaces_reserve_a_quarter,
    reports::silence_of_a_guest_ends_no_reservation,
    reports::an_excluded_address_that_several_guests_report_is_no_conflict,
    reports::both_sides_are_told_of_an_address_that_was_allocated_before_a_guest_reports_it,
    upgrade::no_machine_is_refused_during_an_upgrade_and_a_downgrade,
}
