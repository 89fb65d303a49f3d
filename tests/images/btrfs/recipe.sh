#!/bin/bash
# recipe.sh [NAME...] - make the images in this directory anew (all, or those named), with this machine's kernel.
#
# Needs root, a kernel with btrfs, loop devices. Debian packages: scripts/setup test. For those with a RAID stripe tree
# (stripe-*) a kernel with CONFIG_BTRFS_EXPERIMENTAL, and btrfs-progs configured with --enable-experimental: README.md
# says how they were made. Any other kernel leaves them as they are.
# UUIDs and times are drawn anew: do not run it without need.
set -eu
here=$(dirname "$(realpath "$0")")
interop=$(realpath "$here/../../interop")
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-btrfs-images.XXXXXX")
mount=$work/mount
loops=()

cleanup() {
	! mountpoint -q "$mount" || umount "$mount"
	[ ${#loops[@]} = 0 ] || losetup -d "${loops[@]}"
	loops=()
}
trap 'cleanup; rm -r --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP

# attach COUNT SIZE - COUNT new images, and their loop devices in $loops
attach() {
	local i
	rm -f "$work"/*.img
	for ((i = 0; i < $1; i++)); do
		truncate -s "$2" "$work/$i.img"
		loops+=("$(losetup --find --show "$work/$i.img")")
	done
}

# make COUNT SIZE MKFS-OPTION... - new images with a file system, mounted
make() {
	attach "$1" "$2"
	shift 2
	mkfs.btrfs -q -L "golden $name" "$@" "${loops[@]}" >"$work/mkfs" 2>&1 || { cat "$work/mkfs"; return 1; }
	[ "$name" != group-tree ] || "$interop/btrfs_group_tree.py" "${loops[@]}"
	btrfs device scan "${loops[@]}" >"$work/scan"
	mkdir -p "$mount"
	mount -o "${options:-noatime}" "${loops[0]}" "$mount"
}

fill() { "$interop/btrfs_files.py" fill "$mount" "$name" "$@"; }

# freed blocks become holes
trim() {
	btrfs filesystem sync "$mount" >"$work/sync"
	fstrim "$mount"
}

# remount - what was written is read from the devices again
remount() {
	umount "$mount"
	mount -o "$1" "${loops[0]}" "$mount"
}

# expect - what btrfs-progs and the kernel say of the file system, which is mounted; then it is unmounted
expect() {
	"$interop/btrfs_files.py" manifest "$mount" >"$out/manifest.txt"
	btrfs scrub start -B -R -d -r "$mount" >"$out/scrub.txt"
	remount ro # a scrub makes chunks: only now the usage is that of the image
	btrfs filesystem usage -b "$mount" | sed "s,${work%/}/,,g" >"$out/usage.txt" 2>&1
	umount "$mount"
	texts
}

# texts - the dumps of the images that are attached, which are named as in the map
texts() {
	local i loop all=
	btrfs check --readonly "${loops[0]}" >"$work/check" 2>&1 || { cat "$work/check"; return 1; }
	[ "$name" != huge ] || all=-a
	for loop in "${loops[@]}"; do btrfs inspect-internal dump-super -f $all "$loop"; done >"$out/super.txt"
	case $name in # trees are large, and much alike
	single-4k | old | halved) btrfs inspect-internal dump-tree "${loops[0]}" >"$out/tree.txt" ;;
	stripe-*) btrfs inspect-internal dump-tree -t raid_stripe "${loops[0]}" >"$out/stripes.txt" ;;
	esac
	# Later versions than 6.2 tell a metadata_uuid that is not used as it is stored: zero.
	sed -i -E '/^fsid\t/h; /^metadata_uuid\t.*[ \t]0{8}-/{g; s/^fsid\t\t\t/metadata_uuid\t\t/}' "$out/super.txt"
	for i in "${!loops[@]}"; do
		sed -i "s,${loops[i]}\b,$i.img,g" "$out"/*.txt
	done
}

pack() {
	sync "$work"/?.img
	cleanup
	"$interop/btrfs_pack.py" pack "$out" "$work"/?.img
}

# plain COUNT SIZE FILL-OPTION MKFS-OPTION... - the common way
plain() {
	make "$1" "$2" "${@:4}"
	# shellcheck disable=SC2086 # perhaps no word
	fill $3
	trim
	remount "${options:-noatime}"
	expect
	pack
}

make_single_4k() { plain 1 200M "" -n 4096 -d single -m single; }
make_single_16k() { plain 1 200M small -n 16384 -d single -m single; }
make_dup_xxhash() { plain 1 300M small -n 16384 -d dup -m dup --csum xxhash; }
make_raid0() { plain 2 400M small -n 4096 -d raid0 -m raid0; }
make_raid1_sha256() { plain 2 256M small -n 4096 -d raid1 -m raid1 --csum sha256; }
make_raid1c3() { plain 3 256M small -n 4096 -d raid1c3 -m raid1c3; }
make_raid1c4() { plain 4 256M small -n 4096 -d raid1c4 -m raid1c4; }
make_raid10_blake2() { plain 4 256M small -n 4096 -d raid10 -m raid10 --csum blake2; }
make_raid5() { plain 3 256M small -n 4096 -d raid5 -m raid5; }
make_raid6() { plain 4 256M small -n 4096 -d raid6 -m raid6; }
make_mixed() { plain 1 64M small -M -d single -m single -n 4096; }
make_large_node() { plain 1 200M small -n 65536 -d single -m single; }
# data in places that a RAID stripe tree says
make_stripe_dup() { plain 1 256M small -n 4096 -d dup -m dup -O raid-stripe-tree; }
make_stripe_raid0() { plain 2 128M small -n 4096 -d raid0 -m raid1 -O raid-stripe-tree; }
make_stripe_raid1() { plain 2 128M small -n 4096 -d raid1 -m raid1 -O raid-stripe-tree; }
make_stripe_raid10() { plain 4 128M small -n 4096 -d raid10 -m raid10 -O raid-stripe-tree; }
# The same, cut and moved about, which kernels do on zoned devices only.
make_stripe_scattered() {
	make 2 128M -n 4096 -d raid1 -m raid1 -O raid-stripe-tree
	fill small
	trim
	umount "$mount"
	"$interop/btrfs_stripes.py" scatter "${loops[@]}"
	mount -o ro,noatime "${loops[0]}" "$mount"
	expect
	pack
}
# block groups in a tree of their own
make_group_tree() {
	make 1 128M -n 8192 -d single -m single
	seq 3000 >"$mount/numbers"
	trim
	remount noatime
	expect
	pack
}
# leaves and data that snapshots share, so that back references name parents
make_shared() {
	local n
	make 1 128M -n 4096 -d single -m single
	btrfs subvolume create "$mount/volume" >"$work/volume"
	for n in {100..230}; do
		echo "file $n" >"$mount/volume/file-$n"
		truncate -s 4000 "$mount/volume/file-$n"
	done
	# each fills a leaf, with zeroes: three levels, and a small image
	python3 -c 'import os, sys; [os.setxattr(path, "user.zeroes", bytes(3500)) for path in sys.argv[1:]]' "$mount/volume"/file-*
	btrfs filesystem sync "$mount" >"$work/sync"
	btrfs subvolume snapshot "$mount/volume" "$mount/first" >"$work/snapshot"
	cp --reflink=always "$mount/volume/file-120" "$mount/volume/reflink"
	ln "$mount/volume/file-130" "$mount/volume/link"
	echo changed >"$mount/volume/file-140"
	rm "$mount/first/file-150"
	btrfs filesystem sync "$mount" >"$work/sync"
	btrfs subvolume snapshot -r "$mount/volume" "$mount/second" >"$work/snapshot"
	echo changed >"$mount/volume/file-200"
	echo changed >"$mount/first/file-201"
	trim
	remount noatime
	expect
	pack
}
# three superblocks, and addresses beyond 4 GiB
make_huge() { plain 1 257G small -n 4096 -d single -m dup; }
# formats of long ago: extents of holes, extent items of metadata, free space in files
make_old() { options=noatime,space_cache=v1 plain 1 200M small -n 4096 -d single -m dup -O ^no-holes,^skinny-metadata,^extref -R ^free-space-tree; }

# two profiles of data and metadata at a time; device numbers 1, 3 and 4
make_halved() {
	make 4 300M -n 4096 -d single -m single
	fill small
	btrfs device remove "${loops[1]}" "$mount"
	fallocate -l 200M "$mount/filler"
	btrfs balance start -f -dconvert=raid1,limit=1 -mconvert=raid1,limit=1 "$mount" >"$work/balance"
	rm "$mount/filler"
	printf 'more, after the balance' >"$mount/later"
	trim
	remount noatime
	losetup -d "${loops[1]}"
	rm "$work/1.img"
	loops=("${loops[0]}" "${loops[2]}" "${loops[3]}")
	mv "$work/2.img" "$work/1.img"
	mv "$work/3.img" "$work/2.img"
	expect
	pack
}

# the metadata_uuid differs from the fsid
make_uuid() {
	make 1 200M -n 4096 -d single -m dup
	fill small
	trim
	umount "$mount"
	btrfstune -m "${loops[0]}" >"$work/tune"
	mount -o noatime "${loops[0]}" "$mount"
	expect
	pack
}

# again - attach the images of $work once more
again() {
	local image
	cleanup
	for image in "$work"/?.img; do loops+=("$(losetup --find --show "$image")"); done
	btrfs device scan "${loops[@]}" >"$work/scan" 2>&1
}

# images copied while mounted, with a log tree. manifest.txt, scrub.txt and usage.txt are of the last whole commit,
# manifest-replayed.txt is what the kernel makes of the log. (Mounted with rescue=nologreplay the kernel refuses to
# scrub, so the log is taken away first.)
make_log() {
	options=noatime,commit=3000 make 2 256M -n 4096 -d raid1 -m raid1
	fill small
	trim
	echo first >"$mount/synced"
	sync "$mount/synced"
	python3 -c 'import sys; sys.stdout.write("replaced\n" * 3000)' >"$mount/one"
	sync "$mount/one"
	mv "$mount/odd-again" "$mount/renamed"
	sync "$mount/renamed"
	echo lost >"$mount/lost"
	mkdir "$work/copies"
	cp --sparse=always "$work"/?.img "$work/copies"
	cleanup
	cp --sparse=always "$work/copies"/?.img "$work"
	again
	mount -o noatime "${loops[0]}" "$mount"
	"$interop/btrfs_files.py" manifest "$mount" >"$out/manifest-replayed.txt"
	cleanup
	cp --sparse=always "$work/copies"/?.img "$work"
	again
	btrfs rescue zero-log "${loops[0]}" >"$work/zeroed"
	mount -o ro "${loops[0]}" "$mount"
	expect
	cleanup
	cp --sparse=always "$work/copies"/?.img "$work"
	again
	texts
	pack
	rm -r "$work/copies"
}

mapfile -t names < <(declare -F | sed -n 's/^declare -f make_//p' | tr _ -)
[ $# = 0 ] || names=("$@")
for name in "${names[@]}"; do
	case $name in stripe-*)
		[ -e /sys/fs/btrfs/features/raid_stripe_tree ] || { echo "$name: this kernel knows no RAID stripe tree"; continue; } ;;
	esac
	out=$here/$name
	mkdir -p "$out"
	"make_${name//-/_}"
	printf '%-16s %8d bytes\n' "$name" "$(cat "$out"/* | wc -c)"
done
