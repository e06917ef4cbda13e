"""``python -m jepsen``: the command `raftmq-jepsen`."""

from __future__ import annotations

from jepsen.cli import main

if __name__ == "__main__":
    main()
