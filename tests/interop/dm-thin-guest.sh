#!/bin/bash
# dm-thin-guest.sh DIR - LVM and the kernel make thin pools; runs inside UML with two disks.
#
# For each pool POOL, DIR gets POOL.metadata and POOL.data (what is on the hidden LVs once the pool is
# stopped), and for each volume with device ID what the kernel reads: POOL.ID.volume. POOL.origin is an
# external origin, which the volume with the ID in POOL.origin-of has. POOL.chunk has the chunk size in
# sectors.
set -eu
dir=$1
modprobe -a dm-mod dm-thin-pool
cat >/etc/lvm/lvmlocal.conf <<C
devices { use_devicesfile=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 }
backup { backup=0 archive=0 }
C
# scribble DEVICE SEED COUNT - COUNT writes of random places, lengths and bytes
scribble() {
	/usr/bin/python3 - "$@" <<'PY'
import os, random, sys
device, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
f = os.open(device, os.O_WRONLY)
size = os.lseek(f, 0, os.SEEK_END)
for _ in range(count):
    at = draw.randrange(size // 4096) * 4096
    length = min(size - at, draw.choice([4096, 8192, 65536, 200704]))
    os.pwrite(f, draw.randbytes(length), at)
os.fsync(f)
os.close(f)
PY
}
quietly() { "$@" >/tmp/said 2>&1 || { cat /tmp/said; exit 1; }; }

# make_pool NAME CHUNK - a pool with three volumes, snapshots, holes and an external origin
make_pool() {
	local pool=$1 chunk=$2
	quietly lvcreate -y -T -L 20M --poolmetadatasize 4M -c "$chunk" -n "$pool" vg
	quietly lvcreate -y -V 16M -T -n "$pool-a" "vg/$pool"
	quietly lvcreate -y -V 30M -T -n "$pool-b" "vg/$pool"
	quietly lvcreate -y -V 8M -T -n "$pool-empty" "vg/$pool"
	scribble "/dev/vg/$pool-a" 1 40
	scribble "/dev/vg/$pool-b" 2 30
	quietly lvcreate -y -s -kn -n "$pool-a-then" "vg/$pool-a"
	scribble "/dev/vg/$pool-a" 3 12
	blkdiscard -o 4M -l 3M "/dev/vg/$pool-a"
	blkdiscard -o 12M -l 9M "/dev/vg/$pool-b"
	quietly lvcreate -y -s -kn -n "$pool-a-later" "vg/$pool-a-then"
	scribble "/dev/vg/$pool-a-later" 4 6
	quietly lvcreate -y -Wn -Zn -L 5M -n "$pool-origin" vg
	scribble "/dev/vg/$pool-origin" 5 30
	cat "/dev/vg/$pool-origin" >"$dir/$pool.origin"
	quietly lvchange -an "vg/$pool-origin"
	quietly lvchange -pr "vg/$pool-origin"
	quietly lvcreate -y -s -kn --thinpool "vg/$pool" -n "$pool-grown" "vg/$pool-origin"
	quietly lvchange -ay "vg/$pool-grown"
	quietly lvextend -L 7M "vg/$pool-grown"
	scribble "/dev/vg/$pool-grown" 6 3
}

# save_pool NAME - what the kernel reads, then what is on the pool's devices
save_pool() {
	local pool=$1 lv id
	while read -r lv id; do
		[ -n "$id" ] || continue
		cat "/dev/vg/$lv" >"$dir/$pool.$id.volume"
		[ "$lv" != "$pool-grown" ] || echo "$id" >"$dir/$pool.origin-of"
	done < <(lvs --noheadings -o lv_name,thin_id "vg" | awk -v p="$pool-" 'index($1, p) == 1')
	lvs --noheadings --nosuffix --units s -o chunk_size "vg/$pool" | tr -d ' ' >"$dir/$pool.chunk"
	local part
	for part in metadata:tmeta data:tdata; do
		dmsetup table "vg-${pool}_${part#*:}" >"/tmp/${part%:*}.table"
	done
	quietly vgchange -an vg
	for part in metadata data; do
		DM_DISABLE_UDEV=1 quietly dmsetup create part "/tmp/$part.table"
		cat /dev/mapper/part >"$dir/$pool.$part"
		DM_DISABLE_UDEV=1 quietly dmsetup remove part
	done
	quietly vgchange -ay vg
}

quietly pvcreate -y "$DISK0" "$DISK1"
quietly vgcreate -s 512K vg "$DISK0" "$DISK1"
make_pool small 64k
make_pool odd 192k
save_pool small
save_pool odd
quietly vgchange -an vg
