"""Reads encoded properties without decoding all of them."""

from __future__ import annotations

from mq.protocol import properties as props
from mq.protocol.hashes import tag_code

VALUE_END = ord(props.VALUE_END)
TAGS = b"TAGS\x01"
UNIQUE_KEY = b"UNIQ_KEY\x01"
RECEIPT = "POP_CK\x01"
_TAG_CODES_MAX = 4096
_TAG_BYTES_MAX = 128


class TagCodes(dict[bytes, int]):
    """Caches the codes of tags: a lookup costs a tenth of the computation."""

    def __missing__(self, tags: bytes) -> int:
        code = tag_code(tags.decode()) if tags else 0
        if len(self) < _TAG_CODES_MAX and len(tags) <= _TAG_BYTES_MAX:
            self[tags] = code
        return code
