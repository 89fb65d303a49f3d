#!/bin/bash
# A member of a RAID1 with a bitmap that is rebuilt, stopped on the way.
. "$(dirname "$0")/../recipe.sh"
disks 409600 409600 409600
create --level=1 --raid-devices=2 --bitmap=internal --assume-clean "$D0" "$D1"
mdadm /dev/md0 --fail "$D1" --remove "$D1"
dd if=/dev/zero of=/dev/md0 bs=1M count=8 oflag=direct status=none
slow
mdadm /dev/md0 --add "$D2"
echo 4000 >/sys/block/md0/md/sync_speed_max
sleep 3
mdadm --stop /dev/md0
capture "$D2"
