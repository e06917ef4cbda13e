"""With accounts, released clients of RocketMQ may use every field of the headers that they have."""

from __future__ import annotations

from typing import Final

import pytest

from mq.protocol.access.expected_fields import unexpected
from mq.protocol.codes import RequestCode
from mq.protocol.frames import JSON
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.wire.encoding import encode_header

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
    assert unexpected(request, fields, b"", "broker-a") is None
    more = fields | {"zz": "1"}
    assert unexpected(request, more, b"", "broker-a") == "the field 'zz'"
