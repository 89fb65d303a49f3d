#!/bin/bash
# vhost-user.sh - logical volumes of ashlar as disks of virtual machines, by vhost-user-blk
#
#   uml      a guest (UML) makes a file system, fio verifies what it wrote, discards are seen, another guest cannot write to a
#            volume that is served read-only
#   qemu     a guest (QEMU, Linux 6.12) with two queues writes and verifies with fio, 16 requests in flight, while the daemon is
#            killed (SIGKILL) and started again KILLS times: no request fails, and all data are right. Then the volume is
#            extended, and the guest sees it without a reboot
#   hotplug  a running guest (QEMU) gets the disk with two queues, loses it, also while it writes, and gets it again: the data are the
#            same, and the socket takes the next machine
#
# usage: vhost-user.sh [uml | qemu | hotplug]...        default: all
# environment
#   KILLS=N   default 100           ASHLAR=FILE, KEEP=1
#
# Prints, for each restart, how long the guest's requests waited after its QEMU had connected again; QEMU tries once a second.
# Debian packages: scripts/setup test. Works as root (virtiofsd).
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

# ------------------------------------------------------------------ guests --
if [ "${1:-}" = guest ]; then
	shared=$3
	case $2 in
	uml)
		set -eE
		trap 'echo "line $LINENO: $BASH_COMMAND"' ERR
		disk=$VDISK0
		[ "$(blockdev --getsize64 "$disk")" = $((64 << 20)) ]
		grep -q 'write back' "/sys/block/${disk#/dev/}/queue/write_cache"
		mkfs.ext4 -q "$disk"
		mount "$disk" /mnt
		fio --name=v --directory=/mnt --size=24M --bsrange=4k-64k --rw=randwrite --ioengine=libaio --iodepth=16 --direct=1 \
			--verify=crc32c --do_verify=1 --minimal >/dev/null
		cp /usr/share/common-licenses/GPL-3 /mnt/file
		rm /mnt/v*
		sync # only then are its blocks free
		[ "$(fstrim -v /mnt | sed 's/.*(\([0-9]*\) bytes.*/\1/')" -gt $((32 << 20)) ]
		umount /mnt
		e2fsck -fn "$disk" >/dev/null 2>&1
		# The second one is read-only.
		[ "$(blockdev --getro "$VDISK1")" = 1 ]
		if dd if=/dev/zero of="$VDISK1" bs=4k count=1 oflag=direct 2>/dev/null; then exit 1; fi
		cmp -n 4096 "$VDISK1" /dev/zero
		;;
	qemu)
		disk=$VDISK0
		[ "$(ls "/sys/block/${disk#/dev/}/mq" | wc -l)" = 2 ] || echo "the disk has not two queues" >&2
		jobs=0
		while [ ! -e "$shared/stop" ]; do
			fio --name=v --filename="$disk" --size=24M --bsrange=4k-32k --rw=randwrite --ioengine=libaio --iodepth=16 --direct=1 \
				--fsync=64 --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed=$jobs --minimal >"$shared/fio" 2>&1 || {
				cat "$shared/fio"
				dmesg | tail -n 20
				exit 1
			}
			jobs=$((jobs + 1))
			echo $jobs >"$shared/jobs"
		done
		# I/O errors that something has hidden.
		! dmesg | grep -iE 'I/O error|blk_update_request|timeout|buffer i/o' || exit 1
		echo "$jobs jobs verified"
		blockdev --getsize64 "$disk" >"$shared/size"
		until [ -e "$shared/extended" ]; do sleep 0.2; done
		for _ in $(seq 300); do
			[ "$(blockdev --getsize64 "$disk")" = $((80 << 20)) ] && break
			sleep 0.1
		done
		blockdev --getsize64 "$disk"
		dd if=/dev/zero of="$disk" bs=1M seek=79 count=1 oflag=direct status=none
		;;
	hotplug)
		set -eE
		trap 'echo "line $LINENO: $BASH_COMMAND"; dmesg | tail -n 20' ERR
		for round in 1 2 3; do
			: >"$shared/wants$round"
			until [ -b /dev/vda ]; do sleep 0.1; done
			[ "$(blockdev --getsize64 /dev/vda)" = $((64 << 20)) ]
			[ "$(ls /sys/block/vda/mq | wc -l)" = 2 ]
			case $round in
			1)
				dd if="$shared/data" of=/dev/vda bs=64k seek=512 oflag=direct status=none
				fio --name=v --filename=/dev/vda --size=8M --bsrange=4k-32k --rw=randwrite --ioengine=libaio --iodepth=8 --numjobs=2 --offset_increment=8M \
					--direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1 --minimal >/dev/null
				blockdev --flushbufs /dev/vda
				: >"$shared/done$round"
				;;
			2)
				cmp -n $((8 << 20)) -i $((32 << 20)):0 /dev/vda "$shared/data"
				# Its requests fail when the disk is taken away.
				fio --name=w --filename=/dev/vda --size=16M --bs=4k --rw=randwrite --ioengine=libaio --iodepth=8 --direct=1 --time_based --runtime=300 \
					--minimal >"$shared/fio" 2>&1 &
				until [ "$(awk '{ print $5 }' /sys/block/vda/stat)" -gt 20 ]; do sleep 0.1; done
				: >"$shared/done$round"
				;;
			3)
				cmp -n $((8 << 20)) -i $((32 << 20)):0 /dev/vda "$shared/data"
				: >"$shared/done$round"
				;;
			esac
			until [ ! -e /sys/block/vda ]; do sleep 0.1; done
			wait || true
			echo "round $round"
		done
		until [ -e "$shared/leave" ]; do sleep 0.1; done
		;;
	esac
	exit
fi

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
kills=${KILLS:-100}
cases=("$@")
[ $# -gt 0 ] || cases=(uml qemu hotplug)
for one in "${cases[@]}"; do
	case $one in
	uml | qemu | hotplug) ;;
	*)
		sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
		exit 2
		;;
	esac
done
W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-vhost-user.XXXXXX") || exit 1
server='' guest=''
trap '[ ! "$server" ] || kill -KILL $server 2>/dev/null; [ ! "$guest" ] || kill $guest 2>/dev/null; [ "${KEEP:-}" ] && echo "kept: $W" || rm -rf --one-file-system "$W"' EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "FAIL $*"
	tail -n 20 "$W/log"
	exit 1
}

serve() { # SOCKET DISK... [OPTION]... - one daemon at a time
	local socket=$1
	shift
	: >"$W/log" # or the last one's is looked at, if the new one is slow
	"$ashlar" serve "$@" --vhost-user "unix:$socket" --control "$W/control" >"$W/log" 2>&1 &
	server=$!
	! until_it $server grep -q '^ready' "$W/log" || return 0
	fail "the daemon did not start"
}
stop() {
	kill -TERM $server
	wait $server || fail "the daemon ended with $?"
	server=
}
lvm() { "$ashlar" lvm "$@" >"$W/lvm" 2>&1 || { cat "$W/lvm"; fail "lvm $*"; }; }
group() {
	rm -f "$W"/d?.img
	truncate -s 128M "$W/d0.img" "$W/d1.img"
	lvm vgcreate --devices "$W/d0.img,$W/d1.img" vg "$W/d0.img" "$W/d1.img"
	lvm lvcreate --devices "$W/d0.img,$W/d1.img" -L 64M -n data vg
}

case_uml() {
	local other
	group
	truncate -s 8M "$W/other.img"
	"$ashlar" serve "$W/other.img" --read-only --vhost-user "unix:$W/other.sock" --control "$W/other" >"$W/other.log" 2>&1 &
	other=$!
	until_it $other grep -q '^ready' "$W/other.log" || { cat "$W/other.log"; fail "the second daemon did not start"; }
	serve "$W/{}.sock" "$W/d0.img" "$W/d1.img"
	"$root/tests/oracle/uml-run" --timeout 200 --vhost-user "$W/vg-data.sock" --vhost-user "$W/other.sock" --log "$W/klog" \
		"$here/vhost-user.sh" guest uml - || { tail -n 20 "$W/klog"; fail "the guest"; }
	kill -TERM $other
	wait $other || fail "the second daemon ended with $?"
	stop
	# What the guest wrote is in the volume.
	"$ashlar" lvm lvs --devices "$W/d0.img,$W/d1.img" >/dev/null || fail "the group"
	serve "$W/{}.sock" "$W/d0.img" "$W/d1.img" --nbd "unix:$W/nbd"
	nbdcopy "nbd+unix:///vg/data?socket=$W/nbd" "$W/copy" || fail "nbdcopy"
	stop
	e2fsck -fn "$W/copy" >/dev/null 2>&1 || fail "the file system is not clean"
	debugfs -R "cat file" "$W/copy" 2>/dev/null | cmp - /usr/share/common-licenses/GPL-3 || fail "the file is not what it was"
	echo "a file system, verified data, discards, and a read-only disk: $SECONDS s"
}

# served N - the volume has ended more than N requests
served() {
	local ended
	ended=$("$ashlar" get --control "$W/control" sys/block/dm-0/stat 2>/dev/null | awk '{ print $1 + $5 }')
	[ "${ended:-0}" -gt "$1" ]
}
connected() { "$ashlar" status --control "$W/control" 2>/dev/null | grep -q 'vhost-user front end'; }
now() { echo $(($(date +%s%N) / 1000000)); }

case_qemu() {
	local round jobs begun waits=()
	group
	mkdir "$W/shared"
	serve "$W/{}.sock" "$W/d0.img" "$W/d1.img"
	"$root/tests/oracle/qemu-run" --timeout 1800 --vhost-user "$W/vg-data.sock" --queues 2 --smp 2 --rw "$W/shared" --log "$W/klog" \
		"$here/vhost-user.sh" guest qemu "$W/shared" >"$W/guest" 2>&1 &
	guest=$!
	until_done 300 "the guest has verified a job" [ -s "$W/shared/jobs" ]
	for round in $(seq "$kills"); do
		sleep "0.$((RANDOM % 900 + 100))"
		kill -KILL $server
		{ wait $server; } 2>/dev/null
		kill -0 $guest 2>/dev/null || { cat "$W/guest"; fail "the guest ended in round $round"; }
		serve "$W/{}.sock" "$W/d0.img" "$W/d1.img"
		until_it $server connected || fail "the guest's QEMU did not connect again in round $round"
		begun=$(now)
		until_it $guest served 0 || { cat "$W/guest"; fail "no request of the guest ended in round $round"; }
		waits+=($(($(now) - begun)))
	done
	jobs=$(<"$W/shared/jobs")
	: >"$W/shared/stop"
	until_it $guest [ -s "$W/shared/size" ] || { cat "$W/guest"; fail "the guest"; }
	lvm lvextend --control "$W/control" -L 80M vg/data
	: >"$W/shared/extended"
	{ wait $guest; } 2>/dev/null || { cat "$W/guest"; tail -n 20 "$W/klog"; fail "the guest ended with an error"; }
	guest=
	grep -qx $((80 << 20)) "$W/guest" || { cat "$W/guest"; fail "the guest does not see the new size"; }
	stop
	mapfile -t waits < <(printf '%s\n' "${waits[@]}" | sort -n)
	echo "$kills daemons killed, at least $jobs jobs verified; requests waited for a median of ${waits[kills / 2]} ms, at most ${waits[-1]} ms;" \
		"lvextend is seen: $SECONDS s"
}

qmp() { python3 "$here/qmp.py" "$W/shared/qmp" "$@" >"$W/qmp" 2>&1; }
is_free() { ! connected; }
case_hotplug() {
	local round backend
	group
	rm -rf "$W/shared"
	mkdir "$W/shared"
	head -c 8M /dev/urandom >"$W/shared/data"
	serve "$W/{}.sock" "$W/d0.img" "$W/d1.img" --nbd "unix:$W/nbd"
	backend="{\"type\": \"socket\", \"data\": {\"addr\": {\"type\": \"unix\", \"data\": {\"path\": \"$W/vg-data.sock\"}}, \"server\": false, \"reconnect\": 1}}"
	"$root/tests/oracle/qemu-run" --timeout 600 --smp 2 --rw "$W/shared" --log "$W/klog" \
		--qemu "-device pcie-root-port,id=hole,chassis=1 -qmp unix:$W/shared/qmp,server=on,wait=off" \
		"$here/vhost-user.sh" guest hotplug "$W/shared" >"$W/guest" 2>&1 &
	guest=$!
	for round in 1 2 3; do
		until_it $guest [ -e "$W/shared/wants$round" ] || { cat "$W/guest"; fail "the guest wants no disk in round $round"; }
		is_free || fail "the socket has a machine before round $round"
		qmp "{\"execute\": \"chardev-add\", \"arguments\": {\"id\": \"hot\", \"backend\": $backend}}" \
			'{"execute": "device_add", "arguments": {"driver": "vhost-user-blk-pci", "id": "disk", "chardev": "hot", "num-queues": 2, "bus": "hole"}}' ||
			{ cat "$W/qmp"; fail "device_add in round $round"; }
		until_it $guest [ -e "$W/shared/done$round" ] || { cat "$W/guest"; fail "the guest has not used the disk of round $round"; }
		connected || fail "the daemon shows no machine in round $round"
		qmp '{"execute": "device_del", "arguments": {"id": "disk"}}' event=DEVICE_DELETED || { cat "$W/qmp"; fail "device_del in round $round"; }
		# QEMU releases it a little after the event.
		until_done 60 "chardev-remove in round $round: $(<"$W/qmp")" qmp '{"execute": "chardev-remove", "arguments": {"id": "hot"}}'
		until_done 60 "the connection of round $round ends" is_free
		nbdcopy "nbd+unix:///vg/data?socket=$W/nbd" "$W/copy" || fail "nbdcopy in round $round"
		cmp -n $((8 << 20)) -i $((32 << 20)):0 "$W/copy" "$W/shared/data" || fail "the volume has other data after round $round"
	done
	: >"$W/shared/leave"
	{ wait $guest; } 2>/dev/null || { cat "$W/guest"; tail -n 20 "$W/klog"; fail "the guest ended with an error"; }
	guest=
	stop
	echo "a disk is plugged in and unplugged three times, once while it is written: $SECONDS s"
}

for one in "${cases[@]}"; do "case_$one"; done
