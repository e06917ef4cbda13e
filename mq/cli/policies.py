"""`raftmq acl`: policies of users of broker groups."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from mq.cli.errors import EXIT_FAILED, CommandFailed
from mq.cli.output import Json, print_json
from mq.cli.run_with import run_with
from mq.cli.tables import borderless_table, print_table
from mq.cli.topics import NAMESRV, Namesrv
from mq.cli.users import Name
from mq.client.users import UserAdmin
from mq.protocol.requests.users import SUBJECT_PREFIX, PolicyEntryInfo

app = typer.Typer(help="Manage the permissions of users.", no_args_is_help=True)

Resources = Annotated[
    list[str],
    typer.Argument(metavar="RESOURCE...", help="Topic:NAME, Group:NAME, Topic:BEGIN*, Topic:*, or * for everything."),
]


@app.command("list")
def list_policies(
    part: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only users whose name contains this text.")] = "",
    resource: Annotated[str, typer.Option(help="Only resources that contain this text.")] = "",
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show the policies of users, in all broker groups."""

    policies = run_with(UserAdmin, namesrv, lambda admin: admin.policies(part, resource))
    rows = [
        {
            "user": acl.subject.removeprefix(SUBJECT_PREFIX),
            "broker": group,
            "resource": entry.resource,
            "actions": list(entry.actions),
            "sources": list(entry.source_ips or ()),
            "decision": entry.decision.lower(),
            "type": (policy.policy_type or "Custom").lower(),
        }
        for group, acls in sorted(policies.items())
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    ]
    if as_json:
        print_json(rows)
        return
    columns = ("user", "broker", "resource", "actions", "sources", "decision", "type")
    table = borderless_table(*columns)
    for row in rows:
        values = map(row.__getitem__, columns)
        table.add_row(*(value if isinstance(value, str) else ", ".join(value) for value in values))
    print_table(table)


@app.command("put")
def put(
    name: Name,
    resources: Resources,
    actions: Annotated[
        list[str] | None, typer.Option("--action", help="Pub, Sub or All; may be repeated. Default: Pub and Sub.")
    ] = None,
    decision: Annotated[
        Literal["allow", "deny"], typer.Option(help="Whether to allow or deny matching requests.")
    ] = "allow",
    sources: Annotated[
        list[str] | None,
        typer.Option("--source", help="Only for clients from this address or network; may be repeated."),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Apply only if no other policy matches.")] = False,
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Allow or deny a user access to resources, in every broker group.

    It replaces policies of the user for the same resource. If several policies match a request, the one with the most
    specific resource decides.
    """
    entries = [
        PolicyEntryInfo(
            resource=resource,
            actions=actions or ["Pub", "Sub"],
            source_ips=sources or None,
            decision=decision.capitalize(),
        )
        for resource in resources
    ]

    run_with(UserAdmin, namesrv, lambda admin: admin.put_policies(name, entries, default=default))
    if as_json:
        print_json({"user": name, "resources": resources, "decision": decision})
    else:
        print(f"{decision}: {name} {', '.join(actions or ('Pub', 'Sub'))} {', '.join(resources)}")


@app.command("delete")
def delete(
    name: Name,
    resource: Annotated[
        str, typer.Argument(metavar="[RESOURCE]", help="Default: the policies for all resources.")
    ] = "",
    as_json: Json = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Delete policies of a user in every broker group. It deletes those for a resource, or all."""

    async def main(admin: UserAdmin) -> None:
        policies = await admin.policies(name, resource)
        entries = (
            each
            for acls in policies.values()
            for acl in acls
            if acl.subject == f"{SUBJECT_PREFIX}{name}"
            for policy in acl.policies
            for each in policy.entries
        )
        if not any(resource in ("", entry.resource) for entry in entries):
            raise CommandFailed(f"{name} has no policy for {resource or 'any resource'}", EXIT_FAILED)
        await admin.delete_policies(name, resource)

    run_with(UserAdmin, namesrv, main)
    if as_json:
        print_json({"user": name, "resource": resource or None})
    else:
        print(f"deleted the policies of {name} for {resource or 'all resources'}")
