#!/bin/bash
# Members one after the other.
. "$(dirname "$0")/../recipe.sh"
disks 204800 102400
create --level=linear --raid-devices=2 "$D0" "$D1"
mdadm --stop /dev/md0
capture "$D1"
