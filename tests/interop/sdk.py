"""The SDK against RocketMQ's own brokers: the examples of its guide, and its tests that need nothing but a cluster.

``python -m tests.interop sdk`` starts a name server and a broker of each version, plays all of them, and writes
docs/reports/interop-sdk.md.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
import trio

from benchmarks.procfs import machine
from mq.cli.errors import run_trio
from mq.local_cluster import ServersFailed
from tests.interop.clients import HERE, BuildFailed, build_servers
from tests.interop.rocketmq_servers import RocketMQCluster
from tests.support import guide_examples as guide
from tests.support.sdk_scenarios import MESSAGE_BYTES_MAX, SCENARIOS

VERSIONS: Final = ("5.3.3", "5.5.0")
REPORT: Final = HERE.parent.parent / "docs" / "reports" / "interop-sdk.md"
SECONDS_MAX: Final = 40.0
SETTINGS: Final = {
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "3000",
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
    "maxMessageSize": str(MESSAGE_BYTES_MAX),
}
PASS, ABSENT = "pass", "not in RocketMQ"
REASON_MAX: Final = 240
"""Characters of a reason in the report."""

NOT_IN_ROCKETMQ: Final = {
    "the death of a leader loses nothing and hides no doubt": "without DLedger or a controller nobody takes over",
    "numbered messages are stored once": "it has no sequence numbers",
}
MEANT: Final = (
    (r"KeyError: 'RAFTMQ_FAILURE'", "dead letters do not say why they are dead: no properties RAFTMQ_..."),
    (r"a batch is stored together: .* DID NOT RAISE SendRejected", "a batch may have any number of messages"),
    (r"what is refused .*: Regex pattern did not match.*refused, certainly not stored", "refusals have other words"),
)
"""What known differences mean, by what a scenario raises, after its name."""


@dataclass(frozen=True, slots=True)
class Played:
    """One scenario on one version; `outcome` is PASS, ABSENT, or what differs."""

    scenario: str
    version: str
    outcome: str


def examples() -> Iterator[tuple[str, str]]:
    """Each example of the guide, in order: its section, and its source."""
    found = [(page.read_text(), *each) for page in guide.GUIDE for each in guide.examples(page.read_text())]
    seen: dict[str, int] = {}
    for text, line, source in found:
        lines = text.splitlines()
        section = next(each.lstrip("# ") for each in reversed(lines[:line]) if re.match("#+ [A-Z]", each))
        seen[section] = number = seen.get(section, 0) + 1
        yield f"guide: {section}" + (f", {number}" if number > 1 else ""), source


async def _play_example(source: str, namesrv: str, names: dict[str, Any]) -> None:
    code = guide.compiled(guide.GUIDE[0], 0, source, namesrv)
    printed = io.StringIO()

    def run() -> None:
        with contextlib.redirect_stdout(printed):
            guide.run(code, names)

    await trio.to_thread.run_sync(run)
    found, wanted = printed.getvalue().splitlines(), guide.expected_output(source)
    assert found == wanted, "prints " + "; ".join(
        f"{a!r} instead of {b!r}"
        for a, b in zip(found + [""] * len(wanted), wanted + [""] * len(found), strict=False)
        if a != b
    )


def _why(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 3] + "..."


async def _played(scenario: str, version: str, play: Callable[[], Awaitable[None]]) -> Played:
    try:
        with anyio.fail_after(SECONDS_MAX):
            await play()
    except (Exception, pytest.fail.Exception) as error:  # whatever it is, it is what differs
        why = _why(error)
        meant = next((text for pattern, text in MEANT if re.search(pattern, f"{scenario}: {why}")), why)
        return Played(scenario, version, f"differs: {meant}")
    return Played(scenario, version, PASS)


async def play(version: str, directory: Path) -> list[Played]:
    """All scenarios on a broker of its own. Raises ServersFailed."""
    played: list[Played] = []

    def note(each: Played) -> None:
        played.append(each)
        print(f"{each.version}  {each.scenario}: {each.outcome}", flush=True)

    async with RocketMQCluster.open(directory, settings=SETTINGS, version=version) as cluster:
        names: dict[str, Any] = {}
        guide.SECONDS_MAX = int(SECONDS_MAX)
        for scenario, source in examples():
            note(await _played(scenario, version, partial(_play_example, source, cluster.namesrv, names)))
            cluster.check()
        for scenario, function in SCENARIOS.items():
            note(await _played(scenario, version, partial(function, cluster.namesrv)))
            cluster.check()
        for scenario, reason in NOT_IN_ROCKETMQ.items():
            note(Played(scenario, version, f"{ABSENT}: {reason}"))
    return played


def markdown(played: Sequence[Played]) -> str:
    """The report."""
    versions = list(dict.fromkeys(each.version for each in played))
    found = {(each.scenario, each.version): each.outcome for each in played}
    rows = [
        f"| {scenario} | {' | '.join(found[scenario, version].replace('|', chr(92) + '|') for version in versions)} |"
        for scenario in dict.fromkeys(each.scenario for each in played)
    ]
    counts = [
        f"{version}: {sum(found[s, v] == PASS for s, v in found if v == version)} of {len(rows)} pass"
        for version in versions
    ]
    return "\n".join(
        (
            "# The SDK with RocketMQ's brokers",
            "",
            "Written by `python -m tests.interop sdk`, which `make interop` runs: the SDK against a name server and a",
            "broker of Apache RocketMQ. Each example of the [guide](../python.md) must print what it promises, and the",
            f"scenarios of `tests/support/sdk_scenarios.py` must pass. {'; '.join(counts)}.",
            "",
            f"Measured on {datetime.now(UTC):%Y-%m-%d}: {machine()}.",
            "",
            f"| scenario | {' | '.join(versions)} |",
            f"|---|{'---|' * len(versions)}",
            *rows,
            "",
        )
    )


def main(arguments: Sequence[str]) -> int:
    """The command; 1 if a server could not be started."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop sdk", description=__doc__)
    parser.add_argument("version", nargs="*", help=f"of RocketMQ; default: {' '.join(VERSIONS)}")
    parser.add_argument("--no-write", action="store_true", help="leave the report as it is")
    plan = parser.parse_args(arguments)
    played: list[Played] = []
    try:
        for version in plan.version or VERSIONS:
            build_servers(version)
            with tempfile.TemporaryDirectory() as directory:
                played += run_trio(partial(play, version, Path(directory)))
    except (BuildFailed, ServersFailed) as error:
        print(f"raftmq: {error}", file=sys.stderr)
        return 1
    if not plan.no_write:
        REPORT.write_text(markdown(played))
    return 0
