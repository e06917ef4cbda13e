"""Repair mode of a node with a damaged log: it takes no part in consensus, and fetches the lost parts from its peers.

To peers it is a replica that does not answer the leader. It serves intact ranges to other nodes in the same state, so
that a group in which every log is damaged recovers, as long as each byte is intact somewhere.

Committed bytes are preferred. But if too few replicas are intact, so that nothing can be committed, the others answer
"not yet" for ever, and uncommitted bytes are accepted. A replica with damage at the same place says so, which counts as
an answer; if no peer has the bytes, and only when all peers have said so, the log is cut. It is not cut before intact
entries that a damaged peer also had: then the node waits, see `segment.repair`.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import cbor2
import structlog
import trio

from raftlog.consensus.confchange import decode_conf, encode_conf
from raftlog.consensus.types import ConfState, NodeId
from raftlog.log_numbers import NO_INDEX, LogIndex
from raftlog.net import frames
from raftlog.net.admission import Address, Admission, Identity
from raftlog.net.frames import Kind, RangeReq, RangeResp
from raftlog.net.reactor import Reactor
from raftlog.net.replication_tls import ReplicationTls
from raftlog.net.secret_file import SecretFile
from raftlog.net.transport import Lane, Transport
from raftlog.node_limits import NodeLimits
from raftlog.range_server import ANSWER_SECONDS_MAX, RangeServer
from raftlog.repair_dialogue import RepairDialogue, damaged_log_bytes
from raftlog.segment.disk import Disk
from raftlog.segment.note_names import MEMBERS, STORES
from raftlog.segment.recovery import LogDamaged
from raftlog.segment.repair import Repair

Log = structlog.stdlib.BoundLogger

_RETRY_SECONDS: Final = 0.2


class RepairMode:
    """Repairs one damaged directory.

    Args:
        identity: of this node; its store id is read from the directory.
        limits: of this node and its log.
        initial: the initial configuration, used if no newer one is stored.

    Raises:
        LogDamaged: no peer has this log.
        ListenRefused: ``listen`` is not available.
    """

    def __init__(
        self,
        damage: LogDamaged,
        *,
        disk: Disk,
        identity: Identity,
        listen: Address,
        secrets: SecretFile,
        initial: ConfState,
        bytes_per_second: float,
        undo: contextlib.ExitStack,
        log: Log,
        tls: ReplicationTls | None,
        limits: NodeLimits,
    ) -> None:
        self._log = log
        self._patience_seconds = limits.repair_patience_seconds
        self._repair = Repair(disk, damage, peers=(), limits=limits.log)
        undo.callback(self._repair.close)
        notes = self._repair.meta.notes
        conf_index, conf = members_in(notes) or (NO_INDEX, initial)
        if conf_index == 0 and initial.members:
            conf = initial  # the log contains no configuration, so the settings apply
        if conf.voters == (identity.node_id,):
            raise damage
        self._reactor = Reactor()
        undo.callback(self._reactor.close)
        store_id = self._repair.meta.store_id
        self._admission = Admission(
            replace(identity, store_id=store_id),
            stores_in(notes),
            self._on_learned,
        )
        self._transport = Transport(
            reactor=self._reactor,
            admission=self._admission,
            secrets=secrets,
            incarnation=f"{os.getpid()}.{random.getrandbits(64):x}",
            listen=listen,
            on_frame=self._receive,
            on_peer_gone=lambda peer: None,
            log=log,
            tls=tls,
            refusal_log_seconds=limits.refusal_log_seconds,
        )
        undo.callback(self._transport.close)
        self._transport.set_members(conf_index, dict(conf.addresses))
        self._server = RangeServer(self._transport, self._reactor.wake, self._read, bytes_per_second)
        self._answers_in, self._answers = trio.open_memory_channel[tuple[NodeId, RangeResp]](16)
        ranges = ", ".join(f"{pos}..{end}" for pos, end in self._repair.missing_ranges)
        log.warning("log_damaged", directory=damage.directory, reason=damage.reason, missing=ranges)

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Return once the log can be opened again.

        Raises:
            SegmentError: the disk failed.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reactor.run)
            nursery.start_soon(self._transport.run)
            nursery.start_soon(self._server.run)
            task_status.started()
            await self._fetch()
            nursery.cancel_scope.cancel()
        if self._repair.cut_at is not None:
            self._log.warning("log_cut", pos=self._repair.cut_at, reason="no peer has these entries")
        for part in self._repair.replaced_ranges:
            if part.pos == self._repair.cut_at:
                self._log.warning("log_given_up", pos=part.pos, nbytes=part.nbytes, crc_before=part.crc)
                continue
            self._log.info("log_repaired", pos=part.pos, nbytes=part.nbytes, crc_before=part.crc)
        self._repair.finish()

    async def _fetch(self) -> None:
        await trio.lowlevel.checkpoint()
        dialogue = RepairDialogue(self._repair, trio.current_time(), self._patience_seconds)
        logged_answers: dict[NodeId, str] = {}
        while not self._repair.done:
            dialogue.begin_round(self._peers())
            for peer in self._peers():
                while self._transport.connected(peer) and (request := dialogue.request(peer)) is not None:
                    response = await self._ask(peer, request)
                    if response is None or not dialogue.process_response(peer, response):
                        break
            waits = dialogue.end_round(trio.current_time())
            if dialogue.has_moved:
                logged_answers = {}
                continue
            if waits and logged_answers != dialogue.last_responses:
                logged_answers = dict(dialogue.last_responses)
                self._log.warning("repair_waits", pos=self._repair.missing_ranges[0][0], answers=logged_answers)
            await trio.sleep(_RETRY_SECONDS)

    def _peers(self) -> list[NodeId]:
        return sorted(self._transport.peers)

    async def _ask(self, peer: NodeId, request: RangeReq) -> RangeResp | None:
        """The answer of ``peer``, None without one."""
        frame = frames.encode_cold(request)
        self._transport.send(peer, Lane.CONTROL, [frame], len(frame))
        self._reactor.wake()
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            while True:
                source, response = await self._answers.receive()
                if source == peer and response.pos == request.pos:
                    return response
        return None

    def _receive(self, source: NodeId, kind: Kind, payload: memoryview) -> None:
        if kind is Kind.RANGE:
            self._server.ask(source, frames.decode_cold(kind, payload))
        elif kind is Kind.RANGE_RESPONSE:
            with contextlib.suppress(trio.WouldBlock):
                self._answers_in.send_nowait((source, frames.decode_cold(kind, payload)))

    async def _read(self, request: RangeReq) -> bytes:
        await trio.lowlevel.checkpoint()
        return damaged_log_bytes(self._repair, request)

    def _on_learned(self, stores: dict[str, str]) -> None:
        """Note which directories peers have. The repair does not rely on them: it sends no vote or acknowledgement."""
        self._admission.on_record(stores)


def stores_in(notes: Mapping[str, bytes]) -> dict[str, str]:
    """The members' directories from the notes."""
    note = notes.get(STORES)
    return {} if note is None else dict(cbor2.loads(note))


def encode_members(conf_index: LogIndex, conf: ConfState) -> bytes:
    """The input of `members_in`."""
    return cbor2.dumps([conf_index, encode_conf(conf)])


def members_in(notes: Mapping[str, bytes]) -> tuple[LogIndex, ConfState] | None:
    """The configuration of the node's last run, from the notes, with the entry that set it."""
    note = notes.get(MEMBERS)
    if note is None:
        return None
    index, conf = cbor2.loads(note)
    return index, decode_conf(conf)
