"""Computes when a schedule ticks: at intervals, once, or by a cron expression in a time zone.

Times are milliseconds since 1970. Time zones come from the system, or from the package `tzdata`; cron expressions are
evaluated by `cronsim`, which behaves as Debian's cron when the clocks of a time zone change:

- An expression of five fields with fixed minutes and hours ticks once for each of its local times. A time that does not
  exist moves to the end of the gap; of times that move to the same moment, one is left. Of a time that exists twice,
  only the first one ticks.
- One whose minutes or hours begin with a star ticks whenever the local clock matches: at each of two equal local times,
  and not in a gap.
- So does one with a field for seconds.
"""

from __future__ import annotations

import datetime as dt
from typing import Final, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from mq.protocol.requests.schedules import TIME_MS_MAX, ScheduleDefinition

_COUNTED_MAX: Final = 1000
"""Ticks of a cron expression that are counted one by one, in a hundredth of a second."""


class RuleInvalid(Exception):
    """A cron expression or a time zone that this broker does not understand."""


class Rule(Protocol):
    """The times at which a schedule ticks."""

    def next_after(self, time_ms: int) -> int | None:
        """Return the first tick after ``time_ms``, in epoch milliseconds; None without one."""

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return the number of ticks after ``after_ms``, up to and including ``until_ms``. May stop at 1000."""


class Once(NamedTuple):
    """A single tick."""

    at_ms: int

    def next_after(self, time_ms: int) -> int | None:
        """Return the single tick if it is after ``time_ms``, otherwise None."""
        return self.at_ms if time_ms < self.at_ms else None

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return the number of ticks in the range: 0 or 1."""
        return int(after_ms < self.at_ms <= until_ms)


class Interval(NamedTuple):
    """Ticks at ``anchor_ms``, and every ``every_ms`` before and after it."""

    every_ms: int
    anchor_ms: int

    def next_after(self, time_ms: int) -> int | None:
        """Return the first tick after ``time_ms``; None if it is after `TIME_MS_MAX`."""
        due_ms = self.anchor_ms + ((time_ms - self.anchor_ms) // self.every_ms + 1) * self.every_ms
        assert time_ms < due_ms <= time_ms + self.every_ms, f"{due_ms} is to follow {time_ms}, every {self.every_ms} ms"
        return due_ms if due_ms <= TIME_MS_MAX else None

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return the number of ticks in the range."""
        numbers = [(time_ms - self.anchor_ms) // self.every_ms for time_ms in (after_ms, until_ms)]
        return max(numbers[1] - numbers[0], 0)


class Cron:
    """Ticks of a cron expression in a time zone. Raises RuleInvalid."""

    def __init__(self, expression: str, time_zone: str, *, both_days: bool = False) -> None:
        self._expression = expression
        self._zone = _zone(time_zone)
        self._both_days = both_days
        self.next_after(0)

    def next_after(self, time_ms: int) -> int | None:
        """Return the first tick after ``time_ms``; None if nothing matches within 50 years."""
        try:
            at = dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC).astimezone(self._zone)
            ticks = CronSim(self._expression, at)
            if self._both_days:
                ticks.day_and = True
            for tick in ticks:
                due_ms = int(tick.timestamp()) * 1000
                # Behind a repeated hour, or at the end of a gap, it may be one that has passed.
                if due_ms > time_ms:
                    return due_ms if due_ms <= TIME_MS_MAX else None
        except OverflowError:
            return None  # after the year 9999
        except (CronSimError, AssertionError, ValueError, TypeError, IndexError) as error:
            raise RuleInvalid(f"cron expression {self._expression[:80]!r}: {str(error) or 'cannot be read'}") from error
        return None

    def between(self, after_ms: int, until_ms: int) -> int:
        """Return the number of ticks in the range, at most `_COUNTED_MAX`."""
        count, at_ms = 0, self.next_after(after_ms)
        while at_ms is not None and at_ms <= until_ms and count < _COUNTED_MAX:
            count, at_ms = count + 1, self.next_after(at_ms)
        return count


def rule_of(definition: ScheduleDefinition) -> Rule:
    """Return the rule of a schedule. Raises RuleInvalid."""
    if definition.at_ms:
        return Once(definition.at_ms)
    if definition.every_ms:
        return Interval(definition.every_ms, definition.anchor_ms or 0)
    return Cron(definition.cron, definition.time_zone, both_days=definition.cron_days == "both")


def next_due(rule: Rule, definition: ScheduleDefinition, settled_ms: int) -> int | None:
    """Return a schedule's first tick after ``settled_ms`` within its start and end, else None. Raises RuleInvalid."""
    due_ms = rule.next_after(max(settled_ms, definition.start_ms - 1))
    assert due_ms is None or due_ms > settled_ms, f"a tick at {due_ms} is due again, all up to {settled_ms} are done"
    return due_ms if due_ms is not None and not 0 < definition.end_ms <= due_ms else None


def _zone(name: str) -> dt.tzinfo:
    if name == "UTC":
        return dt.UTC  # what cronsim is fastest with
    try:
        return ZoneInfo(name)
    except (ValueError, OSError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise RuleInvalid(f"time zone {name[:64]!r} cannot be read: {error}") from error
    except KeyError as error:
        raise RuleInvalid(f"there is no time zone {name[:64]!r}; write it as in Europe/Vienna") from error
