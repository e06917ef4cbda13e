"""What arrives when the other side is broken, old or hostile: refused with a reason, never a crash, never a hang."""

from __future__ import annotations

import json
import struct
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.protocol.errors import FrameError, HeaderError, ProtocolError
from mq.protocol.frames import BINARY, FRAME_BYTES_MAX, HEADER_BYTES_MAX, JSON, encode_frame, split_frames
from mq.protocol.incoming.chunks import decode_chunk, missing_bytes
from mq.protocol.incoming.headers import Response, UnknownRequest
from mq.protocol.incoming.server_decoding import decode_header
from mq.protocol.requests.clients import HeartBeat
from mq.protocol.requests.offsets import UpdateConsumerOffset
from mq.protocol.requests.send import SendMessageV2
from mq.protocol.wire.encoding import encode_request, encode_response

# The same examples in every run, and no deadline: a busy machine must not decide about a test.
steady = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEND = {
    "a": "pg",
    "b": "T1",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1600000000000",
    "h": "0",
    "i": "TAGS\x01A\x02",
}


def json_header(text: str) -> memoryview:
    return memoryview(text.encode())


def frame(length: int, word: int, rest: bytes = b"") -> memoryview:
    return memoryview(struct.pack(">II", length & 0xFFFFFFFF, word) + rest)


# -- frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frame(2**31 - 1, 0), "length 2147483647"),
        (frame(-1, 0), "length -1"),
        (frame(-(2**31), 0), "length -2147483648"),
        (frame(0, 0), "length 0"),
        (frame(3, 0), "length 3"),
        (frame(FRAME_BYTES_MAX + 1, 0), f"length {FRAME_BYTES_MAX + 1}"),
        (frame(10, 7), "header of 7 bytes in a frame of length 10"),
        (frame(4, 0xFFFFFF), "header of 16777215 bytes"),
        (frame(HEADER_BYTES_MAX + 100, HEADER_BYTES_MAX + 1), f"maximum: {HEADER_BYTES_MAX}"),
        (frame(10, 0x02000000), "header encoding 2"),
        (frame(10, 0xFF000000), "header encoding 255"),
        (memoryview(b"\x16\x03\x01\x02"), "length 369295618"),  # a TLS handshake
        (memoryview(b"GET / HTTP/1.1\r\n"), "length 1195725856"),
    ],
)
def test_frame_with_an_impossible_length_is_refused(data: memoryview, reason: str) -> None:
    with pytest.raises(FrameError, match=reason):
        split_frames(data)


def test_bad_length_shows_before_the_frame_is_complete() -> None:
    with pytest.raises(FrameError):
        split_frames(memoryview(struct.pack(">i", -1)))


def test_receiver_refuses_frames_above_its_limit() -> None:
    data = memoryview(encode_request(34, 1, body=bytes(1000)))
    assert len(split_frames(data)[0]) == 1
    with pytest.raises(FrameError, match="allowed: 4 to 1000"):
        split_frames(data, frame_bytes_max=1000)


def test_receiver_refuses_headers_above_its_limit() -> None:
    data = memoryview(encode_request(34, 1, ext={"a": "x" * 1000}))
    assert len(split_frames(data, header_bytes_max=2000)[0]) == 1
    with pytest.raises(FrameError, match="maximum: 1000"):
        split_frames(data, header_bytes_max=1000)


@steady
@given(st.binary(max_size=64))
def test_any_bytes_are_framed_or_refused(data: bytes) -> None:
    try:
        frames, consumed = split_frames(memoryview(data))
    except FrameError:
        return
    assert 0 <= consumed <= len(data)
    assert sum(8 + len(header) + len(body) for _, header, body in frames) == consumed


# -- JSON headers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "x",
        "{",
        "[]",
        "5",
        "null",
        '"text"',
        '{"code":105',
        "[" * 5000,
        '{"a":' * 5000,
        '{"x":NaN}',
        "\x00" * 20,
    ],
)
def test_non_object_json_header_closes_the_connection(text: str) -> None:
    with pytest.raises(FrameError):
        decode_header(JSON, json_header(text))


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ('{"opaque":7}', None, "the header has no code"),
        ('{"opaque":7,"code":null}', None, "the header has no code"),
        ('{"opaque":7,"code":"abc"}', None, "'abc' is not an integer"),
        ('{"opaque":7,"code":1.5}', None, "is not an integer"),
        ('{"opaque":7,"code":4294967296}', None, "does not fit into 32 bits"),
        ('{"opaque":7,"code":105}', 105, "the field topic is missing"),
        ('{"opaque":7,"code":105,"extFields":null}', 105, "the field topic is missing"),
        ('{"opaque":7,"code":105,"extFields":{"topic":null}}', 105, "the field topic is missing"),
        ('{"opaque":7,"code":105,"extFields":"text"}', 105, "extFields"),
        ('{"opaque":7,"code":105,"extFields":{"topic":["T1"]}}', 105, "extFields"),
        ('{"opaque":7,"code":105,"extFields":{"topic":{"a":{"b":1}}}}', 105, "extFields"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":"x"}}', 30, "queueId: 'x' is not an integer"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":""}}', 30, "queueId: '' is not an integer"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":"1_0"}}', 30, "queueId: '1_0' is not an integer"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":2147483648}}', 30, "does not fit into 32 bits"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":"-2147483649"}}', 30, "does not fit into 32"),
        ('{"opaque":7,"code":30,"extFields":{"topic":"T1","queueId":true}}', 30, "queueId: 'true' is not an integer"),
        (
            '{"opaque":7,"code":15,"extFields":{"consumerGroup":"g","topic":"T","queueId":"0","commitOffset":"9'
            + "9" * 20
            + '"}}',
            15,
            "does not fit into 64 bits",
        ),
        ('{"opaque":7,"code":34,"flag":"two"}', 34, "header flag: 'two' is not an integer"),
    ],
)
def test_bad_field_is_answered(text: str, code: int | None, remark: str) -> None:
    with pytest.raises(HeaderError) as caught:
        decode_header(JSON, json_header(text))
    assert (caught.value.code, caught.value.opaque) == (code, 7)
    assert remark in caught.value.remark


def test_every_required_field_is_required() -> None:
    for name in SEND.keys() - {"i"}:
        ((_, header, _),), _ = split_frames(
            memoryview(encode_request(310, 9, ext={each: text for each, text in SEND.items() if each != name}))
        )
        with pytest.raises(HeaderError, match=f"the field {name} is missing"):
            decode_header(JSON, header)


def test_header_with_too_many_fields_is_refused() -> None:
    fields = ",".join(f'"f{number}":"x"' for number in range(300))
    with pytest.raises(HeaderError, match="300 ext fields; maximum: 256"):
        decode_header(JSON, json_header(f'{{"code":999,"opaque":1,"extFields":{{{fields}}}}}'))


@pytest.mark.parametrize(
    "fields",
    [
        '"a":"pg","b":"T1","c":"TBW102","d":"0004","e":"+0","f":"-0","g":"0001600000000000","h":"00"',
        '"a":"pg","b":"T1","c":"TBW102","d":4,"e":0,"f":0,"g":1600000000000,"h":0',
        '"a":"pg","b":"T1","c":"TBW102","d":"4","e":"0","f":"0","g":"1600000000000","h":"0","i":null,"j":null,"l":null',
        '"a":"pg","b":"T1","c":"TBW102","d":"4","e":"0","f":"0","g":"1600000000000","h":"0","k":"FALSE","m":false',
        '"zz":"unknown","a":"pg","b":"T1","c":"TBW102","d":"4","e":"0","f":"0","g":"1600000000000","h":"0"',
    ],
    ids=["leading zeros", "numbers", "nulls", "booleans", "unknown field"],
)
def test_headers_accepted_by_java_are_decoded(fields: str) -> None:
    request = decode_header(
        JSON, json_header(f'{{"code":310,"extFields":{{{fields}}},"flag":0,"opaque":3,"version":409,"new":[1,{{}}]}}')
    )
    assert isinstance(request, SendMessageV2)
    ext = request.ext
    assert (ext.producer_group, ext.topic, ext.default_topic_queue_nums, ext.queue_id) == ("pg", "T1", 4, 0)
    assert (ext.born_timestamp_ms, ext.flag, ext.properties, ext.batch) == (1600000000000, 0, "", False)
    assert (ext.reconsume_times, ext.unit_mode, ext.max_reconsume_times) == (0, False, None)


def test_loose_header_accepts_numbers_as_text() -> None:
    request = decode_header(JSON, json_header('{"code":"34","opaque":"007","language":9,"version":"317"}'))
    assert isinstance(request, HeartBeat)
    assert (request.opaque, request.version, request.language, request.flag) == (7, 317, "GO", 0)


def test_non_utf8_text_gets_replacement_characters() -> None:
    header = memoryview(b'{"code":105,"opaque":1,"extFields":{"topic":"T\xff"}}')
    with_bad_byte = decode_header(JSON, header)
    assert not isinstance(with_bad_byte, UnknownRequest | HeartBeat)
    ext = cast("Any", with_bad_byte).ext
    assert ext.topic == "T\N{REPLACEMENT CHARACTER}"


def test_flag_decides_and_not_the_code() -> None:
    """A response may have the number of a request, and somebody may ask for code 0."""
    response = decode_header(JSON, json_header('{"code":34,"flag":1,"opaque":4,"version":409}'))
    assert isinstance(response, Response)
    assert (response.code, response.opaque) == (34, 4)
    request = decode_header(JSON, json_header('{"code":0,"flag":0,"opaque":4,"version":409}'))
    assert isinstance(request, UnknownRequest)
    assert request.code == 0


# -- binary headers ----------------------------------------------------------------------------------------------------


def binary_header(code: int, *, remark: int = 0, ext: bytes = b"", ext_length: int | None = None) -> memoryview:
    length = len(ext) if ext_length is None else ext_length
    return memoryview(struct.pack(">hBhiiii", code, 0, 409, 7, 0, remark, length) + ext)


def ext_field(name: bytes, value: bytes, *, name_length: int | None = None, value_length: int | None = None) -> bytes:
    return (
        struct.pack(">h", len(name) if name_length is None else name_length)
        + name
        + struct.pack(">i", len(value) if value_length is None else value_length)
        + value
    )


@pytest.mark.parametrize("size", [0, 1, 20])
def test_short_binary_header_is_refused(size: int) -> None:
    with pytest.raises(FrameError, match=f"binary header of {size} bytes"):
        decode_header(BINARY, memoryview(bytes(size)))


@pytest.mark.parametrize(
    ("header", "remark"),
    [
        (binary_header(105, remark=-1), "a remark of -1 bytes exceeds"),
        (binary_header(105, remark=5), "a remark of 5 bytes exceeds"),
        (binary_header(105, remark=2**31 - 1), "a remark of 2147483647 bytes exceeds"),
        (binary_header(105, ext_length=-1), "ext fields of -1 bytes"),
        (binary_header(105, ext_length=1), "ext fields of 1 bytes, the header has 0"),
        (binary_header(105, ext=b"\x00"), "within a length"),
        (binary_header(105, ext=ext_field(b"topic", b"T1", name_length=-1)), "ext text has -1 bytes"),
        (binary_header(105, ext=ext_field(b"topic", b"T1", name_length=1000)), "ext text has 1000 bytes"),
        (binary_header(105, ext=ext_field(b"topic", b"T1", value_length=3)), "ext text has 3 bytes"),
        (binary_header(105, ext=ext_field(b"topic", b"")), "the field topic is missing"),
        (binary_header(105), "the field topic is missing"),
        (binary_header(999, ext=b"".join(ext_field(b"%d" % n, b"x") for n in range(300))), "more than 256"),
    ],
)
def test_bad_binary_header_is_answered(header: memoryview, remark: str) -> None:
    with pytest.raises(HeaderError) as caught:
        decode_header(BINARY, header)
    assert caught.value.opaque == 7
    assert remark in caught.value.remark


def test_binary_header_numbers_are_parsed_as_in_java() -> None:
    fields = {b"consumerGroup": b"cg", b"topic": b"T1", b"queueId": b"0002", b"commitOffset": b"+5"}
    header = binary_header(15, ext=b"".join(ext_field(name, value) for name, value in fields.items()))
    request = decode_header(BINARY, header)
    assert isinstance(request, UpdateConsumerOffset)
    assert (request.ext.consumer_group, request.ext.queue_id, request.ext.commit_offset) == ("cg", 2, 5)


@steady
@given(st.integers(0, 1), st.binary(max_size=200))
def test_any_header_is_decoded_or_refused(serialization: int, data: bytes) -> None:
    try:
        decode_header(serialization, memoryview(data))
    except ProtocolError:
        pass


ODD_VALUES: st.SearchStrategy[object] = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        2**31,
        2**64,
        1.5,
        1e300,
        "",
        "0",
        "007",
        "x",
        "true",
        "\ud7ff\x01",
        [],
        [[1]],
        {},
        {"a": {}},
    ]
)


@steady
@given(
    code=st.sampled_from([0, 10, 11, 14, 34, 105, 310, 12345, "310"]) | ODD_VALUES,
    basics=st.dictionaries(st.sampled_from(["opaque", "flag", "version", "language", "remark", "new"]), ODD_VALUES),
    ext=st.dictionaries(st.sampled_from([*SEND, "topic", "queueId"]), ODD_VALUES) | ODD_VALUES,
)
def test_any_json_header_is_decoded_or_refused(code: object, basics: dict[str, object], ext: object) -> None:
    try:
        decode_header(JSON, json_header(json.dumps({"code": code, "extFields": ext, **basics})))
    except ProtocolError:
        pass


# -- whole chunks ------------------------------------------------------------------------------------------------------

FRAMES = st.one_of(
    st.builds(encode_request, st.sampled_from([34, 999]), st.integers(0, 9), body=st.binary(max_size=9)),
    st.builds(encode_request, st.just(310), st.integers(0, 9), ext=st.just(SEND), serialization=st.integers(0, 1)),
    st.builds(encode_request, st.just(105), st.integers(0, 9)),  # lacks its topic
    st.builds(encode_response, st.integers(0, 9), st.integers(0, 20)),
    st.binary(max_size=12).map(lambda header: encode_frame(0, header, b"body")),
    st.binary(min_size=1, max_size=9),
)


def one_by_one(chunk: bytes) -> tuple[list[tuple[object, bytes, int]], int]:
    frames, consumed = split_frames(memoryview(chunk))
    incoming: list[tuple[object, bytes, int]] = []
    for serialization, header, body in frames:
        try:
            decoded: object = decode_header(serialization, header)
        except HeaderError as error:
            decoded = (error.code, error.opaque, error.remark)
        incoming.append((decoded, bytes(body), serialization))
    return incoming, consumed


@steady
@given(st.lists(FRAMES, max_size=5).map(b"".join), st.integers(0, 8))
def test_decoding_a_chunk_equals_decoding_its_frames_singly(data: bytes, cut: int) -> None:
    chunk = data[: len(data) - cut]
    try:
        expected = one_by_one(chunk)
    except FrameError:
        with pytest.raises(FrameError):
            decode_chunk(chunk)
        return
    incoming, consumed = decode_chunk(chunk)
    found = [
        ((each.code, each.opaque, each.remark) if isinstance(each, HeaderError) else each, body, serialization)
        for each, body, serialization in incoming
    ]
    assert (found, consumed) == expected


def test_frame_reader_reports_the_number_of_missing_bytes() -> None:
    data = encode_request(34, 1, body=bytes(100))
    assert [missing_bytes(memoryview(data)[:end]) for end in (0, 7, 8, 100)] == [8, 1, len(data) - 8, len(data) - 100]
    assert missing_bytes(memoryview(data)) == 0
    assert missing_bytes(memoryview(data + data)) == 0
