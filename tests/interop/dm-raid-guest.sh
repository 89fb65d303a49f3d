#!/bin/bash
# dm-raid-guest.sh DIR - LVM and the kernel make RAID volumes; runs inside UML with five disks.
#
# For each volume V, DIR gets V.volume (what the kernel read last), V.N.meta and V.N.data (what is on
# the hidden devices of leg N once the volume is stopped), and V.shape: level, copies (with parity the layout), sectors in a
# chunk, legs, and the legs that ashlar must leave out.
set -eu
dir=$1
modprobe -a dm-mod dm-raid raid0 raid1 raid10 raid456
export DM_DISABLE_UDEV=1
cat >/etc/lvm/lvmlocal.conf <<C
devices { use_devicesfile=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 raid_region_size=64 }
backup { backup=0 archive=0 }
C
quietly() { "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }
# scribble DEVICE SEED - random bytes at random places
scribble() {
	/usr/bin/python3 - "$@" <<'PY'
import os, random, sys
device, draw = sys.argv[1], random.Random(int(sys.argv[2]))
f = os.open(device, os.O_WRONLY)
size = os.lseek(f, 0, os.SEEK_END)
for _ in range(60):
    at = draw.randrange(size // 4096) * 4096
    os.pwrite(f, draw.randbytes(min(size - at, draw.choice([4096, 69632, 200704]))), at)
os.fsync(f)
os.close(f)
PY
}
synced() {
	local percent
	for _ in $(seq 200); do
		percent=$(lvs --noheadings -o sync_percent "vg/$1" | tr -d ' ')
		[ "$percent" != 100.00 ] || return 0
		sleep 0.1
	done
	echo "$1 does not become synced ($percent)"
	exit 1
}
# fail_leg V LEG - the data device of a leg answers every request with an error
fail_leg() {
	local leg=vg-$1_rimage_$2
	echo "0 $(blockdev --getsz "/dev/mapper/$leg") error" | quietly dmsetup load "$leg"
	quietly dmsetup suspend --noflush --nolockfs "$leg"
	quietly dmsetup resume "$leg"
}
# save V LEVEL COPIES CHUNK LEGS LEFT_OUT...
save() {
	local v=$1 legs=$5 leg part
	sync
	echo 3 >/proc/sys/vm/drop_caches
	cat "/dev/vg/$v" >"$dir/$v.volume"
	echo "${@:2}" >"$dir/$v.shape"
	for ((leg = 0; leg < legs; leg++)); do
		for part in rmeta rimage; do
			[ ! -e "/dev/mapper/vg-${v}_${part}_$leg" ] || dmsetup table "vg-${v}_${part}_$leg" >"/tmp/$v.$leg.$part"
		done
	done
	cp "/tmp/$v.failed" "/tmp/$v.${6:-0}.rimage" 2>/dev/null || true
	quietly lvchange -an "vg/$v"
	for ((leg = 0; leg < legs; leg++)); do
		for part in rmeta:meta rimage:data; do
			[ -e "/tmp/$v.$leg.${part%:*}" ] || continue
			quietly dmsetup create part "/tmp/$v.$leg.${part%:*}"
			cat /dev/mapper/part >"$dir/$v.$leg.${part#*:}"
			quietly dmsetup remove part
		done
	done
}
create() { quietly lvcreate -y -Wn -Zn -n "$@" vg; }

quietly pvcreate -y "$DISK0" "$DISK1" "$DISK2" "$DISK3" "$DISK4"
quietly vgcreate -s 512K vg "$DISK0" "$DISK1" "$DISK2" "$DISK3" "$DISK4"

create mirror --type raid1 -m1 -L 4M
scribble /dev/vg/mirror 1
synced mirror
save mirror 1 0 0 2

create three --type raid1 -m2 -L 3M
synced three
scribble /dev/vg/three 2
dmsetup table vg-three_rimage_1 >/tmp/three.failed
fail_leg three 1
scribble /dev/vg/three 3
save three 1 0 0 3 1

create partly --type raid1 -m1 -L 12M --maxrecoveryrate 1k
scribble /dev/vg/partly 4
save partly 1 0 0 2

create joined --type raid1 -m1 -L 12M
synced joined
quietly lvchange --maxrecoveryrate 1k vg/joined
quietly lvconvert -y -m2 vg/joined
scribble /dev/vg/joined 5
save joined 1 0 0 3 2

create ten --type raid10 -i2 -m1 -I 64k -L 4M
scribble /dev/vg/ten 6
synced ten
save ten 10 2 128 4

create tenless --type raid10 -i2 -m1 -I 16k -L 4M
synced tenless
dmsetup table vg-tenless_rimage_2 >/tmp/tenless.failed
fail_leg tenless 2
scribble /dev/vg/tenless 7
save tenless 10 2 32 4 2

create nought --type raid0_meta -i3 -I 32k -L 3M
scribble /dev/vg/nought 8
save nought 0 0 64 3

create plain --type raid0 -i2 -I 8k -L 2M
scribble /dev/vg/plain 9
save plain 0 0 16 2

# parity V TYPE LEVEL LAYOUT KIB SEED - a volume whose rows have three chunks of data
parity() {
	create "$1" --type "$2" -i3 -I "$5k" -L 3M
	scribble "/dev/vg/$1" "$6"
	synced "$1"
	save "$1" "$3" "$4" $((2 * $5)) $((3 + ($3 == 6 ? 2 : 1)))
}
parity four raid4 5 4 32 10
parity five raid5 5 2 64 11
parity fiven raid5_n 5 5 8 12
parity fivela raid5_la 5 0 16 13
parity fivera raid5_ra 5 1 16 14
parity fivers raid5_rs 5 3 16 15
parity six raid6 6 8 64 16
parity sixnr raid6_nr 6 9 8 17
parity sixnc raid6_nc 6 10 16 18
parity sixn raid6_n_6 6 5 16 19
parity sixls raid6_ls_6 6 18 16 20

create fiveless --type raid5 -i3 -I 64k -L 3M
synced fiveless
dmsetup table vg-fiveless_rimage_1 >/tmp/fiveless.failed
fail_leg fiveless 1
scribble /dev/vg/fiveless 21
save fiveless 5 2 128 4 1
quietly vgchange -an vg
