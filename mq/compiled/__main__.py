"""``python -m mq.compiled``: compile the optional parts of the data path for this interpreter, beside their sources.

For a checkout: wheels have compiled parts, or were built without. Needs Cython, setuptools, a C compiler and the
headers of Python. Exit code 0 when the compiled parts are there, 3 when something is missing, or this is no checkout;
then everything stays as it was.
"""

from __future__ import annotations

import sys
from pathlib import Path

import raftlog.compiled
from mq.compiled import IS_COMPILED
from raftlog.compiled.building import compile_package, missing_tool

NOT_COMPILED = 3
_PACKAGES = {"mq.compiled": Path(__file__).parent, "raftlog.compiled": Path(raftlog.compiled.__file__).parent}


def main() -> int:
    """Compile, and say what came of it in one line."""
    kept = "the compiled data path stays as it is" if IS_COMPILED else "the data path stays in Python"
    checkout = Path(raftlog.compiled.__file__).parents[2]
    if not (checkout / "pyproject.toml").exists():
        print(f"raftmq: {kept}: {checkout} is no checkout; pip compiles when it builds raftmq-server (docs/deploy.md)")
        return NOT_COMPILED
    missing = missing_tool()
    if missing is not None:
        print(f"raftmq: {kept}: {missing}")
        return NOT_COMPILED
    try:
        libraries = [path for package, sources in _PACKAGES.items() for path in compile_package(package, sources)]
    except (RuntimeError, OSError) as error:
        print(f"raftmq: {kept}: {error}", file=sys.stderr)
        return NOT_COMPILED
    print(f"raftmq: compiled {', '.join(path.name for path in libraries)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
