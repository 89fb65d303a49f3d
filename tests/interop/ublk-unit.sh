#!/bin/bash
# ublk-unit.sh - ashlar@.service with the drop-in ublk.conf under systemd, on a kernel with ublk (QEMU, Linux 6.12; a systemd of its own in the guest)
#
# The drop-in loads the driver. A volume is a block device, on which an ext4 takes data; SIGKILL leaves the mount and its data to the daemon that systemd
# starts again; the unit ends cleanly once the mount has ended, and removes the device. Without the drop-in the unit does not start.
#
# usage: ublk-unit.sh           environment: ASHLAR=FILE
# Debian packages: scripts/setup test. Works as root (virtiofsd).
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

if [ "${1:-}" = guest ]; then
	ashlar=$2
	set -eE
	trap 'echo "line $LINENO: $BASH_COMMAND"; inside journalctl --no-pager -n 40 || true; tail -n 20 "$W/systemd"; dmesg | tail -n 5' ERR
	# shellcheck source=tests/until.sh
	. "$root/tests/until.sh"
	fail() { echo "FAIL $*"; return 1; }
	W=/root/w
	mkdir -p $W
	modprobe ext4
	# What the package installs; the guest's root is its own.
	groupadd --force --system ashlar
	cp "$ashlar" /usr/bin/ashlar
	cp "$root/packaging/ashlar@.service" /etc/systemd/system/
	mkdir -p /etc/ashlar
	systemd-tmpfiles --create "$root/packaging/ashlar.tmpfiles"
	# The one runs as root, the other as a user of its own.
	for dir in /var/lib/ashlar/disk /var/lib/private/ashlar/plain; do
		install -d -m 700 $dir
		truncate -s 96M $dir/v.img
	done
	for name in disk plain; do
		printf 'disks = ["/var/lib/ashlar/%s/v.img"]\nublk = true\n' $name >/etc/ashlar/$name.toml
	done
	mkdir -p /etc/systemd/system/ashlar@disk.service.d
	cp "$root/packaging/examples/ublk.conf" /etc/systemd/system/ashlar@disk.service.d/
	# The rest of the system is the host's, and of no use here.
	ln -s /dev/null /etc/systemd/system/systemd-tmpfiles-setup.service
	ln -s /dev/null /etc/systemd/system/systemd-update-utmp.service
	printf '[Unit]\nDefaultDependencies=no\n' >/etc/systemd/system/alone.target
	mountpoint -q /sys/fs/cgroup || mount -t cgroup2 none /sys/fs/cgroup
	# As systemd has it where it is the first process: the end of a mount reaches the namespaces of units.
	unshare --mount --propagation shared --pid --fork --kill-child --mount-proc \
		env -i PATH="$PATH" container=guest /lib/systemd/systemd --system --unit=alone.target >$W/systemd 2>&1 </dev/null &
	outer=$!
	inside() { nsenter --target "$inner" --mount --pid -- "$@"; }
	property() { inside systemctl show --value --property "$2" "ashlar@$1"; }
	has_inner() { inner=$(pgrep -P $outer) && [ "$(cat "/proc/$inner/comm")" = systemd ]; }
	until_it $outer has_inner
	is_up() { inside systemctl list-units >/dev/null 2>&1; }
	until_it $outer is_up

	if inside systemctl start ashlar@plain; then fail "the unit without the drop-in starts"; fi
	inside journalctl --no-pager -u ashlar@plain | grep -q 'cannot make block devices'
	inside systemctl start ashlar@disk
	[ "$(property disk User)" = root ]
	has_device() { [ -b /dev/ublkb0 ]; }
	until_it $outer has_device
	inside ashlar status --control /run/ashlar/disk/control.sock | grep -q '^v.img is /dev/ublkb0'
	inside ashlar status --json --control /run/ashlar/disk/control.sock | grep -q '"sandbox": *"on"'
	mkfs.ext4 -q /dev/ublkb0
	inside mount /dev/ublkb0 /mnt
	inside cp /usr/share/common-licenses/GPL-3 /mnt/file
	before=$(property disk MainPID)
	inside kill -KILL "$before"
	is_back() { [ "$(property disk ActiveState)" = active ] && [ "$(property disk MainPID)" != "$before" ]; }
	until_it $outer is_back
	# Its I/O waits for the daemon.
	inside sync -f /mnt/file
	inside cmp /mnt/file /usr/share/common-licenses/GPL-3
	inside umount /mnt
	inside systemctl stop ashlar@disk
	[ "$(property disk Result) $(property disk ActiveState)" = "success inactive" ]
	[ ! -e /sys/block/ublkb0 ]
	if inside journalctl --no-pager -u ashlar@disk | grep -E 'ERROR|stopping its block device'; then fail "the daemon has logged an error"; fi
	echo "the unit with ublk.conf: $(inside systemctl --version | head -n 1), an ext4, SIGKILL, and a clean end"
	kill -KILL "$inner"
	exit
fi

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
"$root/tests/oracle/qemu-run" --timeout 900 --smp 2 --mem 1G "$here/ublk-unit.sh" guest "$(realpath "$ashlar")"
