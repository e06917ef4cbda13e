"""The Python examples of a page for users, as programs."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs"


def examples(page: str, namesrv: str) -> list[str]:
    """The sources of the examples that are marked `python`, with the address of a name server; lines as in the page."""
    text = (PAGES / page).read_text()
    return [
        "\n" * (text.count("\n", 0, found.start()) + 1) + found[1].replace("127.0.0.1:9876", namesrv)
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
