#!/bin/bash
# A RAID10 with 0.90 metadata from which a member was removed.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800 204800
create --metadata=0.90 --level=10 --layout=n2 --chunk=64 --raid-devices=4 --assume-clean "$D0" "$D1" "$D2" "$D3"
mdadm /dev/md0 --fail "$D2"
sleep 1
mdadm /dev/md0 --remove "$D2"
mdadm --stop /dev/md0
capture "$D3"
