#!/bin/bash
# A RAID10 offset=2 of five members with 1.1 metadata, being resynced.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800 204800 204800
create --metadata=1.1 --level=10 --layout=o2 --chunk=4 --raid-devices=5 --bitmap=none "$D0" "$D1" "$D2" "$D3" "$D4"
slow
sleep 1
mdadm --stop /dev/md0
capture "$D4"
