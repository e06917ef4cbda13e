"""Tells which equipment each kind of fault needs, and why a kind cannot be used here."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from jepsen.deployments import disks, earlier, shim
from jepsen.nemeses import resources
from jepsen.profiles import ONLY_TOGETHER

OWN_DISKS = frozenset({"power-loss"})
SHIMS = frozenset({"clock", "slow-disk", "disk-error"})
SWITCH = frozenset({"packets"})
STORES = frozenset({"store-gone", "store-slow", "store-rot", "store-rollback"})
"""Kinds that only the workload with an archive has."""
FIVE_BROKERS = frozenset({"bridge"})
SPARES = frozenset({"members"})
"""Kinds for which brokers join that are not initial members."""
SHORT_LOG = {
    "segment_bytes": str(128 * 1024),
    "entry_bytes_max": "32768",
    "retention_bytes": "1200000",
    "retention_check_seconds": "0.3",
    "catch_up_bytes_per_second": str(2 * 1024 * 1024),
}
"""Settings by which retention removes the oldest files: a replica that was away for seconds must fetch files."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The number of brokers, and the equipment that some kinds of faults need."""

    count: int
    spares: int
    """Number of further brokers that may join."""
    disks: bool
    shims: bool
    switch: bool
    settings: Mapping[str, str]
    """Settings of the brokers, besides the workload's."""


def needs(kinds: Collection[str], *, brokers: int = 3) -> Deployment:
    """Combine the requirements of several kinds of faults, with at least ``brokers`` brokers."""
    return Deployment(
        count=max(5, brokers) if FIVE_BROKERS.intersection(kinds) else brokers,
        spares=1 if SPARES.intersection(kinds) else 0,
        disks=bool(OWN_DISKS.intersection(kinds)),
        shims=bool(SHIMS.intersection(kinds)),
        switch=bool(SWITCH.intersection(kinds)),
        settings=SHORT_LOG if "behind" in kinds else {},
    )


def why_not(kind: str, backend: str) -> str | None:
    """Return the reason that a back end cannot inject a kind of fault; None if it can."""
    if kind in SWITCH and backend == "local":
        return "the back end local does not have it, netns and docker do"
    if kind in STORES:
        return why_no_store(backend)
    if kind == "upgrade":
        return earlier.unavailable()
    if kind == "disk-full" and os.geteuid() != 0:
        return "only root may mount a small file system"
    if kind in OWN_DISKS:
        return disks.unavailable()
    if kind in SHIMS:
        return shim.unavailable()
    if kind in SWITCH and not Path("/dev/net/tun").exists():
        return "this machine has no TUN devices (/dev/net/tun)"
    if kind in resources.CONTROLLERS:
        return resources.unavailable(kind)
    if kind == "descriptors" and shutil.which("prlimit") is None:
        return "not installed: prlimit (apt install util-linux)"
    return None


def why_no_store(backend: str) -> str | None:
    """Return the reason that brokers on this back end cannot archive their log; None if they can."""
    if backend == "docker":
        return "containers do not get the credentials of the store; netns and local have it"
    return None if importlib.util.find_spec("boto3") is not None else "not installed: boto3 (pip install 'raftmq[s3]')"


def why_not_together(workload: str, kinds: Collection[str], backend: str) -> str | None:
    """Return the reason that a workload cannot run with these kinds of faults on this back end; None if it can."""
    if workload == "archive" and (reason := why_no_store(backend)) is not None:
        return reason
    for kind in kinds:
        if workload not in ONLY_TOGETHER.get(kind, (workload,)):
            return f"{kind} goes with the workloads {' and '.join(sorted(ONLY_TOGETHER[kind]))} only"
    if backend == "local" and "members" in kinds and {"partition", "bridge"}.intersection(kinds):
        # An added member has one address for all, after the proxies.
        return "with the back end local, partitions do not reach members that were added; netns has both in one run"
    return None
