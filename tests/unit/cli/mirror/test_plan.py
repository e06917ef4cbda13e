"""Which queues are mirrored, and into which ones."""

from __future__ import annotations

import pytest

from mq.cli.mirror.plan import Choice, Extension, TargetUnusable, extend, own_names
from mq.cli.mirror.state import MirroredQueue
from mq.protocol.requests.topics import TopicConfig


def topic(name: str, queues: int = 2, perm: int = 6, read: int | None = None) -> TopicConfig:
    return TopicConfig(name, queues if read is None else read, queues, perm)


def plan(
    source: dict[str, dict[str, TopicConfig]],
    target: dict[str, dict[str, TopicConfig]] | None = None,
    known: list[MirroredQueue] | None = None,
    brokers: tuple[str, ...] = ("g1",),
    choice: Choice | None = None,
) -> Extension:
    own = own_names({"DefaultCluster": ["a", "b"]})
    return extend(known or [], source, target or {}, target_brokers=brokers, own=own, choice=choice or Choice())


def places(found: Extension) -> list[tuple[str, int, str, int]]:
    return [(each.broker, each.queue_id, each.target_broker, each.target_queue) for each in found.queues]


def test_broker_group_of_the_same_name_gets_the_same_queues() -> None:
    found = plan({"T": {"a": topic("T"), "b": topic("T")}}, brokers=("a", "b"))
    assert places(found) == [("a", 0, "a", 0), ("a", 1, "a", 1), ("b", 0, "b", 0), ("b", 1, "b", 1)]
    assert [(each.broker, each.config.write_queue_nums) for each in found.topics] == [("a", 2), ("b", 2)]


def test_each_source_queue_gets_its_own_target_queue_in_producer_order() -> None:
    found = plan({"T": {"a": topic("T"), "b": topic("T")}})
    assert places(found) == [("a", 0, "g1", 0), ("a", 1, "g1", 1), ("b", 0, "g1", 2), ("b", 1, "g1", 3)]
    assert [(each.broker, each.config.write_queue_nums) for each in found.topics] == [("g1", 4)]


def test_source_groups_are_spread_over_target_groups() -> None:
    found = plan({"T": {"a": topic("T", 1), "b": topic("T", 1), "c": topic("T", 1)}}, brokers=("g1", "g2"))
    assert places(found) == [("a", 0, "g1", 0), ("b", 0, "g2", 0), ("c", 0, "g1", 1)]


def test_topic_that_grew_is_extended_behind_its_queues() -> None:
    first = plan({"T": {"a": topic("T", 2), "b": topic("T", 1)}})
    grown = {"T": {"a": topic("T", 3), "b": topic("T", 1)}}
    second = plan(grown, {"T": {"g1": topic("T", 4)}}, first.queues)
    assert [(each.number, each.target_queue) for each in second.queues] == [(3, 3)]
    assert not second.topics
    assert not plan(grown, {"T": {"g1": topic("T", 4)}}, [*first.queues, *second.queues]).queues


def test_topic_that_the_mirror_has_created_grows_with_its_original() -> None:
    first = plan({"T": {"a": topic("T", 2)}})
    there = topic("T", 2, perm=7)
    second = plan({"T": {"a": topic("T", 3)}}, {"T": {"g1": there}}, first.queues)
    assert [(each.broker, each.config.write_queue_nums, each.config.perm) for each in second.topics] == [("g1", 3, 7)]
    third = plan({"T": {"a": topic("T", 3)}}, {"T": {"g1": topic("T", 1)}}, first.queues)
    assert "has 1 queues" in third.refusals["T"]
    assert not third.queues
    assert not third.topics


def test_removed_source_queues_end_unless_their_whole_broker_group_is_missing() -> None:
    source = {"T": {"a": topic("T", 2), "b": topic("T", 2)}, "U": {"a": topic("U", 1), "b": topic("U", 1)}}
    known = plan(source).queues
    assert not plan(source, {}, known).unreadable_queues
    smaller = {"T": {"a": topic("T", 1)}, "U": {"a": topic("U", 1), "b": topic("U", 1)}}
    ended = plan(smaller, {}, known).unreadable_queues
    assert {str(each) for each in known if each.number in ended} == {"T a/1", "T b/0", "T b/1"}
    without_b = {"T": {"a": topic("T", 2)}, "U": {"a": topic("U", 1)}}
    assert not plan(without_b, {}, known).unreadable_queues


def test_write_only_queues_are_mirrored_once_readable() -> None:
    only_read = plan({"T": {"a": topic("T", queues=1, read=4)}})
    assert (len(only_read.queues), only_read.unreadable_queues) == (4, frozenset())
    only_written = plan({"T": {"a": topic("T", queues=4, read=1)}})
    assert (len(only_written.queues), only_written.unreadable_queues) == (4, frozenset({1, 2, 3}))
    later = plan({"T": {"a": topic("T", queues=4)}}, {"T": {"g1": topic("T", 4)}}, only_written.queues)
    assert (later.queues, later.unreadable_queues) == ([], frozenset())


def test_target_topic_with_too_few_queues_stops_only_itself() -> None:
    source = {name: {"a": topic(name), "b": topic(name)} for name in ("S", "T", "U")}
    found = plan(source, {"T": {"g1": topic("T", 2)}})
    assert found.refusals == {
        "T": "topic T has 2 queues in g1 at the target, and 4 are needed: raftmq topic update T --queues 4. Or leave "
        "it out: raftmq mirror --exclude T"
    }
    assert {each.topic for each in found.queues} == {each.config.topic_name for each in found.topics} == {"S", "U"}
    later = plan(source, {name: {"g1": topic(name, 4)} for name in source}, found.queues)
    assert [(each.topic, each.target_queue) for each in later.queues] == [("T", n) for n in range(4)]
    numbers = [each.number for each in (*found.queues, *later.queues)]
    assert len(set(numbers)) == 12


def test_topic_refused_by_one_target_group_is_created_in_none() -> None:
    found = plan({"T": {"a": topic("T"), "b": topic("T")}}, {"T": {"b": topic("T", 1)}}, brokers=("a", "b"))
    assert "has 1 queues in b" in found.refusals["T"]
    assert not found.topics
    assert not found.queues


def test_unwritable_target_topic_is_refused() -> None:
    found = plan({"T": {"a": topic("T")}}, {"T": {"g1": topic("T", perm=4)}})
    assert "not writable" in found.refusals["T"]
    assert "--perm rw" in found.refusals["T"]


def test_unreadable_topic_is_left_out_with_its_reason() -> None:
    found = plan({"T": {"a": topic("T", perm=2)}})
    assert not found.queues
    assert "not readable in a" in found.left_out["T"]


def test_internal_topics_of_brokers_are_left_out() -> None:
    internal = (
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "TBW102",
        "a",
        "DefaultCluster",
        "DefaultCluster_REPLY_TOPIC",
        "%RETRY%TOOLS_CONSUMER",
        "RMQ_SYS_TRACE_TOPIC",
    )
    names = (*internal, "Orders", "%RETRY%g", "%DLQ%g")
    found = plan({name: {"a": topic(name, 1)} for name in names})
    assert sorted(each.topic for each in found.queues) == ["%DLQ%g", "%RETRY%g", "Orders"]


@pytest.mark.parametrize(
    ("wanted", "unwanted", "expected"),
    [
        ((), (), ["%RETRY%orders-g", "orders-eu", "orders-us", "test"]),
        (("orders-*",), (), ["%RETRY%orders-g", "orders-eu", "orders-us"]),
        (("orders-*",), ("*-us",), ["%RETRY%orders-g", "orders-eu"]),
        ((), ("test", "%RETRY%*"), ["orders-eu", "orders-us"]),
    ],
)
def test_topics_are_chosen_by_patterns(wanted: tuple[str, ...], unwanted: tuple[str, ...], expected: list[str]) -> None:
    names = ("orders-eu", "orders-us", "test", "%RETRY%orders-g")
    found = plan({name: {"a": topic(name, 1)} for name in names}, choice=Choice(wanted, unwanted))
    assert sorted(each.topic for each in found.queues) == expected


def test_retry_topics_of_pops_get_names_that_raftmq_accepts() -> None:
    found = plan({"%RETRY%g+T": {"a": topic("%RETRY%g+T", 1)}})
    assert [each.target_topic for each in found.queues] == ["%RETRY%g_T"]


def test_mirror_target_without_brokers_is_refused() -> None:
    with pytest.raises(TargetUnusable, match="no broker group"):
        plan({"T": {"a": topic("T")}}, brokers=())


def test_mirroring_more_queues_than_remembered_producers_is_refused() -> None:
    with pytest.raises(TargetUnusable, match="maximum: 9000"):
        plan({f"T{n}": {"a": topic(f"T{n}", 1000)} for n in range(10)})
