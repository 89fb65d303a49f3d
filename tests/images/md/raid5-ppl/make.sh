#!/bin/bash
# A RAID5 with a partial parity log.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800
create --level=5 --layout=right-asymmetric --raid-devices=3 --consistency-policy=ppl "$D0" "$D1" "$D2"
settle
mdadm --stop /dev/md0
capture "$D1"
