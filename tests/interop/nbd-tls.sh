#!/bin/bash
# nbd-tls.sh - NBD with TLS between ashlar and libnbd, nbdkit and QEMU, which use another library (GnuTLS), in both directions.
#
#   server    nbdinfo, nbdcopy and qemu-img against ashlar: certificates and keys, --tls=on and require; versions of TLS, a change of keys
#   client    ashlar against nbdkit and qemu-nbd, with data that are compared
#   refused   wrong CAs, names and keys, expired and revoked certificates; plain text after STARTTLS; servers that talk a client out of TLS
#   renewed   certificates, lists of revoked ones and keys that are replaced while ashlar serves in its sandbox
#
# usage: nbd-tls.sh [server|client|refused|renewed...]    default: all
# environment: ASHLAR=FILE the program, default target/debug/ashlar; KEEP=1 keep the files
# Debian packages: scripts/setup test. Works as an ordinary user.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"

steps=("$@")
[ $# -gt 0 ] || steps=(server client refused renewed)

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-tls.XXXXXX")
here_pid='' there_pid='' port='' checks=0
cleanup() {
	[ -z "$here_pid" ] || kill -KILL "$here_pid" 2>/dev/null || true
	[ -z "$there_pid" ] || kill -KILL "$there_pid" 2>/dev/null || true
	wait 2>/dev/null || true
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "nbd-tls.sh: $*" >&2
	tail -n 30 "$W/said" "$W/log" "$W/there.log" >&2 || true
	exit 1
}
touch "$W/said" "$W/log" "$W/there.log"

# ok WHAT COMMAND... - it succeeds
ok() {
	local what=$1
	shift
	timeout -k 5 60 "$@" >"$W/said" 2>&1 </dev/null || fail "$what: exit code $?: $*"
	checks=$((checks + 1))
}
# refused WHAT TEXT COMMAND... - it fails, and says so
refused() {
	local what=$1 text=$2
	shift 2
	! timeout -k 5 60 "$@" >"$W/said" 2>&1 </dev/null || fail "$what: it is not refused: $*"
	grep -qiE -- "$text" "$W/said" || fail "$what: no word of \`$text\`: $*"
	checks=$((checks + 1))
}
logged() { grep -qE -- "$1" "$W/log"; }

# --- certificates and keys --------------------------------------------------
# certificate CA NAME DAYS EXTENSIONS - makes NAME-cert.pem and NAME-key.pem, of a CA in its directory
certificate() {
	local ca=$W/$1 name=$2 days=$3
	printf '%s\n' "$4" >"$W/extensions"
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/O=ashlar tests/CN=$name" -keyout "$ca/$name-key.pem" -out "$W/request" 2>>"$W/log"
	openssl x509 -req -in "$W/request" -CA "$ca/ca-cert.pem" -CAkey "$ca/ca-key.pem" -days "$days" -extfile "$W/extensions" -out "$ca/$name-cert.pem" 2>>"$W/log"
}
# authority NAME - a directory with a CA, and with certificates of a server and of a client
authority() {
	mkdir "$W/$1"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 -subj "/CN=CA $1" -keyout "$W/$1/ca-key.pem" -out "$W/$1/ca-cert.pem" \
		-addext keyUsage=critical,keyCertSign,cRLSign 2>>"$W/log"
	certificate "$1" server 30 $'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature'
	certificate "$1" client 30 $'extendedKeyUsage=clientAuth\nkeyUsage=digitalSignature'
}
authority pki
authority other
# Only the CA: a client that has no certificate.
mkdir "$W/ca" "$W/expired" "$W/foreign" "$W/psk" "$W/psk-wrong" "$W/revoked" "$W/named"
cp "$W/pki/ca-cert.pem" "$W/ca/"
# A server whose certificate has expired: it ended a day before it began.
certificate pki server-old -1 $'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth'
cp "$W/pki/ca-cert.pem" "$W/expired/"
for kind in cert key; do mv "$W/pki/server-old-$kind.pem" "$W/expired/server-$kind.pem"; done
# A server of another name.
certificate pki server-named 30 $'subjectAltName=DNS:nas.example\nextendedKeyUsage=serverAuth\nkeyUsage=digitalSignature'
cp "$W/pki/ca-cert.pem" "$W/named/"
for kind in cert key; do mv "$W/pki/server-named-$kind.pem" "$W/named/server-$kind.pem"; done
# A client of our CA's server, with the certificate of another CA.
cp "$W/pki/ca-cert.pem" "$W/foreign/"
cp "$W"/other/client-*.pem "$W/foreign/"
# The CA has revoked the client's certificate, as the server knows.
cp "$W/pki/ca-cert.pem" "$W"/pki/server-*.pem "$W/revoked/"
: >"$W/index"
printf '%s\n' '[ca]' 'default_ca=it' '[it]' "database=$W/index" 'default_md=sha256' >"$W/ca.conf"
openssl ca -config "$W/ca.conf" -cert "$W/pki/ca-cert.pem" -keyfile "$W/pki/ca-key.pem" -revoke "$W/pki/client-cert.pem" 2>>"$W/log"
openssl ca -config "$W/ca.conf" -cert "$W/pki/ca-cert.pem" -keyfile "$W/pki/ca-key.pem" -gencrl -crldays 30 -out "$W/revoked/ca-crl.pem" 2>>"$W/log"
echo "alice:$(openssl rand -hex 32)" >"$W/psk/keys.psk"
echo "bob:$(openssl rand -hex 32)" >>"$W/psk/keys.psk"
echo "alice:$(openssl rand -hex 32)" >"$W/psk-wrong/keys.psk"
truncate -s 32M "$W/a.img"
head -c 8M /dev/urandom >"$W/data"
truncate -s 32M "$W/data"

# --- servers ----------------------------------------------------------------
# serve OPTION... - ashlar serves a.img on a TCP port and a Unix socket
serve() {
	stop_here
	"$ashlar" -v serve "$W/a.img" --nbd tcp:127.0.0.1:0 --nbd "unix:$W/nbd" --control "$W/control" "$@" >"$W/log" 2>&1 &
	here_pid=$!
	until_it "$here_pid" "$ashlar" status --control "$W/control" >/dev/null 2>&1 || fail "ashlar does not serve: $*"
	port=$("$ashlar" status --json --control "$W/control" | grep -oE 'tcp:127\.0\.0\.1:[0-9]+' | head -n 1)
	port=${port##*:}
	[ "$port" ] || fail "no port"
}
stop_here() {
	[ -z "$here_pid" ] || { kill -TERM "$here_pid" 2>/dev/null || true; wait "$here_pid" 2>/dev/null || true; }
	here_pid=''
	rm -f "$W/control" "$W/nbd"
}
# there COMMAND... - another program serves
there() {
	stop_there
	rm -f "$W/far"
	"$@" >"$W/there.log" 2>&1 &
	there_pid=$!
	until_it "$there_pid" test -S "$W/far" || fail "no server: $*"
}
stop_there() {
	[ -z "$there_pid" ] || { kill -KILL "$there_pid" 2>/dev/null || true; wait "$there_pid" 2>/dev/null || true; }
	there_pid=''
}
nbdkit_there() { there nbdkit -f -U "$W/far" "$@"; }
qemu_there() { there qemu-nbd --persistent --shared=8 --format=raw --socket="$W/far" "$@" "$W/b.img"; }

# round_trip URI - data go to the volume and come back
round_trip() {
	ok "writing to $1" nbdcopy "$W/data" "$1"
	rm -f "$W/back"
	ok "reading from $1" nbdcopy "$1" "$W/back"
	cmp "$W/data" "$W/back" || fail "other data came back from $1"
}
x509() { echo "tls-creds-x509,id=t,dir=$1,endpoint=${2:-client}"; }
psk() { echo "tls-creds-psk,id=t,dir=$1,endpoint=${2:-client}${3:+,username=$3}"; }

# --- the other programs against ashlar --------------------------------------
server_step() {
	serve --tls=require --tls-dir "$W/pki"
	round_trip "nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	round_trip "nbds+unix:///a.img?socket=$W/nbd&tls-certificates=$W/ca"
	ok "nbdinfo" nbdinfo "nbds://127.0.0.1:$port/a.img?tls-certificates=$W/ca"
	grep -qE 'protocol: newstyle-fixed with TLS' "$W/said" || fail "no TLS"
	ok "a list of exports" nbdinfo --list "nbds://localhost:$port?tls-certificates=$W/ca"
	ok "extents" nbdinfo --map "nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	refused "plain text" "TLS|policy|Invalid argument|server" nbdinfo "nbd://localhost:$port/a.img"
	refused "a list in plain text" "TLS|policy|Invalid argument|server" nbdinfo --list "nbd://localhost:$port"
	local image="driver=nbd,host=localhost,port=$port,export=a.img,tls-creds=t"
	ok "qemu-img" qemu-img info --object "$(x509 "$W/ca")" --image-opts "$image"
	ok "qemu-img, reading" qemu-img convert --object "$(x509 "$W/ca")" --image-opts -O raw "$image" "$W/back"
	cmp "$W/data" "$W/back" || fail "qemu-img reads other data"
	refused "qemu-img without TLS" "TLS" qemu-img info --image-opts "driver=nbd,host=localhost,port=$port,export=a.img"
	for version in tls1_2 tls1_3; do
		python3 "$here/nbd_tls.py" handshake "$port" $version >"$W/said" 2>&1 || fail "OpenSSL's client with $version"
	done
	timeout 60 python3 "$here/nbd_tls.py" keys "$port" >"$W/said" 2>&1 || fail "a change of keys"
	! python3 "$here/nbd_tls.py" handshake "$port" tls1_1 >"$W/said" 2>&1 || fail "TLS 1.1 is not refused"

	serve --tls=on --tls-dir "$W/pki"
	round_trip "nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	round_trip "nbd://localhost:$port/a.img"

	serve --tls=require --tls-dir "$W/pki" --tls-verify-peer
	round_trip "nbds://localhost:$port/a.img?tls-certificates=$W/pki"
	logged 'client="CN=client,O=ashlar tests"' || fail "the log does not name the client"
	ok "qemu-img with a certificate" qemu-img info --object "$(x509 "$W/pki")" --image-opts "driver=nbd,host=localhost,port=$port,export=a.img,tls-creds=t"

	serve --tls=require --tls-psk "$W/psk/keys.psk"
	round_trip "nbds://alice@localhost:$port/a.img?tls-psk-file=$W/psk/keys.psk"
	logged 'client="alice"' || fail "the log does not name the user"
	round_trip "nbds+unix://bob@/a.img?socket=$W/nbd&tls-psk-file=$W/psk/keys.psk"
	image="driver=nbd,host=localhost,port=$port,export=a.img,tls-creds=t"
	ok "qemu-img with a key" qemu-img info --object "$(psk "$W/psk" client bob)" --image-opts "$image"

	timeout 60 python3 "$here/nbd_tls.py" key "$port" alice "$(sed -n 's/^alice://p' "$W/psk/keys.psk")" >"$W/said" 2>&1 || fail "a key with TLS 1.2"

	# QEMU's directory of keys.
	serve --tls=require --tls-dir "$W/psk"
	ok "a key in a directory" nbdinfo "nbds://bob@localhost:$port/a.img?tls-psk-file=$W/psk/keys.psk"
	stop_here
}

# --- ashlar against the other programs --------------------------------------
# member URI - ashlar serves the export, and data go there and back; a second time after its server was restarted
member() {
	stop_here
	"$ashlar" -v serve "$1" --nbd "unix:$W/nbd" --control "$W/control" >"$W/log" 2>&1 &
	here_pid=$!
	until_it "$here_pid" "$ashlar" status --control "$W/control" >/dev/null 2>&1 || fail "ashlar does not serve $1"
	round_trip "nbd+unix:///?socket=$W/nbd"
	logged 'TLS with an NBD server' || fail "$1: no TLS"
}
client_step() {
	truncate -s 32M "$W/b.img"
	local unix="nbds+unix:///?socket=$W/far" user="nbds+unix://alice@/?socket=$W/far"
	nbdkit_there --tls=require --tls-certificates="$W/pki" file "$W/b.img"
	member "$unix&tls-certificates=$W/ca&tls-hostname=localhost"
	member "$unix&tls-certificates=$W/ca"
	nbdkit_there --tls=require --tls-certificates="$W/pki" --tls-verify-peer file "$W/b.img"
	member "$unix&tls-certificates=$W/pki"
	nbdkit_there --tls=require --tls-psk="$W/psk/keys.psk" file "$W/b.img"
	member "$user&tls-psk-file=$W/psk/keys.psk"
	qemu_there --object "$(x509 "$W/pki" server),verify-peer=on" --tls-creds t
	member "$unix&tls-certificates=$W/pki&tls-hostname=127.0.0.1"
	qemu_there --object "$(psk "$W/psk" server)" --tls-creds t
	member "$user&tls-psk-file=$W/psk/keys.psk"
	stop_here
	stop_there

	# A member over TCP, which ashlar itself serves: many connections, and threads that have one each.
	serve --tls=require --tls-dir "$W/pki" --tls-verify-peer
	local first=$here_pid far="nbds://localhost:$port/a.img?tls-certificates=$W/pki"
	here_pid=''
	"$ashlar" -v serve "$far" --nbd "unix:$W/near" --control "$W/near-control" >"$W/there.log" 2>&1 &
	there_pid=$!
	until_it "$there_pid" "$ashlar" status --control "$W/near-control" >/dev/null 2>&1 || fail "ashlar does not serve $far"
	ok "fio" fio --aux-path="$W" --verify_state_save=0 --name=job --ioengine=nbd --uri="nbd+unix:///?socket=$W/near" --size=16M --bsrange=512-128k \
		--bs_unaligned=0 --rw=randwrite --iodepth=16 --verify=crc32c --verify_fatal=1
	round_trip "nbd+unix:///?socket=$W/near"
	stop_there
	here_pid=$first
	stop_here
}

# --- what is refused --------------------------------------------------------
refused_step() {
	local at
	serve --tls=require --tls-dir "$W/pki"
	refused "nbdinfo with another CA" "certificate" nbdinfo "nbds://localhost:$port/a.img?tls-certificates=$W/other"
	at="nbds://localhost:$port/a.img"
	ok "ashlar's own client" "$ashlar" scan "$at?tls-certificates=$W/ca"
	refused "another CA" "certificate is refused" "$ashlar" scan "$at?tls-certificates=$W/other"
	refused "the system's CAs" "certificate is refused" "$ashlar" scan "$at"
	ok "another CA, unverified" "$ashlar" scan "$at?tls-certificates=$W/other&tls-verify-peer=false"
	refused "another name" "certificate is refused: hostname mismatch" "$ashlar" scan "$at?tls-certificates=$W/ca&tls-hostname=nas.example"
	refused "a client without TLS" "requires TLS" "$ashlar" scan "nbd://localhost:$port/a.img"
	refused "a directory without certificates" "ca-cert.pem: No such file" "$ashlar" scan "$at?tls-certificates=$W/psk"
	python3 "$here/nbd_tls.py" inject "$port" >"$W/said" 2>&1 || fail "plain text after STARTTLS counts"
	python3 "$here/nbd_tls.py" garbage "$port" >"$W/said" 2>&1 || fail "something else than TLS after STARTTLS"

	serve --tls=off
	refused "TLS that is off" "" nbdinfo "nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	refused "TLS that is off" "refuses TLS" "$ashlar" scan "nbds://localhost:$port/a.img?tls-certificates=$W/ca"

	serve --tls=require --tls-dir "$W/pki" --tls-verify-peer
	at="nbds://localhost:$port/a.img"
	refused "no certificate" "" nbdinfo "$at?tls-certificates=$W/ca"
	refused "no certificate" "" "$ashlar" scan "$at?tls-certificates=$W/ca"
	refused "another CA's certificate" "" "$ashlar" scan "$at?tls-certificates=$W/foreign"
	logged "certificate is refused" || fail "the log does not say why a client is refused"

	serve --tls=require --tls-dir "$W/revoked" --tls-verify-peer
	refused "a revoked certificate" "" "$ashlar" scan "nbds://localhost:$port/a.img?tls-certificates=$W/pki"
	logged "certificate revoked" || fail "the log does not say that it was revoked"

	serve --tls=require --tls-dir "$W/expired"
	at="nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	refused "an expired certificate" "certificate" nbdinfo "$at"
	refused "an expired certificate" "certificate has expired" "$ashlar" scan "$at"

	serve --tls=require --tls-dir "$W/named"
	at="nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	refused "another name" "hostname mismatch" "$ashlar" scan "$at"
	ok "the name that it has" "$ashlar" scan "$at&tls-hostname=nas.example"

	serve --tls=require --tls-psk "$W/psk/keys.psk"
	at="localhost:$port/a.img"
	ok "a key" "$ashlar" scan "nbds://alice@$at?tls-psk-file=$W/psk/keys.psk"
	refused "another key" "TLS" "$ashlar" scan "nbds://alice@$at?tls-psk-file=$W/psk-wrong/keys.psk"
	refused "another key" "" nbdinfo "nbds://alice@$at?tls-psk-file=$W/psk-wrong/keys.psk"
	sed 's/alice/eve/' "$W/psk/keys.psk" >"$W/eve"
	refused "an unknown user" "TLS" "$ashlar" scan "nbds://eve@$at?tls-psk-file=$W/eve"
	refused "a missing user" "no key of the user" "$ashlar" scan "nbds://eve@$at?tls-psk-file=$W/psk/keys.psk"
	refused "certificates where keys are used" "TLS" "$ashlar" scan "nbds://$at?tls-certificates=$W/ca"
	stop_here

	for wrong in "--tls=require" "--tls=require --tls-dir $W/ca" "--tls-dir $W/pki" "--tls=on --tls-dir $W/pki --tls-psk $W/psk/keys.psk" \
		"--tls=on --tls-psk $W/pki/ca-cert.pem" "--tls=on --tls-psk $W/psk/keys.psk --tls-verify-peer"; do
		# shellcheck disable=SC2086 # several words
		refused "$wrong" "tls|TLS" "$ashlar" serve "$W/a.img" --nbd "unix:$W/nbd" --control "$W/control" $wrong
	done

	# Servers that talk a client out of TLS, or sit between it and one that has TLS.
	at="nbds+unix:///?socket=$W/far&tls-certificates=$W/ca"
	nbdkit_there --tls=off memory 1M
	refused "a server without TLS" "refuses TLS" "$ashlar" scan "$at"
	for trick in unsup policy ack-and-more plain; do
		there python3 "$here/nbd_tls.py" trick "$W/far" $trick
		refused "$trick" "refuses TLS|plain text after|TLS handshake" "$ashlar" scan "$at"
		grep -qx "nothing in plain text" "$W/there.log" || fail "$trick: the client said more in plain text"
	done
	stop_there
}

# --- files that are replaced ------------------------------------------------
# put FILE NAME - a file in the place of one of the server's, as programs do that renew certificates
put() {
	cp "$1" "$W/live/new"
	mv "$W/live/new" "$W/live/$2"
}
put_both() { for kind in cert key; do put "$W/$1/server-$kind.pem" "server-$kind.pem"; done; }
renewed_step() {
	local at
	mkdir "$W/live"
	put "$W/pki/ca-cert.pem" ca-cert.pem
	put_both expired
	serve --tls=require --tls-dir "$W/live" --tls-verify-peer
	"$ashlar" status --control "$W/control" >"$W/said"
	grep -qx 'sandbox: on' "$W/said" || fail "there is no sandbox"
	at="nbds://localhost:$port/a.img?tls-certificates=$W/pki"
	refused "the first certificate" "certificate has expired" "$ashlar" scan "$at"
	put_both pki
	ok "the renewed certificate" "$ashlar" scan "$at"
	ok "the renewed certificate, nbdinfo" nbdinfo "$at"
	logged 'credentials for TLS have changed' || fail "the log has no word of the renewal"
	# Half of another one: what can be used stays, and the log says so once.
	put "$W/other/server-cert.pem" server-cert.pem
	ok "a certificate without its key" "$ashlar" scan "$at"
	ok "a certificate without its key, again" "$ashlar" scan "$at"
	[ "$(grep -c 'cannot use the changed credentials' "$W/log")" = 1 ] || fail "there is not one warning"
	echo nothing >"$W/live/server-cert.pem"
	ok "something else than a certificate" "$ashlar" scan "$at"
	[ "$(grep -c 'cannot use the changed credentials' "$W/log")" = 2 ] || fail "there are not two warnings"
	put_both expired
	refused "the first certificate again" "certificate has expired" "$ashlar" scan "$at"
	put_both pki
	put "$W/revoked/ca-crl.pem" ca-crl.pem
	refused "a certificate that was revoked meanwhile" "" "$ashlar" scan "$at"
	logged "certificate revoked" || fail "the log does not say that it was revoked"

	# A file of keys is read again where it is, a directory whatever is put there.
	cp "$W/psk/keys.psk" "$W/live/keys.psk"
	serve --tls=require --tls-psk "$W/live/keys.psk"
	at="localhost:$port/a.img?tls-psk-file=$W/new.psk"
	echo "carol:$(openssl rand -hex 32)" >"$W/new.psk"
	refused "a new user" "TLS" "$ashlar" scan "nbds://carol@$at"
	cat "$W/new.psk" >>"$W/live/keys.psk"
	ok "a new user in the file" "$ashlar" scan "nbds://carol@$at"
	mkdir "$W/keys"
	cp "$W/psk/keys.psk" "$W/keys/"
	serve --tls=require --tls-dir "$W/keys"
	at="localhost:$port/a.img?tls-psk-file=$W/new.psk"
	refused "a new user of a directory" "TLS" "$ashlar" scan "nbds://carol@$at"
	cp "$W/new.psk" "$W/keys/new"
	mv "$W/keys/new" "$W/keys/keys.psk"
	ok "a new user in the directory" "$ashlar" scan "nbds://carol@$at"

	# The sandbox shows the directory alone.
	rm "$W"/live/*
	ln -s "$W"/pki/server-*.pem "$W/live/"
	serve --tls=require --tls-dir "$W/live"
	logged 'it is a link that leads out of' || fail "no warning of a link"
	ln -sf "$W"/expired/server-*.pem "$W/live/"
	ok "a link to another place" "$ashlar" scan "nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	logged 'cannot use the changed credentials.*Permission denied' || fail "a link is followed out of the sandbox"
	serve --tls=require --tls-dir "$W/live" --no-sandbox
	at="nbds://localhost:$port/a.img?tls-certificates=$W/ca"
	refused "the link's certificate" "certificate has expired" "$ashlar" scan "$at"
	ln -sf "$W"/pki/server-*.pem "$W/live/"
	ok "a link, without the sandbox" "$ashlar" scan "$at"
	stop_here
}

for step in "${steps[@]}"; do
	case $step in
	server | client | refused | renewed) "${step}_step" ;;
	*) fail "no step $step" ;;
	esac
	echo "pass $step"
done
echo "nbd-tls.sh: $checks checks"
