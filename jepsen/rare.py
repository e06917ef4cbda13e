"""What a long run must have met at least once, as brokers' logs tell it; never met is told in the report. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping

RARE: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "a leader resigned because it heard no majority": ("role_changed", {"cause": "majority_silent"}),
    "a leader was silent, and another one elected": ("role_changed", {"cause": "leader_silent"}),
    "a candidate gave way to another one": ("role_changed", {"cause": "other_candidate"}),
    "leadership was handed over": ("role_changed", {"cause": "handed_over"}),
    "a follower lost its leader with forwarded requests under way": ("forwarding_broken", {}),
    "a replica fetched whole files, since its log was too far behind": ("reset_begun", {}),
    "a damaged log was noticed": ("log_damaged", {}),
    "damaged entries came back from peers": ("log_repaired", {}),
    "a broker stopped because its disk failed": ("disk_failed", {}),
    "a checkpoint could not be written": ("checkpoint_failed", {}),
    "a replica that is no member was refused": ("peer_refused", {}),
}
"""By what it is: the event of a broker's log, and the fields by which it is told from others."""


def met(lines: Iterable[str]) -> Counter[str]:
    """How often each state was met, in the log of one broker."""
    counts: Counter[str] = Counter()
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue  # its broker was killed while it wrote
        for state, (name, fields) in RARE.items():
            if event.get("event") == name and all(event.get(key) == value for key, value in fields.items()):
                counts[state] += 1
    return counts
