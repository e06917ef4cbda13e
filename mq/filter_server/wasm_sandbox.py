"""Runs WebAssembly filters with wasmtime, within limits. The rules are in `mq.filter.wasm`.

A run has the fuel and the time of one message. If they end at a message that is not the first of its run, that message
is tried again as the first one of the next run: so a message fails if it alone needs too much, however many were
filtered before it. After any failure the filter begins with fresh memory.
"""

from __future__ import annotations

import ctypes
import math
import struct
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import wasmtime

from mq.filter.blocks import Block
from mq.filter.programs import ProgramInvalid
from mq.filter.wasm import (
    ALLOCATE,
    DRIVER,
    FILTER,
    MEMORY,
    RESULTS_AT,
    ROOM_MIN,
    Signature,
    WasmLimits,
    check_module,
    room_for,
)

EPOCH_SECONDS: Final = 0.01
"""The interval at which `Sandbox.tick` is to be called."""
_STACK_BYTES: Final = 256 * 1024
_TABLE_ELEMENTS_MAX: Final = 10_000
_REASONS: Final = {
    wasmtime.TrapCode.OUT_OF_FUEL: "it used more instructions than it may for one message",
    wasmtime.TrapCode.INTERRUPT: "it took longer than it may for one message",
    wasmtime.TrapCode.STACK_OVERFLOW: "its calls are nested too deeply",
    wasmtime.TrapCode.MEMORY_OUT_OF_BOUNDS: "it used memory that it does not have",
    wasmtime.TrapCode.UNREACHABLE: "it gave up (unreachable)",
    wasmtime.TrapCode.INTEGER_DIVISION_BY_ZERO: "it divided by zero",
}


class Verdicts(NamedTuple):
    """The verdicts of a filter on the first messages of a block.

    Attributes:
        passes: whether each message is accepted; False for one at which the filter failed.
        failures: why the filter failed at a message, by the message's position.
        seconds: processor time in seconds.
    """

    passes: list[bool]
    failures: dict[int, str]
    seconds: float


class Sandbox:
    """The WebAssembly engine for all filters of a process. Its methods may be called on any thread."""

    def __init__(self, limits: WasmLimits) -> None:
        self.limits = limits
        config = wasmtime.Config()
        config.consume_fuel = True
        config.epoch_interruption = True
        config.max_wasm_stack = _STACK_BYTES
        config.wasm_threads = False
        config.wasm_memory64 = False
        config.parallel_compilation = False
        # wasmtime's C interface aborts the process when it is asked for the type of an export or import with other
        # types than numbers, funcref and externref. Without these proposals such modules are not valid.
        config.wasm_relaxed_simd = False
        config.wasm_simd = False
        config.wasm_exceptions = False
        config.wasm_gc = False
        config.wasm_function_references = False
        # The address space of a filter is the memory that it may use, not the 4 GiB that it could address.
        config.memory_reservation = limits.memory_bytes_max
        self._engine = wasmtime.Engine(config)
        self._driver = wasmtime.Module(self._engine, DRIVER)

    def tick(self) -> None:
        """Interrupt calls that have run for too long. Call it every `EPOCH_SECONDS`."""
        self._engine.increment_epoch()

    def load(self, content: bytes) -> WasmFilter:
        """Compile, check and start a module, which takes up to some seconds. Raises ProgramInvalid."""
        try:
            # Bytes that are not a module could be the text of one, which is not what was uploaded for the others.
            wasmtime.Module.validate(self._engine, content)
            module = wasmtime.Module(self._engine, content)
        except wasmtime.WasmtimeError as error:
            raise ProgramInvalid(f"not a WebAssembly module that can be used: {_first_line(error)}") from error
        imports = [f"{each.module}.{each.name}" for each in module.imports]
        check_module(imports, {str(each.name): _kind(each.type) for each in module.exports})
        wasm_filter = WasmFilter(self, self._engine, self._driver, module)
        wasm_filter.check_start()
        return wasm_filter


class WasmFilter:
    """A filter module. Calls of `run` wait for each other."""

    def __init__(
        self, sandbox: Sandbox, engine: wasmtime.Engine, driver: wasmtime.Module, module: wasmtime.Module
    ) -> None:
        self._sandbox = sandbox
        self._engine = engine
        self._driver = driver
        self._module = module
        self._instance: _Instance | None = None
        self._lock = threading.Lock()

    def check_start(self) -> None:
        """Raise ProgramInvalid if the module cannot be started, or has no room for messages."""
        try:
            self._fresh().make_room(ROOM_MIN)
        except _Failed as error:
            raise ProgramInvalid(f"the module cannot be used: {error}") from error

    def run(self, block: Block, *, seconds_max: float = math.inf) -> Verdicts:
        """Filter the messages that can be started within ``seconds_max``, but at least one."""
        with self._lock:
            started_at, cpu_begun = time.perf_counter(), time.thread_time()
            passes: list[bool] = []
            failures: dict[int, str] = {}
            instance = self._instance
            if instance is not None:
                instance.set_block(block)
            while len(passes) < len(block):
                if passes and time.perf_counter() - started_at > seconds_max:
                    break
                at = len(passes)
                try:
                    if instance is None:
                        instance = self._fresh()
                        instance.set_block(block)
                    passes += instance.run(block, at, failures)
                except _Failed as error:
                    self._instance = instance = None
                    passes += error.passes
                    if not error.passes:
                        failures[at] = str(error)
                        passes.append(False)
            return Verdicts(passes, failures, time.thread_time() - cpu_begun)

    def close(self) -> None:
        """Release the sandbox and its memory."""

    def _fresh(self) -> _Instance:
        self._instance = None
        self._instance = _Instance(self._engine, self._driver, self._module, self._sandbox.limits)
        return self._instance


class _Failed(Exception):
    """The filter failed behind those messages whose results are known."""

    def __init__(self, reason: str, passes: Sequence[bool] = ()) -> None:
        super().__init__(reason)
        self.passes = passes


class _Instance:
    """A started module with its memory. After `_Failed` it must not be used again."""

    def __init__(
        self, engine: wasmtime.Engine, driver: wasmtime.Module, module: wasmtime.Module, limits: WasmLimits
    ) -> None:
        self._limits = limits
        self._ticks = math.ceil(limits.seconds_per_message / EPOCH_SECONDS) + 1
        self._store = store = wasmtime.Store(engine)
        store.set_limits(
            memory_size=limits.memory_bytes_max,
            table_elements=_TABLE_ELEMENTS_MAX,
            instances=2,
            tables=8,
            memories=2,
        )
        self._refill()
        try:
            exports = wasmtime.Instance(store, module, []).exports(store)
            self._memory: Any = exports[MEMORY]
            self._allocate: Any = exports[ALLOCATE]
            driver_exports = wasmtime.Instance(store, driver, [exports[FILTER]]).exports(store)
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise _Failed(f"it cannot be started: {_reason(error)}") from error
        self._run: Any = driver_exports["run"]
        self._at: Any = driver_exports["at"]
        self._places: Any = driver_exports["memory"]
        self._address = self._room = 0

    def make_room(self, nbytes: int) -> None:
        """Have the filter reserve memory for ``nbytes``. Raises _Failed if it does not give enough."""
        if nbytes <= self._room:
            return
        size = room_for(nbytes)
        self._refill()
        try:
            address = self._allocate(self._store, size) & 0xFFFFFFFF
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            raise _Failed(f"{ALLOCATE}({size}): {_reason(error)}") from error
        if address == 0:
            raise _Failed(f"{ALLOCATE} gave no room for {size} bytes")
        if address + size > self._memory.data_len(self._store):
            raise _Failed(f"{ALLOCATE}({size}) returned address {address}, where its memory has fewer bytes")
        self._address, self._room = address, size

    def set_block(self, block: Block) -> None:
        """Tell the driver where the messages of a block are."""
        _write(self._places.data_ptr(self._store), 0, block.encoded_places())

    def run(self, block: Block, begin: int, failures: dict[int, str]) -> list[bool]:
        """The results of some messages from ``begin`` on, of the block that was set last. Raises _Failed."""
        first = block.begin_of(begin)
        self.make_room(max(ROOM_MIN, block.ends[begin] - first))
        end = block.end_within(begin, self._room)
        nbytes = block.ends[end - 1] - first
        store = self._store
        # The filter may have less memory by now only if wasmtime is wrong: memories do not shrink.
        assert self._address + nbytes <= self._memory.data_len(store), f"{nbytes} bytes at {self._address}"
        _write(self._memory.data_ptr(store), self._address, block.data, first, nbytes)
        self._refill()
        try:
            self._run(store, begin, end, _as_signed(self._address - first))
        except (wasmtime.Trap, wasmtime.WasmtimeError) as error:
            position = self._at.value(store)
            assert begin <= position <= end, f"the filter failed at message {position} of {begin} to {end}"
            if position == end:  # the fuel ended behind the last message
                return self._results(begin, end, failures)
            raise _Failed(_reason(error), self._results(begin, position, failures)) from error
        return self._results(begin, end, failures)

    def _results(self, begin: int, end: int, failures: dict[int, str]) -> list[bool]:
        address = ctypes.addressof(self._places.data_ptr(self._store).contents) + RESULTS_AT + 4 * begin
        results = struct.unpack(f"<{end - begin}i", ctypes.string_at(address, 4 * (end - begin)))
        if results and not 0 <= min(results) <= max(results) <= 1:
            for position, result in enumerate(results, begin):
                if result not in (0, 1):
                    failures[position] = f"{FILTER} returned {result}; 1 lets a message through, 0 does not"
        return [result == 1 for result in results]

    def _refill(self) -> None:
        self._store.set_fuel(self._limits.fuel_per_message)
        self._store.set_epoch_deadline(self._ticks)


def _write(memory: Any, to: int, data: bytes, begin: int = 0, nbytes: int | None = None) -> None:
    """Copy `nbytes` of the data from ``begin`` on, all of it by default, into a memory at ``to``."""
    source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    ctypes.memmove(ctypes.addressof(memory.contents) + to, source + begin, len(data) if nbytes is None else nbytes)


def _as_signed(number: int) -> int:
    """The number as wasmtime takes an ``i32``."""
    number &= 0xFFFFFFFF
    return number - (number >> 31 << 32)


def _reason(error: wasmtime.Trap | wasmtime.WasmtimeError) -> str:
    if isinstance(error, wasmtime.Trap):
        code = error.trap_code
        text = None if code is None else _REASONS.get(code)
        return text or (code.name.lower().replace("_", " ") if code is not None else _first_line(error))
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[:3])[:300]


def _kind(value: Any) -> Signature | str:
    match value:
        case wasmtime.FuncType():
            return Signature(tuple(map(str, value.params)), tuple(map(str, value.results)))
        case wasmtime.MemoryType():
            return MEMORY
        case wasmtime.GlobalType():
            return "global"
        case _:
            return "table"
