#!/bin/sh
# Build the container image raftmq:local: docker-image.sh [IMAGE].
#
# The base is python:3.11-slim if this machine has it or can pull it. Without a registry it is a Debian made with
# debootstrap, which needs root; BASE_IMAGE names another one. DOCKER_HOST is respected.
set -eu
cd "$(dirname "$0")/.."
image=${1:-raftmq:local}
base=${BASE_IMAGE:-python:3.11-slim}
own_base=raftmq-base:bookworm
packages=python3.11-minimal,libpython3.11-stdlib,ca-certificates

fail() {
    echo "raftmq: $*" >&2
    exit 3
}

root='' context=''
trap 'rm -rf "$root" "$context"' EXIT

command -v docker >/dev/null || fail "there is no docker command: apt install docker.io"
docker version >/dev/null 2>&1 || fail "no Docker Engine answers; deploy/start-docker.sh starts one of its own, for root"

has() {
    docker image inspect "$1" >/dev/null 2>&1
}

# A Debian without a registry: its packages come from Debian's mirrors, or from $DEBIAN_MIRROR.
import_base() {
    [ "$(id -u)" = 0 ] || fail "$base can not be pulled, and only root can make a Debian in its place (debootstrap)"
    command -v debootstrap >/dev/null || fail "$base can not be pulled; apt install debootstrap makes up for it"
    root=$(mktemp -d)
    echo "raftmq: $base can not be pulled; making a Debian in its place, about a minute"
    debootstrap --variant=minbase --include="$packages" bookworm "$root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" \
        >"$root.log" 2>&1 || fail "debootstrap failed, see $root.log"
    rm -rf "$root.log" "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc "$root"/usr/share/man \
        "$root"/usr/share/locale "$root"/usr/share/info
    tar --sort=name --mtime=@0 --numeric-owner -C "$root" -c . | docker import - "$own_base" >/dev/null
}

if ! has "$base" && ! docker pull --quiet "$base" >/dev/null 2>&1; then
    [ -z "${BASE_IMAGE:-}" ] || fail "$base is not here and can not be pulled"
    has "$own_base" || import_base
    base=$own_base
fi

echo "raftmq: gathering what the image needs in dist/site"
context=$(mktemp -d)
# The versions of the lock; their hashes were checked when .venv was made, and pip wants all or none of them.
sed -n 's/^\([a-z0-9][^ ]*==[^ ;]*\).*/\1/p' requirements.lock >"$context/constraints"
mkdir -p "$context/dist"
.venv/bin/python -m pip install --quiet --quiet --no-build-isolation --constraint "$context/constraints" \
    --target "$context/dist/site" . './distributions/server[proxy]' || fail "the dependencies could not be installed (see above)"
cp deploy/Dockerfile "$context/Dockerfile"
rm "$context/constraints"
echo "raftmq: building $image on $base"
# The older builder: the newer one is an extra package in Debian.
DOCKER_BUILDKIT=0 docker build --quiet --build-arg BASE_IMAGE="$base" --tag "$image" "$context" 2>"$context/said" \
    || { cat "$context/said" >&2; fail "docker build failed"; }
echo "raftmq: $image is there: docker run --rm $image --help"
