#!/bin/bash
# nas.sh - the disks of a dead NAS on a laptop: md RAID1 under LVM under btrfs and ext4, made by a real kernel (UML), read by
# an ordinary user from two images, which stay as they are, bit for bit
#
#   - The superblock of one image is damaged: `btrfs restore` extracts the files from the volume in ashlar's mount; they have the
#     checksums that the kernel wrote down.
#   - ddrescue could not read a part of a file of each file system on one disk: its image has zeroes there, and only its map says so.
#     With the other image all files are right. Without it these two files, and no others, are named (btrfs) or end there (ext4).
#
# usage: nas.sh            environment: ASHLAR=FILE, KEEP=1
# Debian packages: scripts/setup test. As root it continues as the user nobody.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
if [ "${1:-}" = guest ]; then
	set -e
	modprobe -a raid1 dm-mod btrfs 2>/dev/null || true
	cat >/etc/lvm/lvmlocal.conf <<-C
		devices { use_devicesfile=0 global_filter=["a|^/dev/md|","r|.*|"] }
		activation { udev_sync=0 udev_rules=0 monitoring=0 }
		backup { backup=0 archive=0 }
	C
	mdadm --quiet --create /dev/md0 --run --level=1 --raid-devices=2 --homehost=nas --name=0 --assume-clean "$DISK0" "$DISK1"
	pvcreate -q -y /dev/md0
	vgcreate -q nas /dev/md0
	lvcreate -q -y -Wn -Zn -n btrfs -L 160M nas
	lvcreate -q -y -Wn -Zn -n ext4 -L 64M nas
	for fs in btrfs ext4; do
		"mkfs.$fs" -q "/dev/nas/$fs"
		mkdir "/mnt/$fs"
		mount "/dev/nas/$fs" "/mnt/$fs"
		mkdir -p "/mnt/$fs/photos/2019" "/mnt/$fs/letters"
		# Each line says whose it is, and no byte is zero.
		for i in 1 2 3 4 5; do yes "$fs photo $i" | head -c 900000 >"/mnt/$fs/photos/2019/$i.jpg"; done
		cp /usr/share/common-licenses/GPL-3 "/mnt/$fs/letters"
		sync
		(cd "/mnt/$fs" && find letters photos -type f -print0 | sort -z | xargs -0 sha256sum) >"$2/$fs"
		umount "/mnt/$fs"
	done
	vgchange -q -an nas
	mdadm --quiet --stop /dev/md0
	exit
fi

if [ "${NAS_WORK:-}" ]; then
	# A copy of this script, outside of the repository: ASHLAR names the program to run.
	ashlar=${ASHLAR:?}
	# shellcheck source=tests/until.sh
	. "$NAS_WORK/until.sh"
else
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	ashlar=$(realpath "$ashlar")
fi
[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
fail() {
	echo "FAIL $*"
	[ ! "${server:-}" ] || kill "$server" 2>/dev/null
	exit 1
}

serve() { # IMAGE...
	: >log # or the last one's is looked at, if the new one is slow
	"$ashlar" serve "$@" --read-only --run --mount volumes --control control >log 2>&1 &
	server=$!
	! until_it $server grep -q '^ready' log || return 0
	cat log
	fail "serve $*"
}
stop() {
	kill -TERM $server
	wait $server || fail "the server ended with $?: $(cat log)"
	server=
}
wrong() { # FS DIR - the files that are missing or not what they were
	(cd "$2" && sha256sum -c "$NAS_WORK/shared/$1" 2>/dev/null | sed -n 's/: FAILED.*//p')
}
from_ext4() { # DIR - extracts the files that are served; prints what debugfs says about reads
	mkdir "$1"
	debugfs -R "rdump / $1" volumes/dev/nas/ext4 >"$1.said" 2>&1
	grep 'while reading' "$1.said"
}
lose() { # FS - zeroes 8 KiB in the middle of its third photo in rescued.img, and prints where they are
	python3 - "$1" <<-'P'
		import sys
		line = f'{sys.argv[1]} photo 3\n'.encode()
		lines = line * (16384 // len(line) + 2)
		with open('rescued.img', 'r+b') as image:
		    data = image.read()
		    # The file may be in several pieces: all around is its own, so no other file has a part in it.
		    places = range(4096, len(data) - 12288, 4096)
		    own = [at for at in places if data[at:at + 1] != b'\0' and data[at - 4096:at + 12288] in lines]
		    at = own[len(own) // 2]
		    image.seek(at)
		    image.write(bytes(8192))
		print(at)
	P
}

if [ "${NAS_WORK:-}" ]; then
	# The laptop: nothing here has any privilege.
	cd "$NAS_WORK" || exit 1
	[ "$(id -u)" != 0 ] || fail "this is to be an ordinary user"
	mkdir volumes restored
	"$ashlar" scan disk0.img damaged.img | tee scanned || fail "scan"
	grep -q '^damaged.img.*checksum' scanned || fail "scan does not say what is wrong with damaged.img"
	serve disk0.img damaged.img
	btrfs restore volumes/dev/nas/btrfs restored >messages || { cat messages; fail "btrfs restore"; }
	[ ! "$(wrong btrfs restored)" ] || fail "the files are not what they were"
	stop
	echo "$(wc -l <shared/btrfs) files read from the degraded array"

	# The map is found beside the image.
	"$ashlar" btrfs get / both rescued.img disk1.img || fail "btrfs get with both images"
	serve rescued.img disk1.img
	[ ! "$(from_ext4 both4)" ] || fail "debugfs could not read, with both images"
	[ ! "$(wrong btrfs both)$(wrong ext4 both4)" ] || fail "files are wrong, with both images"
	stop
	echo "all files read from both images, one of them incomplete"

	"$ashlar" btrfs get --degraded / one rescued.img 2>messages && fail "btrfs get does not fail"
	grep -q 'not extracted: /photos/2019/3.jpg: bytes .* are lost' messages || { cat messages; fail "btrfs get does not name the file"; }
	[ "$(grep -c 'not extracted:' messages)" = 1 ] || { cat messages; fail "btrfs get names other files"; }
	serve rescued.img
	[ "$(from_ext4 one4 | wc -l)" = 1 ] || fail "debugfs reports another number of files: $(cat one4.said log)"
	bad="$(wrong btrfs one) $(wrong ext4 one4)"
	[ "$bad" = "photos/2019/3.jpg photos/2019/3.jpg" ] || fail "other files are wrong: $bad"
	stop
	[ ! -e one/photos/2019/3.jpg ] || fail "btrfs get left a file that is not complete"
	grep -qaP '\0' one4/photos/2019/3.jpg && fail "what was not read is read as zeroes"
	echo "without the other image, the file in the unread part is named, and the others are right"

	# The map is what does it.
	mv rescued.map elsewhere
	serve rescued.img
	[ "$(from_ext4 blind4)$(wrong ext4 blind4)" = photos/2019/3.jpg ] || fail "the image fails without its map"
	stop
	exit
fi

needs "$ashlar"
NAS_WORK=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-nas.XXXXXX") || exit 1
export NAS_WORK ASHLAR=$ashlar
trap '[ "${KEEP:-}" ] && echo "kept: $NAS_WORK" || rm -rf --one-file-system "$NAS_WORK"' EXIT
trap 'exit 130' INT TERM HUP
mkdir "$NAS_WORK/shared"
truncate -s 256M "$NAS_WORK/disk0.img" "$NAS_WORK/disk1.img"
"$root/tests/oracle/uml-run" --timeout 120 --disk "$NAS_WORK/disk0.img" --disk "$NAS_WORK/disk1.img" \
	--rw "$NAS_WORK/shared" "$here/nas.sh" guest "$NAS_WORK/shared" || fail "the NAS could not be made"
cd "$NAS_WORK" || exit 1
# In the middle of its superblock: the magic number is there, the checksum is wrong.
cp --sparse=always disk1.img damaged.img
dd if=/dev/urandom of=damaged.img bs=1 seek=$((4096 + 160)) count=16 conv=notrunc status=none
cp --sparse=always disk0.img rescued.img
for fs in btrfs ext4; do lose $fs || fail "there is no photo"; done | sort -n >lost
{
	echo "0x0 + 1"
	end=0
	while read -r at; do
		printf '%d %d +\n%d 8192 -\n' "$end" $((at - end)) "$at"
		end=$((at + 8192))
	done <lost
	echo "$end $(($(stat -c %s rescued.img) - end)) +"
} >rescued.map
before=$(sha256sum ./*.img)
cp "$root/tests/until.sh" "$NAS_WORK"
if [ "$(id -u)" = 0 ]; then
	# The binary may lie where nobody cannot look.
	cp "$ashlar" "$NAS_WORK/ashlar"
	chown -R nobody "$NAS_WORK"
	cp "$here/nas.sh" "$NAS_WORK"
	ASHLAR=$NAS_WORK/ashlar setpriv --reuid=nobody --regid=nogroup --clear-groups bash "$NAS_WORK/nas.sh" || exit 1
else
	"$here/nas.sh" || exit 1
fi
[ "$(sha256sum ./*.img)" = "$before" ] || fail "the images were written"
echo "the images are as they were"
