"""Every request of brokers and name servers, with each field set to invalid values, in both encodings."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES
from mq.protocol.wire.request import Request

_BINARY_CODE_MAX: Final = 2**15 - 1
_TESTED_ELSEWHERE: Final = {*(301, 302), *range(9012, 9018), *range(9019, 9024), *range(200070, 200080)}
"""Requests of filter servers, about schedules, pending and deleted messages, and lite topics."""

LONG = "x" * 20_000
TEXTS: Final = (
    *("", "../../x", "T/../x", "a\x01b\x02c", "\x00", LONG, "\u00e9\u4e2d\U0001f600", "%RETRY%", "%DLQ%G", "."),
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_raftmq_meta"),
    *(";;T;T;", "-1", "a = 1 AND", "(" * 500, "T@G", "+a=b,-c", "T" * 128),
)
NUMBERS: Final = (
    *("-1", "1", "1024", "32768", str(2**31 - 1), str(-(2**31)), str(2**31), str(2**63 - 1), str(-(2**63))),
    *(str(2**63), "9" * 400, "1.5", "x", ""),
)
FLAGS: Final = ("TRUE", "1", "x", "")
PLAIN: Final = {
    "topic": "T",
    "b": "T",
    "defaultTopic": "TBW102",
    "c": "TBW102",
    "clientID": "c1",
    "clientId": "nobody",  # requests relayed to an unresponsive client are tested elsewhere
    "subscription": "*",
    "expressionType": "TAG",
    "brokerAddr": "10.0.0.2:10911",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "commitOrRollback": "8",  # 0 is not answered
    "maxNum": "4",
    "maxMsgNums": "4",
    "msgId": "7F000001000000000000000000000000",
    "i": "",
    "properties": "",
}


def _text(value: object) -> bytes:
    return msgspec.json.encode(value)


BODIES: Final = (
    *(b"", b"{}", b"[]", b"null", b"\xff\x00", b"[" * 10_000, b'{"a":' * 10_000, b"a=b\nc", b"x" * 5000),
    _text({"clientID": "c2", "consumerDataSet": [{"groupName": "../G"}]}),
    _text({"clientID": "c2", "consumerDataSet": [{"groupName": "H", "subscriptionDataSet": [{"topic": "../T"}]}]}),
    b'{"clientID":"c2","consumerDataSet":[{"groupName":"H","subscriptionDataSet":[{"topic":"T","subVersion":%d}]}]}'
    % 10**30,
    _text({"consumerGroup": "H", "clientId": "c2", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": -1}]}),
    _text({"topicConfigList": [{"topicName": "../x"}]}),
    b'{"topicConfigList":[{"topicName":"N","readQueueNums":%d}]}' % 10**30,
    b'{"groupName":"H","brokerId":%d}' % 10**30,
    _text({"groupConfigList": [{"groupName": "../x"}]}),
    _text({"action": "add", "node": "../x", "address": "::::"}),
    _text({"subscriptionData": {"topic": "T", "subString": "(" * 5_000, "expressionType": "SQL92"}}),
    b'{"queueDatas":[{"brokerName":"b-a","readQueueNums":%d,"writeQueueNums":-1,"perm":99}]}' % 10**30,
    struct.pack(">iiiii", 100, 0, 0, 0, 0),
    struct.pack(">i", 2**31 - 1) + b"x" * 40,
    struct.pack(">i", -1) * 10,
)
"""Each is invalid for nearly every request."""


def all_requests(serialization: int) -> list[type[Request]]:
    """In the binary header: only codes that fit."""
    return sorted(
        (
            each
            for each in REQUEST_CLASSES
            if code_of(each) not in _TESTED_ELSEWHERE and (serialization != BINARY or code_of(each) <= _BINARY_CODE_MAX)
        ),
        key=lambda each: code_of(each),
    )


def code_of(request: type[Request]) -> int:
    return int(request.__struct_config__.tag)  # type: ignore[arg-type]


def variants(request: type[Request], rng: random.Random) -> Iterator[dict[str, str]]:
    """The header fields of one request: valid, and then with each of them invalid."""
    fields = next((each.type for each in msgspec.structs.fields(request) if each.name == "ext"), None)
    described: Any = msgspec.inspect.type_info(fields) if fields is not None else None
    values: dict[str, tuple[str, ...]] = {}
    plain: dict[str, str] = {}
    for field in described.fields if described is not None else ():
        kinds = getattr(field.type, "types", (field.type,))
        if any(isinstance(kind, msgspec.inspect.StrType) for kind in kinds):
            values[field.encode_name], usual = TEXTS, "G"
        elif any(isinstance(kind, msgspec.inspect.BoolType) for kind in kinds):
            values[field.encode_name], usual = FLAGS, "false"
        else:
            values[field.encode_name], usual = NUMBERS, "0"
        plain[field.encode_name] = PLAIN.get(field.encode_name, usual)
    yield plain
    for name, wrong in values.items():
        yield {other: value for other, value in plain.items() if other != name}
        for value in wrong:
            yield plain | {name: value}
    for _ in range(10 if values else 0):
        yield {name: rng.choice(wrong) for name, wrong in values.items()}


def asked(request: type[Request], rng: random.Random, serialization: int) -> Iterator[tuple[dict[str, str], bytes]]:
    every = list(variants(request, rng))
    # Half of them in each encoding; the bodies, which do not depend on it, in one.
    for at, fields in enumerate(every):
        if at % 2 == (serialization == BINARY):
            yield fields, rng.choice(BODIES)
    for body in BODIES if serialization == JSON else ():
        yield every[0], body
