#!/bin/bash
# nbd-members.sh - a RAID1 of a file and an export of another NBD server, whose server dies, ends, hangs, is slow or reports errors.
#
# Each round: fio writes to the array over NBD while something happens to the far member's server, a flush ends it, and in every
# other round the daemon is killed then. What was flushed is there. The member comes back by itself (after errors, and to a new daemon, by hand), a
# check finds no difference, and both members alone hold the data at the end. No write waits much longer than the deadline.
#
#   nbdkit   the server is killed, ends, or hangs and continues
#   delay    the same, of a server that takes 5 ms for each write
#   qemu     the same, of qemu-nbd
#   error    the server reports errors for a while
#
# usage: nbd-members.sh [-r ROUNDS] [KIND...]    default: 1 round of each kind
# environment: ASHLAR=FILE the program, default target/debug/ashlar; SEED=N what is done when; KEEP=1 keep the files
# Needs the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"

rounds=1
if [ "${1:-}" = -r ]; then rounds=$2; shift 2; fi
kinds=("$@")
[ $# -gt 0 ] || kinds=(nbdkit delay qemu error)
seed=${SEED:-$RANDOM}
RANDOM=$seed
deadline_ms=3000
# The longest wait of a write, seconds: the deadline, a second, and what a busy machine adds.
bound=10

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-nbd.XXXXXX")
server='' far='' kind='' n=0 longest=0

cleanup() {
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	[ -z "$far" ] || kill -KILL "$far" 2>/dev/null || true
	wait 2>/dev/null
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
	echo "nbd-members.sh: $kind, round $n: $*; SEED=$seed" >&2
	# Without the clients that ask whether it serves yet.
	grep -v "NBD connection lost" "$W/log" | tail -n 60 >&2
	exit 1
}

chance() { [ $((RANDOM % $1)) = 0 ]; }
pause() { sleep "$((RANDOM % $1))e-3"; }
control() { timeout -k 5 60 "$ashlar" "$@" --control "$W/control"; }
uri="nbd+unix:///?socket=$W/far"
volume="nbd+unix:///md/data?socket=$W/nbd"

listens() { [ -n "$(nbdinfo --size "nbd+unix:///${2:-}?socket=$1" 2>/dev/null)" ]; }

# far - start the far member's server
far() {
	local command=(nbdkit -f -U "$W/far")
	rm -f "$W/far"
	case $kind in
	qemu) command=(qemu-nbd --persistent --shared=8 --format=raw --cache=writeback --discard=unmap --socket="$W/far" "$W/far.img") ;;
	delay) command+=(--filter=delay file "$W/far.img" delay-write=5ms) ;;
	error) command+=(--filter=error file "$W/far.img" error-pwrite=EIO error-pwrite-rate=10% error-file="$W/errors") ;;
	*) command+=(file "$W/far.img") ;;
	esac
	"${command[@]}" >>"$W/log" 2>&1 &
	far=$!
	until_done 20 "the server of the far member listens" listens "$W/far"
}

# serve - start ashlar
serve() {
	rm -f "$W/nbd"
	"$ashlar" serve "$W/near.img" "$uri" --run --nbd "unix:$W/nbd" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	until_done 20 "ashlar serves" listens "$W/nbd" md/data
	control set sys/block/far/queue/io_timeout $deadline_ms >>"$W/log" || fail "no deadline"
}

# job OPTION... - fio over the whole volume, each block once
job() {
	timeout 120 fio --aux-path="$W" --verify_state_save=0 --name=job --ioengine=nbd --uri="$volume" --size=24M --bs=4k --rw=randwrite --iodepth=8 --randseed=$((seed + n)) \
		--verify=crc32c --verify_fatal=1 "$@"
}

status() { control status 2>>"$W/log"; }
complete() { [[ $(status) == *"2 of 2 devices"* ]] && [ "$(control get sys/block/md127/md/sync_action)" = idle ]; }

# happens - something happens to the far member's server
happens() {
	local event=$((RANDOM % 3))
	[ "$kind" != error ] || event=3
	pause 1500
	case $event in
	0)
		kill -KILL $far
		wait $far 2>/dev/null || true
		pause 2000
		far
		;;
	1)
		kill -TERM $far
		# A server that waits for its clients learns from the next request of ours that we leave.
		until_done 30 "the server ends" eval "! kill -0 $far 2>/dev/null"
		wait $far 2>/dev/null || true
		pause 2000
		far
		;;
	2)
		kill -STOP $far
		pause 8000
		kill -CONT $far
		;;
	3)
		touch "$W/errors"
		pause 1500
		rm "$W/errors"
		;;
	esac
}

# returns - the far member is a member again
returns() {
	# A daemon re-adds a member that is behind when it starts. Otherwise one that failed with an error is re-added by hand; and one that has
	# only a list of bad blocks, because no write of metadata met an error, lacks what was written there until it is.
	if [ "$kind" = error ] && [ -n "$(control get sys/block/md127/md/rd1/bad_blocks 2>>"$W/log")" ]; then
		control md fail md/data "$uri" >>"$W/log" 2>&1 || fail "not failed"
	fi
	if [ "$kind" = error ] && [[ $(control md detail md/data) == *faulty* ]]; then
		control md remove md/data "$uri" >>"$W/log" 2>&1 || fail "not removed"
		control md re-add md/data "$uri" >>"$W/log" 2>&1 || fail "not re-added"
	fi
	until_done 120 "the far member is back" complete
}

round() {
	local writer waited
	job --do_verify=0 --end_fsync=1 --rate_iops=2500 --output-format=json --output="$W/fio.json" >>"$W/log" 2>&1 &
	writer=$!
	happens
	wait $writer || { cat "$W/fio.json" >&2; fail "the writes failed"; }
	waited=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["jobs"][0]["write"]["lat_ns"]["max"] // 10**6)' <"$W/fio.json")
	[ "$waited" -le $longest ] || longest=$waited
	[ "$waited" -le $((bound * 1000)) ] || fail "a write waited $waited ms"
	if chance 2; then
		kill -KILL $server
		wait $server 2>/dev/null || true
		serve
	fi
	job --verify_only >"$W/verify" 2>&1 || { cat "$W/verify" >&2; fail "what was flushed is not there"; }
	returns
	control md action md/data check >>"$W/log" || fail "no check"
	until_done 60 "the check ends" complete
	[ "$(control get sys/block/md127/md/mismatch_cnt)" = 0 ] || fail "the members differ"
}

# alone IMAGE - this member alone holds the data of the last round
alone() {
	"$ashlar" serve "$W/$1" --run --read-only --nbd "unix:$W/nbd" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	until_done 20 "ashlar serves $1" listens "$W/nbd" md/data
	job --verify_only >"$W/verify" 2>&1 || { cat "$W/verify" >&2; fail "$1 alone has not the data"; }
	control stop >>"$W/log" || fail "no stop"
	wait $server || fail "not clean"
	server=''
}

for kind in "${kinds[@]}"; do
	rm -f "$W"/*.img
	truncate -s 32M "$W/near.img" "$W/far.img"
	n=0
	far
	"$ashlar" md create --level=1 --raid-devices=2 --name=data --bitmap=internal --bitmap-chunk=64K "$W/near.img" "$uri" >>"$W/log" 2>&1 ||
		fail "no array"
	serve
	until_done 60 "the array is in sync" complete
	for ((n = 1; n <= rounds; n++)); do round; done
	n=$rounds
	control stop >>"$W/log" || fail "no stop"
	wait $server || fail "not clean"
	server=''
	kill -TERM $far
	wait $far 2>/dev/null || true
	far=''
	rm -f "$W/nbd"
	alone near.img
	rm -f "$W/nbd"
	alone far.img
	echo "$kind: $rounds rounds"
done
echo "the longest wait of a write: $longest ms (deadline $deadline_ms ms)"
