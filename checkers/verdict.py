"""The results of checkers: valid, broken or unknown, with numbers and a few worked examples of each anomaly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

EXAMPLES_MAX = 8

Valid = bool | Literal["unknown"]


class Result(msgspec.Struct, frozen=True):
    """The result of one checker.

    ``anomalies`` has the number of violations by kind, ``examples`` describes the first ones of each. ``unknown`` has
    the reasons for a missing verdict. ``counts`` has the numbers of checked things.
    """

    name: str
    promise: str
    counts: dict[str, int] = {}
    anomalies: dict[str, int] = {}
    examples: dict[str, list[str]] = {}
    unknown: list[str] = []

    @property
    def valid(self) -> Valid:
        """False if a promise was broken; "unknown" if the checker cannot decide; True otherwise."""
        if self.anomalies:
            return False
        return "unknown" if self.unknown else True


NEVER_CAME = frozenset({"unseen", "lost", "not-again", "never-seen", "given-back-and-lost"})
"""Anomalies that only the end of a run can show: before that, missing messages may still arrive."""


def of_unfinished(result: Result) -> Result:
    """The result of an unfinished run: missing messages might still have come, so their absence is no anomaly."""
    missing = sorted(result.anomalies.keys() & NEVER_CAME)
    if not missing:
        return result
    why = f"the run did not get to its end, so {', '.join(missing)} may only be late"
    return msgspec.structs.replace(
        result,
        anomalies={name: count for name, count in result.anomalies.items() if name not in NEVER_CAME},
        examples={name: told for name, told in result.examples.items() if name not in NEVER_CAME},
        unknown=[*result.unknown, why],
    )


class Findings:
    """Collects the findings of a checker while it runs."""

    def __init__(self, name: str, promise: str) -> None:
        self._name = name
        self._promise = promise
        self.counts: Counter[str] = Counter()
        self._anomalies: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._unknown: list[str] = []

    def add(self, anomaly: str, example: str) -> None:
        """Record that a promise was broken."""
        self._anomalies[anomaly] += 1
        examples = self._examples.setdefault(anomaly, [])
        if len(examples) < EXAMPLES_MAX:
            examples.append(example)

    def cannot_tell(self, why: str) -> None:
        """Note that something required for a verdict is missing."""
        if why not in self._unknown:
            self._unknown.append(why)

    def result(self) -> Result:
        """The result of all findings so far."""
        return Result(
            self._name, self._promise, dict(self.counts), dict(self._anomalies), self._examples, self._unknown
        )


class Verdict(msgspec.Struct, frozen=True):
    """All results of a run: broken if one is broken, else unknown if one is unknown."""

    results: list[Result]
    plan: Mapping[str, object] = {}

    @property
    def valid(self) -> Valid:
        """The verdict of the whole run; "unknown" if nothing was checked."""
        return merge(result.valid for result in self.results)


def merge(each: Iterable[Valid]) -> Valid:
    """Merge verdicts into the worst; "unknown" for none at all."""
    listed = list(each)
    if any(valid is False for valid in listed):
        return False
    return True if listed and all(valid is True for valid in listed) else "unknown"


def in_words(valid: Valid) -> str:
    """The word for people."""
    if valid == "unknown":
        return "UNKNOWN"
    return "valid" if valid else "BROKEN"


EXIT_VALID, EXIT_BROKEN, EXIT_UNKNOWN, EXIT_CANNOT_RUN = 0, 1, 2, 3


def exit_code(valid: Valid) -> int:
    """The exit code of the command."""
    if valid == "unknown":
        return EXIT_UNKNOWN
    return EXIT_VALID if valid else EXIT_BROKEN
