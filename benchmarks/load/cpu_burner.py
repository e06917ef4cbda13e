"""Burns a share of one core, to measure what CPU contention alone costs.

    python -m benchmarks.load.cpu_burner SHARE SECONDS

on the cores that the caller may use.
"""

from __future__ import annotations

import sys
import time

_SLICE_SECONDS = 0.0005
"""Seconds of a piece: about a broker's time for one chunk of pulls, so that waits are of the same length."""


def burn(share: float, seconds: float) -> None:
    """Use the CPU for the fraction ``share`` (0 to 1) of ``seconds``, in short pieces."""
    begin, cpu = time.monotonic(), time.process_time()
    while (elapsed := time.monotonic() - begin) < seconds:
        if time.process_time() - cpu < share * elapsed:
            piece = time.process_time() + _SLICE_SECONDS
            while time.process_time() < piece:
                pass
        else:
            time.sleep(_SLICE_SECONDS)


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]))
