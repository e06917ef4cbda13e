"""Parses the headers that start a call, or says why the call cannot be served."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from mq.proxy.grpc.framing import ENCODINGS
from mq.proxy.grpc.status import CallRefused, Status

_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
_ENCODING_NAMES: Final = re.compile(r"[^\s,]+")
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_LISTS: Final = frozenset({"grpc-accept-encoding", "te"})
"""Fields whose values belong together when they come several times."""
_OF_ONE_CONNECTION: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})
_REMEMBERED_BYTES_MAX: Final = 64
_LENGTH_DIGITS_MAX: Final = 18


class NoGrpc(Exception):
    """An HTTP request is not a gRPC call. The answer has an HTTP status and the text."""

    def __init__(self, http_status: int, text: str) -> None:
        super().__init__(f"{http_status}: {text}")
        self.http_status = http_status
        self.text = text


class RequestHead(NamedTuple):
    """The parsed headers of a call.

    Attributes:
        metadata: by lower-case key; of a repeated key the last value, as in gRPC's library for Java; values of list
            fields are joined by a comma. Without keys that end in ``-bin``.
        binary_metadata: those keys, decoded; of a repeated key the last one.
        timeout: seconds until the client gives up; None if it waits for ever.
        encoding: of compressed messages of the client.
        gzip_answers: whether answers may be compressed.
    """

    path: str
    authority: str
    metadata: Mapping[str, str]
    binary_metadata: Mapping[str, bytes]
    timeout: float | None
    encoding: str
    gzip_answers: bool


class MalformedRequest(Exception):
    """HTTP/2 does not allow these headers; the message says why."""


def parse_head(fields: Iterable[tuple[bytes, bytes]]) -> RequestHead:
    """Parse the header fields of a request. Raises MalformedRequest, NoGrpc, or CallRefused."""
    metadata: dict[str, str] = {}
    binary: dict[str, bytes] = {}
    pseudo: dict[str, str] = {}
    for raw_name, raw_value in fields:
        name = _field_name(raw_name)
        if _FORBIDDEN_IN_VALUE.search(raw_value):
            raise MalformedRequest(f"the value of {name} has characters that are not allowed")
        value = raw_value.decode("latin-1")
        if name[0] == ":":
            if metadata or binary or name in pseudo:
                raise MalformedRequest(f"{name} is repeated, or comes after other fields")
            pseudo[name] = value
        elif name[-4:] == "-bin":
            binary[name] = _binary(name, value)
        else:
            metadata[name] = f"{metadata[name]},{value}" if name in _LISTS and name in metadata else value
    if not pseudo.get(":method") or not pseudo.get(":scheme") or not pseudo.get(":path"):
        raise MalformedRequest("the request has no method, scheme or path")
    if metadata.get("te", "trailers") != "trailers":
        raise MalformedRequest(f"te is {metadata['te']!r}; allowed: trailers")
    if pseudo[":method"] != "POST":
        raise NoGrpc(405, "This port serves gRPC: only POST is a call.\n")
    content_type = metadata.get("content-type", "")
    if not content_type.startswith("application/grpc") or content_type.startswith("application/grpc-web"):
        raise NoGrpc(415, "This port serves gRPC: the content-type of a call is application/grpc.\n")
    encoding = metadata.get("grpc-encoding", "identity")
    if encoding not in ENCODINGS:
        raise CallRefused(Status.UNIMPLEMENTED, f"grpc-encoding {encoding!r} is not supported", accepts_encodings=True)
    return RequestHead(
        pseudo[":path"],
        pseudo.get(":authority") or metadata.get("host", ""),
        metadata,
        binary,
        parse_timeout(metadata["grpc-timeout"]) if "grpc-timeout" in metadata else None,
        encoding,
        # A client that does not compress is spared the decompression, too.
        encoding == "gzip" and "gzip" in _ENCODING_NAMES.findall(metadata.get("grpc-accept-encoding", "")),
    )


def announced_bytes(fields: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Return the length of a request's data, if its headers say it. Raises MalformedRequest."""
    for name, value in fields:
        if name == b"content-length":
            if not value.isdigit() or len(value) > _LENGTH_DIGITS_MAX:
                raise MalformedRequest(f"content-length: expected a number of bytes, got {value!r}")
            return int(value)
    return None


@lru_cache(maxsize=1024)
def _short_field_name(name: bytes) -> str:
    text = name.decode("latin-1")
    if _NAME.fullmatch(name) is None or text in _OF_ONE_CONNECTION:
        raise MalformedRequest(f"the field {text!r} is not allowed")
    if text[0] == ":" and text not in _PSEUDO:
        raise MalformedRequest(f"the field {text!r} is not allowed")
    return text


def _field_name(name: bytes) -> str:
    if len(name) <= _REMEMBERED_BYTES_MAX:
        return _short_field_name(name)
    return _short_field_name.__wrapped__(name)


def parse_timeout(text: str) -> float:
    """Parse a ``grpc-timeout``, up to 8 digits and a unit, to seconds. Raises CallRefused."""
    match = _TIMEOUT.fullmatch(text)
    if match is None:
        raise CallRefused(Status.INTERNAL, f"grpc-timeout {text!r} is malformed")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def _binary(name: str, value: str) -> bytes:
    try:
        last = value.rpartition(",")[2].strip().rstrip("=")
        return base64.b64decode(last + "=" * (-len(last) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CallRefused(Status.INTERNAL, f"the metadata {name!r} is not base64") from error
