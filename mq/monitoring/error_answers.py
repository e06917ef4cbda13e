"""Counts the requests that this process answered with an error."""

from __future__ import annotations


class ErrorAnswers:
    """Counts error responses since the start of the process.

    Attributes:
        refused: requests that were not carried out: wrong or not permitted ones, and those that came while the process
            was busy or its disk full.
        failed: requests that failed in this process, for example because the log cannot be read.
    """

    def __init__(self) -> None:
        self.refused = 0
        self.failed = 0


ERROR_ANSWERS = ErrorAnswers()
