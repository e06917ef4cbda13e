"""A load generator that sends nothing: `benchmarks.load.generators.drive` starts it as a process."""

from __future__ import annotations

import json
import sys

from benchmarks.load.do_job import STARTED_LATE
from benchmarks.load.report import monotonic_seconds

job = json.load(sys.stdin)
if monotonic_seconds() > job["begin"]:
    sys.exit(STARTED_LATE)
sys.stdout.write(json.dumps({"messages": [0], "cpu_seconds": [job["begin"]], "latencies": [{}], "late": {}}))
