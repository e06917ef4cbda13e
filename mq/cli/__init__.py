"""The `raftmq` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"raftmq {version('raftmq')}")  # without the command line's library, which takes longer than the rest
        return
    # Only here: whoever imports one module of this package must not pay for all commands.
    try:
        from mq.cli.front import main as run
    except KeyboardInterrupt:  # as when it runs
        sys.exit(130)
    run()
