"""The format level of a group: when it rises, what it does, and what is said where it is not understood."""

from __future__ import annotations

import json
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.admin.format_level import LevelRaises
from mq.broker.state.commands import PutTopic, TopicConfig, decode_command, encode_command
from mq.broker.state.format_level import FEATURES, LEVEL_FIRST, LEVEL_NEWEST, RaiseLevel, announced_level, next_level
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, CommandUnknown, SnapshotDamaged
from mq.protocol.codes import RequestCode as Code
from raftlog import Software
from tests.support.broker_contexts import context_of
from tests.support.running_broker import RunningBroker, broker_settings, running
from tests.support.waiting import until

levels = st.integers(1, 5)


def put(name: str) -> PutTopic:
    return PutTopic(config=TopicConfig(name=name, read_queues=1, write_queues=1), timestamp_ms=1000)


def raised(level: int, timestamp_ms: int = 5000) -> RaiseLevel:
    return RaiseLevel(level=level, timestamp_ms=timestamp_ms)


def metadata_of_an_earlier_release(*topics: str) -> Metadata:
    """With topics, as software from before there were identities left it."""
    metadata = Metadata()
    for name in topics:
        metadata.apply(put(name))
    state = cbor2.loads(metadata.snapshot())
    del state["topic_identities"]
    restored = Metadata()
    restored.restore(cbor2.dumps(state))
    return restored


# -- when it rises -----------------------------------------------------------------------------------------------------


@given(levels, levels, st.lists(st.none() | levels, max_size=5))
def test_level_is_proposed_that_all_members_understand(current: int, own: int, others: list[int | None]) -> None:
    proposed = next_level(current, own, others)
    assert proposed >= current
    if proposed > current:
        assert proposed <= own
        assert all(level is not None and level >= proposed for level in others)
    elif None not in others:
        assert min([own, *(level or 1 for level in others)]) <= current


def test_silent_member_holds_the_format_level_back() -> None:
    assert next_level(1, 2, [2, None]) == 1
    assert next_level(1, 2, [2, 2]) == 2
    assert next_level(1, 2, []) == 2


class Group:
    """What a leader of three replicas sees."""

    def __init__(self, **settings: object) -> None:
        self.metadata = Metadata()
        self.software: dict[str, Software | None] = {"n1": Software(level_newest=2), "n2": Software(level_newest=2)}
        self.proposed: list[bytes] = []
        self.settings = broker_settings(Path("data"), node_id="n0").model_copy(update=settings)

    def propose(self, *, leads: bool = True, moments: tuple[float, ...] = (0.0,)) -> list[int]:
        """Which levels a leader proposes that looks at these times, in seconds."""
        self.proposed.clear()
        times = [0.0]
        context = context_of(
            settings=self.settings,
            metadata=self.metadata,
            members=lambda: {"n0", "n1", "n2"},
            environment__peer_software=self.software.get,
            appender__is_open=leads,
            appender__add_command=self.proposed.append,
            wall_clock_ms=lambda: 77,
            clock=lambda: times[0],
        )
        raises = LevelRaises(context)
        for moment in moments:
            times[0] = moment
            raises.propose_next()
        commands = [decode_command(command) for command in self.proposed]
        return [command.level for command in commands if isinstance(command, RaiseLevel)]


def test_leader_proposes_once_all_members_understand() -> None:
    group = Group()
    assert group.propose(leads=False) == []
    assert group.propose() == [2]
    group.software["n1"] = Software()
    assert group.propose() == []
    group.software["n1"] = None
    assert group.propose() == []
    group.software["n1"] = Software(level_newest=7)
    assert group.propose() == [2]
    group.metadata.apply(raised(2))
    assert group.propose() == []


def test_format_level_proposal_is_repeated_only_after_a_timeout() -> None:
    assert Group().propose(moments=(0.0, 0.01, 9.9)) == [2]
    assert Group().propose(moments=(0.0, 9.9, 10.1)) == [2, 2]


def test_setting_holds_the_level_back() -> None:
    group = Group(format_level_max=1)
    assert group.propose() == []
    assert announced_level(1) == 1
    assert announced_level(99) == announced_level(None) == LEVEL_NEWEST


# -- what it does ------------------------------------------------------------------------------------------------------


def test_every_level_has_a_feature() -> None:
    assert sorted(FEATURES) == list(range(LEVEL_FIRST + 1, LEVEL_NEWEST + 1))


def test_raising_to_level_2_gives_old_topics_an_identity() -> None:
    metadata = metadata_of_an_earlier_release("A", "B")
    metadata.apply(put("C"))
    kept = metadata.topic_identity("C")
    assert (metadata.topic_identity("A"), metadata.topic_identity("B")) == ("", "")
    assert metadata.apply(raised(2)).topics == ("A", "B")
    assert [metadata.topic_identity(name) for name in "ABC"] == ["4-5000", "5-5000", kept]
    again = metadata.snapshot()
    assert metadata.apply(raised(2, 9000)).topics == ()
    assert metadata.snapshot() == again


def test_level_never_falls() -> None:
    metadata = Metadata(level_newest=3)
    metadata.apply(raised(3))
    metadata.apply(raised(2))
    assert metadata.format_level.level == 3


@pytest.mark.parametrize("level", [0, 2**31])
def test_invalid_format_levels_are_refused(level: int) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(raised(level))


# -- snapshots, and levels that are not understood ---------------------------------------------------------------------


def test_snapshot_contains_the_format_level_only_above_level_1() -> None:
    """So software from before there were levels can read it, and a downgrade before the switch works."""
    metadata = Metadata()
    metadata.apply(put("A"))
    assert "format_level" not in cbor2.loads(metadata.snapshot())["parts"]
    metadata.apply(raised(2))
    restored = Metadata()
    restored.restore(metadata.snapshot())
    assert restored.format_level.level == 2
    assert restored.snapshot() == metadata.snapshot()


WORDS = "the group is at format level 2, and this version of the software understands none above 1"


def test_entry_with_a_level_that_is_not_understood_changes_nothing() -> None:
    metadata = Metadata(level_newest=1)
    metadata.apply(put("A"))
    before = metadata.snapshot()
    with pytest.raises(CommandUnknown, match=WORDS):
        metadata.apply(raised(2))
    assert metadata.snapshot() == before


def test_snapshot_with_a_level_that_is_not_understood_changes_nothing() -> None:
    newer = Metadata()
    newer.apply(raised(2))
    metadata = Metadata(level_newest=1)
    metadata.apply(put("A"))
    before = metadata.snapshot()
    with pytest.raises(SnapshotDamaged, match=WORDS):
        metadata.restore(newer.snapshot())
    assert metadata.snapshot() == before


@pytest.mark.parametrize("level", [0, -1, "2", 2.5, 2**31])
def test_snapshot_with_an_invalid_level_is_refused(level: object) -> None:
    state = cbor2.loads(Metadata().snapshot())
    state["parts"]["format_level"] = level
    with pytest.raises(SnapshotDamaged):
        Metadata().restore(cbor2.dumps(state))


# -- a broker ----------------------------------------------------------------------------------------------------------


async def level_of(broker: RunningBroker) -> int:
    """What the broker tells operators."""
    answer = await (await broker.connect()).request(Code.GET_BROKER_RUNTIME_INFO)
    return int(json.loads(answer.body)["table"]["raftmq.formatLevel"])


async def test_single_broker_only_ever_raises_its_format_level(tmp_path: Path) -> None:
    async with running(tmp_path, format_level_max=1) as broker:
        assert await level_of(broker) == 1
    async with running(tmp_path) as broker:

        async def is_raised() -> bool:
            return await level_of(broker) == LEVEL_NEWEST

        await until(is_raised)
    async with running(tmp_path, format_level_max=1) as broker:  # too late: it does not go back
        assert await level_of(broker) == LEVEL_NEWEST
