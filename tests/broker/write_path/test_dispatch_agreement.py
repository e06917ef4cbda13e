"""What the leader ships about an entry's queues is what every replica finds by reading its records."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from mq.broker.net.call import Call
from mq.broker.net.refusals import RequestRefused
from mq.broker.produce.dedup import Dedup
from mq.broker.produce.placement import Placement
from mq.broker.produce.send import Sends
from mq.broker.schedule.waiting_queues import WaitingQueues
from mq.broker.state.commands import AdvanceDelay, PutTopic, TopicConfig, encode_command
from mq.broker.state.metadata import Metadata
from mq.broker.write_path.appender import Appender
from mq.broker.write_path.internal_messages import InternalMessages
from mq.broker.write_path.pending import InternalRecord, PendingCommand
from mq.broker.write_path.queue_tails import QueueTails
from mq.protocol.codes import RequestCode
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.message_ids import UniqKeyGenerator
from mq.protocol.messages.batch import BatchedMessage, encode_batch
from mq.protocol.messages.records import encode_host, tag_code_of
from mq.protocol.names import SCHEDULE_TOPIC
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.wire.encoding import encode_request
from mq.store.annotation import COMMANDS_FORMAT, SEQUENCED_FORMAT, decode_runs, split_commands, split_sequenced
from mq.store.dispatch import scan_runs
from mq.store.sequenced import SequencedRecord, scan_sequenced
from raftlog import Refusal
from tests.support.appender_rounds import lone_appender
from tests.support.broker_contexts import context_of
from tests.support.running_broker import broker_settings, send_ext

NUMBERED = ("RAFTMQ_PRODUCER", "RAFTMQ_SEQUENCE", "RAFTMQ_SEQUENCE")
NAMES = st.sampled_from(["TAGS", "KEYS", "XTAGS", "UNIQ_KEY", "DELAY", "a", "TAGS ", "tags", *NUMBERED])
VALUES = st.sampled_from(["", "t", "TagA", "ü€😀", " x ", "3", "0", "TAGS\x01u", "RAFTMQ_SEQUENCE\x011", "x" * 200])
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=4)
TEXTS = st.builds(
    lambda pairs, cut: "".join(f"{name}\x01{value}\x02" for name, value in pairs)[: -1 if cut else None],
    PAIRS,
    st.booleans(),
)
PLAIN = st.tuples(st.just("plain"), st.sampled_from("TU"), st.integers(0, 1), TEXTS, st.just(()))
BATCHES = st.tuples(
    st.just("batch"), st.sampled_from("TU"), st.integers(0, 1), TEXTS, st.lists(TEXTS, min_size=1, max_size=3)
)
GROUPS = st.tuples(st.sampled_from(["schedule", "group"]), st.just("T"), st.integers(0, 1), TEXTS, st.just(()))


class Entry:
    """Takes what the appender frames."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes, bytes]] = []
        self.pos = 48

    def append(self, nbytes: int, build: Callable[[int], tuple[bytes, bytes]]) -> int | Refusal:
        body, annotation = build(self.pos)
        assert len(body) == nbytes, f"{len(body)} bytes were built, {nbytes} announced"
        self.entries.append((self.pos, body, annotation))
        self.pos += nbytes + 48
        return len(self.entries)


class Client:
    host = encode_host("10.0.0.1", 9876)

    def send(self, data: bytes) -> None: ...
    def close(self, reason: str) -> None: ...
    def dispatch(self, request: Any, body: bytes, serialization: int) -> None: ...


def leader() -> tuple[Entry, Appender, QueueTails, Sends]:
    metadata = Metadata()
    for name in ("T", "U", SCHEDULE_TOPIC):
        metadata.apply(PutTopic(config=TopicConfig(name=name, read_queues=2, write_queues=2), timestamp_ms=1))
    times = itertools.count(1_700_000_000_000)
    log, store_host = Entry(), encode_host("127.0.0.1", 10911)
    appender = lone_appender(
        log,
        entry_bytes_max=4096,
        wall_clock_ms=lambda: next(times),
        disk_used=lambda: 0.0,
        uncommitted_bytes_max=2**26,
    )
    appender.open()
    tails = QueueTails(metadata, lambda topic, queue_id: QueueOffset(7))
    keys = UniqKeyGenerator(ip="127.0.0.1", pid=1, salt=1, wall_clock_ms=lambda: next(times))
    made = InternalMessages(
        appender=appender,
        unique_keys=keys,
        cluster="C",
        body_bytes_max=65536,
    )
    context = context_of(
        settings=broker_settings(Path("unused"), group="b"),
        metadata=metadata,
        store=None,  # no message is of a lite topic
        appender=appender,
        store_host=store_host,
        environment__access=None,
        environment__receive_into=None,
        replica__log=None,  # nothing is committed, so nothing is repeated
        queue_tails=tails,
        unique_keys=keys,
        internal_messages=made,
        rng=random.Random(1),
        wall_clock_ms=lambda: next(times),
    )
    dedup = Dedup(context)
    sends = Sends(
        context,
        placement=Placement(
            context,
            places=WaitingQueues(context),
            dedup=dedup,
            transactions=None,  # type: ignore[arg-type] # nothing is half a transaction
        ),
        dedup=dedup,
        retries=None,  # type: ignore[arg-type] # nothing goes to a retry topic
    )
    return log, appender, tails, sends


@given(st.lists(st.one_of(PLAIN, BATCHES, GROUPS), min_size=1, max_size=8))
@example([("batch", "T", 0, "TAGS\x01shared\x02", ["", "TAGS\x01own\x02"])])
@example([("batch", "T", 0, "RAFTMQ_PRODUCER\x01p\x02RAFTMQ_SEQUENCE\x015\x02", [""] * count) for count in (1, 3)])
@example(
    [(kind, "T", 0, "RAFTMQ_PRODUCER\x01p\x02RAFTMQ_SEQUENCE\x011\x02DELAY\x013", []) for kind in ("plain", "schedule")]
)
def test_annotation_of_the_leader_equals_the_records(
    items: list[tuple[str, str, int, str, list[str]]],
) -> None:
    log, appender, tails, sends = leader()
    for kind, topic, queue_id, text, elements in items:
        if kind in ("plain", "batch"):
            body = b"b"
            if kind == "batch":
                body = encode_batch([BatchedMessage(b"b", element) for element in elements])
            ext = send_ext(topic, e=queue_id, i=text, m=kind == "batch")
            frame = encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext={k: str(v) for k, v in ext.items()}, body=body)
            [(request, request_body, serialization)], _ = decode_chunk(frame)
            client: Any = Client()
            sent: Any = request
            try:
                sends.handle(Call(client, sent, request_body, serialization))
            except RequestRefused:
                continue
        else:
            tail = tails.get(SCHEDULE_TOPIC if kind == "schedule" else topic, queue_id)
            record = InternalRecord(
                tail=tail,
                body=b"b",
                properties=text.encode(),
                tag_code=tag_code_of(text.encode()),
                born_timestamp_ms=1,
                born_host=Client.host,
            )
            command = PendingCommand(encode_command(AdvanceDelay(level=1, offset=QueueOffset(1))))
            appender.add_atomically([record] if kind == "schedule" else [record, command])
    appender.start_round()
    for begin, body, annotation in log.entries:
        runs, commands = scan_runs(body, PhysicalOffset(begin))
        shipped: list[bytes] = []
        if annotation[0] == COMMANDS_FORMAT:
            shipped, annotation = split_commands(annotation, body)
            assert shipped
        sequenced: list[SequencedRecord] = []
        if annotation[0] == SEQUENCED_FORMAT:
            sequenced, annotation = split_sequenced(annotation)
            assert sequenced
        assert (decode_runs(annotation), shipped) == (runs, commands)
        assert sequenced == scan_sequenced(body)
