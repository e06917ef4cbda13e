"""Signatures of requests, against what RocketMQ's own client computes."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.protocol.chunks import decode_chunk, headers_of
from mq.protocol.frames import BINARY, JSON
from mq.protocol.headers import encode_request
from mq.protocol.signing import ACCESS_KEY, SIGNATURE, Signer, header_fields, signed

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=6)


def test_the_signature_is_that_of_the_java_client() -> None:
    """`AclUtils.calSignature` over the values in the order of their names, then the body."""
    fields = signed("RocketMQ", "12345678", {"topic": "T", "a": "x", "queueId": "3"}, b"body")
    content = b"RocketMQ" + b"x" + b"3" + b"T" + b"body"  # AccessKey, a, queueId, topic
    assert fields[SIGNATURE] == b64encode(hmac.new(b"12345678", content, sha1).digest()).decode()


@given(FIELDS, st.binary(max_size=20), st.sampled_from([JSON, BINARY]))
def test_what_was_signed_is_recognized_in_both_encodings(
    fields: dict[str, str], body: bytes, serialization: int
) -> None:
    ext = signed("RocketMQ", "12345678", fields, body)
    frame = encode_request(34, 7, ext=ext, body=body, serialization=serialization)
    (incoming,), _ = decode_chunk(frame)
    (header,) = headers_of(frame)
    found = header_fields(incoming[2], header)
    assert dict(found) == ext
    assert Signer("12345678").is_signed(found, incoming[1])
    assert not Signer("12345679").is_signed(found, incoming[1])
    assert not Signer("12345678").is_signed(found, incoming[1] + b"x")


@pytest.mark.parametrize(
    "change",
    [{"topic": "U"}, {"extra": "x"}, {ACCESS_KEY: "RocketMX"}, {SIGNATURE: ""}, {SIGNATURE: "no base64 \u1234"}],
)
def test_a_changed_request_is_not_signed(change: dict[str, str]) -> None:
    fields = signed("RocketMQ", "12345678", {"topic": "T"}, b"")
    assert Signer("12345678").is_signed(fields, b"")
    assert not Signer("12345678").is_signed(fields | change, b"")


def test_queries_for_messages_are_signed_with_and_without_the_field_for_unique_keys() -> None:
    """RocketMQ's clients up to 4.9.3 add it after they have signed, later ones before."""
    query, flag = {"topic": "T", "key": "k"}, {"_UNIQUE_KEY_QUERY": "true"}
    for fields in (
        signed("RocketMQ", "12345678", query, b"") | flag,
        signed("RocketMQ", "12345678", query | flag, b""),
    ):
        assert Signer("12345678").is_signed(fields, b"")
        assert not Signer("12345679").is_signed(fields, b"")
        assert not Signer("12345678").is_signed(fields | {"key": "x"}, b"")


def test_what_is_no_header_has_no_fields() -> None:
    for header in (b"", b"[", b"{}", b'{"extFields":3}', b"\xff" * 40):
        assert header_fields(JSON, header) == {}
        assert header_fields(BINARY, header) == {}


@given(st.text(st.characters(codec="utf-8"), max_size=100), st.binary(max_size=300))
def test_it_is_hmac_for_secrets_of_any_length(secret: str, body: bytes) -> None:
    expected = hmac.new(secret.encode(), b"v" + body, sha1).digest()
    assert Signer(secret).signature({"f": "v", SIGNATURE: "x"}, body) == b64encode(expected)
