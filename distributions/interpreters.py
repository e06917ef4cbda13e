"""The interpreters of this machine for which distributions are built and tried, and virtual environments of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

MINORS: Final = (11, 12, 13, 14)
PYTHONS: Final = "RAFTMQ_PYTHONS"
"""With interpreters in this variable, separated by colons, no others are looked for."""

_PROBE: Final = """
import ensurepip, pathlib, sys, sysconfig, venv
print(sys.version_info[1], sys.version.split()[0], pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
"""


class Interpreter(NamedTuple):
    """A CPython 3.``minor``."""

    path: str
    minor: int
    version: str
    has_headers: bool

    @property
    def tag(self) -> str:
        """As in the names of wheels."""
        return f"cp3{self.minor}"


class Environment(NamedTuple):
    """A virtual environment."""

    directory: Path

    @property
    def python(self) -> str:
        return str(self.directory / "bin" / "python")

    def run(self, *arguments: str, **environment: str) -> str:
        """What this Python prints. Raises CalledProcessError; what it says about the error is shown."""
        # In no checkout: its packages would be found first.
        return subprocess.run(
            [self.python, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.directory,
            env=clean_environment() | environment,
        ).stdout

    def pip(self, *arguments: str, **environment: str) -> None:
        """Run pip. Raises CalledProcessError."""
        self.run("-m", "pip", "--disable-pip-version-check", "--no-input", "-q", *arguments, **environment)


def clean_environment() -> dict[str, str]:
    """That of this process, without what would let another Python find this checkout or leave bytecode out."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def new_environment(interpreter: Interpreter, directory: Path) -> Environment:
    """Make one without any packages but pip. Raises CalledProcessError."""
    subprocess.run([interpreter.path, "-m", "venv", str(directory)], check=True, env=clean_environment())
    return Environment(directory)


def find_interpreters() -> list[Interpreter]:
    """One for each minor version that is here; one that can compile if there is any."""
    found: dict[int, Interpreter] = {}
    for path in _candidates():
        interpreter = _probed(path)
        if interpreter is None or interpreter.minor not in MINORS:
            continue
        known = found.get(interpreter.minor)
        if known is None or (interpreter.has_headers and not known.has_headers):
            found[interpreter.minor] = interpreter
    return [found[minor] for minor in sorted(found)]


def _candidates() -> Iterator[str]:
    if named := os.environ.get(PYTHONS):
        yield from named.split(":")
        return
    for minor in MINORS:
        name = f"python3.{minor}"
        yield f"/usr/bin/{name}"
        yield from filter(None, [shutil.which(name)])
        yield from map(str, sorted(Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/{name}")))


def _probed(path: str) -> Interpreter | None:
    try:
        result = subprocess.run([path, "-c", _PROBE], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    minor, version, has_headers = result.stdout.split()
    return Interpreter(path, int(minor), version, has_headers == "True")
