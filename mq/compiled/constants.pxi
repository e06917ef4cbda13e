"""Numbers that are defined in Python; written by ``python -m mq.compiled.constants``. Do not edit."""

cdef enum:  # where the fields of a record are, for IPv4 addresses and the first magic number
    SIZE_AT = 0
    MAGIC_AT = 4
    CHECKSUM_AT = 8
    QUEUE_ID_AT = 12
    FLAG_AT = 16
    QUEUE_OFFSET_AT = 20
    PHYSICAL_OFFSET_AT = 28
    SYS_FLAG_AT = 36
    BORN_MS_AT = 40
    BORN_HOST_AT = 48
    STORE_MS_AT = 56
    STORE_HOST_AT = 64
    RECONSUME_TIMES_AT = 72
    PREPARED_OFFSET_AT = 76
    BODY_LENGTH_AT = 84
    HEAD_BYTES = 88
    FIXED_BYTES = 91
    HOST_BYTES = 8
    MAGIC_V1 = 3668123815
    CRC_MASK = 2147483647
    IPV6_FLAGS = 48
    CLIENT_FLAGS = -1048637

cdef enum:  # an entry of a consume queue
    QUEUE_ENTRY_POSITION_AT = 0
    QUEUE_ENTRY_SIZE_AT = 8
    QUEUE_ENTRY_TAG_CODE_AT = 12
    QUEUE_ENTRY_BYTES = 20

cdef enum:  # a message within a batch
    BATCHED_SIZE_AT = 0
    BATCHED_MAGIC_AT = 4
    BATCHED_CHECKSUM_AT = 8
    BATCHED_FLAG_AT = 12
    BATCHED_BODY_LENGTH_AT = 16
    BATCHED_HEAD_BYTES = 20
    BATCHED_FIXED_BYTES = 22

cdef enum:  # frames and headers
    PREFIX_BYTES = 8
    FRAME_BYTES_MAX = 16777216
    HEADER_BYTES_MAX = 262144
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    RESPONSE_FLAG = 1
    ONEWAY_FLAG = 2
    INT32_MIN = -2147483648
    INT32_MAX = 2147483647

cdef enum:  # the one-letter fields of a send
    LETTERS = 14
    PROPERTIES_LETTER = 8
    BROKER_NAME_LETTER = 13
    REQUIRED_LETTERS = 255

cdef enum:  # limits
    PROPERTIES_BYTES_MAX = 32767
    SENT_PROPERTIES_BYTES_MAX = 29696
    VALUE_END = 2
    TOPIC_FIELD_BYTES_MAX = 255
    BLOCK_BYTES_MAX = 131072
    BLOCK_MESSAGES_MAX = 1024
    EPOLLIN = 1
    RECEIVE_BYTES = 65536
    SENDERS_MAX = 512
    KEY_BYTES = 64
    LENGTHS_MARK_BYTES = 9
    PRODUCER_ID_LENGTH_MAX = 64
    SEQUENCE_MAX = 9223372036854775807
    SEQUENCED_ROW_BYTES = 26
    SEQUENCED_HAS_LAST = 32768
