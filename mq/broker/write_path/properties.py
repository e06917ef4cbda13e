"""Encoded properties: access without decoding all of them."""

from __future__ import annotations

from mq.protocol import properties as props
from mq.protocol.hashes import tag_code

VALUE_END = ord(props.VALUE_END)
TAGS = b"TAGS\x01"
UNIQUE_KEY = b"UNIQ_KEY\x01"
RECEIPT = "POP_CK\x01"
_TAG_CODES_MAX = 4096
_TAG_BYTES_MAX = 128


def value(properties: bytes, name: bytes) -> bytes:
    """The value of a property; ``name`` ends with its separator. Empty if it is missing."""
    at = properties.find(name)
    while at > 0 and properties[at - 1] != VALUE_END:
        at = properties.find(name, at + 1)
    if at < 0:
        return b""
    return properties[at + len(name) : properties.find(b"\x02", at)]


class TagCodes(dict[bytes, int]):
    """Cache of tag codes: a lookup costs a tenth of the computation."""

    def __missing__(self, tags: bytes) -> int:
        code = tag_code(tags.decode()) if tags else 0
        if len(self) < _TAG_CODES_MAX and len(tags) <= _TAG_BYTES_MAX:
            self[tags] = code
        return code
