"""Collects the history of a message: its trace, its redeliveries, and the progress of the consumer groups."""

from __future__ import annotations

from typing import Any, Final

import trio

from mq.client.errors import ClientError, TopicNotFound
from mq.client.message import ReceivedMessage
from mq.console.pages.visit import Visit, fault_of
from mq.console.views.timeline import copy_topics, group_states, timeline
from mq.console.views.topics import only_offsets
from mq.console.watch import words_of
from mq.protocol.messages.trace import MessageTrace
from mq.protocol.numbers import FIRST_OFFSET, QueueOffset
from mq.protocol.requests.topics import QueueEnds

READ_SECONDS: Final = 5.0
GROUPS_MAX: Final = 10
"""Consumer groups whose redeliveries are looked for; each costs up to three requests per broker group."""
ASKED_AT_ONCE: Final = 8
COPIES_MAX: Final = 32


async def timeline_of(visit: Visit, message: ReceivedMessage) -> dict[str, Any]:
    """Return the values for the timeline on the page of a message."""
    progress, offsets = await visit.watch.progress.get(), await visit.watch.offsets.get()
    names = await visit.watch.names.get()
    progress_by_group = progress.value or {}
    ends = {message.queue: QueueEnds(FIRST_OFFSET, QueueOffset(message.queue_offset + 1), 0)}
    only = only_offsets(progress_by_group, offsets.value or {}, ends)
    groups = group_states(message.queue, message.queue_offset, {**progress_by_group, **only})
    group_topics = copy_topics([each.group for each in groups[:GROUPS_MAX]], message.topic, names.value or [])
    story: MessageTrace | None = None
    trace_fault = ""
    copies: list[tuple[str, ReceivedMessage]] = []
    limiter = trio.CapacityLimiter(ASKED_AT_ONCE)
    querying_admin = visit.watch.querying_admin

    async def ask_trace() -> None:
        nonlocal story, trace_fault
        try:
            story = await querying_admin.trace(message.message_id)
        except TopicNotFound:
            return
        except ClientError as error:
            trace_fault = words_of(error)

    async def ask_copies(group: str, topic: str) -> None:
        async with limiter:
            try:
                messages = await querying_admin.messages_by_key(
                    topic, message.message_id, count_max=COPIES_MAX, unique=True
                )
            except ClientError:
                return  # the topic was deleted meanwhile, or it may not be read: the rest is shown
            copies.extend((group, each) for each in messages)

    is_partial = True
    with trio.move_on_after(READ_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_trace)
            for group, topic in group_topics:
                nursery.start_soon(ask_copies, group, topic)
        is_partial = False
    steps = timeline(message, story, copies, hide_bodies=visit.settings.hide_bodies)
    return {
        "steps": steps,
        "groups": groups,
        "has_trace": story is not None and story.found,
        "groups_left_out": max(0, len(groups) - GROUPS_MAX),
        "timeline_fault": trace_fault or fault_of(progress) or fault_of(offsets),
        "timeline_is_partial": is_partial,
    }
