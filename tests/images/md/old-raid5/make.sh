#!/bin/bash
# A RAID5 with 0.90 metadata, degraded.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800
create --metadata=0.90 --level=5 --chunk=32 --raid-devices=3 "$D0" missing "$D2"
mdadm --stop /dev/md0
capture "$D0"
