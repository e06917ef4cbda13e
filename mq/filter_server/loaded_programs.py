"""Keeps filter programs in memory, and loads them on demand from the broker or from a consumer's upload."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol

import trio

from mq.filter.blocks import Block
from mq.filter.programs import ProgramInvalid, ProgramName
from mq.filter.sql import BodySqlFilter
from mq.filter.sql_syntax import SqlError
from mq.filter_server.group_budget import GroupBudget
from mq.filter_server.java_filters import JavaSandbox
from mq.filter_server.wasm_sandbox import Sandbox, Verdicts
from mq.protocol import properties as props

_REFUSED_SECONDS: Final = 5.0
"""The pause before an unusable program is tried again."""
_SHARE_MESSAGES: Final = 256
"""The number of messages from which the share that a program lets through is estimated."""

JAVA_REFUSED: Final = (
    "this filter server does not run Java: start it with --allow-java, or filter with WebAssembly or SQL92"
)

Key = tuple[str, str, str]
"""Group, topic, and the name of the program."""


class Runs(Protocol):
    """A program that filters messages, on a worker thread."""

    def run(self, block: Block, *, seconds_max: float = math.inf) -> Verdicts:
        """Return verdicts on the messages that can be started within `seconds_max`, but on at least one."""

    def close(self) -> None:
        """Release the program, which is not used any more. Blocks while it runs."""


class SqlProgram:
    """A filter by an SQL92 expression over properties and values in the body."""

    def __init__(self, content: bytes) -> None:
        try:
            self._sql = BodySqlFilter(content.decode())
        except UnicodeDecodeError as error:
            raise ProgramInvalid(f"the expression is not UTF-8: {error}") from error
        except SqlError as error:
            raise ProgramInvalid(f"the expression is wrong at {error}") from error

    def run(self, block: Block, *, seconds_max: float = math.inf) -> Verdicts:
        """Evaluate the expression for the messages of a block, until ``seconds_max`` have passed."""
        started_at, cpu_begun = time.perf_counter(), time.thread_time()
        passes: list[bool] = []
        for number in range(len(block)):
            if passes and time.perf_counter() - started_at > seconds_max:
                break
            properties, body = block.message(number)
            passes.append(self._sql.matches(props.decode(properties.decode("utf-8", "replace")), body))
        return Verdicts(passes, {}, time.thread_time() - cpu_begun)

    def close(self) -> None:
        """Do nothing, because an expression has no resources to release."""


class Program:
    """A filter program that is in memory.

    Attributes:
        turn: lets one thread at a time filter with the program, so that a slow filter does not take all threads.
        share: the share of accepted messages among the latest ones.
    """

    def __init__(self, name: ProgramName, runs: Runs, budget: GroupBudget) -> None:
        self.name = name
        self.runs = runs
        self.budget = budget
        self.turn = trio.Lock()
        self.share = 1.0

    def count_messages(self, examined: int, passed: int) -> None:
        """Count how many of the examined messages the filter accepted."""
        if examined:
            weight = min(1.0, examined / _SHARE_MESSAGES)
            self.share += (passed / examined - self.share) * weight

    def to_examine(self, count: int, most: int) -> int:
        """Return how many messages to filter so that about ``count`` are accepted: 1 to ``most``."""
        return max(1, min(most, math.ceil(count / max(self.share, 1 / most))))


class Programs:
    """Keeps at most `programs_max` programs in memory.

    Args:
        fetch: asks the broker for the bytes of a program of a group for a topic. May raise ClientError.
        fetch_current: asks the broker for the program that a group has for a topic. May raise ClientError.
        java: runs filters in Java; None if this server does not.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        fetch: Callable[[str, str, ProgramName], Awaitable[bytes]],
        fetch_current: Callable[[str, str], Awaitable[tuple[ProgramName, bytes]]],
        *,
        programs_max: int,
        group_share: float,
        java: JavaSandbox | None = None,
    ) -> None:
        self._sandbox = sandbox
        self._java = java
        self._fetch_current = fetch_current
        self._upload_names: OrderedDict[tuple[str, str], ProgramName | str] = OrderedDict()
        """The last upload by group and topic, or the reason why it cannot be used."""
        self._fetch = fetch
        self._programs_max = programs_max
        self._share = group_share
        self._programs: OrderedDict[Key, Program] = OrderedDict()
        self._refusals: dict[Key, tuple[float, str]] = {}
        self._budgets: dict[str, GroupBudget] = {}
        self._locks: dict[Key, trio.Lock] = {}
        # One after another: compiling may take a processor for seconds.
        self._compile_slot = trio.CapacityLimiter(1)

    def __len__(self) -> int:
        return len(self._programs)

    async def get(self, group: str, topic: str, name: ProgramName) -> Program:
        """Return a program; fetches it if it is not in memory. Raises ProgramInvalid, ClientError."""
        key = group, topic, name.text
        if (there := self._load_known(key)) is not None:
            await trio.lowlevel.checkpoint()
            return there
        return await self._once(key, name, partial(self._fetch, group, topic, name))

    async def add(self, group: str, topic: str, name: ProgramName, content: bytes) -> Program:
        """Load a program that a consumer uploaded. Raises ProgramInvalid if it is unusable."""
        if not name.is_of(content):
            raise ProgramInvalid(f"the SHA-256 of the program differs from its name {name.text}")
        key = group, topic, name.text

        async def return_content() -> bytes:
            await trio.lowlevel.checkpoint()
            return content

        try:
            there = self._load_known(key)
            program = await self._once(key, name, return_content) if there is None else there
        except ProgramInvalid as error:
            self._record_upload(group, topic, str(error))
            raise
        self._record_upload(group, topic, name)
        await trio.lowlevel.checkpoint()
        return program

    def _record_upload(self, group: str, topic: str, outcome: ProgramName | str) -> None:
        self._upload_names[group, topic] = outcome
        self._upload_names.move_to_end((group, topic))
        while len(self._upload_names) > self._programs_max:
            self._upload_names.popitem(last=False)

    def has(self, group: str, topic: str, name: ProgramName) -> bool:
        """Whether the program is in memory."""
        return (group, topic, name.text) in self._programs

    async def current(self, group: str, topic: str) -> ProgramName:
        """Return a group's filter for a topic, for RocketMQ's clients, which do not name it when they pull.

        Raises ProgramInvalid if that cannot be used, ClientError: BrokerError with FILTER_DATA_NOT_EXIST without one.
        """
        match self._upload_names.get((group, topic)):
            case ProgramName() as name:
                await trio.lowlevel.checkpoint()
                return name
            case str(reason):
                raise ProgramInvalid(reason)
            case None:
                pass
        if self._java is None:
            raise ProgramInvalid(JAVA_REFUSED)
        name, content = await self._fetch_current(group, topic)
        await self.add(group, topic, name, content)
        return name

    async def _once(self, key: Key, name: ProgramName, content: Callable[[], Awaitable[bytes]]) -> Program:
        """Load a program, unless another task has done so by the time that it is this one's turn."""
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            async with lock:
                if (there := self._load_known(key)) is not None:
                    return there
                return await self._load(key, name, await content())
        finally:
            if not lock.statistics().tasks_waiting:
                self._locks.pop(key, None)

    def _load_known(self, key: Key) -> Program | None:
        there = self._programs.get(key)
        if there is not None:
            self._programs.move_to_end(key)
            return there
        until, reason = self._refusals.get(key, (0.0, ""))
        if trio.current_time() < until:
            raise ProgramInvalid(reason)
        self._refusals.pop(key, None)
        return None

    async def _load(self, key: Key, name: ProgramName, content: bytes) -> Program:
        def runs() -> Runs:
            match name.kind:
                case "wasm":
                    return self._sandbox.load(content)
                case "sql":
                    return SqlProgram(content)
                case "java":
                    if self._java is None:
                        raise ProgramInvalid(JAVA_REFUSED)
                    return self._java.load(content, key[0], key[1])

        try:
            program_filter = await trio.to_thread.run_sync(runs, limiter=self._compile_slot)
        except ProgramInvalid as error:
            if len(self._refusals) >= self._programs_max:
                self._refusals.clear()
            self._refusals[key] = trio.current_time() + _REFUSED_SECONDS, str(error)
            raise
        now = trio.current_time()
        budget = self._budgets.setdefault(key[0], GroupBudget(self._share, now))
        self._programs[key] = program = Program(name, program_filter, budget)
        while len(self._programs) > self._programs_max:
            _, oldest = self._programs.popitem(last=False)
            await trio.to_thread.run_sync(oldest.runs.close, limiter=self._compile_slot)
        groups = {group for group, _, _ in self._programs}
        self._budgets = {group: each for group, each in self._budgets.items() if group in groups}
        return program
