#!/bin/bash
# The device that replaces an active member.
. "$(dirname "$0")/../recipe.sh"
disks 409600 409600 409600
create --level=1 --raid-devices=2 --bitmap=none --assume-clean "$D0" "$D1"
slow
mdadm /dev/md0 --add "$D2"
mdadm /dev/md0 --replace "$D0" --with "$D2"
sleep 2
cat /proc/mdstat
mdadm --stop /dev/md0
capture "$D2"
