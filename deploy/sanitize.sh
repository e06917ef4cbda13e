#!/usr/bin/env bash
# Compile the Cython modules with the address sanitizer and the one for undefined behaviour, in a copy, and run tests
# with them: deploy/sanitize.sh [ARGUMENTS OF PYTEST]. PY is the interpreter. Exit code 3: not possible here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(command -v "${PY:-.venv/bin/python}")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cc=gcc
asan=$("$cc" -print-file-name=libasan.so) && ubsan=$("$cc" -print-file-name=libubsan.so)
# A compiler that does not have a library prints its bare name.
if [[ $asan != /* || $ubsan != /* ]]; then
    echo "raftmq: $cc has no libasan and libubsan: apt install gcc" >&2
    exit 3
fi
[ $# -gt 0 ] || set -- tests/unit/compiled/test_checked_records.py tests/unit/broker/produce/test_plain_sends.py \
    tests/unit/broker/produce/test_ready_senders.py tests/unit/replica/test_flush.py \
    tests/unit/segment/test_plain_writes.py
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r mq raftlog tests pyproject.toml "$copy"
cd "$copy"
rm -f ./*/compiled/*.so
CC=$cc CFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all' "$python" -m mq.compiled
# Python frees little at its end, and manages small objects itself, where no sanitizer sees their borders. With
# --capture=sys, pytest does not hide what a sanitizer reports.
LD_PRELOAD="$asan $ubsan" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
    "$python" -m pytest -q --capture=sys -p no:cacheprovider "$@"
