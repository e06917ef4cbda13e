"""The form of an interaction script: comments, and commands with what they must print.

    # what the next step shows
    propose A 2
    deliver
    ----
    A->B t1 append 2-3@1 behind 1@1, commit 1

Blocks are separated by blank lines; the output below ``----`` contains none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

RULE = "----"


@dataclass(frozen=True, slots=True)
class Block:
    """Some commands and what they print together; a block of comments only has neither."""

    comments: tuple[str, ...]
    commands: tuple[str, ...]
    output: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """The block as it stands in the file."""
        yield from self.comments
        if self.commands:
            yield from (*self.commands, RULE, *self.output)


def parse(text: str) -> list[Block]:
    """The blocks of a script. Raises ValueError for a comment behind a command, or output without a command."""
    blocks = []
    for chunk in text.strip().split("\n\n"):
        lines = [line.rstrip() for line in chunk.strip().split("\n")]
        above = lines[: lines.index(RULE)] if RULE in lines else lines
        comments = tuple(line for line in above if line.startswith("#"))
        commands = tuple(line for line in above if not line.startswith("#"))
        if tuple(above) != comments + commands:
            raise ValueError(f"comments come before the commands of a block: {above}")
        if len(above) < len(lines) and not commands:
            raise ValueError(f"output of no command: {lines}")
        blocks.append(Block(comments, commands, tuple(lines[len(above) + 1 :])))
    return blocks


def rewritten(blocks: Sequence[Block], run: Callable[[str], Sequence[str]]) -> list[Block]:
    """The same blocks with the output that ``run`` gives now for each of their commands, in order."""
    return [
        replace(block, output=tuple(line for command in block.commands for line in run(command)) or ("nothing",))
        if block.commands
        else block
        for block in blocks
    ]


def render(blocks: Sequence[Block]) -> str:
    """The text of a script."""
    return "\n\n".join("\n".join(block.lines()) for block in blocks) + "\n"
