"""Encodes and decodes the bodies of our own request 9009, ends of many topics; `docs/wire-protocol.md` draws them.

Brokers and Spark's driver share this module: it needs only the standard library.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Final, NamedTuple, cast

from mq.protocol.bulk import BulkError
from mq.protocol.numbers import QueueOffset

ENDS_TOPICS_MAX: Final = 4096
"""Topics in one request."""
ENDS_QUEUES_MAX: Final = 64 * 1024
"""Queues in one answer, which is 1 MiB, unless a single topic has more."""

_LENGTH: Final = Struct(">H")
_HEAD: Final = Struct(">II")
_TOPIC: Final = Struct(">IH")
_LONG: Final = 8


class TopicEnds(NamedTuple):
    """The queues of a topic from id 0 on: each has messages from its first offset up to but not including its end."""

    identity: str
    firsts: Sequence[QueueOffset]
    ends: Sequence[QueueOffset]


def encode_topics(topics: Iterable[str]) -> bytes:
    """Encode the names of topics as the body of the request."""
    names = [name.encode() for name in topics]
    return b"".join(chain.from_iterable((_LENGTH.pack(len(name)), name) for name in names))


def decode_topics(body: bytes | memoryview) -> list[str]:
    """Decode the body of the request. Raises BulkError, also for a topic that is named twice."""
    data = bytes(body)
    topics: list[str] = []
    at = 0
    while at < len(data):
        begin = at + _LENGTH.size
        at = begin + (_LENGTH.unpack_from(data, at)[0] if begin <= len(data) else 0)
        if at > len(data) or at == begin or len(topics) == ENDS_TOPICS_MAX:
            break
        try:
            topics.append(data[begin:at].decode())
        except UnicodeDecodeError as error:
            raise BulkError(f"the name of topic {len(topics)} is not UTF-8") from error
    else:
        if topics and len(set(topics)) == len(topics):
            return topics
    raise BulkError(
        f"the {len(data)} bytes are not 1 to {ENDS_TOPICS_MAX} different names of topics, each after its length"
    )


def encode_ends(topics: Sequence[TopicEnds]) -> bytes:
    """Encode the body of the response: the ends of as many topics as fit, in the order of the request."""
    identities = [each.identity.encode() for each in topics]
    heads = [_TOPIC.pack(len(each.ends), len(name)) for each, name in zip(topics, identities, strict=True)]
    longs = array("q", chain.from_iterable(each.firsts for each in topics))
    queues = len(longs)
    longs.extend(chain.from_iterable(each.ends for each in topics))
    if sys.byteorder == "little":
        longs.byteswap()
    return b"".join((_HEAD.pack(len(topics), queues), *heads, longs.tobytes(), *identities))


def decode_ends(body: bytes | memoryview) -> list[TopicEnds]:
    """Decode the body of the response. Raises BulkError."""
    view = memoryview(body)
    if len(view) < _HEAD.size:
        raise BulkError(f"the ends of topics stop after {len(view)} bytes")
    topics, queues = _HEAD.unpack_from(view)
    longs_at = _HEAD.size + topics * _TOPIC.size
    text_at = longs_at + 2 * queues * _LONG
    if len(view) < text_at:
        raise BulkError(f"the ends of {topics} topics with {queues} queues stop after {len(view)} bytes")
    heads = list(_TOPIC.iter_unpack(view[_HEAD.size : longs_at]))
    if sum(count for count, _ in heads) != queues or sum(length for _, length in heads) != len(view) - text_at:
        raise BulkError(
            f"{topics} topics do not have the announced {queues} queues and {len(view) - text_at} bytes of text"
        )
    longs = array("q", bytes(view[longs_at:text_at]))
    if sys.byteorder == "little":
        longs.byteswap()
    offsets = cast("Sequence[QueueOffset]", longs)
    places = pairwise(accumulate((count for count, _ in heads), initial=0))
    texts = pairwise(accumulate((length for _, length in heads), initial=text_at))
    try:
        return [
            TopicEnds(str(view[begin:end], "utf-8"), offsets[first:last], offsets[queues + first : queues + last])
            for (first, last), (begin, end) in zip(places, texts, strict=True)
        ]
    except UnicodeDecodeError as error:
        raise BulkError("the identity of a topic is not UTF-8") from error
