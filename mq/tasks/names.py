"""Names of topics and groups for queues and exchanges, whose names may have any characters. Pure."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

NAME_LENGTH_MAX: Final = 100
"""The limit with which the dead letter topic of the group of this name is valid, too."""
_DIGEST_LENGTH: Final = 32
_ESCAPED: Final = re.compile(rb"[^A-Za-z0-9_-]")


def escape(name: str) -> str:
    """Escape a name for topics, as in a URL: `a.b` becomes `a%2Eb`. Different names stay different."""
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], name.encode("utf-8", "surrogatepass")).decode()


@lru_cache(maxsize=4096)
def queue_topic(prefix: str, queue: str) -> str:
    """Return the topic of a queue, which is also the name of its consumer group."""
    return _fit(f"{escape(prefix)}%q_{escape(queue)}")


def is_queue_topic(prefix: str, topic: str) -> bool:
    """Return whether `topic` is the topic of a queue."""
    return topic.startswith(f"{escape(prefix)}%q_")


def exchange_topic(prefix: str, exchange: str) -> str:
    """Return the topic to which messages of an exchange are broadcast."""
    return _fit(f"{escape(prefix)}%x_{escape(exchange)}")


def bindings_topic(prefix: str) -> str:
    """Return the topic whose attribute changes when bindings change."""
    return _fit(f"{escape(prefix)}%bindings")


def broadcast_group(prefix: str) -> str:
    """Return the group with which processes read broadcasts. It stores no offsets."""
    return _fit(f"{escape(prefix)}%broadcasts")


def _fit(name: str) -> str:
    """The name, or its beginning and a digest if it is too long; no escaped name has the character between them."""
    if len(name) <= NAME_LENGTH_MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}|{digest}"
