"""Says what the deletion of a topic or consumer group would lose, before it is made."""

from __future__ import annotations

from contextlib import suppress

from mq.client.admin import Admin
from mq.client.errors import TopicNotFound
from mq.inspection.formatting import some_of
from mq.protocol.names import dead_letter_topic


async def losses_of_topic(admin: Admin, topic: str) -> list[str]:
    """Say what is lost if the topic is deleted, as clauses without a subject. Raises TopicNotFound, ClientError."""
    ends = await admin.topic_stats(topic)
    losses = [f"has {sum(each.max_offset - each.min_offset for each in ends.values()):,} messages"]
    lags: dict[str, int] = {}
    for name, queues in (await admin.all_progress()).items():
        own = [each for queue, each in queues.items() if queue.topic == topic]
        if own:
            lags[name] = sum(max(each.end - each.offset, 0) for each in own)
    if unread := {name: count for name, count in lags.items() if count}:
        most_first = sorted(unread, key=lambda name: (-unread[name], name))
        losses.append(f"has messages to consume for {some_of([f'{name} ({unread[name]:,})' for name in most_first])}")
    if lags:
        losses.append(f"has offsets of {some_of(list(lags))}")
    return losses


async def losses_of_group(admin: Admin, group: str, *, topics: bool) -> list[str]:
    """Say what is lost if the group is deleted, with ``topics`` including its retry and dead letter topics, as clauses.

    Raises ClientError.
    """
    progress = await admin.group_progress(group)
    lag = sum(max(each.end - each.offset, 0) for each in progress.values())
    members = len(await admin.group_members(group))
    losses = [f"has {members:,} member{'s' if members != 1 else ''}", f"has {lag:,} messages to consume"]
    if members:
        losses[0] += f", and {'they bring' if members != 1 else 'it brings'} the group back while running"
    if topics:
        letters = 0
        with suppress(TopicNotFound):
            ends = await admin.topic_stats(dead_letter_topic(group))
            letters = sum(each.max_offset - each.min_offset for each in ends.values())
        losses.append(f"has {letters:,} dead letters, which are deleted, too")
    return losses
