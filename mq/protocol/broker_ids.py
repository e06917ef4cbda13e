"""Computes the broker ids of replicas, as routes name them."""

from __future__ import annotations

from typing import Final

LEADER_ID: Final = 0
"""The id of the replica that leads."""


def broker_id_of(node_id: str) -> int:
    """Return the broker id of a replica that does not lead; only the leader has `LEADER_ID`."""
    return int(node_id[1:]) + 1
