"""A block of plain sends that waits for its round; the reference is `mq.broker.write_path.send_block.SendBlock`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    QUEUES_MAX = 256  # of a block


cdef class SendBlock:
    """Plain sends that wait for their round together. Their records are complete except for offsets and the store time.

    See `PendingItem`. ``senders`` has each client, its requests as they came in, and how many these are, in the order
    of the records.
    """

    cdef readonly list senders
    cdef readonly Py_ssize_t nbytes
    cdef readonly Py_ssize_t request_count
    cdef readonly Py_ssize_t sender_count
    cdef Py_ssize_t count  # of messages
    cdef bytes records
    cdef object numbers  # `NumberedSends`; None without sequence numbers
    cdef list producers  # of them
    cdef list tails
    cdef Send *sends
    cdef Request *requests
    cdef _ReplyTemplate template
    cdef PlainSends engine

    def __cinit__(self):
        self.sends = NULL
        self.requests = NULL

    def __dealloc__(self):
        PyMem_Free(self.sends)
        PyMem_Free(self.requests)

    def numbered_sends(self, str producer not None):
        """See `mq.broker.produce.sends_in_flight.SendsOf`."""
        cdef Py_ssize_t n
        cdef Request *request
        cdef list found = []
        for n in range(self.request_count):
            request = &self.requests[n]
            if request.producer >= 0 and self.producers[request.producer] == producer:
                found.append((request.number, request.number + (request.count - 1), n))
        return found

    def give_back(self, outcome):
        """See `PendingItem`."""
        waiting = [] if self.numbers is None else self.numbers.end()
        for sender, frames, _ in self.senders:
            self.engine.give_back(sender, frames, outcome)
        if self.numbers is not None:
            self.numbers.serve(waiting)

    cdef int _add_to_queues(self, draft, int64_t position, int64_t *next_offsets) except -1:
        """Add the queue entries of all messages; writes the queue offset of the first message in each queue."""
        cdef Py_ssize_t queues = len(self.tails), n
        cdef uint32_t[QUEUES_MAX] counts
        cdef (uint8_t *)[QUEUES_MAX] entries_at
        cdef list entries = []
        cdef bytes of_queue
        cdef uint8_t *entry
        cdef Send *send
        for n in range(queues):
            counts[n] = 0
        for n in range(self.count):
            counts[self.sends[n].queue] += 1
        for n in range(queues):
            of_queue = PyBytes_FromStringAndSize(NULL, counts[n] * QUEUE_ENTRY_BYTES)
            entries_at[n] = <uint8_t *>PyBytes_AS_STRING(of_queue)
            entries.append(of_queue)
        for n in range(self.count):
            send = &self.sends[n]
            entry = entries_at[send.queue]
            entries_at[send.queue] = entry + QUEUE_ENTRY_BYTES
            put64(entry, <uint64_t>(position + send.record_at))
            put32(entry + QUEUE_ENTRY_SIZE_AT, send.size)
            put64(entry + QUEUE_ENTRY_TAG_CODE_AT, <uint64_t>send.tag_code)
        for n in range(queues):
            next_offsets[n] = draft.add_to_queue(self.tails[n], entries[n], counts[n])
        return 0

    def build(self, draft):
        """See `PendingItem`."""
        if self.records is None:  # not an assert, which -O leaves out: what follows writes to the records
            raise AssertionError("a block is built once")
        cdef int64_t position = draft.position, store_ms = draft.store_ms
        cdef Py_ssize_t queues = len(self.tails), n
        assert position >= 0 and store_ms >= 0, f"records at {position}, stored at {store_ms} ms"
        assert 0 < queues <= QUEUES_MAX, f"a block of {self.count} messages for {queues} queues; maximum: {QUEUES_MAX}"
        assert len(self.records) == self.nbytes, f"{len(self.records)} bytes of records, {self.nbytes} were announced"
        cdef int64_t[QUEUES_MAX] next_offsets
        cdef int32_t[QUEUES_MAX] queue_ids
        for n in range(queues):
            queue_ids[n] = self.tails[n].queue_id
        if self.numbers is not None:
            draft.on_outcome(self.numbers.on_outcome)
            add_sequenced(draft, self, position, store_ms)
        self._add_to_queues(draft, position, next_offsets)
        cdef Py_ssize_t replies_bytes_max = self.template.bytes_max(
            self.requests, self.request_count, self.sends, self.count
        )
        cdef bytes rendered = PyBytes_FromStringAndSize(NULL, replies_bytes_max)
        cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(rendered)
        cdef uint8_t *reply = begin
        cdef uint8_t *records = <uint8_t *>PyBytes_AS_STRING(self.records)
        cdef uint8_t *record
        cdef Send *send
        cdef Request *request
        cdef int64_t queue_offset
        cdef Py_ssize_t number = 0, end
        for sender, _, requests in self.senders:
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
                    record = records + send.record_at
                    put64(record + QUEUE_OFFSET_AT, <uint64_t>queue_offset)
                    put64(record + PHYSICAL_OFFSET_AT, <uint64_t>(position + send.record_at))
                    put64(record + STORE_MS_AT, <uint64_t>store_ms)
                    send += 1
                number += 1
            if reply != begin:
                draft.reply(sender, begin[: reply - begin])
        assert number == self.request_count, f"{number} of {self.request_count} requests have a reply"
        assert reply - <uint8_t *>PyBytes_AS_STRING(rendered) <= replies_bytes_max, (
            f"replies to {number} requests have more than {replies_bytes_max} bytes"
        )
        built, self.records = self.records, None
        self.senders = []  # with numbers, the block stays until its outcome is known
        draft.add_records(built, self.count)
        self.engine.built_messages += self.count
