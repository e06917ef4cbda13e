"""The Python of tasks on a cluster: the code of raftmq, which the driver ships, and an interpreter that only executors
have. No Spark here.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
import zipfile
from pathlib import Path
from typing import Final

NAME: Final = "raftmq-code.zip"
_PACKAGES: Final = ("mq", "raftlog", "spark")


def pack(directory: Path) -> Path:
    """Write a zip file of the packages that tasks import into ``directory``, which is created; returns its path.

    Compiled modules are left out: each has a form in Python, and Python cannot load them from a zip file.
    """
    directory.mkdir(parents=True)
    path = directory / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in _PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec is not None  # this module is of one of them, which imports the others
            for root in map(Path, spec.submodule_search_locations or ()):
                for each in sorted(root.rglob("*.py")):
                    archive.write(each, Path(name) / each.relative_to(root))
    return path


def is_in_archive(python: str, here: Path) -> bool:
    """Whether an interpreter is only where executors unpack an archive: a relative path that is not ``here``."""
    is_below = "/" in python and not Path(python).is_absolute() and ".." not in Path(python).parts
    return is_below and not (here / python).exists()


def stand_in(python: str, directory: Path) -> None:
    """Let a relative path in ``directory`` run this process's interpreter.

    Spark plans reads on the driver's machine, with the interpreter that it finds by the path for executors.
    """
    path = directory / python
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    path.chmod(0o755)
