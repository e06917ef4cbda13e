"""`raftmq user`: create, change, list and delete the users of broker groups."""

from __future__ import annotations

import os
import sys
from getpass import getpass
from pathlib import Path
from typing import Annotated, Literal

import typer

from mq.cli.client_errors import client_errors
from mq.cli.errors import EXIT_FAILED, CommandFailed, run_trio
from mq.cli.output import Json, print_json
from mq.cli.tables import plain_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.client.users import UserAdmin
from mq.protocol.requests.users import DISABLED, ENABLED, NORMAL, SUPER, UserInfo

app = typer.Typer(help="Create, update, list and delete users.", no_args_is_help=True)

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
    """Show the users of all broker groups and their types; passwords are never shown.

    Accounts of a broker's acl_file are not among them.
    """

    async def main() -> dict[str, list[UserInfo]]:
        async with UserAdmin(namesrv) as admin:
            return await admin.users(part)

    with client_errors():
        found = run_trio(main)
    rows = [
        {
            "user": user.name,
            "broker": group,
            "super": user.user_type == SUPER,
            "enabled": user.user_status != DISABLED,
        }
        for group, users in sorted(found.items())
        for user in users
    ]
    rows.sort(key=lambda row: (str(row["user"]), str(row["broker"])))
    if as_json:
        print_json(rows)
        return
    table = plain_table("user", "broker", "type", "status")
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
    """Create a user in every broker group. It may do nothing until `raftmq acl put` says what.

    Exit code 1, and nothing is changed, if there is one of that name.
    """
    user = UserInfo(name=name, password=_password(name, password_file), user_type=_TYPES[kind])

    async def main() -> None:
        async with UserAdmin(namesrv) as admin:
            if name in {each.name for users in (await admin.users(name)).values() for each in users}:
                raise CommandFailed(f"the user {name} exists already; change it with raftmq user update", EXIT_FAILED)
            await admin.create_user(user)

    with client_errors():
        run_trio(main)
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

    async def main() -> None:
        async with UserAdmin(namesrv) as admin:
            await admin.update_user(user)

    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"user": name})
    else:
        print(f"changed user {name}")


@app.command("delete")
def delete(name: Name, as_json: Json = False, namesrv: Namesrv = NAMESRV) -> None:
    """Delete a user and its policies in every broker group. Its next request is refused."""

    async def main() -> None:
        async with UserAdmin(namesrv) as admin:
            if name not in {each.name for users in (await admin.users(name)).values() for each in users}:
                raise CommandFailed(f"there is no user {name}", EXIT_FAILED)
            await admin.delete_user(name)

    with client_errors():
        run_trio(main)
    if as_json:
        print_json({"user": name})
    else:
        print(f"deleted user {name}")


def _password(name: str, path: Path | None) -> str:
    """Never an argument: process lists show arguments to everybody."""
    if path is not None:
        try:
            text = sys.stdin.readline() if str(path) == "-" else path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{path}: {getattr(error, 'strerror', None) or error}") from error
        return text.partition("\n")[0]
    if (given := os.environ.get("RAFTMQ_USER_PASSWORD")) is not None:
        return given
    if not sys.stdin.isatty():
        raise CommandFailed("no password: pass --password-file, or set RAFTMQ_USER_PASSWORD")
    password = getpass(f"Password of {name}: ")
    if getpass("Again: ") != password:
        raise CommandFailed("the two passwords differ")
    return password
