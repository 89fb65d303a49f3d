#!/bin/bash
# silent-mount.sh - a file system elsewhere on the machine is silent: commands for other disks end.
#
# In a guest (UML) a daemon's mount has a loop device on it, and the daemon is stopped, as by a debugger or a hung NFS server.
# Each command then has 15 s.
#
# Debian packages: scripts/setup test. Works as an ordinary user. Environment: KEEP=1 keeps the guest's log.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

# outside: starts the guest with this script
outside() {
	cd "$root" || exit 1
	# shellcheck source=tests/programs.sh
	. "$root/tests/programs.sh"
	needs "$ashlar"
	work=$(mktemp -d)
	[ -n "${KEEP:-}" ] || trap 'rm -r "$work"' EXIT
	tests/oracle/uml-run --timeout 200 --log "$work/klog" "$here/silent-mount.sh" inside "$ashlar" || {
		echo "FAIL the guest"
		tail -n 20 "$work/klog"
		exit 1
	}
}

failed=0
# ends COMMAND... - it ends in time
ends() {
	if timeout -s KILL 15 "$@" >said 2>&1 </dev/null; then
		echo "pass ${*:2}"
	else
		echo "FAIL ${*:2}: exit code $?"
		cat said
		failed=1
	fi
}

inside() {
	local ashlar=$1 stopped
	# shellcheck source=tests/until.sh
	. "$root/tests/until.sh"
	modprobe -a fuse loop
	mkdir silent && cd silent && mkdir mnt || exit 1
	truncate -s 64M a.img b.img c.img d.img e.img
	truncate -s 120M fs.img
	mkfs.btrfs -q fs.img >/dev/null || exit 1
	"$ashlar" serve --no-sandbox --mount mnt --control control a.img >log 2>&1 &
	stopped=$!
	until_it $stopped grep -q ready log || { cat log; exit 1; }
	losetup /dev/loop0 mnt/dev/a.img || { cat log; exit 1; }
	# A loop device whose file is ours is found.
	losetup /dev/loop1 e.img || exit 1
	kill -STOP $stopped
	ends "$ashlar" md create -l1 -n2 b.img c.img
	ends "$ashlar" scan b.img
	ends "$ashlar" md examine b.img
	ends "$ashlar" btrfs filesystem show fs.img
	ends "$ashlar" btrfs get / out fs.img
	ends "$ashlar" lvm pvcreate d.img
	ends "$ashlar" serve --daemon --control other --nbd unix:nbd --read-only b.img c.img
	ends "$ashlar" stop --control other
	mkfs.ext4 -q /dev/loop1 && mkdir used && mount /dev/loop1 used || exit 1
	if "$ashlar" md create -l1 -n1 --force e.img >said 2>&1; then
		echo "FAIL a mounted image became a member"
		failed=1
	elif ! grep -q "loop1 is mounted on" said; then
		echo "FAIL the mount is not named"
		cat said
		failed=1
	else
		echo "pass a mounted image is refused"
	fi
	kill -CONT $stopped
	exit $failed
}

if [ "${1:-}" = inside ]; then inside "$2"; else outside; fi
