#!/bin/sh
# Make a virtual environment and install what a lock file names, with the project itself in place:
# setup-venv.sh [DIRECTORY [LOCK]], by default .venv and requirements.lock.
# Safe to run again: an environment that works is kept. Exit code 2 and one line when something is missing that
# only the administrator of this machine can install.
set -eu
cd "$(dirname "$0")/.."
venv=${1:-.venv}
lock=${2:-requirements.lock}

fail() {
    echo "raftmq: $*" >&2
    exit 2
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if ! { [ -x "$venv/bin/python" ] && is_new_enough "$venv/bin/python" && "$venv/bin/python" -c 'import pip' 2>/dev/null; }
then
    python=$(deploy/find-python.sh)
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c 'import venv, ensurepip' 2>/dev/null \
        || fail "$python has no venv module: apt install python$version-venv"
    echo "raftmq: making $venv with $python ($version)"
    "$python" -m venv --clear "$venv" || fail "could not make $venv in $PWD with $python (see above)"
fi

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}

echo "raftmq: installing what $lock names into $venv (once; about a minute)"
# Of what pip says, only how far it is, and its errors: it warns of packages without a wheel, such as PySpark.
total=$(grep -c '^[a-zA-Z].*==' "$lock")
{ pip install --progress-bar off --require-hashes --requirement "$lock" 2>&1 || echo failed; } | {
    number=0
    while read -r first rest
    do
        case $first in
            Collecting)
                number=$((number + 1))
                if [ $((number % 20)) = 0 ]; then echo "raftmq: $number of $total packages fetched"; fi ;;
            Installing) echo "raftmq: all $total packages are here, unpacking them" ;;
            ERROR:*) echo "$first $rest" >&2 ;;
            failed) exit 1 ;;
        esac
    done
} || fail "could not install the dependencies into $PWD/$venv (see above; is there a network, and room on the disk?)"
pip install --quiet --no-deps --no-build-isolation --no-index --editable . \
    || fail "could not install the project into $PWD/$venv (see above)"
# Optional: without a compiler the same is done in Python, and this says so.
# Nothing to do if another environment with the same interpreter has just done it.
"$venv/bin/python" -c 'import sys; from mq.compiled import ALL_COMPILED; sys.exit(not ALL_COMPILED)' 2>/dev/null \
    || "$venv/bin/python" -m mq.compiled || true
