#!/bin/bash
# xfstests.sh - what named cases of xfstests' generic group test, on ext4 and xfs over ashlar's RAID1 and RAID10.
#
# Debian has no package of xfstests, and this fetches nothing: the cases are written anew here, from what they test, with
# exercise.py (which has an exerciser of files like fsx and one of trees like fsstress), fio, fstrim and xfs_io. Each
# case has a directory of its own; after it the file system is unmounted, checked, and mounted again. After all cases
# ashlar stops, and the copies on the members are compared. Loop devices have direct I/O in every other array.
#
# The cases, with the numbers of their models:
#   001  chains of copies of files               112  asynchronous I/O, verified (fio, libaio)
#   002  the count of hard links                 127  fsx with mappings
#   007  names that come and go                  251  fstrim while files are copied and compared
#   013  fsstress                                263  fsx, direct and through the page cache by turns
#   014  a sparse file                           269  fsstress on a file system that is full
#   074  writers with mappings, verified (fio)   299  asynchronous I/O while a file is cut and allocated
#   075  fsx                                     388  the file system shuts down under fsstress, and recovers
#   091  fsx with direct I/O                     392  what was flushed before a shutdown is there
#
# usage: xfstests.sh [-s SECONDS] [CASE...]     SECONDS: how long a case with a duration takes, default 10; default: all cases
# environment: ASHLAR=FILE the program, default target/debug/ashlar; FS="ext4 xfs"; ARRAYS="raid1 raid10"; SEED=N what is done
#   (but not in which order processes do it); KEEP=1 keep the files
# Needs root (loop devices, mounts) and the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
arguments=("$@") seconds=10
if [ "${1:-}" = -s ]; then seconds=$2; shift 2; fi
all=(001 002 007 013 014 074 075 091 112 127 251 263 269 299 388 392)
cases=("$@")
[ $# -gt 0 ] || cases=("${all[@]}")
for case in "${cases[@]}"; do
	case " ${all[*]} " in
	*" $case "*) ;;
	*)
		echo "xfstests.sh: no case $case: ${all[*]}" >&2
		exit 2
		;;
	esac
done
read -ra kinds <<<"${FS:-ext4 xfs}"
read -ra arrays <<<"${ARRAYS:-raid1 raid10}"
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "xfstests.sh: CI must run as root" >&2; exit 1; }
	echo "xfstests.sh: skipped: loop devices and mounts need root"
	exit 0
fi
# In a mount namespace of its own, so that no mount outlives this one, and none is held by another.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "${arguments[@]}"
seed=${SEED:-$RANDOM}

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-xfstests.XXXXXX")
# shellcheck source=tests/e2e/array-on-loop.sh
. "$here/array-on-loop.sh"
array='' kind='' case='' background=()
cleanup() {
	[ ${#background[@]} = 0 ] || kill "${background[@]}" 2>/dev/null || true
	if mountpoint -q "$W/mnt"; then umount "$W/mnt" || umount -l "$W/mnt"; fi
	[ -z "$loop" ] || losetup -d "$loop" || true
	[ -z "$server" ] || { kill "$server" && wait "$server"; } || true
	! mountpoint -q "$W/vol" || umount -l "$W/vol"
	if [ "${KEEP:-}" = 1 ]; then echo "kept: $W"; else rm -rf --one-file-system "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
mkdir "$W/mnt" "$W/vol"
fail() {
	echo "xfstests.sh: $array $kind $case: $*; SEED=$seed" >&2
	tail -n 20 "$W/log" "$W/output" >&2
	exit 1
}

# --- the array and the file system ------------------------------------------
make_array() {
	local options
	rm -f "$W"/m?.img
	case $1 in
	raid1) options=(--level=1 --raid-devices=2) && truncate -s 640M "$W/m0.img" "$W/m1.img" ;;
	raid10) options=(--level=10 --raid-devices=4 --layout=f2 --chunk=64K) && truncate -s 320M "$W"/m{0,1,2,3}.img ;;
	*) fail "no such array" ;;
	esac
	"$ashlar" md create --bitmap=internal "${options[@]}" "$W"/m?.img >>"$W/log" 2>&1 || fail "md create"
}

make_fs() {
	case $kind in
	ext4) mkfs.ext4 -q -F "$loop" ;;
	xfs) mkfs.xfs -q -f "$loop" ;;
	*) fail "no such file system" ;;
	esac
}

check() {
	case $kind in
	ext4) e2fsck -fn "$loop" >"$W/output" 2>&1 ;;
	xfs) xfs_repair -n "$loop" >"$W/output" 2>&1 ;;
	esac || fail "the file system is damaged"
}

# again - unmount, and mount: what is read now comes from the array
again() { umount "$W/mnt" && mount "$loop" "$W/mnt"; }

# --- the cases: each works in $D, a directory of its own ---------------------
exercise() { python3 "$here/exercise.py" "$@" --seed "$seed" >"$W/output" 2>&1 || fail "$1"; }
in_background() {
	"$@" >>"$W/log" 2>&1 &
	background+=($!)
}
# ended - all that runs in the background has ended, and well
ended() {
	local pid
	for pid in "${background[@]}"; do wait "$pid" || fail "what ran beside it ended with $?"; done
	background=()
}
fsx() {
	exercise fsx "$D/file" "$W/kept" --operations $((seconds * 300)) "$@"
	again
	cmp "$D/file" "$W/kept" || fail "the file differs after another mount"
}
verified() {
	fio --name="$case" --directory="$D" --size=24M --numjobs=3 --rw=randwrite --verify=crc32c \
		--verify_backlog=64 --verify_fatal=1 --verify_state_save=0 --aux-path="$W" \
		--runtime="$seconds" --time_based --randseed="$seed" "$@" >"$W/output" 2>&1 || fail fio
}

c001() { exercise copies "$D" --seconds "$seconds"; }
c002() { exercise links "$D"; }
c007() { exercise names "$D" --operations 4000; }
c013() { exercise stress "$D" --seconds "$seconds"; }
c014() { exercise holes "$D/file" --operations 3000; }
c074() { verified --ioengine=mmap --bs=8k; }
c075() { fsx; }
c091() { fsx --direct; }
c112() { verified --ioengine=libaio --direct=1 --iodepth=16 --bs=4k; }
c127() { fsx --mmap; }
c251() {
	(
		trap 'exit 0' TERM
		while :; do fstrim "$W/mnt"; done
	) >>"$W/log" 2>&1 &
	background+=($!)
	exercise copies "$D" --seconds "$seconds"
	kill -TERM "${background[@]}"
	ended
}
c263() { fsx --mixed --mmap; }
# Full but for what fsstress gives back.
c269() {
	fallocate -l "$(($(stat -f -c '%a * %S' "$W/mnt") - (16 << 20)))" "$D/ballast" || fail "fallocate"
	exercise stress "$D" --seconds "$seconds" --full
	again
	rm -r "$D"
}
c299() {
	in_background python3 "$here/exercise.py" fsx "$D/cut" "$W/kept" --operations $((seconds * 300)) --seed "$seed" --mixed
	verified --ioengine=libaio --direct=1 --iodepth=32 --bs=16k --fallocate=none
	ended
	again
	cmp "$D/cut" "$W/kept" || fail "the file differs after another mount"
}
# shut_down - the file system ends as if its machine had lost power, but for what it flushes to its log with -f
shut_down() { xfs_io -x -c "shutdown $1" "$W/mnt" >"$W/output" 2>&1 || fail "shutdown"; }
c388() {
	local n flush
	for n in 1 2 3; do
		[ $((n % 2)) = 0 ] && flush=-f || flush=''
		in_background python3 "$here/exercise.py" stress "$D" --seconds 60 --ends --seed $((seed + n))
		sleep "$((seconds * (RANDOM % 100)))e-3"
		shut_down "$flush"
		ended
		again
		umount "$W/mnt"
		check
		mount "$loop" "$W/mnt"
	done
}
c392() {
	: >"$W/notes"
	in_background python3 "$here/exercise.py" durable "$D" "$W/notes" --seed "$seed"
	for _ in $(seq 600); do
		[ "$(wc -l <"$W/notes")" -lt 20 ] || break
		sleep 0.1
	done
	sleep "$((seconds * (RANDOM % 100)))e-3"
	shut_down ''
	ended
	again
	[ -s "$W/notes" ] || fail "nothing was flushed within a minute"
	sha256sum --quiet -c "$W/notes" >"$W/output" 2>&1 || fail "what was flushed is not there"
}

for array in "${arrays[@]}"; do
	for kind in "${kinds[@]}"; do
		begin=$(date +%s)
		: >"$W/log"
		make_array "$array"
		serve 600
		make_fs
		mount "$loop" "$W/mnt"
		for case in "${cases[@]}"; do
			D=$W/mnt/$case
			mkdir -p "$D"
			RANDOM=$seed
			"c$case"
			umount "$W/mnt"
			check
			mount "$loop" "$W/mnt"
			rm -rf "$D"
		done
		case=end
		umount "$W/mnt"
		check
		stop >>"$W/log"
		echo "$array $kind: ${#cases[@]} cases (${cases[*]}), checks clean, copies equal, $(($(date +%s) - begin)) s"
	done
done
