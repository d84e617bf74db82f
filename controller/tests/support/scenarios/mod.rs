//! Scenarios that run against the API server of the tests and against a real API server.
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

/// Time limit of a scenario. It is long enough for a machine that is busy with other work, and ends a scenario that
/// waits for a state that never comes.
const LONGEST: Duration = Duration::from_secs(600);

/// The scenarios that run only against a real API server, because the server of the tests does not merge the items of a
/// list.
pub const REAL: &[Scenario] =
    &[("field_managers_own_the_list_of_exclusions_before_the_upgrade_and_single_items_afterwards", |cluster| {
        Box::pin(exclusions::field_managers_own_the_list_of_exclusions_before_the_upgrade_and_single_items_afterwards(
            cluster,
        ))
    })];

/// Lists scenarios in `ALL`, and defines a test for each scenario with its own server.
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// All scenarios.
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
    server::a_second_object_with_the_same_name_is_refused,
    server::the_name_of_an_object_has_at_most_253_bytes,
    server::no_object_can_be_created_in_a_namespace_that_does_not_exist,
    server::a_replacement_needs_the_current_resource_version,
    server::a_replacement_without_a_change_makes_no_new_version,
    server::a_deletion_is_refused_if_its_preconditions_do_not_hold,
    server::a_finalizer_keeps_a_deleted_object,
    server::a_list_with_a_limit_is_returned_in_pages,
    server::a_watch_reports_every_change_after_the_list,
    server::a_watch_with_a_selector_reports_objects_that_no_longer_match_as_deleted,
    server::a_dry_run_stores_nothing,
    server::the_status_is_written_only_through_its_own_endpoint,
    server::a_server_side_apply_conflicts_with_the_fields_of_another_manager,
    server::an_apply_removes_fields_that_its_manifest_no_longer_has,
    server::a_later_apply_conflicts_with_a_manager_that_patched_a_list,
    server::a_client_side_apply_replaces_lists_and_removes_members_that_its_manifest_no_longer_has,
    server::a_json_patch_with_a_failed_test_changes_nothing,
    server::null_in_a_merge_patch_removes_a_member,
    server::members_outside_the_schema_are_pruned,
    server::values_that_the_schema_forbids_are_rejected,
    server::a_member_that_is_null_is_not_stored,
    server::an_immutable_secret_keeps_its_data,
    server::a_client_can_list_and_get_only_the_metadata_of_objects,
    server::discovery_lists_the_kinds_of_the_controller,
    server::a_user_without_a_role_is_refused,
    server::a_role_allows_only_the_requests_that_it_names,
    server::a_user_needs_a_right_on_an_owner_to_block_its_deletion,
    manifests::an_api_server_stores_every_member_of_the_manifests,
    manifests::the_controller_recognizes_the_installed_crds_as_current,
    diagnostics::metrics_need_the_token_of_a_user_with_the_right_to_read_them,
    events::events_with_different_notes_are_stored_separately_and_equal_events_become_a_series,
    election::a_second_candidate_leads_after_the_first_candidate_stops,
    election::a_leader_whose_lease_is_taken_stops_leading,
    election::only_one_of_many_candidates_leads_at_a_time,
    hosted::a_node_pool_has_machines_with_the_labels_of_hypershift,
    hosted::a_guest_starts_when_the_secrets_of_its_drive_exist,
    hosted::only_kubevirt_changes_the_status_of_an_instance_and_a_new_instance_is_pending,
    hosted::a_halted_machine_has_no_guest_until_it_is_started,
    hosted::a_changed_template_reaches_a_guest_at_a_restart_but_not_at_a_migration,
    hosted::a_guest_keeps_running_if_the_garbage_collector_orphans_it_before_kubevirt_acts,
    hosted::a_copy_has_the_reference_of_its_source,
    hosted::a_refused_virtual_machine_is_created_when_its_machine_changes,
    hosted::a_virtual_machine_that_is_gone_is_created_again,
    hosted::a_kubevirt_machine_can_be_gone_before_its_guest_has_ended,
    hosted::a_smaller_node_pool_deletes_its_newest_machines,
    hosted::the_machines_of_a_node_pool_share_a_secret_that_is_created_again_after_each_deletion,
    machines::a_machine_of_a_node_pool_starts_with_its_address,
    machines::a_machine_with_a_no_cloud_volume_reads_its_address_from_network_config,
    machines::a_machine_keeps_network_data_of_its_own_and_no_other_machine_gets_its_address,
    machines::two_clusters_of_fifty_machines_use_the_same_addresses_on_different_networks,
    machines::a_machine_that_an_exhausted_pool_refuses_is_created_when_the_pool_grows,
    machines::the_status_of_an_exhausted_pool_counts_a_refused_machine_until_it_is_deleted,
    machines::a_machine_that_does_not_get_its_requested_address_has_an_event,
    machines::a_machine_that_waits_for_an_exhausted_pool_has_an_event_and_an_annotation_with_the_reason,
    machines::machines_that_wait_get_addresses_in_the_order_of_their_creation,
    machines::a_virtual_machine_that_is_not_stored_takes_no_address,
    machines::without_a_replica_only_machines_of_served_namespaces_are_refused,
    machines::a_secret_that_is_deleted_by_hand_is_written_again,
    machines::a_secret_of_another_author_stays_and_the_machine_gets_another_secret,
    machines::a_machine_keeps_its_address_after_a_restart_a_migration_and_a_new_virtual_machine,
    machines::an_address_is_allocated_again_only_after_its_guest_has_ended,
    machines::each_virtual_machine_of_a_kubevirt_machine_has_its_own_secret,
    machines::a_guest_that_outlives_its_virtual_machine_keeps_its_address,
    machines::objects_of_another_namespace_reserve_no_address_and_keep_no_lease,
    machines::an_ipaddress_whose_owner_has_the_uid_of_a_machine_releases_no_address,
    machines::the_address_of_a_machine_that_is_deleted_while_no_replica_leads_is_released,
    machines::leases_outlive_a_deleted_namespace_until_its_guests_have_ended,
    machines::a_machine_keeps_its_address_when_its_pool_shrinks_or_is_deleted,
    machines::machines_keep_their_addresses_when_their_pool_gets_another_name,
    machines::a_machine_of_a_deleted_pool_starts_without_an_address_only_after_the_reference_is_removed,
    machines::an_address_that_two_machines_record_is_not_allocated,
    machines::an_address_that_only_a_guest_reports_is_not_allocated,
    machines::an_address_that_a_guest_reports_is_free_on_other_networks,
    machines::after_the_loss_of_all_leases_machines_keep_the_addresses_of_their_records,
    machines::an_address_that_only_a_secret_records_is_not_allocated_when_no_pool_selects_its_machine,
    machines::a_machine_has_an_event_while_a_policy_refuses_its_lease_and_is_served_afterwards,
    machines::damaged_records_are_repaired_by_the_procedure_of_the_guide,
    machines::the_status_map_is_written_if_the_crd_has_it,
    machines::a_machine_that_no_webhook_saw_gets_its_network_data_if_it_has_no_instance_yet,
    machines::a_running_machine_that_no_webhook_saw_is_left_alone,
    collection::the_address_of_a_claim_whose_finalizers_were_removed_is_free_after_its_ipaddress_is_gone,
    collection::a_claim_that_is_created_again_gets_a_new_ipaddress,
    collection::a_later_leader_completes_the_deletion_of_an_ipaddress_that_an_earlier_leader_began,
    collection::a_deleted_claim_and_its_ipaddress_are_removed_in_each_way_of_deletion,
    collection::a_deleted_pool_is_removed_after_its_claims_in_each_way_of_deletion,
    collection::a_machine_keeps_its_address_until_its_guest_ends_in_each_way_of_deletion,
    collection::the_addresses_of_a_deleted_node_pool_are_released_after_its_guests_in_each_way_of_deletion,
    collection::the_claims_of_a_namespace_that_is_deleted_are_released,
    collection::nothing_is_created_in_a_namespace_that_is_being_deleted,
    adoption::machines_with_records_keep_their_addresses_when_their_pool_is_created,
    adoption::two_machines_that_record_one_address_get_a_conflict_when_their_pool_is_created,
    adoption::a_pool_that_grows_allocates_no_recorded_address,
    adoption::a_pool_that_loses_an_exclusion_allocates_no_recorded_address,
    adoption::a_pool_that_becomes_valid_allocates_no_recorded_address,
    adoption::a_pool_whose_node_pool_is_created_later_allocates_no_recorded_address,
    adoption::a_pool_that_gets_a_selector_later_allocates_no_recorded_address,
    adoption::a_record_that_is_newer_than_its_pool_reserves_its_address_and_is_not_a_duplicate,
    adoption::a_conflict_ends_when_the_record_of_the_other_machine_is_corrected,
    adoption::a_machine_keeps_an_address_outside_its_pool_when_leases_are_lost,
    adoption::a_machine_that_records_an_excluded_address_gets_the_address_when_the_exclusion_ends,
    adoption::a_machine_that_is_left_alone_is_served_when_its_pool_offers_the_recorded_address,
    adoption::an_ipaddress_without_a_claim_reserves_its_address_until_it_is_deleted_or_its_claim_exists,
    adoption::a_machine_that_runs_when_its_pool_is_created_is_left_alone_until_its_annotation_is_removed,
    adoption::a_machine_whose_guest_has_not_started_when_its_pool_is_created_is_served,
    adoption::the_steps_of_the_guide_bring_running_machines_into_a_pool,
    adoption::restored_machines_keep_their_addresses,
    adoption::a_restored_machine_gets_another_address_when_its_earlier_address_is_in_use,
    sources::a_machine_starts_with_the_address_of_its_ipam_claim,
    sources::a_virtual_machine_that_is_created_again_gets_the_address_of_its_new_ipam_claim,
    sources::a_machine_keeps_its_address_when_only_its_ipam_claim_still_records_it,
    sources::a_change_of_an_ipam_claim_causes_an_event_and_does_not_change_the_address_of_the_machine,
    sources::a_machine_of_an_exhausted_network_starts_when_its_ipam_claim_is_filled,
    sources::a_machine_starts_after_the_machine_network_of_its_pool_is_corrected,
    sources::a_machine_starts_with_the_address_of_another_provider,
    sources::the_address_of_another_provider_is_free_only_after_the_guest_has_ended,
    sources::a_machine_keeps_the_claim_on_another_provider_when_its_virtual_machine_is_created_again,
    sources::a_machine_waits_for_the_address_of_an_exhausted_provider,
    sources::an_address_that_two_sources_offer_gets_only_one_holder,
    sources::a_claim_of_another_author_stays_and_its_machine_waits,
    sources::the_next_leader_deletes_a_claim_whose_machine_is_gone,
    ipam_claims::an_ipam_claim_gets_an_address_of_each_family,
    ipam_claims::ipam_claims_that_no_pool_serves_stay_unchanged,
    ipam_claims::an_ipam_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_claim,
    ipam_claims::an_ipam_claim_keeps_its_address_when_guests_start_and_end,
    ipam_claims::the_address_of_a_deleted_ipam_claim_is_free_only_after_its_guest_has_ended,
    ipam_claims::a_new_virtual_machine_of_the_same_name_gets_a_new_ipam_claim_and_another_address,
    ipam_claims::ipam_claims_keep_the_addresses_that_they_have_when_a_leader_starts,
    ipam_claims::an_address_that_another_program_writes_into_an_ipam_claim_causes_an_event_and_stays,
    ipam_claims::an_ipam_claim_gets_the_addresses_that_it_requests_or_that_its_pool_pre_allocates,
    ipam_claims::a_global_pool_serves_the_ipam_claims_of_every_namespace,
    ipam_claims::an_ipam_claim_with_many_owners_is_released_after_the_last_guest,
    ipam_claims::the_lease_of_an_ipam_claim_that_is_removed_by_force_is_released_after_its_guest,
    ledger::a_lease_is_stored_before_its_claim_is_answered,
    ledger::another_leader_reads_the_stored_leases,
    ledger::two_leaders_at_once_never_allocate_one_address,
    ledger::a_released_address_goes_to_the_next_machine,
    ledger::a_deleted_lease_of_a_machine_is_written_again,
    ledger::the_address_of_a_released_lease_that_is_deleted_is_free,
    ledger::an_address_whose_lease_cannot_be_read_is_not_allocated,
    ledger::an_object_of_another_kind_with_the_same_uid_is_another_holder,
    pools::a_pool_gets_a_finalizer_and_a_status,
    pools::a_lease_that_cannot_be_read_is_in_the_status_of_its_pool_until_it_is_gone,
    pools::a_pool_of_an_earlier_schema_works_and_has_a_condition_until_it_is_corrected,
    pools::a_global_pool_gets_a_finalizer_and_a_status,
    pools::the_status_of_a_pool_counts_the_free_addresses_of_each_family,
    pools::a_pool_of_a_node_pool_that_does_not_exist_has_a_condition,
    pools::an_exhausted_pool_has_a_condition_and_a_grown_pool_serves_waiting_claims,
    pools::a_deleted_pool_stays_until_its_last_lease_is_released,
    pools::the_younger_of_two_overlapping_pools_allocates_after_the_older_pool_is_gone,
    pools::a_pool_with_an_error_keeps_its_leases_and_allocates_when_it_is_corrected,
    pools::the_next_leader_keeps_the_leases_and_applies_a_change_of_the_pool,
    shared::machines_of_two_clusters_get_addresses_of_one_pool,
    shared::machines_of_two_clusters_keep_their_addresses_when_leases_are_lost,
    shared::the_machines_of_a_node_pool_that_a_pool_no_longer_names_keep_their_addresses,
    shared::a_shared_pool_first_serves_the_namespace_with_the_fewest_addresses,
    shared::machines_keep_their_addresses_when_their_namespace_gets_or_loses_the_label_of_a_pool,
    registry::claims_of_many_tasks_are_stored_before_they_are_answered,
    registry::a_machine_that_waits_is_announced_when_it_is_served,
    registry::machines_that_wait_are_served_in_the_order_of_their_creation_when_a_pool_grows,
    registry::an_address_is_allocated_again_when_its_reuse_delay_is_over,
    registry::a_deleted_pool_allocates_nothing_and_stays_until_its_last_lease_is_released,
    registry::a_refused_change_of_a_pool_does_not_stop_the_other_pools,
    registry::an_adopted_record_becomes_a_lease_of_its_claimant,
    node_pools::a_namespace_has_the_label_while_a_pool_serves_its_machines,
    node_pools::a_label_that_a_person_has_set_on_a_namespace_stays,
    node_pools::a_node_pool_with_an_exhausted_pool_gets_a_condition_and_an_event,
    node_pools::a_pool_of_the_same_name_is_derived_from_the_configuration_of_a_node_pool,
    node_pools::a_node_pool_with_unreadable_managed_fields_gets_its_pool_and_its_events,
    node_pools::a_pool_that_a_user_has_created_keeps_its_specification,
    node_pools::machines_boot_with_addresses_from_the_configuration_of_their_node_pool,
    webhook::every_example_is_accepted_with_all_its_members,
    webhook::the_refusal_of_an_invalid_pool_lists_every_error,
    webhook::a_second_pool_of_a_node_pool_is_refused_when_it_is_written,
    webhook::an_overlap_of_pools_of_either_kind_is_refused,
    webhook::a_stored_pool_that_is_invalid_can_be_deleted_and_lose_its_finalizer,
    webhook::the_webhook_allows_a_pool_in_use_to_shrink_or_to_be_deleted_with_a_warning,
    webhook::a_request_that_is_no_review_of_a_pool_is_refused,
    webhook::a_machine_of_a_pool_is_created_with_a_reference_to_its_secret,
    webhook::machines_are_served_before_and_after_a_renewal_of_the_certificate,
    webhook::a_machine_of_an_exhausted_pool_is_refused_unless_it_has_an_address,
    webhook::a_replica_whose_cache_is_not_ready_reads_the_pools_from_the_api_server,
    macs::a_machine_starts_with_the_mac_address_that_its_lease_records,
    macs::a_machine_that_is_replaced_while_no_webhook_answers_keeps_its_mac_address,
    macs::a_mac_address_is_allocated_again_only_after_its_guest_has_ended,
    macs::no_machine_gets_the_mac_address_of_a_guest_that_migrated_to_another_cluster,
    macs::a_mac_address_that_a_user_has_set_is_recorded_and_goes_to_no_other_machine,
    macs::two_guests_with_one_mac_address_are_reported,
    macs::a_machine_of_an_exhausted_mac_pool_starts_when_the_pool_grows,
    macs::a_mac_address_is_released_although_its_pool_and_its_lease_have_unreadable_managed_fields,
    macs::the_refusal_of_an_invalid_mac_pool_lists_every_error,
    claims::a_claim_gets_an_ipaddress_of_the_same_name,
    claims::an_exhausted_pool_that_gets_a_second_subnet_first_adopts_the_records_in_this_subnet,
    claims::a_claim_gets_an_address_with_the_prefix_length_32_or_128_or_0,
    claims::an_ipaddress_of_a_pool_with_settings_has_only_the_members_of_its_kind,
    claims::a_claim_that_names_another_claim_as_a_machine_releases_no_address,
    claims::an_ipaddress_takes_no_address_of_a_pool_of_another_namespace,
    claims::a_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_claim,
    claims::leases_of_deleted_claims_are_deleted_except_the_last_lease_of_a_name_in_a_sticky_pool,
    claims::a_deleted_claim_with_unreadable_managed_fields_is_released,
    claims::a_grown_pool_serves_claims_in_the_order_of_their_creation,
    claims::a_claim_waits_while_its_cluster_is_paused_or_absent,
    claims::a_claim_on_a_pool_of_two_families_selects_one_family,
    claims::a_claim_is_served_after_its_pool_has_lost_the_second_family,
    claims::a_claim_waits_for_its_pool,
    claims::a_claim_with_a_mistake_in_its_pool_reference_has_a_condition_and_gets_no_address,
    claims::a_global_pool_serves_claims_of_every_namespace,
    claims::a_claim_of_machine_api_is_released_after_machine_api_has_removed_its_finalizer,
    claims::a_moved_claim_keeps_its_address,
    claims::a_paused_claim_that_is_created_after_its_ipaddress_holds_the_address,
    claims::an_ipaddress_that_is_removed_by_force_is_written_again,
    claims::a_claim_that_is_removed_by_force_leaves_no_lease_and_no_ipaddress,
    claims::a_new_claim_does_not_take_over_the_ipaddress_of_a_deleted_claim_of_the_same_name,
    claims::a_late_ipaddress_of_a_deleted_claim_is_removed,
    claims::claims_without_the_label_of_the_watch_filter_are_not_served,
    claims::an_ipaddress_of_another_provider_stays_unchanged,
    machine_api::a_machine_set_on_vsphere_gets_addresses_and_reuses_those_of_deleted_machines,
    machine_api::a_waiting_machine_on_vsphere_gets_the_address_of_a_deleted_machine,
    machine_api::a_claim_without_an_owner_is_served_and_adopted_by_its_machine_on_vsphere,
    claims::a_claim_gets_the_address_that_its_pool_pre_allocates_for_its_name,
    claims::a_claim_waits_for_the_address_that_it_requests,
    claims::a_policy_that_refuses_the_leases_of_one_claim_does_not_delay_other_claims,
    claims::a_lease_that_the_api_server_refuses_to_change_blocks_only_its_own_address,
    reconciler::a_virtual_machine_gets_a_secret_with_the_address_of_its_kubevirt_machine,
    reconciler::a_virtual_machine_without_a_kubevirt_machine_holds_its_address_itself,
    reconciler::a_virtual_machine_gets_the_address_that_it_requests,
    reconciler::a_virtual_machine_that_the_webhook_did_not_see_is_patched,
    reconciler::a_secret_of_another_author_stays_and_its_address_is_not_allocated,
    reconciler::an_address_is_released_after_its_guest_has_ended_and_its_secret_is_deleted,
    reconciler::a_machine_never_gets_the_address_of_a_running_guest_of_an_earlier_machine_of_its_name,
    reconciler::a_virtual_machine_does_not_get_the_address_of_a_kubevirt_machine_by_labels_alone,
    reconciler::objects_with_unreadable_managed_fields_do_not_stop_other_machines,
    reconciler::a_deeply_nested_object_does_not_stop_other_machines,
    network_data::a_manifest_that_is_applied_again_before_the_first_start_keeps_the_network_data,
    network_data::a_manifest_that_is_applied_again_while_the_guest_runs_keeps_the_network_data,
    network_data::a_manifest_that_is_applied_again_while_the_pool_is_being_deleted_keeps_the_network_data,
    network_data::five_server_side_applies_of_a_served_machine_cause_no_conflict,
    network_data::five_server_side_applies_of_a_machine_that_is_older_than_its_pool_cause_no_conflict,
    network_data::five_server_side_applies_of_a_machine_of_a_mac_pool_cause_no_conflict,
    network_data::without_a_replica_a_machine_can_be_stopped_started_migrated_and_deleted,
    network_data::with_a_replica_of_an_earlier_version_a_machine_can_be_stopped_started_migrated_and_deleted,
    network_data::an_instance_without_its_reference_is_refused_until_a_leader_is_back,
    network_data::a_clone_starts_with_an_address_of_its_own_while_its_source_runs,
    network_data::a_machine_from_a_copied_manifest_starts_with_an_address_of_its_own,
    network_data::a_machine_keeps_its_address_when_a_snapshot_is_restored_in_place,
    network_data::a_machine_keeps_its_reference_when_a_snapshot_with_another_reference_is_restored_in_place,
    network_data::a_machine_that_is_restored_under_another_name_gets_an_address_of_its_own,
    network_data::the_instance_of_a_machine_that_is_restored_into_another_namespace_is_refused,
    network_data::a_changed_gateway_reaches_a_guest_at_its_next_restart,
    network_data::an_outdated_machine_stays_outdated_when_its_secret_is_deleted,
    network_data::the_network_data_of_a_machine_follows_the_subnet_of_its_address,
    network_data::a_guest_with_the_prefix_length_32_reads_the_on_link_gateway_of_its_pool,
    network_data::the_settings_of_a_pool_reach_a_guest_at_its_next_restart,
    network_data::a_changed_mac_address_gives_the_machine_a_secret_of_a_new_name,
    network_data::after_twenty_mac_addresses_only_the_secret_of_the_guest_and_the_newest_secret_are_left,
    network_data::a_machine_keeps_its_address_when_leases_are_lost_while_its_guest_reads_an_earlier_secret,
    network_data::a_machine_that_moves_to_another_network_keeps_its_address_until_its_guest_restarts,
    network_data::a_machine_that_another_pool_of_its_network_selects_keeps_its_address,
    network_data::after_a_loss_of_leases_a_record_reserves_its_address_in_a_pool_without_a_selector,
    network_data::the_lease_of_a_machine_moves_to_a_pool_that_gets_its_address,
    network_data::no_machine_gets_the_address_of_a_guest_that_migrated_to_another_cluster,
    network_data::a_machine_of_version_0_2_0_keeps_its_secret_until_it_is_created_again,
    network_data::a_manifest_with_the_secret_name_of_version_0_2_0_gets_a_new_secret_name,
    network_data::an_orphan_keeps_its_secret_if_the_garbage_collector_is_faster_than_kubevirt,
    network_data::an_orphan_keeps_its_secret_if_kubevirt_is_faster_than_the_garbage_collector,
    network_data::a_machine_never_reads_a_secret_that_is_stored_after_its_virtual_machine_is_gone,
    network_data::a_machine_with_sr_iov_starts_after_it_has_a_mac_address,
    network_data::network_data_of_a_user_reserves_its_address_although_no_pool_selects_the_machine,
    network_data::network_data_of_the_user_is_kept_in_a_new_machine,
    network_data::network_data_of_the_user_replaces_the_network_data_of_the_controller,
    network_data::a_machine_that_leaves_its_pool_starts_without_network_data,
    overflow::machines_of_an_exhausted_pool_get_addresses_and_the_gateway_of_its_overflow,
    overflow::a_machine_waits_for_a_pool_and_its_overflow_and_gets_the_first_free_address_of_either,
    overflow::pools_of_equal_priority_and_pools_of_another_interface_are_no_overflow,
    overflow::a_waiting_machine_gets_no_added_address_that_network_data_of_a_user_contains,
    overflow::a_deleted_pool_keeps_its_machines_while_its_overflow_serves_new_machines,
    overflow::a_node_pool_is_exhausted_when_its_pool_and_the_overflow_are_exhausted,
    reports::an_address_that_a_guest_without_a_pool_reports_is_not_allocated_until_the_guest_ends,
    reports::an_address_that_a_guest_reports_before_its_pool_exists_is_not_allocated,
    reports::the_record_of_a_machine_without_a_guest_takes_no_address_from_a_running_guest,
    reports::an_instance_that_never_ran_reserves_nothing,
    reports::false_reports_of_guests_reserve_only_a_quarter_of_a_pool_of_another_namespace,
    reports::no_machine_gets_the_address_of_a_service_or_of_the_control_plane_of_a_cluster,
    reports::services_of_another_namespace_reserve_a_quarter_of_a_pool_unless_the_pool_ignores_them,
    reports::a_guest_that_reports_no_address_keeps_its_reservation,
    reports::an_excluded_address_that_several_guests_report_is_no_conflict,
    reports::holder_and_guest_get_an_event_if_a_guest_reports_an_address_that_is_already_allocated,
    upgrade::no_machine_is_refused_during_an_upgrade_and_a_downgrade,
}
