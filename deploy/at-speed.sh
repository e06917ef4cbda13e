#!/usr/bin/env bash
# Run a command as on a machine that is FACTOR times as fast, or slow with 0.25, say: deploy/at-speed.sh FACTOR COMMAND...
#
# The clocks of all its processes run slower or faster, and so does what they wait for: tests/speed/clock.c.
set -euo pipefail
factor=$1
shift
library=$(mktemp --suffix=.so)
trap 'rm -f "$library"' EXIT
gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$library" "$(dirname "${BASH_SOURCE[0]}")/../tests/speed/clock.c"
CLOCK_SPEED=$(awk -v factor="$factor" 'BEGIN { print 1 / factor }') LD_PRELOAD=$library "$@"
