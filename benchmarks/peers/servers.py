"""Server processes of a peer, which are killed at the end of a block however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import trio

from mq.cli.dev_cluster import HOST

T = TypeVar("T")

READY_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1


class PeerFailed(Exception):
    """Servers of a peer did not start, or ended; the message has their names and last output."""


@dataclass(slots=True)
class Servers:
    """The started servers; created by `open_servers`. Their output is in ``directory``."""

    directory: Path
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a server; returns its process id. The kernel kills it when this process is killed."""
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._processes[name] = process
        return process.pid

    def check(self) -> None:
        """Raises PeerFailed if a server has ended."""
        for name, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise PeerFailed(f"{name} ended with exit code {code}: {self._last_words(name)}")

    async def wait(self, what: str, ask: Callable[[], Awaitable[T | None]]) -> T:
        """Poll until there is a result. OSError and trio.BrokenResourceError count as none. Raises PeerFailed."""
        told = "nothing"
        with trio.move_on_after(READY_SECONDS_MAX):
            while True:
                self.check()
                try:
                    with trio.fail_after(5):
                        answer = await ask()
                    if answer is not None:
                        return answer
                except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
                    told = str(error) or type(error).__name__
                await trio.sleep(POLL_SECONDS)
        words = "; ".join(f"{name} says {self._last_words(name)}" for name in self._processes)
        raise PeerFailed(f"no {what} within {READY_SECONDS_MAX:g} s ({told}); {words}")

    async def wait_listening(self, name: str, port: int) -> None:
        """Until the port accepts connections. Raises PeerFailed."""

        async def connect() -> bool:
            await trio.aclose_forcefully(await trio.open_tcp_stream(HOST, port))
            return True

        await self.wait(f"{name} on port {port}", connect)

    def kill_all(self) -> None:
        """SIGKILL each server and the processes in its session, and wait for them to end."""
        for process in self._processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for process in self._processes.values():
            process.wait()

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.out"

    def _last_words(self, name: str) -> str:
        text = self._log(name).read_text(errors="replace")
        # without the locations of Java's stack traces
        lines = [line for line in text.splitlines() if line.strip() and line[0] != "\t"]
        return repr(lines[-1][-300:]) if lines else "nothing"


@contextmanager
def open_servers(directory: Path) -> Iterator[Servers]:
    """A place for servers; they are killed at the end of the block."""
    servers = Servers(directory)
    try:
        yield servers
    finally:
        servers.kill_all()
