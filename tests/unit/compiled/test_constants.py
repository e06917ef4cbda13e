"""`mq/compiled/constants.pxi` against the code in Python; `python -m mq.compiled.constants` writes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq.compiled.constants import PATH, text

SOURCES = [path for path in PATH.parent.iterdir() if path.suffix in (".pyx", ".pxi") and path != PATH]
NUMBER = re.compile(r"^    ([A-Z][A-Z0-9_]*) = ", re.MULTILINE)


def test_compiled_constants_equal_those_of_python() -> None:
    assert PATH.read_text() == text(), "python -m mq.compiled.constants writes it"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_defines_a_shared_constant_itself(path: Path) -> None:
    shared = set(NUMBER.findall(PATH.read_text()))
    assert "QUEUE_OFFSET_AT" in shared
    assert not shared & set(NUMBER.findall(path.read_text()))
