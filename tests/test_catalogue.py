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
        first_election_3 first_election_5
        split_vote
        vote_once_per_term_across_restart
        stale_log_candidate
        figure_7_logs
        disruptive_server
        removed_server_campaigns
        asymmetric_partition_one_way
        leader_deaf
        bridge_node
        half_connected_5
        quorum_loss_partial
        prevote_lower_term_deadlock prevote_longer_log_vs_candidate prevote_storm_during_catchup
        candidate_higher_term_shorter_log
        leader_two_in_flight_terms
        clock_jump_forward paused_process
        priority_decay
        election_with_slow_fsync
    """,
    "Log and commit": """
        figure_8
        log_divergence_deep
        overlapping_retransmit
        delayed_append_after_truncate stale_leader_truncate
        commit_hint_beyond_log
        idle_follower_wiped
        lost_last_ack
        noop_unblocks_commit
        truncate_below_commit
        async_write_aba
        commit_before_own_disk
        config_entry_truncated
    """,
    "Flow and load": """
        slow_follower
        uncommitted_limit
        bandwidth_delay_100ms
        control_lane_under_bulk
        proposal_timeout_unknown
        pending_failed_on_stepdown
    """,
    "Reads": """
        stale_read_old_leader
        readindex_before_noop
        readindex_duplicate_round_ack
        lost_leader_lease
        follower_read_applied_wait
        read_during_transfer
    """,
    "Membership and transfer": """
        add_learner_promote
        joint_replace_1_of_3 joint_shrink_5_to_3
        change_before_noop
        two_changes
        remove_leader
        recovered_joint_commits_first
        learner_must_vote_when_promoted_unknowingly
        wrong_cluster_uuid duplicate_id
        transfer_ok transfer_to_dead transfer_to_lagging transfer_target_crashes
        transfer_during_conf_change
    """,
    "Reset and retention": """
        snapshot_during_append
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
        lost_fsync_power_cut
        misdirected stale_sector_read
        disk_full_on_leader
        disk_full_on_follower
        disk_stall_leader disk_stall_follower
        relaxed_mode_power_loss
        meta_write_crash_each_step segment_roll_crash_each_step truncate_crash_each_step
        blank_at_every_size
    """,
    "Upgrade and soak": """
        mixed_version_cluster
        rolling_restart_under_load
        simulator_soak
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


def test_name_within_a_word_does_not_count() -> None:
    assert carried("figure_8", ["test_figure_8_commits"])
    assert not carried("figure_8", ["test_figure_80", "test_not_figure_8"])
