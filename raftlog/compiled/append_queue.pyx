# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The queue of a log writer, which carries out *plain* operations without the interpreter's lock.

An operation is plain if it only appends entries: no cut, vote, notes, base or sidecars, without a gap, in one file, and
not more than may be written before a sync. `CompiledAppendQueue.run` waits for operations, writes all plain ones that
wait with one synced write, and reports them, until something else is due.
`raftlog.segment.append_queue.PythonAppendQueue` is the reference: it makes the same calls of the system in the same
order. `raftlog.segment.group_commit.GroupCommit` carries out all other operations.

A simulation runs this module, too, and so does a test that tries all orders in which threads may run. They give an
object for the calls of the system that this module makes; see `raftlog.segment.append_queue.SystemCalls`.

Who may touch what: operations are appended by any thread with the interpreter's lock, and removed by the writer's
thread. The first mutex protects both lists; nobody holds it while waiting for anything else. The frame of `send_after`
and the number of `signal_from` are protected by a second mutex, which the writer's thread holds while it reports and
sends. Nobody waits for that one with the interpreter's lock, which its holder may need. References to objects are
released with the interpreter's lock, by the next `submit` or when `run` returns. An operation that is being written is
in neither list, and keeps its reference.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.errno cimport EINTR, EIO
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_MONOTONIC, timespec


cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <sys/uio.h>
    #include <pthread.h>
    #define load_acquire(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
    #define store_release(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
    """
    enum: RWF_DSYNC
    struct iovec:
        char *iov_base
        size_t iov_len
    ssize_t pwritev2(int fd, const iovec *buffers, int count, int64_t offset, int flags) nogil
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attributes) nogil
    int pthread_mutex_lock(pthread_mutex_t *mutex) nogil
    int pthread_mutex_trylock(pthread_mutex_t *mutex) nogil
    int pthread_mutex_unlock(pthread_mutex_t *mutex) nogil
    int pthread_mutex_destroy(pthread_mutex_t *mutex) nogil
    int pthread_condattr_init(pthread_condattr_t *attributes) nogil
    int pthread_condattr_setclock(pthread_condattr_t *attributes, int clock) nogil
    int pthread_condattr_destroy(pthread_condattr_t *attributes) nogil
    int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) nogil
    int pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) nogil
    int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const timespec *until) nogil
    int pthread_cond_signal(pthread_cond_t *condition) nogil
    int pthread_cond_destroy(pthread_cond_t *condition) nogil
    int64_t load_acquire(const int64_t *at) nogil
    void store_release(int64_t *at, int64_t value) nogil


include "compiled_from.pxi"

cdef enum:
    IOVECS_MAX = 1024
    # A run returns at the latest when the markers are due, after a tenth of a second.
    DURATIONS_MAX = 4096
    # What a turn has done.
    WRITTEN = 1
    NOT_PLAIN = 2
    FAILED = 3


cdef struct Operation:
    Operation *following
    PyObject *op  # None: the writer is to be closed
    int64_t ticket
    int64_t commit_hint  # 0: none
    int64_t nbytes
    # Of a plain one:
    bint is_plain
    int64_t pos
    int64_t end_pos
    int64_t last_index
    int64_t chain
    int count
    iovec *buffers  # directly behind this struct


include "system_calls.pxi"  # SystemCalls, kernel_..., given_...


cdef class CompiledAppendQueue:
    """The queue of one writer.

    Args:
        done_fd: an eventfd that gets one more with each report of durable operations.
        sync_bytes_max: maximum bytes that are written before they are synced.
        calls: stands for the system; see `raftlog.segment.append_queue.SystemCalls`. None: the system itself.

    Attributes:
        done_ticket: everything up to it is durable. Any thread may read it.
        end_pos, last_index, chain: of the log after the last `run`.
        commit_hint: the highest one that the last `run` was given or has seen.
        failure: the error of the write that ended the last `run`; 0 if none failed.
        began_at, written_at: when the last write began and ended, by the clock of the system. For traces.
    """

    cdef pthread_mutex_t _mutex
    cdef pthread_cond_t _changed
    cdef pthread_mutex_t _reporting
    cdef int64_t _signal_from
    cdef bytes _frame  # keeps the memory of the next ones; only touched with the interpreter's lock
    cdef const char *_frame_at  # NULL: nothing is to be sent
    cdef size_t _frame_bytes
    cdef int64_t _frame_ticket
    cdef int _frame_fd
    cdef ssize_t _frame_sent
    cdef bint _is_usable
    cdef bint _is_waiting
    cdef bint _is_running
    cdef bint _is_stopped
    cdef bint _has_changed
    cdef Operation *_first
    cdef Operation *_last
    cdef Operation *_finished
    cdef int _done_fd
    cdef int64_t _sync_bytes_max
    cdef int64_t _done_ticket
    cdef iovec _buffers[IOVECS_MAX]
    cdef double _durations[DURATIONS_MAX]
    cdef int _durations_count
    cdef readonly double began_at
    cdef readonly double written_at
    cdef SystemCalls _system
    cdef object _calls
    cdef object _raised
    cdef readonly int64_t end_pos
    cdef readonly int64_t last_index
    cdef readonly int64_t chain
    cdef readonly int64_t commit_hint
    cdef readonly int failure

    def __cinit__(self, int done_fd, int64_t sync_bytes_max, calls=None):
        cdef pthread_condattr_t attributes
        assert sync_bytes_max > 0, f"{sync_bytes_max} bytes are to be written before a sync"
        self._calls = calls
        if calls is None:
            self._system = SystemCalls(
                kernel_monotonic, kernel_lock, kernel_wait, kernel_wake, kernel_write, kernel_report, kernel_send
            )
        else:
            self._system = SystemCalls(
                given_monotonic, given_lock, given_wait, given_wake, given_write, given_report, given_send
            )
        self._first = self._last = self._finished = NULL
        self._done_fd = done_fd
        self._sync_bytes_max = sync_bytes_max
        if (
            pthread_mutex_init(&self._mutex, NULL)
            or pthread_mutex_init(&self._reporting, NULL)
            or pthread_condattr_init(&attributes)
        ):
            raise MemoryError("no mutex for the log writer")
        if pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) or pthread_cond_init(&self._changed, &attributes):
            raise MemoryError("no condition variable for the log writer")
        pthread_condattr_destroy(&attributes)
        self._is_usable = True

    def __dealloc__(self):
        # While its thread runs, the process ends: the thread may still be using all of this.
        if self._is_usable and not self._is_running:
            release(self._finished)
            release(self._first)
            pthread_cond_destroy(&self._changed)
            pthread_mutex_destroy(&self._mutex)
            pthread_mutex_destroy(&self._reporting)

    @property
    def done_ticket(self):
        return load_acquire(&self._done_ticket)

    def submit(self, op):
        """Queue a `WriteOp`, or None to close the writer. Does nothing after `stop`. Never waits for the disk."""
        cdef Operation *operation = new_operation(op, self._sync_bytes_max)
        cdef Operation *finished
        cdef bint is_waited_for = False
        pthread_mutex_lock(&self._mutex)
        finished = self._finished
        self._finished = NULL
        if self._is_stopped:
            operation.following = finished
            finished = operation
        else:
            if self._last == NULL:
                self._first = operation
            else:
                self._last.following = operation
            self._last = operation
            is_waited_for = self._is_waiting
            self._is_waiting = False
        pthread_mutex_unlock(&self._mutex)
        # Without the mutex, which the woken thread needs at once.
        try:
            if is_waited_for:
                self._system.wake(<void *>self)
        finally:
            release(finished)

    def stop(self):
        """Drop what is queued, and everything that is submitted from now on."""
        cdef Operation *queued
        pthread_mutex_lock(&self._mutex)
        self._is_stopped = True
        queued = self._first
        self._first = self._last = NULL
        pthread_mutex_unlock(&self._mutex)
        release(queued)

    def take(self, int64_t bytes_min):
        """Remove operations in order, until they have ``bytes_min`` bytes, all are removed, or one of them closes the
        writer. Returns them, without that one, and whether the writer stays open.
        """
        cdef Operation *operation
        cdef int64_t nbytes = 0
        cdef list taken = []
        while nbytes < bytes_min:
            pthread_mutex_lock(&self._mutex)
            operation = self._first
            if operation != NULL:
                self._first = operation.following
                if self._first == NULL:
                    self._last = NULL
            pthread_mutex_unlock(&self._mutex)
            if operation == NULL:
                break
            op = <object>operation.op
            nbytes += operation.nbytes
            operation.following = NULL
            release(operation)
            if op is None:
                return taken, False
            taken.append(op)
        return taken, True

    def report(self, int64_t ticket):
        """Everything up to ``ticket`` is durable."""
        # Whoever has the second mutex may need the interpreter's lock to go on.
        with nogil:
            self._report(ticket)
        self._raise()

    def signal_from(self, int64_t ticket):
        """Signal reports only from ``ticket`` on; the others are only published. Returns the ticket that is done."""
        self._lock_reporting()
        self._signal_from = ticket
        pthread_mutex_unlock(&self._reporting)
        return load_acquire(&self._done_ticket)

    def send_after(self, int64_t ticket, int fd, bytes frame):
        """Send ``frame`` on the writer's thread, as soon as everything up to ``ticket`` is durable. A report of exactly
        this ticket is not signalled then. ``fd`` must stay open until `take_back` returns.

        Returns False, and sends nothing, if that is durable already.
        """
        cdef bint is_early
        assert self._frame is None, f"a frame waits for ticket {self._frame_ticket}, another one comes for {ticket}"
        assert frame, f"an empty frame is to be sent after ticket {ticket}"
        self._lock_reporting()
        is_early = self._done_ticket < ticket
        if is_early:
            self._frame = frame
            self._frame_ticket = ticket
            self._frame_fd = fd
            self._frame_bytes = <size_t>PyBytes_GET_SIZE(frame)
            self._frame_sent = 0
            self._frame_at = PyBytes_AS_STRING(frame)
        pthread_mutex_unlock(&self._reporting)
        return is_early

    def take_back(self):
        """Send the frame of `send_after` no more. Returns how many bytes of it were sent before."""
        cdef ssize_t sent
        self._lock_reporting()
        self._frame_at = NULL
        sent = self._frame_sent
        self._frame_sent = 0
        pthread_mutex_unlock(&self._reporting)
        self._frame = None
        return max(0, sent)

    cdef void _lock_reporting(self):
        # The writer's thread may need the interpreter's lock to send, if an object does that.
        if pthread_mutex_trylock(&self._reporting):
            with nogil:
                pthread_mutex_lock(&self._reporting)

    def run(
        self,
        int fd,
        int64_t file_pos,
        int64_t limit_pos,
        int64_t end_pos,
        int64_t commit_hint,
        bint is_due,
        double due_seconds,
    ):
        """Wait for operations, and carry out plain ones, without the interpreter's lock.

        Args:
            fd, file_pos: the file to write to, and the position of its first byte. It must stay open meanwhile.
            limit_pos: how far the file may be written; ``end_pos`` to write nothing.
            end_pos, commit_hint: of the log.
            is_due: whether to return after ``due_seconds``, although nothing is queued; so also if anything has
                changed.

        Returns whether an operation is next that is not plain. Otherwise the time is up, or a write failed. Raises what
        an object has raised that was given for the system, unless it was an OSError of a write.
        """
        cdef bint found
        assert not self._is_running, f"a queue that writes from {self.end_pos} on is to write from {end_pos} on as well"
        assert file_pos <= end_pos, f"the log ends at {end_pos}, before its file, which begins at {file_pos}"
        self._begin(end_pos, commit_hint)
        with nogil:
            found = self._run(fd, file_pos, limit_pos, is_due, self._system.monotonic(<void *>self) + due_seconds)
        self._end()
        return found

    cdef void _begin(self, int64_t end_pos, int64_t commit_hint):
        self.failure = 0
        self.end_pos = end_pos
        self.commit_hint = commit_hint
        self._has_changed = False
        self._is_running = True

    cdef _end(self):
        """Release what is finished. Raises what a call of the system has raised that is no error of the disk."""
        cdef Operation *finished
        pthread_mutex_lock(&self._mutex)
        finished = self._finished
        self._finished = NULL
        pthread_mutex_unlock(&self._mutex)
        self._is_running = False
        release(finished)
        self._raise()

    cdef _raise(self):
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def durations(self):
        """How long each write since the last call took, in seconds."""
        assert 0 <= self._durations_count <= DURATIONS_MAX, f"{self._durations_count} writes of {<int>DURATIONS_MAX}"
        taken = [self._durations[number] for number in range(self._durations_count)]
        self._durations_count = 0
        return taken

    cdef bint _run(self, int fd, int64_t file_pos, int64_t limit_pos, bint is_due, double due) noexcept nogil:
        cdef int done
        while True:
            self._system.lock(<void *>self)
            if not self._wait(is_due, due):
                pthread_mutex_unlock(&self._mutex)
                return False
            done = self._turn(fd, file_pos, limit_pos)
            if done == NOT_PLAIN:
                return True
            is_due = is_due or self._has_changed
            if done == FAILED or (is_due and self.written_at >= due) or self._durations_count == DURATIONS_MAX:
                return False

    cdef int _turn(self, int fd, int64_t file_pos, int64_t limit_pos) noexcept nogil:
        """Write the append operations at the head of the queue, if there are any, and report them.

        Called with the mutex, which it releases.
        """
        cdef Operation *first = self._first
        cdef Operation *last
        cdef int64_t pos = self.end_pos
        cdef int count
        last = self._cut_plain(limit_pos, &count)
        pthread_mutex_unlock(&self._mutex)
        if last == NULL:
            return NOT_PLAIN
        self.began_at = self._system.monotonic(<void *>self)
        self.failure = self._write_synced(fd, self._buffers, count, pos - file_pos)
        self.written_at = self._system.monotonic(<void *>self)
        if self.failure == 0:
            self._durations[self._durations_count] = self.written_at - self.began_at
            self._durations_count += 1
            if self._note(first):
                self._has_changed = True
            self._report(last.ticket)
        pthread_mutex_lock(&self._mutex)
        last.following = self._finished
        self._finished = first
        pthread_mutex_unlock(&self._mutex)
        return FAILED if self.failure else WRITTEN

    cdef int _write_synced(self, int fd, iovec *buffers, int count, int64_t offset) noexcept nogil:
        """Write all buffers, durably; returns 0, or the error. Changes the buffers."""
        cdef ssize_t written
        while count > 0:
            written = self._system.write(<void *>self, fd, buffers, count, offset, RWF_DSYNC)
            if written < 0:
                if written == -EINTR:
                    continue
                return <int>-written
            if written == 0:
                return EIO
            offset += written
            while count > 0 and <size_t>written >= buffers.iov_len:
                written -= <ssize_t>buffers.iov_len
                buffers += 1
                count -= 1
            # A full disk writes what fits and fails only on the next call.
            if written:
                buffers.iov_base += written
                buffers.iov_len -= <size_t>written
        return 0

    cdef bint _wait(self, bint is_due, double due) noexcept nogil:
        """Wait for an operation, with the mutex; returns False when the time is up."""
        while self._first == NULL:
            # It stays so when the time is up, until there is an operation: a needless wake-up does no harm.
            self._is_waiting = True
            if not self._system.wait(<void *>self, is_due, due) and self._first == NULL:
                return False
        self._is_waiting = False
        return True

    cdef Operation *_cut_plain(self, int64_t limit_pos, int *count) noexcept nogil:
        """Cut off the first operations that one write can do, with the mutex; returns the last one, NULL for none.

        Their buffers are in ``_buffers`` then.
        """
        cdef Operation *operation = self._first
        cdef Operation *last = NULL
        cdef int64_t pos = self.end_pos
        cdef int number
        count[0] = 0
        while operation != NULL and operation.is_plain:
            if operation.count:
                if (
                    operation.pos != pos
                    or operation.end_pos > limit_pos
                    or operation.end_pos - self.end_pos > self._sync_bytes_max
                    or count[0] + operation.count > IOVECS_MAX
                ):
                    break
                pos = operation.end_pos
            for number in range(operation.count):
                self._buffers[count[0] + number] = operation.buffers[number]
            count[0] += operation.count
            last = operation
            operation = operation.following
        if last != NULL:
            self._first = last.following
            if self._first == NULL:
                self._last = NULL
            last.following = NULL
        return last

    cdef bint _note(self, Operation *operation) noexcept nogil:
        """These operations are durable. Returns whether they have changed anything."""
        cdef bint changed = False
        while operation != NULL:
            if operation.count:
                self.end_pos = operation.end_pos
                self.last_index = operation.last_index
                self.chain = operation.chain
                changed = True
            if operation.commit_hint > self.commit_hint:
                self.commit_hint = operation.commit_hint
                changed = True
            operation = operation.following
        return changed

    cdef void _report(self, int64_t ticket) noexcept nogil:
        cdef bint is_signalled
        pthread_mutex_lock(&self._reporting)
        store_release(&self._done_ticket, ticket)
        is_signalled = ticket >= self._signal_from
        if self._frame_at != NULL and self._frame_ticket <= ticket:
            self._frame_sent = self._system.send(<void *>self, self._frame_fd, self._frame_at, self._frame_bytes)
            self._frame_at = NULL
            if self._frame_sent != <ssize_t>self._frame_bytes:
                is_signalled = True
            elif self._frame_ticket == ticket:
                is_signalled = False
        pthread_mutex_unlock(&self._reporting)
        if is_signalled:
            self._system.report(<void *>self, ticket)


cdef Operation *new_operation(op, int64_t sync_bytes_max) except NULL:
    entries = () if op is None else op.entries
    cdef Py_ssize_t count = 2 * len(entries)
    cdef Operation *operation = <Operation *>malloc(sizeof(Operation) + <size_t>count * sizeof(iovec))
    if operation == NULL:
        raise MemoryError("no memory for an operation of the log writer")
    operation.following = NULL
    operation.op = NULL
    operation.count = 0
    operation.is_plain = False
    operation.nbytes = 0
    try:
        fill(operation, op, entries, count, sync_bytes_max)
    except BaseException:
        free(operation)
        raise
    operation.op = <PyObject *>op
    Py_INCREF(op)
    return operation


cdef int fill(Operation *operation, op, entries, Py_ssize_t count, int64_t sync_bytes_max) except -1:
    cdef int64_t pos
    cdef int number = 0
    cdef iovec *buffers = <iovec *>(<char *>operation + sizeof(Operation))
    operation.buffers = buffers
    if op is None:
        return 0
    operation.ticket = op.ticket
    operation.commit_hint = op.commit_hint or 0
    operation.nbytes = op.nbytes
    if (
        op.cut is not None
        or op.hard_state is not None
        or op.notes is not None
        or op.base is not None
        or op.closed
        or operation.nbytes > sync_bytes_max
        or count > IOVECS_MAX
    ):
        return 0
    if count:
        pos = operation.pos = entries[0].pos
        for entry in entries:
            header, body = entry.header, entry.body
            if not PyBytes_CheckExact(header) or not PyBytes_CheckExact(body) or pos != entry.pos:
                return 0
            buffers[number].iov_base = PyBytes_AS_STRING(header)
            buffers[number].iov_len = <size_t>PyBytes_GET_SIZE(header)
            buffers[number + 1].iov_base = PyBytes_AS_STRING(body)
            buffers[number + 1].iov_len = <size_t>PyBytes_GET_SIZE(body)
            pos += PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(body)
            number += 2
        operation.end_pos = pos
        if operation.end_pos - operation.pos != operation.nbytes:
            return 0
        operation.last_index = entry.index
        operation.chain = entry.chain
    operation.count = number
    operation.is_plain = True
    return 0


cdef void release(Operation *operation):
    """Free operations, with the interpreter's lock."""
    cdef Operation *following
    while operation != NULL:
        following = operation.following
        if operation.op != NULL:
            Py_DECREF(<object>operation.op)
        free(operation)
        operation = following
