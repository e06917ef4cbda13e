"""The compiled handling of plain sends against its reference in Python: the same bytes for every chunk."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.broker.write_path.entry_builder import Entry, EntryBuilder
from mq.broker.write_path.queue_tails import QueueTail, TopicName
from mq.compiled import IS_COMPILED
from mq.protocol.numbers import QueueOffset
from mq.protocol.properties import PROPERTIES_BYTES_MAX, SENT_PROPERTIES_BYTES_MAX
from mq.protocol.wire.encoding import SendReplyTemplate
from raftlog import Refusal
from tests.support.model_log import HOST
from tests.support.odd_properties import PROPERTIES
from tests.support.send_paths import (
    BLOCK_BYTES_MAX,
    BODY_BYTES_MAX,
    FORMS,
    NOW_MS,
    TOPICS,
    Broker,
    Connection,
    batched,
    compare,
    frame,
    properties,
)

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

INTEGERS = "0 1 3 4 -1 -0 +1 007 1e3 1.0 2147483647 2147483648 -2147483648 9223372036854775807 999999999999999999"
VALUES = st.sampled_from([*INTEGERS.split(), "9" * 22, "", " 1", "true", "false", "TRUE", "x", "é", "-"])
FIELDS: dict[str, st.SearchStrategy[str]] = {
    "b": st.sampled_from(["T", "Orders", "Unknown", "%RETRY%g", "", "T\u00e9"]),
    "d": VALUES,
    "e": VALUES,
    "f": st.just("48") | VALUES,
    "g": VALUES,
    "h": VALUES,
    "i": PROPERTIES,
    "j": VALUES,
    "k": VALUES,
    "l": st.just("16") | VALUES,
    "m": VALUES,
    "n": st.just("broker-a"),
    "o": st.just("x"),
}
HEADER: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.sampled_from([0, 2, 1, 3, 4, -1]),
    "version": st.sampled_from([0, 2**31, -1, None]),
    "language": st.sampled_from(["GO", "", None, "é"]),
    "code": st.sampled_from([310, 320, 10, 34, 99999]),
    "opaque": st.sampled_from([0, -1, 2**31 - 1, 2**31, -(2**31)]),
    "remark": st.sampled_from(["", "r", None]),
}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A plain send in which one or two things may be odd: with more of them, nothing would be plain."""
    ext = {"e": draw(st.sampled_from("0123")), "i": properties(UNIQ_KEY=draw(st.sampled_from("ABC")), TAGS="T")}
    header: dict[str, Any] = {"opaque": draw(st.integers(0, 1000))}
    is_batch = draw(st.booleans())
    body = draw(st.binary(max_size=20)) if not is_batch else draw(BATCHES)
    if is_batch:
        ext |= {"m": "true", "i": draw(st.sampled_from(["", "WAIT\x01true", "UNIQ_KEY\x01Z\x02TAGS\x01b\x02\x02"]))}
        header["code"] = draw(st.sampled_from([310, 320]))
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(FIELDS)))
            ext[name] = draw(FIELDS[name])
        else:
            name = draw(st.sampled_from(sorted(HEADER)))
            header[name] = draw(HEADER[name])
    return frame(body, header=header, raw=None, **ext)


MESSAGES = st.builds(
    batched,
    st.binary(max_size=9) | st.just(b"x" * (BODY_BYTES_MAX // 3)),
    st.sampled_from(["UNIQ_KEY\x01A1\x02", "UNIQ_KEY\x01B2\x02TAGS\x01a", "UNIQ_KEY\x01C3\x02KEYS\x01k\x02"] * 3)
    | PROPERTIES,
    st.sampled_from([0, 0, -5]),
)
BATCHES = st.one_of(
    st.lists(MESSAGES, max_size=4).map(b"".join),
    st.lists(MESSAGES, min_size=1, max_size=2).map(lambda parts: b"".join(parts)[:-1]),
    st.binary(max_size=30),
)
FRAMES = frames()


@pytest.mark.slow
@settings(max_examples=400)
@given(st.lists(st.lists(FRAMES, max_size=6).map(b"".join), max_size=5))
def test_both_forms_give_the_same_log_and_replies(chunks: list[bytes]) -> None:
    compare(chunks)


@given(st.data())
def test_damaged_chunks_give_the_same_log_and_the_same_replies(data: st.DataObject) -> None:
    # A closed connection gets no reply in either form, but what came before the damage may have been stored: the
    # damaged frame is in a chunk of its own, which nothing comes before.
    damaged = bytearray(frame(b"body", n="b"))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.integers(0, 3)):
            case 0:
                damaged[at] = data.draw(st.integers(0, 255))
            case 1:
                del damaged[at : at + data.draw(st.integers(1, 8))]
            case 2:
                damaged[at:at] = data.draw(st.binary(min_size=1, max_size=8))
            case _:
                damaged[at:] = damaged[at:][: data.draw(st.integers(0, 20))]
        if not damaged:
            break
    compare([frame(), bytes(damaged), frame()])


def test_chunk_may_end_anywhere() -> None:
    frames = [frame(b"first", e="2"), frame(b"1"), frame(b"2")]
    chunk = b"".join(frames)
    ends = [len(b"".join(frames[:count])) for count in range(len(frames) + 1)]
    # All places around the border of two frames, and some of all others.
    for cut in sorted({*range(0, len(chunk), 9), *(end + more for end in ends for more in range(-9, 10))}):
        if 0 <= cut <= len(chunk):
            broker = compare([chunk[:cut]])
            assert broker.taken_plain == max(end for end in ends if end <= cut), f"cut at {cut}"


@pytest.mark.parametrize(
    "text",
    [
        properties(UNIQ_KEY="K", TAGS="a", X="TAGS"),
        properties(X="1UNIQ_KEY", UNIQ_KEY="K"),
        properties(UNIQ_KEY="K", TAGS="a", KEYS="1") + "TAGS\x01b\x02",
        properties(UNIQ_KEY="K", TAGS="a") + properties(UNIQ_KEY="L"),
        properties(UNIQ_KEY="K", TAGS="a") + properties(UNIQ_KEY="", TAGS=""),
        properties(UNIQ_KEY="", TAGS="") + properties(UNIQ_KEY="K", TAGS="a"),
        properties(UNIQ_KEY="K", TAGS="a") + "XTAGS\x01b\x02XUNIQ_KEY\x01b\x02",
        "XTAGS\x01a\x02" + properties(UNIQ_KEY="K", TAGS="b"),
        properties(UNIQ_KEY="") + "TAGS\x01\x02",
        properties(UNIQ_KEY="K-1"),
        "UNIQ_KEY\x01K",
        properties(UNIQ_KEY="K", TAGS="TIMER_DELAY"),
        properties(UNIQ_KEY="K", TAGS="x", Y="POP_CK") + "POP_CK\x01z\x02",
        properties(UNIQ_KEY="K") + "x" * (PROPERTIES_BYTES_MAX - 20),
        *(properties(UNIQ_KEY="K") + "x" * (SENT_PROPERTIES_BYTES_MAX + more) for more in range(-70, -54)),
        properties(UNIQ_KEY="K") + "x" * (PROPERTIES_BYTES_MAX + 1),
    ],
)
def test_both_forms_read_the_same_properties(text: str) -> None:
    compare([frame(i=text), frame(i=text, header={"opaque": 6})])


EXT = r'''"a":"P","b":"T","c":"D","d":"4","e":"0","f":"0","g":"1","h":"0"'''
KEY = r'''"i":"UNIQ_KEY\u0001K"'''


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "{}",
        '{"code":310}',
        '{"code":310,"code":310,"extFields":{},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + "," + KEY + "," + KEY + '},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + "," + KEY + '},"extFields":{},"flag":0,"opaque":1}',
        '{ "code":310,"extFields":{' + EXT + "," + KEY + '},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + "," + KEY + '},"flag":0,"opaque":1} ',
        '{"code":310,"extFields":{' + EXT + "," + KEY + '},"flag":0,"opaque":1}}',
        '{"opaque":1,"flag":0,"extFields":{' + KEY + "," + EXT + '},"code":310}',
        '{"code":310,"extFields":{'
        + EXT
        + r',"i":"UNIQ_KEY\u0001\u004b\u0002A\u0001\"\\\/\b\f\n\r\t"},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + r',"i":"UNIQ_KEY\u0001K\u00e9"},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + r',"i":"UNIQ_KEY\u0001K\ud83d"},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + r',"i":"UNIQ_KEY\x01K"},"flag":0,"opaque":1}',
        '{"code":310,"extFields":{' + EXT + ',"i":"UNIQ_KEY\x01K"},"flag":0,"opaque":1}',
    ],
)
def test_both_forms_read_the_same_headers(raw: str) -> None:
    compare([frame(raw=raw.encode())])


def test_common_sends_of_stock_clients_take_the_fast_path() -> None:
    chunk = b"".join(frame(b"%d" % n, e=str(n % 4), n="broker-a", l="16", header={"opaque": n}) for n in range(100))
    broker = compare([chunk])
    assert broker.taken_plain == len(chunk)


def test_sends_to_more_queues_than_a_block_knows_are_stored() -> None:
    chunk = b"".join(frame(b"", b="Orders", e=str(n)) for n in range(TOPICS["Orders"]))
    broker = compare([chunk])
    assert broker.taken_plain > 0


def test_end_of_leadership_returns_a_block_of_requests_whole() -> None:
    chunk = b"".join(frame(b"%d" % n, header={"opaque": n}) for n in range(3))
    seen = []
    for form in FORMS:
        broker, client = Broker(form=form), Connection(HOST)
        broker.receive(client, chunk)
        broker.appender.close()
        assert broker.appender.pending_bytes == 0
        assert broker.ends() == Broker(form="handler").ends()
        seen.append(client.served_again)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 3


def test_sends_are_refused_while_too_much_is_pending() -> None:
    broker, client = Broker(form="compiled", uncommitted_bytes_max=1000), Connection(HOST)
    for number in range(30):
        broker.receive(client, frame(b"x" * 100, header={"opaque": number}))
    assert broker.appender.pending_bytes < 1500
    assert len(broker.refused) > 20


@pytest.mark.parametrize("uncommitted_bytes_max", [0, 1, 333, 1000, 4000])
def test_flow_control_refuses_the_same_requests_of_a_chunk(uncommitted_bytes_max: int) -> None:
    chunk = b"".join(
        frame(
            batched(b"", "UNIQ_KEY\x01A\x02") * 3 if n % 4 == 3 else b"x" * n,
            m=str(n % 4 == 3).lower(),
            header={"opaque": n},
        )
        for n in range(40)
    )
    seen = []
    for form in FORMS:
        broker, client = Broker(form=form, uncommitted_bytes_max=uncommitted_bytes_max), Connection(HOST)
        results: list[object] = [
            broker.receive(client, chunk),
            broker.appender.pending_bytes,
            broker.appender.waiting_requests,
        ]
        results += [broker.commit(), broker.receive(client, chunk), broker.commit()]
        seen.append([results, broker.refused, client.received])
        assert broker.refused
    assert seen[0] == seen[1] == seen[2]


def test_limit_of_pending_bytes_may_have_more_than_64_bits() -> None:
    broker = Broker(form="compiled", uncommitted_bytes_max=2**64)
    assert broker.receive(Connection(HOST), frame()) == broker.taken_plain == len(frame())


def test_topic_without_queues_is_handled_by_python_receiver() -> None:
    broker = Broker(form="compiled")
    broker.writable["T"] = []
    assert broker.sends.take(cast("Any", Connection(HOST)), frame()) == 0


def test_full_disk_refuses_requests_of_a_block_and_drops_oneway_sends() -> None:
    three = batched(b"", "UNIQ_KEY\x01A\x02") * 3
    chunk = frame(b"1", header={"opaque": 1}) + frame(b"2", header={"opaque": 2, "flag": 2})
    chunk += frame(three, m="true", i="", header={"opaque": 3, "code": 320}) + frame(b"4", header={"opaque": 4})
    seen = []
    for form in FORMS:
        broker, clients = Broker(form=form), [Connection(HOST), Connection(HOST)]
        for client in clients * 2:
            assert broker.receive(client, chunk) == len(chunk)
        assert broker.appender.waiting_requests == 16
        broker.log.refusals.append(Refusal.DISK_FULL)
        assert not broker.appender.start_round()
        assert broker.appender.pending_bytes == broker.appender.waiting_requests == 0
        assert all(client.received.count(b"DISK_FULL") == 6 for client in clients)
        seen.append([broker.ends(), [client.received for client in clients]])
    assert seen[0] == seen[1] == seen[2]


def test_unready_replica_keeps_blocks_for_the_next_round() -> None:
    chunks = [b"".join(frame(b"%d" % n, header={"opaque": n}) for n in range(9)) for _ in range(3)]
    seen = []
    for form in FORMS:
        broker, client = Broker(form=form), Connection(HOST)
        for chunk in chunks:
            broker.receive(client, chunk)
        broker.log.refusals.append(Refusal.NOT_READY)
        assert not broker.appender.start_round()
        assert broker.appender.waiting_requests == 27
        seen.append([broker.commit(), client.received])
    assert seen[0] == seen[1] == seen[2]


def test_unknown_outcome_of_a_block_leaves_senders_without_an_answer() -> None:
    chunk = frame(header={"opaque": 1}) + frame(header={"opaque": 2})
    seen = []
    for form in FORMS:
        broker, clients = Broker(form=form), [Connection(HOST), Connection(HOST)]
        broker.receive(clients[0], chunk)
        broker.receive(clients[1], frame(header={"flag": 2}))
        broker.appender.start_round()
        broker.appender.outcome_unknown(1)
        seen.append([[client.closed for client in clients], broker.appender.pending_bytes])
    assert seen[0] == seen[1] == seen[2] == [["leadership was lost while a message was being stored", None], 0]


def test_topic_may_be_replaced_while_a_block_waits() -> None:
    chunk = b"".join(frame(b"%d" % n, e=str(n % 4), header={"opaque": n}) for n in range(8))
    seen = []
    for form in FORMS:
        broker, client = Broker(form=form), Connection(HOST)
        broker.receive(client, chunk)
        broker.sends.topic_changed("T")
        broker.writable["T"] = [QueueTail(TopicName("T"), n, QueueOffset(0)) for n in range(2)]  # made again, smaller
        broker.receive(client, chunk)
        seen.append([broker.commit(), broker.refused, client.received])
    assert seen[0] == seen[1] == seen[2]


def test_compiled_block_is_built_once() -> None:
    broker, sender = Broker(form="compiled"), cast("Any", Connection(HOST))
    chunk = frame()
    assert broker.sends.take(sender, chunk) == len(chunk)
    block = broker.appender.pending_items[0]
    builder = EntryBuilder(HOST, SendReplyTemplate(HOST), lambda: NOW_MS)
    builder.build([block], Entry(block.nbytes), 0)
    with pytest.raises(AssertionError, match="built once"):
        builder.build([block], Entry(block.nbytes), 0)


@pytest.mark.parametrize("extra", [-100, -16, -1, 0, 1, 5, 100])
def test_sends_around_the_end_of_a_block_match_the_reference(extra: int) -> None:
    probe, sender = Broker(form="compiled"), cast("Any", Connection(HOST))
    probe.sends.take(sender, frame(b""))
    record = probe.appender.pending_bytes
    count, rest = divmod(BLOCK_BYTES_MAX + extra, record + 900)
    chunk = frame(b"x" * 900) * (count - 1) + frame(b"y" * (900 + rest)) + frame(b"z") * 3
    assert compare([chunk]).taken_plain == len(chunk)


def test_empty_batch_behind_a_message_adds_nothing_to_its_queue() -> None:
    compare([frame(e="0") + frame(b"", header={"code": 320}, e="1", m="true", i="") + frame(e="2")])


@pytest.mark.parametrize("count", [1022, 1023, 1024, 1025, 1100])
def test_batches_around_the_message_limit_of_a_block_match_the_reference(count: int) -> None:
    tiny = batched(b"", "UNIQ_KEY\x01A\x02")
    sends = [frame(b"", header={"opaque": n}) for n in range(count)]
    compare([b"".join(sends)])
    seen = []
    for form in FORMS:
        each, client = Broker(form=form, body_bytes_max=1 << 20), Connection(HOST)
        each.receive(client, frame(tiny * 2, m="true", i="") + frame(tiny * count, m="true", i="") + frame())
        seen.append([each.commit(), each.refused, client.received])
    assert seen[0] == seen[1] == seen[2]


def test_entry_never_exceeds_its_size_limit() -> None:
    broker, client = Broker(form="compiled", entry_bytes_max=1000), Connection(HOST)
    chunk = b"".join(frame(b"x" * 100, header={"opaque": n}) for n in range(50))
    assert broker.receive(client, chunk) == broker.taken_plain == len(chunk)
    broker.commit()
    assert all(len(body) <= 1000 for _, body, _ in broker.log.framed)
    assert len(client.received) > 50 * 100
