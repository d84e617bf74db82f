//! Scenarios, which run against the server of the tests and against a real one.
//!
//! Each makes a namespace of its own, so that they can run side by side.

mod claims;
mod diagnostics;
mod election;
mod ledger;
mod manifests;
mod pools;
mod registry;
mod server;
mod webhook;

use std::future::Future;
use std::pin::Pin;

use super::Cluster;

/// A name, and what runs.
pub type Scenario = (&'static str, for<'c> fn(&'c Cluster) -> Pin<Box<dyn Future<Output = ()> + Send + 'c>>);

/// Lists scenarios in `ALL`, and makes a test of each against a server of its own.
macro_rules! scenarios {
    ($($module:ident::$name:ident),* $(,)?) => {
        /// Every scenario.
        pub const ALL: &[Scenario] = &[$((stringify!($name), |cluster| Box::pin($module::$name(cluster)))),*];

        mod in_process {
            $(#[tokio::test] async fn $name() {
                let server = crate::support::server::Server::start().await;
                super::$module::$name(&crate::support::Cluster::of(&server).await).await;
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
    server::a_watch_tells_every_change_after_the_list,
    server::a_watch_with_a_selector_tells_who_leaves_it,
    server::a_dry_run_stores_nothing,
    server::the_status_is_an_endpoint_of_its_own,
    server::an_apply_conflicts_with_another_manager,
    server::an_apply_gives_up_what_it_no_longer_names,
    server::a_json_patch_tests_before_it_changes,
    server::a_merge_patch_removes_with_null,
    server::what_the_schema_does_not_know_is_pruned,
    server::what_the_schema_forbids_is_refused,
    server::an_immutable_secret_keeps_its_data,
    server::metadata_alone_can_be_listed,
    server::discovery_names_the_kinds,
    server::a_user_without_a_role_is_refused,
    server::a_role_allows_what_it_names,
    server::the_deletion_of_an_owner_is_blocked_only_with_a_right_on_it,
    manifests::an_api_server_takes_over_every_member_of_the_manifests,
    diagnostics::metrics_need_a_token_of_a_user_who_may_read_them,
    election::one_candidate_leads_and_another_follows_it,
    election::a_leader_whose_lease_is_taken_leads_no_more,
    election::of_many_candidates_one_leads,
    ledger::an_address_is_stored_before_it_is_known,
    ledger::another_leader_knows_what_was_stored,
    ledger::two_leaders_at_once_never_allocate_one_address,
    ledger::a_released_address_goes_to_the_next_machine,
    ledger::a_deleted_lease_of_a_machine_is_written_again,
    ledger::a_released_lease_that_is_deleted_is_free,
    ledger::an_address_whose_lease_cannot_be_read_is_not_allocated,
    ledger::a_machine_whose_kind_is_not_known_gets_nothing,
    pools::a_pool_is_protected_and_its_status_is_written,
    pools::a_pool_of_the_cluster_is_protected_and_its_status_is_written,
    pools::an_exhausted_pool_says_so_and_a_grown_one_serves_those_who_wait,
    pools::a_deleted_pool_stays_until_its_last_lease_is_released,
    pools::the_younger_of_two_overlapping_pools_allocates_when_the_older_one_is_gone,
    pools::a_pool_with_an_error_keeps_its_leases_and_allocates_when_it_is_corrected,
    pools::the_next_leader_goes_on_where_the_last_one_stopped,
    registry::claims_of_many_tasks_are_stored_before_they_are_answered,
    registry::a_machine_that_waits_is_announced_when_it_is_served,
    registry::machines_that_wait_are_served_in_the_order_of_their_creation_when_a_pool_grows,
    registry::an_address_is_allocated_again_when_its_reuse_delay_is_over,
    registry::a_pool_that_is_gone_allocates_nothing_and_is_removed_with_its_last_lease,
    registry::a_refused_change_of_a_pool_does_not_hinder_the_others,
    registry::an_adopted_record_is_a_lease_of_its_claimant,
    webhook::an_invalid_pool_is_refused_with_every_error,
    webhook::an_overlap_of_pools_of_either_kind_is_refused,
    webhook::a_pool_that_is_invalid_already_can_be_released_and_deleted,
    webhook::a_pool_in_use_shrinks_and_is_deleted_with_a_warning,
    webhook::a_request_that_is_no_review_of_a_pool_is_refused,
    claims::a_claim_gets_an_ipaddress_of_its_name,
    claims::a_claim_on_an_exhausted_pool_gets_the_address_of_a_deleted_one,
    claims::a_grown_pool_serves_claims_in_the_order_of_their_creation,
    claims::a_claim_of_a_paused_or_absent_cluster_waits_for_it,
    claims::a_claim_on_a_pool_of_two_families_names_one,
    claims::a_claim_waits_for_its_pool,
    claims::a_global_pool_serves_claims_of_every_namespace,
    claims::a_claim_of_machine_api_is_released_after_its_machine,
    claims::a_moved_claim_keeps_its_address,
    claims::an_ipaddress_that_is_removed_by_force_is_written_again,
    claims::a_claim_that_is_removed_by_force_leaves_nothing_behind,
    claims::a_claim_made_again_under_its_name_does_not_inherit,
    claims::a_watch_filter_leaves_other_claims_alone,
    claims::an_ipaddress_of_another_provider_stays_as_it_is,
}
