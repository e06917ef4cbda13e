"""Where the fields of a record are; the reference is `mq.protocol.records`.

A record has a head, the body, a byte with the length of the topic, the topic, two bytes with the length of the
properties, and the properties. This is the layout with IPv4 addresses and the first magic number.
"""

cdef enum:
    CHECKSUM_AT = 8  # of the body
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
    HEAD_BYTES = 88  # up to the body
    FIXED_BYTES = 91  # without body, topic and properties
    HOST_BYTES = 8
    IPV6_FLAGS = 0x30

cdef enum:
    MAGIC_AT = 4
    MAGIC_V1 = 0xDAA320A7
