# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""System calls for many sockets at once: the interpreter's lock is released once for all of them.

`raftlog.net.flush` calls this, and does the same for one socket after the other without it. A simulation gives an
object that sends instead of the system.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE


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


def send_single_buffers(streams, calls=None):
    """Send what these streams of a reactor have waiting, if it is a single buffer for a socket without TLS.

    Args:
        streams: see `raftlog.net.flush.Flushable`.
        calls: sends instead of the system; see `raftlog.net.flush.SocketCalls`.

    Returns the streams that still have something to send, or that this function leaves alone.
    """
    cdef Output[AT_ONCE] outputs
    cdef list chosen = [], buffers = [], rest = []
    cdef object stream
    cdef bytes data
    for stream in streams:
        data = stream.take_single_buffer()
        if data is None:
            rest.append(stream)
            continue
        assert len(chosen) < AT_ONCE, f"{len(chosen)} sockets at once; maximum: {<int>AT_ONCE}"
        outputs[len(chosen)].fd = stream.raw_fd
        assert outputs[len(chosen)].fd >= 0, f"{len(data)} bytes are for descriptor {outputs[len(chosen)].fd}"
        outputs[len(chosen)].data = PyBytes_AS_STRING(data)
        outputs[len(chosen)].size = <size_t>PyBytes_GET_SIZE(data)
        chosen.append(stream)
        buffers.append(data)
        if len(chosen) == AT_ONCE:
            _send(outputs, chosen, buffers, rest, calls)
            chosen = []
            buffers = []
    _send(outputs, chosen, buffers, rest, calls)
    return rest


cdef _send(Output *outputs, list chosen, list buffers, list rest, calls):
    cdef Py_ssize_t count = len(chosen), n
    assert len(buffers) == count, f"{len(buffers)} buffers for {count} sockets"
    if calls is None:
        with nogil:
            for n in range(count):
                outputs[n].sent = send(outputs[n].fd, outputs[n].data, outputs[n].size, MSG_DONTWAIT | MSG_NOSIGNAL)
    else:
        for n in range(count):
            outputs[n].sent = _given_send(calls, outputs[n])
    for n in range(count):
        if outputs[n].sent != <ssize_t>outputs[n].size:
            chosen[n].put_back(buffers[n], max(0, outputs[n].sent))
            rest.append(chosen[n])  # which finds out why when it sends the rest


cdef ssize_t _given_send(calls, Output output) except? -1:
    try:
        return calls.send(output.fd, PyBytes_FromStringAndSize(output.data, <Py_ssize_t>output.size))
    except OSError:
        return -1
