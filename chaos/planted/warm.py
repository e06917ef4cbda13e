"""An interpreter that has imported the libraries of others once, and forks a process for each run of planted code.

Many a bug is found within a second of a processor, and to import the libraries takes one, too. Modules of this project
are never imported here: each run has those of its own copy. This file is also the program of that interpreter, so it
imports the standard library only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_LIBRARIES = (
    "argparse",
    "asyncio",
    "concurrent.futures.process",
    "cryptography.x509",
    "multiprocessing.pool",
    "prometheus_client.core",
    "pydantic_settings",
    "sortedcontainers",
    "structlog",
    "trio",
    "unittest.mock",
)
"""No plugin of pytest is among them: it wants to import these itself."""


class WarmPython:
    """Runs modules one after the other, each in a process of its own; a context manager."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, module: str, arguments: Sequence[str], directory: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m module`` in ``directory`` with this environment, which has PYTHONPATH.

        Returns its exit code, negative for a signal, and what it wrote. Raises `RuntimeError` if the interpreter ended.
        """
        with tempfile.TemporaryDirectory(prefix="planted-output-") as outputs:
            out, err = Path(outputs, "out"), Path(outputs, "err")
            wanted = (module, list(arguments), str(directory), environment, str(out), str(err))
            assert self._server.stdin is not None, "the server has no input"
            assert self._server.stdout is not None, "the server has no output"
            self._server.stdin.write(json.dumps(wanted) + "\n")
            self._server.stdin.flush()
            code = self._server.stdout.readline()
            if not code:
                raise RuntimeError(f"{__file__} ended with exit code {self._server.wait()} during a run of {module}")
            return subprocess.CompletedProcess(
                [module, *arguments], int(code), out.read_text(errors="replace"), err.read_text(errors="replace")
            )

    def close(self) -> None:
        """End the interpreter. Nothing happens at a second call."""
        self._server.communicate()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the interpreter."""
        self.close()


def _serve() -> None:
    for library in _LIBRARIES:
        importlib.import_module(library)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(module: str, arguments: list[str], directory: str, environment: dict[str, str], out: str, err: str) -> None:
    """Turn this process into ``python -m module``, as far as that can be seen from within."""
    for descriptor, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path]
    sys.argv[:] = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
