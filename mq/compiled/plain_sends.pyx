# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Plain sends, compiled: from a received chunk to records of an entry and replies, without an object per message.

A send is *plain* if it is a SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE request (codes 310 and 320) in compact JSON and
ASCII, to an open topic and one of its queues, whose messages have unique keys and no property that asks for anything
but being stored. `CompiledReceiver` stops at the first frame that is anything else, or that is malformed:
`mq.protocol.incoming.chunks.decode_chunk` and `mq.broker.produce.send.Sends` then handle that frame and all behind
it. The reference is `mq.broker.produce.send_receiver.PythonReceiver`: for every chunk the records, queue entries and
replies are the same bytes with and without this module.

The included files are parts of this module, each with a subject and a reference of its own; each uses those before it.
So the C compiler sees one file, and can inline what it likes.

Memory safety: every read of the chunk goes through a cursor that is compared with the end of its frame first; every
write goes to a buffer whose size was computed from lengths that were checked before.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

include "constants.pxi"  # what Python defines

cdef struct Send:
    # A message. Its places are within the records of its block.
    uint32_t record_at
    uint32_t size
    uint32_t key_at
    uint32_t key_size
    int64_t tag_code
    uint16_t queue  # where its tail is among those of the block

cdef struct Request:
    uint32_t first  # of its messages
    uint32_t count
    int32_t opaque
    bint oneway
    bint is_batch
    int32_t producer  # where it is among those of the block; -1 without sequence numbers
    int64_t number  # of its first message

include "compiled_from.pxi"  # COMPILED_FROM
include "big_endian.pxi"  # put32, put64, get32, get64
include "crc32.pxi"  # crc32
include "json_values.pxi"  # Text, read_string, read_integer, unescape
include "send_header.pxi"  # SendHeader, read_send_header
include "send_replies.pxi"  # _ReplyTemplate, write_decimal

cdef class PlainSends
cdef class SendBlock

include "sequence_numbers.pxi"  # read_sequence_number, write_mark, Numbers, _NumbersOfBlock, add_sequenced
include "message_properties.pxi"  # KeyAndTags, find_key_and_tags
include "batched_messages.pxi"  # BatchedMessage, read_batched_message, write_shared_properties
include "signatures.pxi"  # SignatureCheck
include "send_block.pxi"  # SendBlock


cdef struct Filled:
    # What a block has so far.
    Py_ssize_t nbytes  # of records
    Py_ssize_t messages
    Py_ssize_t requests


cdef class PlainSends:
    """Takes plain sends from received chunks, see `CompiledReceiver`, and writes their records into a block."""

    cdef dict writable
    cdef object tag_codes
    cdef bytes suffix
    cdef bytes store_host
    cdef _ReplyTemplate template
    cdef int64_t body_bytes_max
    cdef Py_ssize_t block_bytes_max
    cdef object give_back
    cdef Py_ssize_t built_messages  # of all blocks so far
    # The block that is being filled.
    cdef uint8_t *records
    cdef Send[BLOCK_MESSAGES_MAX] sends
    cdef Request[BLOCK_MESSAGES_MAX] requests
    cdef list block_tails
    cdef dict tail_numbers  # where a tail is in block_tails
    # What the batch adds to each of its messages.
    cdef uint8_t *shared
    cdef SignatureCheck signature_check
    cdef _NumbersOfBlock numbered
    # The topic that was seen last: the next message nearly always has the same one.
    cdef const uint8_t *topic_at
    cdef uint32_t topic_size
    cdef bytes topic_field
    cdef list tails
    cdef Py_ssize_t queue_count
    cdef int32_t[QUEUES_MAX] known_numbers  # by queue id: where its tail is in block_tails, plus 1
    # The tags that were seen last.
    cdef const uint8_t *tags_at
    cdef uint32_t tags_size
    cdef int64_t tags_code

    def __cinit__(self):
        self.records = <uint8_t *>PyMem_Malloc(BLOCK_BYTES_MAX)
        self.shared = <uint8_t *>PyMem_Malloc(PROPERTIES_BYTES_MAX)
        if self.records == NULL or self.shared == NULL:
            raise MemoryError

    def __init__(
        self,
        *,
        dict writable not None,
        tag_codes,
        bytes suffix not None,
        bytes store_host not None,
        reply_parts,
        bytes numbered_batch not None,
        known,
        int64_t body_bytes_max,
        Py_ssize_t block_bytes_max,
        bytes broker_name not None,
        give_back,
    ):
        assert len(store_host) == HOST_BYTES, f"a store host of {len(store_host)} bytes"
        assert body_bytes_max > 0, f"bodies of {body_bytes_max} bytes at most"
        assert block_bytes_max > 0, f"blocks of {block_bytes_max} bytes at most"
        assert len(suffix) <= SENT_PROPERTIES_BYTES_MAX, f"a suffix of {len(suffix)} bytes"
        self.writable = writable
        self.tag_codes = tag_codes
        self.suffix = suffix
        self.store_host = store_host
        self.template = _ReplyTemplate(reply_parts, numbered_batch, store_host)
        self.numbered = _NumbersOfBlock(known)
        self.give_back = give_back
        self.built_messages = 0
        self.block_bytes_max = min(block_bytes_max, <Py_ssize_t>BLOCK_BYTES_MAX)
        # A body that fits no block ends it before its signature is checked: the reference does that.
        self.body_bytes_max = min(body_bytes_max, <int64_t>self.block_bytes_max)
        self.signature_check = SignatureCheck(broker_name)

    def __dealloc__(self):
        PyMem_Free(self.records)
        PyMem_Free(self.shared)

    cdef _begin_block(self, Filled *filled):
        filled.nbytes = filled.messages = filled.requests = 0
        self.block_tails = []
        self.tail_numbers = {}
        self.tails = None
        self.queue_count = 0
        self.numbered.begin()

    cdef Py_ssize_t _fill(
        self, Filled *filled, const uint8_t *data, Py_ssize_t size, int64_t nbytes_max, const char *host, key_of
    ) except -1:
        """Add the plain sends at the start of a chunk to the block, while it has no more than ``nbytes_max`` bytes.

        Returns how many bytes of the chunk they take.
        """
        cdef Py_ssize_t at = 0, first = filled.messages
        cdef uint32_t length, header_bytes, body_bytes
        cdef const uint8_t *header_at
        cdef SendHeader header
        self.signature_check.forget_key()
        # A request that was not taken may have left them here, in records that the next sender's overwrite.
        self.tags_at = NULL
        while size - at >= PREFIX_BYTES and filled.messages < BLOCK_MESSAGES_MAX and filled.nbytes <= nbytes_max:
            # A header in JSON that fits the frame, in a frame that is not too large: as in decode_chunk. The first byte
            # of the second word, zero for JSON, is how the header is encoded.
            length, header_bytes = get32(data + at), get32(data + at + 4)
            if header_bytes > HEADER_BYTES_MAX or length > FRAME_BYTES_MAX or length < 4 or header_bytes > length - 4:
                break
            if length > <uint32_t>(size - at - 4):
                break
            header_at = data + at + PREFIX_BYTES
            body_bytes = length - 4 - header_bytes
            if body_bytes > self.body_bytes_max or not read_send_header(header_at, header_at + header_bytes, &header):
                break
            if not self._find_topic(&header) or header.queue_id >= self.queue_count:
                break
            if not self._add_request(filled, &header, header_at + header_bytes, body_bytes, key_of):
                break
            at += 4 + length
        self._write_born_host(filled, first, host)
        return at

    cdef SendBlock _block(self, Filled *filled, list senders):
        assert 0 < filled.requests <= filled.messages <= BLOCK_MESSAGES_MAX, (
            f"{filled.requests} requests with {filled.messages} messages; maximum: {<int>BLOCK_MESSAGES_MAX}"
        )
        assert 0 < filled.nbytes <= self.block_bytes_max, (
            f"{filled.messages} messages have {filled.nbytes} bytes; maximum: {self.block_bytes_max}"
        )
        assert senders, f"{filled.requests} requests without a sender"
        cdef SendBlock block = SendBlock.__new__(SendBlock)
        block.sends = <Send *>PyMem_Malloc(filled.messages * sizeof(Send))
        block.requests = <Request *>PyMem_Malloc(filled.requests * sizeof(Request))
        if block.sends == NULL or block.requests == NULL:
            raise MemoryError
        memcpy(block.sends, self.sends, filled.messages * sizeof(Send))
        memcpy(block.requests, self.requests, filled.requests * sizeof(Request))
        block.engine = self
        block.senders = senders
        block.sender_count = len(senders)
        block.nbytes = filled.nbytes
        block.count = filled.messages
        block.request_count = filled.requests
        block.records = PyBytes_FromStringAndSize(<char *>self.records, filled.nbytes)
        block.tails = self.block_tails
        block.template = self.template
        if self.numbered.names is not None:
            self.numbered.finish(block)
        return block

    cdef bint _find_topic(self, SendHeader *header) except -1:
        """Look up the tails of the request's topic, unless it is that of the request before; false if it has none."""
        cdef Py_ssize_t n
        if self.tails is not None and header.topic.size == self.topic_size and memcmp(
            header.topic.at, self.topic_at, self.topic_size
        ) == 0:
            return True
        self.tails = None
        self.signature_check.forget_key()
        if header.topic.size == 0 or header.topic.size > TOPIC_FIELD_BYTES_MAX:
            return False
        tails = self.writable.get(header.topic.at[: header.topic.size].decode())
        if not tails:
            return False
        self.tails = tails
        self.topic_field = self.tails[0].topic_field
        self.topic_at, self.topic_size = header.topic.at, header.topic.size
        self.queue_count = min(<Py_ssize_t>QUEUES_MAX, len(self.tails))
        for n in range(self.queue_count):
            self.known_numbers[n] = 0
        return True

    cdef int _queue(self, int64_t queue_id) except -2:
        """The number of the queue's tail among those of the block; -1 if there are too many."""
        if self.known_numbers[queue_id]:
            return self.known_numbers[queue_id] - 1
        tail = self.tails[queue_id]
        number = self.tail_numbers.get(tail)
        if number is None:
            number = len(self.block_tails)
            if number == QUEUES_MAX:
                return -1
            self.tail_numbers[tail] = number
            self.block_tails.append(tail)
        self.known_numbers[queue_id] = <int32_t>number + 1
        return <int32_t>number

    cdef int64_t _tag_code(self, const uint8_t *at, uint32_t size) except? -1:
        if size == 0:
            return 0
        if self.tags_at == NULL or size != self.tags_size or memcmp(at, self.tags_at, size):
            self.tags_code = self.tag_codes[(<const char *>at)[:size]]
            self.tags_at, self.tags_size = at, size
        return self.tags_code

    cdef bint _add_request(
        self, Filled *filled, SendHeader *header, const uint8_t *body, Py_ssize_t body_bytes, key_of
    ) except -1:
        """Add a request's messages to the block; false, and the block is as before, if it is not plain."""
        cdef Py_ssize_t count
        cdef Numbers numbers
        cdef bint is_batch = header.code == SEND_BATCH_MESSAGE or header.is_batch
        numbers.producer = -1
        if key_of is not None and not self.signature_check.is_allowed(key_of, header, body, body_bytes):
            return False
        if is_batch:
            count = self._add_batch(filled, header, body, body_bytes, &numbers)
        else:
            count = self._add_message(filled, header, body, body_bytes, &numbers)
        cdef Request *request = &self.requests[filled.requests]
        if count == 0:
            return False
        request.first = <uint32_t>filled.messages
        request.count = <uint32_t>count
        request.opaque = <int32_t>header.opaque
        request.oneway = header.request_flag == ONEWAY_FLAG
        request.is_batch = is_batch
        request.producer = numbers.producer
        if numbers.producer >= 0:
            request.number = numbers.first
            self.numbered.add(&numbers, count)
        filled.requests += 1
        filled.messages += count
        return True

    cdef bint _admit(
        self, SendHeader *header, const uint8_t *name, uint32_t size, int64_t first, Numbers *numbers
    ) except -1:
        """Whether a send with this first number is plain.

        It is certainly new then, its sender wants an answer, and it goes to no topic of consumers' copies.
        """
        if header.request_flag == ONEWAY_FLAG or header.topic.at[0] == b'%':
            return False
        return self.numbered.admit(name, size, first, numbers)

    cdef Py_ssize_t _add_message(
        self, Filled *filled, SendHeader *header, const uint8_t *body, Py_ssize_t body_bytes, Numbers *numbers
    ) except -1:
        """Write the record of a single message and return 1; 0 if it is not plain."""
        cdef Py_ssize_t suffix_bytes = PyBytes_GET_SIZE(self.suffix)
        # Properties grow by a separator and the suffix; JSON never has fewer bytes than what it stands for.
        cdef Py_ssize_t most = FIXED_BYTES + body_bytes + self.topic_size + header.properties.size + 1 + suffix_bytes
        if filled.nbytes + most > self.block_bytes_max:
            return 0
        cdef uint8_t *text = self.records + filled.nbytes + FIXED_BYTES + body_bytes + self.topic_size
        cdef int64_t text_bytes = unescape(header.properties, text)
        if text_bytes <= 0:
            return 0
        if text[text_bytes - 1] != VALUE_END:
            text[text_bytes] = VALUE_END
            text_bytes += 1
        cdef KeyAndTags found
        if not find_key_and_tags(text, <uint32_t>text_bytes, &found):
            return 0
        if text_bytes + suffix_bytes > SENT_PROPERTIES_BYTES_MAX:
            return 0
        if found.has_number and not self._admit(
            header, text + found.producer_at, found.producer_size, found.number, numbers
        ):
            return 0
        cdef int64_t tag_code = self._tag_code(text + found.tags_at, found.tags_size)
        cdef int queue = self._queue(header.queue_id)
        if queue < 0:
            return 0
        memcpy(text + text_bytes, PyBytes_AS_STRING(self.suffix), suffix_bytes)
        cdef Send *send = &self.sends[filled.messages]
        send.queue = <uint16_t>queue
        send.tag_code = tag_code
        send.key_size = found.key_size
        send.key_at = <uint32_t>(text + found.key_at - self.records)
        self._write_record(filled.nbytes, send, header, header.flag, body, body_bytes, text_bytes + suffix_bytes)
        filled.nbytes += send.size
        return 1

    cdef Py_ssize_t _add_batch(
        self, Filled *filled, SendHeader *header, const uint8_t *body, Py_ssize_t body_bytes, Numbers *numbers
    ) except -1:
        """Write the records of a batch and return how many; 0 if it is not plain."""
        cdef Py_ssize_t suffix_bytes = PyBytes_GET_SIZE(self.suffix), more_bytes = suffix_bytes, mark_bytes = 0
        cdef uint8_t[MARK_BYTES_MAX] mark
        cdef BatchNumbers given
        cdef int64_t shared_bytes = write_shared_properties(header.properties, self.shared, &given)
        cdef Py_ssize_t records_end_max = min(self.block_bytes_max, filled.nbytes + self.body_bytes_max)
        cdef Py_ssize_t at = 0, used = filled.nbytes, count = 0, own_bytes, text_at, text_bytes, n
        cdef int queue
        cdef BatchedMessage message
        cdef KeyAndTags found
        cdef uint8_t *text
        cdef Send *send
        if shared_bytes < 0 or body_bytes == 0:  # an empty one would leave its queue in the block, without an entry
            return 0
        if given.is_numbered:
            count = count_batched(body, body_bytes)
            if count == 0 or given.first > SEQUENCE_MAX - (count - 1):
                return 0
            if not self._admit(header, given.name, given.name_size, given.first, numbers):
                return 0
            mark_bytes = write_mark(mark, given.name, given.name_size, given.first, count)
            more_bytes += mark_bytes
            count = 0
        while at < body_bytes:
            if filled.messages + count == BLOCK_MESSAGES_MAX:
                return 0
            if not read_batched_message(body + at, body_bytes - at, &message):
                return 0
            own_bytes = message.properties_bytes
            # Properties grow by a separator, those of the batch, the suffix, and the first ones by the numbers.
            text_at = used + FIXED_BYTES + message.body_bytes + self.topic_size
            if text_at + own_bytes + 1 + shared_bytes + more_bytes > records_end_max:
                return 0
            text = self.records + text_at
            memcpy(text, message.properties, own_bytes)
            if text[own_bytes - 1] != VALUE_END:
                text[own_bytes] = VALUE_END
                own_bytes += 1
            memcpy(text + own_bytes, self.shared, shared_bytes)
            text_bytes = own_bytes + shared_bytes
            if text_bytes + more_bytes > SENT_PROPERTIES_BYTES_MAX:
                return 0
            # The key must be the message's own; a tag may be that of the batch.
            if not find_key_and_tags(text, <uint32_t>text_bytes, &found) or found.key_at >= own_bytes:
                return 0
            if found.has_number:
                return 0
            memcpy(text + text_bytes, PyBytes_AS_STRING(self.suffix), suffix_bytes)
            if mark_bytes:
                memcpy(text + text_bytes + suffix_bytes, mark, mark_bytes)
            send = &self.sends[filled.messages + count]
            send.tag_code = self._tag_code(text + found.tags_at, found.tags_size)
            send.key_size = found.key_size
            send.key_at = <uint32_t>(text + found.key_at - self.records)
            self._write_record(
                used, send, header, message.flag, message.body, message.body_bytes, text_bytes + more_bytes
            )
            more_bytes, mark_bytes = suffix_bytes, 0
            used += send.size
            count += 1
            at += message.size
        queue = self._queue(header.queue_id)
        if queue < 0:
            return 0
        for n in range(count):
            self.sends[filled.messages + n].queue = <uint16_t>queue
        filled.nbytes = used
        return count

    cdef void _write_record(
        self,
        Py_ssize_t at,
        Send *send,
        SendHeader *header,
        int64_t flag,
        const uint8_t *body,
        Py_ssize_t body_bytes,
        Py_ssize_t properties_bytes,
    ) noexcept:
        """Write a record around its properties, which are in place: all but sender, offsets and store time."""
        cdef uint8_t *record = self.records + at
        cdef uint8_t *topic = record + HEAD_BYTES + body_bytes
        cdef uint8_t *length = topic + 1 + self.topic_size
        send.record_at = <uint32_t>at
        send.size = <uint32_t>(FIXED_BYTES + body_bytes + self.topic_size + properties_bytes)
        put32(record, send.size)
        put32(record + MAGIC_AT, MAGIC_V1)
        put32(record + CHECKSUM_AT, crc32(body, body_bytes) & CRC_MASK)
        put32(record + QUEUE_ID_AT, <uint32_t>header.queue_id)
        put32(record + FLAG_AT, <uint32_t><int32_t>flag)
        put32(record + SYS_FLAG_AT, <uint32_t><int32_t>header.sys_flag & CLIENT_FLAGS)
        put64(record + BORN_MS_AT, <uint64_t>header.born_ms)
        memcpy(record + STORE_HOST_AT, PyBytes_AS_STRING(self.store_host), HOST_BYTES)
        put32(record + RECONSUME_TIMES_AT, <uint32_t><int32_t>header.reconsume_times)
        put64(record + PREPARED_OFFSET_AT, 0)
        put32(record + BODY_LENGTH_AT, <uint32_t>body_bytes)
        memcpy(record + HEAD_BYTES, body, body_bytes)
        memcpy(topic, PyBytes_AS_STRING(self.topic_field), 1 + self.topic_size)
        length[0] = <uint8_t>(properties_bytes >> 8)
        length[1] = <uint8_t>(properties_bytes & 0xFF)

    cdef void _write_born_host(self, Filled *filled, Py_ssize_t first, const char *host) noexcept:
        """Write the sender's address into the records from that of message ``first`` on."""
        cdef Py_ssize_t n
        for n in range(first, filled.messages):
            memcpy(self.records + self.sends[n].record_at + BORN_HOST_AT, host, HOST_BYTES)


include "receiver.pxi"  # CompiledReceiver
