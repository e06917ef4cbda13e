"""Pages of the brokers' users, the accounts in their files, policies and quotas, and the changes of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mq.client.errors import BrokerError
from mq.console.pages.visit import Form, InputInvalid, NotFound, Outcome, Page, Visit, integer, one, require
from mq.console.views.accounts import (
    addresses_of,
    connections_of,
    file_rows,
    file_words,
    policy_rows,
    quota_of,
    quotas_by_name,
    throttled_rows,
    user_rows,
    without_user,
)
from mq.console.views.links import link
from mq.console.views.text import list_page, names_with
from mq.inspection.cluster_queries import OfReplicas, unless_unknown
from mq.protocol.codes import ResponseCode
from mq.protocol.requests.accounts import AccountList
from mq.protocol.requests.quota_attributes import EVERYBODY, NO_QUOTA, QUOTA_MAX, Quota
from mq.protocol.requests.quotas import QuotaList
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, AclInfo, PolicyEntryInfo, UserInfo

ACTIONS: Final = ("Pub", "Sub")
DECISIONS: Final = ("Allow", "Deny")
LOCKED_OUT: Final = "this console would be locked out, whose requests are signed as this user: let another do that"


QUOTA_FIELDS: Final = {
    "produce_messages": "Messages per second that it may send",
    "produce_bytes": "Bytes per second that it may send",
    "consume_messages": "Messages per second that it gets",
    "consume_bytes": "Bytes per second that it gets",
    "connections": "Connections to one broker",
}


@dataclass(slots=True)
class _UserLists:
    """The users that brokers know; ``notices`` are sentences about those that they cannot report."""

    users: Mapping[str, Sequence[UserInfo]]
    policies: Mapping[str, Sequence[AclInfo]]
    quotas: Mapping[str, QuotaList] | None
    files: OfReplicas[AccountList]
    notices: list[str]


async def _ask(visit: Visit, part: str = "") -> _UserLists:
    """Send three requests to the leader of each broker group, and one to each replica, for any number of users."""
    querying_admin = visit.watch.querying_admin
    notes = []
    users: Mapping[str, Sequence[UserInfo]] | None = None
    policies: Mapping[str, Sequence[AclInfo]] | None = None
    try:
        users, policies = (
            await unless_unknown(querying_admin.users(part)),
            await unless_unknown(querying_admin.policies(part)),
        )
    except BrokerError as error:
        if error.code == ResponseCode.NO_PERMISSION or not await visit.watch.is_stock():  # noqa: ASYNC120 - a cancellation comes first
            raise
        notes.append(f"Brokers of Apache RocketMQ tell no users while they authenticate nobody: {error}")
    else:
        if users is None or policies is None:
            notes.append(
                "These brokers have no users that are created by command: Apache RocketMQ has them from 5.3 on."
            )
    quotas = await unless_unknown(querying_admin.quotas())
    if quotas is None:
        notes.append("These brokers have no quotas: Apache RocketMQ's do not know them.")
    files = await querying_admin.accounts()
    return _UserLists(users or {}, policies or {}, quotas, files, notes + file_words(files))


async def accounts(visit: Visit) -> Page:
    """Build a page of the list of users and accounts, with policies and quotas. Brokers never return secret keys."""
    lists = await _ask(visit)
    quotas = quotas_by_name(lists.quotas or {})
    users = user_rows(lists.users, quotas, lists.files)
    policies = policy_rows(lists.policies)
    part = visit.query.get("part", "")
    page = list_page(names_with({*users, *(each.user for each in policies)}, part), visit.page)
    names_on_page = frozenset(page.rows)
    values = {
        "page": page,
        "part": part,
        "users": [users.get(name) or without_user(name) for name in page.rows],
        "policies": [each for each in policies if each.user in names_on_page],
        "everybody": EVERYBODY,
        "default_quota": quotas.get(EVERYBODY, "no limit") if lists.quotas is not None else "",
        "throttled": throttled_rows(lists.quotas or {}),
        "said": lists.notices,
        "fault": await visit.watch.left_out(),
    }
    return Page("accounts.html", "Users", values, live=False)


async def account(visit: Visit) -> Page:
    """Build the page of one user or account: policies, quota, and forms for changes. ``*`` has only a quota."""
    name = visit.name()
    lists = await _ask(visit, name)
    quotas = quotas_by_name(lists.quotas or {})
    user = user_rows(lists.users, quotas, lists.files).get(name)
    policies = [each for each in policy_rows(lists.policies) if each.user == name]
    if user is None and policies:
        user = without_user(name)
    is_everybody = name == EVERYBODY
    if user is None and not is_everybody:
        raise NotFound(f"there is no user {name}; no acl_file of a broker has an account of this name either")
    own = user_rows(lists.users, {}, OfReplicas()).get(name)
    quota = quota_of(name, lists.quotas or {})
    values = {
        "name": name,
        "user": user,
        "is_user": own is not None,
        "own": own,
        "is_everybody": is_everybody,
        "rights": file_rows(name, lists.files),
        "addresses": addresses_of(name, lists.files),
        "policies": policies,
        "is_self": name == visit.signed_as,
        "quota": quotas.get(name, "no limit") if lists.quotas is not None else "",
        "connections": connections_of(name, lists.quotas or {}),
        "limits": [(field, words, getattr(quota, field) or "") for field, words in QUOTA_FIELDS.items()],
        "said": lists.notices,
    }
    title = "Each user without a quota of its own" if is_everybody else f"User {name}"
    return Page("account.html", title, values, live=False)


async def set_quota(visit: Visit, form: Form) -> Outcome:
    """Replace a user's quota, or the one of all users without a quota. An empty field means no limit."""
    name = require(form, "name")
    limits = {field: integer(form, field, 1, QUOTA_MAX) for field in QUOTA_FIELDS if one(form, field)}
    quota = Quota(**limits)
    quota_lists = await visit.watch.changing_admin.quotas()
    if quota == NO_QUOTA and not any(each.user == name for quotas in quota_lists.values() for each in quotas.users):
        raise InputInvalid("no limit was given or existed before: nothing was changed")
    await visit.watch.changing_admin.put_quota(name, quota)
    who = "each user without a quota of its own" if name == EVERYBODY else name
    return Outcome(link("/account", name=name), f"The quota of {who} is now: {quota}.", f"{name}: {quota}")


async def create(visit: Visit, form: Form) -> Outcome:
    """Create a user in every broker group. It has no permissions until a policy grants some."""
    name, kind = require(form, "name"), _kind(form)
    password = _password(form)
    if name in {each.name for users in (await visit.watch.changing_admin.users(name)).values() for each in users}:
        raise InputInvalid(f"user {name} already exists; change it on its page")
    await visit.watch.changing_admin.create_user(UserInfo(name=name, password=password, user_type=kind))
    text = f"User {name} was created. It may do nothing until a policy allows it."
    return Outcome(link("/account", name=name), text, name)


async def change(visit: Visit, form: Form) -> Outcome:
    """Change the type, the password or the state of a user. An empty field leaves the password as it is."""
    name, kind = require(form, "name"), _kind(form)
    is_enabled = one(form, "enabled") == "yes"
    is_self = name == visit.signed_as
    if is_self and (not is_enabled or kind != SUPER):
        raise InputInvalid(LOCKED_OUT)
    password = _password(form) if (form.get("password") or [""])[-1] else None
    if is_self and password is not None and not visit.settings.login:
        raise InputInvalid(
            f"this console signs its requests as {name}: change that password with raftmq user, and restart it"
        )
    state = ENABLED if is_enabled else DISABLED
    user = UserInfo(name=name, password=password, user_type=kind, user_status=state)
    await visit.watch.changing_admin.update_user(user)
    text = f"User {name} was changed."
    words = f"{name}: {kind}, {'enabled' if is_enabled else 'disabled'}{', a new password' if password else ''}"
    if is_self and password is not None:  # the session still has the old one, which brokers refuse from now on
        return Outcome(link("/login", next="/accounts"), text, words)
    return Outcome(link("/account", name=name), text, words)


async def delete(visit: Visit, form: Form) -> Outcome:
    """Delete a user and its policies. The form must have its name as confirmation."""
    name = require(form, "name")
    if one(form, "typed") != name:
        raise InputInvalid(f"type {name} to confirm: nothing was changed")
    if name == visit.signed_as:
        raise InputInvalid(LOCKED_OUT)
    await visit.watch.changing_admin.delete_user(name)
    return Outcome("/accounts", f"User {name} and its policies were deleted.", name)


async def put_policy(visit: Visit, form: Form) -> Outcome:
    """Allow or deny a user actions on a resource. This replaces a policy for the same resource."""
    name, resource = require(form, "name"), require(form, "resource")
    actions = [each for each in ACTIONS if each in form.get("actions", ())]
    decision = one(form, "decision")
    if not actions:
        raise InputInvalid("choose at least one of sending and consuming")
    if decision not in DECISIONS:
        raise InputInvalid(f"{decision[:40]!r} is not {' or '.join(DECISIONS)}")
    sources = one(form, "sources").replace(",", " ").split() or None
    entry = PolicyEntryInfo(resource=resource, actions=actions, source_ips=sources, decision=decision)
    await visit.watch.changing_admin.put_policies(name, [entry])
    words = f"{decision.lower()} {', '.join(actions)} on {resource}"
    return Outcome(link("/account", name=name), f"{name}: {words}.", f"{name}: {words}")


async def delete_policy(visit: Visit, form: Form) -> Outcome:
    """Delete the policies of a user for a resource."""
    name, resource = require(form, "name"), require(form, "resource")
    await visit.watch.changing_admin.delete_policies(name, resource)
    return Outcome(link("/account", name=name), f"{name} has no policy for {resource} any more.", f"{name}: {resource}")


def _kind(form: Form) -> str:
    kind = one(form, "kind")
    if kind not in (SUPER, NORMAL):
        raise InputInvalid(f"{kind[:40]!r} is not {SUPER} or {NORMAL}")
    return kind


def _password(form: Form) -> str:
    """A new password, typed twice the same. Raises InputInvalid, without the password."""
    password, again = ((form.get(field) or [""])[-1] for field in ("password", "again"))
    if not password:
        raise InputInvalid("the user needs a password")
    if password != again:
        raise InputInvalid("the two passwords differ")
    return password
