"""``python -m mq.compiled``: compile the optional parts of the data path for this interpreter, next to their sources.

``python -m mq.compiled raftlog.compiled`` compiles the modules of one package.

For a checkout: wheels have compiled parts, or were built without. Needs Cython, setuptools, a C compiler and the
headers of Python. Exit code 0 when the compiled parts are there, 1 when they cannot be compiled or written, 3 when
something is missing, or this is not a checkout. Unless it is 0, everything stays as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import raftlog.compiled
from mq.compiled import IS_COMPILED
from raftlog.compiled.building import compile_package, missing_tool

FAILED = 1
IMPOSSIBLE_HERE = 3
_PACKAGES = {"mq.compiled": Path(__file__).parent, "raftlog.compiled": Path(raftlog.compiled.__file__).parent}


def main(packages: Sequence[str] = ()) -> int:
    """Compile these packages, or all, in parallel, and print the outcome in one line."""
    kept = "the compiled data path stays as it is" if IS_COMPILED else "the data path stays in Python"
    checkout = Path(raftlog.compiled.__file__).parents[2]
    if not (checkout / "pyproject.toml").exists():
        print(f"raftmq: {kept}: {checkout} is no checkout; pip compiles when it builds raftmq-server (docs/deploy.md)")
        return IMPOSSIBLE_HERE
    missing = missing_tool()
    if missing is not None:
        print(f"raftmq: {kept}: {missing}")
        return IMPOSSIBLE_HERE
    try:
        with ThreadPoolExecutor() as pool:
            chosen = {package: _PACKAGES[package] for package in packages or _PACKAGES}
            compiled = pool.map(compile_package, chosen, chosen.values())
            libraries = list(chain.from_iterable(compiled))
    except (RuntimeError, OSError) as error:
        print(f"raftmq: {kept}: {error}", file=sys.stderr)
        return FAILED
    print(f"raftmq: compiled {', '.join(path.name for path in libraries)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
