"""Runs the process of one filter class in Java. Its functions block; call them on worker threads."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Final, NamedTuple

from mq.filter.blocks import Block

YES: Final = 1
FAILED: Final = 2
"""The process's verdict on a message for which the class failed; 0 is no."""
_FINISHED, _STOPPED, _EXHAUSTED = range(3)
_START_SECONDS: Final = 20.0
_GRACE_SECONDS: Final = 2.0
"""The time that the process has to answer beyond the time for the class."""
_FILES_MAX: Final = 256
_REASON_CHARS_MAX: Final = 300


class MachineFailed(Exception):
    """The process could not start, has ended, or gave a wrong answer."""


class FilterVerdicts(NamedTuple):
    """The verdicts of the class on the first messages, and the reasons of its failures among these."""

    verdicts: bytes
    reasons: list[str]
    stop_reason: str | None
    """The reason why the process ends at the message behind the last verdict."""
    may_be_earlier_ones: bool = False
    """The process ends for want of memory, which earlier messages may have used up."""


class Machine:
    """The process of one filter class. After `MachineFailed` it must be killed; `kill` may be repeated."""

    def __init__(self, command: list[str], directory: Path) -> None:
        self._socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=clean_environment(),
                cwd=directory,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise MachineFailed(f"java cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
        self._seen_cpu = 0.0
        self._is_ready = False
        self._is_fresh = True
        with contextlib.suppress(ProcessLookupError):
            for limit, value in (
                (resource.RLIMIT_FSIZE, 0),
                (resource.RLIMIT_CORE, 0),
                (resource.RLIMIT_NOFILE, _FILES_MAX),
            ):
                resource.prlimit(self._process.pid, limit, (value, value))

    def wait_ready(self) -> None:
        """Wait until the process is ready. Raises MachineFailed."""
        if self._is_ready:
            return
        deadline = time.perf_counter() + _START_SECONDS
        if self._receive(1, deadline)[0] != _FINISHED:
            raise MachineFailed(self._text(deadline))
        self._is_ready = True

    def filter(self, block: Block, begin: int, end: int, seconds: float, per_message: float) -> FilterVerdicts:
        """Let the process filter messages ``begin`` up to but not including ``end``. Raises MachineFailed."""
        first, last = block.begin_of(begin), block.ends[end - 1]
        places: list[int] = []
        for number in range(begin, end):
            at, size, body_at, body_size = block.spans_of(number)
            places += (block.begin_of(number) - first, at - first, size, body_at - first, body_size)
        head = struct.pack(f">ii{len(places)}ii", round(1000 * seconds), end - begin, *places, last - first)
        deadline = time.perf_counter() + seconds + per_message + _GRACE_SECONDS
        self._send(head + block.data[first:last], deadline)
        status, count = struct.unpack(">Bi", self._receive(5, deadline))
        least = 1 if status == _FINISHED else 0
        most = end - begin if status == _FINISHED else end - begin - 1
        if status not in (_FINISHED, _STOPPED, _EXHAUSTED) or not least <= count <= most:
            raise MachineFailed(
                f"its process answered {status} after {count} of {end - begin} messages, which is impossible"
            )
        verdicts = self._receive(count, deadline)
        if verdicts and max(verdicts) > FAILED:
            raise MachineFailed(f"its process answered {max(verdicts)} for a message, which is not a verdict")
        reasons = [self._text(deadline) for each in verdicts if each == FAILED]
        if status == _FINISHED:
            self._is_fresh = False
            return FilterVerdicts(verdicts, reasons, None)
        is_fresh = self._is_fresh and not count
        return FilterVerdicts(verdicts, reasons, self._text(deadline), status == _EXHAUSTED and not is_fresh)

    def unseen_cpu_seconds(self) -> float:
        """Return the processor seconds that the process used since the last `spent_seconds`."""
        try:
            # The clock of another process, as clock_getcpuclockid(3) makes it.
            return time.clock_gettime((~self._process.pid << 3) | 2) - self._seen_cpu
        except OSError:
            return 0.0

    def spent_seconds(self) -> float:
        """Return the processor seconds that the process used since the last call; 0 once it has ended."""
        seconds = self.unseen_cpu_seconds()
        self._seen_cpu += seconds
        return seconds

    def kill(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._socket.close()

    def _send(self, data: bytes, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.perf_counter()))
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise MachineFailed("its process did not take the messages") from error
        except OSError as error:
            raise MachineFailed("its process has ended") from error

    def _receive(self, nbytes: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < nbytes:
            self._socket.settimeout(max(0.001, deadline - time.perf_counter()))
            try:
                more = self._socket.recv(nbytes - len(data))
            except TimeoutError as error:
                raise MachineFailed("its process did not answer") from error
            except OSError as error:
                raise MachineFailed("its process has ended") from error
            if not more:
                raise MachineFailed("its process has ended")
            data += more
        return bytes(data)

    def _text(self, deadline: float) -> str:
        (nbytes,) = struct.unpack(">H", self._receive(2, deadline))
        return self._receive(nbytes, deadline).decode("utf-8", "replace")[:_REASON_CHARS_MAX]


def without_network() -> list[str]:
    """Return the start of a command line that runs a command without network; empty if the kernel forbids that."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return []
    wrapper = [unshare, "--user", "--map-current-user", "--net", "--"]
    process = subprocess.run([*wrapper, "true"], capture_output=True, env=clean_environment(), check=False)
    return [] if process.returncode else wrapper


def clean_environment() -> dict[str, str]:
    """Return the environment without raftmq's variables, which may have secrets."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
