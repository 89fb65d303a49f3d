#!/bin/bash
# zpool-devices-guest.sh ASHLAR - ashlar and the kernel's OpenZFS change one pool on block devices, in turn; runs inside QEMU, with six
# disks of 384 MiB as $DISK0 and so on.
#
# ASHLAR makes the pool, on a partition of the first disk and the second disk; the kernel fills a volume. Then ASHLAR adds, attaches,
# replaces, detaches and clears disks, and the kernel says what the pool consists of, and scrubs it. Then the other way round. Devices that
# the kernel uses, or that have something on them, are refused. The last line is "pass".
set -u
ashlar=$1

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
refused() { # TEXT COMMAND...
	local out
	out=$("${@:2}" 2>&1) && fail "not refused: ${*:2}"
	grep -qF -- "$1" <<<"$out" || {
		echo "$out"
		fail "refused without '$1': ${*:2}"
	}
}
# another_name OF NAME - as zpool would label and partition what it knows to be a disk
another_name() {
	local major minor
	read -r major minor < <(stat -c '0x%t 0x%T' "$1")
	mknod "$2" b "$major" "$minor"
}
# zpool_on DISK,... VERB ARG... - ashlar's
zpool_on() { quiet "$ashlar" zpool "$2" --devices "$1" "${@:3}"; }

# consists_of LINE... - the lines of the imported pool's configuration, without indentation and counters, are these
consists_of() {
	zpool status -P tank >/tmp/status
	local found
	found=$(awk '/^config:/ { on = 1 } /^errors:/ { on = 0 } on && NF >= 2 && $1 != "NAME" && $1 != "tank" { print $1, $2 } on && $1 == "logs" { print $1 }' /tmp/status)
	[ "$found" = "$(printf '%s\n' "$@")" ] || {
		cat /tmp/status
		fail "the pool consists of other devices"
	}
	quiet zpool scrub -w tank
	zpool status tank >/tmp/status
	if ! grep -q 'errors: No known data errors' /tmp/status || ! grep -q ' repaired 0B .* with 0 errors' /tmp/status; then
		cat /tmp/status
		fail "the pool is not healthy"
	fi
}
import() {
	local options=() disk
	for disk in "$part" "${DISK1}" "${DISK2}" "${DISK3}" "${DISK4}" "${DISK5}" /dev/disk?; do
		[ ! -b "$disk" ] || options+=(-d "$disk")
	done
	quiet zpool import -N -o cachefile=none "${options[@]}" tank
}
# volume - the device of tank/vol, which appears some time after the import; there is no udev
volume() {
	local _ node
	for _ in $(seq 100); do
		for node in /dev/zd*; do
			case $node in *p[0-9]*) continue ;; esac
			[ ! -b "$node" ] || [ "$(/lib/udev/zvol_id "$node" 2>/dev/null)" != tank/vol ] || {
				echo "$node"
				return
			}
		done
		sleep 0.1
	done
	fail "no device for tank/vol" >&2
}
sum() {
	local node
	node=$(volume) || exit 1
	sha256sum <"$node"
}

quiet modprobe zfs zfs_arc_max=268435456
quiet sfdisk -q "$DISK0" <<<$'label: gpt\n2048,,6A898CC3-1DD2-11B2-99A6-080020736631'
part=${DISK0}1
[ -b "$part" ] || fail "no $part"

refused "gpt partition table" "$ashlar" zpool create tank mirror "$DISK0" "$DISK1"
quiet "$ashlar" zpool create -o ashift=12 tank mirror "$part" "$DISK1"
zpool_on "$DISK0,$DISK1" status tank
quiet "$ashlar" zvol create --devices "$DISK0,$DISK1" -V 64M tank/vol
import
consists_of "mirror-0 ONLINE" "$part ONLINE" "$DISK1 ONLINE"
node=$(volume) || exit 1
quiet dd if=/dev/urandom of="$node" bs=1M count=64 oflag=direct
before=$(sum)
# What the kernel uses is refused, and force does not help.
refused "in use by the system" "$ashlar" zpool create -f other "$DISK1"
refused "in use by the system" "$ashlar" zpool labelclear -f "$part"
refused "in use by the system" "$ashlar" zpool add --devices "$DISK0,$DISK1" tank "$DISK2"
quiet zpool export tank
echo "the kernel has the pool that ashlar made"

# What is on a disk is refused without force.
quiet mkfs.ext4 -q "$DISK2"
refused "has ext4 file system" "$ashlar" zpool add --devices "$DISK0,$DISK1" tank mirror "$DISK2" "$DISK3"
zpool_on "$DISK0,$DISK1" add -f tank mirror "$DISK2" "$DISK3"
now=$DISK0,$DISK1,$DISK2,$DISK3
zpool_on "$now" add tank log "$DISK4"
now+=,$DISK4
zpool_on "$now" attach tank "$part" "$DISK5"
now+=,$DISK5
zpool_on "$now" detach tank "$DISK1"
quiet "$ashlar" zpool labelclear "$DISK1"
refused "has no ZFS labels" "$ashlar" zpool labelclear "$DISK1"
refused "--force" "$ashlar" zpool labelclear "$DISK2"
now=${now/,$DISK1/}
zpool_on "$now" replace tank "$DISK3" "$DISK1"
now=${now/$DISK3/$DISK1}
zpool_on "$now" status tank
import
consists_of "mirror-0 ONLINE" "$part ONLINE" "$DISK5 ONLINE" "mirror-1 ONLINE" "$DISK2 ONLINE" "$DISK1 ONLINE" logs "$DISK4 ONLINE"
[ "$(sum)" = "$before" ] || fail "the volume's data is different"
echo "the kernel has the pool that ashlar changed"

# The kernel's turn: it replaces, attaches and detaches; then ashlar does.
another_name "$DISK3" /dev/disk3
quiet zpool replace -w tank "$DISK2" /dev/disk3
quiet zpool detach tank "$part"
quiet zpool attach -w tank "$DISK1" "$part"
quiet zpool export tank
now=$DISK5,$DISK3,$DISK1,$DISK0,$DISK4
"$ashlar" zpool status --devices "$now" tank >/tmp/status || fail "status"
grep -q 'state: ONLINE' /tmp/status || {
	cat /tmp/status
	fail "ashlar does not have the pool that the kernel changed"
}
zpool_on "$now" detach tank "$part"
zpool_on "$now" attach tank "$DISK5" "$DISK2"
quiet "$ashlar" zpool scrub -w --devices "$now,$DISK2" tank
import
consists_of "mirror-0 ONLINE" "$DISK5 ONLINE" "$DISK2 ONLINE" "mirror-1 ONLINE" "$DISK3 ONLINE" "$DISK1 ONLINE" logs "$DISK4 ONLINE"
[ "$(sum)" = "$before" ] || fail "the volume's data is different"
quiet zpool export tank
echo pass
