#!/bin/bash
# rbd.sh - arrays, volumes and a btrfs on images of a real Ceph cluster whose OSDs die, stop responding and return, and
# whose daemon is killed with SIGKILL: nothing flushed is lost.
#
# Each round of a case: serve the stack; crash.py writes through NBD, and notes durably what was flushed; meanwhile something happens to
# the cluster, by turns:
#   kill     an OSD is killed, and started again
#   freeze   an OSD is stopped, and continues after its peers have noticed
#   both     all OSDs are stopped for a moment, and continue
# Nothing of this may fail a request, or a member. Then the daemon is killed while crash.py writes; the next round's daemon waits
# until the cluster has missed the dead one, and crash.py verifies. At the end fio writes and verifies while an OSD is killed,
# arrays are checked for mismatches, and the daemon stops.
#
# usage: rbd.sh [-r ROUNDS] [CASE...]     default: 1 round of mirror
#   mirror   md RAID1 of a file and an image
#   ten      md RAID10 of four images
#   lvm      a volume of a group on two images, with a snapshot that stays what it was
#   btrfs    a btrfs on an image, made by mkfs.btrfs from a directory; scrubbed before and after each outage
#   all      all of them
# environment: ASHLAR=FILE the program, default target/debug/ashlar; SEED=N what is done when; KEEP=1 keep the files
# Needs the packages of scripts/setup test; no root.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"

rounds=1
if [ "${1:-}" = -r ]; then rounds=$2; shift 2; fi
cases=("$@")
[ $# -gt 0 ] || cases=(mirror)
[ "${cases[*]}" != all ] || cases=(mirror ten lvm btrfs)
seed=${SEED:-$RANDOM}
RANDOM=$seed
ceph_run=$root/tests/oracle/ceph-run
W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-rbd.XXXXXX")
C=$W/ceph
server='' writer='' name='' n=0
bounded() { timeout -k 5 90 "$@"; }
cleanup() {
	[ -z "$writer" ] || kill "$writer" 2>/dev/null || true
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	wait 2>/dev/null || true
	if [ "${KEEP:-}" = 1 ]; then
		echo "kept: $W (and its cluster: $ceph_run down $C)"
	else
		[ ! -e "$C" ] || "$ceph_run" down "$C" >/dev/null
		rm -rf --one-file-system "$W"
	fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "rbd.sh: $name, round $n: $*; SEED=$seed" >&2
	[ ! -e "$W/log" ] || tail -n 30 "$W/log" >&2
	exit 1
}
pause() { sleep "$((RANDOM % $1))e-3"; }
ceph() { bounded "$ceph_run" "$1" "$C" "${@:2}" >>"$W/ceph.log" || fail "ceph-run $*"; }
client() { bounded "$ashlar" "$@" --control "$W/control"; }

# The grace of heartbeats is 20 s by default, and a dead client is missed after 30 s.
bounded "$ceph_run" up "$C" --osds 3 --conf 'osd_heartbeat_grace = 3' --conf 'osd_heartbeat_interval = 1' \
	--conf 'osd_client_watch_timeout = 5' >"$W/ceph.log" || { cat "$W/ceph.log"; fail "no cluster"; }
export CEPH_CONF=$C/ceph.conf

# image NAME SIZE - makes it; its URI is in $uri
image() {
	bounded rbd create --size "$2" "$1" || fail "no image $1"
	uri="rbd:rbd/$1?conf=$CEPH_CONF"
}

# unlocked - the command that has just ended has closed the images of this case
unlocked() {
	local image
	for image in $(rbd ls); do
		[ -z "$(bounded rbd lock ls "$image")" ] || fail "$image is locked after $*"
	done
}

# serve - waits for the lock of a daemon that was killed
serve() {
	rm -f "$W/nbd" "$W/control"
	"$ashlar" serve "${disks[@]}" --nbd "unix:$W/nbd" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	until_done 60 "ashlar serves" serves
}

serves() {
	! client status >/dev/null 2>&1 || return 0
	kill -0 $server 2>/dev/null || fail "ashlar serve ended"
	return 1
}

killed() {
	kill -KILL $server
	{ wait $server || true; } 2>/dev/null
	server=''
}

stopped() {
	client stop >>"$W/log" 2>&1 || fail "ashlar stop"
	wait $server || fail "ashlar serve ended with $?"
	server=''
	unlocked "the daemon's end"
}

# crash write|verify
crash() {
	timeout -k 5 180 "$root/tests/interop/crash.py" "$1" --seed "$name" --state "$W/$name.state" --log "$W/$name.flushed" \
		--discards "nbd:$W/nbd:$volume"
}

write_on() {
	: >"$W/$name.flushed"
	crash write >"$W/crash.out" 2>&1 &
	writer=$!
	until_done 20 "something is flushed" has_flushed 0
}

# has_flushed COUNT - crash.py writes, and has flushed more often than that
has_flushed() {
	[ "$(wc -l <"$W/$name.flushed")" -le "$1" ] || return 0
	kill -0 "$writer" 2>/dev/null || { cat "$W/crash.out"; fail "a write failed"; }
	return 1
}

# progress - writes end again
progress() {
	until_done 30 "a write ends" has_flushed "$(wc -l <"$W/$name.flushed")"
}

healthy() {
	case $name in
	mirror) want='2 of 2 devices' ;;
	ten) want='4 of 4 devices' ;;
	*) return 0 ;;
	esac
	client status >"$W/status" || fail "no status"
	grep -q "$want" "$W/status" || { cat "$W/status"; fail "a member has failed"; }
}

# trouble TURN - of an OSD, and of all
trouble() {
	local osd=$((RANDOM % 3))
	case $(($1 % 3)) in
	0)
		ceph kill-osd $osd
		progress
		ceph start-osd $osd
		;;
	1)
		ceph freeze-osd $osd
		sleep 5
		ceph thaw-osd $osd
		;;
	2)
		for osd in 0 1 2; do ceph freeze-osd $osd; done
		sleep 2
		for osd in 0 1 2; do ceph thaw-osd $osd; done
		;;
	esac
	ceph wait-clean 60
	progress
}

# fio_through - fio writes and verifies its data while an OSD is killed and returns
fio_through() {
	local job
	bounded fio --name=job --ioengine=nbd --uri="nbd+unix:///${volume//\//%2f}?socket=$W/nbd" --rw=randwrite --bs=16k --iodepth=8 \
		--size="$1" --io_size="$1" --verify=crc32c --do_verify=1 --verify_state_save=0 --fsync=32 --randseed=$seed >"$W/fio.out" 2>&1 &
	job=$!
	sleep 0.3
	ceph kill-osd 0
	ceph start-osd 0
	wait $job || { cat "$W/fio.out"; fail "fio"; }
}

# through_nbd FIO_SIZE - the rounds of a case
through_nbd() {
	for n in $(seq "$rounds"); do
		serve
		[ "$n" = 1 ] || crash verify >>"$W/verified" || fail "what was flushed is lost"
		write_on
		trouble $((n - 1 + seed))
		healthy
		pause 500
		kill -0 "$writer" 2>/dev/null || { cat "$W/crash.out"; fail "a writer ended before the daemon"; }
		killed
		wait "$writer" || { cat "$W/crash.out"; fail "crash.py write"; }
		writer=''
	done
	serve
	crash verify >>"$W/verified" || fail "what was flushed is lost"
	fio_through "$1"
	healthy
}

is_idle() { [ "$(client get sys/block/md0/md/sync_action)" = idle ]; }

# same - a check finds no mismatches
same() {
	until_done 60 "syncs end" is_idle
	client md action md0 check >>"$W/log" 2>&1 || fail "check"
	[ "$(client get sys/block/md0/md/mismatch_cnt)" = 0 ] || fail "the copies differ"
}

mirror() {
	truncate -s 48M "$W/m0.img"
	image m1 48M
	disks=("$W/m0.img" "$uri") volume=md0
	"$ashlar" md create --level=1 --raid-devices=2 --name=0 --bitmap=internal --assume-clean "${disks[@]}" >>"$W/log" 2>&1 || fail "md create"
	unlocked "md create"
	through_nbd 16M
	same
	stopped
}

ten() {
	local member
	disks=() volume=md0
	for member in t0 t1 t2 t3; do
		image $member 48M
		disks+=("$uri")
	done
	"$ashlar" md create --level=10 --layout=n2 --raid-devices=4 --name=0 --bitmap=internal --assume-clean "${disks[@]}" >>"$W/log" 2>&1 || fail "md create"
	unlocked "md create"
	through_nbd 32M
	same
	stopped
}

lvm() {
	image v0 128M
	disks=("$uri") volume=vg/data
	image v1 128M
	disks+=("$uri")
	"$ashlar" lvm vgcreate vg "${disks[@]}" >>"$W/log" 2>&1 || fail "vgcreate"
	"$ashlar" lvm lvcreate --devices "${disks[0]},${disks[1]}" -n data -L 64M -i 2 vg >>"$W/log" 2>&1 || fail "lvcreate"
	unlocked "lvcreate"
	serve
	"$root/tests/interop/stamp.py" write --seed lvm --phase 1 "nbd:$W/nbd:vg/data" >/dev/null || fail "stamps"
	client lvm lvcreate -s -n before -L 96M vg/data >>"$W/log" 2>&1 || fail "lvcreate -s"
	stopped
	# crash.py expects zeroes at first.
	"$ashlar" lvm lvcreate --devices "${disks[0]},${disks[1]}" -n other -L 48M vg >>"$W/log" 2>&1 || fail "lvcreate"
	volume=vg/other
	through_nbd 16M
	"$root/tests/interop/stamp.py" verify --seed lvm --phase 1 "nbd:$W/nbd:vg/before" >>"$W/verified" || fail "the snapshot has changed"
	stopped
}

btrfs() {
	mkdir "$W/tree"
	local file
	for file in $(seq 20); do head -c "$((RANDOM * 8))" /dev/urandom >"$W/tree/$file"; done
	truncate -s 256M "$W/btrfs.img"
	mkfs.btrfs -q --rootdir "$W/tree" "$W/btrfs.img" >/dev/null 2>&1 || fail "mkfs.btrfs"
	bounded rbd import --no-progress "$W/btrfs.img" b0 || fail "rbd import"
	uri="rbd:rbd/b0?conf=$CEPH_CONF"
	for n in $(seq "$rounds"); do
		ceph kill-osd $((n % 3))
		bounded "$ashlar" btrfs scrub start -B "$uri" >"$W/scrub" 2>&1 || { cat "$W/scrub"; fail "scrub"; }
		ceph start-osd $((n % 3))
		ceph wait-clean 60
		rm -rf "$W/restored"
		mkdir "$W/restored"
		bounded "$ashlar" btrfs restore "$uri" "$W/restored" >"$W/restore" 2>&1 || { cat "$W/restore"; fail "restore"; }
		diff -r "$W/tree" "$W/restored" || fail "the files are not what they were"
		unlocked "btrfs restore"
		echo "$(wc -c "$W"/restored/* | tail -n 1) bytes restored" >"$W/verified"
	done
}

for name in "${cases[@]}"; do
	case $name in mirror | ten | lvm | btrfs) ;; *) echo "rbd.sh: no case $name" >&2; exit 2 ;; esac
	begin=$SECONDS n=0
	: >"$W/verified"
	: >"$W/log"
	"$name"
	for made in $(rbd ls); do bounded rbd rm --no-progress "$made" || fail "an image is still in use"; done
	echo "$name: $rounds rounds, $((SECONDS - begin)) s; $(tail -n 1 "$W/verified")"
done
