"""Every command of RocketMQ's `mqadmin` against a group of three replicas, and the page that tells what came of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.interop.clients import CACHE
from tests.interop.mqadmin_commands import ENDLESS, NO_REQUEST, REFUSED, STEPS, WORKS, Step
from tests.interop.scenarios import scenario
from tests.interop.security import ACL
from tests.interop.stage import Event, Program, Stage, require

SECONDS_MAX = 45.0
ENDLESS_SECONDS = 8.0
"""How long a command runs that never ends by itself."""

CLUSTER = "DefaultCluster"

_FAILURE = re.compile(r"(?:[a-z]\w*\.)+\w+(?:Exception|Error)\b|CODE: \d|failed|not exist")
"""What no command prints that works."""


@dataclass(frozen=True)
class Row:
    """What came of a command with certain arguments; ``wrong`` unless it is what was expected."""

    command: str
    arguments: str
    verdict: str
    said: str
    wrong: bool


@dataclass
class Tool:
    """`mqadmin` in a running process, beside a producer and a consumer of the stage's topic that trace their messages.

    ``ready`` tells ids of a message that was sent and consumed, and the names of all ``commands``.
    """

    stage: Stage
    ready: Event
    _program: Program

    @classmethod
    @asynccontextmanager
    async def open(cls, stage: Stage) -> AsyncIterator[Tool]:
        """Start it, and stop it at the end. Raises Unmet."""
        async with stage.playing("mqadmin") as program:
            await program.wait_for("ready")
            yield cls(stage, program.one("ready"), program)
            await program.say("stop")
            await program.wait_for("done")

    @property
    def commands(self) -> frozenset[str]:
        """The names of all commands of this version."""
        return frozenset(self.ready["commands"])

    async def run(self, line: str, *, endless: bool = False) -> str:
        """What a command prints. Raises Unmet if it does not end, or does although it is ``endless``."""
        seconds = ENDLESS_SECONDS if endless else SECONDS_MAX
        number = len(self._program.of("command")) + 1
        words = shlex.split(line)
        if "-n" not in words:
            words += ["-n", self.stage.servers.namesrv]
        await self._program.say("\t".join([str(round(seconds * 1000)), *words]))
        await self._program.wait_for("command", number=number)
        event = self._program.of("command")[-1]
        require(event["ended"] or endless, f"mqadmin {line}: no end within {seconds:g} s")
        output: str = event["output"]
        return output

    async def names(self) -> Mapping[str, str]:
        """What stands for the names in braces in the lines of `STEPS`."""
        stage, cluster = self.stage, self.stage.cluster
        leader = await cluster.leader()
        follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
        return {
            "namesrv": stage.servers.namesrv,
            "cluster": CLUSTER,
            "broker": stage.servers.group,
            "leader": cluster.address(leader),
            "follower": cluster.address(follower),
            "topic": stage.name,
            "group": f"{stage.name}-group",
            "producer": f"{stage.name}-producer",
            "id": self.ready["id"],
            "offset_id": self.ready["offset_id"],
            "queue": str(self.ready["queue"]),
            "offset": str(self.ready["offset"]),
            "client": self.ready["client"],
            "files": str(stage.directory),
        }


@scenario("mqadmin", "every command of mqadmin", seconds_max=420)
async def _mqadmin(stage: Stage) -> str:
    rows: list[Row] = []
    signed = stage.security.name == ACL
    topics = [
        {"topicName": f"{stage.name}-list-{number}", "readQueueNums": 2, "writeQueueNums": 2} for number in (1, 2)
    ]
    (stage.directory / "topics.json").write_text(json.dumps(topics))
    (stage.directory / "groups.json").write_text(json.dumps([{"groupName": f"{stage.name}-list-group"}]))
    async with Tool.open(stage) as tool:
        names = await tool.names()
        steps = [
            step for step in STEPS if step.command in tool.commands and step.is_for(stage.client.name, signed=signed)
        ]
        for step in steps:
            output = await tool.run(step.line.format_map(names), endless=step.verdict == ENDLESS)
            rows.append(judged(step, output, names, signed=signed))
    untried = sorted(tool.commands - {step.command for step in STEPS})
    if signed:
        _keep(stage, rows)
    require(not untried, f"not tried: {', '.join(untried)}")
    wrong = [f"{row.command} {row.arguments}: not as expected ({row.verdict}): {row.said}" for row in rows if row.wrong]
    require(not wrong, "; ".join(wrong))
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in (WORKS, REFUSED, NO_REQUEST)}
    return f"{len(tool.commands)} commands; {', '.join(f'{verdict} {count}' for verdict, count in counts.items())}"


def judged(step: Step, output: str, names: Mapping[str, str], *, signed: bool) -> Row:
    """What came of a step that printed this."""
    verdict, says = step.expected(signed=signed)
    for name, value in names.items():
        says = says.replace(f"{{{name}}}", re.escape(value))
    is_said = re.search(says, output) is not None
    failed = verdict in (WORKS, ENDLESS) and _FAILURE.search(output) is not None
    return Row(step.command, step.arguments, verdict, brief(output), wrong=failed or not is_said)


def brief(output: str) -> str:
    """The sentence that a command failed with, or the first words of what it printed."""
    found = re.search(r"CODE: .*", output)
    cause = re.search(r"Caused by: [\w.]+: (.*)", output)
    text = found[0] if found is not None else cause[1] if cause is not None else output
    text = text.partition(" BROKER: ")[0]
    return " ".join(text.split())[:300]


# -- the page ----------------------------------------------------------------------------------------------------------


def _path(client: str) -> Path:
    return CACHE / f"mqadmin-{client}.json"


def _keep(stage: Stage, rows: Sequence[Row]) -> None:
    """For the page, which is written when all is over."""
    _path(stage.client.name).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def markdown(versions: Mapping[str, str], *, machine: str, date: str) -> str:
    """The page: every command of these versions, by client. All have been played with accounts."""
    rows = {client: [Row(**row) for row in json.loads(_path(client).read_text())] for client in versions}
    by_step = {client: {(row.command, row.arguments): row for row in mine} for client, mine in rows.items()}
    lines = [
        "# Every command of mqadmin",
        "",
        f"Written by `make interop` on {date}.",
        f"Machine: {machine}.",
        "",
        *_INTRODUCTION,
        "",
        f"| command | arguments | {' | '.join(map(_release, versions.values()))} | answer |",
        f"|---|---|{'---|' * len(versions)}---|",
    ]
    for step in STEPS:
        found = [by_step[client].get((step.command, step.arguments)) for client in versions]
        cells = ["-" if row is None else "**not as expected**" if row.wrong else row.verdict for row in found]
        row = next((row for row in found if row is not None), None)
        if row is not None:
            said = row.said if row.verdict == REFUSED else ""
            lines.append(f"| {step.command} | {_code(step.arguments)} | {' | '.join(cells)} | {said} |")
    return "\n".join([*lines, ""])


_INTRODUCTION = (
    "The commands of RocketMQ's `mqadmin`, unmodified, with a group of three replicas that has accounts: an",
    "administrator signs the requests (`conf/tools.yml`). Each was run with `-n`, the name server, and the",
    "arguments shown. Words in capitals stand for names and addresses. A dash: this version does not have the command.",
    "",
    f"- {WORKS}: the command succeeded, and its output was checked.",
    f"- {ENDLESS}: the command runs until it is stopped; it was stopped after {ENDLESS_SECONDS:g} s without an error.",
    f"- {REFUSED}: the broker refused; the last column shows its answer.",
    f"- {NO_REQUEST}: the command sends no request, but reads files of a RocketMQ broker.",
)


def _release(version: str) -> str:
    """4.9.8 of what Java's library calls V4_9_8."""
    return version.partition(",")[0].lstrip("V").replace("_", ".")


def _code(text: str) -> str:
    text = text.replace("|", "\\|")
    return f"`{text}`" if text else ""
