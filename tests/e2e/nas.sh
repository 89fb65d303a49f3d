#!/bin/bash
# nas.sh - the disks of a dead NAS on a laptop: md RAID1 under LVM under btrfs, made by a real kernel (UML),
# one of the two images with a damaged superblock, read by an ordinary user
#
# `btrfs restore` extracts the files from the volume in ashlar's mount; they have the checksums
# that the kernel wrote down, and the images are unchanged, bit for bit.
#
# usage: nas.sh            environment: ASHLAR=FILE, KEEP=1
# Debian packages: scripts/setup test. As root it continues as the user nobody.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
if [ "${NAS_WORK:-}" ]; then
	# A copy of this script, outside of the repository: ASHLAR names the program to run.
	ashlar=${ASHLAR:?}
else
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	ashlar=$(realpath "$ashlar")
fi

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
	lvcreate -q -y -Wn -Zn -n data -l 100%FREE nas
	mkfs.btrfs -q /dev/nas/data
	mkdir /mnt/data
	mount /dev/nas/data /mnt/data
	mkdir -p /mnt/data/photos/2019 /mnt/data/letters
	for i in 1 2 3 4 5; do head -c 900000 /dev/urandom >"/mnt/data/photos/2019/$i.jpg"; done
	cp /usr/share/common-licenses/GPL-3 /mnt/data/letters
	sync
	(cd /mnt/data && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$2/sums"
	umount /mnt/data
	vgchange -q -an nas
	mdadm --quiet --stop /dev/md0
	exit
fi
[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
fail() {
	echo "FAIL $*"
	exit 1
}

if [ "${NAS_WORK:-}" ]; then
	# The laptop: nothing here has any privilege.
	cd "$NAS_WORK" || exit 1
	[ "$(id -u)" != 0 ] || fail "this is to be an ordinary user"
	mkdir volumes files
	"$ashlar" scan disk0.img disk1.img | tee scanned || fail "scan"
	grep -q '^disk1.img.*checksum' scanned || fail "scan does not say what is wrong with disk1.img"
	"$ashlar" serve disk0.img disk1.img --read-only --run --mount volumes --control control >log 2>&1 &
	server=$!
	for _ in $(seq 200); do
		grep -q '^ready' log && break
		kill -0 $server || { cat log; fail "serve"; }
		sleep 0.05
	done
	btrfs restore volumes/dev/nas/data files >restored || { cat restored; fail "btrfs restore"; }
	(cd files && sha256sum --quiet -c ../shared/sums) || fail "the files are not what they were"
	kill -TERM $server
	wait $server || { cat log; fail "the server ended with $?"; }
	echo "$(wc -l <shared/sums) files read from the degraded array"
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
# In the middle of its superblock: the magic number is there, the checksum is wrong.
dd if=/dev/urandom of="$NAS_WORK/disk1.img" bs=1 seek=$((4096 + 160)) count=16 conv=notrunc status=none
before=$(sha256sum "$NAS_WORK"/disk?.img)
if [ "$(id -u)" = 0 ]; then
	# The binary may lie where nobody cannot look.
	cp "$ashlar" "$NAS_WORK/ashlar"
	chown -R nobody "$NAS_WORK"
	cp "$here/nas.sh" "$NAS_WORK/nas.sh"
	ASHLAR=$NAS_WORK/ashlar setpriv --reuid=nobody --regid=nogroup --clear-groups bash "$NAS_WORK/nas.sh" || exit 1
else
	"$here/nas.sh" || exit 1
fi
[ "$(sha256sum "$NAS_WORK"/disk?.img)" = "$before" ] || fail "the images were written"
echo "the images are as they were"
