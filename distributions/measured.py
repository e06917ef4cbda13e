"""What the installed client takes, as `docs/python.md` says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

BEGIN: Final = "<!-- measured by `make dist-check`: begin -->"
END: Final = "<!-- measured by `make dist-check`: end -->"


class Measured(NamedTuple):
    """With one Python: bytes that are installed, CPU seconds of `import mq.client` with the start of Python, and
    resident and anonymous bytes after each step of a program with an idle client.
    """

    version: str
    installed_bytes: int
    import_seconds: float
    steps: Mapping[str, tuple[int, int]]

    @property
    def idle_mib(self) -> float:
        """Resident memory of an idle client."""
        return _mib([resident for resident, _ in self.steps.values()][-1])


def section(measured: Sequence[Measured], machine: str, load: float) -> str:
    """A table with a column for each Python, and how it was measured."""
    versions = [each.version for each in measured]
    lines = [
        f"Command: `make dist-check ARGS=--write`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Load average before: "
        f"{load:.1f}.",
        f"Machine: {machine}.",
        "",
        f"| CPython | {' | '.join(versions)} |",
        f"|---|{'---:|' * len(versions)}",
        _row("installed, MB", [f"{each.installed_bytes / 1e6:.1f}" for each in measured]),
        _row(
            "`import mq.client` with the start of Python, s of CPU", [f"{each.import_seconds:.3f}" for each in measured]
        ),
        _row("a client that is open and idle on asyncio, MiB resident", [f"{each.idle_mib:.1f}" for each in measured]),
        _row(
            "- of it anonymous: a second process shares the rest",
            [f"{_mib(list(each.steps.values())[-1][1]):.1f}" for each in measured],
        ),
    ]
    before = [0] * len(measured)
    for name in measured[0].steps:
        now = [each.steps[name][0] for each in measured]
        lines.append(_row(f"- of it {name}", [f"{_mib(b - a):.1f}" for a, b in zip(before, now, strict=True)]))
        before = now
    return "\n".join(lines)


def _row(name: str, values: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def _mib(nbytes: int) -> float:
    return nbytes / 2**20
