#!/bin/bash
# Writes tests/scrub.txt: what the kernel's scrub counts on each golden image, mounted read-only. As root, with btrfs-progs.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=../../..
work=$(mktemp -d)
loops=()
clean_up() {
	umount "$work/mnt" 2>/dev/null || true
	for loop in "${loops[@]}"; do losetup -d "$loop" || true; done
	loops=()
}
trap 'clean_up; rm -rf "$work"' EXIT
mkdir "$work/mnt"
out=$work/scrub.txt
{
	echo "# What Linux $(uname -r | cut -d. -f1-2) counts on each golden image, mounted read-only: 'btrfs scrub start -B -R -r -d'. Images with a log: after"
	echo "# 'btrfs rescue zero-log'. (scrub.txt beside each image is of a file system that was mounted writable: its trees moved before the image was taken.)"
	echo "# scrub/counters.sh writes this file."
} >"$out"
for image in "$repository"/tests/images/btrfs/*/image.map; do
	name=$(basename "$(dirname "$image")")
	rm -rf "$work/devices"
	"$repository/tests/interop/btrfs_pack.py" unpack "$(dirname "$image")" "$work/devices" >/dev/null
	for file in "$work"/devices/*.img; do loops+=("$(losetup -f --show "$file")"); done
	btrfs device scan "${loops[@]}" >/dev/null
	[ "$name" != log ] || btrfs rescue zero-log "${loops[0]}" >/dev/null
	mount -o ro,noatime "${loops[0]}" "$work/mnt"
	echo "image $name" >>"$out"
	btrfs scrub start -B -R -d -r "$work/mnt" | grep -E '\(id|: [0-9]+$' | sed 's,/dev/loop[0-9]*,device,' >>"$out"
	clean_up
done
mv "$out" scrub.txt
