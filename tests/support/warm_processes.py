"""Lets processes of this project start within hundredths of a second: they are forked from an interpreter that has
imported its modules before.

Tests start hundreds of servers and commands, and each would spend most of a second of a processor on imports. With
`--warm-processes`, which the Makefile gives to `make test` and `.ci/run`, `subprocess.Popen` has them forked instead:
with arguments, environment, directory, input and output of their own, as children of whoever starts them, killed and
waited for as any other. Whatever else is asked for is started as ever: another interpreter or checkout, options of
Python, a namespace, a limit, a preloaded library. `make test-nightly` starts everything so.

How it works. The interpreter is a child of the process that starts others, and forks twice: the process in between
ends at once, and its child becomes one of the process that asked, which is a subreaper for that moment. A process that
itself starts servers (`raftmq dev`) gets such an interpreter of its own before it begins.

This file is also the program of the interpreter.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = (
    "mq.broker.server",
    "mq.cli.app",
    "mq.cli.servers",
    "mq.namesrv.server",
    "mq.store.archive.archiver",
    "boto3.session",
    "jepsen.cli",
)
"""What is imported before: with all that these import, nearly everything that servers and commands need."""
PACKAGES: Final = ("mq", "jepsen")
INTERPRETER: Final = sys.executable
"""A test may change `sys.executable`: then it wants another one."""
STARTS_OTHERS: Final = re.compile(r"demo|dev|run|serve|matrix|archive.*=.*")
"""Commands that start servers themselves, and the settings with which a broker does."""
COLD_VARIABLES: Final = ("PYTHON", "LD_", "LC_", "LANG", "RAFTMQ_PURE_PYTHON", "COVERAGE", "MALLOC")
"""Beginnings of variables that an interpreter reads when it starts."""
READY: Final = b"ready"
SHOWN_BYTES_MAX: Final = 8192
"""Room for the command line of a forked process, and for what its environment has more than that of the tests."""
COMMAND, ENVIRONMENT = 45, 47
"""Where the places of both are in /proc/PID/stat, without its first two fields."""
SUBREAPER: Final = 36  # PR_SET_CHILD_SUBREAPER
REQUEST_BYTES_MAX: Final = 1 << 20

_start_cold = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_signature = inspect.signature(_start_cold)


class WarmPython:
    """Asks an interpreter for processes; one for each process that starts others."""

    def __init__(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self._connection = connection
        self._cold = {name: value for name, value in environment.items() if _is_cold(name)}
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._is_ready = False

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        directory: str,
        imports_first: str | None,
        environment: Mapping[str, str],
        new_session: bool,
        descriptors: Sequence[int],
    ) -> int:
        """Start ``python -m module`` with these three descriptors; returns its process id. Raises OSError."""
        wanted = (module, list(arguments), directory, imports_first, dict(environment), new_session)
        with self._lock:
            _prctl(SUBREAPER, 1)
            try:
                self._is_ready = self._is_ready or self._connection.recv(64) == READY
                if not self._is_ready:
                    raise RuntimeError(f"the interpreter that should fork {module} did not start: see its traceback")
                socket.send_fds(self._connection, [json.dumps(wanted).encode()], list(descriptors))
                pid = int(self._connection.recv(64) or 0)
            finally:
                _prctl(SUBREAPER, 0)
        if not pid:
            raise OSError(f"the interpreter that should fork {module} has ended")
        return pid

    def can_start(self, environment: Mapping[str, str]) -> bool:
        """Whether a process with this environment would be as one that is started anew."""
        wanted = {name: value for name, value in environment.items() if _is_cold(name)}
        return wanted == self._cold and os.getpid() == self._owner


def _is_cold(name: str) -> bool:
    return name.startswith(COLD_VARIABLES) and name != "PYTHONPATH"


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def wanted_module(
    command: Sequence[str], directory: str, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str], str | None] | None:
    """The module with its arguments, the whole environment, and the directory that Python looks into first, if any.

    None unless the command runs this project's code and nothing else.
    """
    words, environment = list(command), dict(environment)
    if words[:1] == ["env"]:
        words.pop(0)
        while words and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environment[name] = value
    is_safe = words[1:2] == ["-P"]
    if is_safe:
        del words[1]
    if len(words) < 3 or words[0] != INTERPRETER or words[1] != "-m" or words[2].partition(".")[0] not in PACKAGES:
        return None
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    places = [*given, str(ROOT)] if is_safe else [directory, *given, str(ROOT)]
    first = next(place for place in places if os.path.isdir(os.path.join(place, "mq")))
    if os.path.realpath(first) != os.path.realpath(ROOT):
        return None
    return words[2:], environment, None if is_safe else directory


def _start_warm(process: subprocess.Popen[Any], *given: Any) -> None:
    asked = _signature.bind(process, *given).arguments
    environment = os.environ if asked["env"] is None else asked["env"]
    plain = (
        _python is not None
        and isinstance(asked["args"], list | tuple)
        and all(isinstance(word, str) for word in asked["args"])
        and all(isinstance(name, str) and isinstance(value, str) for name, value in environment.items())
        and asked["close_fds"]
        and not asked["pass_fds"]
        and not asked["shell"]
        and asked["executable"] is None
        and asked["preexec_fn"] is None
        and asked["process_group"] in (None, -1)
        and all(asked[name] in (None, -1) for name in ("gid", "gids", "uid", "umask"))
    )
    directory = os.path.abspath(os.fsdecode(asked["cwd"] or "."))
    found = wanted_module(asked["args"], directory, environment) if plain else None
    if found is None or _python is None or not _python.can_start(found[1]) or not os.path.isdir(directory):
        _start_cold(process, *given)
        return
    descriptors = [
        own if asked[name] == -1 else asked[name] for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
    ]
    (module, *arguments), environment, place = found
    is_leader = bool(asked["start_new_session"])
    process.pid = _python.start(module, arguments, directory, place, environment, is_leader, descriptors)
    process._child_created = True  # type: ignore[attr-defined]
    pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
    process._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


_python: WarmPython | None = None


@contextmanager
def warm_processes() -> Iterator[None]:
    """Within this block, `subprocess.Popen` forks what it can, and so do those processes that start others."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        for each in (ours, its):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        room = " " * SHOWN_BYTES_MAX
        command = [sys.executable, __file__, str(its.fileno()), room]
        environment = {**os.environ, "ROOM": room}
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], cwd=ROOT, env=environment)
        its.close()
        before = _python
        _install(WarmPython(ours, os.environ))
        try:
            yield
        finally:
            _install(before)
    server.wait()


@contextmanager
def cold_processes() -> Iterator[None]:
    """Within this block, `subprocess.Popen` starts everything as ever: for tests that look at memory."""
    before = _python
    _install(None)
    try:
        yield
    finally:
        _install(before)


def _install(python: WarmPython | None) -> None:
    global _python
    _python = python
    subprocess.Popen._execute_child = _start_cold if python is None else _start_warm  # type: ignore[attr-defined]


def _serve(connection: socket.socket) -> tuple[Any, ...] | None:
    """Fork until nobody asks any more; in the process that was asked for, returns the request."""
    connection.send(READY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # that of a terminal is for the process that asks
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 3)
        except ConnectionResetError:
            return None
        if not data:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if child := os.fork():
                os.write(writing, str(child).encode())
                os._exit(0)
            connection.close()
            while os.getppid() == between:
                time.sleep(0.0002)
            for own, descriptor in enumerate(descriptors):
                os.dup2(descriptor, own)
            os.closerange(3, max(*descriptors, reading, writing) + 1)
            return tuple(json.loads(data))
        os.close(writing)
        os.waitpid(between, 0)
        connection.send(os.read(reading, 64))
        for descriptor in (reading, *descriptors):
            os.close(descriptor)


def _become(
    module: str,
    arguments: list[str],
    directory: str,
    imports_first: str | None,
    environment: dict[str, str],
    new_session: bool,
) -> None:
    """Turn this process into ``python -m module``, as far as that can be seen from within."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if new_session:
        os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    _show(COMMAND, [sys.executable, "-m", module, *arguments])
    _show(ENVIRONMENT, [f"{name}={value}" for name, value in environment.items()])
    given = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*([] if imports_first is None else [imports_first]), *given, *_library_path]
    sys.argv[:] = [module, *arguments]
    _install(None)
    if any(map(STARTS_OTHERS.fullmatch, arguments)):
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (ours, its):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        if os.fork() == 0:
            _show(COMMAND, [sys.executable, __file__])
            ours.close()
            for own in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), own)
            request = _serve(its)
            if request is None:
                os._exit(0)
            _become(*request)
            return
        its.close()
        _install(WarmPython(ours, environment))
    gc.enable()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show(what: int, words: Sequence[str]) -> None:
    """Have /proc/PID/cmdline say what runs, and /proc/PID/environ in which environment: for `ps`, and for whoever looks
    for processes.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[what]), int(fields[what + 1])
    text = os.fsencode("".join(f"{word}\0" for word in words))[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


_library_path: list[str] = []

if __name__ == "__main__":
    _served = socket.socket(fileno=int(sys.argv[1]))
    sys.path[0] = str(ROOT)
    _inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    _library_path[:] = sys.path[1 + len(_inherited) :]
    for _module in MODULES:
        importlib.import_module(_module)
    gc.collect()
    gc.disable()
    gc.freeze()
    if (_request := _serve(_served)) is not None:
        _become(*_request)
