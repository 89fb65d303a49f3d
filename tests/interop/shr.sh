#!/bin/bash
# shr.sh - the disks of a NAS with disks of unequal sizes, as Synology's "hybrid RAID" lays them out, made by a real kernel (UML):
# one disk is missing, others have sectors that cannot be read.
#
# Four disks with partitions: two RAID1 of 12 and 24 slots with 0.90 superblocks, for the system and swap, over small partitions;
# a RAID5 or RAID6 over a partition of all disks, and another array over the rest of the larger ones; both are physical volumes
# of one volume group, with one logical volume, with ext4 or btrfs.
#
#   raid6    all files are right
#   raid5    the files that lost blocks are named, and not those with other contents; all others are right
#
# Which ones those are is found on the disks by the files' contents (shr_blocks.py), not by layouts. In all cases the images are
# as they were afterwards, bit for bit.
#
# usage: shr.sh
# environment
#   ONLY=REGEX      only the cases whose name matches: raid5-ext4, raid5-btrfs, raid6-ext4, raid6-btrfs
#   ASHLAR=FILE     the program to test, default target/debug/ashlar
#   HARMLESS=1      no sector is unreadable: the cases of raid5 must fail then, as no file is lost
#   SPOILT=1        a block of a file is overwritten, of which nobody was told: each case must fail
#   KEEP=1          keep the images and logs
#
# Debian packages: scripts/setup test. Works as an ordinary user who may use FUSE.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
mib=$((1 << 20))

# ------------------------------------------------------------ in the guest --
if [ "${1:-}" = guest ]; then
	# shr.sh guest RAID FILESYSTEM DIR
	raid=$2 kind=$3 shared=$4
	modprobe -a raid1 raid456 dm-mod btrfs 2>/dev/null || true
	cat >/etc/lvm/lvmlocal.conf <<-C
		devices { use_devicesfile=0 global_filter=["a|^/dev/md|","r|.*|"] }
		activation { udev_sync=0 udev_rules=0 monitoring=0 }
		backup { backup=0 archive=0 }
	C
	disks=("$DISK0" "$DISK1" "$DISK2" "$DISK3")
	# make MD METADATA LEVEL SLOTS DEVICE...
	make() {
		local lacking=$(($4 - $# + 4)) options=(--metadata="$2" --level="$3" --raid-devices="$4" --assume-clean)
		[ "$2" = 0.90 ] || options+=(--homehost=DiskStation --name="${1#/dev/md}")
		[ "$3" = 1 ] || options+=(--chunk=64)
		# shellcheck disable=SC2046 # words
		mdadm --quiet --create "$1" --run "${options[@]}" "${@:5}" $(yes missing | head -n $lacking)
	}
	make /dev/md0 0.90 1 12 "${disks[@]/%/1}"
	make /dev/md1 0.90 1 24 "${disks[@]/%/2}"
	make /dev/md2 1.2 "$raid" 4 "${disks[@]/%/5}"
	if [ "$raid" = 5 ]; then
		make /dev/md3 1.2 5 3 "${DISK1}6" "${DISK2}6" "${DISK3}6"
	else
		make /dev/md3 1.2 1 2 "${DISK2}6" "${DISK3}6"
	fi
	mkfs.ext4 -q /dev/md0
	mkswap /dev/md1 >/dev/null
	pvcreate -q -y /dev/md2 /dev/md3
	vgcreate -q vg1000 /dev/md2 /dev/md3
	lvcreate -q -y -Wn -Zn -n lv -l 100%FREE vg1000
	# Blocks of 4 KiB, which a small ext4 would not have.
	case $kind in
	ext4) mkfs.ext4 -q -b 4096 /dev/vg1000/lv ;;
	btrfs) mkfs.btrfs -q /dev/vg1000/lv ;;
	esac
	mkdir /mnt/volume1
	mount /dev/md0 /mnt/volume1
	echo 7.2 >/mnt/volume1/VERSION
	umount /mnt/volume1
	mount /dev/vg1000/lv /mnt/volume1
	cp -r "$shared/files/." /mnt/volume1
	umount /mnt/volume1
	vgchange -q -an vg1000
	for array in 3 2 1 0; do mdadm --quiet --stop /dev/md$array; done
	exit
fi
[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}

# ------------------------------------------------------------- on the host --
fail() {
	echo "FAIL $name: $*"
	[ ! -s "$W/log" ] || sed 's/^/     server: /' "$W/log"
	exit 1
}

# partition DISK SIZE - in MiB: the system's, swap's, and those for data; all disks alike as far as they go
partition() {
	truncate -s "$2M" "$1"
	{
		echo "label: gpt"
		echo "$1-part1 : start=1MiB, size=8MiB, type=raid"
		echo "$1-part2 : start=9MiB, size=4MiB, type=raid"
		echo "$1-part5 : start=13MiB, size=34MiB, type=raid"
		[ "$2" -lt 100 ] || echo "$1-part6 : start=47MiB, size=64MiB, type=raid"
	} | sfdisk --quiet "$1"
}

# make_disks RAID KIND - as the NAS left them
make_disks() {
	local i sizes=(48 112 112 112)
	[ "$1" = 5 ] || sizes[1]=48
	mkdir "$W/shared" "$W/shared/files"
	for i in 0 1 2 3; do partition "$W/disk$i.img" "${sizes[i]}"; done
	# Of all sizes, more than what the first array has for data. (A btrfs keeps files below 2 KiB in its trees.)
	for i in $(seq $(($1 == 5 ? 52 : 18))); do
		mkdir -p "$W/shared/files/photo/$((i % 5))"
		head -c $((1500000 + i * i * 831)) /dev/urandom >"$W/shared/files/photo/$((i % 5))/$i.jpg"
	done
	for i in $(seq 20); do head -c $((i * 300)) /dev/urandom | base64 >"$W/shared/files/photo/note-$i"; done
	(cd "$W/shared/files" && find . -type f -printf '%P\0' | sort -z | xargs -0 sha256sum) >"$W/sums"
	"$root/tests/oracle/uml-run" --timeout 200 --mem 768M --disk "$W/disk0.img" --disk "$W/disk1.img" --disk "$W/disk2.img" \
		--disk "$W/disk3.img" --rw "$W/shared" --log "$W/klog" "$here/shr.sh" guest "$1" "$2" "$W/shared" >"$W/made" 2>&1 || {
		cat "$W/made"
		fail "the NAS could not be made"
	}
}

# bad FIRST END COUNT WHERE DISK OTHER... - that many blocks of a disk of an array cannot be read, where files have blocks; who
# loses by it is noted
bad() {
	local at disk=$W/$5
	set -- "${@/#disk/$W/disk}"
	at=$(python3 "$here/shr_blocks.py" choose "$W/shared/files" "$@") || fail "no range of $5"
	[ "${HARMLESS:-}" ] || models+=(--model "$disk=custom:unreadable=$at+$(($3 * 4096))")
	python3 "$here/shr_blocks.py" lost "$W/shared/files" "$at" "$3" "$disk" "$W/disk3.img" >>"$W/hit"
}

# serve - read-only, the remaining disks, volumes as files in $W/volumes
serve() {
	mkdir -p "$W/volumes"
	: >"$W/log"
	"$ashlar" serve "$W"/disk[012].img "${models[@]}" --read-only --run --mount "$W/volumes" --control "$W/control" >"$W/log" 2>&1 </dev/null &
	server=$!
	until_it $server grep -q '^ready' "$W/log" || fail "the server did not start"
}
stop() {
	kill -TERM $server
	wait $server || fail "the server ended with $?"
	server=''
}

# take_ext4 VOLUME - each file by itself, so that one which cannot be read says so
take_ext4() {
	local file
	while read -r _ file; do
		mkdir -p "$W/taken/$(dirname "$file")"
		debugfs -R "dump \"/$file\" \"$W/taken/$file\"" "$1" >"$W/said" 2>&1
		if grep -q 'while reading' "$W/said"; then
			echo "$file" >>"$W/named"
			rm -f "$W/taken/$file"
		fi
	done <"$W/sums"
}
# take_btrfs VOLUME
take_btrfs() {
	local status=0
	"$ashlar" btrfs get / "$W/taken" "$1" >"$W/said" 2>&1 || status=$?
	[ $status = 0 ] || { grep -o 'photo/[^ :,]*' "$W/said" | sort -u >"$W/named"; }
	[ $status = 0 ] || [ -s "$W/named" ] || { cat "$W/said" && fail "ashlar btrfs get ended with $status and named no file"; }
}

case_of() { # RAID KIND
	local models=() started=$SECONDS
	W=$work/$name
	mkdir "$W"
	make_disks "$1" "$2"
	: >"$W/hit"
	: >"$W/named"
	if [ "$1" = 5 ]; then
		# One range in each array.
		bad $((13 * mib)) $((47 * mib)) 4 40 disk1.img disk0.img disk2.img disk3.img
		bad $((47 * mib)) $((111 * mib)) 4 70 disk2.img disk1.img disk3.img
	else
		# One of each disk, in different parts of the first array: with a missing disk each row has enough others.
		bad $((13 * mib)) $((47 * mib)) 8 10 disk0.img disk1.img disk2.img disk3.img
		bad $((13 * mib)) $((47 * mib)) 8 50 disk1.img disk0.img disk2.img disk3.img
		bad $((13 * mib)) $((47 * mib)) 8 90 disk2.img disk0.img disk1.img disk3.img
		: >"$W/hit"
	fi
	sort -u -o "$W/hit" "$W/hit"
	[ "$1" = 6 ] || [ -s "$W/hit" ] || fail "the unreadable blocks belong to no file"
	[ -z "${SPOILT:-}" ] || spoil
	mv "$W/disk3.img" "$W/withheld"
	sha256sum "$W"/disk?.img >"$W/before"

	"$ashlar" scan "$W"/disk[012].img >"$W/scanned" || fail "scan"
	for word in vg1000 "raid$1" 'raid1' "$2"; do
		grep -q "$word" "$W/scanned" || { cat "$W/scanned" && fail "scan does not show $word"; }
	done
	serve
	# The system's array has four members of twelve, one of which is away.
	[ "$(debugfs -R 'cat /VERSION' "$W/volumes/dev/md0" 2>/dev/null)" = 7.2 ] || fail "the system partition"
	# Before many small requests have the log limited.
	[ "$1" = 5 ] || cat "$W/volumes/dev/vg1000/lv" >"$W/whole" || fail "the volume cannot be read"
	rm -f "$W/whole"
	"take_$2" "$W/volumes/dev/vg1000/lv"
	stop
	sha256sum --quiet -c "$W/before" || fail "the images were written"
	# Otherwise it would not matter what cannot be read.
	for word in "${models[@]}"; do
		[[ $word == --model ]] || grep -q "read error.*${word%%=*}" "$W/log" || fail "no read error of ${word%%=*}"
	done

	sort -u -o "$W/named" "$W/named"
	diff "$W/hit" "$W/named" >"$W/diff" || {
		cat "$W/diff"
		fail "< lost, but not named; > named, but not lost"
	}
	grep -vFf <(sed 's/^/  /; s/$/\t/' "$W/hit") <(sed 's/$/\t/' "$W/sums") | tr -d '\t' >"$W/left"
	[ "$(wc -l <"$W/left")" = $(($(wc -l <"$W/sums") - $(wc -l <"$W/hit"))) ] || fail "the list of files that are left"
	(cd "$W/taken" && sha256sum --quiet -c "$W/left") || fail "files are not what they were"
	while read -r file; do [ ! -e "$W/taken/$file" ] || fail "$file was lost, but there is something"; done <"$W/hit"
	echo "ok $name: $(wc -l <"$W/left") files right, $(wc -l <"$W/named") named as lost, $((SECONDS - started)) s"
	[ "${KEEP:-}" ] || rm -rf --one-file-system "$W"
}

# spoil - a block of a file that no test of readability finds: a file system's checksums do, or the comparison afterwards
spoil() {
	local at
	at=$(python3 "$here/shr_blocks.py" choose "$W/shared/files" $((13 * mib)) $((47 * mib)) 1 99 "$W"/disk[0123].img) || fail "nothing to spoil"
	printf 'spoilt' | dd of="$W/disk0.img" bs=1 seek="$at" conv=notrunc status=none
}

needs "$ashlar"
ashlar=$(realpath "$ashlar")
server=''
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-shr.XXXXXX")
ended() {
	local code=$?
	if [ -n "$server" ]; then
		kill -TERM "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	if [ "${KEEP:-}" ]; then echo "kept: $work"; else rm -rf --one-file-system "$work"; fi
	exit $code
}
trap ended EXIT
trap 'exit 130' INT TERM HUP
ran=0
for name in raid5-ext4 raid5-btrfs raid6-ext4 raid6-btrfs; do
	[[ $name =~ ${ONLY:-} ]] || continue
	kind=${name#*-} level=${name%-*}
	case_of "${level#raid}" "$kind"
	ran=$((ran + 1))
done
[ $ran -gt 0 ] || { echo "shr.sh: no case matches" >&2; exit 1; }
