"""The changes that a command made, for services that depend on the metadata."""

from __future__ import annotations

import msgspec

from mq.protocol.numbers import QueueOffset


class Changes(msgspec.Struct, frozen=True):
    """The topics, groups and other entries that a command changed."""

    topics: tuple[str, ...] = ()
    """Topics that were created, changed or deleted."""
    deleted_topics: tuple[str, ...] = ()
    """Topics whose consume queues must be dropped."""
    hidden_topics: tuple[str, ...] = ()
    """Deleted topics whose consume queues stay, since they can be restored."""
    groups: tuple[str, ...] = ()
    """Groups that were created, changed or deleted."""
    offsets: int = 0
    """Number of consumer offsets that were set."""
    replicas: tuple[str, ...] = ()
    """Replicas whose address changed."""
    begun_queues: tuple[tuple[str, int, QueueOffset], ...] = ()
    """Queues of a new topic (topic, queue id) with their first offset, which is not 0: see `FormerTopics`."""
    expired: tuple[tuple[str, int, QueueOffset], ...] = ()
    """Queues (topic, queue id) whose messages before this offset are no longer served."""
