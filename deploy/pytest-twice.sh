#!/usr/bin/env bash
# Run pytest; if a few tests fail, run those once more. Usage: deploy/pytest-twice.sh NAME ARGUMENT...
#
# Tests with real sockets, disks and processes share a machine with whatever else runs there. A test that fails twice is
# broken. One that passes the second time is named as FLAKY at the end, with its first failure above: a bug of the test or
# of the product that somebody has to look at. Many failures are never chance, and nothing is run again.
# Only `.ci/run` and `make test-all` use it, for as long as docs/decisions/0041 says.
# NAME keeps what failed apart from other runs of pytest at the same time.
set -uo pipefail
PY=${PY:-.venv/bin/python}
cache=.pytest_cache/$1
failed=$cache/v/cache/lastfailed
shift
rm -f "$failed"

"$PY" -m pytest -o cache_dir="$cache" "$@"
code=$?
[ "$code" -eq 1 ] && [ -s "$failed" ] || exit "$code"
names=$(sed -n 's/^ *"\(.*\)": true,\{0,1\}$/\1/p' "$failed")
count=$(printf '%s\n' "$names" | wc -l)
[ "$count" -le "${RERUN_TESTS_MAX:-3}" ] || exit "$code"

echo "raftmq: $count failed; run once more"
"$PY" -m pytest -o cache_dir="$cache" --last-failed --last-failed-no-failures none "$@" || exit 1
printf '%s\n' "$names" | sed 's/^/raftmq: FLAKY, failed and then passed: /'
