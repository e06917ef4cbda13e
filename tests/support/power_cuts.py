"""A machine loses its power, as far as the files of a server in a process of its own show it.

A library in front of the C library (LD_PRELOAD) notes which bytes a process has written with `pwritev2`, and which of
them it has synced. When the process was killed, the others are put to zeros, as in a file that was lengthened and never
written. What is written by other calls counts as synced.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

JOURNAL: Final = "RAFTMQ_TEST_WRITES"

_RECORDER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

static int out = -1;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("RAFTMQ_TEST_WRITES");
    if (path != NULL) out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* One line in one call: threads and processes append to the same file. */
static void note(const char *what, int fd, long long at, long long size) {
    char link[40], name[1024], line[1200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t nbytes = readlink(link, name, sizeof name - 1);
    if (out < 0 || nbytes < 0) return;
    name[nbytes] = 0;
    int length = snprintf(line, sizeof line, "%s %lld %lld %s\n", what, at, size, name);
    if (write(out, line, (size_t)length) < 0) abort();
}

/* A write is noted before it begins, since the process may be killed at any time. */
#define RECORDED(name, offset)                                                                  \
    ssize_t name(int fd, const struct iovec *pieces, int count, offset at, int flags) {         \
        ssize_t (*real)(int, const struct iovec *, int, offset, int) = dlsym(RTLD_NEXT, #name); \
        long long size = 0;                                                                     \
        for (int number = 0; number < count; number++) size += (long long)pieces[number].iov_len; \
        if (!(flags & RWF_DSYNC)) note("written", fd, at, size);                                \
        ssize_t written = real(fd, pieces, count, at, flags);                                   \
        if (written >= 0 && (flags & RWF_DSYNC)) note("synced", fd, at, written);               \
        return written;                                                                         \
    }
RECORDED(pwritev2, off_t)
RECORDED(pwritev64v2, off64_t)

#define SYNC(name)                                              \
    int name(int fd) {                                          \
        int (*real)(int) = dlsym(RTLD_NEXT, #name);             \
        int failed = real(fd);                                  \
        if (!failed) note("all-synced", fd, 0, 0);              \
        return failed;                                          \
    }
SYNC(fsync)
SYNC(fdatasync)
"""


class Cut(NamedTuple):
    """What a power cut did: bytes that are lost, and bytes that were synced before by the same calls."""

    lost_bytes: int
    synced_bytes: int


def build_recorder(directory: Path) -> Path:
    """Compile the library for LD_PRELOAD; needs a C compiler."""
    source, library = directory / "recorder.c", directory / "recorder.so"
    source.write_text(_RECORDER)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def cut_power(journal: Path) -> Cut:
    """Lose what a killed process has written and not synced; the journal begins anew."""
    unsynced: dict[str, list[tuple[int, int]]] = {}
    synced = lost = 0
    for line in journal.read_text().splitlines():
        what, at, size, name = line.split(" ", 3)
        if what == "synced":
            synced += int(size)
        elif what == "all-synced":
            unsynced.pop(name, None)
        else:
            unsynced.setdefault(name, []).append((int(at), int(size)))
    for name, ranges in unsynced.items():
        path = Path(name)
        if not path.is_file():  # deleted, or renamed, which is done behind a sync
            continue
        with path.open("r+b") as file:
            end = os.fstat(file.fileno()).st_size
            for begin, written in ranges:
                nbytes = min(written, end - begin)
                if nbytes > 0:
                    os.pwrite(file.fileno(), bytes(nbytes), begin)
                    lost += nbytes
    journal.write_text("")
    return Cut(lost, synced)
