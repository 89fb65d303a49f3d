#!/bin/bash
# A RAID1 that was stopped after its first resync.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40960
create --level=1 --raid-devices=2 "$D0" "$D1"
settle
mdadm --stop /dev/md0
capture "$D1"
