"""Codecs by themselves: what they make of values and bodies, and what they say of wrong ones."""

from __future__ import annotations

import builtins
import datetime as dt
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from mq.client import (
    BodyCodec,
    BytesCodec,
    JsonCodec,
    Message,
    MessageRefused,
    MsgpackCodec,
    Producer,
    PullConsumer,
    PydanticCodec,
    TextCodec,
    tombstone,
)
from mq.client.body_codecs import check_body_codec, decode_body, encode_body, encode_message
from mq.client.message import ReceivedMessage
from tests.unit.client.popping import received_message


@dataclass
class Order:
    number: int
    at: dt.datetime | None = None


class Struct(msgspec.Struct):
    number: int


class Typed(TypedDict):
    number: int


class Model(pydantic.BaseModel):
    number: int
    secret: str = "s"


class Whims:
    """A codec of one's own, which fails as it is told."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode(self, value: object) -> bytes:
        raise self.error

    def decode(self, body: bytes) -> object:
        raise self.error


def received(body: bytes) -> ReceivedMessage[Any]:
    return received_message(0, body)


@pytest.mark.parametrize(
    ("codec", "value", "body"),
    [
        (BytesCodec(), b"\x00", b"\x00"),
        (TextCodec(), "äpfel", "äpfel".encode()),
        (JsonCodec(), {"a": [1, None]}, b'{"a":[1,null]}'),
        (JsonCodec(Order), Order(1), b'{"number":1,"at":null}'),
        (
            JsonCodec(Order),
            Order(1, dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
            b'{"number":1,"at":"2026-01-02T00:00:00Z"}',
        ),
        (JsonCodec(Struct), Struct(1), b'{"number":1}'),
        (JsonCodec(Typed), {"number": 1}, b'{"number":1}'),
        (JsonCodec(list[Order]), [Order(1)], b'[{"number":1,"at":null}]'),
        (JsonCodec(Struct | None), None, b"null"),
        (MsgpackCodec(Struct), Struct(1), b"\x81\xa6number\x01"),
        (MsgpackCodec(), [1], b"\x91\x01"),
        (PydanticCodec(Model), Model(number=1), b'{"number":1,"secret":"s"}'),
        (PydanticCodec(dict[str, int]), {"a": 1}, b'{"a":1}'),
    ],
)
def test_decoded_values_equal_the_encoded_values(codec: BodyCodec[Any], value: object, body: bytes) -> None:
    assert encode_body(codec, value) == body
    message = received(body)
    assert decode_body(message, codec) is None
    assert (message.body, message.raw_body) == (value, body)


@pytest.mark.parametrize(
    ("codec", "body", "reason"),
    [
        (TextCodec(), b"\xff", "TextCodec: UnicodeDecodeError: "),
        (JsonCodec(), b"{", "JsonCodec(): DecodeError: Input data was truncated"),
        (JsonCodec(), b"\x80", "JsonCodec(): DecodeError: JSON is malformed"),
        (
            JsonCodec(Order),
            b'{"number":"x"}',
            "JsonCodec(Order): ValidationError: Expected `int`, got `str` - at `$.number`",
        ),
        (JsonCodec(Order), b"[]", "JsonCodec(Order): ValidationError: Expected `object`, got `array`"),
        (MsgpackCodec(Struct), b"{}", "MsgpackCodec(Struct): ValidationError: "),
        (PydanticCodec(Model), b'{"secret":[7]}', "PydanticCodec(Model): ValueError: number: Field required; secret: "),
        (PydanticCodec(Model), b"x", "PydanticCodec(Model): ValueError: body: Invalid JSON"),
        (Whims(KeyError("absent")), b"x", "Whims: KeyError: 'absent'"),
        (Whims(RecursionError()), b"x", "Whims: RecursionError"),
    ],
)
def test_wrong_body_is_reported_and_kept(codec: BodyCodec[Any], body: bytes, reason: str) -> None:
    message = received(body)
    error = decode_body(message, codec)
    assert error is not None
    assert reason in error.reason
    assert reason in str(error)
    assert (message.body, message.raw_body, error.message) == (body, body, message)
    assert error.__cause__ is not None


def test_empty_text_does_not_delete_the_value_of_its_keys() -> None:
    with pytest.raises(MessageRefused, match=r"TextCodec encodes '' as an empty body.*send tombstone"):
        encode_message(Message("T", "", keys=["k"]), TextCodec())
    assert encode_message(Message("T", "", keys=[]), TextCodec()).body == b"", "refused later, as any empty body"
    deletes: Message[Any] = tombstone("T", "k")
    assert encode_message(deletes, TextCodec()).body == b""


def test_deeply_nested_json_is_a_wrong_body() -> None:
    assert decode_body(received(b"[" * 100_000), JsonCodec()) is not None


def test_error_does_not_reveal_an_undecodable_body() -> None:
    error = decode_body(received(b'{"number":1,"secret":{"pin":"4711"}}'), PydanticCodec(Model))
    assert "4711" not in str(error)


def test_codecs_do_not_catch_system_exit_and_keyboard_interrupt() -> None:
    with pytest.raises(SystemExit):
        decode_body(received(b"x"), Whims(SystemExit(3)))
    with pytest.raises(KeyboardInterrupt):
        encode_body(Whims(KeyboardInterrupt()), 1)


@pytest.mark.parametrize(
    ("codec", "value", "text"),
    [
        (JsonCodec(), object(), "JsonCodec() cannot encode a object: TypeError: "),
        (TextCodec(), b"x", "TextCodec cannot encode a bytes: AttributeError: "),
        (TextCodec(), "\ud800", "UnicodeEncodeError"),
        (PydanticCodec(Model), Struct(1), "PydanticSerializationError"),
        (Whims(ValueError("no")), 1, "Whims cannot encode a int: ValueError: no"),
    ],
)
def test_unencodable_bodies_are_refused(codec: BodyCodec[Any], value: object, text: str) -> None:
    with pytest.raises(MessageRefused) as refused:
        encode_body(codec, value)
    assert text in str(refused.value)
    assert refused.value.stored == "no"
    assert refused.value.__cause__ is not None


class Half:
    def encode(self, value: object) -> bytes:
        return b""


class Slow:
    async def encode(self, value: object) -> bytes:
        return b""

    def decode(self, body: bytes) -> object:
        return body


@pytest.mark.parametrize(
    ("codec", "text"),
    [
        (JsonCodec, "pass codec=JsonCodec()"),
        (Order, "pass codec=JsonCodec(Order)"),
        (str, "pass codec=JsonCodec(str)"),
        ("json", "has no method `decode`: pass such as JsonCodec(), TextCodec()"),
        (Half(), "has no method `decode`"),
        (Slow(), "is a plain function (def): it must not wait"),
    ],
)
def test_invalid_codec_is_refused_with_a_correction(codec: Any, text: str) -> None:
    for make in (
        lambda: check_body_codec(codec),
        lambda: Producer("a:1", codec=codec),
        lambda: PullConsumer("a:1", "G", codec=codec),
    ):
        with pytest.raises(TypeError) as refused:
            make()
        assert text in str(refused.value)


def test_types_unsupported_by_a_codec_are_refused() -> None:
    with pytest.raises(TypeError, match=r"use PydanticCodec\(Model\)"):
        JsonCodec(Model)
    with pytest.raises(TypeError):
        JsonCodec(dict[str, int] | dict[str, str])


def test_missing_pydantic_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ImportError, match=r"pip install 'raftmq\[pydantic\]'"):
        PydanticCodec(dict)


def test_old_pydantic_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    old = type(builtins)("pydantic")
    old.VERSION = "1.10.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pydantic", old)
    with pytest.raises(ImportError, match=r"needs pydantic 2, found 1\.10\.2"):
        PydanticCodec(dict)


def test_client_does_not_import_pydantic() -> None:
    program = "import sys, mq.client.sync; print('pydantic' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_texts_of_messages_do_not_show_values() -> None:
    assert repr(Message("T", Order(4711))) == "Message('T', <a Order>)"
    assert repr(Message("T", b"x", tags="t")) == "Message('T', b'x', tags='t')"
    message = received(b"12345")
    assert decode_body(message, TextCodec()) is None
    assert repr(message).endswith(" 5 bytes>")
