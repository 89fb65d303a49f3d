#!/bin/bash
# A RAID1 with 0.90 metadata, a spare and a failed member, being written to.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40960 40960 40960
create --metadata=0.90 --level=1 --raid-devices=3 --spare-devices=1 --assume-clean "$D0" "$D1" "$D2" --write-mostly "$D3"
echo frozen >/sys/block/md0/md/sync_action
mdadm /dev/md0 --fail "$D1"
echo 100 >/sys/block/md0/md/safe_mode_delay
dd if=/dev/zero of=/dev/md0 bs=64K count=1 oflag=direct status=none
capture "$D0"
