"""The whole command line, with every command imported: for tests and generated docs."""

from __future__ import annotations

from mq.cli.entry_point import COMMANDS, GROUPS, build

app = build(COMMANDS.keys() | GROUPS.keys())
