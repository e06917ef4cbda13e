"""CBOR from peers and files, read without the parts of the format that run code or take memory at the sender's wish.

Everything that raftlog writes is maps with text keys, arrays, text, bytes, integers and a few constants. CBOR can say
much more: tagged values become regular expressions, numbers with exponents of any size, dates, or references to what
came before; arrays and texts may come without a length. Nothing of that is accepted.
"""

from __future__ import annotations

from typing import Any, Final

import cbor2

_DEPTH_MAX: Final = 8
_TAGS_MAX: Final = 300
_KNOWN_TAGS: Final = (*range(_TAGS_MAX), 1004, 43000, 55799)
"""Every tag for which cbor2 has a decoder of its own; all others come to the tag hook."""


def _refuse(*_: Any) -> Any:
    raise cbor2.CBORDecodeError("a tagged value")


_NO_TAGS: Final = dict.fromkeys(_KNOWN_TAGS, _refuse)


def decode_plain(data: bytes) -> Any:
    """The value that ``data`` encodes. Raises ValueError for what is not CBOR, or not of the plain kind."""
    try:
        return cbor2.loads(
            data,
            tag_hook=_refuse,
            semantic_decoders=_NO_TAGS,
            max_depth=_DEPTH_MAX,
            allow_indefinite=False,
            strict_hashable_types=True,
        )
    except cbor2.CBORDecodeError as error:
        raise ValueError(str(error)) from error
