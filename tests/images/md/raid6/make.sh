#!/bin/bash
# A RAID6 with its parity at the end.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800 204800
create --level=6 --layout=parity-last --raid-devices=4 --assume-clean --bitmap=none "$D0" "$D1" "$D2" "$D3"
mdadm --stop /dev/md0
capture "$D3"
