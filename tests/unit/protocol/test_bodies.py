"""Bodies: samples of stock nodes in, text that every client can read out, and Java's dialect."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq.protocol.errors import BodyError
from mq.protocol.messages.batch import BatchedMessage, decode_batch, encode_batch
from mq.protocol.requests.broker import KVTable
from mq.protocol.requests.clients import ConsumerData, ConsumerList, HeartbeatData, ProducerData, SubscriptionData
from mq.protocol.requests.namesrv import BrokerData, ClusterInfo, QueueData, Route
from mq.protocol.requests.registration import RegisterBrokerBody
from mq.protocol.requests.topics import DataVersion, TopicConfig, TopicConfigTable, TopicList
from mq.protocol.wire import fastjson

steady = settings(derandomize=True, deadline=None)

ROUTE = Route(
    queue_datas=[QueueData("b-a", 4, 4, 6)],
    broker_datas=[BrokerData("b-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}, "c1")],
)
ROUTE_TEXT = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"b-a","cluster":"c1",'
    b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"b-a","perm":6,'
    b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
HEARTBEAT_TEXT = (
    b'{"clientID":"10.0.0.9@123","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"cg","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[65,66],"expressionType":"TAG","subString":"A||B",'
    b'"subVersion":1600000000000,"tagsSet":["A","B"],"topic":"T1"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"pg"}]}'
)
TABLE_TEXT = (
    b'{"dataVersion":{"counter":3,"timestamp":1600000000000},"topicConfigTable":{"T1":{"order":false,"perm":6,'
    b'"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T1","topicSysFlag":0,"writeQueueNums":8}}}'
)


def test_route_matches_the_java_encoding() -> None:
    assert ROUTE.encode() == ROUTE_TEXT
    assert Route.decode(ROUTE_TEXT) == ROUTE
    as_java = ROUTE_TEXT.replace(b'{"0":', b"{0:").replace(b'"1":', b"1:")
    assert Route.decode(as_java) == ROUTE
    with_order = Route(order_topic_conf="b-a:4")
    assert b'"orderTopicConf":"b-a:4"' in with_order.encode()
    assert Route.decode(with_order.encode()).order_topic_conf == "b-a:4"


def test_cluster_info_matches_the_java_encoding() -> None:
    info = ClusterInfo(brokers={"b-a": BrokerData("b-a", {0: "10.0.0.1:10911"}, "c1")}, clusters={"c1": ["b-a"]})
    assert info.encode() == (
        b'{"brokerAddrTable":{"b-a":{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"b-a","cluster":"c1",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"c1":["b-a"]}}'
    )
    assert ClusterInfo.decode(info.encode().replace(b'{"0":', b"{0:")) == info


def test_heartbeat_matches_the_java_encoding() -> None:
    heartbeat = HeartbeatData(
        client_id="10.0.0.9@123",
        consumers=[
            ConsumerData(
                group="cg",
                subscriptions=[
                    SubscriptionData(
                        topic="T1", expression="A||B", tags=("A", "B"), codes=(65, 66), version=1600000000000
                    )
                ],
            )
        ],
        producers=[ProducerData("pg")],
    )
    assert heartbeat.encode() == HEARTBEAT_TEXT
    assert HeartbeatData.decode(HEARTBEAT_TEXT) == heartbeat
    as_go = HEARTBEAT_TEXT.replace(b"[65,66]", b'["65","66"]')
    assert HeartbeatData.decode(as_go) == heartbeat


@pytest.mark.parametrize(
    "text",
    [
        b'{"clientID":"c"}',
        b'{"clientID":"c","consumerDataSet":null,"producerDataSet":null}',
        b'{"clientID":"c","consumerDataSet":[],"heartbeatFingerprint":0,"withoutSub":false,"new":{"a":[1]}}',
    ],
)
def test_heartbeat_with_missing_fields_is_decoded(text: bytes) -> None:
    heartbeat = HeartbeatData.decode(text)
    assert (heartbeat.client_id, list(heartbeat.consumers), list(heartbeat.producers)) == ("c", [], [])


def test_small_bodies_are_encoded_as_java_does() -> None:
    assert TopicList(["T1"]).encode() == b'{"topicList":["T1"]}'
    assert TopicList.decode(b'{"brokerAddr":"a:1","topicList":["T1"]}').broker_addr == "a:1"
    assert KVTable({"k": "v"}).encode() == b'{"table":{"k":"v"}}'
    assert ConsumerList(["c1", "c2"]).encode() == b'{"consumerIdList":["c1","c2"]}'
    assert ConsumerList.decode(b'{"consumerIdList":["c1"]}').consumer_ids == ["c1"]


def test_topic_table_of_java_is_decoded() -> None:
    table = TopicConfigTable.decode(TABLE_TEXT)
    assert table.data_version == DataVersion(3, 1600000000000)
    assert table.topics == {"T1": TopicConfig("T1", 4, 8, 6)}


REGISTRATION = RegisterBrokerBody(
    topics={"T1": TopicConfig("T1", 4, 8, 6, attributes={"message.type": "a b"}), "T2": TopicConfig("T2", 1, 1, 4)},
    data_version=DataVersion(3, 1600000000000, 7),
    filter_servers=["10.0.0.1:30000"],
)


def test_registration_in_both_forms() -> None:
    assert RegisterBrokerBody.decode(REGISTRATION.encode()) == REGISTRATION
    assert RegisterBrokerBody.decode(memoryview(REGISTRATION.encode_compressed()), compressed=True) == REGISTRATION
    plain = b'{"filterServerList":[],"topicConfigSerializeWrapper":' + TABLE_TEXT + b"}"
    assert RegisterBrokerBody.decode(plain).topics == {"T1": TopicConfig("T1", 4, 8, 6)}
    assert RegisterBrokerBody.decode(b"{}") == RegisterBrokerBody()


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_compressed_registration_is_decoded() -> None:
    lines = [b"T1 4 8 6 SINGLE_TAG", b"T2 1 1 4 MULTI_TAG"]
    text = sized(b'{"counter":1,"timestamp":2}') + struct.pack(">i", 2) + b"".join(map(sized, lines)) + sized(b"[]")
    for end in (b"", struct.pack(">i", 0)):  # 5.x brokers append a count of something
        body = RegisterBrokerBody.decode(zlib.compress(text + end, 9), compressed=True)
        assert body.data_version == DataVersion(1, 2)
        assert body.topics == {
            "T1": TopicConfig("T1", 4, 8, 6),
            "T2": TopicConfig("T2", 1, 1, 4, topic_filter_type="MULTI_TAG"),
        }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        zlib.compress(b""),
        zlib.compress(sized(b"{}")),
        zlib.compress(struct.pack(">i", -1)),
        zlib.compress(struct.pack(">i", 2**31 - 1)),
        zlib.compress(sized(b"{}") + struct.pack(">i", -5)),
        zlib.compress(sized(b"{}") + struct.pack(">i", 2**31 - 1)),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"T1 4 4") + sized(b"[]")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"T1 4 four 6 X") + sized(b"[]")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"T1 4 4 6 X {bad") + sized(b"[]")),
        zlib.compress(sized(b"no json") + struct.pack(">i", 0) + sized(b"[]")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 0) + sized(b"{}")),
    ],
)
def test_malformed_compressed_registration_is_refused(data: bytes) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode(data, compressed=True)


@pytest.mark.parametrize(
    "text",
    [b"", b"x", b"[]", b"null", b"{}", b'{"clientID":5}', b'{"clientID":"c","consumerDataSet":{}}', b"[" * 10_000],
)
def test_malformed_heartbeats_are_refused(text: bytes) -> None:
    with pytest.raises(BodyError):
        HeartbeatData.decode(text)


# -- Java's dialect ----------------------------------------------------------------------------------------------------

QUEUE = b'{"brokerName":"b-a","queueId":0,"topic":"T1"}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"{0:1,-5:2}", {"0": 1, "-5": 2}),
        (b"{" + QUEUE + b":5}", {QUEUE.decode(): 5}),
        (b'{ {"topic":"T1","queueId":0,"brokerName":"b-a"} : 5 }', {QUEUE.decode(): 5}),
        (b'{"a":{"b":[1,{"c":2}]},"d":{"$ref":"$.a.b[1]"}}', {"a": {"b": [1, {"c": 2}]}, "d": {"c": 2}}),
        (b'[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        (b'{"a":{"$ref":5},"b":{"$ref":"x","c":1}}', {"a": {"$ref": 5}, "b": {"$ref": "x", "c": 1}}),
        (b' [ true , false , null , -1.5e3 , "\\u00e9\\n" ] ', [True, False, None, -1500.0, "é\n"]),
        (b'""', ""),
        (b"[]", []),
    ],
)
def test_parser_accepts_the_fastjson_dialect(text: bytes, value: object) -> None:
    assert fastjson.parse(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[1",
        b"[1,]",
        b"{1}",
        b"{a:1}",
        b'{"a":1,}',
        b'{"a" 1}',
        b'{"a":1}x',
        b'"open',
        b'"\\x"',
        b'"\\ud800"',
        b"-",
        b"nul",
        b"[" * 100,
        b'{"a":' * 100,
        b"{" * 100,
        b'{"a":{"$ref":"$.b"}}',
        b'{"a":{"$ref":"$"}}',
        b'{"a":{"$ref":".."}}',
        b'{"a":{"$ref":"$.a"}}',
        b'{"a":{"b":{"$ref":"$.a"}}}',
        b'{"c":{"d":{"$ref":"$.e"}},"e":{"f":{"$ref":"$.c"}}}',
        b'{"$ref":"$"}',
        b'{{"$ref":"$"}:1}',
    ],
)
def test_parser_refuses_dialects_of_json(text: bytes) -> None:
    with pytest.raises(BodyError):
        fastjson.parse(text)


PLAIN_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "0"]), inner, max_size=3),
    max_leaves=8,
)


def _laughs(levels: int) -> bytes:
    """Each member refers ten times to the one before."""
    members = [b'"a0":[1,1,1,1,1,1,1,1,1,1]']
    for level in range(1, levels):
        members.append(b'"a%d":[%s]' % (level, b",".join([b'{"$ref":"$.a%d"}' % (level - 1)] * 10)))
    return b"{" + b",".join(members) + b"}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(_laughs(9), "more than 2000 values", id="references to references"),
        pytest.param(b"[" + b"1," * 2_000_000 + b"1,]", "more than 2000 values", id="many values"),
        pytest.param(
            b'{%s,"a500":{}}' % b",".join(b'"a%d":{"x":{"$ref":"$.a%d"}}' % (at, at + 1) for at in range(500)),
            "nested deeper",
            id="a chain of references",
        ),
        pytest.param(
            b'{"a0":{},%s}' % b",".join(b'"a%d":{"x":{"$ref":"$.a%d"}}' % (at, at - 1) for at in range(1, 500)),
            "nested deeper",
            id="a chain of references backwards",
        ),
        pytest.param(b'{"a":"' + b"\\\\" * 4_000_000, "end of a string", id="a string without an end"),
    ],
)
def test_expensive_json_is_refused_quickly(text: bytes, reason: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(BodyError, match=reason):
            HeartbeatData.decode(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 5
    assert most < 6 * len(text) + 32 * 1024 * 1024


def test_trusted_text_may_be_longer() -> None:
    text = b"[" + b"1," * 60_000 + b"1]"
    assert len(fastjson.parse(text, values_max=fastjson.TRUSTED_VALUES_MAX)) == 60_001


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 10**30])
def test_numbers_above_java_integer_are_refused(number: int) -> None:
    text = b'{"queueDatas":[{"brokerName":"b","readQueueNums":%d,"writeQueueNums":4,"perm":6}]}' % number
    with pytest.raises(BodyError, match="readQueueNums"):
        Route.decode(text)
    line = b"T %d 4 6 SINGLE_TAG" % number
    data = b"".join(struct.pack(">i", len(part)) + part for part in (b"{}",)) + struct.pack(">i", 1)
    with pytest.raises(BodyError, match="bad number"):
        RegisterBrokerBody.decode(
            zlib.compress(data + struct.pack(">i", len(line)) + line + struct.pack(">i", 2) + b"[]"), compressed=True
        )


@steady
@given(PLAIN_JSON)
def test_fastjson_parser_accepts_standard_json(value: object) -> None:
    assert fastjson.parse(msgspec.json.encode(value)) == value


@steady
@given(st.text(alphabet='{}[]":,01ab$ref.\\ ', max_size=40))
def test_any_text_is_decoded_or_refused(text: str) -> None:
    try:
        fastjson.parse(text.encode())
    except BodyError:
        pass


# -- batches -----------------------------------------------------------------------------------------------------------


@steady
@given(
    st.lists(
        st.builds(
            BatchedMessage,
            st.binary(max_size=20),
            st.text(st.characters(codec="utf-8"), max_size=9),
            st.integers(-(2**31), 2**31 - 1),
        )
    )
)
def test_batch_survives_encoding(messages: list[BatchedMessage]) -> None:
    assert decode_batch(encode_batch(messages)) == messages


@pytest.mark.parametrize("at", [0, 16, 20 + 1])
@pytest.mark.parametrize("value", [-1, 2**31 - 1, 0x7F000000])
def test_malformed_batch_is_refused(at: int, value: int) -> None:
    data = bytearray(encode_batch([BatchedMessage(b"x", "a\x01b\x02")]))
    struct.pack_into(">i", data, at, value)
    with pytest.raises(BodyError, match="message 0 of a batch"):
        decode_batch(bytes(data))
    with pytest.raises(BodyError):
        decode_batch(bytes(data[:-1]))
