"""Pages of the list of topics and of one topic, and the creation and change of topics."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from mq.client.errors import BrokerError, ClientError
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, fault_of, integer, one, require
from mq.console.views.links import link
from mq.console.views.text import list_page, names_with
from mq.console.views.topics import (
    age_of_last,
    bytes_words,
    names_of_kind,
    only_offsets,
    own_topics,
    queue_rows,
    reader_rows,
    rows,
    sender_rows,
    sent_words,
    settings_of,
    sizes_of,
    total,
)
from mq.protocol.messages.message_types import MESSAGE_TYPE_ATTRIBUTE, MESSAGE_TYPES
from mq.protocol.names import NameRefused, check_topic, is_system_topic
from mq.protocol.requests.broker import BrokerStatsData
from mq.protocol.requests.compaction_attributes import CLEANUP_POLICY
from mq.protocol.requests.retention_attributes import RESERVE_TIME
from mq.protocol.requests.topic_use import TopicUse

QUEUES_MAX = 1024
SENT: Final = ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE")
"""Names of figures: messages and bytes that are sent to a topic."""


async def topic_list(visit: Visit) -> Page:
    """Build a page of the list of topics with message counts, from two requests per broker group in all."""
    cached = await visit.watch.topics.get()
    configs = cached.value
    fault = fault_of(cached)
    if configs is None:  # without the permission of an administrator: the names, which every user may see
        names_seen = await visit.watch.names.get()
        names, fault = names_seen.value or [], fault_of(names_seen) or fault
        configs = {}
    else:
        names = list(configs)
    part, kind = visit.query.get("part", ""), visit.query.get("kind", "ordinary")
    own = own_topics((await visit.watch.cluster.get()).value or ())
    page = list_page(names_of_kind(names_with(names, part), kind, own), visit.page)
    readable = {
        name: [broker for broker, config in configs[name].items() if config.perm & 4]
        for name in page.rows
        if name in configs
    }
    counts = None
    try:
        counts = await visit.watch.querying_admin.message_counts(readable)
    except ClientError as error:
        fault = fault or str(error)
    fault = fault or await visit.watch.left_out()
    values = {"page": page, "rows": rows(page, configs, counts or {}, own), "part": part, "kind": kind, "fault": fault}
    return Page("topics.html", "Topics", values)


async def topic(visit: Visit) -> Page:
    """Build the page of one topic: its queues, settings and consumers."""
    name = visit.name()
    ends = await visit.watch.querying_admin.topic_stats(name)
    fault = ""
    try:
        configs = await visit.watch.querying_admin.topic_config(name)
    except BrokerError as error:
        configs, fault = {}, error.remark or str(error)
    sent_stats: list[dict[str, BrokerStatsData]] = []
    with suppress(BrokerError):  # figures are for administrators
        sent_stats = [await visit.watch.querying_admin.figure(figure, name) for figure in SENT]
    use: dict[str, TopicUse] | None = None
    with suppress(BrokerError):  # this, too
        use = await visit.watch.querying_admin.topic_use(name)
    sizes = sizes_of(use or {})
    progress, offsets = await visit.watch.progress.get(), await visit.watch.offsets.get()
    only = only_offsets(progress.value or {}, offsets.value or {}, ends)
    groups = (await visit.watch.groups.get()).value or {}
    values = {
        "name": name,
        "queues": queue_rows(ends, sizes),
        "nbytes": bytes_words(sizes.values()),
        "senders": None if use is None else sender_rows(use, visit.now_ms),
        "looked_at": sum(each.looked_at for each in (use or {}).values()),
        "total": total(ends),
        "last": age_of_last(ends, visit.now_ms),
        "sent": sent_words(*sent_stats) if sent_stats else "",
        "settings": settings_of(configs),
        "config": next(iter(configs.values()), None),
        "readers": reader_rows(name, progress.value or {}, only, groups),
        "fault": fault or fault_of(progress) or fault_of(offsets),
        "is_system": is_system_topic(name),
        "attributes": sorted(
            {MESSAGE_TYPE_ATTRIBUTE, RESERVE_TIME, CLEANUP_POLICY}.union(
                *(each.attributes for each in configs.values())
            )
        ),
    }
    return Page("topic.html", name, values)


async def new_topic(visit: Visit) -> Page:
    """Build the page with the form for a new topic."""
    return Page("new_topic.html", "New topic", {"types": MESSAGE_TYPES}, live=False)


async def create(visit: Visit, form: Form) -> Outcome:
    """Create a topic in every broker group."""
    name = require(form, "name")
    queues = integer(form, "queues", 1, QUEUES_MAX)
    kind = one(form, "type") or None
    try:
        check_topic(name)
    except NameRefused as error:
        raise InputInvalid(str(error)) from error
    if kind is not None and kind not in MESSAGE_TYPES:
        raise InputInvalid(f"{kind[:40]} is not a type of messages")
    if name in await visit.watch.changing_admin.topics():
        raise InputInvalid(f"topic {name} already exists; change it on its page")
    await visit.watch.changing_admin.create_topic(name, queues, message_type=kind)
    return Outcome(link("/topic", name=name), f"Topic {name} was created with {queues} queues per broker group.", name)


async def change(visit: Visit, form: Form) -> Outcome:
    """Change the queues and the permissions of a topic. All else stays as it is."""
    name = require(form, "name")
    queues = integer(form, "queues", 1, QUEUES_MAX)
    perm = sum(bit for word, bit in (("read", 4), ("write", 2)) if word in form.get("access", ()))
    configs = await visit.watch.changing_admin.topic_config(name)
    config = next(iter(configs.values()), None)
    if config is None:
        raise NotFound(f"there is no topic {name}")
    if is_system_topic(name):
        raise InputInvalid(f"{name} belongs to the brokers")
    largest = max(max(each.read_queue_nums, each.write_queue_nums) for each in configs.values())
    if queues < largest:
        raise InputInvalid(f"{name} has {largest} queues; fewer would hide messages. Use raftmq topic update")
    await visit.watch.changing_admin.create_topic(
        name,
        queues,
        perm=perm,
        order=config.order,
        filter_type=config.topic_filter_type,
        sys_flag=config.topic_sys_flag,
    )
    before = f"{largest} queues, access {config.perm}"
    return Outcome(link("/topic", name=name), f"Topic {name} was changed.", f"{name}: {before} to {queues}, {perm}")


async def change_attribute(visit: Visit, form: Form) -> Outcome:
    """Set or remove an attribute of a topic in every broker group that has the topic. All else stays as it is."""
    name, attribute = require(form, "name"), require(form, "attribute")
    value = one(form, "value") or None
    if attribute[0] in "+-" or not attribute.isprintable() or not (value or "").isprintable():
        raise InputInvalid(
            f"{attribute[:40]!r} is not an attribute that brokers know: give a name such as message.type, and a value"
        )
    if is_system_topic(name):
        raise InputInvalid(f"{name} belongs to the brokers")
    configs = await visit.watch.changing_admin.topic_config(name)
    for broker, config in sorted(configs.items()):
        await visit.watch.changing_admin.create_topic(
            name,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            perm=config.perm,
            order=config.order,
            filter_type=config.topic_filter_type,
            sys_flag=config.topic_sys_flag,
            attributes={attribute: value},
            broker=broker,
        )
    text = f"{attribute} is {value} now." if value else f"{attribute} was removed."
    return Outcome(link("/topic", name=name), text, f"{name}: {attribute} = {value or 'none'}")
