"""Header fields of requests as clients write them, and of replies as they read them."""

from __future__ import annotations

import msgspec
import pytest

from mq.protocol.errors import ReplyError
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES, decode_header
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import OffsetReply
from mq.protocol.requests.pop import PopReply
from mq.protocol.requests.pull import PullExt, PullReply
from mq.protocol.wire.encoding import encode_request
from mq.protocol.wire.reply import read_reply
from mq.protocol.wire.request import Ext, Request

REQUESTS = sorted((each for each in REQUEST_CLASSES if "ext" in each.__annotations__), key=lambda each: each.__name__)
VALUES = {str: "some text", bool: True, int: 7}


def made(request: type[Request], *, whole: bool) -> Ext:
    """The header fields of a request, with all fields or with those only that have no default."""
    [kind] = [each.type for each in msgspec.structs.fields(request) if each.name == "ext"]
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if whole or field.required:
            described = msgspec.inspect.type_info(field.type)
            if isinstance(described, msgspec.inspect.UnionType):
                [described] = [each for each in described.types if not isinstance(each, msgspec.inspect.NoneType)]
            match described:
                case msgspec.inspect.StrType():
                    values[field.name] = VALUES[str]
                case msgspec.inspect.BoolType():
                    values[field.name] = VALUES[bool]
                case _:
                    values[field.name] = VALUES[int]
    ext: Ext = kind(**values)
    return ext


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("request_class", REQUESTS, ids=lambda each: each.__name__)
def test_server_decodes_every_request_as_encoded(request_class: type[Request], whole: bool) -> None:
    ext = made(request_class, whole=whole)
    code = int(request_class.__struct_config__.tag)  # type: ignore[arg-type]
    frame = encode_request(code, 5, ext=ext.fields())
    [(serialization, header, _)], _ = split_frames(memoryview(frame))
    decoded = decode_header(serialization, header)
    assert serialization == JSON
    assert isinstance(decoded, request_class)
    assert decoded.ext == ext  # type: ignore[attr-defined]


def test_fields_are_text_by_wire_name_and_none_is_left_out() -> None:
    pull = PullExt(
        consumer_group="G",
        topic="T",
        queue_id=3,
        queue_offset=QueueOffset(2**40),
        max_messages=32,
        sys_flag=6,
        commit_offset=QueueOffset(0),
        suspend_timeout_ms=15_000,
        sub_version=1,
    )
    assert pull.fields() == {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "3",
        "queueOffset": str(2**40),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "1",
        "forwardOnly": "false",
    }


def test_replies_are_read_by_wire_name() -> None:
    fields = {"nextBeginOffset": "17", "suggestWhichBrokerId": "1", "minOffset": "0", "of a later release": "x"}
    assert read_reply(PullReply, fields) == PullReply(next_begin_offset=QueueOffset(17), suggested_broker_id=1)
    assert read_reply(PullReply, {"nextBeginOffset": "17"}).suggested_broker_id == 0
    popped = read_reply(PopReply, {"popTime": "5", "invisibleTime": "6", "reviveQid": "0"})
    assert (popped.pop_time_ms, popped.invisible_ms, popped.start_offset_info) == (5, 6, None)


def test_fields_of_a_reply_survive_encoding_and_decoding() -> None:
    reply = PopReply(pop_time_ms=5, invisible_ms=6, revive_queue=0, rest_num=2, start_offset_info="0 1 7")
    fields = reply.fields()
    assert fields == {
        "popTime": "5",
        "invisibleTime": "6",
        "reviveQid": "0",
        "restNum": "2",
        "startOffsetInfo": "0 1 7",
    }
    assert read_reply(PopReply, fields) == reply


@pytest.mark.parametrize("fields", [{}, {"offset": ""}, {"offset": "x"}, {"offset": "1.5"}, {"offset": str(2**63)}])
def test_reply_that_lacks_a_number_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(ReplyError, match=r"OffsetReply: .*offset"):
        read_reply(OffsetReply, fields)
