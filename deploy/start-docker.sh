#!/bin/sh
# A Docker Engine for tests, beside one that this machine may have: its own socket and files, and no firewall rules.
# start-docker.sh [DIRECTORY]; say `export DOCKER_HOST=unix://DIRECTORY/docker.sock` then. Ends with its terminal or by
# `kill $(cat DIRECTORY/dockerd.pid)`. Needs root and Debian's docker.io.
set -eu
directory=${1:-/run/raftmq-docker}
[ "$(id -u)" = 0 ] || { echo "raftmq: only root can start a Docker Engine" >&2; exit 3; }
command -v dockerd >/dev/null || { echo "raftmq: there is no dockerd: apt install docker.io" >&2; exit 3; }
mkdir -p "$directory"
# With its usual rules it would drop what any other bridge of this machine forwards.
nohup dockerd --data-root "$directory/data" --exec-root "$directory/exec" --pidfile "$directory/dockerd.pid" \
    --host "unix://$directory/docker.sock" --bridge none --iptables=false --ip-masq=false \
    >"$directory/dockerd.log" 2>&1 &
for _ in $(seq 100); do
    if DOCKER_HOST="unix://$directory/docker.sock" docker version >/dev/null 2>&1; then
        echo "export DOCKER_HOST=unix://$directory/docker.sock"
        exit 0
    fi
    sleep 0.2
done
echo "raftmq: dockerd does not answer; it wrote $directory/dockerd.log" >&2
tail -n 3 "$directory/dockerd.log" >&2
exit 3
