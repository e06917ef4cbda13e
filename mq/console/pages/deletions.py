"""Deletes a topic or a consumer group, after a page that names the losses and asks for the name as confirmation."""

from __future__ import annotations

from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, one, require
from mq.console.views.links import link
from mq.inspection.deletion_losses import losses_of_group, losses_of_topic
from mq.protocol.names import is_system_topic


async def topic_preview(visit: Visit) -> Page:
    """Build the page that says what is lost if a topic is deleted."""
    name = visit.name()
    _check_topic(name)
    values = {
        "name": name,
        "kind": "topic",
        "to": "/delete-topic",
        "back": link("/topic", name=name),
        "said": await losses_of_topic(visit.watch.querying_admin, name),
    }
    return Page("delete.html", f"Delete topic {name}", values, live=False)


async def delete_topic(visit: Visit, form: Form) -> Outcome:
    """Delete a topic in every broker group. The form must have its name as confirmation."""
    name = _confirm(form)
    _check_topic(name)
    losses = await losses_of_topic(visit.watch.changing_admin, name)
    await visit.watch.changing_admin.delete_topic(name, restorable=True)
    return Outcome("/topics", f"Topic {name} was deleted.", f"{name}, which {'; '.join(losses)}")


async def group_preview(visit: Visit) -> Page:
    """Build the page that says what is lost if a consumer group is deleted."""
    name = visit.name()
    await _check_group(visit, name)
    values = {
        "name": name,
        "kind": "consumer group",
        "to": "/delete-group",
        "back": link("/group", name=name),
        "said": await losses_of_group(visit.watch.querying_admin, name, topics=True),
    }
    return Page("delete.html", f"Delete consumer group {name}", values, live=False)


async def delete_group(visit: Visit, form: Form) -> Outcome:
    """Delete a consumer group in every broker group, and its retry and dead letter topics if the form says so."""
    name = _confirm(form)
    await _check_group(visit, name)
    topics = one(form, "topics") == "yes"
    losses = await losses_of_group(visit.watch.changing_admin, name, topics=topics)
    await visit.watch.changing_admin.delete_consumer_group(name, topics=topics)
    return Outcome("/groups", f"Consumer group {name} was deleted.", f"{name}, which {'; '.join(losses)}")


def _confirm(form: Form) -> str:
    name = require(form, "name")
    if one(form, "typed") != name:
        raise InputInvalid(f"type {name} to confirm: nothing was changed")
    return name


def _check_topic(name: str) -> None:
    if is_system_topic(name):
        raise InputInvalid(f"{name} belongs to the brokers")


async def _check_group(visit: Visit, name: str) -> None:
    querying_admin = visit.watch.querying_admin
    if name not in await querying_admin.consumer_groups() and not await querying_admin.group_progress(name):
        raise NotFound(f"there is no consumer group {name}")
