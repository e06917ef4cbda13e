"""Starts, watches, kills and stops child processes that have names and logs, for any program.

Theory of operation. Each process leads its own session, so that ctrl-C on the terminal reaches only the parent, which
stops its children in order. Nothing is restarted without a request. Starting and killing do not wait, and a process is
asked whether it has ended, never waited for by the system: so servers can be used from any thread and event loop, and
by code without one.

A child must also end when its parent is killed. A server of ours is started with a pipe as its input, which the kernel
closes then (``--until-stdin-closes``); any other process is killed by the kernel.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, TypeVar

import trio

from mq.local_cluster.port_reservation import HOST

T = TypeVar("T")

READY_SECONDS_MAX = 60.0
"""The longest wait for a server that starts."""
STOP_SECONDS_MAX = 10.0
"""A process that takes longer to stop is killed."""
POLL_SECONDS = 0.05
_END_POLL_SECONDS = 0.005
_ASK_SECONDS_MAX = 5.0

_KILLED_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "sh", "-c", '[ "$PPID" -eq "$0" ] && exec "$@"')
"""Followed by the parent's process id and a command. If the parent was killed before the kernel was told, nothing
starts. The kernel counts the thread that starts a process as its parent: it must live as long as the process is needed.
"""


class ServersFailed(Exception):
    """A server did not start, or ended unexpectedly. The message names it and has the end of its log."""


class ChildProcess(Protocol):
    """The common interface of the processes of `subprocess` and of trio."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

    def poll(self) -> int | None:
        """Return the exit code of the process; None while it runs."""
        ...


@dataclass(slots=True)
class _Child:
    process: ChildProcess
    pid: int
    wanted: bool
    pipe: IO[bytes] | None = None

    def poll(self) -> int | None:
        """The exit code of the process; None while it runs."""
        code = self.process.poll()
        if code is not None and self.pipe is not None:
            self.pipe.close()
        return code


class Processes:
    """The child processes of one owner, by name. The owner must call `stop_all` or `kill_all` at its end.

    The output of a process is appended to the file with its name in ``logs``. Processes run in ``directory``;
    default: where this process does.
    """

    def __init__(self, logs: Path, directory: Path | None = None) -> None:
        self.logs = logs
        self._directory = directory
        self._children: dict[str, _Child] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all started processes, including those that have ended."""
        return tuple(self._children)

    def log_path(self, name: str) -> Path:
        """Return the log file of a server."""
        return self.logs / f"{name}.log"

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        input_pipe: bool = False,
    ) -> int:
        """Start a process that never ran or has ended, and return its process id. Does not wait until it serves.

        Args:
            environment: variables that extend this process's environment.
            directory: where the process runs, if not where the others do.
            input_pipe: whether its input is a pipe that closes when this process ends. Else it is killed then.

        Raises OSError if there is no such program.
        """
        assert not self.is_running(name), f"{name} is running already"
        if not input_pipe and shutil.which(command[0]) is None:  # else only the log would say that
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
        self.logs.mkdir(parents=True, exist_ok=True)
        with self.log_path(name).open("ab") as log:
            process = subprocess.Popen(
                command if input_pipe else [*_KILLED_WITH_PARENT, str(os.getpid()), *command],
                stdin=subprocess.PIPE if input_pipe else subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory or self._directory,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._children[name] = _Child(process, process.pid, wanted=True, pipe=process.stdin)
        return process.pid

    def adopt(self, name: str, process: ChildProcess) -> None:
        """Add a process that was started elsewhere, as leader of a session. It may end at any time."""
        assert not self.is_running(name), f"{name} is running already"
        self._children[name] = _Child(process, process.pid, wanted=False)

    def process(self, name: str) -> ChildProcess:
        """Return the process that was started under this name."""
        return self._children[name].process

    def set_pid(self, name: str, pid: int) -> None:
        """Send signals to this process from now on, because the started one runs the server in it."""
        self._children[name].pid = pid

    def pid(self, name: str) -> int:
        """Return the process id of a started process."""
        return self._children[name].pid

    def is_running(self, name: str) -> bool:
        """Whether the process was started and has not ended."""
        child = self._children.get(name)
        return child is not None and child.poll() is None

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a started process, None while it runs. A negative one is a signal."""
        return self._children[name].poll()

    def is_wanted(self, name: str) -> bool:
        """Whether the process should run, so that its end would be unexpected."""
        return self._children[name].wanted

    # -- watching ----------------------------------------------------------------------------------------------------

    def expect_end(self, name: str) -> None:
        """Treat the end of the process as expected from now on."""
        self._children[name].wanted = False

    def must_not_end(self, name: str) -> None:
        """Treat the end of the process as unexpected again."""
        self._children[name].wanted = True

    def exit_codes(self) -> dict[str, int]:
        """Return the exit codes of processes that ended unexpectedly, by name; a negative one is a signal."""
        codes = {name: child.poll() for name, child in self._children.items() if child.wanted}
        return {name: code for name, code in codes.items() if code is not None}

    def check(self) -> None:
        """Raise ServersFailed if a process ended unexpectedly."""
        for name, code in self.exit_codes().items():
            raise ServersFailed(f"{name} stopped with exit code {code}: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        """Return the last line of a process's log, and where the log is."""
        return last_words(self.log_path(name))

    async def wait_until(
        self, what: str, ask: Callable[[], Awaitable[T | None]], seconds: float = READY_SECONDS_MAX
    ) -> T:
        """Call ``ask`` until it returns an answer, and return that. A network error counts as no answer.

        Raises ServersFailed if a process ends unexpectedly, or if there is no answer in time.
        """
        error_text = "no answer"
        with trio.move_on_after(seconds):
            while True:
                self.check()
                try:
                    with trio.fail_after(_ASK_SECONDS_MAX):
                        response = await ask()
                    self.check()  # another process may have answered on a port that ours could not bind
                    if response is not None:
                        return response
                except (OSError, trio.BrokenResourceError, trio.TooSlowError) as error:
                    error_text = str(error) or type(error).__name__
                await trio.sleep(POLL_SECONDS)
        last_lines = "; ".join(f"{name} says {self.last_words(name)}" for name in self._children)
        raise ServersFailed(f"no {what} within {seconds:g} s ({error_text}); {last_lines}")

    async def wait_listening(self, name: str, port: int, seconds: float = READY_SECONDS_MAX) -> None:
        """Wait until a port of the loopback address accepts connections. Raises ServersFailed."""

        async def connect() -> bool:
            await trio.aclose_forcefully(await trio.open_tcp_stream(HOST, port))
            return True

        await self.wait_until(f"{name} on port {port}", connect, seconds)

    async def wait_said(
        self, name: str, pattern: re.Pattern[str], since: int = 0, seconds: float = READY_SECONDS_MAX
    ) -> re.Match[str]:
        """Wait until a process's log has a match after ``since`` bytes, and return the first. Raises ServersFailed."""

        async def look() -> re.Match[str] | None:
            await trio.lowlevel.checkpoint()
            match = pattern.search(self.log_path(name).read_bytes()[since:].decode(errors="replace"))
            if match is None and not self.is_running(name):
                raise ServersFailed(f"{name} stopped with exit code {self.exit_code(name)}: {self.last_words(name)}")
            return match

        return await self.wait_until(f"line {pattern.pattern!r} of {name}", look, seconds)

    def log_bytes(self, name: str) -> int:
        """Return the length of a process's log; 0 before it was started for the first time."""
        return self.log_path(name).stat().st_size if self.log_path(name).exists() else 0

    # -- ending ------------------------------------------------------------------------------------------------------

    def send_signal(self, name: str, signal_number: signal.Signals) -> None:
        """Send a signal without waiting. Does nothing if the process has ended."""
        if self.is_running(name):
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid(name), signal_number)

    def kill(self, name: str) -> None:
        """Send SIGKILL, without waiting: unsynced data survives only in the page cache, connections are reset."""
        self.expect_end(name)
        self.send_signal(name, signal.SIGKILL)

    async def wait_ended(self, name: str) -> int:
        """Wait until the process has ended, and return its exit code."""
        await trio.lowlevel.checkpoint()
        while (code := self.exit_code(name)) is None:  # noqa: ASYNC110 - the kernel sends no event
            await trio.sleep(_END_POLL_SECONDS)
        return code

    async def end(self, name: str, signal_number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal that ends the process, and wait until it has ended."""
        self.expect_end(name)
        self.send_signal(name, signal_number)
        await self.wait_ended(name)

    async def stop(self, name: str, seconds: float = STOP_SECONDS_MAX) -> None:
        """Send SIGTERM and wait until the process has ended. Kills it after ``seconds``."""
        self.send_signal(name, signal.SIGCONT)  # a paused one cannot stop
        with trio.move_on_after(seconds):
            await self.end(name)
        if self.is_running(name):
            await self.end(name, signal.SIGKILL)

    async def stop_all(self, last: Iterable[str] = (), seconds: float = STOP_SECONDS_MAX) -> None:
        """Stop all processes at once, but the ``last`` ones after the others. Not interrupted by cancellation."""
        late = set(last)
        with trio.CancelScope(shield=True):  # bounded: `stop` kills a process that does not stop in time
            for names in (self._children.keys() - late, self._children.keys() & late):
                async with trio.open_nursery() as nursery:
                    for name in names:
                        nursery.start_soon(self.stop, name, seconds)

    def kill_session(self, *names: str) -> None:
        """Send SIGKILL to these processes and all others in their sessions, and wait until they have ended."""
        children = [self._children[name] for name in names]
        for child in children:
            child.wanted = False
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        for child in children:
            while child.poll() is None:
                time.sleep(_END_POLL_SECONDS)

    def kill_all(self) -> None:
        """Kill the sessions of all processes."""
        self.kill_session(*self._children)


@contextmanager
def open_processes(directory: Path) -> Iterator[Processes]:
    """Yield processes that run and log in ``directory``.

    At the end of the block they are killed, with all other processes in their sessions.
    """
    processes = Processes(directory, directory)
    try:
        yield processes
    finally:
        processes.kill_all()


def last_words(log: Path) -> str:
    """Return the last line of a log that is not blank, and where the log is."""
    # An exception group is printed in a frame of these characters; its last line is only frame. The location lines of
    # a Java stack trace begin with a tab.
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    texts = [text for line in lines if not line.startswith("\t") and (text := line.strip(" |+-"))]
    return (texts[-1] if texts else "it said nothing") + f" (see {log})"
