#!/bin/bash
# A RAID1 that is being written to, with write-mostly and failfast members.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40960 40960
create --level=1 --raid-devices=3 --bitmap=none --assume-clean --failfast "$D0" "$D1" --write-mostly "$D2"
echo 100 >/sys/block/md0/md/safe_mode_delay
dd if=/dev/zero of=/dev/md0 bs=64K count=1 oflag=direct status=none
capture "$D2"
