"""Schedules: decided by a seed, each kind at least once, each variant before one comes again."""

from __future__ import annotations

from random import Random

import pytest

from jepsen.nemeses import NEMESES
from jepsen.nemeses.needs import Deployment, needs, why_not, why_not_together
from jepsen.nemeses.processes import state_of
from jepsen.nemeses.resources import throttle_count
from jepsen.schedule import (
    CALM,
    KINDS,
    QUICK_ELECTION_SECONDS,
    QUICK_SECONDS_MAX,
    bridge,
    draw,
    grudges,
    halves,
    ring,
    targets,
)

NODES = ("n0", "n1", "n2")


def test_seed_determines_drawn_faults() -> None:
    assert draw(Random(3), ["kill", "pause"], 60) == draw(Random(3), ["kill", "pause"], 60)
    assert draw(Random(3), ["kill", "pause"], 60) != draw(Random(4), ["kill", "pause"], 60)


def test_halves_are_cut_off_from_each_other() -> None:
    cut = halves(["n0", "n1", "n2", "n3"])
    assert cut["n0"] == cut["n1"] == {"n2", "n3"}
    assert cut["n2"] == cut["n3"] == {"n0", "n1"}


def test_schedule_named_calm_draws_no_faults() -> None:
    assert draw(Random(1), [CALM], 60) == []


def test_short_run_has_every_kind() -> None:
    assert {step.kind for step in draw(Random(1), [*KINDS], 1)} == set(KINDS)


def test_steps_fit_into_their_time() -> None:
    steps = draw(Random(1), ["kill"], 60)
    assert len(steps) > 3
    assert sum(step.rest_seconds + step.seconds for step in steps) <= 60


@pytest.mark.parametrize("kind", KINDS)
def test_quick_run_has_four_faults_in_fifteen_seconds(kind: str) -> None:
    steps = draw(Random(1), [kind], 15, quick=True)
    assert len(steps) >= 4
    assert all(step.seconds <= max(QUICK_SECONDS_MAX, QUICK_ELECTION_SECONDS) for step in steps)


@pytest.mark.parametrize("kind", KINDS)
def test_every_variant_is_drawn_before_one_repeats(kind: str) -> None:
    variants = [step.variant for step in draw(Random(5), [kind], 600)]
    count = len(KINDS[kind])
    assert len(variants) >= 2 * count
    assert set(variants[:count]) == set(KINDS[kind])


@pytest.mark.parametrize("kind", ["kill", "pause"])
def test_majority_flag_of_a_variant_is_correct(kind: str) -> None:
    for variant in KINDS[kind]:
        left = len(NODES) - len(targets(variant.what, "n1", NODES, Random(1)))
        assert (left >= 2) == variant.majority, variant


def test_fault_targets_match_their_role() -> None:
    assert targets("leader", "n1", NODES, Random(1)) == ("n1",)
    assert targets("both followers", "n1", NODES, Random(1)) == ("n0", "n2")
    assert "n1" not in targets("follower", "n1", NODES, Random(1))
    assert set(targets("all, one after the other", "n1", NODES, Random(1))) == set(NODES)


def test_unknown_fault_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="no known"):
        targets("the weather", "n1", NODES, Random(1))
    with pytest.raises(ValueError, match="no known"):
        grudges("the weather", "n1", NODES, Random(1))


def test_isolated_leader_is_cut_off_from_all_replicas() -> None:
    assert grudges("leader alone", "n1", NODES, Random(1)) == {
        "n1": frozenset({"n0", "n2"}),
        "n0": frozenset({"n1"}),
        "n2": frozenset({"n1"}),
    }


def test_one_way_partitions_cut_one_direction() -> None:
    assert grudges("leader hears nobody", "n1", NODES, Random(1)) == {"n1": frozenset({"n0", "n2"})}
    assert grudges("nobody hears the leader", "n1", NODES, Random(1)) == {
        "n0": frozenset({"n1"}),
        "n2": frozenset({"n1"}),
    }


def test_link_between_two_is_cut_and_both_reach_the_third() -> None:
    planned = grudges("leader and a follower apart", "n1", NODES, Random(1))
    (other,) = planned["n1"]
    assert planned == {"n1": frozenset({other}), other: frozenset({"n1"})}


@pytest.mark.parametrize("variant", KINDS["partition"], ids=lambda variant: str(variant.what))
def test_every_partition_cuts_some_connection(variant: object) -> None:
    what = str(getattr(variant, "what", ""))
    assert any(grudges(what, "n1", NODES, Random(1)).values())


def test_bridge_connects_two_separated_halves() -> None:
    assert bridge(["a", "b", "c", "d", "e"]) == {
        "a": frozenset({"d", "e"}),
        "b": frozenset({"d", "e"}),
        "d": frozenset({"a", "b"}),
        "e": frozenset({"a", "b"}),
    }


def test_each_node_of_a_ring_reaches_another_majority() -> None:
    nodes = ["a", "b", "c", "d", "e"]
    unheard = ring(nodes)
    heard = [frozenset(nodes) - unheard[node] for node in nodes]
    assert all(node in its and len(its) == 3 for node, its in zip(nodes, heard, strict=True))
    assert len(set(heard)) == 5


def test_fault_kinds_name_required_deployment() -> None:
    assert needs(["kill", "bridge"]).count == 5
    assert needs(["kill"]) == Deployment(count=3, spares=0, disks=False, shims=False, switch=False, settings={})
    assert needs(["clock", "packets", "power-loss"]) == Deployment(
        count=3, spares=0, disks=True, shims=True, switch=True, settings={}
    )
    assert needs(["members"]).spares == 1
    assert "netns and docker do" in str(why_not("packets", "local"))


def test_partitions_with_member_changes_need_network_namespaces() -> None:
    assert "netns has both" in str(why_not_together("log", ["kill", "members", "partition"], "local"))
    assert why_not_together("log", ["members", "partition"], "netns") is None
    assert why_not_together("log", ["members", "kill"], "local") is None


def test_behind_fault_runs_only_with_the_log_and_queue_workloads() -> None:
    assert needs(["behind"]).settings["retention_bytes"]
    assert why_not_together("log", ["behind"], "local") is None
    assert "log and queue" in str(why_not_together("offsets", ["kill", "behind"], "local"))


def test_waits_for_a_processor_are_read_from_either_version() -> None:
    assert throttle_count("nr_periods 12\nnr_throttled 7\nthrottled_time 99\n") == 7
    assert throttle_count("usage_usec 12\n") == 0


def test_every_fault_kind_has_a_nemesis() -> None:
    assert NEMESES.keys() == KINDS.keys()


def test_state_of_a_process_is_read_behind_its_name() -> None:
    assert state_of("12 (a) R (b)) T 1 12 12 0") == "T"


def test_isolated_name_server_is_cut_off_from_brokers_and_clients() -> None:
    planned = grudges("a name server alone", "n1", NODES, Random(1), name_servers=["ns0", "ns1"])
    (alone,) = planned.keys() - set(NODES)
    assert planned[alone] == frozenset({*NODES, "clients"})
    assert all(planned[node] == frozenset({alone}) for node in NODES)


def test_leader_without_name_servers_keeps_its_followers() -> None:
    planned = grudges("leader cut off from the name servers", "n1", NODES, Random(1), name_servers=["ns0", "ns1"])
    assert planned == {"n1": frozenset({"ns0", "ns1"}), "ns0": frozenset({"n1"}), "ns1": frozenset({"n1"})}
