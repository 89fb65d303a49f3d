#!/bin/bash
# zvol-guest.sh VERB SHARED [NAME=VALUE]... - the half of zvol.sh that the kernel's OpenZFS does; runs inside
# QEMU, with the pool's disks as $DISK0 and so on.
#
#   make      a pool of SHAPE with the volumes that SHARED/volumes lists (name, size, volblocksize, properties), each
#             filled with stamps; of the first a snapshot and a clone; SHARED/contents says what is where
#   pools     makes the pools of several cases: each line of SHARED/pools is a case, its QUEUE and SHAPE, the index of the
#             first of its disks, and how many these are. SHARED/CASE/shared is its SHARED; "made" there says how it went
#   verify    every volume has what SHARED/contents says; whole volumes have the SHA-256 sums of SHARED/sums
#   write     the next phase of stamps to every volume that can be written
#   change, undo, settle, configure, reconfigure, compare   as zvol-datasets.sh has them
#   fio       fio writes the volume "scratch" at random and verifies it
#   segments  requests of many small unaligned segments to the volume "scratch"; its sum goes to SHARED/sums
#   crash     stamps that are flushed again and again (crash.py) to each of CRASH, until the power is lost, after
#             SECONDS. What was flushed is in SHARED/NAME.log
#   replay    what was flushed to each of CRASH is there, and then as verify
#   layers    zvol-layers-guest.sh LAYERS on the volume "layers", and what that leaves is judged
#
# All but crash scrub the pool and export it. NAME=VALUE, with the defaults:
#   SHAPE=stripe   stripe, mirror, raidz, raidz2, log (the last disk is a separate log), partition (in a GPT)
#   QUEUE=1        the module's zvol_use_blk_mq
#   TIMEOUT=5      seconds until a transaction group ends by itself
#   CRASH=         names of volumes
#   SECONDS_=3     how long crash writes
#   LAYERS=        what the layers are to do
#   FORCE=         -f to import a pool that was not exported
set -u
here=$(dirname "$(realpath "$0")")
verb=$1 shared=$2
shift 2
SHAPE=stripe QUEUE=1 TIMEOUT=5 CRASH='' SECONDS_=3 LAYERS='' FORCE=''
for setting in "$@"; do declare "$setting"; done
pool=tank

fail() {
	echo "FAIL $*"
	exit 1
}
quiet() {
	local out
	out=$("$@" 2>&1) || {
		echo "$out"
		fail "$*"
	}
}

if [ "$verb" = pools ]; then
	declare -a all=()
	for ((i = 0; i < NDISKS; i++)); do
		disk=DISK$i
		all+=("${!disk}")
	done
	while read -r case queue shape from count; do
		(
			for ((i = 0; i < count; i++)); do export "DISK$i=${all[from + i]}"; done
			NDISKS=$count "$0" make "$shared/$case/shared" "QUEUE=$queue" "SHAPE=$shape"
		) >"$shared/$case/shared/made" 2>&1 </dev/null
		# The module takes its parameters when it is loaded.
		quiet modprobe -r zfs
	done <"$shared/pools"
	exit
fi

quiet modprobe zfs "zvol_use_blk_mq=$QUEUE" "zfs_txg_timeout=$TIMEOUT" zfs_arc_max=268435456
# Under names of their own, as zpool would label and partition what it knows to be a disk.
another_name() { # OF NAME
	local major minor
	read -r major minor < <(stat -c '0x%t 0x%T' "$1")
	rm -f "$2"
	mknod "$2" b "$major" "$minor"
}
disks=()
for ((i = 0; i < NDISKS; i++)); do
	name=DISK$i
	another_name "${!name}" "/dev/disk$i"
	disks+=("/dev/disk$i")
done

# device DATASET - its /dev/zdN, which appears some time after the volume; there is no udev
device() {
	local _ node
	for _ in $(seq 100); do
		for node in /dev/zd*; do
			case $node in *p[0-9]*) continue ;; esac
			[ ! -b "$node" ] || [ "$(/lib/udev/zvol_id "$node" 2>/dev/null)" != "$pool/$1" ] || {
				echo "$node"
				return
			}
		done
		sleep 0.1
	done
	fail "no device for $pool/$1" >&2
}
target() { device "$1"; }
contents() {
	local node
	node=$(device "$1") || exit 1
	cat "$node"
}
sys=/sys
sys_of() {
	local node
	node=$(device "$1") || exit 1
	echo "$sys/block/${node##*/}"
}
zvol() {
	case $1 in
	# The devices of the snapshots that it moves would keep their names, and could not be opened any more.
	promote) zfs set snapdev=hidden "$pool" && zfs "$@" && zfs set snapdev=visible "$pool" ;;
	*) zfs "$@" ;;
	esac
}
# shellcheck source=tests/interop/zvol-both.sh
. "$here/zvol-both.sh"
# shellcheck source=tests/interop/zvol-datasets.sh
. "$here/zvol-datasets.sh"

import() {
	local options=(-N -o cachefile=none) disk
	[ "$FORCE" = "" ] || options+=(-f)
	for disk in "${disks[@]}" "${DISK0}1"; do [ ! -b "$disk" ] || options+=(-d "$disk"); done
	quiet zpool import "${options[@]}" "$pool"
}

# leave - nothing is wrong with the pool, and nothing of it stays
leave() {
	quiet zpool scrub -w "$pool"
	zpool status "$pool" >/tmp/status
	if ! grep -q 'errors: No known data errors' /tmp/status || ! grep -q ' repaired 0B .* with 0 errors' /tmp/status ||
		grep -E 'ONLINE|DEGRADED|FAULTED' /tmp/status | grep -vqE '(state: ONLINE|ONLINE +0 +0 +0)$'; then
		cat /tmp/status
		fail "the pool is not healthy"
	fi
	quiet zpool export "$pool"
	echo pass
}

make() {
	local vdevs=("${disks[@]}")
	case $SHAPE in
	stripe) ;;
	mirror | raidz | raidz2) vdevs=("$SHAPE" "${disks[@]}") ;;
	log) vdevs=("${disks[@]:0:NDISKS-1}" log "${disks[@]: -1}") ;;
	partition)
		quiet sfdisk -q "$DISK0" <<<$'label: gpt\n2048,,6A898CC3-1DD2-11B2-99A6-080020736631'
		another_name "${DISK0}1" /dev/partition
		vdevs=(/dev/partition)
		;;
	*) fail "no shape $SHAPE" ;;
	esac
	quiet zpool create -f -o ashift=12 -o comment=stamps -o listsnapshots=on -o cachefile=none -O mountpoint=none "$pool" "${vdevs[@]}"
	local name size block properties property options
	while read -r name size block properties; do
		options=()
		for property in $properties; do
			if [ "$property" = sparse ]; then options+=(-s); else options+=(-o "$property"); fi
		done
		quiet zfs create -V "$size" -b "$block" "${options[@]}" "$pool/$name"
	done <"$shared/volumes"
	fill
}

fio() {
	local node
	node=$(device scratch) || exit 1
	quiet command fio --name=verify --verify_state_save=0 --filename="$node" --bsrange=512-128k --bs_unaligned=0 --blockalign=512 --rw=randwrite \
		--ioengine=libaio --iodepth=16 --direct=1 --fdatasync=32 --size=12M --verify=crc32c --verify_backlog=64 --output=/tmp/fio
	echo "$(sum scratch) scratch" >"$shared/sums"
}

segments() {
	local node
	node=$(device scratch) || exit 1
	"$here/zvol_segments.py" write --seed "$QUEUE" "$node" >/tmp/sum || fail "segments"
	echo "$(cat /tmp/sum) scratch" >"$shared/sums"
}

crash() {
	local name node discards
	for name in $CRASH; do
		node=$(device "$name") || exit 1
		: >"$shared/$name.log"
		# Where its log points to blocks the kernel loses what is written to a range that was zeroed since the last flush.
		discards=--discards
		[ "$name" != crash1 ] || discards=''
		echo "$discards" >"$shared/$name.discards"
		"$here/crash.py" write --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" ${discards:+"$discards"} "$node" >/dev/null &
	done
	for name in $CRASH; do
		for _ in $(seq 300); do
			[ ! -s "$shared/$name.log" ] || break
			sleep 0.1
		done
		[ -s "$shared/$name.log" ] || fail "nothing was flushed to $name"
	done
	sleep "$SECONDS_"
	touch "$shared/crashed"
	busybox poweroff -nf
}

flushed() {
	local name node discards
	for name in $CRASH; do
		node=$(device "$name") || exit 1
		read -r discards <"$shared/$name.discards"
		"$here/crash.py" verify --seed "$name" --state "$shared/$name.state" --log "$shared/$name.log" ${discards:+"$discards"} --torn "$node" || fail "$name"
	done
}

case $verb in
make)
	make
	leave
	;;
verify | write | fio | segments | change | undo | settle | configure | reconfigure | compare)
	import
	"$verb"
	leave
	;;
crash)
	import
	crash
	;;
replay)
	import
	flushed
	verify
	leave
	;;
layers)
	import
	node=$(device layers) || exit 1
	"$here/zvol-layers-guest.sh" "$LAYERS" "$shared" "$node" || fail "$LAYERS"
	leave
	;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
