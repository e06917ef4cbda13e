#!/bin/sh
# raftmq-jepsen: real brokers under real faults. Belongs to a checkout and is not installed with the wheel.
# `make jepsen` links it as .venv/bin/raftmq-jepsen.
root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$root/.venv/bin/python" -m jepsen "$@"
