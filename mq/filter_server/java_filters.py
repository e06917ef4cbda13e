"""Runs filter classes in Java, each in a separate virtual machine with the program `java/FilterHost.java`.

The class may do anything in its process, so its output is not trusted: answers are checked, and a process that does not
answer in time, or answers nonsense, is killed with its children. docs/filters.md says what is kept from it, and what is
not.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import Final, NamedTuple

from mq.filter.blocks import BLOCK_MAX, Block
from mq.filter.programs import ProgramInvalid
from mq.filter_server.java_machine import FAILED, YES, Machine, MachineFailed, clean_environment, without_network
from mq.filter_server.wasm_sandbox import Verdicts

_SOURCES: Final = Path(__file__).parent / "java"
_HOST: Final = "FilterHost"
_CLASS_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_SIMPLE_NAME_MAX: Final = 200
"""The maximum of file names, with an ending."""
_FIRST_LINE: Final = "// "
_COMPILE_SECONDS: Final = 30.0
_IDLE_SECONDS: Final = 60.0
"""A process that was not needed for this time is ended, and started again when it is needed."""
_IDLE_CPU_SECONDS: Final = 1.0
"""The processor time that a process may use while it has nothing to filter."""
_PR_SET_DUMPABLE: Final = 4


class JavaLimits(NamedTuple):
    """The limits of a filter class in Java.

    Attributes:
        heap_bytes: heap of its virtual machine, which needs some 60 MB more.
        seconds_per_message: elapsed time in seconds.
        processes_max: virtual machines at a time; the one that has been idle the longest makes room for another.
    """

    heap_bytes: int = 64 * 1024 * 1024
    seconds_per_message: float = 0.1
    processes_max: int = 16


def java_program(class_name: str, source: bytes) -> bytes:
    """Encode a program: the name of its class, then its source. Raises ProgramInvalid."""
    if not _CLASS_NAME.fullmatch(class_name) or len(class_name) > 255:
        raise ProgramInvalid(f"{class_name[:80]!r} is neither the name of a Java class nor of a filter program")
    if len(class_name.rpartition(".")[2]) > _SIMPLE_NAME_MAX:
        raise ProgramInvalid(f"the name of the class {class_name[:80]!r} has more than {_SIMPLE_NAME_MAX} characters")
    return f"{_FIRST_LINE}{class_name}\n".encode() + source


def parse_java_program(content: bytes) -> tuple[str, bytes]:
    """Parse a program to the name of its class and its source. Raises ProgramInvalid."""
    first, _, _ = content.partition(b"\n")
    name = first.decode("ascii", "replace").removeprefix(_FIRST_LINE)
    if not first.startswith(_FIRST_LINE.encode()) or not _CLASS_NAME.fullmatch(name):
        raise ProgramInvalid("the Java source does not begin with the name of its class")
    return name, content


class JavaSandbox:
    """All virtual machines of a filter server. Its methods may be called on any thread.

    Raises ProgramInvalid when it is made, if a program is missing on this machine.
    """

    def __init__(self, limits: JavaLimits, class_path: str = "") -> None:
        self.limits = limits
        java, javac = shutil.which("java"), shutil.which("javac")
        if java is None or javac is None:
            raise ProgramInvalid("filters in Java need a JDK: java and javac are not in the PATH of the filter server")
        self._java, self._javac = java, javac
        self._directory = Path(tempfile.mkdtemp(prefix="raftmq-java-filters-"))
        self._class_path = class_path
        self._wrapper = without_network()
        self._lock = threading.Lock()
        self._filters: dict[JavaFilter, float] = {}
        """Those with a process, and when they began to run last."""
        self._number = 0
        # The classes run as the same user: they must read neither the memory nor the environment of this process.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        try:
            self._compile(sorted(map(str, _SOURCES.rglob("*.java"))), self._directory / "host", "")
        except ProgramInvalid:
            self.close()
            raise

    @property
    def has_network(self) -> bool:
        """Whether classes can use the network, because the kernel does not let us take it from them."""
        return not self._wrapper

    def load(self, content: bytes, group: str, topic: str) -> JavaFilter:
        """Compile a class and start it, which takes seconds. Raises ProgramInvalid with the compiler's messages."""
        name, source = parse_java_program(content)
        with self._lock:
            self._number += 1
            directory = self._directory / str(self._number)
        file = directory / "source" / (name.replace(".", "/") + ".java")
        classes = directory / "classes"
        try:
            file.parent.mkdir(parents=True)
            file.write_bytes(source)
            self._compile([str(file)], classes, self._path_of())
            java_filter = JavaFilter(self, directory, [*self._command(classes), name, group, topic])
            java_filter.check_start()
        except OSError as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise ProgramInvalid(f"the class cannot be written to {error.filename}: {error.strerror}") from error
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return java_filter

    def _path_of(self, *more: Path) -> str:
        return os.pathsep.join(filter(None, [str(self._directory / "host"), *map(str, more), self._class_path]))

    def _compile(self, files: list[str], classes: Path, class_path: str) -> None:
        classes.mkdir(parents=True)
        # Without -proc:none, javac would run code that it finds among the classes.
        command = [
            self._javac,
            "-J-Xmx128m",
            "-J-XX:+UseSerialGC",
            "-J-XX:TieredStopAtLevel=1",
            "-proc:none",
            "-nowarn",
        ]
        command += ["-encoding", "UTF-8", "-implicit:none", "-sourcepath", "", "-d", str(classes)]
        command += ["-cp", class_path or str(classes), *files]
        try:
            process = subprocess.run(
                [*self._wrapper, *command],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=_COMPILE_SECONDS,
                env=clean_environment(),
                cwd=self._directory,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramInvalid(f"javac took longer than {_COMPILE_SECONDS:g} s") from error
        except OSError as error:
            raise ProgramInvalid(f"javac cannot be started: {error.strerror}") from error
        if process.returncode:
            text = process.stderr.decode("utf-8", "replace").replace(f"{self._directory}/", "")
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            raise ProgramInvalid(f"javac refuses the class: {'; '.join(lines[:6])[:600]}")

    def _command(self, classes: Path) -> list[str]:
        heap = self.limits.heap_bytes // 1024
        return [
            *self._wrapper,
            self._java,
            f"-Xmx{heap}k",
            f"-Xms{min(heap, 16 * 1024)}k",
            "-Xss512k",
            "-XX:MaxMetaspaceSize=64m",
            "-XX:MaxDirectMemorySize=16m",
            "-XX:ReservedCodeCacheSize=32m",
            "-XX:+UseSerialGC",
            "-XX:ActiveProcessorCount=1",
            "-XX:TieredStopAtLevel=1",
            "-XX:-UsePerfData",
            "-XX:+DisableAttachMechanism",
            "-Xshare:auto",
            "-Djava.awt.headless=true",
            "-cp",
            self._path_of(classes),
            _HOST,
        ]

    def begins(self, java_filter: JavaFilter) -> None:
        """Record that a filter is about to run. Stops processes of idle filters if there are too many."""
        with self._lock:
            self._filters.pop(java_filter, None)
            crowd = len(self._filters) - self.limits.processes_max + 1
            idle = [each for each in self._filters if not each.is_running][: max(0, crowd)]
            self._filters[java_filter] = time.perf_counter()
        for each in idle:
            each.rest()

    def on_end(self, java_filter: JavaFilter) -> None:
        """Record that a filter no longer has a process."""
        with self._lock:
            self._filters.pop(java_filter, None)

    def end_idle_processes(self) -> None:
        """End processes that are not needed, and idle ones that use processor time. Call it every second."""
        with self._lock:
            idle = [(each, at) for each, at in self._filters.items() if not each.is_running]
        now = time.perf_counter()
        for each, at in idle:
            if now - at > _IDLE_SECONDS or each.idle_cpu_seconds() > _IDLE_CPU_SECONDS:
                each.rest()

    def close(self) -> None:
        """End all processes and remove all files. The sandbox must not be used afterwards."""
        with self._lock:
            filters = list(self._filters)
        for each in filters:
            each.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class JavaFilter:
    """A filter class in its virtual machine. Calls of `run` wait for each other."""

    def __init__(self, sandbox: JavaSandbox, directory: Path, command: list[str]) -> None:
        self._sandbox = sandbox
        self._directory = directory
        # Not in `close`: a pull may still have the filter then, and start it again.
        weakref.finalize(self, shutil.rmtree, directory, ignore_errors=True)
        self._seconds = sandbox.limits.seconds_per_message
        self._command = [*command, str(max(1, round(1000 * self._seconds)))]
        self._machine: Machine | None = None
        self._most = BLOCK_MAX
        """The most messages at a time: few after one has ended the process, so that the next one costs fewer starts."""
        self._lock = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether the filter is filtering messages now."""
        return self._lock.locked()

    def check_start(self) -> None:
        """Raise ProgramInvalid if the class cannot be used."""
        with self._lock:
            try:
                self._start()
            except MachineFailed as error:
                raise ProgramInvalid(f"the class cannot be used: {error}") from error

    def run(self, block: Block, *, seconds_max: float = math.inf) -> Verdicts:
        """Filter the messages that can be started within ``seconds_max``, but at least one."""
        with self._lock:
            started_at, seconds = time.perf_counter(), 0.0
            passes: list[bool] = []
            failures: dict[int, str] = {}
            while len(passes) < len(block):
                rest = seconds_max - (time.perf_counter() - started_at)
                if passes and rest <= 0:
                    break
                at = len(passes)
                end = min(len(block), at + self._most)
                machine: Machine | None = None
                begin = time.perf_counter()
                try:
                    machine = self._start()
                    answer = machine.filter(block, at, end, max(0.0, min(rest, 1.0)), self._seconds)
                except MachineFailed as error:
                    self._stop()
                    seconds += time.perf_counter() - begin  # the processor time of its process is no longer known
                    if machine is not None and end - at > 1:
                        self._most = (end - at) // 2  # which message it was is known only when it is alone
                        continue
                    failures[at] = str(error)
                    passes.append(False)
                    continue
                seconds += machine.spent_seconds()
                self._most = min(2 * self._most, BLOCK_MAX)
                failed_ones = iter(answer.reasons)
                for number, verdict in enumerate(answer.verdicts, at):
                    passes.append(verdict == YES)
                    if verdict == FAILED:
                        failures[number] = next(failed_ones)
                if answer.stop_reason is not None:
                    self._stop()
                    if answer.may_be_earlier_ones:
                        continue  # that message is tried again with fresh memory
                    failures[len(passes)] = answer.stop_reason
                    passes.append(False)
            return Verdicts(passes, failures, seconds)

    def idle_cpu_seconds(self) -> float:
        """Return the processor seconds that the process used since its last run. May be called from any thread."""
        machine = self._machine
        return 0.0 if machine is None else machine.unseen_cpu_seconds()

    def rest(self) -> None:
        """End the filter's process unless it is running."""
        if self._lock.acquire(blocking=False):
            try:
                self._stop()
            finally:
                self._lock.release()

    def kill(self) -> None:
        """End the filter's process. If it is running, it fails for its messages."""
        if (machine := self._machine) is not None:
            machine.kill()

    def close(self) -> None:
        """End the filter's process. Its files are removed with the last use of the filter."""
        with self._lock:
            self._stop()

    def _start(self) -> Machine:
        """The started process. Raises MachineFailed."""
        self._sandbox.begins(self)
        if self._machine is None:
            self._machine = Machine(self._command, self._directory)
        self._machine.wait_ready()
        return self._machine

    def _stop(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            machine.kill()
        self._sandbox.on_end(self)
