"""The text that the demonstration sends: the sources of the running Python's own standard library.

It is real text, it is on every machine that can run this program, and there are several hundred thousand lines of it,
so nothing has to be shipped or downloaded. Files are taken in sorted order and blank lines left out: the same
interpreter always gives the same messages.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def source_directory() -> Path:
    """Where the text comes from."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_lines(directory: Path, count: int) -> list[bytes]:
    """The first ``count`` lines that are not blank, fewer when there are not so many."""
    return list(islice(_lines(directory), count))


def _lines(directory: Path) -> Iterator[bytes]:
    for path in sorted(directory.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(directory).parts) and path.is_file():
            for line in path.read_bytes().splitlines():
                if line and not line.isspace():
                    yield line


def tag_of(line: bytes) -> str:
    """What kind of line this is; the messages' tag."""
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
