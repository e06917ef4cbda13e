"""The `raftmq` command."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command that ``sys.argv`` names; ends the process with its exit code."""
    # Only here: whoever imports one module of this package must not pay for all commands.
    from mq.cli.app import main as run

    run()
