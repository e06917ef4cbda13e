"""Decodes CBOR from peers and files, without the parts of the format that run code or use much memory.

Everything that we write consists of maps, nearly all of them with text keys, arrays, text, bytes, integers and a few
constants. CBOR has much more: tagged values become regular expressions, numbers with exponents of any size, dates, or
references to earlier values; arrays and texts may lack a length. All of that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import cbor2

_DEPTH_MAX: Final = 8
_TAGS_MAX: Final = 300
_KNOWN_TAGS: Final = (*range(_TAGS_MAX), 1004, 43000, 55799)
"""Every tag for which cbor2 has a built-in decoder; all others reach the tag hook."""
_WHOLE_NUMBER: Final = 2
"""The tag of bytes that encode a whole number, most significant byte first."""


def decode_safe(data: bytes, *, number_bytes_max: int = 8, any_key: bool = False) -> Any:
    """The decoded value.

    Args:
        number_bytes_max: size of the largest accepted nonnegative whole number beyond 64 bits.
        any_key: whether maps may have other keys than text and bytes.

    Raises ValueError for invalid CBOR, and for refused parts of it.
    """
    try:
        return cbor2.loads(
            data,
            tag_hook=_refuse,
            semantic_decoders=_decoders(number_bytes_max),
            max_depth=_DEPTH_MAX,
            allow_indefinite=False,
            strict_hashable_types=not any_key,
        )
    except cbor2.CBORDecodeError as error:
        raise ValueError(str(error)) from error


@cache
def _decoders(number_bytes_max: int) -> Mapping[int, Callable[..., Any]]:
    decoders: dict[int, Callable[..., Any]] = dict.fromkeys(_KNOWN_TAGS, _refuse)
    if number_bytes_max > 8:

        def whole_number(value: object, *_: Any) -> int:
            if not isinstance(value, bytes) or len(value) > number_bytes_max:
                raise cbor2.CBORDecodeError(f"a whole number has more than {number_bytes_max} bytes")
            return int.from_bytes(value)

        decoders[_WHOLE_NUMBER] = whole_number
    return decoders


def _refuse(*_: Any) -> Any:
    raise cbor2.CBORDecodeError("tagged values are not allowed")
