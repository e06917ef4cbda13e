"""Codecs convert the bodies of messages to values of the application, and back.

    producer = Producer("127.0.0.1:9876", codec=JsonCodec(Order))
    await producer.send(Message("Orders", Order(4711)))

A codec belongs to a producer, to a consumer, or to a handler. Without one, bodies are bytes. Any object with `encode`
and `decode` is a codec; both are called in the event loop, and must not wait.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, overload

import msgspec

from mq.client.application_code import ends_program, is_async
from mq.client.errors import BodyNotDecoded, MessageRefused
from mq.client.message import Message, ReceivedMessage

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


class BodyCodec(Protocol[T]):
    """The methods of a codec. `decode` raises any exception for bytes that are not a value; see `BodyNotDecoded`."""

    def encode(self, value: T, /) -> bytes:
        """Return the body for a value: 1 byte to 4 MiB."""
        ...

    def decode(self, body: bytes, /) -> T:
        """Return the value for a body."""
        ...


class BytesCodec:
    """Leaves bodies as bytes. For a handler of a consumer that has another codec."""

    def encode(self, value: bytes, /) -> bytes:
        """Return the value itself."""
        return value

    def decode(self, body: bytes, /) -> bytes:
        """Return the body itself."""
        return body


class TextCodec:
    """Converts bodies to text and back, in UTF-8."""

    def encode(self, value: str, /) -> bytes:
        """Encode text in UTF-8. Raises AttributeError for other values, UnicodeEncodeError for lone surrogates."""
        return value.encode()

    def decode(self, body: bytes, /) -> str:
        """Decode UTF-8. Raises UnicodeDecodeError."""
        return body.decode()


class JsonCodec(Generic[T]):
    """Converts JSON bodies to any value, or with `JsonCodec(Order)` to that type, which decoding checks.

    The type may be a dataclass, a `msgspec.Struct`, an attrs class, a TypedDict, a builtin such as `dict[str, int]`, or
    a union of these. Raises TypeError for others.
    """

    @overload
    def __init__(self: JsonCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self, kind: object) -> None: ...
    def __init__(self, kind: Any = Any) -> None:
        self._format = _format(self, kind)
        self._encoder = msgspec.json.Encoder()
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def __repr__(self) -> str:
        return self._format

    def encode(self, value: T, /) -> bytes:
        """Encode a value as JSON. Raises TypeError for a value that JSON cannot express."""
        return self._encoder.encode(value)

    def decode(self, body: bytes, /) -> T:
        """Decode JSON. Raises msgspec.DecodeError; for a wrong type msgspec.ValidationError, which says where."""
        return self._decoder.decode(body)


class MsgpackCodec(Generic[T]):
    """Converts MessagePack bodies to values; otherwise as `JsonCodec`."""

    @overload
    def __init__(self: MsgpackCodec[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self, kind: object) -> None: ...
    def __init__(self, kind: Any = Any) -> None:
        self._format = _format(self, kind)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)

    def __repr__(self) -> str:
        return self._format

    def encode(self, value: T, /) -> bytes:
        """Encode a value as MessagePack. Raises TypeError for a value that MessagePack cannot express."""
        return self._encoder.encode(value)

    def decode(self, body: bytes, /) -> T:
        """Decode MessagePack. Raises msgspec.DecodeError, and msgspec.ValidationError for a wrong type."""
        return self._decoder.decode(body)


class PydanticCodec(Generic[T]):
    """Converts JSON bodies to a pydantic model, or to any other type that pydantic knows: `PydanticCodec(Order)`.

    Needs `pip install 'raftmq[pydantic]'`; raises ImportError without. What it says of a wrong body does not contain
    values of that body.
    """

    @overload
    def __init__(self, kind: type[T]) -> None: ...
    @overload
    def __init__(self, kind: object) -> None: ...
    def __init__(self, kind: Any) -> None:
        try:
            self._pydantic: Any = import_module("pydantic")  # takes longer than the rest of the SDK
        except ImportError as error:
            raise ImportError("PydanticCodec needs pydantic 2: pip install 'raftmq[pydantic]'") from error
        if not hasattr(self._pydantic, "TypeAdapter"):
            raise ImportError(
                f"PydanticCodec needs pydantic 2, found {self._pydantic.VERSION}: pip install 'raftmq[pydantic]'"
            )
        self._kind = kind
        self._adapter: TypeAdapter[T] = self._pydantic.TypeAdapter(kind)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_name(self._kind)})"

    def encode(self, value: T, /) -> bytes:
        """Encode a value as JSON. Raises PydanticSerializationError; ValueError for a value of a wrong type."""
        return self._adapter.dump_json(value, warnings="error")

    def decode(self, body: bytes, /) -> T:
        """Decode and validate JSON. Raises ValueError, which says where the body is wrong."""
        try:
            return self._adapter.validate_json(body)
        except self._pydantic.ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            places = (f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}" for each in details)
            raise ValueError("; ".join(places)) from None


def check_body_codec(codec: BodyCodec[T] | None) -> BodyCodec[T] | None:
    """Return the codec itself. Raises TypeError for any other object, with the code to write instead."""
    any_codec = cast("Any", codec)
    if any_codec is None:
        return None
    if isinstance(any_codec, type):
        has_both = hasattr(any_codec, "encode") and hasattr(any_codec, "decode")
        instead = f"{any_codec.__name__}()" if has_both and any_codec is not str else f"JsonCodec({any_codec.__name__})"
        raise TypeError(f"codec is an object, not the class {any_codec.__name__}: pass codec={instead}")
    for name in ("encode", "decode"):
        method = getattr(any_codec, name, None)
        if not callable(method):
            raise TypeError(f"codec {any_codec!r} has no method `{name}`: pass such as JsonCodec(), TextCodec()")
        if is_async(method):
            raise TypeError(f"{name} of codec {any_codec!r} is a plain function (def): it must not wait")
    return codec


def encode_body(codec: BodyCodec[T], value: T) -> bytes:
    """Encode a value as a body. Raises MessageRefused, with the codec's exception as its cause."""
    try:
        return codec.encode(value)
    except BaseException as error:  # noqa: ASYNC103 - nothing is awaited here
        if ends_program(error):
            raise
        text = f"{_of(codec)} cannot encode a {type(value).__name__}: {_describe(error)}"
        raise MessageRefused(text) from error  # noqa: ASYNC104


def encode_message(message: Message[T], codec: BodyCodec[T] | None) -> Message[bytes]:
    """Encode the body of a message. Raises MessageRefused, also for a value that is not a Message."""
    if not isinstance(message, Message):
        raise MessageRefused(f"pass a Message(topic, body), not {type(message).__name__}")
    if codec is None:
        return cast("Message[bytes]", message)
    any_message = cast("Message[Any]", message)
    if any_message.body == b"" and any_message.keys:
        return cast("Message[bytes]", message)  # a tombstone
    body = encode_body(codec, message.body)
    if not body and any_message.keys:
        raise MessageRefused(
            f"{_of(codec)} encodes {message.body!r} as an empty body, which would delete the keys' values in a "
            "compacted topic. To delete them, send tombstone(...)"
        )
    return msgspec.structs.replace(any_message, body=body)


def decode_body(message: ReceivedMessage[Any], codec: BodyCodec[Any]) -> BodyNotDecoded | None:
    """Decode the body of a message in place. If that fails, return the error and leave the bytes."""
    try:
        message.body = codec.decode(message.raw_body)
    except BaseException as error:  # noqa: ASYNC103 - nothing is awaited here
        if ends_program(error):
            raise
        message.body = message.raw_body
        if not message.raw_body:
            return None  # noqa: ASYNC104 - a tombstone
        failure = BodyNotDecoded(message, f"{_of(codec)}: {_describe(error)}")
        failure.__cause__ = error
        return failure  # noqa: ASYNC104
    return None


def _of(codec: object) -> str:
    own = type(codec).__repr__ is not object.__repr__
    return repr(codec) if own else type(codec).__name__


def _describe(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # the application's own, and it is broken
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _format(codec: object, kind: object) -> str:
    """Return the text for a codec of msgspec. Raises TypeError for a model of pydantic."""
    if hasattr(kind, "model_validate_json"):
        raise TypeError(f"{_name(kind)} is a model of pydantic: use PydanticCodec({_name(kind)})")
    return f"{type(codec).__name__}({'' if kind is Any else _name(kind)})"


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else repr(kind)
