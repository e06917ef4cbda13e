"""The text that the demonstration sends: the sources of the Python standard library.

It is real text, available on every machine that can run this program, with several hundred thousand lines, so nothing
has to be shipped or downloaded. Files are in sorted order, without blank lines: the same interpreter always gives the
same messages.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def source_directory() -> Path:
    """The directory of Python's standard library, whose files are the demonstration's text."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_lines(directory: Path, count: int) -> list[bytes]:
    """Return the first ``count`` nonblank lines, or all lines if there are fewer."""
    return list(islice(_lines(directory), count))


def _lines(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(directory).parts) and path.is_file():
            for line in path.read_bytes().splitlines():
                if line and not line.isspace():
                    yield line


def tag_of(line: bytes) -> str:
    """Return the kind of a line, which is the message's tag."""
    words = line.split(maxsplit=1)
    match words[0]:
        case b"def" | b"async" | b"class":
            return "definition"
        case b"import" | b"from":
            return "import"
        case word if word.startswith(b"#"):
            return "comment"
        case _:
            return "code"
