#!/bin/sh
# Make what a deployment with accounts and TLS needs: make-credentials.sh DIRECTORY NAME=ADDRESS[,ADDRESS]...
#
#   deploy/make-credentials.sh credentials n0=10.0.0.1 n1=10.0.0.2 n2=10.0.0.3,broker-3.example names=10.0.0.9
#
# For each NAME a certificate for these addresses and host names, NAME.pem and NAME.key, signed by an authority of its
# own, ca.pem and ca.key; accounts.yml, the acl_file of brokers and name servers; group.secret; and the keys of the
# accounts: brokers.toml (namesrv_credentials), and proxy.toml, operator.toml and application.toml (RAFTMQ_CREDENTIALS).
#
# Files that are there are kept: to add a server, name it; to renew a certificate, remove its file and name it again.
# ca.key signs further certificates and belongs on no server.
set -euf

CA_DAYS=3650
CERTIFICATE_DAYS=800

fail() {
    echo "raftmq: $*" >&2
    exit 2
}

[ $# -ge 2 ] || fail "give a directory, and NAME=ADDRESS[,ADDRESS] for each server"
command -v openssl >/dev/null || fail "there is no openssl command: apt install openssl"
directory=$1
shift
for server in "$@"; do
    name=${server%%=*}
    case $server in
        =* | *= | *=,* | *, | *,,*) fail "$server is not NAME=ADDRESS[,ADDRESS]" ;;
        *=*) ;;
        *) fail "$server is not NAME=ADDRESS[,ADDRESS]" ;;
    esac
    case $name in
        *[!A-Za-z0-9_-]* | ca) fail "$name: a name has letters, digits, - and _, and is not ca" ;;
    esac
    case ${server#*=} in
        *[!A-Za-z0-9.:,*-]*) fail "$server: an address is a host name or an IP address" ;;
    esac
done

umask 077
mkdir -p "$directory"
cd "$directory"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Files come into place whole, so that an interrupted run leaves none that is cut.
made() {
    mv "$work/$1" "$1"
    echo "raftmq: made $directory/$1"
}

new_key() {
    openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/$1" 2>/dev/null \
        || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/$1" 2>/dev/null \
        || fail "openssl could not make a key"
}

signed() {
    openssl "$@" 2>"$work/said" || {
        cat "$work/said" >&2
        fail "openssl failed (see above)"
    }
}

if [ ! -e ca.pem ] || [ ! -e ca.key ]; then
    [ ! -e ca.pem ] || fail "$directory has ca.pem without ca.key: no certificate can be signed"
    new_key ca.key
    signed req -x509 -new -sha256 -key "$work/ca.key" -days "$CA_DAYS" -subj "/CN=raftmq authority" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign" \
        -out "$work/ca.pem"
    made ca.key
    made ca.pem
fi

for server in "$@"; do
    name=${server%%=*}
    [ ! -e "$name.pem" ] || continue
    names=''
    for address in $(echo "${server#*=}" | tr , ' '); do
        case $address in
            *:* | [0-9]*.[0-9]*.[0-9]*.[0-9]*) kind=IP ;;
            *) kind=DNS ;;
        esac
        names="$names${names:+,}$kind:$address"
    done
    new_key "$name.key"
    signed req -new -sha256 -key "$work/$name.key" -subj "/CN=$name" -out "$work/request"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$names" \
        >"$work/extensions"
    signed x509 -req -sha256 -in "$work/request" -CA ca.pem -CAkey ca.key -days "$CERTIFICATE_DAYS" \
        -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/extensions" -out "$work/$name.pem"
    made "$name.key"
    made "$name.pem"
done

secret() {
    openssl rand -hex "$1"
}

if [ ! -e group.secret ]; then
    secret 32 >"$work/group.secret"
    made group.secret
fi

if [ ! -e accounts.yml ]; then
    brokers=$(secret 24) proxy=$(secret 24) operator=$(secret 24) application=$(secret 24)
    cat >"$work/accounts.yml" <<END
# The accounts of brokers and name servers: see docs/security.md. Give each application an account of its own, with the
# permissions that it needs.
accounts:
- accessKey: raftmq-brokers
  secretKey: $brokers
  broker: true
- accessKey: raftmq-proxy
  secretKey: $proxy
  proxy: true
- accessKey: operator
  secretKey: $operator
  admin: true
- accessKey: application
  secretKey: $application
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
END
    for account in brokers:raftmq-brokers:"$brokers" proxy:raftmq-proxy:"$proxy" operator:operator:"$operator" \
        application:application:"$application"
    do
        keys=${account#*:}
        printf 'access_key = "%s"\nsecret_key = "%s"\n' "${keys%%:*}" "${keys#*:}" >"$work/${account%%:*}.toml"
        made "${account%%:*}.toml"
    done
    made accounts.yml
fi
