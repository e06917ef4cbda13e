"""The lag of consumer groups in the last hour, and why one does not go on."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mq.client.message import MessageQueue
from mq.client.net.client_core import RemotingSettings
from mq.console.lags import EVERY_SECONDS, GROUPS_MAX, SECONDS, Lag, LagHistory
from mq.console.views.charts import lag_chart
from mq.console.views.groups import member_rows, reasons
from mq.console.watch import SharedAnswer, Watch
from mq.inspection.cluster import GroupStatus
from mq.inspection.cluster_queries import QueryingAdmin
from mq.inspection.members import Member
from mq.inspection.operator_changes import ChangingAdmin
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.consumer_groups import ClientConnectionData, SubscriptionGroupConfig
from mq.protocol.requests.group_progress import GroupProgress
from mq.protocol.requests.relayed import ProcessQueueInfo

NOW_MS = 1_800_000_000_000
Q0, Q1 = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)
RETRY = MessageQueue("%RETRY%mail", "broker-a", 0)


def waits(count: int) -> dict[MessageQueue, GroupProgress]:
    return {Q0: GroupProgress(QueueOffset(100 + count), QueueOffset(100), NOW_MS)}


def member(finished_ago: int, count: int, *queues: MessageQueue, fetched_ago: int = 0) -> Member:
    info = ProcessQueueInfo(
        100,
        100,
        110,
        count,
        1,
        False,
        False,
        last_consume_timestamp=NOW_MS - finished_ago * 1000,
        last_pull_timestamp=NOW_MS - fetched_ago * 1000,
    )
    return Member(ClientConnectionData("c@1", "10.0.0.1:5", "JAVA", 409), dict.fromkeys(queues, info))


def test_lags_are_kept_for_an_hour() -> None:
    history = LagHistory()
    for number in range(200):
        history.add({"mail": waits(number // 10)}, number * EVERY_SECONDS)
    now = 199 * EVERY_SECONDS
    found = history.get("mail", now)
    assert len(found) == SECONDS / EVERY_SECONDS
    assert found[-1] == Lag(now, 19)
    assert found[0] == Lag(140 * EVERY_SECONDS, 14)
    assert history.get("nobody", now) == []
    history.add({}, now + EVERY_SECONDS)
    assert history.get("mail", now) == [], "a group that is gone is forgotten"


def test_lag_history_of_a_group_starts_with_the_group() -> None:
    history = LagHistory()
    history.add({}, 0.0)
    history.add({"mail": waits(1)}, EVERY_SECONDS)
    history.add({"mail": waits(1)}, 2 * EVERY_SECONDS)
    assert history.get("mail", 2 * EVERY_SECONDS) == [Lag(EVERY_SECONDS, 1), Lag(2 * EVERY_SECONDS, 1)]


def test_offset_beyond_the_end_gives_no_negative_lag() -> None:
    history = LagHistory()
    history.add({"mail": waits(-7)}, 0.0)
    assert history.get("mail", 0.0) == [Lag(0.0, 0)]


def test_groups_with_a_constant_lag_take_one_point() -> None:
    history = LagHistory()
    many = {f"group-{number}": waits(3) for number in range(GROUPS_MAX + 5)}
    for number in range(5):
        history.add(many, number * EVERY_SECONDS)
    assert sum(map(len, history._points.values())) == GROUPS_MAX
    assert len(history.get("group-0", 4 * EVERY_SECONDS)) == 5


def test_lag_chart_shows_its_highest_point() -> None:
    chart = lag_chart([Lag(0.0, 5), Lag(60.0, 2500), Lag(120.0, 10)], 120.0)
    assert chart is not None
    assert chart.highest == "2,500"
    assert "now 10" in chart.words
    assert lag_chart([Lag(0.0, 5)], 0.0) is None


def watch_of(nursery: trio.Nursery) -> Watch:
    """A watch that asks nobody but what a test puts into it."""
    remoting = RemotingSettings(credentials=None, tls=None)
    querying_admin = QueryingAdmin("127.0.0.1:1", remoting=remoting)
    return Watch("127.0.0.1:1", remoting, querying_admin, ChangingAdmin("127.0.0.1:1", remoting=remoting), nursery)


async def test_broker_that_answers_nonsense_does_not_end_the_console(autojump_clock: MockClock) -> None:
    asked = 0

    async def groups() -> list[GroupStatus]:
        nonlocal asked
        asked += 1
        if asked < 3:
            raise ValueError("could not convert string to float: 'full'")
        return []

    async with trio.open_nursery() as nursery:
        watch = watch_of(nursery)
        watch.cluster = SharedAnswer(groups, 0)
        nursery.start_soon(watch.keep_history)
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert asked > 5, "it goes on"


async def test_lags_are_kept_while_a_broker_group_has_no_leader(autojump_clock: MockClock) -> None:
    """Its offsets are missing in what is asked for then, as if its consumer groups were gone."""
    leader: str | None = "n0"

    async def groups() -> list[GroupStatus]:
        return [GroupStatus("c", "broker-a", None, leader, ())]

    async def progress() -> dict[str, dict[MessageQueue, GroupProgress]]:
        return {"mail": waits(5)} if leader is not None else {}

    async with trio.open_nursery() as nursery:
        watch = watch_of(nursery)
        watch.cluster, watch.progress = SharedAnswer(groups, 0), SharedAnswer(progress, 0)
        nursery.start_soon(watch.keep_history)
        await trio.sleep(200)
        leader = None
        await trio.sleep(300)
        leader = "n1"
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    found = watch.lags.get("mail", trio.current_time())
    assert {each.message_count for each in found} == {5}
    assert found[-1].at - found[0].at > 300


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([], "Nobody consumes for it"),
        ([member(120, 3, Q0)], "c@1 has messages of Orders broker-a/0 and finished none for 2 min"),
        ([member(120, 0, Q0, fetched_ago=300)], "c@1 fetches nothing of Orders broker-a/0"),
        ([member(1, 3, Q1)], "No member has Orders broker-a/0"),
        ([member(1, 3, Q0)], "slower than they come"),
        ([Member(ClientConnectionData("c@1", "10.0.0.1:5", "GO", 1), None)], "slower than they come"),
    ],
)
def test_stuck_group_reports_the_reason(members: list[Member], expected: str) -> None:
    said = reasons(waits(10), members, {}, NOW_MS)
    assert expected in " ".join(said)


def test_group_without_waiting_messages_has_no_problem() -> None:
    assert reasons(waits(0), [], {}, NOW_MS) == []
    assert reasons({RETRY: waits(5)[Q0]}, [], {}, NOW_MS) == [], "redeliveries wait for their time"


def test_members_that_subscribe_differently_are_reported_although_nothing_waits() -> None:
    client = ClientConnectionData("c@1", "10.0.0.1:5", "JAVA", 409)
    other = ClientConnectionData("c@2", "10.0.0.2:5", "JAVA", 409)
    members = [Member(client, None, "Orders paid"), Member(other, None, "Orders *")]
    [said] = reasons(waits(0), members, {}, NOW_MS)
    assert "subscribe to different things" in said
    assert "c@1: Orders paid, c@2: Orders *" in said
    assert reasons(waits(0), [*members[:1], Member(other, None)], {}, NOW_MS) == [], "of the other it is not known"


def test_disabled_group_is_reported_first() -> None:
    disabled = {"broker-a": SubscriptionGroupConfig(group_name="mail", consume_enable=False)}
    assert reasons(waits(10), None, disabled, NOW_MS) == ["The group is paused: its members get no messages."]
    assert reasons(waits(10), None, {}, NOW_MS) == []


def test_member_reports_its_last_finished_message() -> None:
    [row] = member_rows([member(125, 3, Q0, fetched_ago=5)], NOW_MS)
    assert (row.finished, row.fetched) == ("2 min ago", "5 s ago")
