"""Prints what the distributions of this checkout need, one requirement a line: the input of `make lock`.

    python deploy/requirements.py PROJECT[:EXTRA,EXTRA]...

PROJECT is a directory with a pyproject.toml. What one of our distributions needs of another is left out.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(argument: str) -> set[str]:
    """Those of one project, with these extras."""
    directory, _, extras = argument.partition(":")
    with Path(directory, "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    lists = [project["dependencies"]]
    lists += [project["optional-dependencies"][extra] for extra in extras.split(",") if extra]
    return {each for listed in lists for each in listed if not each.startswith("raftmq")}


if __name__ == "__main__":
    sys.stdout.write("".join(f"{each}\n" for each in sorted(set().union(*map(requirements, sys.argv[1:])))))
