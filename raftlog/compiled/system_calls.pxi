"""The system calls of a `CompiledAppendQueue`; the reference is `raftlog.segment.append_queue.SystemCalls`.

Each gets the `CompiledAppendQueue` that makes it. The system itself answers, or an object that was given for it.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EIO, errno
from libc.stdint cimport int64_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport write

ctypedef double (*Monotonic)(void *writes) noexcept nogil
ctypedef void (*Lock)(void *writes) noexcept nogil
ctypedef bint (*Wait)(void *writes, bint is_due, double due) noexcept nogil
ctypedef void (*Wake)(void *writes)
ctypedef ssize_t (*Write)(
    void *writes, int fd, const iovec *buffers, int count, int64_t offset, int flags
) noexcept nogil
ctypedef void (*Report)(void *writes, int64_t ticket) noexcept nogil
ctypedef ssize_t (*Send)(void *writes, int fd, const char *data, size_t size) noexcept nogil

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef struct SystemCalls:
    Monotonic monotonic
    Lock lock
    Wait wait
    Wake wake
    Write write
    Report report
    Send send


cdef double kernel_monotonic(void *writes) noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <double>now.tv_sec + 1e-9 * <double>now.tv_nsec


cdef void kernel_lock(void *writes) noexcept nogil:
    pthread_mutex_lock(&(<CompiledAppendQueue>writes)._mutex)


cdef bint kernel_wait(void *writes, bint is_due, double due) noexcept nogil:
    """Called with the mutex, which it releases meanwhile. Returns False when ``due`` is over."""
    cdef pthread_cond_t *changed = &(<CompiledAppendQueue>writes)._changed
    cdef pthread_mutex_t *mutex = &(<CompiledAppendQueue>writes)._mutex
    cdef timespec until
    if not is_due:
        pthread_cond_wait(changed, mutex)
        return True
    until.tv_sec = <long>due
    until.tv_nsec = <long>(1e9 * (due - <double>until.tv_sec))
    return pthread_cond_timedwait(changed, mutex, &until) == 0


cdef void kernel_wake(void *writes):
    pthread_cond_signal(&(<CompiledAppendQueue>writes)._changed)


cdef ssize_t kernel_write(
    void *writes, int fd, const iovec *buffers, int count, int64_t offset, int flags
) noexcept nogil:
    """As pwritev2, but returns an error as a negative number."""
    cdef ssize_t written = pwritev2(fd, buffers, count, offset, flags)
    return written if written >= 0 else -errno


cdef void kernel_report(void *writes, int64_t ticket) noexcept nogil:
    cdef uint64_t one = 1
    # It can only fail if somebody closed it, and then nobody waits for it.
    write((<CompiledAppendQueue>writes)._done_fd, &one, sizeof(one))


cdef ssize_t kernel_send(void *writes, int fd, const char *data, size_t size) noexcept nogil:
    return send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL)


# The same calls, of an object that was given. They keep what it raises until `run` returns; see `_raise`.


cdef double given_monotonic(void *writes) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    try:
        return self._calls.monotonic()
    except BaseException as error:
        self._raised = error
        return 0.0


cdef void given_locking(void *writes) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    try:
        self._calls.locking()
    except BaseException as error:
        self._raised = error


cdef void given_lock(void *writes) noexcept nogil:
    given_locking(writes)
    pthread_mutex_lock(&(<CompiledAppendQueue>writes)._mutex)


cdef bint given_waiting(void *writes, bint is_due, double due) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    try:
        return self._calls.wait(max(0.0, due - self._calls.monotonic()) if is_due else None)
    except BaseException as error:
        self._raised = error
        return False


cdef bint given_wait(void *writes, bint is_due, double due) noexcept nogil:
    # Without the mutex, so that nobody waits for it who has the interpreter's lock.
    cdef bint is_woken
    pthread_mutex_unlock(&(<CompiledAppendQueue>writes)._mutex)
    is_woken = given_waiting(writes, is_due, due)
    pthread_mutex_lock(&(<CompiledAppendQueue>writes)._mutex)
    return is_woken


cdef void given_wake(void *writes):
    (<CompiledAppendQueue>writes)._calls.wake()


cdef ssize_t given_write(
    void *writes, int fd, const iovec *buffers, int count, int64_t offset, int flags
) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    cdef list parts = []
    cdef int number
    try:
        for number in range(count):
            parts.append(PyBytes_FromStringAndSize(buffers[number].iov_base, <Py_ssize_t>buffers[number].iov_len))
        return self._calls.write(fd, parts, offset, flags)
    except OSError as error:
        return -(error.errno or EIO)
    except BaseException as error:
        self._raised = error
        return -EIO


cdef void given_report(void *writes, int64_t ticket) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    try:
        self._calls.report(ticket)
    except BaseException as error:
        self._raised = error


cdef ssize_t given_send(void *writes, int fd, const char *data, size_t size) noexcept with gil:
    cdef CompiledAppendQueue self = <CompiledAppendQueue>writes
    try:
        return self._calls.send(fd, PyBytes_FromStringAndSize(data, <Py_ssize_t>size))
    except OSError:
        return -1
    except BaseException as error:
        self._raised = error
        return -1
