"""Typed headers: every request in both encodings, replies from templates against replies from the general encoder."""

from __future__ import annotations

import re

import msgspec
import pytest

from mq.protocol.codes import LANGUAGES, MQ_VERSION, RequestCode, ResponseCode
from mq.protocol.errors import HeaderError
from mq.protocol.frames import BINARY, JSON, split_frames
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES, decode_header
from mq.protocol.messages.records import encode_host
from mq.protocol.numbers import PhysicalOffset, QueueOffset
from mq.protocol.requests.send import SendMessage, SendMessageV2
from mq.protocol.wire.encoding import (
    SendReplyTemplate,
    encode_request,
    encode_response,
    encode_success,
    pull_response_header,
)
from mq.protocol.wire.request import Request

BINARY_CODE_MAX = 2**15 - 1
BY_NAME = sorted(REQUEST_CLASSES, key=lambda kind: kind.__name__)
EXAMPLES: dict[type, str | int | bool] = {str: "T-1 ünï\x01", int: 123456, bool: True}


def decoded(frame: bytes) -> tuple[Request | UnknownRequest | Response, bytes]:
    ((serialization, header, body),), consumed = split_frames(memoryview(frame))
    assert consumed == len(frame)
    return decode_header(serialization, header), bytes(body)


def example_of(kind: msgspec.inspect.Type) -> str | int | bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        kind = next(each for each in kind.types if not isinstance(each, msgspec.inspect.NoneType))
    match kind:
        case msgspec.inspect.StrType():
            return EXAMPLES[str]
        case msgspec.inspect.BoolType():
            return EXAMPLES[bool]
        case _:
            return EXAMPLES[int]


def wire_text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("kind", BY_NAME, ids=lambda kind: kind.__name__)
def test_every_field_of_every_request(kind: type[Request], serialization: int) -> None:
    code = int(kind.__struct_config__.tag)  # type: ignore[arg-type]
    if serialization == BINARY and code > BINARY_CODE_MAX:
        return
    assert RequestCode(code)
    ext_types = [each.type for each in msgspec.structs.fields(kind) if each.name == "ext"]
    expected: dict[str, object] = {}
    wire: dict[str, str] = {}
    for ext_type in ext_types:
        described = msgspec.inspect.type_info(ext_type)
        assert isinstance(described, msgspec.inspect.StructType)
        for each in described.fields:
            expected[each.name] = value = example_of(each.type)
            wire[each.encode_name] = wire_text(value)

    request, body = decoded(
        encode_request(code, 77, ext=wire or None, body=b"body", oneway=True, serialization=serialization)
    )

    assert type(request) is kind
    assert (request.code, request.opaque, request.flag, request.version) == (code, 77, 2, MQ_VERSION)
    assert (request.language, body) == ("PYTHON", b"body")
    if ext_types:
        assert msgspec.structs.asdict(request.ext) == expected  # type: ignore[attr-defined]


def test_handler_sees_both_send_requests_alike() -> None:
    short = {"a": "pg", "b": "T1", "c": "TBW102", "d": "4", "e": "-1", "f": "0", "g": "1", "h": "9", "n": "b-a"}
    long = {
        "producerGroup": "pg",
        "topic": "T1",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "-1",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "9",
        "bname": "b-a",
    }
    v2, _ = decoded(encode_request(RequestCode.SEND_MESSAGE_V2, 1, ext=short))
    v1, _ = decoded(encode_request(RequestCode.SEND_MESSAGE, 1, ext=long))
    assert isinstance(v2, SendMessageV2)
    assert isinstance(v1, SendMessage)
    assert msgspec.structs.asdict(v1.ext) == msgspec.structs.asdict(v2.ext)
    assert (v2.ext.queue_id, v2.ext.flag, v2.ext.properties, v2.ext.batch) == (-1, 9, "", False)


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
def test_unknown_request_keeps_its_fields(serialization: int) -> None:
    request, body = decoded(
        encode_request(31999, 5, ext={"some": "thing"}, body=b"x", language="GO", serialization=serialization)
    )
    assert request == UnknownRequest(
        code=31999, opaque=5, flag=0, version=MQ_VERSION, language="GO", ext={"some": "thing"}
    )
    assert body == b"x"


def test_request_code_above_16_bits_needs_json() -> None:
    request, _ = decoded(encode_request(RequestCode.POP_ROLLBACK, 5, ext={"topic": "T1"}))
    assert isinstance(request, UnknownRequest)
    assert request.code == 200056
    with pytest.raises(AssertionError, match="200056"):
        encode_request(RequestCode.POP_ROLLBACK, 5, serialization=BINARY)


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION])
def test_response_round_trip(code: ResponseCode, serialization: int) -> None:
    ext = {"offset": "5", "quoted": 'a"b\\c\x01'}
    response, body = decoded(
        encode_response(2**31 - 1, code, remark="wörds", ext=ext, body=b"xyz", serialization=serialization)
    )
    assert response == Response(
        code=code,
        opaque=2**31 - 1,
        flag=1,
        version=MQ_VERSION,
        language="PYTHON",
        remark="wörds",
        ext=ext,
    )
    assert body == b"xyz"


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("opaque", [0, 7, -(2**31), 2**31 - 1])
def test_bare_success_is_the_response_without_fields(opaque: int, serialization: int) -> None:
    wanted = encode_response(opaque, ResponseCode.SUCCESS, serialization=serialization)
    assert encode_success(opaque, serialization) == wanted


def test_response_has_all_fields_of_strict_clients() -> None:
    frame = encode_response(7, ResponseCode.SYSTEM_ERROR)
    header = msgspec.json.decode(frame[8:])
    assert header == {
        "code": 1,
        "flag": 1,
        "language": "PYTHON",
        "opaque": 7,
        "serializeTypeCurrentRPC": "JSON",
        "version": MQ_VERSION,
    }
    assert header["language"] in LANGUAGES
    assert b" " not in frame[8:], "some clients cut JSON text by hand"


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("key", ["0A0000010000", "", 'quo"te\\', "tab\t\x01", "中文", "100%", "%s%d"])
def test_send_reply_template_renders_response(key: str, serialization: int) -> None:
    template = SendReplyTemplate(encode_host("10.0.0.1", 10911))
    response, body = decoded(
        template.render(-5, 3, QueueOffset(2**40), PhysicalOffset(4096), key.encode(), serialization)
    )
    assert isinstance(response, Response)
    assert (response.code, response.opaque, response.flag, response.version) == (0, -5, 1, MQ_VERSION)
    wanted = {
        "msgId": "0A00000100002A9F0000000000001000",
        "queueId": "3",
        "queueOffset": str(2**40),
        "transactionId": key,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    if serialization == BINARY and not key:
        del wanted["transactionId"]  # an empty text is a null there
    assert response.ext == wanted
    assert body == b""


def test_send_reply_template_equals_the_general_encoder() -> None:
    fields = {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "msgId": "0A00000100002A9F0000000000001000",
        "queueId": "3",
        "queueOffset": "7",
        "transactionId": "KEY",
    }
    template = SendReplyTemplate(encode_host("10.0.0.1", 10911))
    assert template.render(5, 3, QueueOffset(7), PhysicalOffset(4096), b"KEY") == encode_response(5, 0, ext=fields)


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize("remark", [None, "FOUND", 'the topic "T" does not exist'])
def test_pull_response_header_equals_the_general_encoder(remark: str | None, serialization: int) -> None:
    body = b"records"
    head = pull_response_header(9, ResponseCode.PULL_NOT_FOUND, 10, 2, 30, 1, remark, len(body), serialization)
    fields = {"maxOffset": "30", "minOffset": "2", "nextBeginOffset": "10", "suggestWhichBrokerId": "1"}
    assert head + body == encode_response(
        9, ResponseCode.PULL_NOT_FOUND, remark=remark, ext=fields, body=body, serialization=serialization
    )


def test_incomplete_frame_of_a_chunk_is_kept() -> None:
    frames = [encode_request(34, opaque, body=bytes(opaque)) for opaque in range(5)]
    data = b"".join(frames)
    for end in range(len(data) + 1):
        cut, consumed = split_frames(memoryview(data)[:end])
        assert consumed == sum(map(len, frames[: len(cut)])), f"with {end} bytes"
        assert [len(body) for _, _, body in cut] == list(range(len(cut)))
        assert end - consumed < len(frames[len(cut)]) if len(cut) < len(frames) else end == consumed


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"bytesMax": "1e3"}, "the field bytesMax: '1e3' is not an integer"),
        ({"bytesMax": "true"}, "the field bytesMax: 'true' is not an integer"),
        ({"bodies": "maybe"}, "the field bodies: 'maybe' is neither true nor false"),
        ({"allowLeader": "1"}, "the field allowLeader: '1' is neither true nor false"),
        ({"waitMs": "1.0"}, "the field waitMs: '1.0' is not an integer"),
    ],
)
def test_bulk_requests_refuse_values_of_the_wrong_type(given: dict[str, str], reason: str, serialization: int) -> None:
    ext = {"topic": "T", "bytesMax": "1000"} | given
    with pytest.raises(HeaderError, match=f": {re.escape(reason)}$"):
        decoded(encode_request(RequestCode.BULK_READ, 1, ext=ext, serialization=serialization))
