"""Pages of messages that are not visible yet: delayed and timed messages, transactions; and of schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.client.errors import BrokerError, MessageRefused
from mq.client.schedules import ScheduleStatus
from mq.console.pages.visit import Form, InputInvalid, Outcome, Page, Visit, fault_of, one, require
from mq.console.views.links import link
from mq.console.views.pending import PendingView, pending_view, schedule_rows
from mq.console.views.text import list_page, names_with
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.pending import KINDS, SHOWN_MAX, PendingKind

TITLES: Final[dict[PendingKind, str]] = {
    "timed": "Delayed messages",
    "half": "Open transactions",
    "given-up": "Transactions that were given up",
}


async def pending_list(visit: Visit) -> Page:
    """Build the page of the messages that are not visible yet, from one request to each broker group."""
    kind_name = visit.query.get("kind", "timed")
    kind: PendingKind = next((each for each in KINDS if each == kind_name), "timed")
    cached = await visit.watch.pending[kind].get()
    view: PendingView | None = None
    if cached.value is not None:
        view = pending_view(cached.value, visit.now_ms, SHOWN_MAX)
    values = {
        "kind": kind,
        "kinds": list(TITLES.items()),
        "view": view,
        "fault": fault_of(cached) or await visit.watch.left_out(),
    }
    return Page("pending.html", TITLES[kind], values)


async def recall(visit: Visit, form: Form) -> Outcome:
    """Recall a timed message, so that it is not delivered."""
    try:
        message_id = await visit.watch.changing_admin.recall(require(form, "handle"))
    except MessageRefused as error:
        raise InputInvalid(str(error)) from error
    return Outcome(link("/pending", kind="timed"), f"Message {message_id} was recalled: nobody gets it.", message_id)


async def resume(visit: Visit, form: Form) -> Outcome:
    """Make brokers ask the producers again about a transaction that was given up."""
    broker, message_id = require(form, "broker"), require(form, "id")
    await visit.watch.changing_admin.resume_transaction(broker, message_id)
    text = f"Transaction {message_id} is open again: its producer group is asked how it ended."
    return Outcome(link("/pending", kind="half"), text, f"{broker}: {message_id}")


async def schedules(visit: Visit) -> Page:
    """Build a page of the list of schedules, from one request per hundred schedules and broker group."""
    part = visit.query.get("part", "")
    fault = await visit.watch.left_out()
    statuses: Sequence[ScheduleStatus] = ()
    try:
        statuses = await visit.watch.querying_admin.schedules.list()
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        fault = "These brokers have no schedules; Apache RocketMQ's do not know them"
    by_name = {(each.schedule.name, each.broker_name): each for each in statuses}
    names = set(names_with({name for name, _ in by_name}, part))
    page = list_page([each for (name, _), each in sorted(by_name.items()) if name in names], visit.page)
    values = {"page": page, "rows": schedule_rows(page.rows), "part": part, "fault": fault}
    return Page("schedules.html", "Schedules", values)


async def change_schedule(visit: Visit, form: Form) -> Outcome:
    """Pause or resume a schedule, or send its message now."""
    name, broker = require(form, "name"), require(form, "broker")
    action = one(form, "action")
    own = visit.watch.changing_admin.schedules
    if action == "pause":
        await own.pause(name, broker=broker)
        text = f"Schedule {name} is paused."
    elif action == "resume":
        await own.resume(name, broker=broker)
        text = f"Schedule {name} ticks again, from now on."
    elif action == "trigger":
        await own.trigger(name, broker=broker)
        text = f"The message of schedule {name} was sent."
    else:
        raise InputInvalid(f"{action[:40]!r} is not pause, resume or trigger")
    return Outcome("/schedules", text, f"{name} in {broker}: {action}")
