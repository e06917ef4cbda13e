"""The page that follows a topic: it shows messages as they arrive, the newest first."""

from __future__ import annotations

from functools import partial

import trio

from mq.console.pages.visit import InputInvalid, Page, Visit
from mq.console.tails import ROWS_MAX, TailFilter, TooManyTails
from mq.console.views.messages import message_row

BEGIN_SECONDS = 3.0


def sql_of(visit: Visit) -> str:
    """Return the address's SQL92 expression. Raises InputInvalid if properties are hidden, which it could reveal."""
    text = visit.query.get("sql", "").strip()
    if text and visit.settings.hide_bodies:
        raise InputInvalid("this console hides properties: SQL filters are refused, as they would reveal them")
    return text


async def tail(visit: Visit) -> Page:
    """Build the page of a topic's newest messages, to which arriving messages are added."""
    topic = visit.name("topic")
    choice = TailFilter(topic, visit.query.get("tags", "").strip(), sql_of(visit))
    hides_bodies = visit.settings.hide_bodies
    try:
        topic_tail = visit.watch.tails.follow(choice, partial(message_row, hide_bodies=hides_bodies))
    except TooManyTails as error:
        raise InputInvalid(str(error)) from error
    with trio.move_on_after(BEGIN_SECONDS):
        await topic_tail.has_begun.wait()
    values = {
        "topic": topic,
        "tags": choice.tags,
        "sql": choice.sql,
        "rows": list(topic_tail.rows),
        "rows_max": ROWS_MAX,
        "left_out": topic_tail.left_out,
        "fault": topic_tail.fault,
        "hide_bodies": hides_bodies,
    }
    return Page("tail.html", f"{topic}, as messages come", values)
