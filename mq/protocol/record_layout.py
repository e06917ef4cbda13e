"""The positions of the fields in a stored record; `mq.protocol.messages.records` reads and writes whole records.

::

      0 size:4  4 magic:4  8 body crc:4  12 queue id:4  16 flag:4  20 queue offset:8  28 physical offset:8
     36 system flag:4  40 born ms:8  48 born host:8|20  .. store ms:8  .. store host:8|20
     .. reconsume times:4  .. prepared offset:8  .. body length:4, body  .. topic length:1|2, topic
     .. properties length:2, properties

Hosts take 20 bytes if the system flag says IPv6. The topic length takes 2 bytes in version 2, which has its own magic
number. The checksum covers the body as stored, compressed or not.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC_V1: Final = -626843481
MAGIC_V2: Final = -626843477

FIXED: Final = 91
"""Size of a version 1 record with IPv4 hosts, without body, topic and properties."""

IPV4_HOST_BYTES: Final = 8
IPV6_HOST_BYTES: Final = 20

HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
"""Bytes 0 to 87 of a record with IPv4 hosts: everything up to and including the body length."""

SYS_FLAG_AT: Final = 36
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
ANY_HOST_IPV6: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6

_HEAD_V6: Final = {
    BORN_HOST_IPV6: struct.Struct(">iiiiiqqiq20sq8siqi"),
    STORE_HOST_IPV6: struct.Struct(">iiiiiqqiq8sq20siqi"),
    ANY_HOST_IPV6: struct.Struct(">iiiiiqqiq20sq20siqi"),
}


def head_of(sys_flag: int) -> struct.Struct:
    """Return the layout of a record's head for its system flag, up to and including the body length."""
    return HEAD if not sys_flag & ANY_HOST_IPV6 else _HEAD_V6[sys_flag & ANY_HOST_IPV6]
