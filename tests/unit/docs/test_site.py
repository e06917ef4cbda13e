"""The page of the site that is made from the requests of the protocol."""

from __future__ import annotations

import runpy
from pathlib import Path

from mq.protocol.codes import RequestCode
from mq.protocol.incoming.server_decoding import REQUEST_CLASSES

SITE = Path(__file__).parents[3] / "docs" / "site"


def test_site_lists_each_request_with_its_header() -> None:
    lines = list(runpy.run_path(str(SITE / "wire_requests.py"))["page"]())
    rows = {line.split("|")[1].strip(): line for line in lines if line.count("|") == 4 and "`" in line}
    assert len(rows) == len(REQUEST_CLASSES)
    pull = rows[str(int(RequestCode.PULL_MESSAGE))]
    assert "`PULL_MESSAGE`: messages of one queue from an offset on (`pull`)" in pull
    assert "`queueOffset` int" in pull
    assert "*`maxMsgBytes` int*" in pull, "it may be left out"
