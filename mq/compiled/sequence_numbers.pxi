"""Sequence numbers of plain sends; the reference are `mq.protocol.messages.sequencing` and
`mq.broker.produce.sends_in_flight`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    SEQUENCE_DIGITS_MAX = 19
    MARK_BYTES_MAX = 160  # both properties, with two numbers

cdef struct Numbers:
    # Of a request.
    int run  # where its producer is among those of the block; -1 without numbers
    int64_t first


cdef bint read_sequence_number(const uint8_t **cursor, int64_t *number) noexcept nogil:
    """Read a number that ends with `VALUE_END`, which is there somewhere; false if it is none."""
    cdef const uint8_t *at = cursor[0]
    cdef uint64_t total = 0
    cdef int count = 0
    while b'0' <= at[0] <= b'9':
        if count == SEQUENCE_DIGITS_MAX:
            return False
        total = total * 10 + (at[0] - <uint8_t>b'0')
        count += 1
        at += 1
    if count == 0 or at[0] != VALUE_END or total > <uint64_t>SEQUENCE_MAX:
        return False
    number[0] = <int64_t>total
    cursor[0] = at
    return True


cdef Py_ssize_t write_mark(
    uint8_t *begin, const uint8_t *name, uint32_t name_size, int64_t first, Py_ssize_t count
) noexcept nogil:
    """Write the properties of the first record of a batch; returns how many bytes, `MARK_BYTES_MAX` at most."""
    cdef uint8_t *to = begin
    memcpy(to, b"RAFTMQ_PRODUCER\x01", 16)
    memcpy(to + 16, name, name_size)
    to += 16 + name_size
    memcpy(to, b"\x02RAFTMQ_SEQUENCE\x01", 17)
    to = write_decimal(to + 17, first)
    if count > 1:
        to[0] = b'-'
        to = write_decimal(to + 1, first + (count - 1))
    to[0] = VALUE_END
    return to + 1 - begin


cdef class _NumberedRuns:
    """The numbered sends of the block that is being filled, by producer; see `BlockNumbers`."""

    cdef object open_numbers
    cdef object numbers  # None in a block without any
    cdef list names
    cdef list firsts, lasts, turns  # those of each run
    cdef dict places  # by name
    cdef int64_t[BLOCK_MESSAGES_MAX] highest  # of each producer: stored, in flight, or in the block
    # The producer that was seen last: the next message nearly always has the same one.
    cdef uint8_t[PRODUCER_ID_LENGTH_MAX] known_name
    cdef uint32_t known_size
    cdef int known_run

    def __init__(self, open_numbers):
        self.open_numbers = open_numbers
        self.begin()

    cdef begin(self):
        self.numbers = None
        self.known_size = 0

    cdef bint admit(self, const uint8_t *name, uint32_t size, int64_t first, Numbers *numbers) except -1:
        """Whether a send with this first number is certainly new; it is noted by `add`."""
        if size != self.known_size or memcmp(name, self.known_name, size):
            self._find(name, size)
        if self.known_run < 0 or first <= self.highest[self.known_run]:
            return False
        numbers.run = self.known_run
        numbers.first = first
        return True

    cdef int _find(self, const uint8_t *name, uint32_t size) except -1:
        cdef bytes producer = name[:size]
        if self.numbers is None:
            self.numbers = self.open_numbers()
            self.names, self.firsts, self.lasts, self.turns, self.places = [], [], [], [], {}
        place = self.places.get(producer)
        if place is None:
            place = len(self.names)
            if place == BLOCK_MESSAGES_MAX:
                place = -1  # some had a number that was not new
            else:
                run = self.numbers.run_of(producer.decode())
                self.highest[<int>place] = run.last
                self.names.append(producer)
                self.firsts.append(run.firsts)
                self.lasts.append(run.lasts)
                self.turns.append(run.turns)
                self.places[producer] = place
        memcpy(self.known_name, name, size)
        self.known_size = size
        self.known_run = place
        return 0

    cdef void add(self, Numbers *numbers, Py_ssize_t count) noexcept:
        """Note a request that was admitted, of so many messages."""
        self.highest[numbers.run] = numbers.first + (count - 1)

    cdef int finish(self, const Request *requests, Py_ssize_t count) except -1:
        """The block is full: the numbers of its requests are in flight from now on."""
        cdef Py_ssize_t n
        cdef int run
        for n in range(count):
            run = requests[n].run
            if run >= 0:
                (<list>self.firsts[run]).append(requests[n].number)
                (<list>self.lasts[run]).append(requests[n].number + (requests[n].count - 1))
                (<list>self.turns[run]).append(n)
        self.numbers.begin()
        return 0


cdef int add_sequenced(
    draft, const Request *requests, Py_ssize_t count, const Send *sends, list names, int64_t position, int64_t store_ms
) except -1:
    """Note the numbered requests of a block, whose records begin at ``position``, in the entry that is being built."""
    cdef Py_ssize_t n, size = 0
    cdef int run, before = -1
    cdef int64_t at, last
    cdef bytes name
    cdef list runs = [], firsts = [], lasts = [], positions = []
    for n in range(count):
        if requests[n].run >= 0:
            size += SEQUENCED_ROW_BYTES + PyBytes_GET_SIZE(<bytes>names[requests[n].run]) + 8
    cdef bytes rows = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(rows)
    for n in range(count):
        run = requests[n].run
        if run < 0:
            continue
        name = names[run]
        at, last = position + sends[requests[n].first].record_at, requests[n].number + (requests[n].count - 1)
        put16(to, PyBytes_GET_SIZE(name) | (SEQUENCED_HAS_LAST if last != requests[n].number else 0))
        put64(to + 2, <uint64_t>requests[n].number)
        put64(to + 10, <uint64_t>at)
        put64(to + 18, <uint64_t>store_ms)
        to += SEQUENCED_ROW_BYTES
        memcpy(to, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        to += PyBytes_GET_SIZE(name)
        if last != requests[n].number:
            put64(to, <uint64_t>last)
            to += 8
        if run != before:
            firsts, lasts, positions = [], [], []
            runs.append((name.decode(), firsts, lasts, positions, store_ms))
            before = run
        firsts.append(requests[n].number)
        lasts.append(last)
        positions.append(at)
    if runs:
        draft.add_sequenced_runs(rows[: to - <uint8_t *>PyBytes_AS_STRING(rows)], runs)
    return 0
