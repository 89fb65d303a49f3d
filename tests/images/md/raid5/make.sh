#!/bin/bash
# A RAID5, which ashlar only shows.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800
create --level=5 --chunk=128 --raid-devices=3 --bitmap=none "$D0" "$D1" "$D2"
settle
mdadm --stop /dev/md0
capture "$D2"
