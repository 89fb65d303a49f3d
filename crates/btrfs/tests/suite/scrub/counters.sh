#!/bin/bash
# Writes tests/scrub.txt: what the kernel's scrub counts on each golden image, mounted read-only. As root, with btrfs-progs.
# On a kernel that knows the RAID stripe tree: tests/scrub-stripes.txt, of the images that have one (stripe-*), also spoilt.
set -euo pipefail
cd "$(dirname "$0")/.."
interop=../../../tests/interop
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
is_of_stripes() { [[ $1 == stripe-* ]]; }
has_stripe_tree() { [ -e /sys/fs/btrfs/features/raid_stripe_tree ]; }
to=scrub.txt
! has_stripe_tree || to=scrub-stripes.txt
{
	echo "# What Linux $(uname -r | cut -d. -f1-2) counts on each golden image, mounted read-only: 'btrfs scrub start -B -R -r -d'. Images with a log: after"
	echo "# 'btrfs rescue zero-log'. (scrub.txt beside each image is of a file system that was mounted writable: its trees moved before the image was taken.)"
	! has_stripe_tree || echo "# \"spoilt DEVICE PHYSICAL BYTES\" is what was damaged before, drawn by tests/interop/btrfs_stripes.py."
	echo "# scrub/counters.sh writes this file."
} >"$out"

# counters NAME [spoilt] - the counters of an image
counters() {
	rm -rf "$work/devices"
	"$interop/btrfs_pack.py" unpack "../../../tests/images/btrfs/$1" "$work/devices" >/dev/null
	echo "image $*"
	[ $# = 1 ] || "$interop/btrfs_stripes.py" spoil "$1" "$work"/devices/*.img
	for file in "$work"/devices/*.img; do loops+=("$(losetup -f --show "$file")"); done
	btrfs device scan "${loops[@]}" >/dev/null
	[ "$1" != log ] || btrfs rescue zero-log "${loops[0]}" >/dev/null
	mount -o ro,noatime "${loops[0]}" "$work/mnt"
	{ btrfs scrub start -B -R -d -r "$work/mnt" || [ $# = 2 ]; } | grep -E '\(id|: [0-9]+$' | sed 's,/dev/loop[0-9]*,device,'
	clean_up
}

for image in ../../../tests/images/btrfs/*/image.map; do
	name=$(basename "$(dirname "$image")")
	if has_stripe_tree && is_of_stripes "$name"; then
		counters "$name"
		counters "$name" spoilt
	elif ! has_stripe_tree && ! is_of_stripes "$name"; then
		counters "$name"
	fi
done >>"$out"
mv "$out" "$to"
