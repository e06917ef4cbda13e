"""Pages of the overview, the problems, one broker group and its readers, settings and events; transfers leadership."""

from __future__ import annotations

import trio

from mq.client.errors import ClientError
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, fault_of, one, require
from mq.console.views.change_records import event_rows, record_rows
from mq.console.views.links import link
from mq.console.views.overview import alarms, card, cards, current_problems, damage_rows, page_of
from mq.console.views.readers import reader_rows, unknown_words
from mq.inspection.cluster_queries import OfReplicas
from mq.protocol.requests.bulk import LeaseList
from mq.protocol.requests.raft_group import GroupAction, GroupCommand

CHANGE_SECONDS = 35.0
"""A broker answers within 30 s, if only that the outcome is unknown."""


async def overview(visit: Visit) -> Page:
    """Build the page of all broker groups and their problems."""
    cached = await visit.watch.cluster.get()
    groups = cached.value or []
    survey = visit.watch.survey.latest(visit.watch.nursery)
    return Page(
        "overview.html",
        "Overview",
        {
            "cards": cards(groups, visit.watch.history, trio.current_time()),
            "fault": fault_of(cached),
            "now": [
                words for group in groups for words in current_problems(group, visit.watch.history, trio.current_time())
            ],
            "alarms": alarms(*((None, "") if survey is None else (survey.value, survey.fault))),
            "alarms_fault": "" if survey is None else survey.fault,
        },
    )


async def alarm_list(visit: Visit) -> Page:
    """Build the page of the doctor's findings, each with a remedy."""
    survey = visit.watch.survey.latest(visit.watch.nursery)
    value = None if survey is None else survey.value
    fault = "" if survey is None else survey.fault
    return Page("alarms.html", "What is wrong", {"alarms": alarms(value, fault), "fault": fault, "page_of": page_of})


async def raft_group(visit: Visit) -> Page:
    """Build the page of one broker group."""
    name = visit.name()
    cached = await visit.watch.cluster.get()
    group = next((each for each in cached.value or () if each.group == name), None)
    if group is None:
        if cached.fault:
            return Page(
                "broker_group.html", name, {"card": None, "fault": cached.fault, "now": [], "voters": [], "damage": []}
            )
        raise NotFound(f"no broker group {name} is registered at the name servers")
    voters = [
        each.node_id
        for each in group.replicas
        if each.member == "voter" and each.node_id != group.leader and each.address is not None and each.figures
    ]
    values = {
        "card": card(group, visit.watch.history, trio.current_time()),
        "fault": fault_of(cached),
        "now": current_problems(group, visit.watch.history, trio.current_time()),
        "voters": voters,
        "damage": [] if group.is_stock else damage_rows(group),
    }
    return Page("broker_group.html", name, values)


async def transfer(visit: Visit, form: Form) -> Outcome:
    """Transfer the leadership of a broker group to another voter."""
    name = require(form, "name")
    node = one(form, "node")
    groups = (await visit.watch.cluster.get()).value or []
    group = next((each for each in groups if each.group == name), None)
    if group is not None and group.is_stock:
        raise InputInvalid(f"{name} is a group of Apache RocketMQ, which has no leader that could hand over")
    leader = next((each for each in group.replicas if each.role == "leader"), None) if group is not None else None
    if leader is None or leader.address is None:
        raise InputInvalid(f"{name} has no leader that could hand over")
    action: GroupAction = "transfer"
    command = GroupCommand(action=action, node=node)
    answer = await visit.watch.changing_admin.manage_group(leader.address, command, timeout=CHANGE_SECONDS)
    if not answer.done:
        raise InputInvalid(f"{answer.code}: {answer.text}")
    return Outcome(link("/broker-group", name=name), answer.text, f"{name} to {node or 'any voter'}")


async def readers(visit: Visit) -> Page:
    """Build the page of the readers for which replicas keep their logs, from one request to each replica."""
    cluster, leases = await visit.watch.cluster.get(), await visit.watch.leases.get()
    lists: OfReplicas[LeaseList] = leases.value or OfReplicas()
    values = {
        "rows": reader_rows(lists, cluster.value or ()),
        "said": unknown_words(lists),
        "fault": fault_of(leases) or fault_of(cluster),
    }
    return Page("readers.html", "Bulk readers", values)


async def replica_settings(visit: Visit) -> Page:
    """Build the page of a running broker's settings, as it returns them; it never returns secrets."""
    address = visit.name("address")
    groups = (await visit.watch.cluster.get()).value or []
    if address not in {each.address for group in groups for each in group.replicas}:
        raise NotFound(f"no replica at {address} is registered at the name servers")
    fault = ""
    figures: dict[str, str] = {}
    try:
        figures = await visit.watch.querying_admin.broker_settings(address)
    except ClientError as error:
        fault = str(error)
    own = sorted((name.removeprefix("raftmq."), value) for name, value in figures.items() if name.startswith("raftmq."))
    rows = own or sorted(figures.items())
    return Page(
        "settings.html", f"Settings of {address}", {"rows": rows, "fault": fault, "address": address}, live=False
    )


async def change_setting(visit: Visit, form: Form) -> Outcome:
    """Change a setting of a running broker, or of all replicas of its group. The change lasts until they restart."""
    address, setting, value = require(form, "name"), require(form, "setting"), one(form, "value")
    groups = (await visit.watch.cluster.get()).value or []
    group = next((each for each in groups if address in {replica.address for replica in each.replicas}), None)
    if group is None:
        raise NotFound(f"no replica at {address} is registered at the name servers")
    name = setting if group.is_stock else f"raftmq.{setting}"
    if name not in await visit.watch.changing_admin.broker_settings(address):
        raise InputInvalid(f"there is no setting {setting[:80]}")
    if not value.isprintable():  # they are sent as lines
        raise InputInvalid("the value has characters that no setting can have")
    addresses = [address]
    if one(form, "all") == "yes":
        addresses += sorted(each.address for each in group.replicas if each.address not in (None, address))
    changed_at: list[str] = []
    for each in addresses:
        try:
            await visit.watch.changing_admin.change_settings(each, {name: value})
        except ClientError as error:
            if not changed_at:
                raise
            raise InputInvalid(f"{each}: {error}. It was changed on {', '.join(changed_at)} alone") from error
        changed_at.append(each)
    text = f"{setting} is {value} on {', '.join(changed_at)}, until the process restarts."
    return Outcome(link("/settings", address=address), text, f"{setting} = {value} on {', '.join(changed_at)}")


async def event_list(visit: Visit) -> Page:
    """Build the page of events in the broker groups since the console was opened."""
    rows = event_rows(visit.watch.events.all(), trio.current_time(), visit.now_ms)
    return Page("events.html", "Events", {"rows": rows})


async def changes(visit: Visit) -> Page:
    """Build the page of changes that were made through this console since it was started."""
    return Page("changes.html", "Changes", {"rows": record_rows(visit.records.all())})
