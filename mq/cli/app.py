"""The whole command line, with every command imported: for whoever looks at all of them, such as tests."""

from __future__ import annotations

from mq.cli.front import COMMANDS, GROUPS, build

app = build(COMMANDS.keys() | GROUPS.keys())
