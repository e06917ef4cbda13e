#!/bin/sh
# Install the servers and the command line from this checkout: install.sh [DIRECTORY], by default /opt/raftmq.
#
# DIRECTORY becomes a virtual environment of its own. It gets the versions in requirements.lock, checked against the
# hashes there, and the compiled modules where there is a compiler. An upgrade is the same command, and then a restart
# of the servers, one after the other (docs/upgrade.md).
set -eu
cd "$(dirname "$0")/.."
directory=${1:-/opt/raftmq}

fail() {
    echo "raftmq: $*" >&2
    exit 2
}

if ! [ -x "$directory/bin/python" ]; then
    python=$(deploy/find-python.sh)
    "$python" -m venv "$directory" || fail "could not make $directory with $python (see above)"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

pip() {
    "$directory/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

echo "raftmq: installing into $directory (a minute or two)"
# What pip builds with follows the lock as well.
sed -n 's/^\([a-z0-9][^ ]*==[^ ;]*\).*/\1/p' requirements.lock >"$work/constraints"
export PIP_CONSTRAINT="$work/constraints"
pip install --quiet --dry-run --ignore-installed --report "$work/report" . ./distributions/server \
    || fail "the dependencies could not be resolved (see above; is there a network?)"
"$directory/bin/python" deploy/locked.py "$work/report" requirements.lock >"$work/locked"
PIP_CONSTRAINT='' pip install --quiet --no-deps --require-hashes --requirement "$work/locked" \
    || fail "the dependencies could not be installed (see above)"
pip install --quiet --no-deps --force-reinstall . ./distributions/server || fail "raftmq could not be installed (see above)"
"$directory/bin/python" - <<'END'
from mq.compiled import ALL_COMPILED
from mq.monitoring.process import VERSION

how = "with its compiled modules" if ALL_COMPILED else (
    "without its compiled modules: two to four times the CPU time per small message (apt install gcc python3-dev)"
)
print(f"raftmq: {VERSION} is installed {how}")
END
