"""Makes a self-signed certificate, and prints it with its key.

``python -m mq.proxy.grpc.self_signed FROM UNTIL NAME...``, with times in the form of ISO 8601. It is a program, since
`cryptography` takes some MiB of memory, which a proxy would keep for a certificate that it makes once.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import sys
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def self_signed(names: Iterable[str], begin: dt.datetime, end: dt.datetime) -> bytes:
    """Make a key and its certificate for these host names and addresses, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "raftmq proxy")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # A client whose clock is a little behind accepts it, too.
        .not_valid_before(begin - dt.timedelta(days=1))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(serialization.Encoding.PEM)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


if __name__ == "__main__":
    begin, end = (dt.datetime.fromisoformat(text) for text in sys.argv[1:3])
    sys.stdout.buffer.write(self_signed(sys.argv[3:], begin, end))
