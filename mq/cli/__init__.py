"""The `raftmq` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command named in ``sys.argv``; exits with its exit code."""
    if sys.argv[1:] == ["--version"]:
        from importlib.metadata import version

        print(f"raftmq {version('raftmq')}")  # without the command line library, which takes longer than the rest
        return
    # Imported here: importing one module of this package must not load all commands.
    try:
        from mq.cli.entry_point import main as run
    except KeyboardInterrupt:  # as while running
        sys.exit(130)
    run()
