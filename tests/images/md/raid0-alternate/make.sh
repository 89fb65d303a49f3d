#!/bin/bash
# A RAID0 of unequal members, laid out as Linux does since 3.14.
. "$(dirname "$0")/../recipe.sh"
disks 204800 409600 102400
create --level=0 --layout=alternate --raid-devices=3 "$D0" "$D1" "$D2"
mdadm --stop /dev/md0
capture "$D1"
