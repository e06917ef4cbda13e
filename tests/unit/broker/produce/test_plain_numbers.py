"""Numbered sends in all forms of the send path: new ones are plain sends, and each number is stored once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.compiled import IS_COMPILED
from mq.protocol import properties as props
from mq.protocol.messages.records import decode_records
from mq.protocol.messages.sequencing import SEQUENCE_MAX
from mq.store.annotation import split_annotation
from mq.store.sequenced import scan_sequenced
from raftlog import Refusal
from tests.support.model_log import HOST
from tests.support.odd_properties import PROPERTIES
from tests.support.send_paths import FORMS, Broker, Connection, batched, compare, frame, properties

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

KEYED = {"UNIQ_KEY": "0A0B0C", "TAGS": "TagA"}


def numbered(number: object, producer: str = "p", **more: Any) -> bytes:
    """A message with a number; its body is the number."""
    text = properties(**KEYED, RAFTMQ_PRODUCER=producer, RAFTMQ_SEQUENCE=str(number))
    return frame(b"%b:%b" % (producer.encode(), str(number).encode()), i=text, **more)


def batch(first: object, count: int, producer: str = "p", *, shared: str = "", **more: Any) -> bytes:
    body = b"".join(batched(b"%d" % n, f"UNIQ_KEY\x01K{n}\x02") for n in range(count))
    text = shared + properties(RAFTMQ_PRODUCER=producer, RAFTMQ_SEQUENCE=str(first))
    return frame(body, i=text, m="true", **more)


def stored(broker: Broker) -> list[bytes]:
    return [record.body for _, body, _ in broker.log.framed for record in decode_records(body)]


SENDS = st.one_of(
    st.builds(
        numbered,
        st.integers(0, 9)
        | st.sampled_from(["007", "", "x", "1-2", SEQUENCE_MAX, SEQUENCE_MAX + 1, "9" * 19, "9" * 20]),
        st.sampled_from(["p", "p", "q", "x" * 64, "x" * 65, ""]),
        e=st.sampled_from("01"),
        b=st.sampled_from(["T", "T", "T", "Orders", "%DLQ%g"]),
        header=st.fixed_dictionaries({"opaque": st.integers(0, 99), "flag": st.sampled_from([0, 0, 0, 2])}),
    ),
    st.builds(
        batch,
        st.integers(0, 9) | st.sampled_from([SEQUENCE_MAX, SEQUENCE_MAX - 1, ""]),
        st.integers(0, 4),
        st.sampled_from(["p", "q"]),
        shared=st.sampled_from(["", "", "A\x01b\x02", "RAFTMQ_COPIED\x01true\x02", "RAFTMQ_SEQUENCE\x017\x02"]),
        header=st.fixed_dictionaries({"opaque": st.integers(0, 99), "flag": st.sampled_from([0, 0, 0, 2])}),
    ),
    st.builds(
        lambda text, more: frame(b"odd", i=text + more),
        PROPERTIES,
        st.sampled_from(["RAFTMQ_SEQUENCE\x015\x02", "RAFTMQ_PRODUCER\x01p\x02", properties(**KEYED)]),
    ),
    st.just(frame(b"plain")),
)


@settings(max_examples=300)
@given(st.lists(st.lists(SENDS, min_size=1, max_size=6).map(b"".join), max_size=6))
def test_numbered_sends_give_the_same_log_and_replies(chunks: list[bytes]) -> None:
    compare(chunks)


def test_both_fast_receivers_take_new_numbers() -> None:
    chunk = numbered(3) + numbered(4) + batch(5, 3) + numbered(8) + numbered(0, "q") + frame() + numbered(20)
    for form in ("compiled", "python"):
        broker, client = Broker(form=form), Connection(HOST)
        assert broker.receive(client, chunk) == broker.taken_plain == len(chunk), form
        assert broker.receive(client, numbered(21)) == len(numbered(21))
        broker.commit()
        assert client.received.count(b'"code":0') == 8, form
        assert broker.taken_plain == len(chunk) + len(numbered(21)), form


@pytest.mark.parametrize("form", FORMS)
def test_second_of_two_equal_numbers_waits_for_the_first(form: str) -> None:
    broker, client, other = Broker(form=form), Connection(HOST), Connection(HOST)
    broker.receive(client, numbered(1) + numbered(2) + numbered(2) + numbered(1))
    broker.receive(other, batch(1, 2) + numbered(2))
    broker.commit()
    assert stored(broker) == [b"p:1", b"p:2"]
    assert (len(client.served_again), len(other.served_again)) == (2, 2)
    for connection in (client, other):
        connection.received = b""
    broker.receive(client, numbered(1) + numbered(3))
    broker.commit()
    assert stored(broker) == [b"p:1", b"p:2", b"p:3"]
    assert client.received.count(b'"code":0') == 2
    assert broker.dedup.answer_count == 1


@pytest.mark.parametrize("form", FORMS)
def test_new_lower_number_is_stored_too(form: str) -> None:
    broker, client = Broker(form=form), Connection(HOST)
    broker.receive(client, numbered(5) + numbered(2) + numbered(5) + numbered(9))
    broker.receive(client, numbered(7) + numbered(7) + numbered(6))
    broker.commit()
    assert stored(broker) == [b"p:5", b"p:2", b"p:9", b"p:7", b"p:6"]


@pytest.mark.parametrize("form", FORMS)
def test_unstored_numbers_are_stored_when_sent_again(form: str) -> None:
    broker, client, other = Broker(form=form), Connection(HOST), Connection(HOST)
    broker.receive(client, numbered(1) + numbered(2) + batch(3, 2))
    broker.receive(other, numbered(2))
    broker.log.refusals.append(Refusal.DISK_FULL)
    assert not broker.appender.start_round()
    assert client.received.count(b"DISK_FULL") == 3
    assert len(other.served_again) == 1
    broker.dedup.check_invariants()
    assert broker.appender.pending_bytes == 0
    broker.receive(client, numbered(1) + numbered(2))
    broker.commit()
    assert stored(broker) == [b"p:1", b"p:2"]


@pytest.mark.parametrize("form", FORMS)
def test_end_of_leadership_returns_sends_and_their_waiting_repeats(form: str) -> None:
    broker, client, other = Broker(form=form), Connection(HOST), Connection(HOST)
    broker.receive(client, numbered(1) + numbered(2))
    broker.receive(other, numbered(2))
    broker.appender.close()
    assert (len(client.served_again), len(other.served_again)) == (2, 1)
    assert broker.appender.pending_bytes == 0


@pytest.mark.parametrize("form", FORMS)
def test_unknown_outcome_disconnects_senders_and_their_waiting_repeats(form: str) -> None:
    broker, client, other = Broker(form=form), Connection(HOST), Connection(HOST)
    broker.receive(client, numbered(1) + numbered(2))
    broker.receive(other, numbered(2))
    broker.appender.start_round()
    broker.appender.outcome_unknown(1)
    assert client.closed
    assert other.closed
    assert broker.appender.pending_bytes == 0
    broker.dedup.check_invariants()


@pytest.mark.parametrize("form", FORMS)
def test_sixteen_repeats_wait_for_each_message_of_a_block(form: str) -> None:
    broker, client = Broker(form=form), Connection(HOST)
    broker.receive(client, numbered(1) + numbered(2))
    for number in (1, 2):
        for _ in range(17):
            broker.receive(client, numbered(number))
    assert len(broker.refused) == 2
    broker.dedup.check_invariants()
    broker.commit()
    assert len(client.served_again) == 32
    bodies = [body for _, body in client.served_again]
    assert bodies == [b"p:1"] * 16 + [b"p:2"] * 16


def test_first_record_of_a_batch_has_its_numbers() -> None:
    for form in FORMS:
        broker = Broker(form=form)
        broker.receive(Connection(HOST), batch(5, 3, shared="A\x01b\x02") + batch(8, 1))
        broker.commit()
        found = [record.properties for _, body, _ in broker.log.framed for record in decode_records(body)]
        assert [each.get(props.SEQUENCE) for each in found] == ["5-7", None, None, "8"], form
        assert [each.get("A") for each in found] == ["b", "b", "b", None], form


def test_followers_apply_the_number_of_each_send() -> None:
    for form in FORMS:
        broker = Broker(form=form)
        broker.receive(Connection(HOST), numbered(1) + numbered(4) + batch(6, 2) + numbered(0, "q"))
        broker.commit()
        [(_, body, annotation)] = broker.log.framed
        shipped = split_annotation(annotation, body)[1]
        assert [(row.producer, row.first, row.last) for row in shipped] == [
            *(("p", 1, 1), ("p", 4, 4), ("p", 6, 7)),
            ("q", 0, 0),
        ], form
        assert shipped == scan_sequenced(body)


@pytest.mark.parametrize("form", FORMS)
def test_highest_numbers_of_all_are_stored(form: str) -> None:
    broker, client = Broker(form=form), Connection(HOST)
    broker.receive(client, numbered(SEQUENCE_MAX) + batch(SEQUENCE_MAX - 1, 2, "q") + batch(SEQUENCE_MAX, 1, "r"))
    broker.commit()
    assert stored(broker) == [b"p:%d" % SEQUENCE_MAX, b"0", b"1", b"0"]
    assert [broker.sequences.highest(producer) for producer in "pqr"] == [SEQUENCE_MAX] * 3
