#!/bin/bash
# discards.sh - what mkfs.xfs and fstrim send to the members of a RAID10 on NBD servers, through FUSE and a loop device.
#
# A discard of the loop device is a hole in the volume's file. Each case has servers of one kind and a way for holes
# (ashlar serve --holes), and says what reaches the servers: as many commands as for the same array trimmed over NBD, at
# most three times as many, or none, and then fstrim says so. A file beside the holes stays as it is.
#
# usage: discards.sh [-t]
#   -t   the servers take 1 ms for a trim and 300 ms for zeroes; also print the times
# environment: ASHLAR=FILE the program, default target/debug/ashlar; KEEP=1 keep the files
# Needs root (loop devices, mounts) and the packages of scripts/setup test.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
export LC_ALL=C
if [ "$(id -u)" != 0 ]; then
	[ "${CI:-}" != true ] || { echo "discards.sh: CI must run as root" >&2; exit 1; }
	echo "discards.sh: skipped: loop devices and mounts need root"
	exit 0
fi
# In a mount namespace of its own, as in filesystems.sh.
[ "${ASHLAR_UNSHARED:-}" = $$ ] || ASHLAR_UNSHARED=$$ exec unshare --mount --propagation private "$0" "$@"
times=''
[ "${1:-}" != -t ] || times=1

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-discards.XXXXXX")
servers=() server='' loop='' case=''
end_servers() {
	[ -z "$server" ] || { kill "$server" && wait "$server"; } || true
	[ ${#servers[@]} = 0 ] || { kill "${servers[@]}" && wait "${servers[@]}"; } 2>/dev/null || true
	server='' servers=()
}
cleanup() {
	if mountpoint -q "$W/mnt"; then umount "$W/mnt"; fi
	[ -z "$loop" ] || losetup -d "$loop" || true
	end_servers
	! mountpoint -q "$W/vol" || umount -l "$W/vol"
	[ "${KEEP:-}" = 1 ] || rm -rf --one-file-system "$W"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
mkdir "$W/mnt" "$W/vol"
fail() { echo "discards.sh: $case: $*" >&2; tail -n 20 "$W/log" >&2; exit 1; }
head -c $((16 << 20)) /dev/urandom >"$W/file"

# start HOLES NBDKIT-ARGUMENT... - four servers, and ashlar over them
start() {
	local holes=$1 m uris=() filters=(--filter=log)
	shift
	if [ -n "$times" ]; then filters+=(--filter=delay) && set -- "$@" delay-trim=1ms delay-zero=300ms; fi
	for m in 0 1 2 3; do
		rm -f "$W/n$m"
		nbdkit --foreground --unix "$W/n$m" "${filters[@]}" "$@" logfile="$W/n$m.log" >>"$W/log" 2>&1 &
		servers+=($!)
		uris+=("nbd+unix:///?socket=$W/n$m")
	done
	for m in 0 1 2 3; do until_done 10 "nbdkit listens" [ -S "$W/n$m" ]; done
	"$ashlar" md create --level=10 --layout=n2 --chunk=512K --raid-devices=4 --assume-clean "${uris[@]}" >>"$W/log" 2>&1 ||
		fail "no array"
	"$ashlar" serve "${uris[@]}" --mount "$W/vol" --holes="$holes" --nbd "unix:$W/nbd" --control "$W/control" >>"$W/log" 2>&1 &
	server=$!
	until_done 20 "ashlar serves" [ -e "$W/vol/dev/md0" ]
}

# sent PATTERN - commands that the servers had
sent() { cat "$W"/n?.log | grep -v return= | grep -c " $1 " || true; }
# holes - the zeroes among them that may free the range: mkfs.xfs also zeroes its journal, with others (FALLOC_FL_ZERO_RANGE)
holes() { sent 'Zero id=.* trim=1'; }

# counted WHAT COMMAND... - runs it; sets trims, zeroes, and code
counted() {
	local what=$1 t z began=${EPOCHREALTIME/./}
	shift
	t=$(sent Trim) z=$(holes) code=0
	"$@" >>"$W/out" 2>&1 || code=$?
	[ -z "$times" ] || echo "  $what: $(((${EPOCHREALTIME/./} - began) / 1000)) ms"
	trims=$(($(sent Trim) - t)) zeroes=$(($(holes) - z))
}

trim_over_nbd() {
	/usr/bin/python3 - "$W/nbd" <<'PY'
import nbd, sys
h = nbd.NBD()
h.set_export_name("md0")
h.connect_unix(sys.argv[1])
at, end, step = 0, h.get_size(), 2 << 30
while at < end:
    h.trim(min(step, end - at), at)
    at += step
PY
}

# expect WHAT trims|zeroes|refused - what `counted` found
expect() {
	local least=1 most=$((3 * over_nbd)) got="$trims trims, $zeroes zeroes, code $code; over NBD $over_nbd trims"
	case $2 in
	trims) [ $code = 0 ] && [ $trims -ge $least ] && [ $trims -le $most ] && [ $zeroes = 0 ] ;;
	zeroes) [ $code = 0 ] && [ $zeroes -ge $least ] && [ $zeroes -le $most ] && [ $trims = 0 ] ;;
	refused) [ $trims = 0 ] && [ $zeroes = 0 ] && { [ "$1" != fstrim ] || [ $code != 0 ]; } ;;
	esac || { cat "$W/out" >&2 && fail "$1: $got"; }
	echo "$case: $1: $trims trims, $zeroes zeroes; over NBD $over_nbd trims"
}

# run HOLES EXPECTED [MAX] NBDKIT-ARGUMENT... - a case; MAX is for discard_max_bytes
run() {
	local holes=$1 expected=$2 max=$3
	shift 3
	case="holes=$holes, discard_max_bytes ${max:-as it is}, $*"
	start "$holes" "$@"
	counted "NBD trim" trim_over_nbd
	[ $code = 0 ] && [ "$trims" -ge 4 ] || fail "no trim over NBD: $trims"
	over_nbd=$trims
	[ -z "$max" ] || echo "$max" >"$W/vol/sys/block/md0/queue/discard_max_bytes"
	loop=$(losetup -f --show --direct-io=on "$W/vol/dev/md0")
	counted mkfs.xfs mkfs.xfs -q -f "$loop"
	[ $code = 0 ] || { cat "$W/out" >&2 && fail "no file system"; }
	expect mkfs.xfs "$expected"
	mount "$loop" "$W/mnt"
	cp "$W/file" "$W/mnt/kept" && cp "$W/file" "$W/mnt/removed" && sync -f "$W/mnt"
	rm "$W/mnt/removed"
	umount "$W/mnt" && mount "$loop" "$W/mnt" # XFS frees blocks lazily
	counted fstrim fstrim "$W/mnt"
	expect fstrim "$expected"
	umount "$W/mnt" && mount "$loop" "$W/mnt" # so that the file is read from the array
	cmp "$W/file" "$W/mnt/kept" || fail "the file has changed"
	umount "$W/mnt"
	xfs_repair -n "$loop" >"$W/repair" 2>&1 || { cat "$W/repair" >&2 && fail "the file system is damaged"; }
	losetup -d "$loop"
	loop=''
	udevadm settle 2>/dev/null || sleep 0.1
	end_servers
	rm -f "$W"/n?.log
	! mountpoint -q "$W/vol" || fail "the server left its mount behind"
}

fast=(memory 8G)
slow=(--filter=nozero memory 8G zeromode=notrim fastzeromode=slow)
# It does not know fast zeroes at all.
old=(--filter=nozero memory 8G zeromode=notrim fastzeromode=none)
none=(--filter=nozero memory 8G zeromode=none)
run discard trims '' "${slow[@]}"
run discard trims '' "${none[@]}"
run fast refused '' "${old[@]}"
run zero refused '' "${none[@]}"
run discard refused 0 "${none[@]}"
if [ -z "$times" ]; then
	run fast zeroes '' "${fast[@]}"
	run fast refused 0 "${fast[@]}"
fi
run zero zeroes '' "${old[@]}"
