"""Named points in a simulation where something rare, but allowed, happens on purpose.

Each run switches every point on or off, so that all combinations occur; a point that is on triggers with its own
chance. The report lists points that never triggered: their purpose was not tested.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

POINTS: Final[dict[str, float]] = {
    "crash-after-write": 0.3,
    "crash-in-write": 0.5,
    "crash-while-opening": 0.3,
    "early-tick": 0.02,
    "late-markers": 0.3,
    "late-tick": 0.05,
    "lost-checkpoint": 0.3,
    "no-room-in-lane": 0.01,
    "old-frames-after-heal": 0.5,
    "one-write-at-a-time": 0.3,
    "read-first-after-pause": 0.8,
    "replay-everything": 0.1,
    "slow-reconnect": 0.2,
    "slow-write": 0.02,
    "turn-with-many-inputs": 0.1,
    # Behind the others, so that the draws for those stay the same.
    "evicted-cache": 0.3,
    "no-link": 0.1,
    "socket-full": 0.1,
}
"""Every point with its chance to trigger at each evaluation, in a run that has it switched on."""


class Buggify:
    """The points of one run. ``evaluations`` and ``triggers`` count how often each was evaluated and triggered."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._on = {name for name in POINTS if rng.random() < 0.5}
        self.evaluations: Counter[str] = Counter()
        self.triggers: Counter[str] = Counter()
        self.calm = False
        """Whether points no longer trigger: in the end of a run, everything must work."""

    def __call__(self, name: str) -> bool:
        """Whether the point ``name`` triggers now."""
        chance = POINTS[name]
        self.evaluations[name] += 1
        if self.calm or name not in self._on or self._rng.random() >= chance:
            return False
        self.triggers[name] += 1
        return True
