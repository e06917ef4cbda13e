"""The examples of the guide for Python users, and how to run them."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import CodeType
from typing import Any

import anyio

ROOT = Path(__file__).parents[2]
GUIDE = tuple(
    ROOT / "docs" / f"{page}.md" for page in ("python", "python-sending", "python-consuming", "python-running")
)
"""Its pages in the order of reading: later examples use the names and messages of earlier ones."""
SECONDS_MAX = 60


def examples(text: str) -> list[tuple[int, str]]:
    """The line and the source of each Python example."""
    return [
        (text.count("\n", 0, found.start()) + 1, found[1])
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def expected_output(source: str) -> list[str]:
    """What the comments of an example promise, line by line."""
    return re.findall(r"# -> (.*)$", source, re.MULTILINE)


def compiled(page: Path, line: int, source: str, namesrv: str) -> CodeType:
    """An example that uses this name server. The line numbers are those of the page, in tracebacks too."""
    text = "\n" * line + source.replace("127.0.0.1:9876", namesrv)
    code: CodeType = compile(text, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return code


def run(code: CodeType, names: dict[str, Any]) -> None:
    """Run an example as `python -m asyncio` would, on trio."""
    result = eval(code, names)
    if inspect.iscoroutine(result):

        async def bounded() -> None:
            with anyio.fail_after(SECONDS_MAX):
                await result

        anyio.run(bounded, backend="trio")
