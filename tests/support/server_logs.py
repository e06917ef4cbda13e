"""What servers that a test started have logged: part of its report if it fails, since its files are gone later."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAMES = ("*.log", "log", "output", "stderr")
"""Files of these names, as tests call what servers, workers and commands write."""
FILES_MAX = 12
LINES_MAX = 60
CHARACTERS_MAX = 400
"""Of a line."""


def ends_of_logs(directory: Path, since: float) -> Iterator[tuple[str, str]]:
    """Name and last lines of each log below ``directory`` that was written at or after ``since``, in s since the epoch.

    If there are too many, those that were written last.
    """
    found = []
    for pattern in NAMES:
        for path in directory.rglob(pattern):
            if path.is_file() and not path.is_symlink() and (written := path.stat().st_mtime) >= since:
                found.append((written, path))
    for path in sorted(path for _, path in sorted(found)[-FILES_MAX:]):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LINES_MAX * CHARACTERS_MAX))
            lines = file.read().decode(errors="replace").splitlines()[-LINES_MAX:]
        if lines:
            yield str(path.relative_to(directory)), "\n".join(line[:CHARACTERS_MAX] for line in lines)
