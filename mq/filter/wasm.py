"""WebAssembly filters: the interface that a module exports, and how it is called for many messages at once.

A module exports

- ``memory``,
- ``raftmq_allocate(size: i32) -> i32``: the address of ``size`` bytes, into which messages are written; 0 if it has no
  room for so much. What it returned before may be used again.
- ``raftmq_filter(properties: i32, properties_size: i32, body: i32, body_size: i32) -> i32``: 1 to let the message
  through, 0 not to; anything else is an error. Properties are UTF-8: name, byte 1, value, byte 2, and so on.

and imports nothing. A call from Python costs as much as ten simple filters, so messages are filtered in runs: `DRIVER`,
a module of our own beside the filter, calls it for one message after another. Where the messages are, which one it is
at, and the results, are in the driver's memory, which the filter cannot reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mq.filter.blocks import BLOCK_MAX
from mq.filter.programs import ProgramInvalid

ALLOCATE: Final = "raftmq_allocate"
FILTER: Final = "raftmq_filter"
MEMORY: Final = "memory"

PLACE_BYTES: Final = 16
"""The size of a message's place in the driver's memory: the arguments of `FILTER`, relative to the buffer."""
RESULTS_AT: Final = BLOCK_MAX * PLACE_BYTES
"""The address in the driver's memory at which the results begin, one ``i32`` for each message."""
ROOM_MIN: Final = 64 * 1024
"""The least that a filter is asked for."""

DRIVER: Final = f"""
(module
  (import "filter" "{FILTER}" (func $filter (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") {(RESULTS_AT + 4 * BLOCK_MAX + 65535) // 65536})
  (global $at (export "at") (mut i32) (i32.const 0))
  (func (export "run") (param $begin i32) (param $end i32) (param $base i32)
    (local $place i32)
    (global.set $at (local.get $begin))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (global.get $at) (local.get $end)))
        (local.set $place (i32.mul (global.get $at) (i32.const {PLACE_BYTES})))
        (i32.store offset={RESULTS_AT} (i32.mul (global.get $at) (i32.const 4))
          (call $filter
            (i32.add (local.get $base) (i32.load (local.get $place)))
            (i32.load offset=4 (local.get $place))
            (i32.add (local.get $base) (i32.load offset=8 (local.get $place)))
            (i32.load offset=12 (local.get $place))))
        (global.set $at (i32.add (global.get $at) (i32.const 1)))
        (br $next)))))
"""
"""Calls the filter for the messages from ``begin`` to ``end``; the buffer with all messages would begin at ``base``.
``at`` says which one it is at, also after a trap.
"""

_FUNCTIONS: Final = {
    ALLOCATE: (("i32",), ("i32",)),
    FILTER: (("i32", "i32", "i32", "i32"), ("i32",)),
}


class WasmLimits(NamedTuple):
    """The limits of a WebAssembly filter.

    Attributes:
        fuel_per_message: limit of fuel, about one unit per instruction.
        seconds_per_message: elapsed time in seconds, for work that fuel does not count, such as filling memory.
        memory_bytes_max: maximum size of the filter's memory.
    """

    fuel_per_message: int = 20_000_000
    seconds_per_message: float = 0.1
    memory_bytes_max: int = 32 * 1024 * 1024


class Signature(NamedTuple):
    """The types of an exported function, named as in WebAssembly's text format."""

    parameters: tuple[str, ...]
    results: tuple[str, ...]


def check_module(imports: Sequence[str], exports: dict[str, Signature | str]) -> None:
    """Check that a module exports the interface of a filter, and imports nothing. Raises ProgramInvalid.

    ``imports`` are names for the error; ``exports`` are functions with their signatures, and the kinds of others.
    """
    if imports:
        raise ProgramInvalid(
            f"the module imports {', '.join(sorted(imports)[:5])}; a filter only gets the message. "
            "Build it without the system's interface (WASI) and without a runtime that needs one"
        )
    if exports.get(MEMORY) != MEMORY:
        raise ProgramInvalid(f"the module exports no memory named {MEMORY!r}")
    for name, (parameters, results) in _FUNCTIONS.items():
        export = exports.get(name)
        signature = _format(Signature(parameters, results))
        if export is None:
            raise ProgramInvalid(f"the module exports no function {name}{signature}")
        if export != Signature(parameters, results):
            export_text = f"a {export}" if isinstance(export, str) else _format(export)
            raise ProgramInvalid(f"the module exports {name} as {export_text}, not {signature}")


def room_for(nbytes: int) -> int:
    """Return the size of the buffer to request for ``nbytes`` bytes: a power of two, so that there are few sizes."""
    return max(ROOM_MIN, 1 << max(0, nbytes - 1).bit_length())


def _format(signature: Signature) -> str:
    results = f" -> {', '.join(signature.results)}" if signature.results else ""
    return f"({', '.join(signature.parameters)}){results}"
