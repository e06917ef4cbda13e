"""Prints the part of a lock file that an installation needs: `python deploy/locked.py REPORT LOCK`.

REPORT is what `pip install --dry-run --report` wrote about the installation. The part keeps the hashes of the lock.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path


def locked(report: str, lock: str) -> Iterator[str]:
    """The entries of the lock for every distribution in the report that does not come from a directory.

    Raises SystemExit for a distribution that the lock does not have.
    """
    wanted = {
        _normal(each["metadata"]["name"])
        for each in json.loads(report)["install"]
        if "dir_info" not in each["download_info"]
    }
    for entry in re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE):
        if (name := re.match(r"[A-Za-z0-9._-]+", entry)) and (found := _normal(name.group())) in wanted:
            wanted.discard(found)
            yield entry
    if wanted:
        raise SystemExit(f"raftmq: the lock file lacks {', '.join(sorted(wanted))}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    report, lock = (Path(path).read_text() for path in sys.argv[1:])
    sys.stdout.writelines(locked(report, lock))
