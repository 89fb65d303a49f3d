#!/bin/bash
# recipe.sh - make the files in this directory anew, in a real kernel (UML).
#
# Debian packages: scripts/setup test.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(realpath "$here/../../..")
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
mkdir "$work/out"
disks=()
for i in 0 1 2 3; do
	# See tests/interop/dm-raid.sh.
	{ head -c 1M /dev/zero && head -c 63M /dev/urandom; } >"$work/disk$i"
	disks+=(--disk "$work/disk$i")
done
"$root/tests/oracle/uml-run" --rw "$work/out" "${disks[@]}" "$root/tests/interop/dm-raid-guest.sh" "$work/out"
for v in mirror three partly joined ten tenless nought; do
	cp "$work/out/$v.shape" "$here"
	for meta in "$work/out/$v".*.meta; do
		# What lies behind the bitmap, or the superblock without one, is whatever the disk had.
		python3 - "$meta" "$here/${meta##*/}" <<'PY'
import sys
image = open(sys.argv[1], "rb").read(4608)
if image[4096:4100] != b"bitm":
    image = image[:512]
open(sys.argv[2], "wb").write(image.rstrip(b"\0"))
PY
	done
done
