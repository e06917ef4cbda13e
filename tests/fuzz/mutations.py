"""Changes inputs of the fuzzer: bytes anywhere, and fields of requests and records where they are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Final

from mq.protocol.messages.records import encode_record
from tests.fuzz.targets import CUT, RECORDS_AT
from tests.support.send_paths import batched, frame, properties

_TOKENS: Final = [
    *(b"UNIQ_KEY", b"TAGS", b"KEYS", b"WAIT", b"DELAY", b"TIMER_DELAY_MS", b"TRAN_MSG", b"POP_CK", b"a", b"extFields"),
    *(b"RAFTMQ_SEQUENCE", b"RAFTMQ_PRODUCER", b"RAFTMQ_SEQUENCE\\u00011\\u0002", b"RAFTMQ_COPIED"),
    *(b"\x01", b"\x02", b'"', b"\\u0001", b"\\", b"{", b"}", b":", b",", b"null", b"true", b"-1", b"007", b"1e3"),
    *(number.to_bytes(4, "big", signed=True) for number in (0, 1, -1, 2**31 - 1, -(2**31), 255, 65536, 0x01000000)),
    *(b"9" * 22, b"\xff", b"\xc3\xa9", b"\x80", CUT),
]
_VALUES: Final = [
    *("0", "1", "3", "4", "-1", "-0", "+1", "007", "1e3", "2147483647", "2147483648", "9223372036854775807", "9" * 22),
    *("", " 1", "true", "false", "x", "é", "T", "Orders", "Unknown", "UNIQ_KEY\x01A\x02TAGS\x01b", "48", "16"),
    *(properties(UNIQ_KEY="A", TAGS="b"), properties(UNIQ_KEY="A", DELAY="3"), properties(UNIQ_KEY="A", TAGS="é")),
    "UNIQ_KEY\x01A\x02TAGS\x01b\x02TAGS\x01c\x02UNIQ_KEY\x01B\x02",
    properties(UNIQ_KEY="k" * 300, KEYS="K" * 3000),
]
_HEADER_FIELDS: Final[dict[str, list[object]]] = {
    "code": [310, 320, 10, 34],
    "flag": [0, 1, 2, 3, -1],
    "opaque": [0, -1, 2**31, "1", None],
}


def mutated(target: str, data: bytes, others: Sequence[bytes], rng: random.Random) -> bytes:
    """``data`` with some changes; parts of ``others`` may be in it."""
    buffer = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if target == "sends" and rng.random() < 0.5:
            rng.choice(_CHANGES_OF_SENDS)(buffer, rng)
        else:
            rng.choice(_CHANGES_OF_BYTES)(buffer, rng)
        if others and rng.random() < 0.05:
            other = rng.choice(others)
            at = rng.randint(0, len(buffer))
            buffer[at:at] = other[rng.randint(0, len(other)) :]
    if target == "sends" and rng.random() < 0.7:
        _fit_lengths(buffer)
    return bytes(buffer[:_INPUT_BYTES_MAX])


_INPUT_BYTES_MAX: Final = 16 * 1024


def first_inputs(target: str) -> list[bytes]:
    """What the fuzzer begins with when it has no corpus."""
    if target == "sends":
        batch = b"".join(batched(b"body", f"UNIQ_KEY\x01K{n}\x02TAGS\x01t{n}\x02") for n in range(3))
        numbers = properties(RAFTMQ_PRODUCER="p", RAFTMQ_SEQUENCE="7")
        single = frame(i=properties(UNIQ_KEY="A") + numbers)
        return [
            single,
            single * 2,
            frame(batch, m="true", i=numbers),
            frame(),
            frame() * 3,
            frame(batch, m="true"),
            frame(batch, header={"code": 320}, m="true"),
        ]
    common = {"topic": "T", "queue_id": 1, "body": b"body", "queue_offset": 7, "born_timestamp_ms": 1}
    common |= {"store_timestamp_ms": 2, "properties": "UNIQ_KEY\x01A\x02"}
    inputs = []
    for host in (bytes(8), bytes(20)):
        both = bytearray()
        for _ in range(2):
            fields = common | {"born_host": host, "store_host": host, "physical_offset": RECORDS_AT + len(both)}
            both += encode_record(**fields)  # type: ignore[arg-type]
        inputs.append(bytes(both))
    return inputs


def _set_byte(buffer: bytearray, rng: random.Random) -> None:
    if buffer:
        buffer[rng.randrange(len(buffer))] = rng.choice([0, 1, 255, rng.randrange(256)])


def _flip_bit(buffer: bytearray, rng: random.Random) -> None:
    if buffer:
        buffer[rng.randrange(len(buffer))] ^= 1 << rng.randrange(8)


def _insert(buffer: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(buffer))
    buffer[at:at] = rng.choice(_TOKENS)


def _overwrite(buffer: bytearray, rng: random.Random) -> None:
    at, token = rng.randint(0, len(buffer)), rng.choice(_TOKENS)
    buffer[at : at + len(token)] = token


def _delete(buffer: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(buffer))
    del buffer[at : at + rng.choice([1, 2, 4, 8, 64, 1024])]


def _repeat(buffer: bytearray, rng: random.Random) -> None:
    at = rng.randint(0, len(buffer))
    buffer[at:at] = buffer[at : at + rng.choice([1, 4, 16, 256])] * rng.choice([1, 1, 2, 300])


def _add_to_number(buffer: bytearray, rng: random.Random) -> None:
    at, nbytes = rng.randint(0, len(buffer)), rng.choice([1, 2, 4])
    number = int.from_bytes(buffer[at : at + nbytes], "big") + rng.choice([-4, -2, -1, 1, 2, 4])
    buffer[at : at + nbytes] = (number % (1 << 8 * nbytes)).to_bytes(nbytes, "big")


_CHANGES_OF_BYTES: Final[list[Callable[[bytearray, random.Random], None]]] = [
    *(_set_byte, _flip_bit, _insert, _overwrite, _delete, _repeat, _add_to_number)
]


def _frames(buffer: bytearray) -> list[tuple[int, int]]:
    """Where each frame begins and ends, as far as the lengths are plausible."""
    frames, at = [], 0
    while at + 8 <= len(buffer):
        if buffer.startswith(CUT, at):
            at += len(CUT)
            continue
        end = at + 4 + int.from_bytes(buffer[at : at + 4], "big")
        if end > len(buffer):
            break
        frames.append((at, end))
        at = end
    return frames


def _set_field(buffer: bytearray, rng: random.Random) -> None:
    """Set, or remove, a field of a request."""
    frames = _frames(buffer)
    if not frames:
        return
    begin, end = rng.choice(frames)
    header_bytes = int.from_bytes(buffer[begin + 5 : begin + 8], "big")
    body = bytes(buffer[begin + 8 + header_bytes : end])
    try:
        header = json.loads(buffer[begin + 8 : begin + 8 + header_bytes])
        fields = dict(header["extFields"])
    except (ValueError, TypeError, KeyError):
        return
    if rng.random() < 0.3:
        name = rng.choice(sorted(_HEADER_FIELDS))
        header[name] = rng.choice(_HEADER_FIELDS[name])
    elif rng.random() < 0.1 and fields:
        del fields[rng.choice(sorted(fields))]
    else:
        fields[rng.choice("abcdefghijklmnop")] = rng.choice(_VALUES)
    header["extFields"] = fields
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=rng.random() < 0.8).encode()
    buffer[begin:end] = frame(body, raw=raw)


def _add_message(buffer: bytearray, rng: random.Random) -> None:
    """Add a message to the body of a request: a batch has one more."""
    frames = _frames(buffer)
    if frames:
        begin, end = rng.choice(frames)
        text = rng.choice([value for value in _VALUES if "\x01" in value] + [""])
        buffer[end:end] = message = batched(bytes(rng.randrange(40)), text, rng.choice([0, 0, -5]))
        buffer[begin : begin + 4] = (end - begin - 4 + len(message)).to_bytes(4, "big")


def _add_frame(buffer: bytearray, rng: random.Random) -> None:
    frames = _frames(buffer)
    _, end = rng.choice(frames) if frames else (0, 0)
    buffer[end:end] = (CUT if rng.random() < 0.3 else b"") + frame(bytes(rng.choice([0, 4, 1999, 2001])), e="2")


def _move_end(buffer: bytearray, rng: random.Random) -> None:
    """Make a request some bytes shorter or longer, so that lengths in its body lead beyond its end or stop short."""
    frames = _frames(buffer)
    if frames:
        begin, end = rng.choice(frames)
        change = rng.choice([-9, -4, -2, -1, 1, 2])
        if change < 0:
            del buffer[max(end + change, begin + 8) : end]
        else:
            buffer[end:end] = bytes(change)
        buffer[begin : begin + 4] = max(end - begin - 4 + change, 4).to_bytes(4, "big")


_CHANGES_OF_SENDS: Final[list[Callable[[bytearray, random.Random], None]]] = [
    *(_set_field, _set_field, _add_message, _add_frame, _move_end)
]


def _fit_lengths(buffer: bytearray) -> None:
    """Make the length of the last frame fit, after bytes were inserted into it or removed."""
    frames = _frames(buffer)
    begin = frames[-1][1] if frames else 0
    rest = buffer[begin:].split(CUT)[0]
    if len(rest) >= 8:
        buffer[begin : begin + 4] = (len(rest) - 4).to_bytes(4, "big")
