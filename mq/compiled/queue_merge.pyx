# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Merges entries of consume queues in the order of the log; the reference is `mq.broker.bulk.selection.select`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

include "compiled_from.pxi"  # COMPILED_FROM
include "big_endian.pxi"  # get32, get64
include "constants.pxi"


cdef struct Queue:
    const uint8_t *begin
    const uint8_t *next  # the entry of the record at `position`
    const uint8_t *end
    int64_t position
    int32_t queue_id
    Py_ssize_t number


cdef struct Answer:
    int64_t *positions
    int32_t *sizes
    int32_t *queue_ids
    int64_t *extents
    Py_ssize_t records
    Py_ssize_t extent_count


def merged_entries(list entries, list queue_ids, list wholes, int64_t bytes_max, int64_t limit_pos):
    """Select records of up to ``bytes_max`` bytes before ``limit_pos``, but at least one if there is one.

    Args:
        entries: of each queue, as bytes, at least one.
        wholes: whether they are all that may be selected; else those of other queues end at their last one.

    Returns how many entries of each queue are passed, and as native integers in bytes the positions (8 bytes each),
    sizes and queue ids (4 each) of the records in log order, and begin and end (8 each) of their contiguous ranges.
    """
    cdef Py_ssize_t count = len(entries), number, total = 0, size
    cdef int64_t horizon = limit_pos, behind
    cdef bytes each, positions, sizes, ids, extents
    cdef bytes room = PyBytes_FromStringAndSize(NULL, count * sizeof(Queue))
    cdef Queue *heap = <Queue *>PyBytes_AS_STRING(room)
    cdef Answer answer
    assert count == len(queue_ids) == len(wholes), f"{count} queues, {len(queue_ids)} ids, {len(wholes)} ends"
    for number in range(count):
        each = entries[number]
        size = PyBytes_GET_SIZE(each)
        assert size > 0 and size % QUEUE_ENTRY_BYTES == 0, f"{size} bytes of entries"
        heap[number].begin = heap[number].next = <const uint8_t *>PyBytes_AS_STRING(each)
        heap[number].end = heap[number].begin + size
        heap[number].position = <int64_t>get64(heap[number].begin + QUEUE_ENTRY_POSITION_AT)
        heap[number].queue_id = queue_ids[number]
        heap[number].number = number
        if not wholes[number]:
            behind = <int64_t>(get64(heap[number].end - QUEUE_ENTRY_BYTES + QUEUE_ENTRY_POSITION_AT) + 1)
            horizon = min(horizon, behind)
        total += size // QUEUE_ENTRY_BYTES
    positions = PyBytes_FromStringAndSize(NULL, total * 8)
    sizes = PyBytes_FromStringAndSize(NULL, total * 4)
    ids = PyBytes_FromStringAndSize(NULL, total * 4)
    extents = PyBytes_FromStringAndSize(NULL, total * 16)
    answer.positions = <int64_t *>PyBytes_AS_STRING(positions)
    answer.sizes = <int32_t *>PyBytes_AS_STRING(sizes)
    answer.queue_ids = <int32_t *>PyBytes_AS_STRING(ids)
    answer.extents = <int64_t *>PyBytes_AS_STRING(extents)
    answer.records = answer.extent_count = 0
    with nogil:
        for number in range(count // 2, -1, -1):
            _sift_down(heap, count, number)
        _merge(heap, count, horizon, bytes_max, &answer)
    taken = [0] * count
    for number in range(count):
        taken[heap[number].number] = (heap[number].next - heap[number].begin) // QUEUE_ENTRY_BYTES
    assert 0 <= answer.records <= total, f"{answer.records} of {total} records"
    return (
        taken,
        positions[:answer.records * 8],
        sizes[:answer.records * 4],
        ids[:answer.records * 4],
        extents[:answer.extent_count * 16],
    )


cdef void _merge(Queue *heap, Py_ssize_t live, int64_t horizon, int64_t bytes_max, Answer *answer) noexcept nogil:
    cdef int64_t total = 0, end = -1
    cdef int32_t size
    cdef Queue finished
    while live and heap[0].position < horizon:
        size = <int32_t>get32(heap[0].next + QUEUE_ENTRY_SIZE_AT)
        total += size
        if total > bytes_max and answer.records:
            return
        answer.positions[answer.records] = heap[0].position
        answer.sizes[answer.records] = size
        answer.queue_ids[answer.records] = heap[0].queue_id
        answer.records += 1
        if heap[0].position != end or answer.records == 1:
            answer.extents[2 * answer.extent_count] = heap[0].position
            answer.extent_count += 1
        end = <int64_t>(<uint64_t>heap[0].position + <uint64_t>size)
        answer.extents[2 * answer.extent_count - 1] = end
        heap[0].next += QUEUE_ENTRY_BYTES
        if heap[0].next == heap[0].end:
            live -= 1
            finished = heap[0]
            heap[0] = heap[live]
            heap[live] = finished
        else:
            heap[0].position = <int64_t>get64(heap[0].next + QUEUE_ENTRY_POSITION_AT)
        _sift_down(heap, live, 0)


cdef void _sift_down(Queue *heap, Py_ssize_t live, Py_ssize_t at) noexcept nogil:
    """Restore that no queue comes before the one above it, if only the one at ``at`` may."""
    cdef Py_ssize_t below
    cdef Queue moved
    if at >= live:
        return
    moved = heap[at]
    while True:
        below = 2 * at + 1
        if below >= live:
            break
        if below + 1 < live and heap[below + 1].position < heap[below].position:
            below += 1
        if moved.position <= heap[below].position:
            break
        heap[at] = heap[below]
        at = below
    heap[at] = moved
