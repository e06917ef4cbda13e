"""The whole command line with every command imported, for tests and for the generated docs."""

from __future__ import annotations

from mq.cli.entry_point import COMMANDS, GROUPS, build

app = build(COMMANDS.keys() | GROUPS.keys())
