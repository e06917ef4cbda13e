"""Lists the modules with the first line of their docstrings: python docs/site/modules.py [PACKAGE...].

Without a package, all packages are listed. `make docs` makes a page of the same list.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("raftlog", "mq", "raftmq", "spark", "jepsen", "chaos", "checkers", "benchmarks", "distributions")


def lines(package: str) -> Iterator[str]:
    """Markdown: for each package at or below `package` (a path), a heading and a table of its modules."""
    for directory in sorted({path.parent for path in (ROOT / package).rglob("*.py")}):
        modules = [path for path in sorted(directory.glob("*.py")) if first_line(path)]
        if not modules:
            continue
        yield f"\n## {directory.relative_to(ROOT)}\n"
        own = directory / "__init__.py"
        if own in modules:
            yield f"{first_line(own)}\n"
        yield "| module | what it does |\n|---|---|"
        for path in modules:
            if path != own:
                yield f"| `{path.stem}` | {first_line(path).replace('|', chr(92) + '|')} |"


def first_line(module: Path) -> str:
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    packages = sys.argv[1:] or PACKAGES
    missing = [package for package in packages if not (ROOT / package).is_dir()]
    if missing:
        sys.exit(f"there is no package {missing[0]} in {ROOT}")
    for package in packages:
        sys.stdout.writelines(f"{line}\n" for line in lines(package))
