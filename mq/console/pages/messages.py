"""Pages of a topic's messages, found by id, key, time and offset or the newest first, and of one message."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

import trio

from mq.client.consume.pull_consumer import PullConsumer
from mq.client.filters import Sql
from mq.client.message import MessageQueue, ReceivedMessage
from mq.console.pages.groups import offsets_of_all, position_of
from mq.console.pages.tail import sql_of
from mq.console.pages.timeline import timeline_of
from mq.console.pages.visit import InputInvalid, NotFound, Page, Visit
from mq.console.tails import GENTLE
from mq.console.views.links import link
from mq.console.views.messages import (
    BodyForm,
    MessageRow,
    body_of,
    message_row,
    message_rows,
    property_rows,
    record_of,
)
from mq.filter.subscription import SubscriptionError
from mq.inspection.cluster_queries import QueryingAdmin
from mq.inspection.dead_letters import DEALT_WITH_BY
from mq.protocol.requests.topics import QueueEnds

COUNT_DEFAULT, COUNT_MAX = 20, 200
LOOKED_AT_MAX: Final = 10_000
"""Offsets of each queue in which messages with a tag, or of an SQL92 expression, are looked for."""
QUEUES_MAX: Final = 256
"""A topic with more is browsed queue by queue."""
KEPT_MAX: Final = 10_000
"""Rows in memory; the page shows fewer."""
CHOICES: Final = ("by", "value", "time", "offset", "queue", "tags", "sql", "count")
"""The parameters by which the address chooses messages, besides the topic."""
READ_SECONDS: Final = 5.0
"""Seconds to read messages; later ones are left out, and the page says so."""
BODY_BYTES_MAX: Final = 64 * 1024
"""More of a body is shown on request only."""

WITHOUT_SQL: Final = (
    "The brokers sent nothing. Those of Apache RocketMQ filter by SQL92 with the setting enablePropertyFilter=true only"
)


class FoundMessage(NamedTuple):
    """A message that was found: its store time, offset, queue, and row in the list."""

    stored_ms: int
    offset: int
    queue: MessageQueue
    row: MessageRow


async def browse(visit: Visit) -> Page:
    """Build the page of the messages that the address selects in a topic."""
    topic = visit.name("topic")
    query = visit.query
    by = by_of(query)
    count = min(max(1, visit.number("count", COUNT_DEFAULT)), COUNT_MAX)
    rows: list[MessageRow] = []
    is_partial = False
    fault = next_page = ""
    looked_at = 0
    querying_admin = visit.watch.querying_admin
    ends = await querying_admin.topic_stats(topic)
    try:
        if by in ("key", "id"):
            value = query.get("value", "").strip()
            if value:
                hits = await querying_admin.messages_by_key(topic, value, count_max=min(count, 64), unique=by == "id")
                rows = message_rows(hits[::-1], hide_bodies=visit.settings.hide_bodies)
        else:
            queues = _queues_named(list(ends), query.get("queue", ""))
            sql, tags = sql_of(visit), query.get("tags", "").strip() or "*"
            looked_at = LOOKED_AT_MAX if sql or tags != "*" else 0
            is_newest = by == "newest"
            if places := places_of(query.get("at", ""), queues):
                ranges = _within(ends, places, looked_at or count, is_newest=is_newest)
            else:
                ranges = await _ranges(querying_admin, ends, queues, by, visit, looked_at or count)
            message_filter = Sql(sql) if sql else tags
            found_messages, unshown, is_partial = await _read(visit, ranges, count, message_filter, is_newest=is_newest)
            rows = [each.row for each in found_messages]
            if not is_partial:
                next_page = next_places(queues, ranges, ends, unshown, is_newest=is_newest)
            if sql and is_partial and not rows and await visit.watch.is_stock():
                fault = WITHOUT_SQL
    except (InputInvalid, SubscriptionError, ValueError) as error:
        fault = str(error)
    fault = fault or await visit.watch.left_out()
    parameters = {"topic": topic} | {name: query.get(name, "") for name in CHOICES}
    values = {
        "topic": topic,
        "by": by,
        "value": query.get("value", ""),
        "time": query.get("time", ""),
        "offset": query.get("offset", ""),
        "queue": query.get("queue", ""),
        "tags": query.get("tags", ""),
        "sql": query.get("sql", ""),
        "looked_at": looked_at,
        "count": count,
        "queues": [f"{queue.broker_name}/{queue.queue_id}" for queue in ends],
        "rows": rows,
        "is_not_found": by in ("key", "id") and bool(query.get("value", "").strip()) and not rows and not fault,
        "following": link("/messages", **parameters, at=next_page) if next_page else "",
        "first": link("/messages", **parameters),
        "is_first": not query.get("at"),
        "is_partial": is_partial,
        "fault": fault,
        "hide_bodies": visit.settings.hide_bodies,
    }
    return Page("messages.html", f"Messages of {topic}", values, live=False)


def by_of(query: Mapping[str, str]) -> str:
    """Return how the address selects messages. A filled field takes precedence over newest and oldest."""
    by = query.get("by", "newest")
    choices = (("value", "key"), ("time", "time"), ("offset", "offset"))
    if by in ("newest", "oldest"):
        return next((choice for field, choice in choices if query.get(field, "").strip()), by)
    return by


async def message(visit: Visit) -> Page:
    """Build the page of one message, found by broker group, queue and offset."""
    topic, broker = visit.name("topic"), visit.name("broker")
    queue = MessageQueue(topic, broker, visit.number("queue", 0))
    offset = visit.number("offset", 0)
    received_message = await read_at(visit, queue, offset)
    if received_message is None:
        raise NotFound(
            f"{topic} {broker}/{queue.queue_id} has no message at offset {offset}: it was deleted, or is not there yet"
        )
    form = visit.query.get("as", "auto")
    whole = visit.query.get("whole") == "yes"
    hides_bodies = visit.settings.hide_bodies
    values = {
        "topic": topic,
        "broker": broker,
        "queue": queue.queue_id,
        "offset": offset,
        "record": record_of(received_message),
        "properties": [] if hides_bodies else property_rows(received_message),
        "body": None
        if hides_bodies
        else body_of(received_message, BodyForm.from_name(form), None if whole else BODY_BYTES_MAX),
        "shown": form,
        "hide_bodies": hides_bodies,
    } | await timeline_of(visit, received_message)
    return Page("message.html", f"Message at {broker}/{queue.queue_id} {offset}", values, live=False)


async def read_at(visit: Visit, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
    """Read the message at an offset; None if there is none."""
    with trio.move_on_after(READ_SECONDS):
        async with _reader(visit) as consumer:
            await consumer.assign([queue])
            await consumer.seek(queue, offset)
            async for message in await consumer.read_to_end():
                return message if message.queue_offset == offset else None
    return None


def _reader(visit: Visit) -> PullConsumer:
    watch = visit.watch
    return PullConsumer(
        watch.namesrv, DEALT_WITH_BY, consume_from="last", timeout=READ_SECONDS, pull=GENTLE, remoting=watch.remoting
    )


def _queues_named(queues: list[MessageQueue], name: str) -> list[MessageQueue]:
    """The queue of this name, or all. Raises InputInvalid."""
    if name:
        queues = [queue for queue in queues if f"{queue.broker_name}/{queue.queue_id}" == name]
        if not queues:
            raise InputInvalid(f"there is no queue {name[:80]}")
    if len(queues) > QUEUES_MAX:
        raise InputInvalid(f"the topic has {len(queues)} queues: choose one")
    return sorted(queues)


async def _ranges(
    admin: QueryingAdmin,
    ends: Mapping[MessageQueue, QueueEnds],
    queues: list[MessageQueue],
    by: str,
    visit: Visit,
    count: int,
) -> dict[MessageQueue, tuple[int, int]]:
    """Map each queue to the offsets to read, from the first to before the second. Raises InputInvalid."""
    if by == "offset":
        text = visit.query.get("offset", "0") or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 19):
            raise InputInvalid(f"{text[:40]!r} is not an offset")
        starts = dict.fromkeys(queues, int(text))
    elif by == "time":
        position = position_of("time", visit.query.get("time", ""))
        assert isinstance(position, dt.datetime), f"a time is {position}"
        starts = await offsets_of_all(admin, queues, position)
    elif by == "oldest":
        starts = {queue: int(ends[queue].min_offset) for queue in queues}
    else:
        starts = {queue: ends[queue].max_offset - count for queue in queues}
    ranges = {}
    for queue, start in starts.items():
        first = max(start, ends[queue].min_offset)
        ranges[queue] = (first, min(first + count, ends[queue].max_offset))
    return {queue: (first, end) for queue, (first, end) in ranges.items() if first < end}


async def _read(
    visit: Visit, ranges: dict[MessageQueue, tuple[int, int]], count: int, filter_: str | Sql, *, is_newest: bool
) -> tuple[list[FoundMessage], Mapping[MessageQueue, int], bool]:
    """The messages in these ranges of offsets, of which the page shows ``count``; the first message of each queue that
    it does not show, in the order of the page; and whether the time was too short.

    Bodies are dropped at once: those of a page may be larger than the memory.
    """
    messages: list[FoundMessage] = []
    queues = set(ranges)
    unshown: dict[MessageQueue, int] = {}
    if queues:
        with trio.move_on_after(READ_SECONDS):
            async with _reader(visit) as consumer:
                await consumer.assign(ranges, filter_)
                for queue, (first, _) in ranges.items():
                    await consumer.seek(queue, first)
                async for each in await consumer.read_to_end():
                    if each.queue_offset < ranges[each.queue][1]:
                        row = message_row(each, hide_bodies=visit.settings.hide_bodies)
                        messages.append(
                            FoundMessage(each.record.store_timestamp_ms, each.queue_offset, each.queue, row)
                        )
                        if len(messages) >= KEPT_MAX:
                            messages = _first_messages(messages, count, unshown, is_newest=is_newest)
                    if consumer.position(each.queue) >= ranges[each.queue][1]:
                        queues.discard(each.queue)
                    if not queues:
                        break
                else:
                    queues.clear()
    return _first_messages(messages, count, unshown, is_newest=is_newest), unshown, bool(queues)


def _first_messages(
    messages: list[FoundMessage], count: int, unshown: dict[MessageQueue, int], *, is_newest: bool
) -> list[FoundMessage]:
    """The first ``count`` messages by store time, then by offset. Notes the others in ``unshown``."""
    messages = sorted(messages, key=itemgetter(0, 1), reverse=is_newest)
    # Store times may decrease with a new leader, so these need not be behind all that are shown of their queue.
    closer = max if is_newest else min
    for each in messages[count:]:
        unshown[each.queue] = closer(each.offset, unshown.get(each.queue, each.offset))
    return messages[:count]


def _within(
    ends: Mapping[MessageQueue, QueueEnds], places: Mapping[MessageQueue, int], count: int, *, is_newest: bool
) -> dict[MessageQueue, tuple[int, int]]:
    """The ranges of a further page: up to these offsets for the newest, otherwise from them on."""
    ranges = {}
    for queue, place in places.items():
        first, end = (place - count, place) if is_newest else (place, place + count)
        ranges[queue] = (max(first, ends[queue].min_offset), min(end, ends[queue].max_offset))
    return {queue: (first, end) for queue, (first, end) in ranges.items() if first < end}


def places_of(text: str, queues: Sequence[MessageQueue]) -> dict[MessageQueue, int]:
    """Parse the offset in each queue at which a page begins; none for the first page. Raises InputInvalid."""
    if not text:
        return {}
    parts = text.split(".")
    if len(parts) != len(queues) or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in parts):
        raise InputInvalid("the queues of the topic have changed since the previous page: begin again")
    return dict(zip(queues, map(int, parts), strict=True))


def next_places(
    queues: Sequence[MessageQueue],
    ranges: Mapping[MessageQueue, tuple[int, int]],
    ends: Mapping[MessageQueue, QueueEnds],
    unshown: Mapping[MessageQueue, int],
    *,
    is_newest: bool,
) -> str:
    """Format the offsets at which the next page begins, for the link to it; empty if this is the last page.

    Args:
        queues: in the order of the link.
        ranges: the offsets looked through for this page; a queue without some has no more in this direction.
        unshown: the next message that was found there and is not shown.
    """
    places = []
    is_more = False
    for queue in queues:
        first, last = ends[queue].min_offset, ends[queue].max_offset
        begin, end = ranges.get(queue, (first, first) if is_newest else (last, last))
        if is_newest:
            place = unshown[queue] + 1 if queue in unshown else begin
            is_more |= place > first
        else:
            place = unshown.get(queue, end)
            is_more |= place < last
        places.append(str(place))
    return ".".join(places) if is_more else ""
