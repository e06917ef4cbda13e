"""The compiled log writer syncs what it writes before it reports it, as the system sees it.

It makes its calls without Python, so they are recorded below it, by a library that is loaded in front of the C library,
and which can also write only a part of what it is given.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mq.compiled import IS_COMPILED

pytestmark = pytest.mark.skipif(not IS_COMPILED, reason="not compiled: python -m mq.compiled")

RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static void note(const char *what, int fd, long number) {
    static int out = -1;
    if (out < 0) {
        const char *name = getenv("CALLS_FD");
        out = name == NULL ? 2 : atoi(name);
    }
    dprintf(out, "%s %d %ld\n", what, fd, number);
}

#define RECORDED(name, offset)                                                                             \
    ssize_t name(int fd, const struct iovec *pieces, int count, offset at, int flags) {                    \
        ssize_t (*real)(int, const struct iovec *, int, offset, int) = dlsym(RTLD_NEXT, #name);            \
        struct iovec part;                                                                                 \
        if (getenv("IN_PARTS") != NULL) {                                                                  \
            while (count > 1 && pieces->iov_len == 0) pieces++, count--;                                   \
            part = *pieces;                                                                                \
            if (part.iov_len > 1) part.iov_len /= 2;                                                       \
            pieces = &part;                                                                                \
            count = 1;                                                                                     \
        }                                                                                                  \
        ssize_t written = real(fd, pieces, count, at, flags);                                              \
        note(flags & RWF_DSYNC ? "synced" : "written", fd, written);                                       \
        return written;                                                                                    \
    }
RECORDED(pwritev2, off_t)
RECORDED(pwritev64v2, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (size == 8) note("report", fd, 0);
    return real(fd, data, size);
}
"""

WRITER = """
import os, sys
from pathlib import Path
from raftlog.compiled.loaded import CompiledAppendQueue
from tests.unit.segment.test_append_queue import HEADER, Home

home = Home(Path(sys.argv[1]), CompiledAppendQueue)
for number in range(5):
    home.writes.submit(home.op(b"one" * number, b"two"))
    if number % 2:
        assert not home.run()
        print(home.fd, home.done_fd, home.writes.done_ticket, len(home.content()))
expected = b"".join(HEADER + b"one" * number + HEADER + b"two" for number in range(4))
assert home.content() == expected, home.content()
"""


def test_compiled_writer_reports_only_synced_writes(tmp_path: Path) -> None:
    check(tmp_path)


def test_compiled_writer_continues_after_a_partial_write(tmp_path: Path) -> None:
    """Not even a full disk does that reliably: it takes a part, and then fails."""
    check(tmp_path, IN_PARTS="1")


def check(tmp_path: Path, **environment: str) -> None:
    (tmp_path / "recorder.c").write_text(RECORDER)
    library = tmp_path / "recorder.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "recorder.c", "-ldl"], check=True)
    calls = os.open(tmp_path / "calls", os.O_RDWR | os.O_CREAT | os.O_APPEND)
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        env={
            **os.environ,
            **environment,
            "LD_PRELOAD": str(library),
            "CALLS_FD": str(calls),
            "PYTHONPATH": os.pathsep.join(["", *sys.path]),
        },
        pass_fds=[calls],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    written = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(written) == 2
    fd, done_fd = written[0][:2]
    seen = [(what, int(number), int(size)) for what, number, size in map(str.split, _lines(tmp_path / "calls"))]
    synced = reports = 0
    for what, number, size in seen:
        if number == fd:
            assert what == "synced", f"{size} bytes of the log were written without a sync: {seen}"
            synced += size
        elif number == done_fd:
            assert what == "report"
            # Every report comes after the write that it is about.
            assert synced == written[reports][3], f"report {reports} with {synced} bytes synced: {seen}"
            reports += 1
    assert reports == 2


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
