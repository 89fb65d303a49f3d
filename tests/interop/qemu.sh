#!/bin/bash
# qemu.sh - scenarios of QEMU's own tests of block exports, with QEMU's programs as clients of ashlar
#
#   multiconn    several connections write, flush and read one volume, and see each other's data; where one is served, QEMU sees no offer of more
#   reconnect    QEMU's client waits for a server that does not listen yet, and for one that is killed (SIGKILL) while fio writes
#   allocation   holes, zeroes and data as `qemu-img map` sees them, compared with qemu-nbd; a context that ashlar does not have
#   iothreads    QEMU's client changes its threads, and a machine is reset, while fio writes and the volume's group changes
#   tls          QEMU's client with TLS in an iothread: a mirror of a disk in use, small requests, and the end
#   truncate     sizes, holes, O_TRUNC and appending on a volume's file in the mount, compared with QEMU's FUSE export
#
# usage: qemu.sh [CASE...]    default: all
# environment: ASHLAR=FILE the program, default target/debug/ashlar; KEEP=1 keep the files
#              KILLS=N how often fio's server is killed, default 2; RESETS=N resets of the machine, default 3
# Debian packages: scripts/setup test. Works as an ordinary user.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
export LC_ALL=C
# nbdsh runs the first python3; only the distribution's knows libnbd.
export PATH=/usr/bin:$PATH

cases=("$@")
[ $# -gt 0 ] || cases=(multiconn reconnect allocation iothreads tls truncate)

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-qemu.XXXXXX")
here_pid='' there_pid='' jobs_pid='' port='' said='' checks=0 case=''
unmount() {
	local at
	for at in "$W/mnt" "$W/theirs"; do
		# mountpoint(1) asks the server, which may be dead.
		! grep -q " $at " /proc/self/mountinfo || umount -l "$at" 2>/dev/null || fusermount3 -u -z "$at" || true
	done
}
cleanup() {
	local pid
	for pid in $here_pid $there_pid $jobs_pid ${IO_PID:-}; do kill -KILL "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	unmount
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf --one-file-system "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "qemu.sh: $case: $*" >&2
	tail -n 20 "$W/said" "$W/log" "$W/there.log" "$W/fio" >&2 || true
	exit 1
}
touch "$W/said" "$W/log" "$W/there.log" "$W/fio"

# ok WHAT COMMAND... - it succeeds
ok() {
	local what=$1
	shift
	timeout -k 5 100 "$@" >"$W/said" 2>&1 </dev/null || fail "$what: exit code $?: $*"
	checks=$((checks + 1))
}
# refused WHAT TEXT COMMAND... - it fails, and says so
refused() {
	local what=$1 text=$2
	shift 2
	! timeout -k 5 100 "$@" >"$W/said" 2>&1 </dev/null || fail "$what: it is not refused: $*"
	grep -qE -- "$text" "$W/said" || fail "$what: no word of \`$text\`: $*"
	checks=$((checks + 1))
}
# io WHAT IMAGE COMMAND... - qemu-io executes the commands; all that it reads has the pattern
io() {
	local what=$1 image=$2 arguments=() command
	shift 2
	for command; do arguments+=(-c "$command"); done
	ok "$what" qemu-io -f raw "${arguments[@]}" "$image"
	! grep -qiE 'failed|error' "$W/said" || fail "$what"
}

# --- servers ----------------------------------------------------------------
# serve DISK... OPTION... - ashlar serves
serve() {
	stop_here
	: >"$W/log" # or the last one's is looked at
	"$ashlar" -v serve "$@" --control "$W/control" >"$W/log" 2>&1 &
	here_pid=$!
	until_it "$here_pid" grep -q '^ready' "$W/log" || fail "ashlar does not serve: $*"
}
stop_here() {
	[ -z "$here_pid" ] || { kill -TERM "$here_pid" && wait "$here_pid"; } || fail "ashlar has ended with an error"
	here_pid=''
}
kill_here() {
	kill -KILL "$here_pid"
	{ wait "$here_pid"; } 2>/dev/null || true
	here_pid=''
}
# there FILE COMMAND... - a program of QEMU serves; FILE is there when it is ready
there() {
	local file=$1
	shift
	stop_there
	rm -f "$file"
	"$@" >"$W/there.log" 2>&1 &
	there_pid=$!
	until_it "$there_pid" test -S "$file" || fail "it does not start: $*"
}
stop_there() {
	[ -z "$there_pid" ] || { kill -TERM "$there_pid" && timeout 60 tail --pid="$there_pid" -s 0.05 -f /dev/null && wait "$there_pid"; } ||
		fail "QEMU has ended with an error, or does not end"
	there_pid=''
}
uri() { echo "nbd+unix:///$1?socket=${2:-$W/nbd}"; }
# node EXPORT [OPTION]... - QEMU's client of an export, as the value of --blockdev or --image-opts
node() {
	local IFS=,
	echo "driver=nbd,server.type=unix,server.path=$W/nbd,export=$*"
}
qmp() { ok "QMP $*" python3 "$here/qmp.py" "$W/qmp" "$@"; }
lvm() { ok "lvm $*" "$ashlar" lvm "$@"; }
# stat NAME COLUMN - a counter of a device: 1 reads, 5 writes, 16 flushes that have ended
stat_of() { "$ashlar" get --control "$W/control" "sys/block/$1/stat" 2>/dev/null | awk -v column="$2" '{ print $column }'; }
# more_than NAME COLUMN COUNT
more_than() {
	local now
	now=$(stat_of "$1" "$2")
	[ "${now:-0}" -gt "$3" ]
}
group() {
	rm -f "$W/d0.img"
	truncate -s 256M "$W/d0.img"
	lvm vgcreate --devices "$W/d0.img" vg "$W/d0.img"
	lvm lvcreate --devices "$W/d0.img" -L 64M -n data vg
	lvm lvcreate --devices "$W/d0.img" -L 16M -n other vg
}

# --- clients that stay ------------------------------------------------------
# open_io IMAGE - a qemu-io that takes commands
open_io() {
	coproc IO { exec qemu-io --image-opts "$1" 2>&1; }
	hears
}
# tell COMMAND - qemu-io begins it
tell() { printf '%s\n' "$1" >&"${IO[1]}"; }
# hears - waits for qemu-io's next prompt; $said is the text before it
hears() { IFS= read -r -d '>' -t 100 -u "${IO[0]}" said || fail "qemu-io has ended or waits for ever: $said"; }
# does COMMAND - qemu-io executes it without an error
does() {
	tell "$1"
	hears
	is_done "$1"
}
# is_done COMMAND
is_done() {
	[[ $said =~ (wrote|read|discard)\ ([0-9]+)/([0-9]+)\ bytes ]] && [ "${BASH_REMATCH[2]}" = "${BASH_REMATCH[3]}" ] && [[ $said != *failed* ]] || fail "$1: $said"
	checks=$((checks + 1))
}
close_io() {
	local pid=$IO_PID
	tell quit
	wait "$pid" || fail "qemu-io has ended with an error"
}
# begin_jobs URI - fio writes and verifies until end_jobs
begin_jobs() {
	rm -f "$W/stop" "$W/jobs"
	while [ ! -e "$W/stop" ]; do
		fio --aux-path="$W" --verify_state_save=0 --name=job --ioengine=nbd --uri="$1" --size=16M --bsrange=4k-64k --rw=randwrite --iodepth=8 \
			--fsync=32 --verify=crc32c --verify_fatal=1 >"$W/fio" 2>&1 || exit 1
		echo job >>"$W/jobs"
	done &
	jobs_pid=$!
}
end_jobs() {
	: >"$W/stop"
	wait "$jobs_pid" || fail "fio"
	jobs_pid=''
	[ -s "$W/jobs" ] || fail "no job of fio has ended"
	checks=$((checks + 1))
}

# begin_io IMAGE - a qemu-io in the background writes and reads, eight requests at a time, until end_io; its connection stays until leave_io
begin_io() {
	rm -f "$W/stop" "$W/rested" "$W/leave"
	(
		round=0
		open_io "$1"
		until [ -e "$W/stop" ] && [ $round -gt 1 ]; do
			round=$((round % 200 + 1))
			for block in 0 1 2 3 4 5 6 7; do
				tell "aio_write -P $((round + block)) $((block * 333))k 128k"
				hears
				[[ $said != *fail* ]] || fail "aio_write: $said"
			done
			tell aio_flush
			hears
			[[ $said != *fail* ]] || fail "aio_flush: $said"
			for block in 0 1 2 3 4 5 6 7; do does "read -P $((round + block)) $((block * 333))k 128k"; done
		done
		: >"$W/rested"
		until [ -e "$W/leave" ]; do sleep 0.05; done
		leave_io
	) &
	jobs_pid=$!
}
end_io() {
	: >"$W/stop"
	until_it "$jobs_pid" [ -e "$W/rested" ] || fail "qemu-io has ended"
	checks=$((checks + 1))
}
# leave_io - qemu-io ends, whose connection the server has closed
leave_io() {
	local pid=$IO_PID
	tell quit
	wait "$pid" || true
}
# end_export - QEMU ends its export, and the connection with it: an assertion of QEMU 7.2 fails if the client of an export in an iothread leaves
end_export() { qmp '{"execute": "block-export-del", "arguments": {"id": "e", "mode": "hard"}}' event=BLOCK_EXPORT_DELETED; }

# --- cases ------------------------------------------------------------------
case_multiconn() {
	local at flushes
	group
	serve "$W/d0.img" --nbd "unix:$W/nbd"
	at=$(uri vg/data)
	ok "multi-conn is offered" nbdinfo --can multi-conn "$at"
	ok "QEMU sees multi-conn" qemu-nbd --list --socket="$W/nbd"
	[ "$(grep -cE 'flags: .* multi ' "$W/said")" = 2 ] || fail "QEMU does not see multi-conn on both exports"
	flushes=$(stat_of dm-0 16)
	ok "three connections" nbdsh -c "
at, wanted, mib = '$at', bytearray(64 << 20), 1 << 20
def opened():
    client = nbd.NBD()
    client.connect_uri(at)
    assert client.can_multi_conn()
    return client
clients = [opened() for _ in range(3)]
for turn in range(24):
    # Each of them writes, flushes and reads in turn, at the same places.
    writer, flusher, reader = (clients[(turn + number) % 3] for number in range(3))
    offset, length = (turn % 5) * mib + turn * 7, mib - turn * 13
    data = bytes([turn + 1]) * length
    writer.pwrite(data, offset)
    wanted[offset:offset + length] = data
    assert reader.pread(length, offset) == data, 'an acknowledged write is not seen by another connection'
    flusher.flush()
    assert reader.pread(length, offset) == data and flusher.pread(length, offset) == data
# Many in flight on all of them, and one flush.
cookies = []
for block in range(240):
    client, data = clients[block % 3], bytes([block + 1]) * 65536
    offset = (16 << 20) + block * 65536
    wanted[offset:offset + 65536] = data
    cookies.append((client, client.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset)))
for client, cookie in cookies:
    while not client.aio_command_completed(cookie):
        client.poll(-1)
clients[0].flush()
open('$W/wanted', 'wb').write(wanted)
for client in clients:
    client.shutdown()
"
	more_than dm-0 16 $((flushes + 24)) || fail "flushes did not reach the device: $(stat_of dm-0 16) after $flushes"
	# What was flushed is there after the daemon was killed.
	kill_here
	serve "$W/d0.img" --nbd "unix:$W/nbd"
	ok "what was flushed" qemu-img compare -f raw -F raw "$W/wanted" "$at"

	head -c 40M /dev/urandom >"$W/data"
	truncate -s 64M "$W/data"
	ok "four connections" nbdcopy --connections=4 --requests=8 --flush "$W/data" "$at"
	ok "four connections read" nbdcopy --connections=4 "$at" "$W/back"
	cmp "$W/data" "$W/back" || fail "other data came back"

	# Two of QEMU's clients write every other block, and flush.
	local first=() second=() block pids=()
	for block in $(seq 0 2 62); do
		first+=(-c "write -P 0x51 $((block * 64))k 64k")
		second+=(-c "write -P 0x52 $((block * 64 + 64))k 64k")
	done
	qemu-io -f raw "${first[@]}" -c flush "$at" >"$W/first" 2>&1 &
	pids+=($!)
	qemu-io -f raw "${second[@]}" -c flush "$at" >"$W/second" 2>&1 &
	pids+=($!)
	for block in "${pids[@]}"; do wait "$block" || fail "one of two clients: $(tail -n 3 "$W/first" "$W/second")"; done
	for block in $(seq 0 2 62); do echo "read -P 0x51 $((block * 64))k 64k"; echo "read -P 0x52 $((block * 64 + 64))k 64k"; done >"$W/reads"
	mapfile -t first <"$W/reads"
	io "what two clients wrote" "$at" "${first[@]}"

	# An address with one connection at a time.
	serve "$W/d0.img" --nbd "unix:$W/nbd" --nbd-max-connections 1
	ok "QEMU sees an address for one client" qemu-nbd --list --socket="$W/nbd"
	! grep -qE 'flags: .* multi ' "$W/said" || fail "several connections are offered where one is served"
	ok "nbdcopy with one connection" nbdcopy --connections=4 --flush "$W/data" "$at"
	ok "nbdcopy with one connection" nbdcopy --connections=4 "$at" "$W/back"
	cmp "$W/data" "$W/back" || fail "other data came back over one connection"
	stop_here
}

# hang_up - takes one client's connection, and closes it: after that a client has tried, and there is no server
hang_up() {
	timeout 100 python3 -c '
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
client = listener.accept()[0]
os.unlink(sys.argv[1])
client.close()' "$W/nbd" &
	hanging=$!
	until_it $hanging test -S "$W/nbd" || fail "the listener that hangs up"
}
case_reconnect() {
	local image client hanging round
	truncate -s 64M "$W/a.img"
	io "data" "$W/a.img" "write -P 0x21 0 1M"
	image=$(node a.img)
	rm -f "$W/nbd"
	refused "no server" "No such file|Connection refused" qemu-io --image-opts -c "read 0 1M" "$image,open-timeout=0"
	refused "no server within a second" "No such file|Connection refused" qemu-io --image-opts -c "read 0 1M" "$image,open-timeout=1"
	# It has tried once when ashlar begins to listen.
	hang_up
	timeout 100 qemu-io --image-opts -c "read -P 0x21 0 1M" "$image,open-timeout=60" >"$W/said" 2>&1 &
	client=$!
	wait $hanging || fail "the client did not try to connect"
	serve "$W/a.img" --nbd "unix:$W/nbd"
	wait $client || fail "a client that came before its server"
	grep -q 'read 1048576/1048576' "$W/said" || fail "a client that came before its server reads less"

	# Killed between two requests, and the client notices while there is no server.
	open_io "$(node a.img reconnect-delay=100)"
	for round in 1 2; do
		does "write -P $round ${round}M 64k"
		kill_here
		rm -f "$W/nbd"
		hang_up
		if [ $round = 1 ]; then tell "read -P 1 1M 64k"; else tell "write -P 3 3M 64k"; fi
		wait $hanging || fail "the client did not try to connect again"
		serve "$W/a.img" --nbd "unix:$W/nbd"
		hears
		is_done "a request while there is no server"
	done
	does "read -P 1 1M 64k"
	does "read -P 2 2M 64k"
	does "read -P 3 3M 64k"
	close_io

	# Killed with requests in flight. The socket of the killed daemon stays until the next one takes its place.
	there "$W/far" qemu-storage-daemon --blockdev "$(node a.img node-name=far reconnect-delay=100)" --nbd-server "addr.type=unix,addr.path=$W/far" \
		--export nbd,id=e,node-name=far,name=disk,writable=on
	begin_jobs "$(uri disk "$W/far")"
	for round in $(seq "${KILLS:-2}"); do
		until_it "$jobs_pid" more_than a.img 5 50 || fail "no requests of fio in round $round"
		kill_here
		serve "$W/a.img" --nbd "unix:$W/nbd"
	done
	until_it "$jobs_pid" more_than a.img 5 50 || fail "no requests of fio after the last kill"
	end_jobs
	stop_there
	stop_here
}

# map IMAGE-OPTIONS - the parts of an image as qemu-img sees them, one for each stretch of a state
map() {
	timeout 60 qemu-img map --output=json --image-opts "$1" 2>>"$W/said" | jq -c '
		reduce .[] as $part ([]; if length > 0 and .[-1].zero == $part.zero and .[-1].data == $part.data
			then .[-1].length += $part.length else . + [$part | {start, length, zero, data}] end) | .[]'
}
# same_map WHAT - ashlar and qemu-nbd report the same of m.img
same_map() {
	local ours theirs
	serve "$W/m.img" --nbd "unix:$W/nbd"
	ours=$(map "$(node m.img)") || fail "$1: qemu-img map of ashlar's export"
	stop_here
	# Before somebody reads the file: pages in the cache count as data.
	there "$W/far" qemu-nbd --read-only --persistent --format=raw --socket="$W/far" "$W/m.img"
	theirs=$(map "driver=nbd,server.type=unix,server.path=$W/far") || fail "$1: qemu-img map of qemu-nbd's export"
	stop_there
	[ "$ours" = "$theirs" ] || fail "$1: ashlar reports"$'\n'"$ours"$'\n'"and qemu-nbd"$'\n'"$theirs"
	grep -q '"zero":true,"data":false' <<<"$ours" || fail "$1: no hole: $ours"
	grep -q '"zero":false,"data":true' <<<"$ours" || fail "$1: no data: $ours"
	checks=$((checks + 1))
	# qemu-img skips what it takes for zeroes.
	serve "$W/m.img" --nbd "unix:$W/nbd"
	rm -f "$W/back"
	ok "$1: a copy" qemu-img convert -f raw -O raw "$(uri m.img)" "$W/back"
	stop_here
	cmp "$W/m.img" "$W/back" || fail "$1: a copy that follows the map has other data"
}
case_allocation() {
	# QEMU 7.2 has only the error's number.
	local depth unknown='allocation-depth not found|Could not open image: Invalid argument'
	rm -f "$W/m.img"
	truncate -s 16M "$W/m.img"
	io "an image" "$W/m.img" "write -P 5 0 1M" "write -z 4M 1M" "write -z -u 5M 1M" "write -P 0 8M 1M" "write -P 7 12M 64k" "write -P 8 16380k 4k"
	same_map "an image"
	# What an NBD client changes.
	serve "$W/m.img" --nbd "unix:$W/nbd"
	io "changes" "$(uri m.img)" "write -z -u 256k 512k" "write -P 9 2M 128k" "discard 12M 64k" "write -z 2M 64k" "write -P 1 6M 1" flush
	stop_here
	same_map "what an NBD client changed"
	# Nothing but a hole, and nothing but data.
	serve "$W/m.img" --nbd "unix:$W/nbd"
	io "all zeroes" "$(uri m.img)" "write -z -u 0 16M" flush
	[ "$(map "$(node m.img)")" = '{"start":0,"length":16777216,"zero":true,"data":false}' ] || fail "a zeroed volume: $(map "$(node m.img)")"
	io "all data" "$(uri m.img)" "write -P 3 0 16M" flush
	[ "$(map "$(node m.img)")" = '{"start":0,"length":16777216,"zero":false,"data":true}' ] || fail "a full volume: $(map "$(node m.img)")"

	# A context that QEMU's server has with -A. The refused client says which, and others are not touched.
	open_io "$(node m.img)"
	depth=x-dirty-bitmap=qemu:allocation-depth
	refused "a context that ashlar does not have" "$unknown" qemu-img map --output=json --image-opts "$(node m.img $depth)"
	does "read -P 3 0 1M"
	refused "a context that ashlar does not have" "qemu:allocation-depth" nbdinfo --map=qemu:allocation-depth "$(uri m.img)"
	does "write -P 4 0 1M"
	close_io
	stop_here
	# QEMU's server with it, and without it: the client says the same.
	there "$W/far" qemu-nbd --read-only --persistent --format=raw --allocation-depth --socket="$W/far" "$W/m.img"
	ok "the context of QEMU's server" qemu-img map --output=json --image-opts "driver=nbd,server.type=unix,server.path=$W/far,$depth"
	stop_there
	there "$W/far" qemu-nbd --read-only --persistent --format=raw --socket="$W/far" "$W/m.img"
	refused "a context that QEMU's server does not have" "$unknown" qemu-img map --output=json --image-opts \
		"driver=nbd,server.type=unix,server.path=$W/far,$depth"
	stop_there
}

# size_of EXPORT BYTES
size_is() { [ "$(nbdinfo --size "$(uri "$1")")" = "$2" ]; }
case_iothreads() {
	local round size=64 at reads
	group
	serve "$W/d0.img" --nbd "unix:$W/nbd"
	there "$W/qmp" qemu-storage-daemon --object iothread,id=t0 --object iothread,id=t1 --blockdev "$(node vg/data node-name=far)" \
		--nbd-server "addr.type=unix,addr.path=$W/far" --export nbd,id=e,node-name=far,name=disk,writable=on,iothread=t0 \
		--chardev "socket,id=m,path=$W/qmp,server=on,wait=off" --monitor chardev=m
	begin_io "driver=nbd,server.type=unix,server.path=$W/far,export=disk"
	for round in 1 2 3 4; do
		at=$(stat_of dm-0 5)
		until_it "$jobs_pid" more_than dm-0 5 "${at:-0}" || fail "no requests of qemu-io in round $round"
		lvm lvcreate --control "$W/control" -L 8M -n new vg
		size=$((size + 4))
		lvm lvextend --control "$W/control" -L ${size}M vg/data
		size_is vg/data $((size << 20)) || fail "a new client does not see the new size"
		lvm lvchange --control "$W/control" -an vg/other
		qmp "{\"execute\": \"x-blockdev-set-iothread\", \"arguments\": {\"node-name\": \"far\", \"iothread\": \"t$((round % 2))\", \"force\": true}}"
		lvm lvremove --control "$W/control" --yes vg/new
		lvm lvchange --control "$W/control" -ay vg/other
	done
	at=$(stat_of dm-0 5)
	until_it "$jobs_pid" more_than dm-0 5 "$at" || fail "no requests of qemu-io after the changes"
	end_io
	end_export
	: >"$W/leave"
	wait "$jobs_pid" || fail "qemu-io"
	jobs_pid=''
	stop_there

	# A machine's disk moves to an iothread when its firmware finds it, and back at a reset; another client has it meanwhile.
	# No KVM: on some hosts it is there and does not run the firmware (tests/oracle/README.md).
	there "$W/qmp" qemu-system-x86_64 -accel tcg -machine q35 -nodefaults -no-user-config -display none -m 64 -object iothread,id=t0 \
		-blockdev "$(node vg/data node-name=far)" -device virtio-blk-pci,drive=far,iothread=t0,share-rw=on,bootindex=1 \
		-qmp "unix:$W/qmp,server=on,wait=off"
	rm -f "$W/far"
	qmp "{\"execute\": \"nbd-server-start\", \"arguments\": {\"addr\": {\"type\": \"unix\", \"data\": {\"path\": \"$W/far\"}}}}" \
		'{"execute": "block-export-add", "arguments": {"type": "nbd", "id": "e", "node-name": "far", "name": "disk", "writable": true}}'
	open_io "driver=nbd,server.type=unix,server.path=$W/far,export=disk"
	for round in $(seq "${RESETS:-3}"); do
		does "write -P $round ${round}M 64k"
		lvm lvcreate --control "$W/control" -L 8M -n new vg
		reads=$(stat_of dm-0 1)
		qmp '{"execute": "system_reset"}' event=RESET
		until_it "$there_pid" more_than dm-0 1 "$reads" || fail "the machine does not read its disk after reset $round"
		does "read -P $round ${round}M 64k"
		lvm lvremove --control "$W/control" --yes vg/new
	done
	qmp '{"execute": "query-status"}'
	grep -q '"status": "running"' "$W/said" || fail "the machine does not run"
	end_export
	leave_io
	stop_there
	stop_here
}

# The files of docs/nbd-tls.md, for a server and a client.
certificates() {
	local name
	mkdir -p "$W/pki"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 30 -subj "/CN=CA" -keyout "$W/pki/ca-key.pem" \
		-out "$W/pki/ca-cert.pem" -addext keyUsage=critical,keyCertSign,cRLSign 2>>"$W/said"
	printf '%s\n' subjectAltName=DNS:localhost,IP:127.0.0.1 extendedKeyUsage=serverAuth keyUsage=digitalSignature >"$W/server.ext"
	printf '%s\n' extendedKeyUsage=clientAuth keyUsage=digitalSignature >"$W/client.ext"
	for name in server client; do
		openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/O=ashlar tests/CN=$name" -keyout "$W/pki/$name-key.pem" \
			-out "$W/request" 2>>"$W/said"
		openssl x509 -req -in "$W/request" -CA "$W/pki/ca-cert.pem" -CAkey "$W/pki/ca-key.pem" -days 30 -extfile "$W/$name.ext" \
			-out "$W/pki/$name-cert.pem" 2>>"$W/said"
	done
}
case_tls() {
	local at number commands=()
	certificates
	truncate -s 64M "$W/a.img"
	head -c 8M /dev/urandom >"$W/source"
	truncate -s 64M "$W/source"
	cp --sparse=always "$W/source" "$W/wanted"
	serve "$W/a.img" --nbd tcp:127.0.0.1:0 --nbd "unix:$W/nbd" --tls=require --tls-dir "$W/pki" --tls-verify-peer
	port=$("$ashlar" status --json --control "$W/control" | grep -oE 'tcp:127\.0\.0\.1:[0-9]+' | head -n 1)
	port=${port##*:}
	there "$W/qmp" qemu-storage-daemon --object iothread,id=t0 --object "tls-creds-x509,id=c,dir=$W/pki,endpoint=client,verify-peer=on" \
		--blockdev "driver=file,node-name=near,filename=$W/source" --nbd-server "addr.type=unix,addr.path=$W/far" \
		--export nbd,id=e,node-name=near,name=disk,writable=on,iothread=t0 --chardev "socket,id=m,path=$W/qmp,server=on,wait=off" --monitor chardev=m
	at=$(uri disk "$W/far")
	qmp "{\"execute\": \"blockdev-add\", \"arguments\": {\"driver\": \"nbd\", \"node-name\": \"far\", \"export\": \"a.img\", \"tls-creds\": \"c\",
		\"server\": {\"type\": \"inet\", \"host\": \"localhost\", \"port\": \"$port\"}}}" \
		'{"execute": "blockdev-mirror", "arguments": {"job-id": "j", "device": "near", "target": "far", "sync": "full"}}' event=BLOCK_JOB_READY
	# Small requests while the mirror follows, of odd lengths.
	for number in $(seq 40); do commands+=("write -P $number $((number * 100003)) $((number * 37))"); done
	io "writes below the mirror" "$at" "${commands[@]}" flush
	# From here on the disk is ashlar's export.
	qmp '{"execute": "block-job-complete", "arguments": {"device": "j"}}' event=BLOCK_JOB_COMPLETED
	for number in $(seq 41 80); do commands+=("write -P $number $((number * 100003)) $((number * 37))"); done
	io "writes over TLS" "$at" "${commands[@]:40}" flush
	io "reads over TLS" "$at" "${commands[@]/#write/read}"
	stop_there
	io "the model" "$W/wanted" "${commands[@]}"
	stop_here
	cmp "$W/wanted" "$W/a.img" || fail "the volume is not what was mirrored and written"
}

# --- the file of a volume ---------------------------------------------------
size=$((1 << 20))
errors='Invalid argument|Operation not supported|No space left on device|Operation not permitted|Input/output error|Read-only file system|Permission denied'
# outcome COMMAND - executes it, with the file in $f: "done", or what it says is wrong
outcome() {
	if f=$f W=$W size=$size timeout -k 5 60 bash -c "$1" >"$W/said" 2>&1; then
		echo "done"
	else
		# fallocate(1) has words of its own.
		sed 's/keep size mode is unsupported/Operation not supported/' "$W/said" | grep -m 1 -oE "$errors" || echo "another error"
	fi
}
# theirs - a fresh export of QEMU's, as a file
theirs() {
	[ -z "$there_pid" ] || stop_there
	cp "$W/before" "$W/v2.img"
	: >"$W/theirs"
	there "$W/qmp" qemu-storage-daemon --blockdev "driver=file,node-name=n,filename=$W/v2.img,discard=unmap" \
		--export "fuse,id=f,node-name=n,mountpoint=$W/theirs,writable=on" --chardev "socket,id=m,path=$W/qmp,server=on,wait=off" --monitor chardev=m
}
# row WANTED as|unlike NAME COMMAND [MODEL] - the command on ashlar's file has this outcome, and changes what the model changes; and is it as QEMU's?
row() {
	local wanted=$1 kind=$2 name=$3 command=$4 model=${5:-:} got f qemu
	f=$W/mnt/dev/v.img
	cp "$W/before" "$W/wanted"
	cat "$W/before" | dd of="$f" bs=64k conv=notrunc status=none || fail "$name: a reset of the data"
	got=$(outcome "$command")
	[ "$got" = "$wanted" ] || fail "$name: $got, and not: $wanted"
	f=$W/wanted bash -c "$model" || fail "$name: the model"
	[ "$(stat -c %s "$f")" = $size ] || fail "$name: the volume has another size: $(stat -c %s "$f")"
	cmp "$W/wanted" "$f" || fail "$name: the volume has other data"
	cmp "$W/wanted" "$W/v.img" || fail "$name: the disk has other data"
	checks=$((checks + 1))
	theirs
	f=$W/theirs
	qemu="$(outcome "$command"), $(stat -c %s "$f")"
	if [ "$qemu" = "$got, $size" ] && cmp -s "$W/wanted" "$f"; then
		same=$((same + 1))
	elif [ "$kind" = as ]; then
		fail "$name: not as QEMU's file: $qemu"
	else
		others+=("$name: $got; QEMU: $qemu")
	fi
}
case_truncate() {
	local same=0 others=() f
	if [ ! -w /dev/fuse ]; then
		[ "${CI:-}" != true ] || fail "CI must have /dev/fuse"
		echo "qemu.sh: skipped: truncate: no /dev/fuse"
		return
	fi
	mkdir -p "$W/mnt"
	head -c $size /dev/urandom >"$W/before"
	cp "$W/before" "$W/v.img"
	# A file with data and a hole, of the same size.
	head -c 300000 /dev/urandom >"$W/holes"
	truncate -s $size "$W/holes"
	serve "$W/v.img" --mount "$W/mnt"
	# shellcheck disable=SC2016 # the commands have $f and $size
	{
		row "done" as "the same size" 'truncate -s $size "$f"'
		row "Invalid argument" unlike "smaller" 'truncate -s 4096 "$f"'
		row "Invalid argument" unlike "bigger" 'truncate -s $((size * 2)) "$f"'
		row "Invalid argument" unlike "empty" 'truncate -s 0 "$f"'
		row "done" unlike "O_TRUNC" ': >"$f"'
		row "done" unlike "O_TRUNC and a write" 'printf test >"$f"' 'printf test | dd of="$f" conv=notrunc status=none'
		row "No space left on device" unlike "appending" 'printf test >>"$f"'
		row "No space left on device" unlike "a write behind the end" 'dd if=/dev/zero of="$f" bs=4k count=1 seek=$size oflag=seek_bytes conv=notrunc'
		row "No space left on device" unlike "a write across the end" \
			'dd if=/dev/zero of="$f" bs=8k count=1 seek=$((size - 4096)) oflag=seek_bytes conv=notrunc' \
			'dd if=/dev/zero of="$f" bs=4k count=1 seek=255 conv=notrunc status=none'
		# It says that it cannot truncate, and ends without an error.
		row "done" unlike "dd that seeks and truncates" 'dd if=/dev/zero of="$f" bs=64k count=1 seek=1 2>&1 | grep "Invalid argument"' \
			'dd if=/dev/zero of="$f" bs=64k count=1 seek=1 conv=notrunc status=none'
		row "Operation not supported" as "preallocation" 'fallocate -o 4096 -l 65536 "$f"'
		row "Operation not supported" as "preallocation that keeps the size" 'fallocate -n -o 4096 -l 65536 "$f"'
		row "Invalid argument" unlike "preallocation behind the end" 'fallocate -o $size -l 65536 "$f"'
		row "done" as "posix_fallocate" 'fallocate -x -o 4096 -l 65536 "$f"'
		row "done" as "a hole" 'fallocate -p -o 5000 -l 65536 "$f"' 'dd if=/dev/zero of="$f" bs=65536 count=1 seek=5000 oflag=seek_bytes conv=notrunc status=none'
		row "done" as "a hole across the end" 'fallocate -p -o $((size - 4096)) -l 65536 "$f"' 'dd if=/dev/zero of="$f" bs=4k count=1 seek=255 conv=notrunc status=none'
		row "Invalid argument" unlike "a hole behind the end" 'fallocate -p -o $size -l 4096 "$f"'
		row "done" as "zeroes" 'fallocate -z -o 4096 -l 8192 "$f"' 'dd if=/dev/zero of="$f" bs=4k count=2 seek=1 conv=notrunc status=none'
		row "Invalid argument" unlike "zeroes across the end" 'fallocate -z -o $((size - 4096)) -l 65536 "$f"'
		row "done" as "zeroes across the end that keep the size" 'fallocate -n -z -o $((size - 4096)) -l 65536 "$f"' \
			'dd if=/dev/zero of="$f" bs=4k count=1 seek=255 conv=notrunc status=none'
		row "Operation not supported" as "a range that is collapsed" 'fallocate -c -o 4096 -l 4096 "$f"'
		row "Operation not supported" as "a range that is inserted" 'fallocate -i -o 4096 -l 4096 "$f"'
		row "done" as "cp of a file with a hole" 'cp --sparse=always "$W/holes" "$f"' "cp '$W/holes' \"\$f\""
		row "done" as "qemu-img convert -n" 'qemu-img convert -n -f raw -O raw "$W/holes" "$f"' "cp '$W/holes' \"\$f\""
		# It truncates the file to nothing first.
		row "Invalid argument" unlike "qemu-img create" 'qemu-img create -q -f raw "$f" $size'
		row "Invalid argument" unlike "qemu-img convert without -n" 'qemu-img convert -f raw -O raw "$W/holes" "$f"'
		row "Invalid argument" unlike "qemu-img resize, bigger" 'qemu-img resize -q -f raw "$f" 2M'
		row "Invalid argument" unlike "qemu-img resize, smaller" 'qemu-img resize -q -f raw --shrink "$f" 512k'
		row "done" as "qemu-io with a discard" 'qemu-io -f raw -n -c "write -P 6 64k 64k" -c "discard 64k 64k" -c "read -P 0 64k 64k" "$f"' \
			'dd if=/dev/zero of="$f" bs=64k count=1 seek=1 conv=notrunc status=none'
		row "Operation not permitted" unlike "chmod" 'chmod u+x "$f"'
	}
	stop_there
	serve "$W/v.img" --mount "$W/mnt" --read-only
	cp "$W/v.img" "$W/wanted"
	f=$W/mnt/dev/v.img
	# The user root passes the check of the file's mode.
	# shellcheck disable=SC2016
	for command in ': >"$f"' 'printf test >>"$f"' 'truncate -s 0 "$f"' 'fallocate -p -o 0 -l 4096 "$f"'; do
		[[ $(outcome "$command") =~ ^(Read-only\ file\ system|Permission\ denied)$ ]] || fail "read-only: $command: $(<"$W/said")"
		cmp "$W/wanted" "$f" || fail "read-only: $command changes the volume"
		checks=$((checks + 1))
	done
	stop_here
	printf '%s\n' "${others[@]}" >"$W/others"
	note=", $same rows as QEMU's file, ${#others[@]} not (docs/qemu.md)"
}

for case in "${cases[@]}"; do
	note='' begun=$checks
	case $case in
	multiconn | reconnect | allocation | iothreads | tls | truncate) "case_$case" ;;
	*) fail "no such case" ;;
	esac
	echo "pass $case: $((checks - begun)) checks$note"
done
