#!/bin/bash
# A RAID1 with a bitmap of small chunks, written after a member failed, running.
#   marks.bin     the bitmap with its marks, 2 KiB
#   written.txt   first sector and sectors of each write
. "$(dirname "$0")/../recipe.sh"
disks 53248 53248
create --level=1 --raid-devices=2 --bitmap=internal --bitmap-chunk=4K --delay=1 --assume-clean "$D0" "$D1"
while ! mdadm --examine-bitmap "$D1" | grep -q ' 0 dirty'; do sleep 1; done
mdadm /dev/md0 --fail "$D0" >/dev/null
capture "$D1" # for the files of every case; the marks come now
# shellcheck disable=SC2154 # recipe.sh sets it
rm -f "$case_dir/written.txt"
write() {
	dd if=/dev/urandom of=/dev/md0 bs=512 seek="$1" count="$2" oflag=direct status=none
	echo "$1 $2" >>"$case_dir/written.txt"
}
write 0 1
write 79 2
write 16376 16
write 20000 100
write 40959 1
sync
capture_marks() {
	blockdev --flushbufs "$D1"
	dd if="$D1" bs=512 skip=16 count=4 status=none >"$case_dir/marks.bin"
	mdadm --examine-bitmap "$D1" | tail -n +2 >"$case_dir/expect-marks.txt"
}
capture_marks
