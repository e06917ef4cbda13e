"""`docs/commands.md` and `docs/json-output.md` against the code: every command, and every field that one prints.

The fields are those that the commands print here, against a broker in this process and its directories afterwards. With
REWRITE=1 both tables are written anew; read the difference before you keep it: programs rely on these names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import structlog
import trio
import typer
from typer.testing import CliRunner

from chaos.object_store import BucketStore
from mq.cli.app import app
from mq.cli.errors import CommandFailed
from mq.cli.output import JsonLines
from mq.client import LiteConsumer, Message, Producer
from mq.client.message import MessageQueue
from mq.inspection.members import Member
from mq.namesrv.server import serve
from mq.namesrv.settings import NamesrvSettings
from mq.protocol.requests.consumer_groups import ClientConnectionData
from mq.protocol.requests.relayed import ProcessQueueInfo
from raftlog import NodeId, RealDisk
from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.types import ConfState
from raftlog.log_numbers import LogIndex, Term
from raftlog.net.secret_file import FILE_NAME
from raftlog.segment import CONFIG, SegmentLog
from tests.support.archived_logs import MessageLog, new_bucket, steps
from tests.support.guarded import ADMIN, guarded
from tests.support.name_server_and_broker import cluster_and_broker
from tests.support.running_broker import SECONDS_MAX
from tests.support.waiting import until

DOCS: Final = Path(__file__).parents[3] / "docs"
PAGES: Final = {"commands": DOCS / "commands.md", "fields": DOCS / "json-output.md"}
"""The page that has each generated section."""
NO_RESULT: Final = {"namesrv", "broker", "proxy", "filter-server", "console", "demo"}
"""Servers, and a demonstration for people: they log, and print no result."""

OF_TABLES: Final = {"table run", "table backfill", "table status", "table verify", "table compact"}
"""They need Spark, or brokers without accounts: their fields are in docs/tables.md."""

KEYS: Final = {
    ".brokers": "BROKER",
    ".topics": "TOPIC",
    ".topics.TOPIC": "BROKER",
    ".consumer_groups": "GROUP",
    ".offsets": "GROUP",
    ".data_dirs": "NODE",
    ".settings": "SETTING",
    "rates": "NODE",
    "figures": "FIGURE",
    "properties": "PROPERTY",
    "attributes": "ATTRIBUTE",
    "cpu_us_per_message": "PROCESS",
    "resident_mib": "PROCESS",
    "failed": "REASON",
}
"""Objects whose keys are no names of fields, by path or by their own name; what the key is."""

ELEMENTS: Final = {
    "attributes.ATTRIBUTE": "text",
    "ailments[]": "text",
    "blocked[]": "text",
    "difference": "text",
    "eta_seconds": "null",
    "errors[]": "text",
    "failed.REASON": "number",
    "failure": "text",
    "features_available[]": "text",
    "followers[]": "text",
    "groups[]": "text",
    "held_back_by[]": "text",
    "recalled[]": "object",
    "sources[]": "text",
    "transactions[]": "object",
    "troubles[]": "text",
    "waiting": "null",
}
"""What is in arrays and objects that are empty here, by the end of the path."""

WORDS: Final = {str: "text", bool: "true or false", int: "number", float: "number", type(None): "null"}
ORDER: Final = [*dict.fromkeys(WORDS.values()), "object"]

Fields = dict[str, set[str]]
"""What values each path was seen with."""


@cache
def commands() -> list[tuple[str, typer.core.TyperCommand]]:
    """All commands by their present names, as they are in the help."""

    def walk(command: Any, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield " ".join(names), command
            for name, each in command.commands.items():
                if not each.deprecated:
                    yield from walk(each, (*names, name))
        else:
            yield " ".join(names), command

    return list(walk(typer.main.get_command(app), ()))


def json_option(command: typer.core.TyperCommand) -> Any:
    return next((each for each in command.params if "--json" in each.opts), None)


def test_every_command_with_a_result_has_a_json_option() -> None:
    without = {name for name, command in commands() if json_option(command) is None}
    assert without == NO_RESULT


def table() -> str:
    _, option = get_args(JsonLines)
    lines = option.help
    rows = ["| command | what it does | `--json` |", "|---|---|---|"]
    for name, command in commands():
        option = json_option(command)
        kind = " " if option is None else "one object per line" if option.help == lines else "one document"
        summary = re.split(r"(?<=\.)\s", " ".join((command.help or "").split()))[0]
        arguments = "".join(
            f" {each.metavar or each.name.upper()}"
            for each in command.params
            if isinstance(each, typer.core.TyperArgument)
        )
        rows.append(f"| `raftmq {name}{arguments}` | {summary} | {kind} |".replace("||", "\\|\\|"))
    return "\n".join(rows)


def put(section: str, text: str) -> None:
    """The page of this section has ``text`` there."""
    page = PAGES[section]
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    before, found_begin, rest = page.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    assert found_begin
    assert found_end
    wanted = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    if os.environ.get("REWRITE"):
        page.write_text(wanted)
    assert page.read_text() == wanted, f"{page.name}: look at the difference, and run this again with REWRITE=1"


def test_guide_has_every_command() -> None:
    put("commands", table())


def fields_of(value: object, path: str = "") -> Iterator[tuple[str, str | None]]:
    """The paths of a document, each with the kind of its value; None for what is in something empty."""
    if isinstance(value, Mapping):
        key = KEYS.get(path) or KEYS.get(path.rpartition(".")[2])
        if key and not value:
            yield f"{path}.{key}", None
        for name, each in value.items():
            assert key or re.fullmatch(r"[a-z][a-z0-9_]*", name), f"{path}.{name} is not in snake_case"
            yield from fields_of(each, f"{path}.{key or name}")
    elif isinstance(value, list):
        if not value:
            yield f"{path}[]", None
        for each in value:
            yield from fields_of(each, f"{path}[]")
    else:
        yield path or ".", WORDS[type(value)]


class Commands:
    """Runs commands with ``--json``, and gathers the fields that they print."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.fields: dict[str, Fields] = {}

    async def run(self, name: str, *arguments: str | Path, code: int = 0, given: bytes | None = None) -> Any:
        """What a command prints; one with ``given`` or lines is a process, since it uses descriptors."""
        text, ended = await self.printed(name, *arguments, given=given)
        assert ended == code, (name, arguments, text)
        return self.note(name, text)

    async def printed(self, name: str, *arguments: str | Path, given: bytes | None = None) -> tuple[str, int]:
        """What a command prints, and its exit code."""
        options = ["--namesrv", self.namesrv] if "--namesrv" in self.options(name) else []
        line = [*name.split(), *map(str, arguments), "--json", *options]
        with trio.fail_after(SECONDS_MAX):
            return await (self._process(line, given) if given is not None else self._call(line))

    def options(self, name: str) -> set[str]:
        return {
            option for found, command in commands() if found == name for each in command.params for option in each.opts
        }

    def note(self, name: str, text: str) -> Any:
        found = (
            [json.loads(line) for line in text.splitlines()]
            if name in ("archive cat", "consume", "dlq export", "mirror", "mirror --verify", "tail", "top")
            else [json.loads(text)]
        )
        fields = self.fields.setdefault(name, {})
        for document in found:
            for path, kind in fields_of(document):
                fields.setdefault(path, set()).update(() if kind is None else (kind,))
        return found[-1]

    async def _call(self, line: Sequence[str]) -> tuple[str, int]:
        result = await trio.to_thread.run_sync(partial(CliRunner().invoke, app, line))
        if isinstance(result.exception, CommandFailed):  # main() ends the process with this
            return result.stdout, result.exception.exit_code
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.stdout, result.exit_code

    async def _process(self, line: Sequence[str], given: bytes) -> tuple[str, int]:
        command = [sys.executable, "-m", "mq.cli", *line]
        done: subprocess.CompletedProcess[bytes] = await trio.run_process(
            command, stdin=given, capture_stdout=True, check=False
        )
        return done.stdout.decode(), done.returncode

    def text(self) -> str:
        """All fields of all commands, for the guide."""
        alike: dict[tuple[str, ...], list[str]] = {}
        for name in [name for command, _ in commands() for name in (command, f"{command} FILE", f"{command} --verify")]:
            if name in self.fields:
                alike.setdefault(tuple(sorted(self.fields[name])), []).append(name)
        rows = []
        for paths, names in alike.items():
            rows.append(f"raftmq {', '.join(names)}")
            for path in paths:
                kinds = set().union(*(self.fields[name][path] for name in names))
                kinds |= {kind for end, kind in ELEMENTS.items() if path.endswith(f".{end}")}
                # An array or an object that was empty once says nothing of what is in it.
                if kinds or not any(other.startswith(path) and other != path for other in paths):
                    shown = [word for word in ORDER if word in kinds]
                    assert shown, f"{names}: always empty here, say in ELEMENTS what is in {path}"
                    rows.append(f"    {path:40} {' or '.join(shown)}")
        return "```\n" + "\n".join(rows) + "\n```"


@pytest.fixture
def silent() -> Iterator[None]:
    """The broker of this process logs nothing: its lines would be among those of the commands."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.usefixtures("silent")
@pytest.mark.slow
async def test_guide_has_every_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("ACCESS_KEY", "SECRET_KEY", "USER_PASSWORD"), (*ADMIN, "a password"), strict=True):
        monkeypatch.setenv(f"RAFTMQ_{name}", value)
    data_dir = tmp_path / "n0"
    settings = NamesrvSettings(listen_host="127.0.0.1", listen_port=0, data_dir=None, metrics_listen="off")
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(serve, settings)
        cli = Commands(f"{host}:{port}")
        await with_servers(cli, tmp_path)
        nursery.cancel_scope.cancel()
    await files(cli, data_dir, tmp_path)
    await archives(cli, monkeypatch)
    names = {name for name, _ in commands()}
    assert cli.fields.keys() - {"export FILE", "mirror --verify"} == names - NO_RESULT - OF_TABLES
    put("fields", cli.text())


async def with_servers(cli: Commands, directory: Path) -> None:
    run = cli.run
    async with guarded(directory, namesrv=cli.namesrv):
        await topics_and_messages(cli)
        await consumer_groups_and_definitions(cli, directory)
        daily = ("daily", "T", "--cron", "0 8 * * *", "--body", "x", "--key", "k", "--property", "a=b", "--tags", "t")
        await run("schedule create", *daily)
        await run("schedule create", *daily, "--end", "2999-01-01T00:00Z", "--start", "2998-01-01T00:00Z", "--replace")
        for command in ("list", "show", "pause", "resume", "trigger", "delete"):
            await run(f"schedule {command}", *(["daily"] if command != "list" else []))
        for arguments in (["create", "orders"], ["update", "orders", "--disable"], ["list"]):
            await run(f"user {arguments[0]}", *arguments[1:])
        rates = [f"--{kind}-{unit}" for kind in ("produce", "consume") for unit in ("messages", "bytes")]
        await run("user set-quota", "orders", *(each for rate in rates for each in (rate, "9")))
        await run("user set-quota", "others", "--connections", "9")
        await run("topic update", "T", "--attribute", "quota.produce.messages=1")
        await run("produce", "T", given=b"1\n2\n3\n")  # some of them wait
        await run("user quotas")
        await run("topic update", "T", "--attribute", "quota.produce.messages=")
        for arguments in (["put", "orders", "Topic:T*"], ["list"], ["delete", "orders", "Topic:T*"]):
            await run(f"acl {arguments[0]}", *arguments[1:])
        await run("user delete", "orders")
        await lite_topics(cli)
        await mirror(cli, directory)
        await members(cli)
        load = ("--topic", "B", "--seconds", "0.1")
        await run("bench produce", *load, "--size", "100", "--warm-up", "0", "--rate", "100")
        await run("bench consume", *load)
        await run("bench backlog", *load, "--size", "100")
        await run("bench latency", *load, "--size", "100", "--warm-up", "0", "--rate", "100")
        await run("bench end-to-end", *load, "--size", "100", "--warm-up", "0", "--rate", "100")
        await run("dev", "--ephemeral", "--port", "0", "--until-stdin-closes", given=b"")
        await run("backup take", directory / "backup", "--data-dir", directory / "n0", "--leader")


async def topics_and_messages(cli: Commands) -> None:
    run = cli.run
    await run("topic create", "T2", "--queues", "1", "--message-type", "fifo")
    await run("topic update", "T2", "--perm", "r")
    sent = await run("produce", "T", "--key-prefix", "k", "--tag", "A", "--trace", given=b"a\n\xff\n")
    assert sent == {"sent": 2, "acknowledged": 2, "not_stored": 0, "outcome_unknown": 0, "errors": []}
    binary = await run("consume", "T", "--group", "G", "--count", "2", "--trace", given=b"")
    assert (binary["body"], binary["body_base64"]) == (None, "/w==")
    assert await run("tail", "T", "-n", "2", "--count", "2", given=b"") == binary
    [found] = await run("message by-key", "T", "k1")
    assert await run("message by-id", found["offset_message_id"]) == [found]
    await run("message by-id", binary["offset_message_id"])
    await run("message by-time", "T", found["stored"])

    async def is_traced() -> bool:
        text, _ = await cli.printed("trace", found["message_id"])
        return '"sent": [' in text and '"handled": [' in text

    async def is_counted() -> bool:
        return await cli.printed("topic stats", "T") != ("[]\n", 0)  # a broker counts once per second

    await until(is_traced)
    await run("trace", found["message_id"])
    await until(is_counted)
    for name in ("list", "route", "describe", "stats"):
        await run(f"topic {name}", *([] if name == "list" else ["T"]))
    await run("topic delete", "T2")
    await run("topic deleted")
    await run("topic restore", "T2")
    await run("status")
    await run("status", "--all")
    await run("top", "--once", "--interval", "0.2", given=b"")


async def consumer_groups_and_definitions(cli: Commands, directory: Path) -> None:
    run = cli.run
    await run("consumer-group create", "G2")
    await run("consumer-group update", "G2", "--retries", "3")
    await run("consumer-group list")
    await run("consumer-group reset", "G2", "T", "first")
    await run("doctor", "--watch", "0", code=1)  # G2 has no members
    await run("consumer-group create", "G3")
    await run("consumer-group reset", "G3", "T", "first")
    await run("consumer-group skip", "G3", "T", "0", "0")
    await run("dlq list")
    await run("dlq list", "G3")
    await run("dlq show", "G3", "0")
    cli.note("dlq export", (await cli.printed("dlq export", "G3"))[0])
    await run("dlq requeue", "G3")
    await run("dlq dismiss", "G3")
    await run("consumer-group delete", "G3", "--topics")
    await run("consumer-group remove-member", "G", "10.0.0.9@1", "--yes", "--reason", "it hangs")
    await run("consumer-group describe", "G")
    await run("consumer-group readmit-member", "G", "10.0.0.9@1")
    # Nobody is a member of a group here.
    client = ClientConnectionData("10.0.1.7@4711", "10.0.1.7:50000", "PYTHON", 409)
    member = Member(client, {MessageQueue("T", "broker-a", 0): ProcessQueueInfo(0, 0, 0, 1, 0, False, False)}, "T *")
    behind = Member(ClientConnectionData("c1", "10.0.1.7:50000", "GO", 409, [("T", "*", "TAG")]), None)
    cli.note("consumer-group describe", json.dumps({"members": [member.as_json(), behind.as_json()]}))
    document = directory / "definitions.json"
    assert (await run("export"))["offsets"]["G"]
    cli.note("export FILE", (await cli.printed("export", document))[0])
    for group in ("G", "G2"):
        await run("consumer-group delete", group)
    steps = (await run("import", document, "--offsets"))["steps"]
    assert [(step["do"], step["name"]) for step in steps][:3] == [("create", "G"), ("create", "G2"), ("store", "G")]


async def lite_topics(cli: Commands) -> None:
    run = cli.run
    await run("topic create", "Sessions", "--message-type", "lite")
    bound = ("--attribute", "lite.bind.topic=Sessions")
    await run("consumer-group create", "agents", *bound, "--attribute", "lite.sub.model=Shared")
    async with Producer(cli.namesrv) as producer:
        for _ in range(2):
            await producer.send(Message("Sessions", b"x", lite_topic="one"))
    async with LiteConsumer(cli.namesrv, "agents", "Sessions") as consumer:
        await consumer.subscribe("one", "two")
        await consumer.ack(await anext(consumer))
        await run("lite list")
        await run("topic update", "Sessions", "--attribute", "lite.topic.expiration=60")
        await run("lite list")
        assert (await run("lite describe", "Sessions", "one"))[0]["subscribers"]
        await run("lite client", "Sessions", "agents", consumer.client_id)
        assert (await run("lite lag", "agents"))[0]["lite_topics"]
        await run("lite lag", "agents", "one")
        await run("lite dispatch", "agents", "--client", consumer.client_id)


async def mirror(cli: Commands, directory: Path) -> None:
    async with cluster_and_broker(directory / "target") as (target, _):
        both = ["--from", cli.namesrv, "--to", target, "--state", str(directory / "mirror.json"), "--topics", "T"]
        await cli.run("mirror", *both, "--once", given=b"")
        cli.note("mirror --verify", (await cli.printed("mirror", *both, "--verify", given=b""))[0])
        moved = await cli.run("mirror cut-over", *both[:6], "--quiet", "0", "--groups", "G")
        assert {(each["group"], each["topic"]) for each in moved["offsets"]} == {("G", "T")}


async def members(cli: Commands) -> None:
    run = cli.run
    await run("group status")
    await run("group upgrade-check", code=1)  # one replica: it cannot be stopped
    await run("group add", "n7@127.0.0.1:1")
    await run("group promote", "n7", code=1)
    await run("group transfer", "n7", code=1)
    await run("group replace", "n0", "n7@127.0.0.1:1", "--wait", "0", code=1)
    await run("group remove", "n7")


def one_of_three(data_dir: Path) -> Path:
    """The log of a replica whose group has two others."""
    names = (NodeId("n0"), NodeId("n1"), NodeId("n2"))
    conf = ConfState(names, (), (), tuple((name, "127.0.0.1:1") for name in names))
    path = str(data_dir / "commitlog")
    log = SegmentLog.open(path, cluster_id="c", node_id="n0", segment_bytes=4096, disk=RealDisk())
    log.append(CONFIG, LogIndex(1), Term(1), encode_conf(conf))
    log.submit(1)
    log.close()
    return data_dir


async def archives(cli: Commands, patch: pytest.MonkeyPatch) -> None:
    messages, bucket = MessageLog(), new_bucket()
    messages.send(30)
    list(steps(messages, bucket))
    patch.setattr("mq.cli.archive.open_store", lambda url, endpoint_url, disk: BucketStore(bucket))
    patch.setattr("mq.cli.produce_consume.print_bytes", lambda data: sys.stdout.write(data.decode()))
    await cli.run("archive ls", "s3://bucket")
    await cli.run("archive ls", "s3://bucket", "--topics")
    await cli.run("archive cat", "s3://bucket", "T", "--count", "1")
    await cli.run("archive verify", "s3://bucket")


async def files(cli: Commands, data_dir: Path, directory: Path) -> None:
    run = cli.run
    backup = directory / "backup"
    await run("backup verify", backup)
    await run("restore", backup, f"n0={directory / 'restored'}", "--peers", "n0@127.0.0.1:1")
    for name in ("verify", "dump", "fix-term"):
        await run(f"log {name}", data_dir)
    await run("log dump", data_dir, "--bodies")
    await run("log allow-vote", data_dir, "--accept-loss")
    await run("group force", "--data-dir", one_of_three(directory / "alone"))
    damaged = shutil.copytree(data_dir, directory / "damaged")
    [log] = (damaged / "commitlog").glob("0*0")
    with log.open("r+b") as file:
        file.seek(1000)
        file.write(b"\xff\xff")
    assert (await run("log verify", damaged, code=1))["damaged"]
    await run("log discard-damaged", damaged, "--accept-loss")
    secret = ("--data-dir", directory / "secret")
    (directory / "secret").mkdir()
    shutil.copy(data_dir / FILE_NAME, directory / "secret" / FILE_NAME)
    for name in ("show", "add", "drop-old"):
        await run(f"group secret {name}", *secret)
    await run("group secret set", *secret, given=(directory / "secret" / FILE_NAME).read_bytes())
    (directory / "broker.conf").write_text("brokerName=a\nnoSuchKey=1\n")
    await run("config convert", directory / "broker.conf")
