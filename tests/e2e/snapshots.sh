#!/bin/bash
# snapshots.sh - snapshots of mounted file systems under load: each is the file system at one moment.
#
# ext4 and xfs on a logical volume, through FUSE and a loop device. Each round, while churn and fio write to the file
# system: a file is written and flushed; `ashlar lvm lvcreate -s` makes a snapshot of the volume in use, without fsfreeze;
# the snapshot is mounted through a loop device of its own, which replays its journal, and has the file, and
# whatever earlier rounds have flushed; unmounted, it has nothing to repair. Some rounds keep an older snapshot beside it, which
# is checked last. Then it is removed. At the end the volume grows in use, and the file system.
#
# usage: snapshots.sh [-r ROUNDS] [ext4|xfs]...    default: 3 rounds of each
# environment: ASHLAR=FILE the program, default target/debug/ashlar; KEEP=1 keep the files
# Needs root (loop devices, mounts) and the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"

# churn DIRECTORY - files are written, named after their checksum, and deleted, until the end
churn() {
	local n=0 sum
	cd "$1"
	while head -c $((RANDOM * 16 + 1)) /dev/urandom >new && sum=$(sha256sum new) && mv new "${sum%% *}"; do
		n=$((n + 1))
		if [ $((n % 8)) = 0 ]; then find . -type f -name '??????????*' | shuf -n 10 | xargs rm -f || break; fi
	done 2>/dev/null
}
if [ "${1:-}" = --churn ]; then
	churn "$2"
	exit 0
fi

arguments=("$@") rounds=3
if [ "${1:-}" = -r ]; then rounds=$2; shift 2; fi
kinds=("$@")
[ $# -gt 0 ] || kinds=(ext4 xfs)
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "snapshots.sh: CI must run as root" >&2; exit 1; }
	echo "snapshots.sh: skipped: loop devices and mounts need root"
	exit 0
fi
# In a mount namespace of its own: no mount outlives this script.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "${arguments[@]}"

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-snapshots.XXXXXX")
mkdir "$W/vol" "$W/mnt" "$W/snap"
export XDG_STATE_HOME=$W/state
server='' loop='' loops=() writers=()
bounded() { timeout -k 5 60 "$@"; }
# stop_writers - with their child processes
stop_writers() {
	local writer _
	for writer in "${writers[@]}"; do
		kill -KILL -- "-$writer" 2>/dev/null || true
		wait "$writer" 2>/dev/null || true
		# Its child processes may live a little longer, in a directory of the mount.
		for _ in $(seq 200); do
			kill -0 -- "-$writer" 2>/dev/null || break
			sleep 0.05
		done
	done
	writers=()
}
cleanup() {
	stop_writers
	bounded umount "$W/snap" 2>/dev/null || true
	bounded umount "$W/mnt" 2>/dev/null || bounded umount -l "$W/mnt" 2>/dev/null || true
	for device in "${loops[@]}" $loop; do bounded losetup -d "$device" 2>/dev/null || true; done
	# First the connection: the last process of this mount namespace would wait for itself.
	bounded umount -f "$W/vol" 2>/dev/null || bounded umount -l "$W/vol" 2>/dev/null || true
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf --one-file-system "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "snapshots.sh: $kind, round $n: $*" >&2
	tail -n 30 "$W/log" >&2
	exit 1
}
lvm() { bounded "$ashlar" lvm "$1" --control "$W/control" "${@:2}" >>"$W/log" 2>&1 || fail "lvm $*"; }

# attach VOLUME - a loop device; sets $attached
attach() {
	until_done 60 "the volume $1" [ -e "$W/vol/dev/vg/$1" ]
	attached=$(bounded losetup -f --show --direct-io=on "$W/vol/dev/vg/$1") || fail "no loop device for $1"
}
mount_fs() {
	case $kind in
	ext4) bounded mount "$@" ;;
	xfs) bounded mount -o nouuid "$@" ;;
	esac
}

# judge SNAPSHOT ROUND - it is the file system as of a moment after the flushes of ROUND
judge() {
	local device marker
	attach "$1"
	device=$attached
	loops+=("$device")
	mount_fs "$device" "$W/snap" || fail "$1 cannot be mounted"
	for marker in $(seq "$2"); do
		[ "$(cat "$W/snap/marker-$marker" 2>/dev/null)" = "flushed in round $marker" ] || fail "$1 lacks what was flushed in round $marker"
	done
	bounded umount "$W/snap" || fail "$1 cannot be unmounted"
	case $kind in
	ext4) bounded e2fsck -fn "$device" >"$W/fsck" 2>&1 ;;
	xfs) bounded xfs_repair -n "$device" >"$W/fsck" 2>&1 ;;
	esac || { cat "$W/fsck"; fail "$1 has something to repair"; }
	bounded losetup -d "$device"
	loops=()
}

for kind in "${kinds[@]}"; do
	n=0
	rm -f "$W"/d?.img
	truncate -s 1200M "$W/d0.img" "$W/d1.img"
	"$ashlar" lvm vgcreate vg "$W/d0.img" "$W/d1.img" >>"$W/log" 2>&1 || fail "no group"
	"$ashlar" lvm lvcreate --devices "$W/d0.img,$W/d1.img" -n data -L 320M -i 2 vg >>"$W/log" 2>&1 || fail "no volume"
	"$ashlar" serve "$W/d0.img" "$W/d1.img" --mount "$W/vol" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	attach data
	loop=$attached
	case $kind in
	ext4) mkfs.ext4 -q "$loop" ;;
	xfs) mkfs.xfs -q "$loop" ;;
	esac
	mount_fs "$loop" "$W/mnt" || fail "the file system cannot be mounted"
	mkdir "$W/mnt/churn"
	setsid "$here/snapshots.sh" --churn "$W/mnt/churn" &
	writers=($!)
	setsid fio --thread --name=load --directory="$W/mnt" --size=48M --rw=randwrite --bs=4k --fsync=16 --ioengine=psync \
		--time_based --runtime=3600 >/dev/null 2>&1 &
	writers+=($!)
	old=''
	for n in $(seq "$rounds"); do
		echo "flushed in round $n" | dd of="$W/mnt/marker-$n" conv=fsync status=none
		lvm lvcreate -s -n "snap$n" -L 240M vg/data
		judge "snap$n" "$n"
		if [ -n "$old" ]; then
			judge "snap$old" "$old"
			lvm lvremove -y "vg/snap$old"
			old=''
		fi
		if [ $((n % 3)) = 1 ]; then old=$n; else lvm lvremove -y "vg/snap$n"; fi
	done
	if [ -n "$old" ]; then lvm lvremove -y "vg/snap$old"; fi
	# It grows while it is written to: the mount shows the new size at once, the loop device after losetup -c.
	before=$(bounded blockdev --getsize64 "$loop")
	lvm lvextend -L +64M vg/data
	bounded losetup -c "$loop"
	[ "$(bounded blockdev --getsize64 "$loop")" = $((before + (64 << 20))) ] || fail "the loop device has not grown"
	if [ "$kind" = xfs ]; then bounded xfs_growfs "$W/mnt" >>"$W/log" 2>&1 || fail "the file system cannot grow"; fi
	stop_writers
	bounded umount "$W/mnt" || fail "the file system cannot be unmounted"
	case $kind in
	# Unmounted: in use this takes the right CAP_SYS_RESOURCE, which containers lack.
	ext4) bounded e2fsck -fp "$loop" >"$W/fsck" 2>&1 && bounded resize2fs "$loop" >>"$W/fsck" 2>&1 && bounded e2fsck -fn "$loop" >>"$W/fsck" 2>&1 ;;
	xfs) bounded xfs_repair -n "$loop" >"$W/fsck" 2>&1 ;;
	esac || { cat "$W/fsck"; fail "the grown file system has something to repair"; }
	bounded losetup -d "$loop"
	loop=''
	bounded "$ashlar" stop --control "$W/control" || fail "the daemon does not stop cleanly"
	wait "$server" || fail "the daemon has failed"
	server=''
	echo "$kind: $rounds snapshots under load, each the file system at one moment"
done
