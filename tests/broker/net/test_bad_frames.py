"""What no client should send: an error code or a closed connection, one line in the log, and nobody else is hurt."""

from __future__ import annotations

import gc
import json
import struct
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from structlog.testing import capture_logs

from mq.broker.net.refusals import RequestRefused
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.errors import BodyError, HeaderError
from mq.protocol.frames import BINARY, JSON, encode_frame
from mq.protocol.requests.clients import ConsumerData, HeartbeatData
from mq.protocol.wire.encoding import encode_response
from tests.support.running_broker import LONG_NAMES, broker_client, properties, pull_ext, running, send_ext

LARGE_INT = str(2**31)
LARGE_LONG = str(2**63)


class Fatal(NamedTuple):
    """Bytes that end a connection."""

    what: str
    data: bytes


class BadFrame(NamedTuple):
    """A request with opaque 7 that is answered with a code, and how the remark must name the fault."""

    what: str
    data: bytes
    code: int
    remark: str


def json_request(code: object, ext: dict[str, Any] | str | None, body: bytes = b"", **given: Any) -> bytes:
    """A frame whose header has exactly these values, whatever they are."""
    fields = _object(ext) if isinstance(ext, dict) else ext
    header = {"code": code, "flag": 0, "language": '"JAVA"', "opaque": 7, "version": 409} | given
    if fields is not None:
        header["extFields"] = fields
    return encode_frame(JSON, _object(header).encode(), body)


def _object(values: dict[str, Any]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + "}"


def quoted(ext: dict[str, Any], **given: str | None) -> dict[str, str]:
    """Fields as JSON texts; one that is given as None is left out, others are raw JSON."""
    fields = {name: f'"{str(value).lower() if isinstance(value, bool) else value}"' for name, value in ext.items()}
    return {name: value for name, value in (fields | given).items() if value is not None}


def binary_header(*, remark_bytes: int = 0, ext: bytes = b"", ext_bytes: int | None = None, code: int = 11) -> bytes:
    fixed = struct.pack(">hBhiii", code, 0, 409, 7, 0, remark_bytes)
    return fixed + struct.pack(">i", len(ext) if ext_bytes is None else ext_bytes) + ext


HTTP = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
DEEP = b"[" * 10_000
DEEP_OBJECTS = b'{"a":' * 10_000

TLS_CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(194)

FATAL = [
    Fatal("TLS", TLS_CLIENT_HELLO),
    Fatal("length zero", struct.pack(">ii", 0, 0)),
    Fatal("length too small for a prefix", struct.pack(">ii", 3, 0)),
    Fatal("length -1", struct.pack(">ii", -1, 0)),
    Fatal("least length", struct.pack(">ii", -(2**31), 0)),
    Fatal("greatest length", struct.pack(">ii", 2**31 - 1, 0)),
    Fatal("greatest length, and nothing else", struct.pack(">i", 2**31 - 1)),
    Fatal("a byte more than allowed", struct.pack(">ii", 16 * 1024 * 1024 + 1, 10)),
    Fatal("header longer than its frame", struct.pack(">ii", 10, 7) + b"{}" * 10),
    Fatal("header of 300 KiB", struct.pack(">ii", 400 * 1024, 300 * 1024)),
    Fatal("unknown header encoding", struct.pack(">II", 12, 2 << 24 | 8) + b'{"code":'),
    Fatal("another unknown header encoding", struct.pack(">II", 12, 0xFF << 24 | 8) + b'{"code":'),
    Fatal("header that is no JSON", encode_frame(JSON, b"certainly no JSON")),
    Fatal("header that ends early", encode_frame(JSON, b'{"code":10,"opaque":7')),
    Fatal("empty header", encode_frame(JSON, b"")),
    Fatal("header that is an array", encode_frame(JSON, b"[1,2]")),
    Fatal("header that is null", encode_frame(JSON, b"null")),
    Fatal("header of 10,000 arrays", encode_frame(JSON, DEEP)),
    Fatal("header of 10,000 objects", encode_frame(JSON, DEEP_OBJECTS)),
    Fatal("ext field of 10,000 arrays", encode_frame(JSON, b'{"code":28,"opaque":7,"extFields":{"x":' + DEEP)),
    Fatal("closed arrays, too", encode_frame(JSON, b'{"code":28,"x":' + DEEP + b"]" * 10_000 + b"}")),
    Fatal("empty binary header", encode_frame(BINARY, b"")),
    Fatal("binary header of 20 bytes", encode_frame(BINARY, binary_header()[:20])),
    Fatal("another protocol", HTTP),
    Fatal("garbage", bytes(range(255, 0, -1)) * 40),
    Fatal("zeros", bytes(100)),
    Fatal("a good frame, then a bad one", json_request(28, None) + HTTP),
]

SEND = send_ext("T")
LONG_SEND = {LONG_NAMES[name]: value for name, value in SEND.items()}
PULL = pull_ext()

REFUSED = [
    *(
        BadFrame(f"V2 without {name}", json_request(310, quoted(SEND, **{name: None})), 1, name)
        for name in ("a", "b", "c", "d", "e", "f", "g", "h")
    ),
    *(
        BadFrame(f"send without {name}", json_request(10, quoted(LONG_SEND, **{name: None})), 1, name)
        for name in ("producerGroup", "topic", "queueId", "bornTimestamp")
    ),
    *(
        BadFrame(f"pull without {name}", json_request(11, quoted(PULL, **{name: None})), 1, name)
        for name in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "subVersion")
    ),
    BadFrame("no ext fields", json_request(310, None), 1, ""),
    BadFrame("null for ext fields", json_request(310, "null"), 1, ""),
    BadFrame("ext fields that are an array", json_request(310, "[]"), 1, ""),
    BadFrame("ext fields that are text", json_request(310, '"x"'), 1, ""),
    BadFrame("null for a number", json_request(310, quoted(SEND, e="null")), 1, "e"),
    BadFrame("text for a number", json_request(310, quoted(SEND, e='"four"')), 1, "e"),
    BadFrame("nothing for a number", json_request(310, quoted(SEND, e='""')), 1, "e"),
    BadFrame("a fraction", json_request(310, quoted(SEND, e='"1.5"')), 1, "e"),
    BadFrame("too large for 32 bits", json_request(310, quoted(SEND, e=f'"{LARGE_INT}"')), 1, "e"),
    BadFrame("too small for 32 bits", json_request(310, quoted(SEND, e=f'"-{2**31 + 1}"')), 1, "e"),
    BadFrame("too large without quotes", json_request(310, quoted(SEND, e=LARGE_INT)), 1, "e"),
    BadFrame("too large for 64 bits", json_request(11, quoted(PULL, queueOffset=f'"{LARGE_LONG}"')), 1, "queueOffset"),
    BadFrame("endless number", json_request(310, quoted(SEND, g='"' + "9" * 5000 + '"')), 1, "g"),
    BadFrame("a list as a value", json_request(310, quoted(SEND, b='["T"]')), 1, ""),
    BadFrame("an object as a value", json_request(310, quoted(SEND, b="{}")), 1, ""),
    BadFrame("300 ext fields, strange header", json_request('"28"', {f"x{n}": '"1"' for n in range(300)}), 1, "300"),
    BadFrame("code too large", json_request(LARGE_INT, None), 1, "code"),
    BadFrame("code that is text", json_request('"send"', None), 1, "code"),
    BadFrame("code that is null", json_request("null", None), 1, "code"),
    BadFrame("flag that is text", json_request(310, quoted(SEND), flag='"x"'), 1, "flag"),
    BadFrame("long remark", encode_frame(BINARY, binary_header(remark_bytes=100)), 1, "remark"),
    BadFrame("remark below zero", encode_frame(BINARY, binary_header(remark_bytes=-1)), 1, "remark"),
    BadFrame("ext fields outside", encode_frame(BINARY, binary_header(ext_bytes=1)), 1, "ext fields"),
    BadFrame("ext fields below zero", encode_frame(BINARY, binary_header(ext_bytes=-1)), 1, "ext fields"),
    BadFrame("name that is cut off", encode_frame(BINARY, binary_header(ext=b"\x00")), 1, "ext fields"),
    BadFrame("name outside", encode_frame(BINARY, binary_header(ext=b"\x00\x09ab")), 1, "ext text"),
    BadFrame("name below zero", encode_frame(BINARY, binary_header(ext=b"\xff\xffab")), 1, "ext text"),
    BadFrame("value outside", encode_frame(BINARY, binary_header(ext=b"\x00\x01a\x7f\xff\xff\xff")), 1, "ext text"),
    BadFrame("no fields in binary", encode_frame(BINARY, binary_header()), 1, "consumerGroup"),
]  # fmt: skip

UNSERVED = [
    BadFrame("unknown code", json_request(99_999, None), 3, "99999"),
    BadFrame("unknown code with anything", json_request(-5, {"x": '"1"'}, bytes(1000)), 3, "-5"),
    BadFrame("unknown code in binary", encode_frame(BINARY, binary_header(code=9999)), 3, "9999"),
    BadFrame("name server's code", json_request(105, {"topic": '"T"'}), 3, "105"),
    BadFrame("known code that is not served", json_request(216, {"topic": '"T"'}), 3, "216"),
    BadFrame("body too long", json_request(310, quoted(SEND), bytes(4097)), 13, "4097"),
    BadFrame(
        "properties too long",
        json_request(310, quoted(SEND, i=json.dumps(properties(KEYS="k" * 32_768)))),
        13,
        "29696",
    ),
]

ODD = [
    ("numbers without quotes", json_request(310, quoted(SEND, e="0", d="4", g="5"))),
    ("numbers with sign and zeros", json_request(310, quoted(SEND, e='"+0"', d='"0004"'))),
    ("booleans without quotes", json_request(310, quoted(SEND, k="false", m="false"))),
    ("null where a default is", json_request(310, quoted(SEND, i="null", j="null"))),
    ("code as text", json_request('"310"', quoted(SEND))),
    ("unknown fields", json_request(310, quoted(SEND, zz='"1"'), what="[1,{}]")),
    ("unknown language", json_request(310, quoted(SEND), language='"COBOL"')),
    ("white space", encode_frame(JSON, b' { "code" : 28 , "opaque" : 7 }\r\n ')),
    ("no flag, no version", encode_frame(JSON, b'{"code":28,"opaque":7}')),
]


def about_clients(log: Iterable[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    """The lines about clients: what a broker that has just started says of itself may come in between."""
    return [line for line in log if "client" in line]


async def test_malformed_frames_close_only_their_own_connection(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with running(tmp_path) as broker:
            witness = await broker.connect()
            for case in FATAL:
                log.clear()
                client = await broker.connect()
                await client.stream.send_all(case.data)
                assert await client.closed(), case.what
                lines = about_clients(log)
                assert [line["event"] for line in lines] == ["bad_frame"], (case.what, log)
                assert lines[0]["log_level"] == "warning"
                assert lines[0]["error"], case.what
                assert ("TLS" in lines[0]["error"]) == (case.what == "TLS"), lines[0]["error"]
                assert await witness.alive(), case.what


async def test_unreadable_requests_are_answered(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with running(tmp_path) as broker:
            witness = await broker.connect()
            await witness.create_topic("T", 1)
            last_index = (await witness.info())["raftmq.lastIndex"]
            for case in REFUSED:
                log.clear()
                client = await broker.connect()
                await client.stream.send_all(case.data)
                answer = await client.answer(7)
                assert (answer.code, case.remark in str(answer.remark)) == (case.code, True), (case.what, answer)
                lines = about_clients(log)
                assert [line["event"] for line in lines] == ["bad_header"], (case.what, log)
                assert lines[0]["reason"] == answer.remark
                assert await client.alive(), case.what
                assert await witness.alive(), case.what
            assert (await witness.info())["raftmq.lastIndex"] == last_index


async def test_unsupported_requests_are_answered(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with running(tmp_path, message_bytes_max=4096) as broker:
            witness = await broker.connect()
            await witness.create_topic("T", 1)
            last_index = (await witness.info())["raftmq.lastIndex"]
            for case in UNSERVED:
                log.clear()
                client = await broker.connect()
                await client.stream.send_all(case.data)
                answer = await client.answer(7)
                assert (answer.code, case.remark in str(answer.remark)) == (case.code, True), (case.what, answer)
                await client.stream.send_all(case.data)
                assert (await client.answer(7)).code == case.code, case.what
                # A client that asks once asks always, and the log is to stay readable.
                lines = about_clients(log)
                assert [line["event"] for line in lines] == ["request_refused"], (case.what, log)
                assert lines[0]["reason"] == answer.remark
                assert await client.alive(), case.what
                assert await witness.alive(), case.what
            assert (await witness.info())["raftmq.lastIndex"] == last_index


async def test_unusual_but_valid_requests_are_served(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with broker_client(tmp_path, queues=1) as client:
            log.clear()
            for what, data in ODD:
                await client.stream.send_all(data)
                assert (await client.answer(7)).code == ResponseCode.SUCCESS, what
            assert about_clients(log) == []


async def test_refused_requests_are_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """It comes seldom: until then, refused requests with large headers took a gigabyte and more."""

    def kept() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, HeaderError | RequestRefused | BodyError)]

    async with broker_client(tmp_path, queues=1, message_bytes_max=4096) as client:
        gc.collect()
        gc.disable()
        gc.freeze()  # what is there already need not be looked through for each case
        try:
            for case in (*REFUSED, *UNSERVED):
                await client.stream.send_all(case.data)
                await client.answer(7)
                assert kept() == [], case.what
        finally:
            gc.enable()


async def test_broker_ignores_unexpected_answers(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with broker_client(tmp_path) as client:
            assert await client.alive()
            log.clear()
            client.order.clear()
            for serialization in (JSON, BINARY):
                for code in (0, 1, 310):
                    await client.stream.send_all(encode_response(5, code, body=b"x", serialization=serialization))
            assert await client.alive()
            assert len(client.order) == 1
            assert [line["event"] for line in about_clients(log)] == ["unexpected_response"]


async def test_broker_cleans_up_a_connection_that_ends_within_a_frame(tmp_path: Path) -> None:
    whole = json_request(310, quoted(SEND), b"body")
    with capture_logs() as log:
        async with running(tmp_path) as broker:
            witness = await broker.connect()
            await witness.create_topic("T", 1)
            log.clear()
            for cut in (1, 3, 4, 7, 8, 9, 50, len(whole) - 1):
                client = await broker.connect()
                await client.stream.send_all(whole[:cut])
                await client.stream.aclose()
            await witness.wait_for(lambda info: info["raftmq.connections"] == "1")
            assert about_clients(log) == []  # a client may die at any time
            assert await witness.offset(RequestCode.GET_MAX_OFFSET) == 0


async def test_broker_drops_and_cleans_up_a_client_that_does_not_read(tmp_path: Path) -> None:
    with capture_logs() as log:
        async with running(tmp_path, client_unread_replies_bytes_max=1024 * 1024) as broker:
            witness, client = await broker.connect(), await broker.connect()
            await witness.create_topic("T", 2)
            await witness.send(body=bytes(1024 * 1024))
            await client.heartbeat("c0", "G")
            log.clear()
            pulls = [client.frame(RequestCode.PULL_MESSAGE, pull_ext())[1] for _ in range(20)]
            held = client.frame(RequestCode.PULL_MESSAGE, pull_ext(queue_id=1, sysFlag=6))[1]
            heartbeat = client.frame(RequestCode.HEART_BEAT, body=_heartbeat())[1]
            await client.stream.send_all(b"".join([*pulls, held, heartbeat]))
            await witness.wait_for(lambda info: info["raftmq.connections"] == "1")
            assert [line["event"] for line in about_clients(log)] == ["client_too_slow"]
            assert (await witness.info())["raftmq.heldPulls"] == "0"
            answer = await witness.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"})
            assert answer.code == ResponseCode.SYSTEM_ERROR


def _heartbeat() -> bytes:
    return HeartbeatData(client_id="c1", consumers=[ConsumerData(group="G")]).encode()
