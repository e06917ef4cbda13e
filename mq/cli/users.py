"""`raftmq user`: creates, changes, lists, limits and deletes the users of broker groups."""

from __future__ import annotations

import os
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.users import UserAdmin
from mq.protocol.requests.quota_attributes import EVERYBODY, NO_QUOTA, QUOTA_MAX, Quota
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, UserInfo

app = typer.Typer(help="Create, update, list, limit and delete users.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER")]
Kind = Literal["normal", "super"]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="File whose first line is the password, - for standard input. Default: RAFTMQ_USER_PASSWORD, or a prompt.",
    ),
]
_TYPES = {"normal": NORMAL, "super": SUPER}


@app.command("list")
def list_users(
    part: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only users whose name contains this text.")] = "",
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the users of all broker groups and their types. It never shows passwords.

    Accounts of a broker's acl_file are not among them.
    """

    users_by_group = run_with(UserAdmin, namesrv, lambda admin: admin.users(part))
    rows = [
        {
            "user": user.name,
            "broker": group,
            "super": user.user_type == SUPER,
            "enabled": user.user_status != DISABLED,
        }
        for group, users in sorted(users_by_group.items())
        for user in users
    ]
    rows.sort(key=lambda row: (str(row["user"]), str(row["broker"])))
    if as_json:
        print_json(rows)
        return
    table = borderless_table("user", "broker", "type", "status")
    for row in rows:
        kind, state = "super" if row["super"] else "normal", "enabled" if row["enabled"] else "disabled"
        table.add_row(str(row["user"]), str(row["broker"]), kind, state)
    print_table(table)


@app.command("create")
def create(
    name: Name,
    password_file: PasswordFile = None,
    kind: Annotated[Kind, typer.Option("--type", help="Type of the user: a super user has full access.")] = "normal",
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create a user in every broker group. It has no permissions until `raftmq acl put` grants some.

    Exit code 1, and nothing is changed, if there is one of that name.
    """
    user = UserInfo(name=name, password=_password(name, password_file), user_type=_TYPES[kind])

    async def main(admin: UserAdmin) -> None:
        if name in {each.name for users in (await admin.users(name)).values() for each in users}:
            raise CommandFailed(f"user {name} already exists; change it with raftmq user update", EXIT_FAILED)
        await admin.create_user(user)

    run_with(UserAdmin, namesrv, main)
    if as_json:
        print_json({"user": name, "super": kind == "super"})
    else:
        print(f"created user {name} ({kind})")


@app.command("update")
def update(
    name: Name,
    password: Annotated[bool, typer.Option("--password", help="Change the password.")] = False,
    password_file: PasswordFile = None,
    kind: Annotated[Kind | None, typer.Option("--type", help="Type of the user: a super user has full access.")] = None,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Enable or disable the user; a disabled user has no access."),
    ] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Update the given settings of a user, in every broker group."""
    if not password and password_file is None and kind is None and enabled is None:
        raise CommandFailed("nothing to change: pass --password, --password-file, --type, --enable or --disable")
    user = UserInfo(
        name=name,
        password=_password(name, password_file) if password or password_file is not None else None,
        user_type=None if kind is None else _TYPES[kind],
        user_status=None if enabled is None else ENABLED if enabled else DISABLED,
    )

    run_with(UserAdmin, namesrv, lambda admin: admin.update_user(user))
    if as_json:
        print_json({"user": name})
    else:
        print(f"changed user {name}")


def _limit(what: str) -> Any:
    return typer.Option(min=-1, max=QUOTA_MAX, metavar="NUMBER", help=f"{what}; -1: no limit.")


def _fields(quota: Quota) -> dict[str, int | None]:
    """The limits of a user; None for those that there are not."""
    return {name: value or None for name, value in msgspec.structs.asdict(quota).items() if name != "stored_bytes"}


@app.command("set-quota")
def set_quota(
    name: Annotated[str, typer.Argument(metavar="USER", help="A user, or * for every user without a quota.")],
    produce_messages: Annotated[int | None, _limit("Messages per second that the user may send")] = None,
    produce_bytes: Annotated[int | None, _limit("Bytes per second that the user may send")] = None,
    consume_messages: Annotated[int | None, _limit("Messages per second that the user may consume")] = None,
    consume_bytes: Annotated[int | None, _limit("Bytes per second that the user may consume")] = None,
    connections: Annotated[int | None, _limit("Connections of the user to one broker")] = None,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Limit what a user sends and consumes. Limits apply in every broker group; those that you do not give stay
    unchanged.

    Sends above it wait for up to a second and are refused then; pulls wait. Each broker group counts for itself. Topics
    have quotas, too: raftmq topic update TOPIC --attribute quota.produce.messages=100.
    """
    limits = {
        "produce_messages": produce_messages,
        "produce_bytes": produce_bytes,
        "consume_messages": consume_messages,
        "consume_bytes": consume_bytes,
        "connections": connections,
    }
    changes = {field: max(limit, 0) for field, limit in limits.items() if limit is not None}
    if 0 in limits.values():
        raise CommandFailed("a quota is 1 or more, or -1 for no limit; raftmq user update --disable stops a user")
    if not changes:
        options = ", ".join(f"--{field.replace('_', '-')}" for field in limits)
        raise CommandFailed(f"nothing to change: pass {options}")

    async def main(admin: UserAdmin) -> Quota:
        quotas_by_user = {each.user: each.quota for page in (await admin.quotas()).values() for each in page.users}
        quota = msgspec.structs.replace(quotas_by_user.get(name, NO_QUOTA), **changes)
        await admin.put_quota(name, quota)
        return quota

    quota = run_with(UserAdmin, namesrv, main)
    if as_json:
        print_json({"user": name, "quota": _fields(quota)})
    else:
        print(f"quota of {'each user without its own' if name == EVERYBODY else name}: {quota}")


@app.command("quotas")
def quotas(as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Show the quotas of users. It also shows the users and topics that were throttled within the last minute."""

    groups = sorted(run_with(UserAdmin, namesrv, lambda admin: admin.quotas()).items())
    if as_json:
        print_json(
            {
                "quotas": [
                    {"broker": group, "user": each.user, "connections_now": each.connections} | _fields(each.quota)
                    for group, them in groups
                    for each in them.users
                ],
                "throttled": [
                    {"broker": group, **msgspec.to_builtins(each)} for group, them in groups for each in them.throttled
                ],
            }
        )
        return
    table = borderless_table("user", "broker", "quota", "connections")
    for group, each in groups:
        for user in each.users:
            table.add_row(user.user, group, str(user.quota), str(user.connections) if user.quota.connections else "-")
    print_table(table)
    table = borderless_table("throttled", "name", "broker", "what", "delayed", "refused", "last")
    for group, each in groups:
        for row in each.throttled:
            counts = str(row.delayed), str(row.refused)
            table.add_row(row.kind, row.name, group, row.direction, *counts, f"{row.seconds_ago:.0f} s ago")
    if any(each.throttled for _, each in groups):
        print_table(table)
    else:
        print("nobody is throttled")


@app.command("delete")
def delete(name: Name, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Delete a user and its policies in every broker group. Its next request is refused."""

    async def main(admin: UserAdmin) -> None:
        if name not in {each.name for users in (await admin.users(name)).values() for each in users}:
            raise CommandFailed(f"there is no user {name}", EXIT_FAILED)
        await admin.delete_user(name)

    run_with(UserAdmin, namesrv, main)
    if as_json:
        print_json({"user": name})
    else:
        print(f"deleted user {name}")


def _password(name: str, path: Path | None) -> str:
    """Read a password from a file or the terminal, never from an argument, which process lists show to all users."""
    if path is not None:
        try:
            text = sys.stdin.readline() if str(path) == "-" else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        return text.partition("\n")[0]
    if (env_password := os.environ.get("RAFTMQ_USER_PASSWORD")) is not None:
        return env_password
    if not sys.stdin.isatty():
        raise CommandFailed("no password: pass --password-file, or set RAFTMQ_USER_PASSWORD")
    password = getpass(f"Password of {name}: ")
    if getpass("Again: ") != password:
        raise CommandFailed("the two passwords differ")
    return password
