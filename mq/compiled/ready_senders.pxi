"""Receives from many senders in one call, and takes the plain sends among what they sent.

The reference is `raftlog.net.stream.StreamSocket`, which receives from one socket, and `PlainSends.take`.
"""

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int fd, void *data, size_t size, int flags)
    int MSG_DONTWAIT

cdef enum:
    EPOLLIN = 1
    RECEIVE_BYTES = 64 * 1024  # from one sender in a turn, as in the reactor
    RECEIVED_BYTES_MAX = 256 * 1024  # from all of them: a millisecond of work, about
    TAKEN_BYTES_MAX = 1024 * 1024 * 1024  # more than all blocks can have
    SENDERS_MAX = 512  # as many events as the reactor takes at once

cdef struct Received:
    int fd
    bint is_left
    Py_ssize_t at  # in the buffer
    Py_ssize_t size


cdef class ReadySenders:
    """Serves senders that are ready, if their last chunk consisted of plain sends.

    Args:
        plain_sends: what takes them.
        senders: these senders by descriptor: nothing of their last chunk is left, and their sockets have no TLS. One
            that sends anything else is removed.
        is_signed: whether senders are asked for the keys of their requests (``send_keys``).
    """

    cdef PlainSends plain_sends
    cdef dict senders
    cdef bint is_signed
    cdef uint8_t *buffer
    cdef Received[SENDERS_MAX] received

    def __cinit__(self):
        self.buffer = <uint8_t *>PyMem_Malloc(RECEIVED_BYTES_MAX)
        if self.buffer == NULL:
            raise MemoryError

    def __init__(self, PlainSends plain_sends not None, dict senders not None, *, bint is_signed):
        self.plain_sends = plain_sends
        self.senders = senders
        self.is_signed = is_signed

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    def receive(self, list ready not None, room):
        """Receive once from each of these senders among ``ready``, pairs of a descriptor and its events.

        Takes plain sends while those taken before have no more than ``room`` bytes. Returns the blocks of all of them;
        the rest of each chunk that has anything else, as descriptor, connection and bytes; and the events that are
        still to be served: of other descriptors, of senders that are gone, and of those that there was no space for.
        """
        cdef list events = [], connections = [], rest = []
        cdef int count = 0, n
        for event in ready:
            descriptor, mask = event
            connection = self.senders.get(descriptor) if mask == EPOLLIN and count < SENDERS_MAX else None
            if connection is None:
                rest.append(event)
                continue
            self.received[count].fd = descriptor
            count += 1
            events.append(event)
            connections.append(connection)
        if not count:
            return [], [], ready
        # No other thread opens or closes these sockets.
        with nogil:
            self._receive_all(count)
        for n in range(count):
            if self.received[n].is_left:
                rest.append(events[n])
        # The room may have more than 64 bits.
        blocks, others = self._take_all(connections, count, min(room, TAKEN_BYTES_MAX))
        return blocks, others, rest

    cdef void _receive_all(self, int count) noexcept nogil:
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
            received.size = recv(received.fd, self.buffer + used, RECEIVE_BYTES, MSG_DONTWAIT)
            if received.size > 0:
                used += received.size
            else:
                # The end of the connection; an error is followed by it. Whoever receives next will see.
                received.is_left = received.size == 0 or (errno != EAGAIN and errno != EINTR)

    cdef tuple _take_all(self, list connections, int count, int64_t room):
        cdef PlainSends plain_sends = self.plain_sends
        cdef list blocks = [], others = [], senders = []
        cdef const uint8_t *data
        cdef Py_ssize_t at, taken, before
        cdef Received *received
        cdef Filled filled
        cdef bytes host
        cdef int n
        plain_sends._begin_block(&filled)
        for n in range(count):
            received = &self.received[n]
            if received.size <= 0:
                continue
            connection = connections[n]
            connection.heard = True
            host = connection.host
            key_of = connection.send_keys() if self.is_signed else None
            data = self.buffer + received.at
            at = 0
            while at < received.size and room >= 0 and len(host) == HOST_BYTES:
                before = filled.requests
                taken = plain_sends._fill(
                    &filled, data + at, received.size - at, room, PyBytes_AS_STRING(host), key_of
                )
                if taken:
                    senders.append((connection, data[at : at + taken], filled.requests - before))
                    at += taken
                elif filled.messages:
                    # The next request may fit into the next block.
                    blocks.append(plain_sends._block(&filled, senders))
                    room -= filled.nbytes
                    plain_sends._begin_block(&filled)
                    senders = []
                else:
                    break
            if at < received.size:
                del self.senders[received.fd]
                others.append((received.fd, connection, data[at : received.size]))
        if filled.messages:
            blocks.append(plain_sends._block(&filled, senders))
        return blocks, others
