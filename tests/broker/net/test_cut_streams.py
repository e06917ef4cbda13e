"""A stream of mixed requests, cut at any byte: replies and log are those of the uncut stream, in both forms.

The compiled form receives plain sends itself and gives the rest of what it received to other code, so each byte may be
the border between them, the end of a receive, or both.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable
from typing import Any

import pytest

from mq.compiled import IS_COMPILED
from mq.protocol.frames import BINARY
from mq.protocol.wire.encoding import encode_request
from raftlog.net.reactor import RECEIVE_BYTES
from tests.support.cut_streams import ServedBroker, seen_of, served
from tests.support.send_paths import batched, frame, properties

FORMS = [
    pytest.param("compiled", marks=pytest.mark.skipif(not IS_COMPILED, reason="not compiled")),
    pytest.param("python"),
    pytest.param("handler"),
]
needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

BIG = 1 << 24


def plain(number: int, body: bytes = b"body") -> bytes:
    return frame(body, header={"opaque": number}, e=str(number % 4), i=properties(UNIQ_KEY=f"0A{number:04X}", TAGS="a"))


def query(opaque: int, **given: Any) -> bytes:
    return encode_request(30, opaque, ext={"topic": "T", "queueId": "0"}, **given)


def batch(opaque: int) -> bytes:
    messages = batched(b"one", properties(UNIQ_KEY="0B")) + batched(b"two", properties(UNIQ_KEY="0C"))
    return frame(messages, header={"code": 320, "opaque": opaque}, i="", m="true")


def pull(opaque: int) -> bytes:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*"}
    return encode_request(11, opaque, ext=fields)


def odd() -> list[bytes]:
    """Requests that are no plain sends, for as many reasons as there are."""
    return [
        query(100),
        query(101, serialization=BINARY),
        pull(102),
        frame(header={"opaque": 103}, i=properties(TAGS="a")),  # no unique key
        frame(header={"opaque": 104, "flag": 2}, i=properties(UNIQ_KEY="0D")),  # wants no answer
        frame(header={"opaque": 105}, b="Nowhere"),
        frame(header={"opaque": 106}, e="9"),
        frame(header={"opaque": 107, "code": 9990}),
        frame(raw=b"{}", body=b""),
        frame(b"", header={"opaque": 108}),
        encode_request(28, 109),
    ]


def mixed() -> bytes:
    """Plain sends with each of the others between two of them."""
    frames = [plain(1), batch(2), plain(3)]
    for number, other in enumerate(odd()):
        frames += [other, plain(10 + number)]
    return b"".join(frames)


def exactly(nbytes: int) -> bytes:
    """Plain sends of this size together."""
    empty = len(plain(1, b""))
    count = -(-nbytes // (empty + 1900))
    sizes = [nbytes // count + (number < nbytes % count) for number in range(count)]
    return b"".join(plain(1, b"y" * (size - empty)) for size in sizes)


STREAM = mixed()


@needs_compiled
def test_both_forms_store_and_answer_the_same() -> None:
    assert seen_of([STREAM], form="compiled") == seen_of([STREAM], form="handler")


def cuts_of(stream: bytes) -> list[int]:
    """Around each border of its frames, and some in between."""
    found, at = set(range(0, len(stream), 23)), 0
    while at < len(stream):
        length, word = struct.unpack_from(">II", stream, at)
        header_end = at + 8 + (word & 0xFFFFFF)
        found |= {*range(at, at + 10), *range(header_end - 2, header_end + 3)}
        at += 4 + length
    return sorted(cut for cut in found if cut <= len(stream))


def check_cuts(cuts: Iterable[int], form: str) -> None:
    whole = seen_of([STREAM], form=form)
    # Other sends come first, so that the compiled form receives what comes then.
    first = plain(0)
    after = seen_of([first, STREAM], form=form)
    for number, cut in enumerate(cuts):
        # Alternately from the beginning of the connection, and behind plain sends.
        pieces = [STREAM[:cut], STREAM[cut:]]
        if number % 2:
            assert seen_of(pieces, form=form) == whole, f"cut at {cut}"
        else:
            assert seen_of([first, *pieces], form=form) == after, f"cut at {cut}"


@pytest.mark.parametrize("form", FORMS)
def test_receiver_reads_a_stream_cut_around_frame_borders(form: str) -> None:
    check_cuts(cuts_of(STREAM), form)


@pytest.mark.nightly
@pytest.mark.parametrize("form", FORMS)
def test_receiver_reads_a_stream_cut_at_any_byte(form: str) -> None:
    check_cuts(range(len(STREAM) + 1), form)


@pytest.mark.parametrize("form", FORMS)
def test_sends_received_in_two_parts_are_stored_as_one(form: str) -> None:
    """Nothing but plain sends: the compiled form receives all of them, but for the frame that is cut."""
    stream = b"".join(plain(number) for number in range(4))
    whole = seen_of([plain(9), stream], form=form)
    for cut in range(len(stream) + 1):
        assert seen_of([plain(9), stream[:cut], stream[cut:]], form=form) == whole, f"cut at {cut}"


@pytest.mark.parametrize("form", FORMS)
def test_receiver_reads_a_stream_in_many_pieces(form: str) -> None:
    rng = random.Random(7)
    whole = seen_of([STREAM], form=form)
    assert seen_of([STREAM[at : at + 7] for at in range(0, len(STREAM), 7)], form=form) == whole
    for _ in range(60):
        cuts = sorted(rng.randrange(len(STREAM)) for _ in range(rng.randint(2, 12)))
        pieces = [STREAM[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert seen_of(pieces, form=form) == whole, f"cut at {cuts}"


@needs_compiled
@pytest.mark.parametrize("behind", [0, 1, 2], ids=["plain", "odd", "large"])
def test_receive_may_end_at_any_byte_of_a_frame(behind: int) -> None:
    """The buffer of a receive is full at each byte around the borders of a frame: prefix, header, body."""
    sample = [plain(7), query(8), plain(7, b"x" * 1900)][behind]
    header_end = 8 + int.from_bytes(sample[4:8], "big")
    borders = {*range(10), *range(header_end - 4, header_end + 5), *range(len(sample) - 5, len(sample) + 1)}
    for border in sorted(border for border in borders if border <= len(sample)):
        # Plain sends up to ``border`` bytes before the end of the buffer, then the sample across it, then more.
        room = RECEIVE_BYTES - border
        head = exactly(room)
        assert len(head) == room, f"{len(head)} bytes before the border, {room} are due"
        stream = head + sample + plain(9) + query(10) + plain(11)
        given: dict[str, Any] = {"uncommitted_bytes_max": BIG, "entry_bytes_max": BIG}
        first = plain(0)
        seen = seen_of([first, stream], form="compiled", **given)
        assert seen == seen_of([first, stream], form="handler", **given), f"a receive ends at byte {border}"


@pytest.mark.parametrize(
    "size", [RECEIVE_BYTES - 400, RECEIVE_BYTES, 2 * RECEIVE_BYTES, 128 * 1024, 5 * RECEIVE_BYTES + 1]
)
@needs_compiled
def test_frames_larger_than_a_receive_are_stored_between_sends(size: int) -> None:
    stream = plain(1) + plain(2, b"L" * size) + plain(3) + batch(4) + plain(5, b"M" * size) + query(6) + plain(7)
    given: dict[str, Any] = {"uncommitted_bytes_max": BIG, "entry_bytes_max": BIG, "body_bytes_max": BIG}
    whole = seen_of([plain(0), stream], form="handler", **given)
    assert seen_of([plain(0), stream], form="compiled", **given) == whole
    for cut in (1, 5, 9, len(plain(1)) + 3, len(plain(1)) + RECEIVE_BYTES, len(stream) - 3):
        assert seen_of([plain(0), stream[:cut], stream[cut:]], form="compiled", **given) == whole, f"cut at {cut}"


@pytest.mark.parametrize("form", FORMS)
def test_client_leaving_within_a_frame_has_stored_all_earlier_frames(form: str) -> None:
    stream = plain(1) + query(2) + plain(3) + plain(4)
    ends = [0, len(plain(1)), len(plain(1) + query(2)), len(plain(1) + query(2) + plain(3)), len(stream)]
    stored = [seen_of([stream[:end]], form=form)[0] for end in ends]
    for cut in cuts_of(stream):
        with served(form=form) as both:
            client = both.connect()
            both.write(client, stream[:cut])
            both.leave(client)
            assert both.connections[client].closed
            assert not both.broker.sends.receiver.fast_senders
            whole = max(number for number, end in enumerate(ends) if end <= cut)
            assert both.commit() == stored[whole], f"left at {cut}"


@pytest.mark.parametrize("form", FORMS)
def test_streams_of_clients_cut_anywhere_do_not_mix(form: str) -> None:
    """What is left of one client's frame is never taken for another's, although they share the receive buffer."""
    stream = plain(1) + plain(2)
    for cut in range(0, len(stream), 3):
        with served(form=form) as both:
            one, other = both.connect(), both.connect()
            for client in (one, other):
                both.write(client, plain(0))
            # Both are ready in the same turn: the cut frame of one lies before the whole frames of the other.
            both.clients[one].sendall(stream[:cut])
            both.clients[other].sendall(stream)
            both.write(one, b"")
            _until_read(both)
            both.write(one, stream[cut:])
            stored = both.commit()
            assert (stored[3], stored[2]) == (6, 0), f"cut at {cut}"
            replies = both.received(one), both.received(other)
            opaques = [_opaques(reply) for reply in replies]
            assert opaques == [[0, 1, 2], [0, 1, 2]], f"cut at {cut}"


def _until_read(both: ServedBroker) -> None:
    for _ in range(1000):
        both.turns()


def _opaques(data: bytes) -> list[int]:
    found: list[int] = []
    while data:
        length, header_bytes = struct.unpack(">II", data[:8])
        found.append(json.loads(data[8 : 8 + header_bytes])["opaque"])
        data = data[4 + length :]
    return found


@pytest.mark.parametrize("form", FORMS)
def test_replies_that_the_kernel_takes_in_parts_arrive_whole(form: str) -> None:
    """The client does not read: the socket fills in the middle of a reply, which goes on later."""
    count = 400
    # Small answers are taken whole or not at all, large ones in part.
    sizes = {number: 60_000 if number % 100 == 0 else 300 for number in range(0, count, 5)}
    queries = [query(number, body=b"q" * sizes[number]) if number in sizes else b"" for number in range(count)]
    stream = b"".join(plain(number) + queries[number] for number in range(count))
    given: dict[str, Any] = {"uncommitted_bytes_max": BIG, "commits_each_turn": True}
    seen: list[bytes] = []
    for size in (2048, 1 << 20):
        with served(form=form, **given) as both:
            client = both.connect(SO_SNDBUF=size, SO_RCVBUF=size)
            # One large answer that is alone in its turn: the first bytes of it are taken at once.
            for written in (query(count, body=b"q" * 200_000), stream):
                for at in range(0, len(written), 1777):
                    both.write(client, written[at : at + 1777])
            if size == 2048:
                assert both.unsent.nbytes, "everything fitted into the socket, so nothing was tried"
            seen.append(both.received(client, 1 + count + count // 5))
            assert not both.connections[client].closed
    assert sorted(_opaques(seen[0])) == sorted(_opaques(seen[1]))
    assert len(_opaques(seen[0])) == 1 + count + count // 5
