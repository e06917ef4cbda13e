"""Uses a share of one processor and does nothing: what is lost beside it is lost to the processor, not to the work.

    python -m benchmarks.burning SHARE SECONDS

on the processors that whoever starts it may use.
"""

from __future__ import annotations

import sys
import time

_SLICE_SECONDS = 0.0005
"""About what a broker does for one chunk of pulls, so that others wait for this as they wait for that."""


def burn(share: float, seconds: float) -> None:
    """Be busy for ``share`` (0 to 1) of the time, for so many seconds, in short pieces."""
    begin, used = time.monotonic(), time.process_time()
    while (elapsed := time.monotonic() - begin) < seconds:
        if time.process_time() - used < share * elapsed:
            piece = time.process_time() + _SLICE_SECONDS
            while time.process_time() < piece:
                pass
        else:
            time.sleep(_SLICE_SECONDS)


if __name__ == "__main__":
    burn(float(sys.argv[1]), float(sys.argv[2]))
