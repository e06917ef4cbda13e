"""The replicated metadata: commands, rules, determinism, snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.broker.state.changes import Changes
from mq.broker.state.commands import (
    AdvanceDelay,
    Command,
    CommitOffsets,
    DataVersion,
    DeleteGroup,
    DeleteTopic,
    GroupConfig,
    LockQueues,
    PutGroup,
    PutReplica,
    PutTopic,
    ResetOffset,
    TopicConfig,
    UnlockQueues,
    decode_command,
    encode_command,
)
from mq.broker.state.metadata import Metadata
from mq.broker.state.table import CommandInvalid, CommandUnknown, SnapshotDamaged
from mq.protocol.numbers import QueueOffset
from mq.store.dispatch import META_TOPIC


def topic(name: str = "T", queues: int = 4, perm: int = 6, **more: Any) -> TopicConfig:
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, perm=perm, **more)


def put(name: str = "T", queues: int = 4, perm: int = 6, timestamp_ms: int = 1000) -> PutTopic:
    return PutTopic(config=topic(name, queues, perm), timestamp_ms=timestamp_ms)


def commit(*rows: tuple[str, str, int, int]) -> CommitOffsets:
    return CommitOffsets(offsets=[(group, topic, queue, QueueOffset(offset)) for group, topic, queue, offset in rows])


def metadata_with(*configs: TopicConfig) -> Metadata:
    metadata = Metadata()
    for config in configs:
        metadata.apply(PutTopic(config=config, timestamp_ms=1))
    return metadata


def restored(metadata: Metadata, without: Sequence[str] = ()) -> Metadata:
    """What is restored from its snapshot; ``without`` fields that older software does not write."""
    content = cbor2.loads(metadata.snapshot())
    for name in without:
        del content[name]
    again = Metadata()
    again.restore(cbor2.dumps(content) if without else metadata.snapshot())
    return again


EXAMPLES: list[Command] = [
    put(),
    PutTopic(config=topic(), timestamp_ms=5, unless_there=True),
    PutGroup(config=GroupConfig(name="g", consume_orderly=True), timestamp_ms=5, unless_there=True),
    DeleteTopic(name="T", timestamp_ms=5),
    PutGroup(config=GroupConfig(name="g", retry_times_max=-1), timestamp_ms=5),
    DeleteGroup(name="g", timestamp_ms=5, remove_offsets=True),
    commit(("g", "T", 0, 7), ("g", "T", 1, 2**40)),
    commit(),
    ResetOffset(group="g", topic="T", queue_id=3, offset=QueueOffset(0)),
    PutReplica(node_id="n1", address="127.0.0.1:10911"),
    ResetOffset(group="g", topic="T", queue_id=3, offset=QueueOffset(0), restart=True),
    LockQueues(group="g", client_id="10.0.0.1@7#ü", queues=[("T", 0), ("U", 2**31 - 1)]),
    UnlockQueues(group="g", client_id="c", queues=[("T", 0)]),
    AdvanceDelay(level=18, offset=QueueOffset(2**63 - 1)),
]


@pytest.fixture
def metadata() -> Metadata:
    return Metadata()


@pytest.mark.parametrize("command", EXAMPLES, ids=lambda command: type(command).__name__)
def test_commands_round_trip(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


NOT_UNDERSTOOD = {
    "empty": b"",
    "break": b"\xff",
    "text": b"not cbor at all",
    "array": cbor2.dumps([1, 2]),
    "new kind": cbor2.dumps({"kind": "put_learner", "node": "n9"}),
    "new field": cbor2.dumps({"kind": "delete_topic", "name": "T", "timestamp_ms": 1, "archive": True}),
    "missing field": cbor2.dumps({"kind": "delete_topic", "name": "T"}),
    "bad name": cbor2.dumps({"kind": "delete_topic", "name": "../T", "timestamp_ms": 1}),
    "bad offset": cbor2.dumps({"kind": "commit_offsets", "offsets": [["g", "T", [0, -1]]]}),
    "short row": cbor2.dumps({"kind": "commit_offsets", "offsets": [["g", "T", [0]]]}),
}


@pytest.mark.parametrize("body", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD)
def test_unknown_command_is_never_skipped(body: bytes) -> None:
    with pytest.raises(CommandUnknown):
        decode_command(body)


@pytest.mark.parametrize(
    "command",
    [
        put(""),
        put("a/b"),
        put("x" * 300),
        put(META_TOPIC),
        put(queues=-1),
        put(queues=100_000),
        put(perm=16),
        put(timestamp_ms=-1),
        put(timestamp_ms=2**63),
        DeleteTopic(name="..", timestamp_ms=1),
        PutGroup(config=GroupConfig(name="g", broker_id=2**63), timestamp_ms=1),
        PutGroup(config=GroupConfig(name="g", which_broker_when_consume_slowly=-(2**63)), timestamp_ms=1),
        PutGroup(config=GroupConfig(name="a b"), timestamp_ms=1),
        DeleteGroup(name="", timestamp_ms=1),
        commit(("g", "T", 0, 1), ("g", "T/", 0, 1)),
        commit(("g", "T", -1, 1)),
        commit(("g", "T", 0, -1)),
        commit(("g", "T", 0, 2**63)),
        ResetOffset(group="g\n", topic="T", queue_id=0, offset=QueueOffset(0)),
        AdvanceDelay(level=0, offset=QueueOffset(0)),
        AdvanceDelay(level=19, offset=QueueOffset(0)),
        AdvanceDelay(level=1, offset=QueueOffset(-1)),
    ],
    ids=repr,
)
def test_invalid_metadata_commands_are_not_encoded(command: Command) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(command)


@given(st.binary(max_size=60))
def test_any_bytes_decode_to_a_command_or_are_refused(body: bytes) -> None:
    try:
        command = decode_command(body)
    except CommandUnknown:
        return
    assert decode_command(encode_command(command)) == command


@pytest.mark.parametrize(
    "state",
    [
        cbor2.dumps({"format": 1, "topics": [], "groups": [], "consumer_offsets": []} | {"data_version": version})
        for version in ({"counter": 1, "timestamp_ms": 2**63}, {"counter": -1, "timestamp_ms": 1}, {"counter": 2**600})
    ]
    + [b"\x81" * 500 + b"\x01", b"\xc4\x82\x1a\x7f\xff\xff\xff\x01", b"\xc2\x59\x27\x10" + b"\xff" * 10_000],
    ids=["late", "negative", "long", "deep", "exponent", "very long"],
)
def test_snapshot_that_no_replica_makes_is_refused(state: bytes, metadata: Metadata) -> None:
    with pytest.raises(SnapshotDamaged, match="metadata snapshot of"):
        metadata.restore(state)
    assert metadata.snapshot() == Metadata().snapshot()


def test_put_topic_creates_replaces_and_counts_versions(metadata: Metadata) -> None:
    assert metadata.apply(put(timestamp_ms=10)) == Changes(topics=("T",))
    assert metadata.data_version == DataVersion(1, 10)
    assert metadata.apply(put(timestamp_ms=20)) == Changes()
    assert metadata.data_version == DataVersion(1, 10)
    assert metadata.apply(put(queues=8, timestamp_ms=30)) == Changes(topics=("T",))
    assert metadata.data_version == DataVersion(2, 30)
    assert metadata.topics == {"T": topic(queues=8)}


def test_auto_creation_replaces_no_topic_or_group(metadata: Metadata) -> None:
    for unless_there, queues in ((True, 1), (True, 2), (False, 3), (True, 4)):
        metadata.apply(PutTopic(config=topic(queues=queues), timestamp_ms=queues, unless_there=unless_there))
        group = GroupConfig(name="g", retry_queues=queues)
        metadata.apply(PutGroup(config=group, timestamp_ms=queues, unless_there=unless_there))
        expected = {1: 1, 2: 1, 3: 3, 4: 3}[queues]
        assert (metadata.topics["T"].read_queues, metadata.groups["g"].retry_queues) == (expected, expected)


def test_operator_commands_keep_their_encoding() -> None:
    assert cbor2.loads(encode_command(put())).keys() == {"kind", "config", "timestamp_ms"}


def test_delete_topic_takes_its_offsets_along(metadata: Metadata) -> None:
    for command in (put("T"), put("U"), commit(("g", "T", 0, 5), ("g", "U", 0, 6), ("h", "T", 1, 7))):
        metadata.apply(command)
    assert metadata.apply(DeleteTopic(name="T", timestamp_ms=9)) == Changes(
        topics=("T",), deleted_topics=("T",), offsets=2
    )
    assert metadata.consumer_offsets == {("g", "U"): {0: 6}}
    assert metadata.apply(DeleteTopic(name="T", timestamp_ms=10)) == Changes(deleted_topics=("T",))
    assert metadata.data_version == DataVersion(3, 9)
    metadata.apply(put("T"))
    assert metadata.consumer_offset("g", "T", 0) is None


def test_topic_keeps_its_identity_until_deleted() -> None:
    metadata = metadata_with(topic("T"), topic("U"))
    first, other = metadata.topic_identity("T"), metadata.topic_identity("U")
    metadata.apply(put("T", queues=8, timestamp_ms=1234))
    metadata.apply(PutTopic(config=topic("T"), timestamp_ms=5, unless_there=True))
    assert metadata.topic_identity("T") == first
    metadata.apply(DeleteTopic(name="T", timestamp_ms=1000))
    assert metadata.topic_identity("T") == ""
    metadata.apply(put("T"))
    assert len({first, other, metadata.topic_identity("T"), ""}) == 4


def test_identities_differ_between_clusters_set_up_in_the_same_order() -> None:
    one, other = Metadata(), Metadata()
    one.apply(put("T", timestamp_ms=1000))
    other.apply(put("T", timestamp_ms=2000))
    assert one.topic_identity("T") != other.topic_identity("T")


def test_topic_older_than_identities_gets_one_only_when_recreated() -> None:
    metadata = restored(metadata_with(topic("T")), without=["topic_identities"])
    assert metadata.topic_identity("T") == ""
    metadata.apply(put("T", queues=8))
    assert metadata.topic_identity("T") == ""
    metadata.apply(DeleteTopic(name="T", timestamp_ms=1000))
    metadata.apply(put("T"))
    assert metadata.topic_identity("T") != ""


def test_offset_of_a_deleted_topic_is_not_kept(metadata: Metadata) -> None:
    for command in (put("T"), DeleteTopic(name="T", timestamp_ms=9)):
        metadata.apply(command)
    assert metadata.apply(commit(("g", "T", 0, 5))) == Changes()
    assert metadata.apply(ResetOffset(group="g", topic="T", queue_id=0, offset=QueueOffset(5))) == Changes()
    metadata.apply(put("T"))
    assert metadata.consumer_offset("g", "T", 0) is None


def test_only_a_reset_moves_committed_offsets_back(metadata: Metadata) -> None:
    metadata.apply(put("T"))
    seen = []
    for offset in (0, 5, 3, 5, 9, 0):
        metadata.apply(commit(("g", "T", 0, offset)))
        seen.append(metadata.consumer_offset("g", "T", 0))
    assert seen == [0, 5, 5, 5, 9, 9]
    assert metadata.apply(ResetOffset(group="g", topic="T", queue_id=0, offset=QueueOffset(2))) == Changes(offsets=1)
    assert metadata.consumer_offset("g", "T", 0) == 2
    metadata.apply(commit(("g", "T", 0, 3)))
    assert metadata.consumer_offset("g", "T", 0) == 3


def test_offset_zero_is_a_committed_offset(metadata: Metadata) -> None:
    metadata.apply(put("T"))
    assert metadata.consumer_offset("g", "T", 0) is None
    assert metadata.apply(commit(("g", "T", 0, 0))) == Changes(offsets=1)
    assert metadata.consumer_offset("g", "T", 0) == 0


def test_offsets_do_not_change_the_data_version(metadata: Metadata) -> None:
    metadata.apply(put("T"))
    version = metadata.data_version
    metadata.apply(commit(("g", "T", 0, 5)))
    assert metadata.data_version == version


@pytest.mark.parametrize(("remove_offsets", "left"), [(False, 5), (True, None)])
def test_deleting_a_group_removes_its_offsets_on_request(
    remove_offsets: bool, left: int | None, metadata: Metadata
) -> None:
    for command in (put("T"), PutGroup(config=GroupConfig(name="g"), timestamp_ms=2), commit(("g", "T", 0, 5))):
        metadata.apply(command)
    changes = metadata.apply(DeleteGroup(name="g", timestamp_ms=3, remove_offsets=remove_offsets))
    assert changes.groups == ("g",)
    assert metadata.groups == {}
    assert metadata.consumer_offset("g", "T", 0) == left


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topic_table_has_every_topic() -> None:
    metadata = metadata_with(topic("A", 3, perm=4), topic("B"))
    table = metadata.topic_table()
    assert sorted(table) == ["A", "B"]
    assert (table["A"].read_queue_nums, table["A"].write_queue_nums, table["A"].perm) == (3, 3, 4)


# -- snapshots ---------------------------------------------------------------------------------------------------------

_names = st.sampled_from(["A", "B", "C"])
_groups = st.sampled_from(["g", "h"])
_queues = st.tuples(_names, st.integers(0, 2))
_offset_rows = st.tuples(_groups, _names, st.integers(0, 2), st.integers(0, 9))
_commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(put, _names, st.integers(1, 3), st.sampled_from([4, 6]), st.integers(1, 99)),
    st.builds(DeleteTopic, name=_names, timestamp_ms=st.integers(1, 99)),
    st.builds(
        PutGroup,
        config=st.builds(GroupConfig, name=_groups, retry_queues=st.integers(1, 2)),
        timestamp_ms=st.integers(1, 99),
    ),
    st.builds(DeleteGroup, name=_groups, timestamp_ms=st.integers(1, 99), remove_offsets=st.booleans()),
    st.builds(CommitOffsets, offsets=st.lists(_offset_rows, max_size=5)),
    st.builds(
        ResetOffset,
        group=_groups,
        topic=_names,
        queue_id=st.integers(0, 2),
        offset=st.integers(0, 9),
        restart=st.booleans(),
    ),
    st.builds(LockQueues, group=_groups, client_id=_names, queues=st.lists(_queues, max_size=3)),
    st.builds(UnlockQueues, group=_groups, client_id=_names, queues=st.lists(_queues, max_size=3)),
    st.builds(AdvanceDelay, level=st.integers(1, 18), offset=st.integers(0, 9)),
)


@given(commands=st.lists(_commands, max_size=30), cut=st.integers(0, 30))
def test_same_commands_give_the_same_bytes_also_through_a_snapshot(commands: list[Command], cut: int) -> None:
    """One replica applies everything; one goes through the encoded form; one restarts from a snapshot on the way."""
    whole, encoded, restarted = Metadata(), Metadata(), Metadata()
    for number, command in enumerate(commands):
        whole.apply(command)
        encoded.apply(decode_command(encode_command(command)))
        restarted.apply(command)
        if number == cut:
            restarted = restored(restarted)
    assert whole.snapshot() == encoded.snapshot() == restarted.snapshot()
    assert whole.topics == restarted.topics
    assert whole.topic_identities == restarted.topic_identities
    assert whole.topic_identities.keys() == whole.topics.keys()
    assert whole.groups == restarted.groups
    assert whole.consumer_offsets == restarted.consumer_offsets
    assert whole.offset_resets == restarted.offset_resets
    assert whole.queue_locks == restarted.queue_locks
    assert whole.lock_count == restarted.lock_count == sum(map(len, whole.queue_locks.values()))
    assert whole.delay_offsets == restarted.delay_offsets


def test_delay_offsets_never_decrease(metadata: Metadata) -> None:
    for level, offset in ((2, 5), (1, 3), (2, 4)):
        metadata.apply(AdvanceDelay(level=level, offset=QueueOffset(offset)))
    assert metadata.delay_offsets == {1: 3, 2: 5}


def test_snapshot_of_a_release_without_delays_can_be_read() -> None:
    metadata = restored(metadata_with(topic("A")), without=["delay_offsets"])
    assert (list(metadata.topics), metadata.delay_offsets) == (["A"], {})


@given(commands=st.lists(_commands, max_size=30))
def test_offsets_fall_only_by_reset_or_with_their_topic(commands: list[Command], metadata: Metadata) -> None:
    for command in commands:
        before = {key: dict(rows) for key, rows in metadata.consumer_offsets.items()}
        metadata.apply(command)
        if isinstance(command, CommitOffsets | PutTopic | PutGroup):
            for key, rows in before.items():
                for queue_id, offset in rows.items():
                    assert metadata.consumer_offsets[key][queue_id] >= offset


def test_last_locker_holds_the_lock_and_only_the_holder_unlocks() -> None:
    metadata = metadata_with(topic("T"))
    metadata.apply(LockQueues(group="g", client_id="a", queues=[("T", 0), ("T", 1), ("gone", 0)]))
    metadata.apply(LockQueues(group="g", client_id="b", queues=[("T", 1)]))
    metadata.apply(UnlockQueues(group="g", client_id="a", queues=[("T", 1), ("T", 2)]))
    assert metadata.queue_locks == {("g", "T"): {0: "a", 1: "b"}}
    metadata.apply(UnlockQueues(group="g", client_id="b", queues=[("T", 1)]))
    metadata.apply(DeleteTopic(name="T", timestamp_ms=2))
    assert (metadata.queue_locks, metadata.lock_count) == ({}, 0)


def test_offset_reset_lasts_until_a_commit_exceeds_the_offset() -> None:
    metadata = metadata_with(topic("T"))
    metadata.apply(commit(("g", "T", 0, 9), ("g", "T", 1, 9)))
    for queue_id in (0, 1):
        metadata.apply(ResetOffset(group="g", topic="T", queue_id=queue_id, offset=QueueOffset(4), restart=True))
    assert metadata.offset_resets == {("g", "T"): {0: 4, 1: 4}}
    metadata.apply(commit(("g", "T", 0, 4), ("g", "T", 1, 5)))
    assert metadata.offset_resets == {("g", "T"): {0: 4}}
    assert metadata.consumer_offsets == {("g", "T"): {0: 4, 1: 5}}
    metadata.apply(ResetOffset(group="g", topic="T", queue_id=0, offset=QueueOffset(6)))
    assert metadata.offset_resets == {}


def test_snapshots_of_older_directories_are_read() -> None:
    metadata = restored(metadata_with(topic("A")), without=["offset_resets", "queue_locks"])
    assert list(metadata.topics) == ["A"]


# As a broker wrote it in whose snapshots bytes were Base64 text.
_WITH_BASE64 = bytes.fromhex(
    "ab66666f726d61740166746f7069637381a9646e616d6561546b726561645f717565756573016c77726974655f7175657565"
    "7301647065726d06687379735f666c616700656f72646572f46673797374656df46b66696c7465725f747970656a53494e47"
    "4c455f5441476a61747472696275746573a06667726f7570738070636f6e73756d65725f6f666673657473806c646174615f"
    "76657273696f6ea267636f756e746572016c74696d657374616d705f6d73056d6f66667365745f726573657473806b717565"
    "75655f6c6f636b73806d64656c61795f6f666673657473a0687265706c69636173a069666f7262696464656e806570617274"
    "73a1656d61726b7382847818524d515f5359535f5452414e535f48414c465f544f504943000264434149518473726d715f73"
    "79735f776865656c5f74696d6572070260"
)


def test_snapshot_with_bytes_as_text_is_read() -> None:
    assert b"CAIQ" in _WITH_BASE64
    metadata = Metadata()
    metadata.restore(_WITH_BASE64)
    half, slot = metadata.marks.get("RMQ_SYS_TRANS_HALF_TOPIC", 0), metadata.marks.get("rmq_sys_wheel_timer", 7)
    assert [offset for offset in range(24) if half.is_done(QueueOffset(offset))] == [0, 1, 3, 9, 20]
    assert (slot.low, bytes(slot.bits)) == (2, b"")
    again = restored(metadata)
    assert b"CAIQ" not in metadata.snapshot()
    assert again.snapshot() == metadata.snapshot()
    assert bytes(again.marks.get("RMQ_SYS_TRANS_HALF_TOPIC", 0).bits) == b"\x08\x02\x10"


def test_captured_snapshot_is_of_the_moment_of_capture() -> None:
    metadata = metadata_with(topic("A"))
    metadata.apply(commit(("g", "A", 0, 1)))
    before = metadata.snapshot()
    encode = metadata.capture()
    for command in (put("B"), commit(("g", "A", 0, 2), ("g", "A", 1, 2)), DeleteTopic(name="A", timestamp_ms=3)):
        metadata.apply(command)
    assert encode() == before


def test_snapshot_does_not_depend_on_the_order_of_arrival() -> None:
    one, other = Metadata(), Metadata()
    rows = [("g", "A", 0, 1), ("g", "A", 1, 2), ("f", "B", 0, 3)]
    for metadata, names in ((one, "fg"), (other, "gf")):
        for topic_name in "AB":
            metadata.apply(put(topic_name))
        for name in names:
            metadata.apply(PutGroup(config=GroupConfig(name=name), timestamp_ms=1000))
    one.apply(commit(*rows))
    other.apply(commit(*reversed(rows)))
    assert one.snapshot() == other.snapshot()


def test_empty_snapshot_is_the_beginning() -> None:
    metadata = metadata_with(topic("A"))
    metadata.restore(b"")
    assert metadata.snapshot() == Metadata().snapshot()


@pytest.mark.parametrize("snapshot", [b"\xff", cbor2.dumps({"format": 2}), cbor2.dumps([])])
def test_damaged_snapshot_changes_nothing(snapshot: bytes) -> None:
    metadata = metadata_with(topic("A"))
    before = metadata.snapshot()
    with pytest.raises(SnapshotDamaged):
        metadata.restore(snapshot)
    assert metadata.snapshot() == before


def test_snapshot_of_another_format_is_refused() -> None:
    content = cbor2.loads(metadata_with(topic("A")).snapshot())
    content["format"] = 2
    with pytest.raises(SnapshotDamaged, match="has format version 2, this version understands 1"):
        Metadata().restore(cbor2.dumps(content))


def test_addresses_of_replicas_are_kept_in_snapshots(metadata: Metadata) -> None:
    assert metadata.apply(PutReplica(node_id="n1", address="10.0.0.1:1")) == Changes(replicas=("n1",))
    assert metadata.apply(PutReplica(node_id="n0", address="10.0.0.2:1")) == Changes(replicas=("n0",))
    assert metadata.apply(PutReplica(node_id="n1", address="10.0.0.1:1")) == Changes()
    again = restored(metadata)
    assert again.replicas == {"n0": "10.0.0.2:1", "n1": "10.0.0.1:1"}
    assert again.snapshot() == metadata.snapshot()


@pytest.mark.parametrize(("node_id", "address"), [("", "a:1"), ("n" * 65, "a:1"), ("n0", ""), ("n0", "a" * 65)])
def test_addresses_of_replicas_are_bounded(node_id: str, address: str) -> None:
    with pytest.raises(CommandInvalid):
        encode_command(PutReplica(node_id=node_id, address=address))


def test_snapshot_without_addresses_is_readable() -> None:
    assert restored(Metadata(), without=["replicas"]).replicas == {}
