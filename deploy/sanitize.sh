#!/usr/bin/env bash
# Compile the Cython modules with sanitizers, in a copy, and run tests with them. PY is the interpreter.
#
#   deploy/sanitize.sh [ARGUMENTS OF PYTEST]           addresses and undefined behaviour
#   deploy/sanitize.sh threads [ARGUMENTS OF PYTEST]   data races, in the log writer
#   deploy/sanitize.sh fuzz [ARGUMENTS OF tests.fuzz]  as the first, with a fuzzer that looks for new edges
#   deploy/sanitize.sh both [ARGUMENTS OF tests.fuzz]  the first, then the fuzzer: compiled once
#
# Exit code 3: a tool is missing here. A module that cannot be compiled is a failure, with another code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$(command -v "${PY:-.venv/bin/python}")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cc=gcc
mode=addresses
case ${1:-} in fuzz | threads | both) mode=$1 && shift ;; esac
libraries='libasan.so libubsan.so'
[ "$mode" != threads ] || libraries=libtsan.so
preload=
for library in $libraries; do
    path=$("$cc" -print-file-name="$library") || path=
    # A compiler that does not have a library prints its bare name.
    if [[ $path != /* ]]; then
        echo "raftmq: $cc has no $library: apt install gcc" >&2
        exit 3
    fi
    preload="$preload $path"
done
# The thread sanitizer needs memory at fixed addresses, where the kernel may have put something at random.
fixed_addresses=
if [ "$mode" = threads ]; then
    fixed_addresses='setarch --addr-no-randomize'
    if ! $fixed_addresses true; then
        echo "raftmq: the thread sanitizer needs setarch, which is not allowed here" >&2
        exit 3
    fi
fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# Without bytecode, which other processes may write meanwhile. Not with tar, which fails if another process links a file:
# that is a change to it.
find mq raftlog tests pyproject.toml -name __pycache__ -prune -o -type f -print0 | xargs -0 cp --parents -t "$copy"
# With --capture=sys, pytest does not hide what a sanitizer reports.
run_tests=(-m pytest -q --capture=sys -p no:cacheprovider)
run_fuzzer=(-m tests.fuzz --findings "$PWD/fuzz-findings")
sanitized_tests=(tests/unit/compiled/test_checked_records.py tests/unit/broker/produce/test_plain_sends.py
    tests/unit/broker/produce/test_plain_numbers.py
    tests/unit/broker/produce/test_ready_senders.py tests/unit/replica/test_flush.py
    tests/unit/segment/test_append_queue.py tests/unit/broker/bulk/test_selection.py)
if [ "$mode" = threads ]; then
    # Python itself is not instrumented, but its lock is seen: what is reported are accesses of the modules.
    flags='-O1 -g -fsanitize=thread'
    export TSAN_OPTIONS='halt_on_error=1:exitcode=66'
    # Threads without Python's lock are those of the log writer. The other package takes most of the time to compile.
    compiled=raftlog.compiled
    [ $# -gt 0 ] || set -- tests/unit/segment/test_append_queue.py tests/unit/segment/test_threaded_writers.py -k 'not python'
else
    # Not instrumented itself. The tests do not need what it counts, but one compilation is enough for both.
    "$cc" -O2 -shared -fPIC -o "$copy/edges.so" tests/fuzz/edges.c
    preload="$preload $copy/edges.so"
    flags='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize-coverage=trace-pc,trace-cmp'
    compiled=
    [ "$mode$#" != addresses0 ] || set -- "${sanitized_tests[@]}"
fi
cd "$copy"
rm -f ./*/compiled/*.so
# The coverage functions are in a library that is loaded before: a module may be linked without them.
CC=$cc CFLAGS="$flags" "$python" -m mq.compiled $compiled
# Python frees little at its end, and manages small objects itself, where no sanitizer sees their borders.
export ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc
with_sanitizers() { $fixed_addresses env LD_PRELOAD="$preload" "$python" "$@"; }
with_sanitizers -c "from raftlog.compiled import append_queue"
[ "$mode" = threads ] || with_sanitizers -c "from mq.compiled import plain_sends"
case $mode in
    both) with_sanitizers "${run_tests[@]}" "${sanitized_tests[@]}" && with_sanitizers "${run_fuzzer[@]}" "$@" ;;
    fuzz) with_sanitizers "${run_fuzzer[@]}" "$@" ;;
    *) with_sanitizers "${run_tests[@]}" "$@" ;;
esac || exit 1 # pytest ends with 3, too, when it has failed itself
