"""Counts the messages that took each form of a broker's send path, from its figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from checkers.events import COMPILED, OTHERS

_FIGURES = {COMPILED: "raftmq.messagesCompiled", "all": "raftmq.messages"}


class SendPathCounts:
    """Adds the counts of all processes of all brokers: each process counts from 0. Counts after its last figures are
    lost.
    """

    def __init__(self) -> None:
        self._of_lives_before = dict.fromkeys(_FIGURES, 0)
        self._latest: dict[str, dict[str, int]] = {}

    def update(self, node: str, figures: Mapping[str, str]) -> None:
        """Record the present counts of a broker."""
        now = {name: int(figures.get(figure, 0)) for name, figure in _FIGURES.items()}
        before = self._latest.get(node)
        if before is not None and now["all"] < before["all"]:
            for name, count in before.items():
                self._of_lives_before[name] += count
        self._latest[node] = now

    def totals(self) -> dict[str, int]:
        """Return the messages on the compiled send path, and all others that came as commands."""
        compiled_count, every = (
            self._of_lives_before[name] + sum(latest[name] for latest in self._latest.values()) for name in _FIGURES
        )
        return {COMPILED: compiled_count, OTHERS: every - compiled_count}
