#!/bin/bash
# recipe.sh [NAME...] - make the images in this directory anew (all, or those named), through libzpool.
#
# Needs a C compiler, libzpool with its headers (scripts/setup oracle), zdb. No kernel module, no root.
# Identities and times are drawn anew: do not run it without need.
set -eu
here=$(dirname "$(realpath "$0")")
interop=$(realpath "$here/../../interop")
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-zfs-images.XXXXXX")
trap 'rm -r "$work"' EXIT
trap 'exit 130' INT TERM HUP

# shellcheck disable=SC2046 # several words
cc -O1 -o "$work/make-pool" "$here/make-pool.c" $(pkg-config --cflags libzfs) -lzpool -lzfs -lnvpair

# make NAME COUNT ASHIFT END TOP... - a pool of COUNT files; in TOP a file is named by its number
make() {
	local name=$1 count=$2 i top tops=() out=$here/$1
	rm -f "$work"/*.img
	for ((i = 0; i < count; i++)); do truncate -s "${size:-64M}" "$work/$i.img"; done
	for top in "${@:5}"; do
		tops+=("${top%%:*}:$(sed -E "s,[0-9]+,$work/&.img,g" <<<"${top#*:}")")
	done
	"$work/make-pool" "golden-$name" "$3" "$4" "${tops[@]}"
	mkdir -p "$out"
	for ((i = 0; i < count; i++)); do
		echo "device $i"
		zdb -lu "$work/$i.img" || echo "status $?"
	done >"$out/labels.txt"
	"$interop/btrfs_pack.py" pack "$out" "$work"/?.img
}

make_mirror() { make mirror 2 12 export mirror:0,1; }
make_raidz() { make raidz 3 12 leave raidz1:0,1,2; }
# a hole where a log was, a spare, a cache; small sectors, and devices of no round size
make_stripe() { size=$(((64 << 20) + 70000 / 512 * 512)) make stripe 7 9 drop-logs,export disk:0 log:1 disk:2 mirror:3,4 spare:5 cache:6; }
make_destroyed() { make destroyed 1 13 destroy disk:0; }

names=("$@")
[ $# -gt 0 ] || names=(mirror raidz stripe destroyed)
for name in "${names[@]}"; do "make_$name"; done
