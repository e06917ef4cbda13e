"""An interpreter that has imported libraries and this project once, and forks a process for each run of planted code.

Many a bug is found within a second of a processor, and to import everything takes two. A run has its own modules of the
files that are changed in its copy, and of all that import these, directly or through others; all other modules are the
same in its copy. This file is also the program of that interpreter, so it imports the standard library only.
"""

from __future__ import annotations

import builtins
import gc
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
from typing import Any, Self

_LIBRARIES = (
    "argparse",
    "asyncio",
    "concurrent.futures.process",
    "cryptography.x509",
    "hypothesis.stateful",
    "multiprocessing.pool",
    "prometheus_client.core",
    "pydantic_settings",
    "pytest",
    "_pytest.doctest",
    "_pytest.junitxml",
    "_pytest.legacypath",
    "_pytest.skipping",
    "sortedcontainers",
    "structlog",
    "trio",
    "unittest.mock",
)
_PACKAGES = ("raftlog", "mq", "checkers", "chaos")
_PRELOADED = ("chaos.__main__", "mq.broker.server", "mq.testing.cluster")
"""Modules that import nearly everything that runs need."""

_IMPORT_WHEN_ASKED = ("mq.client",)
"""Packages that import their modules only when a name of one is asked for."""

_importers: dict[str, set[str]] = {}
"""By module of this project: the modules that import it."""


class WarmPython:
    """Runs modules one after the other, each in a forked process. A context manager.

    Args:
        project: where the modules of this project are imported from, in the given environment. None: each run imports
            its own, whatever is changed.
    """

    def __init__(self, project: Path | None = None, environment: dict[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, __file__, *([] if project is None else [str(project)])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        directory: Path,
        environment: dict[str, str],
        files: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -m module`` in ``directory`` with this environment, which has PYTHONPATH.

        ``files`` are the paths of the files that differ there from the project's. Returns its exit code, negative for
        a signal, and what it wrote. Raises `RuntimeError` if the interpreter ended.
        """
        with tempfile.TemporaryDirectory(prefix="planted-output-") as outputs:
            out, err = Path(outputs, "out"), Path(outputs, "err")
            request = (module, list(arguments), str(directory), environment, str(out), str(err), list(files))
            assert self._server.stdin is not None, "the server has no input"
            assert self._server.stdout is not None, "the server has no output"
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            code = self._server.stdout.readline()
            if not code:
                raise RuntimeError(f"{__file__} ended with exit code {self._server.wait()} during a run of {module}")
            return subprocess.CompletedProcess(
                [module, *arguments], int(code), out.read_text(errors="replace"), err.read_text(errors="replace")
            )

    def close(self) -> None:
        """End the interpreter. A second call does nothing."""
        self._server.communicate()

    def __enter__(self) -> Self:
        """Return the interpreter."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the interpreter."""
        self.close()


def _preload(project: str) -> None:
    """Import this project, and record which of its modules imports which."""
    plain_import = builtins.__import__

    def noting_import(
        name: str, names: Any = None, own: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
    ) -> Any:
        module = plain_import(name, names, own, fromlist or (), level)
        importer = (names or {}).get("__name__", "")
        if importer.startswith(_PACKAGES) and name.startswith(_PACKAGES):
            for each in (name, *(f"{name}.{part}" for part in fromlist or ())):
                _importers.setdefault(each, set()).add(importer)
        return module

    sys.path.insert(0, project)
    builtins.__import__ = noting_import  # type: ignore[assignment]
    try:
        for module in _PRELOADED:
            importlib.import_module(module)
    finally:
        builtins.__import__ = plain_import


def _move(project: str, directory: str, files: Sequence[str]) -> None:
    """Import modules from ``directory`` from now on, and forget the changed ones and all that import them."""
    names = [path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in files]
    while names:
        name = names.pop()
        if sys.modules.pop(name, None) is None:
            continue
        package, _, last = name.rpartition(".")
        vars(sys.modules.get(package, builtins)).pop(last, None)
        names += _importers.get(name, ())
        if package in _IMPORT_WHEN_ASKED:
            names.append(package)
    for name, module in list(sys.modules.items()):
        if name.startswith(_PACKAGES) and hasattr(module, "__path__"):
            module.__path__ = [path.replace(project, directory, 1) for path in module.__path__]


def _serve() -> None:
    for library in _LIBRARIES:
        importlib.import_module(library)
    if len(sys.argv) > 1:
        _preload(sys.argv[1])
    # All of this stays: the processes need not look at it, which would also copy its pages.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run_module(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _run_module(
    module: str,
    arguments: list[str],
    directory: str,
    environment: dict[str, str],
    out: str,
    err: str,
    files: list[str],
) -> None:
    """Turn this process into ``python -m module``, as far as that can be seen from within."""
    for descriptor, path in enumerate((os.devnull, out, err)):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(fd, descriptor)
        os.close(fd)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = [path for path in environment["PYTHONPATH"].split(os.pathsep) if path]
    if len(sys.argv) > 1:
        _move(sys.argv[1], directory, files)
    sys.argv[:] = [module, *arguments]
    sys.modules.pop(f"{module}.__main__", None)  # it is run, not imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
