"""Changes the members of a broker group, in the background, after a page that says what the change would do."""

from __future__ import annotations

from typing import Final, get_args

from mq.client.errors import ClientError
from mq.console.change_records import Record
from mq.console.jobs import ChangeInProgress, TooManyJobs
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, one, require
from mq.console.views.links import link
from mq.console.views.members import Change, consequences, member_rows
from mq.inspection.group_session import GroupSession
from mq.protocol.requests.raft_group import GroupAction, GroupAnswer, GroupView

CATCH_UP_SECONDS: Final = 3600.0
"""Seconds that a new node may take to catch up; then it stays a learner."""
NODE_LENGTH_MAX: Final = 64
ADDRESS_LENGTH_MAX: Final = 300


async def members(visit: Visit) -> Page:
    """Build the page of the members, as the leader knows them, with forms for changes."""
    name = visit.name()
    view = await _view(visit, name)
    values = {
        "name": name,
        "rows": member_rows(view),
        "voters": [each.node_id for each in view.members if each.role == "voter"],
        "learners": [each.node_id for each in view.members if each.role == "learner"],
        "everybody": [each.node_id for each in view.members],
    }
    return Page("members.html", f"Members of {name}", values, live=False)


async def preview(visit: Visit) -> Page:
    """Build the page that says what a change of the members would do."""
    name = visit.name()
    change = change_of({field: [value] for field, value in visit.query.items()})
    view = await _view(visit, name)
    _check(change, view)
    values = {"name": name, "change": change, "said": consequences(change, view), "voter": visit.query.get("voter", "")}
    return Page("member_change.html", change.title, values, live=False)


async def make(visit: Visit, form: Form) -> Outcome:
    """Start a change of the members in the background."""
    name = require(form, "name")
    change = change_of(form)
    if change.confirmation and one(form, "typed") != change.confirmation:
        raise InputInvalid(f"type {change.confirmation} to confirm that it leaves the group: nothing was changed")
    _check(change, await _view(visit, name))
    what = f"{change.title} in {name}"

    async def run(job: ChangeInProgress) -> None:
        fault = "it was stopped"
        try:
            answer = await _change(visit, name, change, one(form, "voter") == "yes", job)
            fault = "" if answer.done else f"{answer.code}: {answer.text}"
            if answer.done:
                job.add_note(answer.text)
        except ClientError as error:
            fault = str(error)
        finally:
            visit.watch.forget_answers()
            job.done, job.fault = int(not fault), fault
            record = Record(visit.now_ms, visit.session.user, "member change ended", what, fault or "done", not fault)
            visit.records.add(record)

    try:
        job = visit.jobs.start(visit.watch.nursery, visit.session.user, what, link("/members", name=name), run)
    except TooManyJobs as error:
        raise InputInvalid(str(error)) from error
    return Outcome(link("/job", number=job.number), "", what)


async def _change(visit: Visit, name: str, change: Change, voter: bool, job: ChangeInProgress) -> GroupAnswer:
    session = GroupSession(visit.watch.changing_admin, name, job.set_progress)
    if change.action == "add":
        return await session.add(change.node, change.address, voter=voter, patience=CATCH_UP_SECONDS)
    if change.action == "replace":
        return await session.replace(change.replaced, change.node, change.address, patience=CATCH_UP_SECONDS)
    if change.action == "remove":
        return await session.remove(change.node)
    return await session.change(change.action, change.node)


def change_of(form: Form) -> Change:
    """Read the requested change from a form. Raises InputInvalid."""
    action = one(form, "action")
    actions: dict[str, GroupAction] = {each: each for each in get_args(GroupAction)}
    if action not in ("add", "promote", "remove", "replace"):
        raise InputInvalid(f"{action[:40]!r} is not add, promote, remove or replace")
    change = Change(actions[action], require(form, "node"), one(form, "address"), one(form, "replaced"))
    port = change.address.rpartition(":")[2]
    if action in ("add", "replace") and not (port.isascii() and port.isdigit()):
        raise InputInvalid("the replication address of the new node is HOST:PORT")
    if action == "replace" and not change.replaced:
        raise InputInvalid("which node is to be replaced?")
    if max(len(change.node), len(change.replaced)) > NODE_LENGTH_MAX or len(change.address) > ADDRESS_LENGTH_MAX:
        raise InputInvalid("the name or the address is longer than any that a node can have")
    return change


def _check(change: Change, view: GroupView) -> None:
    """Raises InputInvalid for what cannot be meant; the leader checks more."""
    is_member = view.member(change.node) is not None
    if change.action in ("promote", "remove") and not is_member:
        raise InputInvalid(f"{change.node} is not a member of {view.group}")
    if change.action == "replace" and view.member(change.replaced) is None:
        raise InputInvalid(f"{change.replaced} is not a member of {view.group}")


async def _view(visit: Visit, name: str) -> GroupView:
    """The group as its leader sees it. Raises InputInvalid without a leader, NotFound."""
    groups = (await visit.watch.cluster.get()).value or []
    group = next((each for each in groups if each.group == name), None)
    if group is None:
        raise NotFound(f"no broker group {name} is registered at the name servers")
    if group.is_stock:
        raise NotFound(f"{name} is a group of Apache RocketMQ, which has no Raft members")
    answer = await GroupSession(visit.watch.querying_admin, name, lambda _: None).status()
    if not answer.done:
        raise InputInvalid(answer.text)
    return answer.view
