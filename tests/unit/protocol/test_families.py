"""Where a request is found, and what Spark's executors need to import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from mq.protocol import requests
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES

ROOT = Path(__file__).parents[3]


def families(text: str) -> dict[str, set[int]]:
    """Codes by module, as a table of lines ``- `module`: 1, 3 to 5`` says."""
    found = {}
    for module, codes in re.findall(r"^- `(\w+)`: (.*)$", text, re.MULTILINE):
        spans = [[int(number) for number in part.split(" to ")] for part in codes.split(", ")]
        found[module] = {code for span in spans for code in range(span[0], span[-1] + 1)}
    return found


def test_table_of_codes_names_the_module_of_each_request() -> None:
    modules: dict[str, set[int]] = {}
    for each in REQUEST_CLASSES:
        code = int(each.__struct_config__.tag)  # type: ignore[arg-type]
        modules.setdefault(each.__module__.removeprefix("mq.protocol.requests."), set()).add(code)
    assert families(requests.__doc__ or "") == modules


def test_modules_directly_in_the_protocol_need_the_standard_library_only() -> None:
    modules = sorted(f"mq.protocol.{path.stem}" for path in (ROOT / "mq/protocol").glob("[a-z]*.py"))
    assert "mq.protocol.bulk" in modules
    program = f"import {', '.join(modules)}"
    result = subprocess.run(
        [sys.executable, "-S", "-E", "-c", program], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert (result.returncode, result.stderr) == (0, "")
