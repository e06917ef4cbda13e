"""The `raftmq` command of an installation: runs `mq.cli`, or says what to install for that."""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]

NOT_INSTALLED = 3


def main() -> None:
    """Run the command named in ``sys.argv``; exits with its exit code, 3 if only the client is installed."""
    if find_spec("mq.cli") is None:
        if sys.argv[1:] == ["--version"]:
            from importlib.metadata import version

            print(f"raftmq {version('raftmq')}, the client only")
            return
        print("raftmq: only the client is installed; for the command: pip install 'raftmq[server]'", file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    from mq.cli import main as run

    run()


if __name__ == "__main__":
    main()
