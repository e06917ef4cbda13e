"""The workload "archive": log files are archived, deleted locally, and read from a store that is as unkind as S3.

The store is slow, gone, or refuses; it loses answers, and objects rot; its manifest is replaced by an older one, or by
another log's. Replicas crash and lose their power meanwhile, at any step of an upload. They lose queue files, or are
filled again by others, and get the queue entries of old messages from the archive. In some runs the archive is limited,
too.

What must hold: no file is taken for archived before the manifest that names it was written and every object of it read
back, or compared by the store; no file is deleted locally before the group knows that it is archived; consumers get the
committed messages from the archive, whatever the store returns; no queue loses its beginning, apart from the part that
the group has agreed to delete; the manifest names every file that a replica serves; the event loop never waits for the
store. When the store is mended, everything is read, and the archive has the log of the group.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from chaos.broker_sim.archive_bucket import MOODS, ArchiveBucket, ArchiveBucketStore
from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss, pull_fields
from chaos.broker_sim.former_group import former_archive
from chaos.broker_sim.schedule import BrokerScenario
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.limits import override
from chaos.log_sim.node import DIRECTORY, Node
from chaos.log_sim.process import CLUSTER_ID
from chaos.object_store import Bucket, BucketStore
from chaos.strand import Strand, StrandLock
from chaos.violation import Violation
from mq.broker import services
from mq.broker.base import archived_reads
from mq.broker.context import ArchiveAccess
from mq.broker.limits import ArchiveLimits, BrokerLimits
from mq.broker.state.archived_log import NOTHING, NoteArchived, NoteTier
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import decode_records
from mq.store.archive.archiver import archive
from mq.store.archive.cold_blocks import ColdBlocks, KnownLog
from mq.store.archive.disk_cache import DiskCache
from mq.store.archive.reader import ArchiveReader
from mq.store.archive.whole_files import JoiningReader, open_joining
from mq.store.archive.worker_protocol import ArchiveJob, ArchiveStep, Trouble
from mq.store.checkpoint import QUEUE_DIRECTORY
from raftlog.replica import Job
from raftlog.segment import entry_runs as entry_runs_module
from raftlog.segment.errors import SegmentError
from raftlog.segment.meta import Base
from raftlog.segment.running_log import RunningLog

if TYPE_CHECKING:
    from chaos.broker_sim.process import BrokerProcess

URL: Final = "s3://bucket"
_FREE, _TOTAL = 80, 100
"""The free and total bytes of each disk for retention, which deletes nothing because a disk is full."""
_LOOK_SECONDS: Final = 0.2


class Archive(Workload):
    name = "archive"

    @classmethod
    def adapt(cls, scenario: BrokerScenario) -> BrokerScenario:
        """Choose small log files and, if nodes join, few entries between installs, so that new replicas fetch files."""
        config = replace(scenario.config, install_entries_min=3) if scenario.spares else scenario.config
        segment_bytes = min(scenario.segment_bytes, 16 * 1024)
        return replace(scenario, segment_bytes=segment_bytes, proposal_seconds=0.02, config=config)

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self._bucket_rng = random.Random(f"{cluster.scenario.seed} bucket")
        self.bucket = ArchiveBucket(cluster, self._bucket_rng, self.counts)
        self.bucket.compares = random.Random(f"{cluster.scenario.seed} compares").random() < 0.5
        self._end: Base = NOTHING
        """The end of the archive that the group has committed."""
        self._begin = 0
        """The physical offset from which on the group serves archived messages, as committed."""
        self._threads: dict[BrokerProcess, Threads] = {}
        self._reread_to = [0] * self.queues
        """The next offset of each reader that begins at the first message again and again."""
        self._last_round = False
        self._has_reread = [False] * self.queues
        self._is_mended = False

    # -- brokers -------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        scenario = self.cluster.scenario
        segment_bytes = scenario.segment_bytes
        return {
            "archive_url": URL,
            "archive_bytes_per_second": 0,
            "archive_cache_bytes": self.rng.choice((0, 1 << 30)),
            "local_retention_bytes": segment_bytes * self.rng.choice((1, 2, 4)) * (4 if scenario.spares else 1),
            "archive_retention_bytes": self._kept_bytes(self.rng.choice((None, segment_bytes * 5))),
            "retention_check_seconds": 0.5,
        }

    def _kept_bytes(self, usual: int | None) -> int | None:
        """Choose how many bytes an archive keeps; mostly equal on all replicas: one without a limit deletes nothing."""
        rng = random.Random(f"{self.cluster.scenario.seed} kept bytes")
        return usual if rng.random() < 0.2 else rng.choice((None, self.cluster.scenario.segment_bytes * 5))

    def limits(self, base_limits: BrokerLimits) -> BrokerLimits:
        rng = self.rng
        limits = ArchiveLimits(
            look_seconds=_LOOK_SECONDS,
            turn_seconds=rng.choice((0.5, 3.0, 10.0)),
            silent_seconds=rng.choice((3.0, 20.0)),
            retry_seconds=0.2,
            retry_seconds_max=rng.choice((0.2, 2.0)),
            check_seconds=rng.choice((1.0, 5.0)),
            tell_seconds=2.0,
            read_threads=rng.choice((1, 4)),
            read_requests_max=rng.choice((4, 64)),
            read_memory_bytes=rng.choice((100_000, 1 << 26)),
            read_chunks_seen_max=rng.choice((1, 1024)),
            read_wait_seconds=rng.choice((0.3, 1.0)),
            read_retry_seconds=rng.choice((0.1, 1.0)),
            read_blocks_max=rng.choice((1, 100_000)),
        )
        return replace(base_limits, archive=limits)

    def changed_limits(self) -> AbstractContextManager[None]:
        """Make archive blocks and requests small, and pretend that no disk is full."""
        return self._small()

    @contextmanager
    def _small(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(override(services, "disk_usage", lambda directory: (_FREE, _TOTAL)))
            chunk_bytes = self.rng.choice((1024, 4096, 16_384))
            stack.enter_context(override(archived_reads, "CHUNK_BYTES", chunk_bytes))
            stack.enter_context(override(entry_runs_module, "RUN_BYTES", self.rng.choice((1024, 8192))))
            stack.callback(self._end_threads)
            yield

    def _end_threads(self) -> None:
        for threads in self._threads.values():
            threads.kill()

    def needed_from(self) -> int:
        """Return 0, so that only retention deletes log files: those are in the archive."""
        return 0

    def archive_access(self, process: BrokerProcess) -> ArchiveAccess | None:
        threads = self._threads[process] = Threads(self, process)
        return threads.access if process.settings.has_tiers else None

    def read_archived(
        self, process: BrokerProcess, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]
    ) -> bool:
        self._threads[process].read_file(archive_end, pos, nbytes, on_read)
        return True

    def on_broker_start(self, process: BrokerProcess) -> None:
        self._threads[process].archive_later()

    def on_broker_exit(self, process: BrokerProcess) -> None:
        """End the broker's threads and its archiving process. In half of the cases, delete its queue files, too."""
        if process in self._threads:
            self._threads.pop(process).kill()
            if not self._is_mended and self._bucket_rng.random() < 0.5:
                shutil.rmtree(process.settings.data_dir / QUEUE_DIRECTORY, ignore_errors=True)
                self.counts["queue files lost"] += 1

    def on_log_line(self, node: Node, event: str, values: Mapping[str, object]) -> None:
        if event == "log_shortened":
            self.counts["files deleted locally"] += cast("int", values["files"])
            base_pos = cast("int", values["base_pos"])
            if base_pos > self._end.pos:
                raise Violation(
                    f"deleted: the log of {node.node_id} begins at {base_pos}, but the archive ends at {self._end}"
                )
        elif event == "queue_refill_done":
            self.counts["queues refilled"] += 1
        elif event in ("archive_rolled_back", "archive_failed", "archive_read_failed"):
            self.counts[f"{event} {values.get('trouble', '')}".strip()] += 1

    # -- what clients do -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        super().begin()
        cluster = self.cluster
        for queue_id in range(self.queues):
            cluster.at(self.rng.uniform(1.0, 3.0), self._reread, queue_id)
        cluster.at(self.rng.uniform(0.5, 3.0), self._change_mood)
        cluster.at(self.rng.uniform(1.0, 8.0), self._damage)

    def run_operation(self) -> None:
        self.send(self.new("plain", {}))

    def _change_mood(self) -> None:
        if not self._is_mended:
            self.bucket.mood = self._bucket_rng.choice(MOODS)
            self.cluster.at(self.cluster.now + self._bucket_rng.uniform(0.3, 4.0), self._change_mood)

    def _damage(self) -> None:
        if self._is_mended:
            return
        chance = self._bucket_rng.random()
        if chance < 0.5:
            for _ in range(self._bucket_rng.choice((1, 20))):
                self.bucket.rot()
        elif chance < 0.75:
            self.bucket.roll_back()
        else:
            self._put_former()
        self.cluster.at(self.cluster.now + self._bucket_rng.uniform(0.5, 4.0), self._mend_or_damage)

    def _mend_or_damage(self) -> None:
        """Mend the bucket at times, then damage it again."""
        if self._bucket_rng.random() < 0.6:
            self.bucket.mend()
        self._damage()

    def _put_former(self) -> None:
        manifest = self.bucket.newest()
        if manifest is not None and manifest.objects is not msgspec.UNSET:
            files = self._bucket_rng.randint(1, len(manifest.objects.files))
            self.bucket.replace_all(former_archive(manifest, self.bucket.writes, files))

    def stop(self) -> None:
        """Mend the store, and let readers read each queue once more from its first message."""
        if not self.stopped:
            self._is_mended = True
            self.bucket.mend()
            self._last_round = True
            self._reread_to = [0] * self.queues
        super().stop()

    def _reread(self, queue_id: int) -> None:
        """Pull the next messages for a reader that begins at the first message again and again."""
        offset, last_round = self._reread_to[queue_id], self._last_round
        ext = pull_fields("G2", self.topic, queue_id, offset, 32)

        def on_response(response: ResponseOrLoss) -> None:
            if isinstance(response, ClientResponse) and last_round == self._last_round:
                self._check_reread(queue_id, offset, response)
            self.cluster.at(self.cluster.now + self.rng.uniform(0.02, 0.3), self._reread, queue_id)

        code = RequestCode.PULL_MESSAGE
        self.clients[1].request(
            self.cluster.some_node(self.rng), code, ext, b"", on_response, serialization=self.encoding(code)
        )

    def _check_reread(self, queue_id: int, offset: int, response: ClientResponse) -> None:
        if response.code == ResponseCode.SUCCESS:
            for record in decode_records(response.body):
                self.check_next(self.topic, queue_id, offset, record)
                offset += 1
                self.counts["read again"] += 1
            self._reread_to[queue_id] = offset
        elif response.code == ResponseCode.PULL_OFFSET_MOVED:
            self._reread_to[queue_id] = next_offset = int(response.ext["nextBeginOffset"])
            for skip in self.ledger.queues[self.topic, queue_id][offset:next_offset]:
                if skip.record.physical_offset >= self._begin:
                    raise Violation(
                        f"skipped: the reader of queue {queue_id} goes on at {next_offset}, behind {skip.place}"
                    )
        if self._reread_to[queue_id] >= self.ledger.end(self.topic, queue_id):
            self._has_reread[queue_id] |= self._last_round
            self._reread_to[queue_id] = 0
            self.counts["read from the beginning to the end"] += 1

    # -- what is committed ---------------------------------------------------------------------------------------------

    def on_command(self, command: Any) -> None:
        if isinstance(command, NoteArchived | NoteTier):
            self.cluster.trace_line(f"the group knows {command}")
        if isinstance(command, NoteArchived):
            end = Base(command.index, command.term, command.pos, command.chain)
            if end not in self.bucket.ends:
                raise Violation(f"archived: the group counts on {end}, but no written manifest reaches it")
            if end.index > self._end.index:
                self._end = end
                self.counts["archived"] += 1
        elif isinstance(command, NoteTier):
            if command.begin_pos > self._begin:
                self.counts["beginnings moved"] += 1
            self._begin = max(self._begin, command.begin_pos)
            self.bucket.may_begin_at = self._begin

    # -- the end -------------------------------------------------------------------------------------------------------

    def pending_count(self) -> int:
        """Return the number of queues to read again from the first message, plus replicas that lack old messages."""
        lack_count = sum(process.broker.context.tier.lacks_older for process in self._threads)
        return self.queues - sum(self._has_reread) + lack_count

    def check_end(self) -> None:
        """Check also that the archive is intact, and reaches the end that the group has committed."""
        super().check_end()
        if not self._end.index:
            return
        self.bucket.mend()
        still = Bucket(self._bucket_rng)
        still.objects = self.bucket.objects
        reader = ArchiveReader(BucketStore(still))
        reader.verify()
        if reader.manifest.archived.index < self._end.index:
            raise Violation(f"archive: it ends with {reader.manifest.archived}, but the group knows {self._end}")


class Threads:
    """Simulates the threads of a broker that read the archive, and its process that writes the archive."""

    def __init__(self, workload: Archive, process: BrokerProcess) -> None:
        self._workload = workload
        self._cluster = workload.cluster
        self._process = process
        self._rng = random.Random(f"{workload.cluster.scenario.seed} threads {len(workload.counts)}")
        self._strands: list[Strand] = []
        self._jobs: list[Job] = []
        self._read_count = 0
        self._archiver: Strand | None = None
        self._heard_at = 0.0
        self._joining_reader: tuple[Base, JoiningReader] | None = None
        settings = process.settings
        cache = DiskCache(str(settings.data_dir / "archive-cache"), settings.archive_cache_bytes, self._has_room)
        self._blocks = ColdBlocks(
            partial(ArchiveBucketStore, workload.bucket),
            KnownLog(
                CLUSTER_ID,
                settings.segment_bytes,
                lambda: process.metadata.archived.end_at(URL),
                lambda: process.log.beginning,
            ),
            cache,
            blocks_max=workload.cluster.limits.archive.read_blocks_max,
            clock=process.node.clock,
        )
        self._blocks._lock = cast("Any", StrandLock())
        self.access = ArchiveAccess(self._blocks.fetch, self._read_in_background, lambda: cache.nbytes)

    def kill(self) -> None:
        """End all threads, because their broker has ended."""
        for strand in self._strands:
            strand.kill()
        self._strands.clear()
        self._jobs.clear()

    def _has_room(self) -> bool:
        return self._rng.random() < 0.95

    def _begin(self, work: Callable[[], None], over: Callable[[], None]) -> Strand:
        def later(seconds: float, step: Callable[[], None]) -> None:
            self._cluster.at(self._cluster.now + seconds, step)

        strand = Strand(work, later, over)
        self._strands = [each for each in self._strands if not each.is_over]
        self._strands.append(strand)
        self._cluster.at(self._cluster.now, strand.resume)
        return strand

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read_in_background(self, job: Job) -> None:
        self._jobs.append(job)
        self._read_next()

    def _read_next(self) -> None:
        if not self._jobs or self._read_count >= self._cluster.limits.archive.read_threads:
            return
        job = self._jobs.pop(0)
        self._read_count += 1
        result: list[Callable[[], None]] = []

        def over() -> None:
            self._read_count -= 1
            self._cluster.in_process(self._process, "has read the archive", result[0])
            self._read_next()

        self._begin(lambda: result.append(job()), over)

    def read_file(self, archive_end: Base, pos: int, nbytes: int, on_read: Callable[[bytes | None], None]) -> None:
        """Read a part of an archived log file for a new replica. Checks that its archive ends at ``archive_end``."""
        if self._joining_reader is None or self._joining_reader[0] != archive_end:
            reader = open_joining(
                archive_end,
                open_store=partial(ArchiveBucketStore, self._workload.bucket),
                identity=CLUSTER_ID,
                segment_bytes=self._process.settings.segment_bytes,
                name=URL,
                blocks_max=self._cluster.limits.archive.read_blocks_max,
                clock=self._process.node.clock,
            )
            self._joining_reader = archive_end, reader
        reader = self._joining_reader[1]
        result: list[bytes | None] = []

        def read() -> None:
            try:
                result.append(reader.read(pos, nbytes))
            except SegmentError:
                result.append(None)

        def over() -> None:
            self._workload.counts["joined: archive " + ("left" if result[0] is None else "read")] += 1
            self._cluster.in_process(self._process, "has read a file of the archive", lambda: on_read(result[0]))

        self._begin(read, over)

    # -- archiving -----------------------------------------------------------------------------------------------------

    def archive_later(self) -> None:
        """Schedule the next check whether the broker should archive."""
        self._cluster.later(self._process.node, self._rng.uniform(0.5, 1.0) * _LOOK_SECONDS, self._check_archiver)

    def _check_archiver(self) -> None:
        archive_service = self._process.broker.services.archiving
        if self._archiver is None:
            if (job := archive_service.next_job()) is not None:
                self._heard_at = self._cluster.now
                self._archiver = self._begin(partial(self._archive, job), self._on_archive)
        elif self._cluster.now > self._heard_at + self._cluster.limits.archive.silent_seconds or (
            self._rng.random() < 0.01
        ):
            self._archiver.kill()
            self._archiver = None
            self._workload.counts["archivers killed"] += 1
            archive_service.handle_step(ArchiveStep(is_last=True, trouble=Trouble.REPLICA, reason="it was killed"))
        self.archive_later()

    def _on_archive(self) -> None:
        self._archiver = None

    def _archive(self, job: ArchiveJob) -> None:
        node = self._process.node
        try:
            source = RunningLog(node.disk, DIRECTORY)
        except SegmentError as error:
            self._report_step(ArchiveStep(is_last=True, trouble=Trouble.REPLICA, reason=str(error)))
            return
        try:
            for step in archive(
                ArchiveBucketStore(self._workload.bucket),
                source,
                job,
                now_ms=partial(self._cluster.true_ms),
                on_copy=self._on_copy,
            ):
                self._report_step(step)
        finally:
            with suppress(SegmentError):
                source.close()

    def _on_copy(self, nbytes: int) -> None:
        self._heard_at = self._cluster.now
        if self._rng.random() < 0.2 and Strand.current is not None:
            Strand.current.pause(self._rng.choice((0.001, 0.05)))

    def _report_step(self, step: ArchiveStep) -> None:
        """Report a step of the archiving process to the broker, some time later."""
        self._heard_at = self._cluster.now
        handle_step = self._process.broker.services.archiving.handle_step
        delay = self._rng.choice((0.001, 0.2))
        self._cluster.at(
            self._cluster.now + delay,
            self._cluster.in_process,
            self._process,
            "hears of the archive",
            partial(handle_step, step),
        )
