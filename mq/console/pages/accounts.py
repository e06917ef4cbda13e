"""Users of the brokers and their policies, as far as who looks may see them."""

from __future__ import annotations

from mq.console.pages.visit import Page, Visit
from mq.console.views.accounts import policy_rows, user_rows


async def accounts(visit: Visit) -> Page:
    """All users and policies; two requests per broker group. Passwords are never told by brokers."""
    looking = visit.watch.looking
    users = user_rows(await looking.users())
    return Page(
        "accounts.html", "Users", {"users": users, "policies": policy_rows(await looking.policies())}, live=False
    )
