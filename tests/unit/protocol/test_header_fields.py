"""Header fields of requests and replies as clients write and read them, those of released clients with accounts too."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from mq.protocol.access.expected_fields import unexpected_part
from mq.protocol.codes import RequestCode
from mq.protocol.errors import ReplyError
from mq.protocol.frames import JSON, split_frames
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES, decode_header
from mq.protocol.numbers import QueueOffset
from mq.protocol.requests.offsets import OffsetReply
from mq.protocol.requests.pop import PopReply
from mq.protocol.requests.pull import PullExt, PullReply
from mq.protocol.wire.encoding import encode_header, encode_request
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


def test_header_fields_have_wire_names_and_text_values() -> None:
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


_SEND: Final = (
    "batch bornTimestamp defaultTopic defaultTopicQueueNums flag maxReconsumeTimes producerGroup "
    "properties queueId reconsumeTimes sysFlag topic unitMode"
)
_SEND_V2: Final = "a b c d e f g h i j k l m n"
_PULL: Final = (
    "commitOffset consumerGroup expressionType liteTopic maxMsgBytes maxMsgNums proxyFrowardClientId "
    "queueId queueOffset requestSource subVersion subscription suspendTimeoutMillis sysFlag topic"
)

_FIELDS: Final = {
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: "beginTimestamp endTimestamp indexType key lastKey maxNum topic",
    RequestCode.QUERY_CONSUMER_OFFSET: "consumerGroup queueId setZeroIfNotFound topic",
    RequestCode.UPDATE_CONSUMER_OFFSET: "commitOffset consumerGroup queueId topic",
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        "attributes defaultTopic force order perm readQueueNums topic topicFilterType topicSysFlag writeQueueNums"
    ),
    RequestCode.GET_ALL_TOPIC_CONFIG: "dataVersion maxTopicNum topicSeq",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "boundaryType liteTopic queueId timestamp topic",
    RequestCode.GET_MAX_OFFSET: "committed queueId topic",
    RequestCode.GET_MIN_OFFSET: "queueId topic",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "queueId topic",
    RequestCode.VIEW_MESSAGE_BY_ID: "offset topic",
    RequestCode.UNREGISTER_CLIENT: "clientID consumerGroup producerGroup",
    RequestCode.CONSUMER_SEND_MSG_BACK: "delayLevel group maxReconsumeTimes offset originMsgId originTopic unitMode",
    RequestCode.END_TRANSACTION: (
        "commitLogOffset commitOrRollback fromTransactionCheck msgId producerGroup topic "
        "tranStateTableOffset transactionId"
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "dataVersion groupSeq maxGroupNum",
    RequestCode.GET_TOPIC_STATS_INFO: "topic",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumerGroup",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "producerGroup",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "cleanOffset groupName removeOffset",
    RequestCode.GET_CONSUME_STATS: "consumerGroup topic topicList",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topic",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "group isForce offset queueId timestamp topic",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "clientAddr group topic",
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "topic",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "group topic",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "clientId consumerGroup jstackEnable",
    RequestCode.QUERY_CORRECTION_OFFSET: "compareGroup filterGroups topic",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "brokerName clientId consumerGroup groupSysFlag msgId topic topicSysFlag",
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.CLONE_GROUP_OFFSET: "destGroup offline srcGroup topic",
    RequestCode.VIEW_BROKER_STATS_DATA: "statsKey statsName",
    RequestCode.GET_BROKER_CONSUME_STATS: "isOrder",
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.QUERY_CONSUME_QUEUE: "consumerGroup count index queueId topic",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "msgId topic",
    RequestCode.SEND_REPLY_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "group",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "group topic",
    RequestCode.GET_TOPIC_CONFIG: "topic",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "group",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "group readable topic",
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.RECALL_MESSAGE: "producerGroup recallHandle topic",
    RequestCode.AUTH_CREATE_USER: "username",
    RequestCode.AUTH_UPDATE_USER: "username",
    RequestCode.AUTH_DELETE_USER: "username",
    RequestCode.AUTH_GET_USER: "username",
    RequestCode.AUTH_LIST_USER: "filter",
    RequestCode.AUTH_CREATE_ACL: "subject",
    RequestCode.AUTH_UPDATE_ACL: "subject",
    RequestCode.AUTH_DELETE_ACL: "policyType resource subject",
    RequestCode.AUTH_GET_ACL: "subject",
    RequestCode.AUTH_LIST_ACL: "resourceFilter subjectFilter",
    RequestCode.POP_MESSAGE: (
        "attemptId bornTime consumerGroup exp expType initMode invisibleTime maxMsgNums order pollTime queueId topic"
    ),
    RequestCode.ACK_MESSAGE: "consumerGroup extraInfo liteTopic offset queueId topic",
    RequestCode.PEEK_MESSAGE: "consumerGroup maxMsgNums queueId topic",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (
        "consumerGroup extraInfo invisibleTime liteTopic offset queueId suspend topic"
    ),
    RequestCode.NOTIFICATION: "attemptId bornTime consumerGroup exp expType order pollTime queueId topic",
    RequestCode.POLLING_INFO: "consumerGroup queueId topic",
}
"""By request: the fields of its header class in the released Java clients 4.9.8, 5.3.3, 5.4.0 and 5.5.0."""

_OF_EVERY_REQUEST: Final = ("ns", "nsd", "oway", "lo", "AccessKey", "Signature", "SecurityToken")


@pytest.mark.parametrize("code", _FIELDS, ids=lambda code: code.name)
def test_fields_of_released_clients_are_expected(code: RequestCode) -> None:
    fields = dict.fromkeys((*_FIELDS[code].split(), *_OF_EVERY_REQUEST), "1") | {"bname": "broker-a"}
    if code in {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}:
        fields["n"] = "broker-a"
    request = decode_header(JSON, memoryview(encode_header(code, 1, 0, ext=fields)))
    assert unexpected_part(request, fields, b"", "broker-a") is None
    more = fields | {"zz": "1"}
    assert unexpected_part(request, more, b"", "broker-a") == "the field 'zz'"
