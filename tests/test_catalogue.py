"""The scenarios that a replicated log has to survive, and that each has a test which carries its name.

A test carries a name if its function is called ``test_NAME`` or begins with that; several may carry the same one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

CATALOGUE: dict[str, str] = {
    "Elections": """
        single_node
        three_nodes_elect_one_leader five_nodes_elect_one_leader
        split_vote
        vote_once_per_term_across_restart
        candidate_with_stale_log_cannot_win
        followers_of_figure_7_end_with_log_of_leader
        returning_node_does_not_raise_term
        removed_server_campaigns
        asymmetric_partition_one_way
        leader_without_answers_steps_down
        leader_stays_when_two_nodes_are_cut_off_from_each_other
        half_connected_group_of_five_keeps_leader
        quorum_loss_partial
        prevote_lower_term_deadlock prevote_longer_log_vs_candidate prevote_storm_during_catchup
        candidate_higher_term_shorter_log
        leader_two_in_flight_terms
        clock_jump_causes_one_election_at_most paused_leader_serves_no_stale_reads
        preferred_node_wins_election_if_up_to_date
        election_with_slow_fsync
    """,
    "Log and commit": """
        figure_8
        follower_with_diverged_log_gets_log_of_leader
        repeated_appends_in_any_order_give_same_log
        delayed_append_after_truncate deposed_leader_cannot_truncate_log_of_successor
        commit_hint_beyond_log
        idle_follower_wiped
        heartbeat_recovers_a_lost_final_acknowledgement
        noop_unblocks_commit
        replacing_committed_entry_is_refused
        write_of_replaced_entries_does_not_make_successors_durable
        commit_before_own_disk
        uncommitted_change_is_undone_with_its_entry
    """,
    "Flow and load": """
        slow_follower
        uncommitted_limit
        one_window_is_sent_per_round_trip
        control_lane_under_bulk
        proposal_timeout_unknown
        pending_failed_on_stepdown
    """,
    "Reads": """
        stale_read_old_leader
        new_leader_answers_reads_after_its_first_commit
        readindex_duplicate_round_ack
        lease_ends_before_another_leader_can_be_elected
        follower_read_applied_wait
        read_during_transfer
    """,
    "Membership and transfer": """
        add_learner_promote
        joint_replace_1_of_3 joint_shrink_5_to_3
        new_leader_refuses_changes_before_its_first_commit
        two_changes
        remove_leader
        recovered_joint_commits_first
        learner_must_vote_when_promoted_unknowingly
        peer_of_other_cluster_is_refused duplicate_id
        transfer_ok transfer_to_silent_node_is_refused transfer_to_lagging transfer_target_crashes
        transfer_during_conf_change
    """,
    "Reset and retention": """
        appends_during_reset_arrive_once
        follower_below_base
        retention_races_replication
        reset_interrupted
        app_snapshot_and_log_cut
    """,
    "Disk": """
        torn_tail_every_byte
        restart_with_stale_bytes_after_tail
        bit_flip_committed bit_flip_last_batch
        bit_flip_meta_one_slot
        fsync_error
        power_cut_keeps_every_synced_entry
        misdirected stale_sector_read
        disk_full_on_leader
        disk_full_on_follower
        leader_with_stalled_disk_hands_over follower_with_stalled_disk_is_not_elected
        relaxed_mode_power_loss
        meta_write_crash_each_step segment_roll_crash_each_step truncate_crash_each_step
        blank_at_every_size
    """,
    "Upgrade and soak": """
        mixed_version_cluster
        rolling_restart_under_load
        simulator_passes_hours_of_seeds
        jepsen_set jepsen_register
    """,
}

ELSEWHERE = {
    "jepsen_set": "needs containers whose network and disks can be broken",
    "jepsen_register": "needs containers whose network and disks can be broken",
}
"""Scenarios without a test here, each with the reason."""

AWAITED = """
    control_lane_under_bulk
"""
"""Scenarios whose features are on their way; a name leaves when its test is here."""

SCENARIOS = [name for names in CATALOGUE.values() for name in names.split()]


def carried(name: str, tests: Iterable[str]) -> bool:
    """Whether one of the functions ``tests`` is a test of scenario ``name``."""
    return any(test == f"test_{name}" or test.startswith(f"test_{name}_") for test in tests)


def collected() -> set[str]:
    """Names of all test functions."""
    return {
        node.name
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


@pytest.fixture(scope="module")
def tests() -> set[str]:
    return collected()


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_a_test(name: str, tests: set[str]) -> None:
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    if name in AWAITED.split() and not carried(name, tests):
        pytest.skip("its feature is on its way")
    assert carried(name, tests), f"no test is called test_{name}"


def test_names_are_unique() -> None:
    assert len(set(SCENARIOS)) == len(SCENARIOS)
    assert set(ELSEWHERE) <= set(SCENARIOS)


def test_reason_disappears_when_the_test_exists(tests: set[str]) -> None:
    assert not [name for name in ELSEWHERE if carried(name, tests)]


def test_name_within_a_word_carries_no_scenario() -> None:
    assert carried("figure_8", ["test_figure_8_commits"])
    assert not carried("figure_8", ["test_figure_80", "test_not_figure_8"])
