#!/bin/bash
# A RAID1 member with a bad block log that is not empty, 1.0 metadata.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40960
create --metadata=1.0 --level=1 --raid-devices=2 --bitmap=none --assume-clean "$D0" "$D1"
for range in "1000 8" "5000 1" "5002 600" "30000 512"; do
	echo "$range" >/sys/block/md0/md/dev-loop1/bad_blocks
done
sleep 1
dd if=/dev/zero of=/dev/md0 bs=4K count=1 oflag=direct status=none
mdadm --stop /dev/md0
capture "$D1"
