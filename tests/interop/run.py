"""Every client plays every scenario; see README.md. ``python -m tests.interop [CLIENT|SCENARIO ...]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import trio

from benchmarks.procfs import machine
from mq.cli.errors import run_trio
from mq.client import Admin, ClientError
from mq.local_cluster import DevCluster, Ports, ServersFailed
from tests.interop import mqadmin
from tests.interop.all_clients import CLIENTS
from tests.interop.clients import GRPC, HERE, REMOTING, ROCKETMQ, SERVERS_VERSION, BuildFailed, Client
from tests.interop.grpc_proxies import RaftmqProxy, rocketmq_proxy
from tests.interop.refusals import SCENARIOS
from tests.interop.report import ALL, Outcome, Page, markdown, table
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.interop.scenarios import Scenario
from tests.interop.security import ACL, NONE, TITLES, Security, secured
from tests.interop.stage import QUEUES, BrokerLogs, Servers, Stage, Unmet

REPORTS = HERE.parent.parent / "docs" / "reports"
PAGES = {
    REMOTING: Page(
        REPORTS / "interop.md",
        "Clients of other projects",
        "name server, three brokers and the client share it",
        "",
    ),
    GRPC: Page(
        REPORTS / "interop-grpc.md",
        "gRPC clients behind proxies",
        "all servers and the client share it",
        "In the columns `python-raftmq`, `java-grpc`, `go-grpc`, `node-grpc` and `rust-grpc`, `raftmq proxy` stands in "
        "front of raftmq, and the client itself signs its calls, or uses TLS. In the others, the proxy is that of "
        f"RocketMQ {SERVERS_VERSION}, in cluster mode, unmodified: in `python` in front of raftmq, and in "
        "`python-rocketmq` in front of a name server and a broker of RocketMQ of the same version. How to set this up: "
        "[gRPC clients](../grpc-clients.md).",
    ),
}
"""The report of each protocol's clients."""

LAST = HERE / "outcomes.json"
"""The last outcomes of which a report was written."""

SETTINGS = {
    "segment_bytes": str(64 * 1024 * 1024),  # five clusters' worth of reserved files would fill a small disk
    "transaction_timeout_seconds": "3",  # nobody wants to wait for checks
    "transaction_check_seconds": "3",
}

ROCKETMQ_SETTINGS = {
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "3000",
    "recallMessageEnable": "true",  # as ours is, and as clients of 5.3 expect
}


class Plan(argparse.Namespace):
    """The command line."""

    what: list[str]
    again: bool
    security: list[str]
    clients: int
    jobs: int
    dir: Path | None
    no_build: bool
    write: bool
    list: bool


@dataclass
class Performance:
    """All scenarios of one client on a cluster of its own, which is secured in one way."""

    client: Client
    security: Security
    scenarios: list[Scenario]
    directory: Path
    jobs: int
    outcomes: list[Outcome]

    async def run(self) -> None:
        """Raises ServersFailed when the cluster cannot be started, or a server ends that nobody stopped."""
        async with self._servers() as servers, self._entrance(servers) as (address, proxy):
            together = [each for each in self.scenarios if not each.alone]
            limiter = trio.CapacityLimiter(self.jobs)
            async with trio.open_nursery() as nursery:
                for each in together:
                    nursery.start_soon(self._play_within, limiter, servers, address, proxy, each)
            for each in self.scenarios:
                if each.alone:
                    await self._play(servers, address, proxy, each)

    def _servers(self) -> AbstractAsyncContextManager[Servers]:
        directory = self.directory / "cluster"
        if self.client.servers == ROCKETMQ:
            return RocketMQCluster.open(directory, settings=ROCKETMQ_SETTINGS)
        return DevCluster.open(directory, ports=Ports.free(3), settings={**SETTINGS, **self.security.settings})

    @asynccontextmanager
    async def _entrance(self, servers: Servers) -> AsyncIterator[tuple[str, RaftmqProxy | None]]:
        """The address that the client's programs are given, and our proxy if it is that of one."""
        directory = self.directory / "proxy"
        match self.client.proxy:
            case None:
                yield servers.namesrv, None
            case "raftmq":
                async with RaftmqProxy.open(servers.namesrv, directory, self.security) as proxy:
                    yield proxy.address, proxy
            case _:
                async with rocketmq_proxy(servers.namesrv, directory, self.security) as address:
                    yield address, None

    async def _play_within(
        self,
        limiter: trio.CapacityLimiter,
        servers: Servers,
        address: str,
        proxy: RaftmqProxy | None,
        scenario: Scenario,
    ) -> None:
        async with limiter:
            await self._play(servers, address, proxy, scenario)

    async def _play(self, servers: Servers, address: str, proxy: RaftmqProxy | None, scenario: Scenario) -> None:
        servers.check()
        skips = self.client.skips
        if why := skips.get(scenario.name) or skips.get(f"{scenario.name} {self.security.name}"):
            self._note(self._outcome(scenario, passed=None, note=why))
            return
        directory = self.directory / scenario.name
        directory.mkdir(parents=True, exist_ok=True)
        name, client = f"{scenario.name}-{self.client.name}", self.client
        stage = Stage(servers, address, client, self.security, directory, name, proxy)
        logs = BrokerLogs(servers)
        began, passed, note = trio.current_time(), False, f"not done within {scenario.seconds_max:g} s"
        try:
            with trio.move_on_after(scenario.seconds_max):
                await _make_topic(stage, scenario.message_type)
                note = await scenario.play(stage)
                passed = True
        except* (Unmet, ClientError, OSError) as errors:
            note = "; ".join(_leaves(errors))
        if not passed and (denials := logs.denials()):
            note += f"; brokers refused clients: {', '.join(denials)}"
        outcome = self._outcome(scenario, passed=passed, note=note)
        version = _version(directory / "events")
        self._note(replace(outcome, seconds=trio.current_time() - began, version=version))

    def _outcome(self, scenario: Scenario, *, passed: bool | None, note: str) -> Outcome:
        text = " ".join(note.split())  # as a report shows it; equal notes are listed once
        return Outcome(self.client.name, self.security.name, scenario.name, passed, text, played=_now())

    def _note(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        print(outcome.line(), flush=True)


def _leaves(error: BaseException) -> list[str]:
    if isinstance(error, BaseExceptionGroup):
        return [text for inner in error.exceptions for text in _leaves(inner)]
    return [str(error) if isinstance(error, Unmet) else f"{type(error).__name__}: {error}"]


async def _make_topic(stage: Stage, message_type: str | None) -> None:
    async with Admin(stage.servers.namesrv) as admin:
        await admin.create_topic(stage.name, QUEUES, message_type=message_type)


def _version(events: Path) -> str:
    if not events.exists():
        return ""
    for line in events.read_text(errors="replace").splitlines():
        if line.startswith('{"event":"client"'):
            event = json.loads(line)
            return f"{event['version']}, {event['runtime']}"
    return ""


def _plan(arguments: Sequence[str]) -> Plan:
    parser = argparse.ArgumentParser(prog="python -m tests.interop", description=__doc__)
    parser.add_argument("what", nargs="*", help=f"clients ({', '.join(CLIENTS)}) and scenarios; default: all of each")
    parser.add_argument("--again", action="store_true", help="play what failed the last time, one after the other")
    parser.add_argument(
        "--security",
        action="append",
        choices=TITLES,
        default=[],
        help="; ".join(f"{k}: {v}" for k, v in TITLES.items()),
    )
    parser.add_argument("--clients", type=int, default=1, help="clients at a time (default 1), a cluster for each")
    parser.add_argument("--jobs", type=int, default=2, help="scenarios of a client at a time (default 2)")
    parser.add_argument("--dir", type=Path, help="keep data and logs here")
    parser.add_argument("--no-build", action="store_true", help="run what was built before; skip clients without")
    parser.add_argument("--write", action="store_true", help="write the reports; done anyway when all were run")
    parser.add_argument("--list", action="store_true", help="tell the scenarios and do nothing")
    plan = parser.parse_args(arguments, Plan())
    for word in plan.what:
        if word not in CLIENTS and word not in SCENARIOS:
            parser.error(f"{word!r} is neither a client nor a scenario: {', '.join((*CLIENTS, *SCENARIOS))}")
    plan.security = plan.security or list(TITLES)
    if plan.dir is not None and any((plan.dir / name).exists() for name in TITLES):
        parser.error(f"{plan.dir} holds the data of another run")
    return plan


async def _perform_each(failed: Sequence[Outcome], directory: Path) -> list[Outcome]:
    """Play these scenarios of these clients again, each for itself; the clients have been built."""
    outcomes: list[Outcome] = []
    for security_name, name in dict.fromkeys((each.security, each.client) for each in failed):
        wanted = [SCENARIOS[each.scenario] for each in failed if (each.security, each.client) == (security_name, name)]
        here = directory / security_name / name
        with secured(security_name, here) as security:
            await _perform_one(CLIENTS[name], security, wanted, here, 1, outcomes)
    return outcomes


async def _perform_one(
    client: Client, security: Security, wanted: list[Scenario], directory: Path, jobs: int, outcomes: list[Outcome]
) -> None:
    try:
        await Performance(client, security, wanted, directory, jobs, outcomes).run()
    except* ServersFailed as errors:
        outcomes.append(
            Outcome(client.name, security.name, "cluster", False, "; ".join(_leaves(errors)), played=_now())
        )
        print(outcomes[-1].line(), flush=True)


async def _perform(plan: Plan, directory: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    clients = [client for name, client in CLIENTS.items() if name in plan.what or not set(plan.what) & CLIENTS.keys()]
    wanted = [each for name, each in SCENARIOS.items() if name in plan.what or not set(plan.what) & SCENARIOS.keys()]
    limiter = trio.CapacityLimiter(plan.clients)

    async def perform(client: Client, security: Security) -> None:
        async with limiter:
            mine = [each for each in wanted if each.protocol == client.protocol and security.name in each.security]
            if mine:
                here = directory / security.name / client.name
                await _perform_one(client, security, mine, here, plan.jobs, outcomes)

    ready: list[Client] = []
    for client in clients:
        why = client.missing()
        if why is None and plan.no_build and not client.is_built():
            why = "not built here"
        if why is None and not plan.no_build:
            print(f"{client.name}: building", flush=True)
            try:
                await trio.to_thread.run_sync(client.build)
            except BuildFailed as error:
                outcomes.append(Outcome(client.name, NONE, "build", False, str(error), played=_now()))
                print(outcomes[-1].line(), flush=True)
                continue
        if why is not None:
            outcomes += _not_played(client, plan.security, why)
            continue
        ready.append(client)
    for name in plan.security:
        with secured(name, directory / name) as security:
            async with trio.open_nursery() as nursery:
                for client in ready:
                    if (why := client.unable.get(name)) is not None:
                        outcomes += _not_played(client, [name], why)
                    else:
                        nursery.start_soon(perform, client, security)
    return outcomes


def _not_played(client: Client, security: Sequence[str], why: str) -> list[Outcome]:
    """One outcome for all scenarios with each of these ways to secure servers."""
    outcomes = [Outcome(client.name, name, ALL, None, why, played=_now()) for name in security]
    for outcome in outcomes:
        print(outcome.line(), flush=True)
    return outcomes


def _run(plan: Plan, play: Callable[[Path], Awaitable[list[Outcome]]]) -> list[Outcome]:
    """What came of it, in a directory that is kept if the plan names one."""
    if plan.dir is not None:
        plan.dir.mkdir(parents=True, exist_ok=True)
        return run_trio(partial(play, plan.dir.resolve()))
    with tempfile.TemporaryDirectory(prefix="interop-", ignore_cleanup_errors=True) as directory:
        return run_trio(partial(play, Path(directory)))


def _again(plan: Plan) -> list[Outcome]:
    """New outcomes of what failed the last time."""
    failed = [each for each in _last() if each.passed is False and each.scenario in SCENARIOS]
    failed = [each for each in failed if each.security in plan.security]
    return [replace(each, again=True) for each in _run(plan, partial(_perform_each, failed))]


def _last() -> list[Outcome]:
    """Of each scenario, the outcome of the last time that was written into a report."""
    if not LAST.exists():
        return []
    return [Outcome(**fields) for fields in json.loads(LAST.read_text())]


def _write(new: Sequence[Outcome], titles: Mapping[str, str]) -> None:
    """Put new outcomes in the place of old ones, and write the pages of the protocols that they are about."""
    played = {each.subject for each in new}
    whole = {each.subject[:2] for each in new if each.scenario == ALL}
    parts = {each.subject[:2] for each in new}

    def is_kept(old: Outcome) -> bool:
        if old.scenario == ALL:
            return old.subject[:2] not in parts
        return old.scenario in titles and old.subject not in played and old.subject[:2] not in whole

    kept = [each for each in _last() if is_kept(each)]
    outcomes = _ordered([*kept, *new])
    lines = [json.dumps(asdict(each), ensure_ascii=False) for each in outcomes]
    LAST.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    for protocol, page in PAGES.items():
        if any(CLIENTS[each.client].protocol == protocol for each in new):
            mine = [each for each in outcomes if CLIENTS[each.client].protocol == protocol]
            page.path.write_text(markdown(page, mine, titles, machine=machine(), date=_now()))
    tools = {each.client: each.version for each in outcomes if each.subject[1:] == (ACL, "mqadmin") and each.version}
    if any(each.subject[1:] == (ACL, "mqadmin") for each in new):
        (REPORTS / "mqadmin.md").write_text(mqadmin.markdown(tools, machine=machine(), date=_now()))


def _ordered(outcomes: Sequence[Outcome]) -> list[Outcome]:
    clients, security, scenarios = list(CLIENTS), list(TITLES), {name: n for n, name in enumerate(SCENARIOS)}
    return sorted(
        outcomes,
        key=lambda each: (security.index(each.security), clients.index(each.client), scenarios.get(each.scenario, -1)),
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing failed, 1 otherwise; clients that are not available on this machine do not fail."""
    plan = _plan(sys.argv[1:] if arguments is None else arguments)
    if plan.list:
        for each in SCENARIOS.values():
            print(f"{each.name:<24}{each.title}")
        return 0
    outcomes = _again(plan) if plan.again else _run(plan, partial(_perform, plan))
    titles = {each.name: each.title for each in SCENARIOS.values()}
    for name in plan.security:
        print(f"\n{TITLES[name]}:\n" + table([each for each in _ordered(outcomes) if each.security == name], titles))
    if plan.write or plan.again or not plan.what:
        _write(outcomes, titles)
    return 1 if any(outcome.passed is False for outcome in outcomes) else 0
