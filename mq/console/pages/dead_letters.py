"""Pages of dead letters: the groups that have some, the letters of a group, their requeue and export."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from mq.client.errors import ClientError
from mq.client.message import MessageQueue
from mq.console.change_records import Record
from mq.console.jobs import ChangeInProgress, TooManyJobs
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, fault_of, one, require
from mq.console.views.dead_letters import groups_with_letters, letter_rows, place_of, place_text
from mq.console.views.links import link
from mq.console.views.text import list_page, names_with
from mq.inspection.dead_letters import Letter, LetterFilter, letter_fields, letter_filter, queue_name, read_letters
from mq.inspection.message_fields import message_fields
from mq.protocol.names import DEAD_LETTER_PREFIX

READ_SECONDS: Final = 5.0
SHOWN_MAX: Final = 100
COMMIT_EVERY: Final = 32
"""A console that is killed sends at most this number of dead letters again with the next try."""
SELECTED_MAX: Final = 1000
HIDDEN: Final = frozenset({"body", "body_base64", "properties", "reason", "failure"})
"""Fields that an export leaves out where bodies are hidden: an exception may repeat a part of the message."""


async def group_list(visit: Visit) -> Page:
    """Build a page of the list of groups that have dead letters."""
    names = await visit.watch.names.get()
    topics = names_with((each for each in names.value or () if each.startswith(DEAD_LETTER_PREFIX)), "")
    page = list_page(topics, visit.page)
    counts = None
    fault = fault_of(names)
    try:
        configs = (await visit.watch.topics.get()).value or {}
        counts = await visit.watch.querying_admin.message_counts(
            {name: list(configs.get(name, ())) for name in page.rows}
        )
    except ClientError as error:
        fault = fault or str(error)
    values = {"page": page, "rows": groups_with_letters(page.rows, counts), "fault": fault}
    return Page("dead_letter_groups.html", "Dead letters", values)


async def letters(visit: Visit) -> Page:
    """Build the page of a group's dead letters: the unresolved ones, or all of them, the oldest first."""
    group = visit.name("group")
    everything = visit.query.get("all") == "yes"
    matches = _filter(visit, visit.query.get("key", ""), visit.query.get("why", ""))
    letters_to_show: list[Letter] = []
    more = False
    is_complete = False
    with trio.move_on_after(READ_SECONDS):
        async with read_letters(
            visit.watch.namesrv, group, everything=everything, remoting=visit.watch.remoting
        ) as consumer:
            async for letter in await consumer.read_to_end():
                if matches(letter):
                    if len(letters_to_show) == SHOWN_MAX:
                        more = True
                        break
                    letters_to_show.append(letter)
        is_complete = True
    values = {
        "group": group,
        "rows": letter_rows(letters_to_show, hide_bodies=visit.settings.hide_bodies),
        "more": more,
        "is_partial": not is_complete,
        "all": "yes" if everything else "",
        "key": visit.query.get("key", ""),
        "is_filtered": bool(visit.query.get("key") or (visit.query.get("why") and not visit.settings.hide_bodies)),
        "why": visit.query.get("why", ""),
        "hide_bodies": visit.settings.hide_bodies,
    }
    return Page("dead_letters.html", f"Dead letters of {group}", values, live=False)


def _filter(visit: Visit, key: str, reason: str) -> LetterFilter:
    """The dead letters with this key and this in their reason; where reasons are hidden, it would tell them."""
    return letter_filter(None, key or None, None if visit.settings.hide_bodies else reason or None, None, None)


async def requeue(visit: Visit, form: Form) -> Outcome:
    """Send dead letters again in the background: the selected ones, those that match, or all unresolved ones."""
    group = require(form, "group")
    which = one(form, "which")
    everybody = one(form, "to") == "topic"
    places: set[tuple[str, int, int]] | None = None
    matches: LetterFilter | None = None
    everything = which != "all"
    if which == "matching":
        key, why = one(form, "key"), one(form, "why")
        if not key and not why:
            raise InputInvalid("no filter says which dead letters match: choose some, or all")
        if why and visit.settings.hide_bodies:
            raise InputInvalid("reasons are hidden on this console, so nothing is chosen by them: choose by key")
        matches = _filter(visit, key, why)
        everything = one(form, "all") == "yes"
    elif which != "all":
        try:
            places = {place_of(text) for text in form.get("letter", ())}
        except ValueError as error:
            raise InputInvalid("a chosen dead letter has no broker, queue and offset: reload the page") from error
        if not places:
            raise InputInvalid("no dead letter was chosen")
        if len(places) > SELECTED_MAX:
            raise InputInvalid(f"{len(places)} dead letters were chosen; maximum: {SELECTED_MAX}: choose all instead")
    what = (
        f"{which if places is None else len(places)} dead letters of {group}, to {'the topic' if everybody else group}"
    )
    selection = LetterSelection(everything, places, matches)
    back = link("/dead-letters", group=group)

    async def run(job: ChangeInProgress) -> None:
        fault = "; it was stopped"
        try:
            await _send(visit, group, selection, everybody, job)
            fault = ""
        except ClientError as error:
            fault = f"; it stopped: {error}"
            raise
        finally:
            outcome = f"{job.done} sent, {job.failed} failed{fault}"
            is_success = not job.failed and not fault
            visit.records.add(Record(visit.now_ms, visit.session.user, "requeue ended", what, outcome, is_success))

    try:
        job = visit.jobs.start(visit.watch.nursery, visit.session.user, f"Send again {what}", back, run)
    except TooManyJobs as error:
        raise InputInvalid(str(error)) from error
    return Outcome(link("/job", number=job.number), "", what)


@dataclass(frozen=True, slots=True)
class LetterSelection:
    """The dead letters to send again.

    Attributes:
        everything: include dead letters that were dealt with.
        places: include only the dead letters at these places; None for all.
        matches: include only dead letters for which this returns True; None for all.
    """

    everything: bool
    places: set[tuple[str, int, int]] | None
    matches: LetterFilter | None

    @property
    def are_all(self) -> bool:
        """Whether all unresolved dead letters are selected; they count as dealt with afterwards."""
        return self.places is None and self.matches is None


async def _send(visit: Visit, group: str, selection: LetterSelection, everybody: bool, job: ChangeInProgress) -> None:
    operator = f"{visit.session.user or 'console'}@console"
    offsets_after: dict[MessageQueue, int] = {}
    places = set(selection.places) if selection.places is not None else None
    behind: dict[MessageQueue, int] = {}  # of a queue that stopped at a failure, how many were not tried
    async with read_letters(
        visit.watch.namesrv, group, everything=selection.everything, remoting=visit.watch.remoting
    ) as consumer:
        try:
            async for letter in await consumer.read_to_end():
                place = (letter.queue.broker_name, letter.queue.queue_id, int(letter.queue_offset))
                if places is not None:
                    if place not in places:
                        continue
                    places.discard(place)
                elif selection.matches is not None:
                    if not selection.matches(letter):
                        continue
                elif letter.queue in behind:  # sent now, it would be sent again when the failed one is
                    behind[letter.queue] += 1
                    continue
                try:
                    await visit.watch.changing_admin.requeue_dead_letter(
                        group, letter, operator=operator, to_topic=everybody
                    )
                    job.done += 1
                except ClientError as error:
                    unknown = "" if error.stored == "no" else "; it may have been sent all the same"
                    job.fail(f"{place_text(letter)}: {error}{unknown}")
                    if selection.are_all:
                        behind.setdefault(letter.queue, 0)
                else:
                    offsets_after[letter.queue] = letter.queue_offset + 1
                if selection.are_all and job.done % COMMIT_EVERY == 0 and offsets_after:
                    await consumer.commit(offsets_after)
                if places is not None and not places:
                    break
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                if selection.are_all and offsets_after:
                    await consumer.commit(offsets_after)
    for at_end, count in sorted(behind.items()):
        if count:
            job.add_note(
                f"{queue_name(at_end)}: {count} behind the one that failed were not sent. When its cause is mended, "
                "send all again; or choose them, to leave it out"
            )
    for broker, queue, offset in sorted(places or ()):
        job.fail(f"{broker}/{queue} {offset}: there is no such dead letter")


async def job_page(visit: Visit) -> Page:
    """Build the page with the progress of a change that runs in the background."""
    job = visit.jobs.find(visit.number("number", 0), visit.session.user)
    if job is None:
        raise NotFound("the change does not exist, or was forgotten: see the record of changes")
    return Page("job.html", job.what, {"job": job})


async def export(visit: Visit, write: Callable[[str], Awaitable[None]]) -> None:
    """Write the dead letters of a group as JSON, one per line."""
    group = visit.name("group")
    everything = visit.query.get("all") == "yes"
    hides_bodies = visit.settings.hide_bodies
    matches = _filter(visit, visit.query.get("key", ""), visit.query.get("why", ""))
    async with read_letters(
        visit.watch.namesrv, group, everything=everything, remoting=visit.watch.remoting
    ) as consumer:
        async for letter in await consumer.read_to_end():
            if not matches(letter):
                continue
            fields = letter_fields(letter) | message_fields(letter)
            if hides_bodies:
                fields = {name: value for name, value in fields.items() if name not in HIDDEN}
            await write(json.dumps(fields) + "\n")


def file_name(group: str) -> str:
    """Return the name of the exported file, without those characters of the group's name that a header cannot have."""
    return "".join(each if each.isascii() and (each.isalnum() or each in "-_") else "_" for each in group) + ".jsonl"
