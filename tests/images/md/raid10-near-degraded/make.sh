#!/bin/bash
# A RAID10 near=2 with a bitmap, one member failed, another missing from the start.
. "$(dirname "$0")/../recipe.sh"
disks 204800 204800 204800 204800
create --level=10 --layout=n2 --chunk=64 --raid-devices=4 --bitmap=internal --bitmap-chunk=64K "$D0" missing "$D2" "$D3"
settle
mdadm /dev/md0 --fail "$D3"
dd if=/dev/zero of=/dev/md0 bs=1M count=3 oflag=direct status=none
mdadm --stop /dev/md0
capture "$D0"
