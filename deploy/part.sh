#!/usr/bin/env bash
# Run one part of the tests while others run beside it: deploy/part.sh [--last] [--unless-3] NAME COMMAND...
#
# Its output comes in one piece when it ends, then a line that says how long it took: in seconds, and in seconds of a
# processor. With --last it gets only the time of processors that nobody else wants: for work that no clock watches.
# With --unless-3, a command that ends with exit code 3 could not run on this machine, and the part is left out.
set -uo pipefail
impossible=none
while [[ $1 = --* ]]; do
    case $1 in
        --last) renice -n 19 -p $$ >/dev/null ;;
        --unless-3) impossible=3 ;;
        *) echo "raftmq: $0 has no option $1" >&2 && exit 2 ;;
    esac
    shift
done
name=$1
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT
echo "raftmq: $name has begun"
TIMEFORMAT='%R %U %S'
# Errors go to the terminal at once: what faulthandler says of a test that hangs, say.
{ took=$({ time "$@" >"$output" 2>&3; } 2>&1); } 3>&2
code=$?
read -r real user system <<<"$(tail -n 1 <<<"$took")"
case $code in
    0) ended=passed ;;
    "$impossible") ended='is left out here' ;;
    *) ended="FAILED with exit code $code" ;;
esac
cat "$output"
printf 'raftmq: %s %s: %.0f s, %.0f s of a processor\n' "$name" "$ended" "$real" \
    "$(awk -v u="$user" -v s="$system" 'BEGIN { print u + s }')"
[ "$code" != "$impossible" ] || exit 0
exit "$code"
