#!/bin/bash
# A RAID10 far=2 of three members with 1.0 metadata and a bitmap.
. "$(dirname "$0")/../recipe.sh"
disks 204803 204800 204800
create --metadata=1.0 --level=10 --layout=f2 --raid-devices=3 --bitmap=internal "$D0" "$D1" "$D2"
settle
mdadm --stop /dev/md0
capture "$D0"
