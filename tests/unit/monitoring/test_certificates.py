"""When a certificate expires, as `mq.x509` reads it and metrics tell it."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import pytest
import structlog
import trustme

from mq.monitoring.families import render
from mq.monitoring.process import certificate_families
from mq.tls import Certificate, CertificateUnusable
from mq.x509 import valid_until
from tests.support.steps import result_of


def issued(expires: dt.datetime) -> bytes:
    pem = trustme.CA().issue_cert("host", not_after=expires).cert_chain_pems[0].bytes()
    return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.mark.parametrize("year", [2026, 2049, 2050, 2999])
def test_end_of_the_validity(year: int) -> None:
    """From 2050 on the time has another form."""
    expires = dt.datetime(year, 12, 3, 4, 5, 6, tzinfo=dt.UTC)
    assert valid_until(issued(expires)) == expires


def test_what_is_no_certificate_is_a_value_error() -> None:
    der = issued(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    for data in (*(der[:end] for end in range(120)), b"\x30\x84\xff\xff\xff\xff", bytes(300), b"\x30\x80" * 50):
        with pytest.raises(ValueError, match=r"."):
            valid_until(data)


def test_metric_follows_the_files(tmp_path: Path) -> None:
    ca = trustme.CA()
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"

    def write(year: int) -> None:
        made = ca.issue_cert("host", not_after=dt.datetime(year, 1, 1, tzinfo=dt.UTC))
        chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(key))

    def shown() -> dt.datetime:
        text = result_of(render([*certificate_families({"node": "n0"}, certificate.valid_until)], ""))[1].decode()
        return dt.datetime.fromtimestamp(float(text.split()[-1]), dt.UTC)

    write(2040)
    certificate = Certificate(chain, key, None, structlog.get_logger("test"))
    assert shown() == dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
    write(2041)
    certificate.refresh()
    assert shown() == dt.datetime(2041, 1, 1, tzinfo=dt.UTC)
    chain.write_text("nothing")
    certificate.refresh()
    assert shown() == dt.datetime(2041, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(CertificateUnusable, match=r"chain\.pem"):
        Certificate(chain, key, None, structlog.get_logger("test"))


def test_server_without_a_certificate_has_no_sample() -> None:
    [family] = certificate_families({}, None)
    assert family.samples == []
