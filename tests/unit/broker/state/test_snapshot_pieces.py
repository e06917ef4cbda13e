"""A large snapshot is encoded in small pieces: while one is made, the event loop's thread does not run."""

from __future__ import annotations

import cbor2
import pytest

from mq.broker.state import metadata_snapshot as module
from mq.broker.state.commands import GroupConfig, TopicConfig
from mq.broker.state.metadata import Metadata
from mq.protocol.numbers import QueueOffset

GROUPS = 3000


def filled() -> Metadata:
    metadata = Metadata()
    for number in range(GROUPS):
        topic, group = f"topic-{number}", f"group-{number}"
        metadata.topics[topic] = TopicConfig(name=topic, read_queues=16, write_queues=16)
        metadata.groups[group] = GroupConfig(name=group)
        metadata.consumer_offsets[group, topic] = dict.fromkeys(range(16), QueueOffset(number))
    return metadata


def test_snapshot_pieces_hold_a_few_rows_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    encoded = module._encoded

    def counted(state: module.Snapshot) -> list[bytes]:
        made = list(encoded(state))
        pieces.extend(map(len, made))
        return made

    monkeypatch.setattr(module, "_encoded", counted)
    whole = filled().snapshot()
    assert sum(pieces) == len(whole) > 500_000
    assert max(pieces) < 16 * 1024


@pytest.mark.parametrize("count", [0, 1, 23, 24, 255, 256, 70_000])
def test_cbor_heads_equal_those_of_the_library(count: int) -> None:
    assert module._cbor_head(module._CBOR_ARRAY, count) == cbor2.dumps([0] * count)[: -count or None]


def test_snapshot_equals_one_call_of_cbor2() -> None:
    """Replicas of older versions compare and read it."""
    whole = filled().snapshot()
    assert cbor2.dumps(cbor2.loads(whole)) == whole


def test_snapshot_restores_the_state() -> None:
    metadata, again = filled(), Metadata()
    again.restore(metadata.snapshot())
    assert again.snapshot() == metadata.snapshot()
    assert again.consumer_offsets == metadata.consumer_offsets
