#!/bin/bash
# ublk.sh - volumes of ashlar as block devices, by the driver ublk of a real kernel (QEMU, Linux 6.12 or another; ashlar runs in the guest)
#
#   serve    a logical volume is /dev/ublkbN: an ext4 on it, fio verifies, discards and flushes arrive, a read-only volume is one; the
#            daemon waits for the end of the mount before it stops
#   kill     fio writes and verifies while the daemon is killed (SIGKILL) and started again KILLS times: no request fails
#   data     a device that waits is taken over by the same data alone: not by other disks with a volume of the same name, nor by a volume that
#            is read-only now; a volume that was renamed keeps it
#   user     an ordinary user has a device
#   size     lvextend is seen where the kernel can change a size (Linux 6.16), and the log says so where it cannot
#
# usage: ublk.sh           environment: KILLS=N (default 20), ASHLAR=FILE, KERNEL=DIR (default: of tests/oracle/get-kernel)
# Debian packages: scripts/setup test. Works as root (virtiofsd).
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

if [ "${1:-}" = guest ]; then
	ashlar=$2 kills=$3
	set -eE
	trap 'echo "line $LINENO: $BASH_COMMAND"; tail -n 20 log; dmesg | tail -n 20' ERR
	mkdir /run/w && cd /run/w
	# shellcheck source=tests/until.sh
	. "$root/tests/until.sh"
	fail() { echo "FAIL $*"; return 1; }
	modprobe ublk_drv
	modprobe ext4
	truncate -s 96M d0.img d1.img
	for command in "vgcreate --devices d0.img,d1.img vg d0.img d1.img" "lvcreate --devices d0.img,d1.img -L 96M -n data vg"; do
		# shellcheck disable=SC2086 # words
		"$ashlar" lvm $command >/dev/null
	done
	serve() { # OPTION...
		: >log
		"$ashlar" serve d0.img d1.img --ublk --control control "$@" >log 2>&1 &
		server=$!
		until_it $server grep -q '^ready' log
		until_it $server grep -q 'is a block device' log
	}
	serve
	disk=$("$ashlar" status --control control | sed -n 's/^vg.data is //p')
	[ "$disk" = /dev/ublkb0 ]
	"$ashlar" status --json --control control | grep -q '"sandbox": *"on"'
	[ "$(blockdev --getsize64 $disk)" = $((96 << 20)) ]
	grep -q 'write back' /sys/block/ublkb0/queue/write_cache
	mkfs.ext4 -q $disk
	mount $disk /mnt
	fio --name=v --directory=/mnt --size=24M --bsrange=4k-128k --rw=randwrite --ioengine=libaio --iodepth=16 --direct=1 --fsync=64 \
		--verify=crc32c --do_verify=1 --minimal >/dev/null
	cp /usr/share/common-licenses/GPL-3 /mnt/file
	rm /mnt/v*
	sync
	before=$(du -k d0.img d1.img | awk '{ sum += $1 } END { print sum }')
	[ "$(fstrim -v /mnt | sed 's/.*(\([0-9]*\) bytes.*/\1/')" -gt $((48 << 20)) ]
	[ "$(du -k d0.img d1.img | awk '{ sum += $1 } END { print sum }')" -lt $((before - 16384)) ]
	# It ends when the mount does, and not before.
	kill -TERM $server
	until_it $server grep -q stopping log
	sleep 1
	kill -0 $server
	cmp /mnt/file /usr/share/common-licenses/GPL-3
	umount /mnt
	wait $server
	[ ! -e /sys/block/ublkb0 ]
	serve --read-only
	[ "$(blockdev --getro /dev/ublkb0)" = 1 ]
	mount -o ro,noload /dev/ublkb0 /mnt
	cmp /mnt/file /usr/share/common-licenses/GPL-3
	umount /mnt
	kill -TERM $server
	wait $server
	echo "serve: an ext4, verified data, discards, read-only, and an end that waits for the mount"

	serve
	(
		jobs=0
		while [ ! -e stop ]; do
			fio --name=v --filename=/dev/ublkb0 --size=16M --bsrange=4k-32k --rw=randwrite --ioengine=libaio --iodepth=16 --direct=1 \
				--fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=$jobs --minimal >fio 2>&1 || { cat fio; exit 1; }
			jobs=$((jobs + 1))
			echo $jobs >count
		done
	) &
	writer=$!
	until_it $writer [ -s count ]
	for ((round = 0; round < kills; round++)); do
		sleep 0.$((RANDOM % 900 + 100))
		kill -KILL $server
		{ wait $server; } 2>/dev/null || true
		kill -0 $writer
		serve
	done
	: >stop
	wait $writer
	if dmesg | grep -iE 'I/O error|buffer i/o'; then fail "a request has failed"; fi
	[ "$(find /sys/block -name 'ublkb*' | wc -l)" = 1 ]
	mkfs.ext4 -q /dev/ublkb0
	mount /dev/ublkb0 /mnt
	cp /usr/share/common-licenses/GPL-3 /mnt/file
	# A forced shutdown leaves the mounted device to the next daemon.
	kill -TERM $server
	until_it $server grep -q stopping log
	sleep 2 # a signal that follows at once is the same request
	kill -TERM $server
	wait $server && false
	serve
	sync
	cmp /mnt/file /usr/share/common-licenses/GPL-3
	umount /mnt
	kill -TERM $server
	wait $server
	[ ! -e /sys/block/ublkb0 ]
	echo "kill: $kills daemons killed, at least $(<count) jobs verified"

	dies() {
		kill -KILL $server
		{ wait $server; } 2>/dev/null || true
	}
	device_of() { "$ashlar" status --control control | sed -n "s/^$1 is //p"; }
	ashlar_lvm() { "$ashlar" lvm "$@" >/dev/null; }
	truncate -s 96M other.img
	ashlar_lvm vgcreate --devices other.img vg other.img
	ashlar_lvm lvcreate --devices other.img -L 48M -n data vg
	serve
	mount /dev/ublkb0 /mnt
	cp /usr/share/common-licenses/GPL-2 /mnt/file
	dies
	# These writes must not reach the other disk.
	sync &
	syncing=$!
	: >log
	"$ashlar" serve other.img --ublk --control control >log 2>&1 &
	server=$!
	until_it $server grep -q 'is a block device' log
	[ "$(device_of vg.data)" = /dev/ublkb1 ]
	sleep 1
	kill -TERM $server
	wait $server
	if grep -qa 'GNU GENERAL PUBLIC' other.img; then fail "the writes of one disk have reached the other"; fi
	# A mount that could write needs a volume that can be written.
	: >log
	"$ashlar" serve d0.img d1.img --ublk --read-only --control control >log 2>&1 &
	server=$!
	until_it $server grep -q 'cannot make a block device.*ublkb0 is in use.*read-only now' log
	kill -TERM $server
	wait $server
	ashlar_lvm vgrename --devices d0.img,d1.img vg group
	serve
	[ "$(device_of group.data)" = /dev/ublkb0 ]
	wait $syncing
	cmp /mnt/file /usr/share/common-licenses/GPL-2
	umount /mnt
	dies
	# Nobody has it open: a read-only one takes its place.
	serve --read-only
	[ "$(blockdev --getro "$(device_of group.data)")" = 1 ]
	[ "$(find /sys/block -name 'ublkb*' | wc -l)" = 1 ]
	mount -o ro,noload "$(device_of group.data)" /mnt
	cmp /mnt/file /usr/share/common-licenses/GPL-2
	umount /mnt
	kill -TERM $server
	wait $server
	echo "data: taken over by the same data alone, under another name too"

	# What udev would do.
	chmod 666 /dev/ublk-control
	(until [ -c /dev/ublkc0 ]; do sleep 0.05; done; chown nobody /dev/ublkc0; until [ -b /dev/ublkb0 ]; do sleep 0.05; done; chown nobody /dev/ublkb0) &
	mkdir user
	truncate -s 64M user/disk.img
	chown -R nobody user
	: >log
	setpriv --reuid nobody --clear-groups "$ashlar" serve user/disk.img --ublk --control user/control >log 2>&1 &
	server=$!
	until_it $server grep -q 'is a block device' log
	setpriv --reuid nobody --clear-groups dd if=/dev/urandom of=user/data bs=1M count=4 2>/dev/null
	until [ "$(stat -c %U /dev/ublkb0)" = nobody ]; do sleep 0.05; done
	# The driver keeps other users from a trap, whatever the permissions say.
	chmod 666 /dev/ublkb0
	if setpriv --reuid daemon --clear-groups dd if=/dev/ublkb0 of=/dev/null count=1 2>/dev/null; then fail "another user can open the device"; fi
	setpriv --reuid nobody --clear-groups dd if=user/data of=/dev/ublkb0 bs=1M oflag=direct 2>/dev/null
	kill -TERM $server
	wait $server
	cmp -n $((4 << 20)) user/data user/disk.img
	[ ! -e /sys/block/ublkb0 ]
	echo "user: a device of an ordinary user, which another one cannot open"

	serve
	disk=$(device_of group.data)
	"$ashlar" lvm lvextend --control control -L +8M group/data >/dev/null
	if [ "$(uname -r | cut -d. -f1)" -ge 7 ]; then
		until_it $server sh -c "[ \$(blockdev --getsize64 $disk) = $((104 << 20)) ]"
		dd if=/dev/zero of=$disk bs=1M seek=96 count=8 oflag=direct 2>/dev/null
		echo "size: lvextend is seen"
	else
		until_it $server grep -q 'its block device keeps its size.*Linux 6.16' log
		[ "$(blockdev --getsize64 $disk)" = $((96 << 20)) ]
		echo "size: the log says that this kernel cannot change it"
	fi
	kill -TERM $server
	wait $server
	exit
fi

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
"$root/tests/oracle/qemu-run" ${KERNEL:+--kernel "$KERNEL"} --timeout 1200 --smp 2 --mem 1G "$here/ublk.sh" guest "$(realpath "$ashlar")" "${KILLS:-20}"
