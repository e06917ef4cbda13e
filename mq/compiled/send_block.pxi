"""A block of plain sends that waits for its round; the reference is `mq.broker.write_path.entry_builder`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    QUEUES_MAX = 256  # of a block
    # An entry of a consume queue: physical offset, size of the record, tag code.
    QUEUE_ENTRY_BYTES = 20
    QUEUE_ENTRY_SIZE_AT = 8
    QUEUE_ENTRY_TAG_CODE_AT = 12


cdef class SendBlock:
    """Plain sends that wait for their round together: their records are built but for what the round decides.

    Attributes:
        nbytes: bytes of all records.
        count: how many messages there are.
        request_count: how many requests they came in.
        senders: each connection, its requests as they came in, and how many these are. In the order of the records.
    """

    cdef readonly list senders
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t request_count
    cdef bytes records
    cdef list tails
    cdef Send *sends
    cdef Request *requests
    cdef _ReplyTemplate template

    def __cinit__(self):
        self.sends = NULL
        self.requests = NULL

    def __dealloc__(self):
        PyMem_Free(self.sends)
        PyMem_Free(self.requests)

    def build(self, int64_t position, int64_t store_ms, list touched not None, list replies not None):
        """Build the records for physical offset ``position``; to be called once.

        Gives each message its queue offset and adds its queue entry to the run of its tail; tails without a run are
        appended to ``touched``. Appends to ``replies``, for each sender that wants any, the connection and a list with
        its replies, joined. Returns the records.
        """
        if self.records is None:  # not an assert, which -O leaves out: what follows writes to the records
            raise AssertionError("a block is built once")
        cdef Py_ssize_t queues = len(self.tails), n
        cdef int64_t[QUEUES_MAX] next_offsets
        cdef int32_t[QUEUES_MAX] queue_ids
        cdef (uint8_t *)[QUEUES_MAX] entries_at
        cdef uint32_t[QUEUES_MAX] counts
        cdef bytes entries
        cdef object tail, run
        for n in range(queues):
            counts[n] = 0
        for n in range(self.count):
            counts[self.sends[n].queue] += 1
        for n in range(queues):
            tail = self.tails[n]
            next_offsets[n] = tail.next_offset
            queue_ids[n] = tail.queue_id
            entries = PyBytes_FromStringAndSize(NULL, counts[n] * QUEUE_ENTRY_BYTES)
            entries_at[n] = <uint8_t *>PyBytes_AS_STRING(entries)
            tail.next_offset = next_offsets[n] + counts[n]
            run = tail.run
            if run is None:
                tail.run = [entries]
                touched.append(tail)
            else:
                (<list>run).append(entries)
        cdef Py_ssize_t replies_bytes_max = self.template.bytes_max(
            self.requests, self.request_count, self.sends, self.count
        )
        cdef bytes rendered = PyBytes_FromStringAndSize(NULL, replies_bytes_max)
        cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(rendered)
        cdef uint8_t *reply = begin
        cdef uint8_t *records = <uint8_t *>PyBytes_AS_STRING(self.records)
        cdef uint8_t *record
        cdef uint8_t *entry
        cdef Send *send
        cdef Request *request
        cdef int64_t queue_offset, physical_offset
        cdef Py_ssize_t number = 0, end
        for connection, _, requests in self.senders:
            begin = reply
            end = number + <Py_ssize_t>requests
            while number < end:
                request = &self.requests[number]
                send = &self.sends[request.first]
                if not request.oneway:
                    # All messages of a request go to one queue, one behind the other.
                    queue_offset = next_offsets[send.queue]
                    reply = self.template.render(
                        reply, request, send, queue_ids[send.queue], queue_offset, position, records
                    )
                for n in range(request.count):
                    queue_offset = next_offsets[send.queue]
                    next_offsets[send.queue] = queue_offset + 1
                    physical_offset = position + send.record_at
                    record = records + send.record_at
                    put64(record + QUEUE_OFFSET_AT, <uint64_t>queue_offset)
                    put64(record + PHYSICAL_OFFSET_AT, <uint64_t>physical_offset)
                    put64(record + STORE_MS_AT, <uint64_t>store_ms)
                    entry = entries_at[send.queue]
                    put64(entry, <uint64_t>physical_offset)
                    put32(entry + QUEUE_ENTRY_SIZE_AT, send.size)
                    put64(entry + QUEUE_ENTRY_TAG_CODE_AT, <uint64_t>send.tag_code)
                    entries_at[send.queue] = entry + QUEUE_ENTRY_BYTES
                    send += 1
                number += 1
            if reply != begin:
                replies.append((connection, [begin[: reply - begin]]))
        built, self.records = self.records, None
        return built
