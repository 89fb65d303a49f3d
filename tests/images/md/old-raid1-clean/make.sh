#!/bin/bash
# A RAID1 with 0.90 metadata and a bitmap, stopped cleanly.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40961
create --metadata=0.90 --level=1 --raid-devices=2 --bitmap=internal "$D0" "$D1"
settle
mdadm --stop /dev/md0
capture "$D1"
