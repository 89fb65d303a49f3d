#!/bin/bash
# What mdadm says of running arrays, and the superblocks of their members: for each array a directory with
#   loopN.bin    4 KiB from a member's superblock on
#   devices.txt  sectors of each member, and the sector of its superblock
#   detail.txt, brief.txt, verbose.txt, export.txt, scan.txt   mdadm --detail, with --brief, with --brief --verbose,
#                with --export, and mdadm --detail --scan; times in UTC
here=$(realpath "$(dirname "$0")")
if [ "$1" != in-guest ]; then
	exec "$here/../../../oracle/uml-run" --rw "$here" "$0" in-guest
fi
set -e
export TZ=UTC
modprobe loop
for level in raid0 raid1 raid10; do modprobe "$level"; done
mkdir /tmp/disks
mount -t tmpfs -o size=300m none /tmp/disks
echo >/tmp/mdadm.conf
cd /tmp/disks

# array NAME MEMBERS ARGUMENT...: an array of the first loop devices
array() {
	local name=$1 count=$2 n
	shift 2
	disks=()
	for ((n = 0; n < count; n++)); do
		rm -f "$n"
		truncate -s 40M "$n"
		losetup "/dev/loop$n" "$n"
		disks+=("/dev/loop$n")
	done
	yes | mdadm --create /dev/md0 --homehost=golden --config=/tmp/mdadm.conf "$@" "${disks[@]}" >/tmp/log 2>&1 ||
		{ cat /tmp/log; return 1; }
	mdadm --wait /dev/md0 || true
	"${change:-true}"
	# The text is that of what the superblocks say.
	sync
	until grep -qE 'clean|write-pending|active' /sys/block/md0/md/array_state; do sleep 0.1; done
	sleep 1
	out=$here/$name
	rm -rf "$out"
	mkdir "$out"
	mdadm --detail /dev/md0 >"$out/detail.txt"
	mdadm --detail --brief /dev/md0 >"$out/brief.txt"
	mdadm --detail --brief --verbose /dev/md0 >"$out/verbose.txt"
	mdadm --detail --export /dev/md0 >"$out/export.txt"
	mdadm --detail --scan --config=/tmp/mdadm.conf >"$out/scan.txt"
	mdadm --stop /dev/md0
	for disk in "${disks[@]}"; do
		blockdev --flushbufs "$disk"
		python3 - "$disk" "$out" <<-'PYTHON'
			import os, sys
			disk, out = sys.argv[1:]
			with open(disk, "rb") as file:
			    size = file.seek(0, 2) // 512
			    for at in (size & ~127) - 128, size - 16 & ~7, 0, 8:
			        file.seek(at * 512)
			        block = file.read(4096)
			        if block[:4] == bytes([0xfc, 0x4e, 0x2b, 0xa9]):
			            break
			    else:
			        sys.exit("no superblock")
			name = os.path.basename(disk)
			with open(f"{out}/{name}.bin", "wb") as to:
			    to.write(block)
			with open(f"{out}/devices.txt", "a") as to:
			    to.write(f"{name} {size} {at}\n")
		PYTHON
		losetup -d "$disk"
	done
}

lose() {
	mdadm /dev/md0 --fail /dev/loop1 --remove /dev/loop1 --fail /dev/loop3 --remove /dev/loop3
}

array raid0 2 --level=0 --raid-devices=2
array raid1-spare 3 --level=1 --raid-devices=2 --spare-devices=1 --assume-clean
change=lose
array raid10-degraded 4 --metadata=1.0 --level=10 --raid-devices=4 --name=data --layout=f2
change=
array old 3 --metadata=0.90 --level=1 --raid-devices=2 --spare-devices=1
