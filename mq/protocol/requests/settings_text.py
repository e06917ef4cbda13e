"""Encodes and decodes settings as lines ``name=value``, the body of request codes 25, 26, 318 and 319."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.protocol.errors import BodyError

PROPERTIES_LINES_MAX: Final = 1000


def encode_properties(values: Mapping[str, str]) -> bytes:
    """Encode settings as lines ``name=value``, sorted by name."""
    return "".join(f"{name}={values[name]}\n" for name in sorted(values)).encode()


def decode_properties(data: bytes | memoryview) -> dict[str, str]:
    """Parse lines ``name=value``. Blank lines and lines that begin with # or ! are ignored."""
    try:
        lines = bytes(data).decode().splitlines()
    except UnicodeDecodeError as error:
        raise BodyError(f"settings of {len(data)} bytes are not UTF-8") from error
    if len(lines) > PROPERTIES_LINES_MAX:
        raise BodyError(f"settings of {len(lines)} lines; maximum: {PROPERTIES_LINES_MAX}")
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise BodyError(f"settings: line {number} is not name=value: {text[:80]!r}")
        values[name.strip()] = value.strip()
    return values
