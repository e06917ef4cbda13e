"""Removes a member from a consumer group for a while, after a page with the consequences, and readmits it."""

from __future__ import annotations

from typing import Final

from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, integer, one, require
from mq.console.views.links import link
from mq.inspection.members import removal_means

KEEP_OUT_MINUTES: Final = 5
KEEP_OUT_MINUTES_MAX: Final = 7 * 24 * 60
REASON_LENGTH_MAX: Final = 200


async def preview(visit: Visit) -> Page:
    """Build the page that says what the removal of a member would do."""
    name, member = visit.name(), visit.name("member")
    if await visit.watch.is_stock():
        raise InputInvalid("brokers of Apache RocketMQ cannot keep a member out of its group: end its process instead")
    members = [each.client_id for each in await visit.watch.querying_admin.group_members(name)]
    if member not in members:
        raise NotFound(f"{member} is not a member of {name} now")
    values = {
        "name": name,
        "member": member,
        "said": " ".join(removal_means(members, KEEP_OUT_MINUTES * 60)),
        "minutes": KEEP_OUT_MINUTES,
        "minutes_max": KEEP_OUT_MINUTES_MAX,
        "reason_max": REASON_LENGTH_MAX,
    }
    return Page("remove_member.html", f"Remove a member of {name}", values, live=False)


async def remove(visit: Visit, form: Form) -> Outcome:
    """Remove a member. The form must have the name of its group as confirmation."""
    name, member = require(form, "name"), require(form, "member")
    if one(form, "typed") != name:
        raise InputInvalid(f"type {name} to confirm: nothing was changed")
    minutes = integer(form, "minutes", 1, KEEP_OUT_MINUTES_MAX)
    reason = one(form, "reason")
    if len(reason) > REASON_LENGTH_MAX:
        raise InputInvalid(f"the reason has {len(reason)} characters; maximum: {REASON_LENGTH_MAX}")
    removal = await visit.watch.changing_admin.removed_members.remove(
        name, member, keep_out=minutes * 60, reason=reason, operator=visit.session.user
    )
    text = f"{member} stays out of {name} for {minutes} minutes."
    if not removal.was_member:
        text += " It was no longer a member."
    if removal.unreached:
        silent = ", ".join(removal.unreached)
        text += f" {silent} did not answer: the leader tells them. If one of them is the leader, remove it again."
    return Outcome(link("/group", name=name), text, f"{member} from {name} for {minutes} minutes: {reason or '-'}")


async def readmit(visit: Visit, form: Form) -> Outcome:
    """Let a removed member join its group again."""
    name, member = require(form, "name"), require(form, "member")
    removal = await visit.watch.changing_admin.removed_members.let_in(name, member, operator=visit.session.user)
    text = f"{member} may be a member of {name} again." if removal.was_member else f"{member} was not kept out."
    return Outcome(link("/group", name=name), text, f"{member} into {name}")
