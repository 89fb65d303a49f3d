#!/bin/bash
# A spare of a RAID1 with 1.1 metadata.
. "$(dirname "$0")/../recipe.sh"
disks 40960 40960 40961
create --metadata=1.1 --level=1 --raid-devices=2 --spare-devices=1 --bitmap=none "$D0" "$D1" "$D2"
settle
mdadm --stop /dev/md0
capture "$D2"
