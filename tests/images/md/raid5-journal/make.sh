#!/bin/bash
# The write journal of a RAID5.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800 40960
create --level=5 --raid-devices=3 --write-journal="$D3" "$D0" "$D1" "$D2"
mdadm --stop /dev/md0
capture "$D3"
