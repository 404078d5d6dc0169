#!/usr/bin/env bash
# Makes testdata/tls: certificates of hosts that do not exist, for the tests that fetch pictures over https.
# The authority's key is thrown away; what is kept is good for nothing but these tests.
#
#   bash testdata/make/tls.sh
set -euo pipefail
out=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tls
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# host NAME SUBJECT_ALTERNATIVE_NAMES BEGIN END: NAME.pem, signed by the authority.
host() {
    openssl req -new -key "$out/hosts.key" -subj "/CN=$1" -out "$work/$1.csr"
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$2" >"$work/$1.ext"
    openssl ca -batch -notext -config "$work/ca.cnf" -cert "$out/authority.pem" -keyfile "$work/authority.key" \
        -in "$work/$1.csr" -extfile "$work/$1.ext" -startdate "$3" -enddate "$4" -out "$out/$1.pem"
}

cat >"$work/ca.cnf" <<END
[ca]
default_ca = tests
[tests]
database = $work/database
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
END
: >"$work/database"
key "$work/authority.key"
key "$out/hosts.key"
chmod 644 "$out/hosts.key"
openssl req -x509 -new -key "$work/authority.key" -subj "/CN=Authority of the tests" -days 36500 \
    -addext "keyUsage=critical,keyCertSign" -out "$out/authority.pem"
host localhost "DNS:localhost,IP:127.0.0.2" 20200101000000Z 21200101000000Z
host elsewhere "DNS:elsewhere.test,IP:127.0.0.3" 20200101000000Z 21200101000000Z
host expired "DNS:localhost,IP:127.0.0.2" 20200101000000Z 20200201000000Z
openssl req -x509 -new -key "$out/hosts.key" -subj "/CN=unsigned" -days 36500 \
    -addext "subjectAltName=DNS:localhost,IP:127.0.0.2" -addext "basicConstraints=critical,CA:FALSE" -out "$out/unsigned.pem"
