"""Sends the tasks of the chaos run: `python -m benchmarks.celery_load.chaos_producer TASKS SEED`.

It prints a line for each task that was sent, one for each chord with its tasks, and one for each error.
"""

from __future__ import annotations

import random
import sys
from typing import Final

from celery import chord

from benchmarks.celery_load.chaos_account import VISIBILITY_SECONDS
from benchmarks.celery_load.chaos_app import body, part, work

PARTS: Final = 9
CHORD_EVERY: Final = 200
"""The number of tasks whose last ones are a chord: its parts and its body."""
DELAYED_EACH: Final = 10
SLOW_EACH: Final = 97
LONG_EACH: Final = 4999
"""One task in this number takes longer than its visibility."""
DELAY_SECONDS_MAX: Final = 60.0


def send(number: int, rng: random.Random) -> str:
    """Send one task or one chord. Returns the line to print about it."""
    if number % CHORD_EVERY == CHORD_EVERY - 1 - PARTS:
        chord_result = chord((part.s(each) for each in range(PARTS)), body.s(expected=sum(range(PARTS))))()
        return " ".join(["chord", chord_result.id, *(each.id for each in chord_result.parent.results)])
    if number % LONG_EACH == LONG_EACH // 2:
        seconds = 1.3 * VISIBILITY_SECONDS
    else:
        seconds = rng.uniform(0.2, 1.0) if number % SLOW_EACH == 0 else 0.0
    countdown = rng.uniform(1, DELAY_SECONDS_MAX) if number % DELAYED_EACH == 0 else None
    return f"task {work.apply_async((seconds,), countdown=countdown).id}"


def main() -> None:
    """Send all tasks and chords, and print a line about each."""
    count, rng = int(sys.argv[1]), random.Random(int(sys.argv[2]))
    for number in range(count):
        if number % CHORD_EVERY > CHORD_EVERY - 1 - PARTS:
            continue  # parts of the chord
        try:
            line = send(number, rng)
        except Exception as error:  # each is counted: its task may or may not be stored
            line = f"error {error!r}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
