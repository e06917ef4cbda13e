"""The workload "filtered": a consumer group behind a filter server, which is restarted at times, beside producers.

The simulated filter server has the code of the real one, without its event loop: `pull_progress`, `picking`, and
filters in SQL92. Members of the group have two different filters, so that one drives out the other at the broker.

What must hold: a pull is answered with just those committed messages between its offset and the next one that the
filter lets through, in order. The broker has the filter that was stored last, whoever leads. In the end everything that
a filter lets through was delivered.
"""

from __future__ import annotations

from typing import Any, Final

from chaos.broker_sim.clients import ClientResponse, ResponseOrLoss, pull_fields
from chaos.broker_sim.workload import SimulatedBrokers, Workload
from chaos.violation import Violation
from mq.broker.state.filter_programs import PutFilter
from mq.client.errors import UnreadableAnswer
from mq.filter.programs import CLASS_FILTER, ProgramName, name_of
from mq.filter_server.loaded_programs import SqlProgram
from mq.filter_server.picking import pick, records_in, seen_by_filter
from mq.filter_server.pull_progress import PullHead, PullProgress
from mq.filter_server.pull_progress import PullResponse as Filtered
from mq.protocol.codes import RequestCode, ResponseCode
from mq.protocol.messages.records import decode_records

_GROUP: Final = "G"
_KIND: Final = "kind"
_KINDS: Final = 3
_BODY_BYTES_MAX: Final = 1 << 20
_RESTARTS: Final = 0.01
"""The share of operations that restart the filter server."""


class FilteredPulls(Workload):
    name = "filtered"

    def __init__(self, cluster: SimulatedBrokers) -> None:
        super().__init__(cluster)
        self.programs: dict[str, SqlProgram] = {}
        """The programs in the filter server's memory, by name."""
        self.start_count = 0
        """The number of starts of the filter server; its work from before a start is lost."""
        self._members = [FilteredMember(self, queue_id, f"kind = '{queue_id % 2}'") for queue_id in range(self.queues)]
        self._stored_program = ""
        """The name of the group's filter according to the log."""
        self._query_count = 0
        self._queries: dict[int, set[str]] = {}
        """The filters that the group has had since each query without a response."""

    def begin(self) -> None:
        super().begin()
        for member in self._members:
            self.cluster.at(self.rng.uniform(0.0, 1.0), member.pull)

    def run_operation(self) -> None:
        if self.rng.random() < _RESTARTS:
            self.counts["restarts of the filter server"] += 1
            self.programs.clear()
            self.start_count += 1
        self.send(self.new("plain", {_KIND: str(self.rng.randrange(_KINDS))}))

    def pending_count(self) -> int:
        """Return the number of members that have not read their whole queue."""
        return sum(member.offset < self.ledger.end(self.topic, member.queue_id) for member in self._members)

    def on_command(self, command: Any) -> None:
        if isinstance(command, PutFilter):
            self.counts["filters stored"] += self._stored_program != command.program
            self._stored_program = command.program
            for meanwhile in self._queries.values():
                meanwhile.add(command.program)

    def ask(self, code: int, ext: dict[str, Any] | None, body: bytes, on_response: Any) -> None:
        """Send a request to some replica."""
        node = self.cluster.some_node(self.rng)
        self.rng.choice(self.clients).request(node, code, ext, body, on_response, serialization=self.encoding(code))

    def fetch(self, name: ProgramName, then: Any) -> None:
        """Request the filter program of the group and check the response, which ``then`` gets."""
        self._query_count += 1
        number = self._query_count
        meanwhile = self._queries[number] = {self._stored_program}

        def on_response(response: ResponseOrLoss) -> None:
            del self._queries[number]
            if isinstance(response, ClientResponse):
                has_it = response.code == ResponseCode.SUCCESS
                has_another = response.code in (ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST)
                if (has_it and name.text not in meanwhile) or (has_another and meanwhile == {name.text}):
                    raise Violation(
                        f"filter: {response} for {name.text}, but the log says that the group had {sorted(meanwhile)}"
                    )
                if has_it and not name.is_of(response.body):
                    raise Violation(f"filter: {name.text} was returned as {response.body!r}")
            then(response)

        self.ask(RequestCode.GET_FILTER, self.filter_fields(name), b"", on_response)

    def filter_fields(self, name: ProgramName) -> dict[str, str]:
        """Return the header of a request about a filter of the group."""
        return {"consumerGroup": _GROUP, "topic": self.topic, "program": name.text}


class FilteredMember:
    """The member of the consumer group that reads one queue.

    Attributes:
        offset: where its next pull begins.
    """

    def __init__(self, workload: FilteredPulls, queue_id: int, expression: str) -> None:
        self.queue_id = queue_id
        self.offset = 0
        self._workload = workload
        self._cluster = workload.cluster
        self._rng = workload.rng
        self._content = expression.encode()
        self._name = name_of("sql", self._content)
        self._kind = expression[-2]

    def pull(self) -> None:
        """Pull through the filter server. If it lacks the filter, let it fetch the filter first."""
        if self._name.text in self._workload.programs:
            wait_seconds = self._rng.choice((0.0, 0.3, 2.0))
            progress = PullProgress(self.offset, self._rng.choice((1, 3, 32)), wait_seconds, self._cluster.now)
            self._read(progress, self._workload.start_count)
        else:
            self._workload.fetch(self._name, self._on_fetch)

    def _pull_later(self) -> None:
        self._cluster.at(self._cluster.now + self._rng.uniform(0.05, 0.4), self.pull)

    def _on_fetch(self, response: ResponseOrLoss) -> None:
        workload = self._workload
        if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
            workload.programs[self._name.text] = SqlProgram(response.body)
        elif isinstance(response, ClientResponse) and response.code in (
            ResponseCode.FILTER_DATA_NOT_EXIST,
            ResponseCode.FILTER_DATA_NOT_LATEST,
        ):
            workload.counts["uploads"] += 1
            workload.ask(RequestCode.PUT_FILTER, workload.filter_fields(self._name), self._content, self._on_upload)
            return
        self._pull_later()

    def _on_upload(self, response: ResponseOrLoss) -> None:
        if isinstance(response, ClientResponse) and response.code == ResponseCode.SUCCESS:
            self._workload.programs[self._name.text] = SqlProgram(self._content)
        self._pull_later()

    # -- the filter server ---------------------------------------------------------------------------------------------

    def _read(self, progress: PullProgress, start_count: int) -> None:
        count = self._rng.choice((1, 7, 512))
        fields = pull_fields(
            _GROUP, self._workload.topic, self.queue_id, progress.offset, count, sys_flag=CLASS_FILTER, wait_ms=0
        )

        def on_response(response: ResponseOrLoss) -> None:
            if start_count != self._workload.start_count:
                self._pull_later()
            else:
                self._on_response(progress, response, start_count)

        self._workload.ask(RequestCode.PULL_MESSAGE, fields, b"", on_response)

    def _on_response(self, progress: PullProgress, response: ResponseOrLoss, start_count: int) -> None:
        if not isinstance(response, ClientResponse) or "nextBeginOffset" not in response.ext:
            if progress.fail():
                self._pull_later()
            else:
                self._check_answer(progress.response())
            return
        begin, low, high = (int(response.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
        now = self._cluster.now
        as_it_is = progress.take_response(PullHead(response.code, begin, low, high, response.remark), now)
        if as_it_is is not None:
            self._check_answer(as_it_is)
            return
        if response.code == ResponseCode.SUCCESS:
            self._filter(progress, response.body, begin)
        if progress.is_over():
            self._check_answer(progress.response())
        else:
            self._cluster.at(now + self._rng.choice((0.001, 0.05)), self._read, progress, start_count)

    def _filter(self, progress: PullProgress, data: bytes, next_offset: int) -> None:
        try:
            records = records_in(data)
        except UnreadableAnswer as error:
            raise Violation(f"filtered: {error}") from error
        block, unreadable = seen_by_filter(data, records, _BODY_BYTES_MAX)
        assert not unreadable, f"{unreadable}: nothing is compressed here"
        passes = self._workload.programs[self._name.text].run(block).passes
        if self._rng.random() < 0.1:  # its time was over
            passes = passes[: self._rng.randint(1, len(passes))]
        result = pick(data, records, passes, next_offset, count_max=progress.room_count, room=progress.room)
        self._workload.counts["examined"] += result.examined
        self._workload.counts["answers cut short"] += result.is_cut
        progress.add_result(result, self._cluster.now)

    # -- the member ----------------------------------------------------------------------------------------------------

    def _check_answer(self, answer: Filtered) -> None:
        """Check an answer of the filter server, and continue behind it unless it gets lost."""
        self._pull_later()
        workload, where = self._workload, f"{self.queue_id} from {self.offset} to {answer.next_offset}"
        if answer.next_offset < self.offset:
            raise Violation(f"filtered: queue {where} goes back")
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            workload.counts["read on behind what the log dropped"] += answer.next_offset - self.offset
            self.offset = answer.next_offset
            return
        records = workload.ledger.queues.get((workload.topic, self.queue_id), [])
        if answer.next_offset > len(records):
            raise Violation(f"filtered: queue {where} is read beyond its {len(records)} committed messages")
        messages = decode_records(answer.body)
        for record in messages:
            workload.ledger.read(workload.topic, self.queue_id, record)
        expected = [
            commit.record.queue_offset
            for commit in records[self.offset : answer.next_offset]
            if commit.record.properties.get(_KIND) == self._kind
        ]
        if [record.queue_offset for record in messages] != expected:
            raise Violation(
                f"filtered: queue {where}: {[each.queue_offset for each in messages]}; expected: {expected}"
            )
        if self._rng.random() < 0.05:
            workload.counts["answers lost"] += 1
            return
        workload.counts["delivered"] += len(messages)
        self.offset = answer.next_offset
