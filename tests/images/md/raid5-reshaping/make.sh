#!/bin/bash
# A RAID5 on its way from three to four members.
. "$(dirname "$0")/../recipe.sh"
disks 409600 409600 409600 409600
create --level=5 --raid-devices=3 --assume-clean --bitmap=none "$D0" "$D1" "$D2"
mdadm /dev/md0 --add "$D3"
slow
mdadm --grow /dev/md0 --raid-devices=4
sleep 3
capture "$D3"
