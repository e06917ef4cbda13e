"""A load generator that sends nothing: `benchmarks.workers.drive` starts it as a process."""

from __future__ import annotations

import json
import sys

job = json.load(sys.stdin)
sys.stdout.write(json.dumps({"messages": [0], "cpu_seconds": [job["begin"]], "latencies": [{}], "late": {}}))
