"""The examples of filters in `tests/filters`, built with the tools that this machine has: all decide alike."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import wasmtime

from mq.filter.blocks import Message, block_of
from mq.filter.wasm import WasmLimits
from mq.filter_server.wasm_sandbox import Sandbox

EXAMPLES = Path(__file__).parents[2] / "filters"
C = ("clang", "--target=wasm32", "-nostdlib", "-O2", "-Wl,--no-entry")
C_EXPORTS = ("-Wl,--export=raftmq_allocate", "-Wl,--export=raftmq_filter")
ASSEMBLY_SCRIPT = ("asc", "-O", "--runtime", "stub", "--use", "abort=")
RUST = ("rustc", "--target", "wasm32-unknown-unknown", "--crate-type", "cdylib", "-O")


def built(name: str, directory: Path) -> bytes:
    """The module of an example; skips without the compiler or its target."""
    source, target = EXAMPLES / name, directory / "filter.wasm"
    match source.suffix:
        case ".wat":
            return bytes(wasmtime.wat2wasm(source.read_text()))
        case ".c":
            command = [*C, *C_EXPORTS, "-o", str(target), str(source)]
            needed = ["clang", "wasm-ld"]
        case ".ts":
            command = [*ASSEMBLY_SCRIPT, "--outFile", str(target), str(source)]
            needed = ["asc"]
        case _:
            command = [*RUST, "-o", str(target), str(source)]
            needed = ["rustc"]
    if missing := [tool for tool in needed if shutil.which(tool) is None]:
        pytest.skip(f"{name} is not built: no {missing[0]}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "can't find crate for `std`" in done.stderr:
        pytest.skip(f"{name} is not built: rustc has no target wasm32-unknown-unknown")
    assert done.returncode == 0, done.stderr
    return target.read_bytes()


@pytest.mark.parametrize("name", sorted(each.name for each in EXAMPLES.iterdir()))
def test_example_looks_for_its_property(name: str, tmp_path: Path) -> None:
    loaded = Sandbox(WasmLimits()).load(built(name, tmp_path))
    rows = {
        b"region\x01eu\x02": True,
        b"TAGS\x01A\x02region\x01eu\x02KEYS\x01k\x02": True,
        b"": False,
        b"region\x01us\x02": False,
        b"region\x01europe\x02": False,
        b"oldregion\x01eu\x02": False,
        b"TAGS\x01region\x02eu\x01x\x02": False,
    }
    verdicts = loaded.run(block_of([Message(properties, b"body" * 100) for properties in rows] * 100))
    assert not verdicts.failures
    assert verdicts.passes == [*rows.values()] * 100
