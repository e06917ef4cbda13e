"""The interface of WebAssembly filters, without a runtime."""

from __future__ import annotations

import pytest

from mq.filter.programs import ProgramRefused
from mq.filter.wasm import ROOM_MIN, Signature, check_module, room_for

GOOD: dict[str, Signature | str] = {
    "memory": "memory",
    "raftmq_allocate": Signature(("i32",), ("i32",)),
    "raftmq_filter": Signature(("i32", "i32", "i32", "i32"), ("i32",)),
}


def test_module_may_export_more() -> None:
    check_module([], GOOD | {"__heap_base": "global", "helper": Signature((), ())})


@pytest.mark.parametrize(
    ("imports", "exports", "reason"),
    [
        (["wasi_snapshot_preview1.fd_write"], GOOD, "imports wasi_snapshot_preview1.fd_write"),
        ([], {**GOOD, "memory": "global"}, "no memory named 'memory'"),
        ([], {name: kind for name, kind in GOOD.items() if name != "memory"}, "no memory named 'memory'"),
        ([], {name: kind for name, kind in GOOD.items() if name != "raftmq_filter"}, "no function raftmq_filter"),
        ([], {**GOOD, "raftmq_allocate": Signature(("i64",), ("i64",))}, r"as \(i64\) -> i64, not \(i32\) -> i32"),
        ([], {**GOOD, "raftmq_filter": "table"}, "as a table"),
    ],
)
def test_invalid_input_is_refused(imports: list[str], exports: dict[str, Signature | str], reason: str) -> None:
    with pytest.raises(ProgramRefused, match=reason):
        check_module(imports, exports)


@pytest.mark.parametrize(
    ("nbytes", "room"), [(0, ROOM_MIN), (ROOM_MIN, ROOM_MIN), (ROOM_MIN + 1, 2 * ROOM_MIN), (5_000_000, 1 << 23)]
)
def test_wasm_memory_is_requested_in_few_sizes(nbytes: int, room: int) -> None:
    assert room_for(nbytes) == room
