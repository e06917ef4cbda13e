"""Pages of the list of consumer groups, of one group, and of the reset of its offsets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

import msgspec
import trio

from mq.client.consume.offsets import ConsumeFrom
from mq.client.message import MessageQueue
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, fault_of, one, require
from mq.console.views.charts import lag_chart
from mq.console.views.groups import (
    lag_rows,
    lag_seconds,
    member_rows,
    most_behind,
    own_groups,
    reasons,
    removed_member_rows,
    rows,
    settings_of,
    waiting_count,
)
from mq.console.views.links import link
from mq.console.views.resets import preview_rows
from mq.console.views.text import duration, list_page, names_with, number
from mq.inspection.cluster_queries import QueryingAdmin


async def group_list(visit: Visit) -> Page:
    """Build a page of the list of consumer groups with their lags, from three requests per broker group in all."""
    configs = await visit.watch.groups.get()
    progress = await visit.watch.progress.get()
    progress_by_group = progress.value or {}
    part, order = visit.query.get("part", ""), visit.query.get("order", "name")
    names = names_with({*(configs.value or {}), *progress_by_group}, part)
    names = own_groups(names, with_system=visit.query.get("system") == "yes")
    if order == "behind":
        names = most_behind(names, progress_by_group)
    page = list_page(names, visit.page)
    values = {
        "page": page,
        "rows": rows(page, configs.value or {}, progress_by_group, visit.now_ms),
        "part": part,
        "order": order,
        "system": visit.query.get("system", ""),
        "fault": fault_of(configs) or fault_of(progress) or await visit.watch.left_out(),
    }
    return Page("groups.html", "Consumer groups", values)


async def group(visit: Visit) -> Page:
    """Build the page of one consumer group: its queues, members and settings."""
    name = visit.name()
    progress = await visit.watch.querying_admin.group_progress(name)
    configs = (await visit.watch.groups.get()).value
    cached = await visit.watch.members(name).get()
    members = cached.value or []
    if not progress and not members and configs is not None and name not in configs:
        raise NotFound(f"there is no consumer group {name}")
    own = (configs or {}).get(name, {})
    values = {
        "name": name,
        "queues": lag_rows(progress, members, visit.now_ms),
        "behind": number(waiting_count(progress)),
        "lag": duration(lag_seconds(progress, visit.now_ms)),
        "members": member_rows(members, visit.now_ms),
        "can_remove": not await visit.watch.is_stock(),
        "removed": removed_member_rows((await visit.watch.removed_members(name).get()).value or ()),
        "reasons": reasons(progress, cached.value, own, visit.now_ms),
        "chart": lag_chart(visit.watch.lags.get(name, trio.current_time()), trio.current_time()),
        "settings": settings_of(own),
        "enabled": all(each.consume_enable for each in own.values()),
        "topics": sorted({queue.topic for queue in progress}),
        "fault": fault_of(cached),
    }
    return Page("group.html", name, values)


async def reset_preview(visit: Visit) -> Page:
    """Build the page that says what a reset would change."""
    name, topic, to = visit.name(), visit.name("topic"), visit.name("to")
    position = position_of(to, visit.query.get("time", ""))
    targets = await _targets(visit.watch.querying_admin, topic, position)
    progress = await visit.watch.querying_admin.group_progress(name)
    values = {
        "name": name,
        "topic": topic,
        "to": to,
        "time": visit.query.get("time", ""),
        "rows": preview_rows(targets, progress),
    }
    return Page("reset.html", f"Reset {name}", values, live=False)


async def reset(visit: Visit, form: Form) -> Outcome:
    """Reset the offsets of a group in a topic, as the preview said."""
    name, topic, to = require(form, "name"), require(form, "topic"), require(form, "to")
    position = position_of(to, one(form, "time"))
    offsets = await visit.watch.changing_admin.reset_group(name, topic, position)
    text = f"{name} goes on in {topic} at the {_position_text(position)} in {len(offsets)} queues."
    return Outcome(link("/group", name=name), text, f"{name} in {topic} to the {_position_text(position)}")


async def enable(visit: Visit, form: Form) -> Outcome:
    """Allow a group to consume, or forbid it."""
    name = require(form, "name")
    wanted = one(form, "enabled") == "yes"
    configs = (await visit.watch.changing_admin.consumer_groups()).get(name)
    if not configs:
        raise NotFound(f"there is no consumer group {name}")
    config = msgspec.structs.replace(configs[min(configs)], consume_enable=wanted)
    await visit.watch.changing_admin.put_consumer_group(config)
    text = f"{name} {'goes on' if wanted else 'is paused: it gets no messages'}."
    return Outcome(link("/group", name=name), text, f"{name}: {'goes on' if wanted else 'paused'}")


def position_of(to: str, time: str) -> ConsumeFrom:
    """Parse the position to which a reset moves: first, last or a time in UTC. Raises InputInvalid."""
    if to == "first":
        return "first"
    if to == "last":
        return "last"
    if to != "time":
        raise InputInvalid(f"{to[:40]!r} is neither first nor last nor a time")
    try:
        moment = dt.datetime.fromisoformat(time)
    except ValueError as error:
        raise InputInvalid(f"{time[:40]!r} is not a time such as 2026-03-01T09:30") from error
    return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment


async def _targets(admin: QueryingAdmin, topic: str, position: ConsumeFrom) -> dict[MessageQueue, int]:
    ends = await admin.topic_stats(topic)
    if position == "first":
        return {queue: each.min_offset for queue, each in ends.items()}
    if position == "last":
        return {queue: each.max_offset for queue, each in ends.items()}
    return await offsets_of_all(admin, ends, position)


async def offsets_of_all(
    admin: QueryingAdmin, queues: Collection[MessageQueue], time: dt.datetime
) -> dict[MessageQueue, int]:
    """Return, for each queue, the offset of the first message that was stored at or after a time.

    Raises ClientError if one cannot be told, as while an archive does not answer: a page that left it out would look as
    if the queue had nothing.
    """
    offsets = await admin.offsets_at(dict.fromkeys(queues, time))
    return {queue: offsets[queue] if queue in offsets else await admin.offset(queue, time) for queue in queues}


def _position_text(position: ConsumeFrom) -> str:
    if position == "first":
        return "first message"
    return "end" if position == "last" else f"first message stored from {position.isoformat()} on"
