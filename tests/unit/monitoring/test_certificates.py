"""When a certificate is valid, as `mq.x509` reads it; which files a server takes, and what it warns of."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

import pytest
import structlog
import trustme
from structlog.testing import capture_logs

from mq.certificate import Certificate, CertificateUnusable
from mq.monitoring.families import render
from mq.monitoring.process import certificate_families
from mq.x509 import validity
from tests.support.steps import result_of

NOW = dt.datetime(2031, 6, 1, tzinfo=dt.UTC)
NOW_MS = round(NOW.timestamp() * 1000)
DAY = dt.timedelta(days=1)


def issued(expires: dt.datetime) -> bytes:
    pem = trustme.CA().issue_cert("host", not_after=expires).cert_chain_pems[0].bytes()
    return ssl.PEM_cert_to_DER_cert(pem.decode())


@pytest.mark.parametrize("year", [2026, 2049, 2050, 2999])
def test_end_of_the_validity(year: int) -> None:
    """From 2050 on the time has another form."""
    expires = dt.datetime(year, 12, 3, 4, 5, 6, tzinfo=dt.UTC)
    assert validity(issued(expires)).ends == expires


def test_bytes_that_are_not_a_certificate_raise_a_value_error() -> None:
    der = issued(dt.datetime(2030, 1, 1, tzinfo=dt.UTC))
    for data in (*(der[:end] for end in range(120)), b"\x30\x84\xff\xff\xff\xff", bytes(300), b"\x30\x80" * 50):
        with pytest.raises(ValueError, match=r"."):
            validity(data)


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
    certificate = Certificate(chain, key, None, structlog.get_logger("test"), lambda: NOW_MS)
    assert shown() == dt.datetime(2040, 1, 1, tzinfo=dt.UTC)
    write(2041)
    certificate.refresh()
    assert shown() == dt.datetime(2041, 1, 1, tzinfo=dt.UTC)
    chain.write_text("nothing")
    certificate.refresh()
    assert shown() == dt.datetime(2041, 1, 1, tzinfo=dt.UTC)
    with pytest.raises(CertificateUnusable, match=r"chain\.pem"):
        Certificate(chain, key, None, structlog.get_logger("test"), lambda: NOW_MS)


def test_server_without_a_certificate_has_no_sample() -> None:
    [family] = certificate_families({}, None)
    assert family.samples == []


class Server:
    """A certificate in use, its files, and the time."""

    def __init__(self, directory: Path, begins: dt.timedelta = -DAY, ends: dt.timedelta = 365 * DAY) -> None:
        self.ca = trustme.CA()
        self.now = NOW
        self.chain, self.key, self.clients_ca = (directory / f"{name}.pem" for name in ("chain", "key", "clients"))
        self.ca.cert_pem.write_to_path(str(self.clients_ca))
        self.write(begins, ends)
        self.certificate = Certificate(
            self.chain,
            self.key,
            self.clients_ca,
            structlog.get_logger("test"),
            lambda: round(self.now.timestamp() * 1000),
        )

    def write(self, begins: dt.timedelta, ends: dt.timedelta, ca: trustme.CA | None = None) -> None:
        made = (ca or self.ca).issue_cert("host", not_before=self.now + begins, not_after=self.now + ends)
        self.chain.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(self.key))

    def refresh(self) -> tuple[bool, list[str]]:
        """Whether the files were taken, and what was logged."""
        before = self.certificate.for_clients()
        with capture_logs() as logs:
            self.certificate.refresh()
        return self.certificate.for_clients() != before, [f"{line['event']} {line['log_level']}" for line in logs]


UNUSABLE = "certificate_unusable error"


@pytest.mark.parametrize(("begins", "ends"), [(-10 * DAY, -DAY), (DAY, 10 * DAY)])
def test_certificates_of_another_time_are_refused(tmp_path: Path, begins: dt.timedelta, ends: dt.timedelta) -> None:
    server = Server(tmp_path)
    server.write(begins, ends)
    assert server.refresh() == (False, [UNUSABLE])
    assert server.refresh() == (False, [])
    server.write(-DAY, 100 * DAY)
    assert server.refresh() == (True, ["certificate_read info"])


def test_certificate_is_taken_when_its_time_begins(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.write(DAY, 100 * DAY)
    assert server.refresh() == (False, [UNUSABLE])
    server.now += DAY
    assert server.refresh() == (True, ["certificate_read info"])


def test_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path)
    key = server.key.read_bytes()
    server.write(-DAY, 200 * DAY)
    server.key.write_bytes(key)
    assert server.refresh() == (False, [UNUSABLE])


def test_expired_intermediate_is_refused(tmp_path: Path) -> None:
    server = Server(tmp_path)
    expired = server.ca.issue_cert("intermediate", not_before=NOW - 9 * DAY, not_after=NOW - DAY)
    server.write(-DAY, 200 * DAY)
    with server.chain.open("ab") as chain:
        chain.write(expired.cert_chain_pems[0].bytes())
    assert server.refresh() == (False, [UNUSABLE])


def test_outgoing_connections_do_not_reread_certificate_files(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.chain.write_text("cut")
    assert server.refresh() == (False, [UNUSABLE])
    assert server.certificate.peer_context() is not None


def test_expired_client_authorities_are_refused(tmp_path: Path) -> None:
    server = Server(tmp_path)
    made = server.ca.issue_cert("any", not_before=NOW - 9 * DAY, not_after=NOW - DAY)
    server.clients_ca.write_bytes(made.cert_chain_pems[0].bytes())
    assert server.refresh() == (False, [UNUSABLE])


def test_expiring_certificate_is_logged_each_day(tmp_path: Path) -> None:
    server = Server(tmp_path)
    assert server.refresh() == (False, [])
    server.now += 352 * DAY
    assert server.refresh() == (False, ["certificate_expires_soon warning"])
    server.now += DAY / 2
    assert server.refresh() == (False, [])
    server.now += DAY / 2
    assert server.refresh() == (False, ["certificate_expires_soon warning"])
    server.now += 20 * DAY
    assert server.refresh() == (False, ["certificate_not_valid error"])
    server.write(-9 * DAY, -DAY)
    assert server.refresh() == (False, [UNUSABLE])
    server.write(-DAY, 100 * DAY)
    assert server.refresh() == (True, ["certificate_read info"])
    assert server.refresh() == (False, [])


@pytest.mark.parametrize(("begins", "ends"), [(-10 * DAY, -DAY), (DAY, 10 * DAY)])
def test_start_without_a_valid_certificate_is_an_error_event(
    tmp_path: Path, begins: dt.timedelta, ends: dt.timedelta
) -> None:
    with capture_logs() as logs:
        Server(tmp_path, begins, ends)
    assert [(line["event"], line["log_level"]) for line in logs] == [("certificate_not_valid", "error")]
