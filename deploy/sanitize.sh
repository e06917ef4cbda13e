#!/usr/bin/env bash
# Compile the Cython modules with the address sanitizer and the one for undefined behaviour, in a copy, and run tests
# with them: deploy/sanitize.sh [ARGUMENTS OF PYTEST], or deploy/sanitize.sh fuzz [ARGUMENTS OF tests.fuzz], which also
# counts the edges that are taken. PY is the interpreter. Exit code 3: not possible here.
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
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r mq raftlog tests pyproject.toml "$copy"
flags='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all'
preload="$asan $ubsan"
if [ "${1:-}" = fuzz ]; then
    shift
    set -- -m tests.fuzz --findings "$PWD/fuzz-findings" "$@"
    # Not instrumented itself.
    "$cc" -O2 -shared -fPIC -o "$copy/edges.so" tests/fuzz/edges.c
    preload="$preload $copy/edges.so"
    flags="$flags -fsanitize-coverage=trace-pc,trace-cmp"
else
    [ $# -gt 0 ] || set -- tests/unit/compiled/test_checked_records.py tests/unit/broker/produce/test_plain_sends.py \
        tests/unit/broker/produce/test_ready_senders.py tests/unit/replica/test_flush.py \
        tests/unit/segment/test_plain_writes.py
    # With --capture=sys, pytest does not hide what a sanitizer reports.
    set -- -m pytest -q --capture=sys -p no:cacheprovider "$@"
fi
cd "$copy"
rm -f ./*/compiled/*.so
# The coverage functions are in a library that is loaded before: a module may be linked without them.
CC=$cc CFLAGS="$flags" "$python" -m mq.compiled
# Python frees little at its end, and manages small objects itself, where no sanitizer sees their borders.
export LD_PRELOAD="$preload" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc
"$python" -c "from mq.compiled import plain_sends"; "$python" "$@"
