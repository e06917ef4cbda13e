"""Signatures of requests, against what RocketMQ's own client computes."""

from __future__ import annotations

import hmac
from base64 import b64encode
from hashlib import sha1

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client.net.credentials import Credentials
from mq.protocol.access.signing import ACCESS_KEY, LENGTHS, SIGNATURE, Signer, header_fields, lengths, sign_fields
from mq.protocol.frames import BINARY, JSON
from mq.protocol.incoming.chunks import decode_chunk, headers_of
from mq.protocol.wire.encoding import encode_request

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=6)


def test_signature_equals_that_of_the_java_client() -> None:
    """`AclUtils.calSignature` over the values in the order of their names, then the body."""
    fields = sign_fields("RocketMQ", "12345678", {"topic": "T", "a": "x", "queueId": "3"}, b"body")
    content = b"RocketMQ" + b"x" + b"3" + b"T" + b"body"  # AccessKey, a, queueId, topic
    assert fields[SIGNATURE] == b64encode(hmac.new(b"12345678", content, sha1).digest()).decode()


@given(FIELDS, st.binary(max_size=20), st.sampled_from([JSON, BINARY]))
def test_signatures_are_verified_in_both_encodings(fields: dict[str, str], body: bytes, serialization: int) -> None:
    ext = sign_fields("RocketMQ", "12345678", fields, body)
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
def test_changed_request_is_not_signed(change: dict[str, str]) -> None:
    fields = sign_fields("RocketMQ", "12345678", {"topic": "T"}, b"")
    assert Signer("12345678").is_signed(fields, b"")
    assert not Signer("12345678").is_signed(fields | change, b"")


def test_message_queries_may_omit_unique_key_from_the_signature() -> None:
    """RocketMQ's clients up to 4.9.3 add it after they have signed, later ones before."""
    query, flag = {"topic": "T", "key": "k"}, {"_UNIQUE_KEY_QUERY": "true"}
    for fields in (
        sign_fields("RocketMQ", "12345678", query, b"") | flag,
        sign_fields("RocketMQ", "12345678", query | flag, b""),
    ):
        assert Signer("12345678").is_signed(fields, b"")
        assert not Signer("12345679").is_signed(fields, b"")
        assert not Signer("12345678").is_signed(fields | {"key": "x"}, b"")


def test_bytes_that_are_not_a_header_have_no_fields() -> None:
    for header in (b"", b"[", b"{}", b'{"extFields":3}', b"\xff" * 40):
        assert header_fields(JSON, header) == {}
        assert header_fields(BINARY, header) == {}


@given(st.text(st.characters(codec="utf-8"), max_size=100), st.binary(max_size=300))
def test_signature_is_hmac_for_secrets_of_any_length(secret: str, body: bytes) -> None:
    expected = hmac.new(secret.encode(), b"v" + body, sha1).digest()
    assert Signer(secret).signature({"f": "v", SIGNATURE: "x"}, body) == b64encode(expected)


OWN = Credentials("RocketMQ", "12345678")
SIGNER = Signer("12345678")


def divided(content: str, names: list[str], cuts: list[int]) -> tuple[dict[str, str], bytes]:
    """A signed text, divided anew into fields of these names and a body."""
    places = sorted(cut % (len(content) + 1) for cut in cuts)
    pieces = [content[a:b] for a, b in zip([0, *places], [*places, len(content)], strict=True)]
    return dict(zip(sorted(names), pieces, strict=False)), pieces[-1].encode()


NAMES = st.sampled_from(["A", ACCESS_KEY, LENGTHS, "B", "SignedCode", "a", "b", "topic", "z"])


@given(
    fields=st.dictionaries(st.sampled_from(["a", "b", "topic"]), st.text("R1:=,;lengths", max_size=6)),
    body=st.text("pay5:=,;lengths", max_size=8),
    data=st.data(),
)
def test_signed_request_of_our_clients_cannot_be_split_differently(
    fields: dict[str, str], body: str, data: st.DataObject
) -> None:
    """Whatever was recorded: the same text with other fields, names or borders is refused."""
    sent = OWN.sign(310, fields, body.encode())
    assert SIGNER.is_signed(sent, body.encode())
    content = "".join(sent[name] for name in sorted(sent) if name != SIGNATURE) + body
    names = data.draw(st.lists(NAMES, unique=True, max_size=6))
    own = len("RocketMQ"), len("RocketMQ" + sent[LENGTHS])
    cut = st.integers(0, len(content)) | st.sampled_from(own)
    cuts = data.draw(st.lists(cut, min_size=len(names), max_size=len(names)))
    again, other = divided(content, names, cuts)
    again[SIGNATURE] = sent[SIGNATURE]
    if again.get(ACCESS_KEY) == "RocketMQ":  # otherwise the key of another account is used
        assert SIGNER.is_signed(again, other) == ((again, other) == (sent, body.encode()))


def test_each_field_border_is_signed() -> None:
    sent = OWN.sign(310, {"a": "P", "b": "R1", "c": "TBW102"}, b"pay 5")
    for moved, body in (
        ({"z": "p"}, b"ay 5"),
        ({"b": "R", "c": "1TBW102"}, b"pay 5"),
        ({"c": "TBW102p"}, b"ay 5"),
        ({"d": ""}, b"pay 5"),
        ({LENGTHS: ""}, b"pay 5"),
    ):
        assert not SIGNER.is_signed(sent | moved, body), moved
    renamed = {("x" if name == "c" else name): value for name, value in sent.items()}
    assert not SIGNER.is_signed(renamed, b"pay 5")
    stripped = {name: value for name, value in sent.items() if name != LENGTHS}
    for name in ("a", "SignedCode"):
        assert not SIGNER.is_signed(stripped | {name: sent[LENGTHS] + stripped.get(name, "")}, b"pay 5")


def test_text_within_a_message_cannot_pass_as_another_request() -> None:
    """A message of somebody else may contain what looks like a request."""
    other = {"A": "", ACCESS_KEY: "RocketMQ", "topic": "Secret"}
    sent: dict[str, str] = {}
    for _ in range(3):  # until its own length is right
        inner = "RocketMQ" + lengths(other, b"") + "Secret"
        sent = OWN.sign(310, {"a": "P"}, inner.encode())
        other["A"] = "RocketMQ" + sent[LENGTHS] + "P"
    again = other | {LENGTHS: lengths(other, b""), SIGNATURE: sent[SIGNATURE]}
    assert SIGNER.signature(again, b"").decode() == sent[SIGNATURE], "the text is the same"
    assert not SIGNER.is_signed(again, b"")


def test_signed_lengths_count_bytes() -> None:
    fields = {ACCESS_KEY: "k", SIGNATURE: "s", "b": "", "a": "é\u20ac"}
    assert lengths(fields, b"xy") == ":lengths:a=5,b=0;2"
