#!/bin/bash
# lvm-guest.sh VERB DIR - the kernel's and LVM's half of lvm.sh; runs inside UML with six disks.
#
#   make      volume groups of every kind that ashlar serves; DIR/sums gets the checksum of each volume
#   judge     pvck, vgck; every volume is activated and has the checksum that DIR/sums says
#   write     the origin is written until the guest loses power; DIR/written is there when it has begun
#   merge     a merge is begun and the guest loses power
#   move      a move out of the first disk is begun, and the guest loses power when its first piece has moved
#   moved     LVM ends the move of a volume out of the second disk that ashlar began; not of snapshots: LVM itself cannot
#             activate one whose store is being moved
#   later     the merge of a snapshot that ashlar put off happens when the group is activated
#   merged    what ashlar merged, or went on merging, is one volume without a snapshot
set -u
verb=$1 dir=$2
modprobe -a dm-mod dm-snapshot dm-mirror dm-raid raid1 raid10 dm-thin-pool
cat >/etc/lvm/lvmlocal.conf <<C
devices { use_devicesfile=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 raid_region_size=256 }
backup { backup=0 archive=0 }
C
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

# fill DEVICE SEED FROM COUNT - so many chunks of 4 KiB with text that says which they are
fill() {
	/usr/bin/python3 - "$@" <<'PY'
import hashlib, os, sys
device, seed, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
f = os.open(device, os.O_WRONLY)
for n in range(first, first + count):
    line = hashlib.sha256(f"{seed} {n}".encode()).digest() * 128
    os.pwrite(f, line, n * 4096)
os.fsync(f)
PY
}

sums() {
	local device
	for device in "$@"; do
		echo "$(sha256sum <"$device" | cut -d' ' -f1) ${device#/dev/}"
	done
}

# All volumes that are for users, in both groups
volumes() {
	local device
	for device in /dev/plain/* /dev/raid/*; do
		[ "$device" = /dev/plain/pool ] || echo "$device"
	done
}

# synced VOLUME - wait until its legs are the same
synced() {
	local _
	for _ in $(seq 300); do
		[ "$(lvs --noheadings -o sync_percent "$1" | tr -d ' ')" != 100.00 ] || return 0
		sleep 0.1
	done
	fail "$1 is not in sync after 30 s"
}

make() {
	quiet pvcreate -y "$DISK0" "$DISK1"
	quiet vgcreate -s 1M plain "$DISK0" "$DISK1"
	local new=(lvcreate -y -Wn -Zn)
	quiet "${new[@]}" -n lin -L 12M plain
	quiet "${new[@]}" -n str-ipes -i2 -I64k -L 12M plain
	quiet "${new[@]}" -n odd -i2 -I4k -L 4M plain
	quiet lvextend -y -i1 -L +9M plain/lin "$DISK1"
	quiet lvextend -y -i1 -L +1M plain/lin "$DISK0"
	quiet "${new[@]}" -n data -L 8M plain
	fill /dev/plain/lin lin 0 5632
	fill /dev/plain/str-ipes str 0 3072
	fill /dev/plain/odd odd 0 1024
	fill /dev/plain/data first 0 2048
	quiet lvcreate -y -s -c 4k -n one -L 9M plain/data
	fill /dev/plain/data second 100 300
	quiet lvcreate -y -s -c 32k -n two -L 9M plain/data
	fill /dev/plain/data third 50 200
	fill /dev/plain/two own 1000 7
	# Too small for what comes: it is invalid afterwards.
	quiet lvcreate -y -s -c 16k -n full -l 1 plain/data
	fill /dev/plain/data fourth 1500 400
	quiet "${new[@]}" -T -c 64k -L 8M -V 32M -n thin plain/pool
	fill /dev/plain/thin thin 0 500
	quiet lvcreate -y -s -kn -n thin-copy plain/thin
	fill /dev/plain/thin after 300 400
	quiet vgchange -ay -K plain

	quiet pvcreate -y "$DISK2" "$DISK3" "$DISK4" "$DISK5"
	quiet vgcreate -s 1M raid "$DISK2" "$DISK3" "$DISK4" "$DISK5"
	quiet lvcreate -y -Wn -Zn --type raid1 -m1 -n r1 -L 8M raid "$DISK2" "$DISK3"
	quiet lvcreate -y -Wn -Zn --type raid10 -i2 -m1 -I 64k -n r10 -L 12M raid
	quiet lvcreate -y -Wn -Zn --type raid0 -i2 -I 64k -n r0 -L 4M raid "$DISK2" "$DISK3"
	fill /dev/raid/r1 r1 0 2048
	fill /dev/raid/r10 r10 0 3072
	fill /dev/raid/r0 r0 0 1024
	synced raid/r1
	synced raid/r10
	sync
	local device
	for device in $(volumes); do
		[ "$device" = /dev/plain/full ] || sums "$device"
	done >"$dir/sums"
	dmsetup status plain-full | grep -q Invalid || fail "the snapshot that is too small is not invalid"
	quiet vgchange -an plain raid
	echo "pass"
}

judge() {
	local disk
	for disk in "$DISK0" "$DISK1" "$DISK2" "$DISK3" "$DISK4" "$DISK5"; do
		quiet pvck "$disk"
	done
	quiet vgck plain raid
	quiet vgchange -ay -K plain raid
	local sum volume have
	while read -r sum volume; do
		have=$(sums "/dev/$volume")
		[ "$have" = "$sum $volume" ] || fail "$volume reads differently"
	done <"$dir/sums"
	quiet vgchange -an plain raid
	echo "pass"
}

write() {
	quiet vgchange -ay plain
	(
		for ((round = 0; ; round++)); do fill /dev/plain/data "crash$round" $((round * 37 % 1900)) 40; done
	) &
	sleep 0.5
	touch "$dir/written"
	sleep 0.$((RANDOM % 10))
	busybox poweroff -nf
}

merge() {
	quiet lvchange -ay plain/data
	# Held open, so that the merge begins with the next activation: and that is cut off.
	sleep 100 <>/dev/plain/data &
	quiet lvconvert --merge plain/two
	kill $!
	wait
	quiet vgchange -an plain
	vgchange -ay plain >/dev/null 2>&1 &
	sleep 0.3
	busybox poweroff -nf
}

later() {
	quiet vgck plain
	[ -n "$(lvs -a --noheadings -o lv_name -S 'lv_name=two && lv_merging=1' plain)" ] || fail "no merge waits"
	quiet vgchange --config 'activation { polling_interval=1 }' -ay -K plain
	local _
	for _ in $(seq 300); do
		[ -n "$(lvs -a --noheadings -o lv_name -S 'lv_name=two' plain)" ] || break
		sleep 0.1
	done
	[ -z "$(lvs -a --noheadings -o lv_name -S 'lv_name=two' plain)" ] || fail "the merge is not over"
	judge
}

merged() {
	quiet vgck plain
	[ -z "$(lvs --noheadings -o lv_name -S 'lv_merging=1' plain)" ] || fail "a merge is not over"
	quiet vgchange -ay -K plain
	local sum volume have
	while read -r sum volume; do
		have=$(sums "/dev/$volume")
		[ "$have" = "$sum $volume" ] || fail "$volume reads differently"
	done <"$dir/sums"
	quiet vgchange -an plain
	echo "pass"
}

move() {
	quiet vgchange -ay plain
	# Linear volumes, stripes, and the stores of snapshots.
	pvmove -i 30 "$DISK0" >/dev/null 2>&1 &
	local _
	for _ in $(seq 100); do
		[ "$(dmsetup table plain-pvmove0 2>/dev/null | awk 'NR == 2 {print $3}')" != mirror ] || break
		sleep 0.1
	done
	busybox poweroff -nf
}

moved() {
	quiet vgck plain
	[ "$(lvs -a --noheadings -o lv_name -S 'lv_name=pvmove0' plain | tr -d ' []')" = pvmove0 ] || fail "no move was begun"
	lvs -a --noheadings --separator : -o lv_name,lv_attr,move_pv plain | sed "s|$DISK1|d1|" >"$dir/moving"
	quiet vgchange -ay -K --poll n plain
	[ "$(lvs -a --noheadings -o lv_attr -S 'lv_name=pvmove0' plain | tr -d ' ')" = p-C-aom--- ] || {
		lvs -a -o lv_name,lv_attr plain
		fail "an active move has other letters"
	}
	quiet pvmove -i 1
	quiet vgck plain
	[ -z "$(lvs -a --noheadings -o lv_name -S 'lv_name=pvmove0' plain)" ] || fail "the move is not over"
	! lvs --noheadings -o devices plain/lin | grep -q "$DISK1" || fail "extents are left on $DISK1"
	local sum volume have
	while read -r sum volume; do
		have=$(sums "/dev/$volume")
		[ "$have" = "$sum $volume" ] || fail "$volume reads differently"
	done < <(grep ' plain/' "$dir/sums")
	quiet vgchange -an plain
	echo "pass"
}

case $verb in
make | judge | write | move | moved | merge | later | merged) "$verb" ;;
*)
	echo "usage: lvm-guest.sh make|judge|write|move|moved|merge|later|merged DIR" >&2
	exit 2
	;;
esac
