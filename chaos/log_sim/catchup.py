"""Catching up by files in simulated time: offers and pulls as in `raftlog.log_transfer`, around a `SnapshotInstall`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress

import msgspec

from chaos.log_sim.group import Group
from chaos.log_sim.node import DIRECTORY, Node, Process
from chaos.violation import Violation
from raftlog.consensus.confchange import encode_conf
from raftlog.consensus.types import NodeId
from raftlog.log_transfer import record_reset
from raftlog.segment.errors import StorageCorrupt
from raftlog.segment.snapshot_install import Manifest, SnapshotInstall, decode_manifest, encode_manifest

_STEP_SECONDS_MAX = 0.02


class CatchUp:
    """All transfers of log files in a cluster. ``pulls`` are in progress, ``finish_count`` counts completed ones."""

    def __init__(self, cluster: Group) -> None:
        self._cluster = cluster
        self.pulls: dict[NodeId, _Pull] = {}
        self.finish_count = 0

    def offer(self, process: Process, peer: NodeId) -> None:
        """Offer the leader's files to a peer; see `raftlog.log_transfer.Offers`."""
        replica, log, cluster = process.replica, process.log, self._cluster
        manifest = log.manifest(replica.commit_index, conf=encode_conf(process.core.conf_at(log.base[0])))
        manifest = msgspec.structs.replace(manifest, archived=process.archive_end())
        if log.base[0] == 0 and manifest.end_index == 0:
            replica.decline_install(peer)
            return
        state = process.snapshot() if replica.applied_index >= max(1, log.base[0]) else None
        snapshot = state or b""
        if snapshot:
            manifest = msgspec.structs.replace(
                manifest, snapshot_bytes=len(snapshot), snapshot_crc=zlib.crc32(snapshot)
            )
        elif log.base[0] > 0:
            return
        if cluster.network.connected(process.node_id, peer):
            manifest_bytes = encode_manifest(manifest)
            cluster.at(
                cluster.now + cluster.network.latency(),
                self._on_offer,
                process,
                cluster.nodes[peer],
                manifest_bytes,
                snapshot,
            )

    def _on_offer(self, source: Process, node: Node, manifest_bytes: bytes, snapshot: bytes) -> None:
        manifest = decode_manifest(manifest_bytes)
        pull = self.pulls.get(node.node_id)
        if manifest.end_index == 0 or (pull is not None and pull.continues_with(source, node.process)):
            return

        def begin() -> None:
            if node.process is not None:
                self._cluster.trace_event(f"{node.node_id} pulls up to {manifest.end_index} from {source.node_id}")
                install = SnapshotInstall(node.disk, DIRECTORY, manifest, limits=self._cluster.scenario.limits)
                pull = self.pulls[node.node_id] = _Pull(source, node.process, install, manifest, snapshot)
                self._later(node, pull)

        self._cluster.on(node, f"is offered files of {source.node_id}", begin)

    def _later(self, node: Node, pull: _Pull) -> None:
        self._cluster.later(node, self._cluster.rng.uniform(0.0, _STEP_SECONDS_MAX), lambda: self._step(node, pull))

    def _step(self, node: Node, pull: _Pull) -> None:
        cluster = self._cluster
        if self.pulls.get(node.node_id) is not pull or pull.gone:
            return
        if pull.begin_archive_read(lambda: self._later(node, pull)):
            return
        if pull.install.complete:
            assert node.process is not None, f"{node.node_id} fetches files, but does not run"
            record_reset(node.process.replica, pull.manifest.base.index, lambda: self._finish(node, pull))
            return
        source = pull.source
        runs = source.node.process is source and source.node_id not in cluster.paused
        if runs and cluster.network.connected(node.node_id, source.node_id):
            # Bytes that the source's disk cannot read are damage of the source, whose own log reports it.
            with suppress(StorageCorrupt):
                pull.fetch()
        self._later(node, pull)

    def _finish(self, node: Node, pull: _Pull) -> None:
        cluster = self._cluster
        if self.pulls.get(node.node_id) is not pull:
            return
        pull.install.finish()
        del self.pulls[node.node_id]
        self.finish_count += 1
        cluster.trace_event(f"{node.node_id} has everything that it was offered")
        cluster.at(cluster.now, cluster.reopen, node, node.process)


class _Pull:
    """The files that one process fetches from another one."""

    def __init__(
        self, source: Process, process: Process, install: SnapshotInstall, manifest: Manifest, snapshot: bytes
    ) -> None:
        self.source = source
        self.install = install
        self.gone = False
        self._process = process
        self.manifest = manifest
        self._snapshot = snapshot
        self._has_left_archive = False
        self._piece: tuple[int, bytes] | None = None

    def continues_with(self, source: Process, process: Process | None) -> bool:
        """Return whether another offer of ``source`` is for this pull, which then continues."""
        return self._process is process and self.source is source and not self.gone

    def begin_archive_read(self, then: Callable[[], None]) -> bool:
        """Begin to read the next piece from the archive, then call ``then``. Return False if it is not there."""
        if self._piece is not None:
            (pos, data), self._piece = self._piece, None
            if not self.install.accept("log", pos, data):
                raise Violation(f"the archive has bytes at {pos} that do not continue the log which was offered")
        request, archive_end = self.install.next_request(), self.manifest.archived
        if request is None or archive_end is None or request[0] != "log" or self._has_left_archive:
            return False
        _, pos, nbytes = request

        def on_read(data: bytes | None) -> None:
            if data is None:
                self._has_left_archive = True
            else:
                self._piece = pos, data
            then()

        return pos < archive_end.pos and self._process.read_archived(archive_end, pos, nbytes, on_read)

    def fetch(self) -> None:
        """Request the next piece."""
        request = self.install.next_request()
        assert request is not None, "nothing is requested, although bytes are missing"
        what, pos, nbytes = request
        data: bytes | None = self._snapshot[pos : pos + nbytes]
        if what == "log":
            data = self.source.range_for(pos, nbytes)
        if data is None:
            self.gone = True
        elif len(data) == nbytes:
            self.install.accept(what, pos, data)
