"""`raftmq topic`: create, list, and show where a topic lives."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mq.cli.cluster_view import client_errors
from mq.cli.errors import run_trio
from mq.client.admin import Admin

app = typer.Typer(help="Create, list and look up topics.", no_args_is_help=True)

Namesrv = Annotated[
    str, typer.Option(envvar="RAFTMQ_NAMESRV", help="Name servers, separated by semicolons.", metavar="HOST:PORT;...")
]
NAMESRV = "127.0.0.1:9876"


@app.command("create")
def create(
    topic: str,
    queues: Annotated[int, typer.Option(min=1, max=1024, help="Queues in each broker group.")] = 8,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Create a topic in every broker group, or change its number of queues."""

    async def main() -> None:
        async with Admin(namesrv) as admin:
            await admin.create_topic(topic, read_queues=queues, write_queues=queues)

    with client_errors():
        run_trio(main)


@app.command("list")
def list_topics(namesrv: Namesrv = NAMESRV) -> None:
    """Print the name of every topic, one a line."""

    async def main() -> list[str]:
        async with Admin(namesrv) as admin:
            return sorted(await admin.topics())

    with client_errors():
        names = run_trio(main)
    for name in names:
        print(name)


@app.command("route")
def route(
    topic: str,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    namesrv: Namesrv = NAMESRV,
) -> None:
    """Show which broker groups hold a topic, with how many queues, and who leads them."""

    async def main() -> list[dict[str, object]]:
        async with Admin(namesrv) as admin:
            found = await admin.route(topic)
        return [
            {
                "broker": broker,
                "readQueues": sum(queue.broker_name == broker for queue in found.read_queues),
                "writeQueues": sum(queue.broker_name == broker for queue in found.write_queues),
                "leader": replicas.get(0),
                "followers": [address for number, address in sorted(replicas.items()) if number != 0],
            }
            for broker, replicas in sorted(found.brokers.items())
        ]

    with client_errors():
        rows = run_trio(main)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("broker group", "queues read", "queues written", "leader", "followers")
    for row in rows:
        followers = row["followers"]
        assert isinstance(followers, list)
        table.add_row(
            str(row["broker"]),
            str(row["readQueues"]),
            str(row["writeQueues"]),
            str(row["leader"] or "none"),
            " ".join(followers),
        )
    Console().print(table)
