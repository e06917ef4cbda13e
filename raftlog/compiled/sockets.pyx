# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""System calls for many sockets at once: the interpreter's lock is released once for all of them.

`raftlog.net.flush` calls this, and does the same for one socket after the other without it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE


cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

include "compiled_from.pxi"

cdef enum:
    AT_ONCE = 256

cdef struct Output:
    int fd
    const char *data
    size_t size
    ssize_t sent


def send_single_buffers(streams):
    """Send what these streams of a reactor have waiting, if it is a single buffer for a socket without TLS.

    Returns the streams that still have something to send, or that this function leaves alone.
    """
    cdef Output[AT_ONCE] outputs
    cdef list chosen = [], rest = [], out
    cdef object stream
    cdef bytes data
    for stream in streams:
        # One that was flushed early and marked again is there twice.
        if not stream._dirty:
            continue
        out = stream._out
        if len(out) != 1 or stream.plain_fd < 0 or stream._writing or not PyBytes_CheckExact(out[0]):
            rest.append(stream)
            continue
        stream._dirty = False
        data = out[0]
        outputs[len(chosen)].fd = stream.plain_fd
        outputs[len(chosen)].data = PyBytes_AS_STRING(data)
        outputs[len(chosen)].size = PyBytes_GET_SIZE(data)
        chosen.append(stream)
        if len(chosen) == AT_ONCE:
            _send(outputs, chosen, rest)
            chosen = []
    _send(outputs, chosen, rest)
    return rest


cdef _send(Output *outputs, list chosen, list rest):
    cdef Py_ssize_t count = len(chosen), n
    cdef object stream
    # The streams belong to this thread: they keep their buffers until it clears them.
    with nogil:
        for n in range(count):
            outputs[n].sent = send(outputs[n].fd, outputs[n].data, outputs[n].size, MSG_DONTWAIT | MSG_NOSIGNAL)
    for n in range(count):
        stream = chosen[n]
        if outputs[n].sent == <ssize_t>outputs[n].size:
            (<list>stream._out).clear()
            stream.out_bytes = 0
            continue
        if outputs[n].sent > 0:
            stream._drop_sent(outputs[n].sent)
        rest.append(stream)  # which finds out why when it sends the rest
