"""Users of the brokers and their policies: the list, one user, and changes of both."""

from __future__ import annotations

from typing import Final

from mq.console.pages.visit import Done, Form, NotFound, Page, Refused, Visit, one, required
from mq.console.views.accounts import policy_rows, user_rows, without_user
from mq.console.views.links import link
from mq.console.views.text import matching, paged
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, PolicyEntryInfo, UserInfo

ACTIONS: Final = ("Pub", "Sub")
DECISIONS: Final = ("Allow", "Deny")
LOCKED_OUT: Final = "this console would be locked out, whose requests are signed as this user: let another do that"


async def accounts(visit: Visit) -> Page:
    """A page of the users, with their policies; two requests per broker group. Passwords are never told by brokers."""
    looking = visit.watch.looking
    users = {each.name: each for each in user_rows(await looking.users())}
    policies = policy_rows(await looking.policies())
    part = visit.query.get("part", "")
    page = paged(matching({*users, *(each.user for each in policies)}, part), visit.page)
    values = {
        "page": page,
        "part": part,
        "users": [users.get(name) or without_user(name) for name in page.rows],
        "policies": [each for each in policies if each.user in page.rows],
        "fault": await visit.watch.left_out(),
    }
    return Page("accounts.html", "Users", values, live=False)


async def account(visit: Visit) -> Page:
    """One user, its policies, and forms for changes."""
    name = visit.name()
    looking = visit.watch.looking
    user = next((each for each in user_rows(await looking.users(name)) if each.name == name), None)
    if user is None:
        raise NotFound(f"there is no user {name}; accounts in the brokers' acl_file are changed there")
    policies = [each for each in policy_rows(await looking.policies(name)) if each.user == name]
    values = {"user": user, "policies": policies, "is_self": name == visit.signed_as}
    return Page("account.html", f"User {name}", values, live=False)


async def create(visit: Visit, form: Form) -> Done:
    """Create a user in every broker group; it may do nothing until a policy says what."""
    name, kind = required(form, "name"), _kind(form)
    password = _password(form)
    if name in {each.name for users in (await visit.watch.changing.users(name)).values() for each in users}:
        raise Refused(f"user {name} exists already; change it on its page")
    await visit.watch.changing.create_user(UserInfo(name=name, password=password, user_type=kind))
    said = f"User {name} was created. It may do nothing until a policy allows it."
    return Done(link("/account", name=name), said, name)


async def change(visit: Visit, form: Form) -> Done:
    """Change the type, the password or the state of a user; an empty password stays as it is."""
    name, kind = required(form, "name"), _kind(form)
    is_enabled = one(form, "enabled") == "yes"
    is_self = name == visit.signed_as
    if is_self and (not is_enabled or kind != SUPER):
        raise Refused(LOCKED_OUT)
    password = _password(form) if (form.get("password") or [""])[-1] else None
    if is_self and password is not None and not visit.settings.login:
        raise Refused(
            f"this console signs its requests as {name}: change that password with raftmq user, and restart it"
        )
    state = ENABLED if is_enabled else DISABLED
    user = UserInfo(name=name, password=password, user_type=kind, user_status=state)
    await visit.watch.changing.update_user(user)
    said = f"User {name} was changed."
    words = f"{name}: {kind}, {'enabled' if is_enabled else 'disabled'}{', a new password' if password else ''}"
    if is_self and password is not None:  # the session still has the old one, which brokers refuse from now on
        return Done(link("/login", next="/accounts"), said, words)
    return Done(link("/account", name=name), said, words)


async def delete(visit: Visit, form: Form) -> Done:
    """Delete a user and its policies; its name has to be typed."""
    name = required(form, "name")
    if one(form, "typed") != name:
        raise Refused(f"type {name} to confirm: nothing was changed")
    if name == visit.signed_as:
        raise Refused(LOCKED_OUT)
    await visit.watch.changing.delete_user(name)
    return Done("/accounts", f"User {name} and its policies were deleted.", name)


async def put_policy(visit: Visit, form: Form) -> Done:
    """Allow or deny a user actions on a resource; a policy for the same resource is replaced."""
    name, resource = required(form, "name"), required(form, "resource")
    actions = [each for each in ACTIONS if each in form.get("actions", ())]
    decision = one(form, "decision")
    if not actions:
        raise Refused("choose at least one of sending and consuming")
    if decision not in DECISIONS:
        raise Refused(f"{decision[:40]!r} is not {' or '.join(DECISIONS)}")
    sources = one(form, "sources").replace(",", " ").split() or None
    entry = PolicyEntryInfo(resource=resource, actions=actions, source_ips=sources, decision=decision)
    await visit.watch.changing.put_policies(name, [entry])
    words = f"{decision.lower()} {', '.join(actions)} on {resource}"
    return Done(link("/account", name=name), f"{name}: {words}.", f"{name}: {words}")


async def delete_policy(visit: Visit, form: Form) -> Done:
    """Delete the policies of a user for a resource."""
    name, resource = required(form, "name"), required(form, "resource")
    await visit.watch.changing.delete_policies(name, resource)
    return Done(link("/account", name=name), f"{name} has no policy for {resource} any more.", f"{name}: {resource}")


def _kind(form: Form) -> str:
    kind = one(form, "kind")
    if kind not in (SUPER, NORMAL):
        raise Refused(f"{kind[:40]!r} is not {SUPER} or {NORMAL}")
    return kind


def _password(form: Form) -> str:
    """A new password, typed twice the same. Raises Refused, without the password."""
    password, again = ((form.get(field) or [""])[-1] for field in ("password", "again"))
    if not password:
        raise Refused("the user needs a password")
    if password != again:
        raise Refused("the two passwords differ")
    return password
