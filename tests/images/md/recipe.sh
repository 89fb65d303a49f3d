# Sourced by every CASE/make.sh: runs the recipe in a real kernel (tests/oracle/uml-run) and keeps
# cut-outs of one member in the case's directory:
#   superblock.bin   4 KiB from the superblock's sector on
#   device.txt       the member's size in sectors
#   bitmap.bin       the bitmap's superblock, if there is a bitmap
#   bad-blocks.bin   the bad block log, if it lists anything
#   expect.txt       mdadm --examine, times in UTC, without the line naming the device
#   expect-bitmap.txt, expect-bad-blocks.txt   --examine-bitmap, --examine-badblocks, likewise
case_dir=$(realpath "$(dirname "$0")")
if [ "$1" != in-guest ]; then
	exec "$case_dir/../../../oracle/uml-run" --rw "$case_dir" "$0" in-guest
fi
set -e
export TZ=UTC
modprobe loop
for level in raid0 raid1 raid10 raid456 linear; do modprobe "$level"; done
mkdir /tmp/disks
mount -t tmpfs -o size=300m none /tmp/disks
echo >/tmp/mdadm.conf
cd /tmp/disks

# disks SECTORS...: makes $D0, $D1, ...
disks() {
	local n=0 size
	for size; do
		truncate -s $((size * 512)) "$n"
		eval "D$n=$(losetup -f --show "$n")"
		n=$((n + 1))
	done
}

# create ARGUMENT...: mdadm --create as md0 of no host
create() {
	yes | mdadm --create /dev/md0 --homehost=golden --config=/tmp/mdadm.conf "$@" >/tmp/create.log 2>&1 ||
		{ cat /tmp/create.log; return 1; }
}

settle() { mdadm --wait /dev/md0 || true; }

slow() { echo 100 >/sys/block/md0/md/sync_speed_max; echo 50 >/sys/block/md0/md/sync_speed_min; }

# capture DEVICE
capture() {
	local out=$case_dir
	rm -f "$out"/*.bin "$out"/*.txt
	blockdev --flushbufs "$1"
	python3 - "$1" "$out" <<-'PYTHON'
		import sys
		device, out = sys.argv[1:]
		with open(device, "rb") as file:
		    size = file.seek(0, 2) // 512
		    def read(sector, count):
		        file.seek(sector * 512)
		        return file.read(count)
		    def keep(name, data):
		        with open(f"{out}/{name}", "wb") as to:
		            to.write(data)
		    keep("device.txt", f"{size}\n".encode())
		    for at, major in ((size & ~127) - 128, 0), (size - 16 & ~7, 1), (0, 1), (8, 1):
		        block = read(at, 4096)
		        if block[:8] == bytes([0xfc, 0x4e, 0x2b, 0xa9, major, 0, 0, 0]):
		            break
		    else:
		        sys.exit("no superblock")
		    keep("superblock.bin", block)
		    def number(start, length):
		        return int.from_bytes(block[start:start + length], "little", signed=True)
		    if major == 0 and number(132, 4) & 256:
		        keep("bitmap.bin", read(at + 8, 256))
		    if major == 1 and number(8, 4) & 1:
		        keep("bitmap.bin", read(at + number(96, 4), 256))
		    if major == 1 and number(8, 4) & 8:
		        keep("bad-blocks.bin", read(at + number(188, 4), number(186, 2) * 512))
	PYTHON
	mdadm --examine "$1" | tail -n +2 >"$out/expect.txt"
	if [ -e "$out/bitmap.bin" ]; then
		mdadm --examine-bitmap "$1" | tail -n +2 >"$out/expect-bitmap.txt"
	fi
	if [ -e "$out/bad-blocks.bin" ]; then
		mdadm --examine-badblocks "$1" >"$out/expect-bad-blocks.txt"
	fi
	cat "$out/expect.txt"
}
