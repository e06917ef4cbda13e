"""Repair of damaged logs in simulated time: the product's own requests and responses, without a transport."""

from __future__ import annotations

import msgspec

from chaos.log_sim.group import Group
from chaos.log_sim.node import Node
from raftlog.consensus.types import NodeId
from raftlog.net.frames import RangeReq, RangeResp
from raftlog.range_server import GONE, RangeRefused, granted_bytes
from raftlog.repair_dialogue import RepairDialogue, damaged_log_bytes
from raftlog.segment.errors import EntryGone, StorageCorrupt, StorageFailed
from raftlog.segment.repair import Repair

_STEP_SECONDS_MAX = 0.05
_PIECES = (60, 1000, 1 << 30)
"""The possible limits of the bytes of a response."""


class Repairs:
    """Runs all repairs of a cluster. ``finish_count`` counts completed ones."""

    def __init__(self, cluster: Group) -> None:
        self._cluster = cluster
        self.finish_count = 0

    def begin(self, node: Node, repair: Repair) -> None:
        """Begin to repair the log of a node whose start found damage."""
        cluster = self._cluster
        cluster.trace_event(f"{node.node_id} repairs {repair.missing_ranges}")
        cluster.at(cluster.now + 0.01, self._step, node, _RepairRound(repair, cluster.now))

    def _step(self, node: Node, talk: _RepairRound) -> None:
        if node.repair is not talk.repair:
            return
        cluster = self._cluster
        try:
            if talk.repair.done:
                self.finish_count += 1
                node.finish_repair()
                cluster.restart(node)
                return
            self._ask(node, talk)
        except (StorageFailed, StorageCorrupt) as error:
            cluster.fail_repair(node, error)
            return
        cluster.at(cluster.now + cluster.rng.uniform(0.001, _STEP_SECONDS_MAX), self._step, node, talk)

    def _ask(self, node: Node, talk: _RepairRound) -> None:
        """Send one request to one peer."""
        cluster, dialogue = self._cluster, talk.dialogue
        if not talk.peers:
            dialogue.end_round(cluster.now)
            talk.peers = [other for other in cluster.nodes if other != node.node_id]
            dialogue.begin_round(talk.peers)
            cluster.rng.shuffle(talk.peers)
        peer = cluster.nodes[talk.peers[0]]
        request = dialogue.request(peer.node_id)
        response = None
        if request is not None and cluster.network.connected(node.node_id, peer.node_id):
            response = self._respond(peer, request)
        if response is not None:
            text = response.refusal or f"{len(response.data)} bytes"
            cluster.trace_event(f"{node.node_id} asks {peer.node_id} for {response.pos}: {text}")
        if response is None or not dialogue.process_response(peer.node_id, response):
            talk.peers.pop(0)

    def _respond(self, peer: Node, request: RangeReq) -> RangeResp | None:
        """Return the response of a peer that runs or is being repaired itself; None if it does neither."""
        request = msgspec.structs.replace(request, nbytes=min(request.nbytes, self._cluster.rng.choice(_PIECES)))
        refusal, data = None, b""
        try:
            if peer.repair is not None:
                data = damaged_log_bytes(peer.repair, request)
            elif peer.process is not None:
                log = peer.process.log
                nbytes = granted_bytes(log, peer.process.replica.commit_index, request)
                data = log.read_range(request.pos, nbytes)
            else:
                return None
        except RangeRefused as error:
            refusal = str(error)
        except EntryGone:
            refusal = GONE
        except (StorageCorrupt, StorageFailed) as error:
            if peer.process is not None:
                self._cluster.end_process(peer, error)
            else:
                self._cluster.fail_repair(peer, error)
            return None
        return RangeResp(request.source, request.pos, request.nbytes, data, refusal)


class _RepairRound:
    """One repair: its dialogue, and the peers that it has yet to ask in this round."""

    def __init__(self, repair: Repair, now: float) -> None:
        self.repair = repair
        self.dialogue = RepairDialogue(repair, now)
        self.peers: list[NodeId] = []
