"""Receives from many clients in one call, and takes the plain sends among what they sent.

The reference is `mq.broker.produce.send_receiver.PythonReceiver`; `SendReceiver` beside it says what both do.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.buffer cimport PyBUF_WRITE
from libc.errno cimport EAGAIN, EINTR, EIO, errno
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_DONTWAIT

cdef enum:
    RAISED = -(1 << 30)  # no error of the system has this number
    RECEIVED_BYTES_MAX = 256 * 1024  # from all clients in one call: a millisecond of work, about
    ROOM_MAX = 1024 * 1024 * 1024  # more than all blocks of a call can have

cdef struct Received:
    int fd
    bint is_left
    Py_ssize_t at  # in the buffer
    Py_ssize_t size


cdef class CompiledReceiver:
    """See `SendReceiver`.

    Args:
        writable, tag_codes, suffix, body_bytes_max: see `SentMessages`.
        store_host: the broker's address as records store it, 8 bytes.
        reply_parts: the six parts of the reply's header around its five fields.
        numbered_batch: what the reply to a numbered batch has behind the fourth field.
        known: the sequence numbers that are known, see `KnownNumbers`.
        block_bytes_max, broker_name, is_signed, receive_into: see `ReceiverSettings`.
        give_back: called with a client, its requests and why they are not stored.
    """

    cdef PlainSends plain_sends
    cdef dict senders  # those that produce, by descriptor
    cdef bint is_signed
    cdef object receive_into
    cdef bint is_simulated
    cdef uint8_t *buffer
    cdef Received[SENDERS_MAX] received
    # What is taken in a call.
    cdef Filled filled
    cdef int64_t room
    cdef list block_senders
    cdef list blocks

    def __cinit__(self):
        self.buffer = <uint8_t *>PyMem_Malloc(RECEIVED_BYTES_MAX)
        if self.buffer == NULL:
            raise MemoryError

    def __init__(self, *, bint is_signed, receive_into, **given):
        self.plain_sends = PlainSends(**given)
        self.senders = {}
        self.is_signed = is_signed
        self.receive_into = receive_into
        self.is_simulated = receive_into is not None

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    @property
    def fast_senders(self):
        """See `SendReceiver`."""
        return frozenset(self.senders)

    @property
    def compiled_messages(self):
        """See `SendReceiver`."""
        return self.plain_sends.built_messages

    def forget(self, int descriptor):
        """See `SendReceiver`."""
        self.senders.pop(descriptor, None)

    def take(self, sender, bytes chunk not None, room):
        """See `SendReceiver`."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(chunk), taken
        cdef int descriptor = sender.descriptor
        self._begin(room)
        taken = self._take(sender, <const uint8_t *>PyBytes_AS_STRING(chunk), size, chunk)
        assert 0 <= taken <= size, f"{taken} of {size} bytes were taken"
        if taken == size and descriptor >= 0:
            self.senders[descriptor] = sender
        else:
            self.senders.pop(descriptor, None)
        return self._end(), taken

    def receive(self, list ready not None, room):
        """See `SendReceiver`."""
        cdef list events = [], chosen = [], left = [], unserved = []
        cdef const uint8_t *data
        cdef Py_ssize_t taken
        cdef Received *received
        cdef int count = 0, n
        for event in ready:
            descriptor, mask = event
            sender = self.senders.get(descriptor) if mask == EPOLLIN and count < SENDERS_MAX else None
            if sender is None:
                left.append(event)
                continue
            self.received[count].fd = descriptor
            count += 1
            events.append(event)
            chosen.append(sender)
        if not count:
            return [], [], ready
        # No other thread opens or closes these sockets.
        with nogil:
            self._receive_all(count)
        self._begin(room)
        for n in range(count):
            received = &self.received[n]
            if received.is_left:
                left.append(events[n])
            if received.size <= 0:
                continue
            sender = chosen[n]
            sender.heard = True
            assert 0 <= received.at <= RECEIVED_BYTES_MAX - received.size, (
                f"{received.size} bytes at {received.at} of a buffer of {<int>RECEIVED_BYTES_MAX}"
            )
            data = self.buffer + received.at
            taken = self._take(sender, data, received.size, None)
            assert 0 <= taken <= received.size, f"{taken} of {received.size} bytes were taken"
            if taken < received.size:
                del self.senders[received.fd]
                unserved.append((received.fd, sender, data[taken : received.size]))
        return self._end(), unserved, left

    cdef int _receive_all(self, int count) except -1 nogil:
        cdef Py_ssize_t used = 0
        cdef Received *received
        cdef int n
        for n in range(count):
            received = &self.received[n]
            received.at = used
            received.size = 0
            received.is_left = used + RECEIVE_BYTES > RECEIVED_BYTES_MAX
            if received.is_left:
                continue
            received.size = self._receive(received.fd, self.buffer + used)
            if received.size > 0:
                used += received.size
            else:
                # The end of the connection; an error is followed by it. Whoever receives next will see.
                received.is_left = received.size != -EAGAIN and received.size != -EINTR
        return 0

    cdef inline Py_ssize_t _receive(self, int fd, uint8_t *data) except? RAISED nogil:
        """Returns the number of bytes, 0 at the end of the connection, or the negative number of an error."""
        cdef Py_ssize_t size
        if self.is_simulated:
            with gil:
                return self._receive_simulated(fd, PyMemoryView_FromMemory(<char *>data, RECEIVE_BYTES, PyBUF_WRITE))
        size = recv(fd, data, RECEIVE_BYTES, MSG_DONTWAIT)
        return size if size >= 0 else -errno

    cdef Py_ssize_t _receive_simulated(self, int fd, room) except? RAISED:
        cdef Py_ssize_t size
        try:
            size = self.receive_into(fd, room)
        except BlockingIOError:
            return -EAGAIN
        except OSError as error:
            return -(error.errno or EIO)
        assert 0 <= size <= RECEIVE_BYTES, f"{size} bytes were received into {<int>RECEIVE_BYTES}"
        return size

    cdef int _begin(self, room) except -1:
        """Begin with a block."""
        cdef int overflow = 0  # room may have more than 64 bits
        cdef int64_t given = PyLong_AsLongLongAndOverflow(room, &overflow)
        self.room = ROOM_MAX if overflow > 0 else -1 if overflow < 0 else min(given, <int64_t>ROOM_MAX)
        self.blocks = []
        self.block_senders = []
        self.plain_sends._begin_block(&self.filled)
        return 0

    cdef Py_ssize_t _take(self, sender, const uint8_t *data, Py_ssize_t size, bytes chunk) except -1:
        """Take the plain sends at the start of these bytes, which are those of ``chunk`` unless that is None.

        Returns how many bytes they have.
        """
        cdef bytes host = sender.host
        cdef Py_ssize_t at = 0, taken, before
        if PyBytes_GET_SIZE(host) != HOST_BYTES:
            return 0
        key_of = sender.send_keys() if self.is_signed else None
        while at < size and self.room >= 0:
            before = self.filled.requests
            taken = self.plain_sends._fill(
                &self.filled, data + at, size - at, self.room, PyBytes_AS_STRING(host), key_of
            )
            if taken:
                frames = chunk if taken == size and chunk is not None else data[at : at + taken]
                self.block_senders.append((sender, frames, self.filled.requests - before))
                at += taken
            elif self.filled.messages:
                # The next request may fit into the next block.
                self._end_block()
                self.plain_sends._begin_block(&self.filled)
            else:
                break
        return at

    cdef int _end_block(self) except -1:
        self.blocks.append(self.plain_sends._block(&self.filled, self.block_senders))
        self.block_senders = []
        self.room -= self.filled.nbytes
        return 0

    cdef list _end(self):
        """All blocks."""
        cdef list blocks = self.blocks
        if self.filled.messages:
            self._end_block()
        self.blocks = None
        return blocks
