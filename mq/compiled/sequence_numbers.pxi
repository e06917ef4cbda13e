"""Sequence numbers of plain sends; the reference are `mq.protocol.messages.sequencing` and
`mq.broker.produce.sends_in_flight`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    SEQUENCE_DIGITS_MAX = 19
    MARK_BYTES_MAX = 160  # both properties, with two numbers

cdef struct Numbers:
    # Of a request.
    int producer  # where it is among those of the block; -1 without numbers
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


cdef class _NumbersOfBlock:
    """The sequence numbers in the block that is being filled, by producer."""

    cdef object highest_of, begin_block  # see `KnownNumbers`
    cdef list names
    cdef dict places  # where a producer is among the names
    cdef int64_t[BLOCK_MESSAGES_MAX] highest  # of each: stored, in flight, or in the block
    # The producer that was seen last: the next message nearly always has the same one.
    cdef uint8_t[PRODUCER_ID_LENGTH_MAX] known_name
    cdef uint32_t known_size
    cdef int known_place

    def __init__(self, known):
        self.highest_of, self.begin_block = known.highest, known.begin_block
        self.begin()

    cdef begin(self):
        self.names = None
        self.known_size = 0

    cdef bint admit(self, const uint8_t *name, uint32_t size, int64_t first, Numbers *numbers) except -1:
        """Whether a send with this first number is certainly new; it is noted by `add`."""
        if size != self.known_size or memcmp(name, self.known_name, size):
            self._find(name, size)
        if self.known_place < 0 or first <= self.highest[self.known_place]:
            return False
        numbers.producer = self.known_place
        numbers.first = first
        return True

    cdef int _find(self, const uint8_t *name, uint32_t size) except -1:
        cdef str producer = (<const char *>name)[:size].decode()
        if self.names is None:
            self.names, self.places = [], {}
        place = self.places.get(producer)
        if place is None:
            place = len(self.names)
            if place == BLOCK_MESSAGES_MAX:
                place = -1  # some had a number that was not new
            else:
                self.highest[<int>place] = self.highest_of(producer)
                self.names.append(producer)
                self.places[producer] = place
        memcpy(self.known_name, name, size)
        self.known_size = size
        self.known_place = place
        return 0

    cdef void add(self, Numbers *numbers, Py_ssize_t count) noexcept:
        """Note a request that was admitted, of so many messages."""
        self.highest[numbers.producer] = numbers.first + (count - 1)

    cdef int finish(self, SendBlock block) except -1:
        """The block is full: the numbers of its requests are in flight from now on."""
        cdef dict highest = {}
        cdef Py_ssize_t n
        cdef int place, before = -1
        for n in range(block.request_count):
            place = block.requests[n].producer
            if place >= 0 and place != before:
                highest[self.names[place]] = self.highest[place]
                before = place
        if highest:
            block.producers = self.names
            block.numbers = self.begin_block(highest, block.numbered_sends)
        return 0


cdef int add_sequenced(draft, SendBlock block, int64_t position, int64_t store_ms) except -1:
    """Note the numbered requests of a block, whose records begin at ``position``, in the entry that is being built."""
    cdef Py_ssize_t n, size = 0, name_size
    cdef int place, before = -1
    cdef int64_t at, first, last
    cdef const char *name
    cdef list runs = [], firsts = [], lasts = [], positions = []
    cdef Request *request
    for n in range(block.request_count):
        place = block.requests[n].producer
        if place >= 0:
            PyUnicode_AsUTF8AndSize(block.producers[place], &name_size)
            size += SEQUENCED_ROW_BYTES + name_size + 8
    cdef bytes rows = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t *to = <uint8_t *>PyBytes_AS_STRING(rows)
    for n in range(block.request_count):
        request = &block.requests[n]
        place = request.producer
        if place < 0:
            continue
        if place != before:
            firsts, lasts, positions = [], [], []
            runs.append((block.producers[place], firsts, lasts, positions, store_ms))
            before = place
        name = PyUnicode_AsUTF8AndSize(block.producers[place], &name_size)
        first, at = request.number, position + block.sends[request.first].record_at
        last = first + (request.count - 1)
        put16(to, name_size | (SEQUENCED_HAS_LAST if last != first else 0))
        put64(to + 2, <uint64_t>first)
        put64(to + 10, <uint64_t>at)
        put64(to + 18, <uint64_t>store_ms)
        to += SEQUENCED_ROW_BYTES
        memcpy(to, name, name_size)
        to += name_size
        if last != first:
            put64(to, <uint64_t>last)
            to += 8
        number = first
        firsts.append(number)
        lasts.append(number if last == first else last)
        positions.append(at)
    draft.add_sequenced_runs(rows[: to - <uint8_t *>PyBytes_AS_STRING(rows)], runs)
    return 0
