"""Requests are the same when they were handed on, whatever they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.chunks import decode_chunk
from mq.protocol.incoming.headers import Response
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES
from mq.protocol.requests.forwarding import FORWARDED_TO, ForwardEncoder, TooLarge, WrapEncoder, mark_forwarded
from mq.protocol.requests.replicas import Forward
from mq.protocol.requests.send import SendExt, SendMessageV2
from mq.protocol.wire.encoding import encode_response

HOST = bytes((10, 0, 0, 1, 0, 0, 0x12, 0x34))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = {int: st.integers(-(2**31), 2**31 - 1), str: TEXTS, bool: st.booleans()}


def values(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return st.one_of(*map(values, types))
        case msgspec.inspect.NoneType():
            return st.none()
        case msgspec.inspect.IntType():
            return VALUES[int]
        case msgspec.inspect.BoolType():
            return VALUES[bool]
        case _:
            return VALUES[str]


@st.composite
def requests(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(sorted(REQUEST_CLASSES, key=lambda each: each.__name__)))
    arguments: dict[str, Any] = {"opaque": draw(VALUES[int]), "flag": draw(st.sampled_from([0, 2])), "language": "GO"}
    for field in msgspec.structs.fields(kind):
        if field.name == "ext":
            described = msgspec.inspect.type_info(field.type)
            assert isinstance(described, msgspec.inspect.StructType)
            arguments["ext"] = field.type(**{each.name: draw(values(each.type)) for each in described.fields})
    return kind(**arguments)


@given(
    request=requests(),
    body=st.binary(max_size=50),
    client_id=TEXTS,
    user=TEXTS,
    identity=TEXTS,
    encoding=st.sampled_from([0, 1]),
)
def test_forwarded_request_decodes_to_the_original(
    request: Any, body: bytes, client_id: str, user: str, identity: str, encoding: int
) -> None:
    frame, at = ForwardEncoder(identity).encode(5, HOST, request, body, encoding, client_id, user)
    [(outer, outer_body, _)], consumed = decode_chunk(frame)
    assert consumed == len(frame)
    assert isinstance(outer, Forward)
    ext = outer.ext
    assert (outer.opaque, ext.born_host, ext.serialization, ext.client_id, ext.user, ext.identity) == (
        5,
        HOST.hex(),
        encoding,
        client_id,
        user,
        identity,
    )
    assert frame[at:] == outer_body
    assert decode_chunk(outer_body)[0] == [(request, body, 0)]


def test_answers_are_wrapped() -> None:
    [(answer, body, _)], _ = decode_chunk(WrapEncoder().encode(2**31 - 1, b"inner"))
    assert isinstance(answer, Response)
    assert (answer.code, answer.opaque, body) == (0, 2**31 - 1, b"inner")


@pytest.mark.parametrize(("properties", "body"), [(300_000, 0), (0, 16 * 1024 * 1024 - 200)])
def test_requests_too_large_to_forward_are_refused(properties: int, body: int) -> None:
    ext = SendExt(
        producer_group="P",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp_ms=5,
        flag=0,
        properties="p" * properties,
    )
    with pytest.raises(TooLarge):
        ForwardEncoder("log").encode(1, HOST, SendMessageV2(ext=ext), bytes(body), 0)


@given(
    remark=st.one_of(st.none(), TEXTS, st.just('"extFields":{"a"')),
    # A leader's own answer is never marked already.
    ext=st.one_of(st.none(), st.dictionaries(TEXTS.filter(lambda name: name != FORWARDED_TO), TEXTS, max_size=3)),
    body=st.binary(max_size=50),
)
def test_marked_answer_names_its_source_and_is_otherwise_unchanged(
    remark: str | None, ext: dict[str, str] | None, body: bytes
) -> None:
    frame = encode_response(7, 13, remark=remark, ext=ext, body=body)
    [(answer, answer_body, _)], consumed = decode_chunk(marked := mark_forwarded(frame, "10.0.0.1:10911"))
    assert consumed == len(marked)
    assert isinstance(answer, Response)
    assert (answer.opaque, answer.code, answer.remark, answer_body) == (7, 13, remark, body)
    assert answer.ext == (ext or {}) | {FORWARDED_TO: "10.0.0.1:10911"}


def test_binary_header_is_not_marked() -> None:
    frame = encode_response(7, 0, ext={"a": "b"}, body=b"x", serialization=BINARY)
    assert mark_forwarded(frame, "10.0.0.1:10911") == frame
    assert mark_forwarded(encode_response(7, 0), "h:1")[4] == JSON
