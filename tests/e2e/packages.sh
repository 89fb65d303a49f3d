#!/bin/bash
# packages.sh - the packages as users get them: the Debian package in fresh systems of Debian 12 and 13 whose own systemd is their
# first process, and the container image under podman with its seccomp profile, which is Docker's.
#
# What is checked:
#   lintian     finds nothing in the package, which is the same when it is made again
#   bookworm, trixie
#               apt installs the package; version, manual pages, completions of bash, zsh and fish; systemd-analyze
#               finds nothing wrong in the unit, whose exposure must not pass the limit below; ashlar@vol serves the
#               example of a configuration as an unprivileged user to an NBD client outside, and does so again after
#               SIGKILL, and to one that connects to the socket unit while it is gone; an upgrade leaves it alone; the drop-ins
#               for block devices and for a mount; what udev runs by the rule for members of arrays; a wrong configuration is
#               tried once, a missing disk several times; removal stops the daemons
#   image       serves NBD through a bound folder, without capabilities, without io_uring, on a read-only root
#
# The systems come from the machine's own source of Debian packages, once: target/packages keeps them.
#
# usage: packages.sh [CASE...]    default: all
# environment: ASHLAR=FILE the program, default target/dist/ashlar; KEEP=1 keep the files
# Needs root (namespaces, loop devices) and the packages of scripts/setup packages.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
export ASHLAR=${ASHLAR:-$root/target/dist/ashlar}
# The unit's exposure that systemd-analyze may find, in tenths.
LIMIT=18

[ "$(id -u)" = 0 ] || { echo "packages.sh: skipped: namespaces and loop devices need root"; exit 0; }
[ -x "$ASHLAR" ] || { echo "packages.sh: there is no $ASHLAR: make deb, or set ASHLAR" >&2; exit 1; }
ASHLAR=$(realpath "$ASHLAR")
names=("$@")
[ $# -gt 0 ] || names=(lintian bookworm trixie image)
cache=$root/target/packages
mkdir -p "$cache" "$root/target/tmp"

# In a mount namespace of its own, which takes all mounts along when it ends.
if [ "${PACKAGES_INSIDE:-}" != 1 ]; then
	export PACKAGES_INSIDE=1
	exec unshare --mount --propagation private "$0" "${names[@]}"
fi

W=$(mktemp -d "$root/target/tmp/packages.XXXXXX")
machine='' leader='' loop='' runs=''
cleanup() {
	[ -z "$runs" ] || pod rm --force --all >/dev/null 2>&1 || true
	[ -z "$leader" ] || kill -KILL "$leader" 2>/dev/null || true
	[ -z "$machine" ] || kill -KILL "$machine" 2>/dev/null || true
	wait 2>/dev/null || true
	[ -z "$loop" ] || losetup --detach "$loop" || true
	if [ "${KEEP:-}" ]; then echo "kept: $W"; else rm -rf --one-file-system "$W"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
case=''
fail() {
	echo "packages.sh: $case: $*" >&2
	[ -z "$leader" ] || { inside journalctl --no-pager --lines 40 --unit 'ashlar@*' || true; } >&2
	exit 1
}
# is WHAT WANTED FOUND
is() { [ "$2" = "$3" ] || fail "$1 is '$3', not '$2'"; }

# --- the Debian package ---------------------------------------------------------
lintian_case() {
	lintian --allow-root --fail-on error,warning --display-level '>=warning' "$deb" >"$W/lintian" 2>&1 || fail "$(cat "$W/lintian")"
	[ ! -s "$W/lintian" ] || fail "$(cat "$W/lintian")"
	is "the bytes of a second package" "$(sha256sum <"$deb")" "$(sha256sum <"$(scripts/deb "$W/again")")"
	echo "lintian: no error and no warning"
}

# system RELEASE - a fresh system in $W/system
system() {
	local mirror codename
	codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
	if [ ! -e "$cache/$1.tar" ]; then
		mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' "Codename: $codename" | head -n 1)
		[ "$mirror" ] || fail "apt has no source of Debian $codename main"
		mmdebstrap --quiet --variant=minbase --include=systemd,udev,dbus,man-db,bash-completion,zsh,fish,fuse3,procps,adduser \
			"$1" "$cache/$1.new.tar" "deb $mirror $1 main" >"$W/log" 2>&1 || fail "$(tail -n 20 "$W/log")"
		mv "$cache/$1.new.tar" "$cache/$1.tar"
	fi
	rm -rf --one-file-system "$W/system"
	mkdir "$W/system"
	tar -xf "$cache/$1.tar" -C "$W/system" --exclude './dev/*'
}
chrooted() { chroot "$W/system" env LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
# inside COMMAND... - in the system that runs
inside() { nsenter --target "$leader" --all -- env LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
property() { inside systemctl show --value --property "$2" "ashlar@$1"; }

# files - what needs no running system
files() {
	local text shell
	cp "$deb" "$W/system/root/ashlar.deb"
	chrooted apt-get -qq -o Dpkg::Use-Pty=0 install --no-install-recommends /root/ashlar.deb >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	is "what dpkg finds changed" "" "$(chrooted dpkg --verify ashlar)"
	is "the version" "ashlar $(chrooted dpkg-query -W -f '${Version}' ashlar)" "$(chrooted ashlar --version)"
	chrooted getent group ashlar >/dev/null || fail "there is no group ashlar"
	is "what systemd-analyze verify says" "" "$(chrooted systemd-analyze verify ashlar@vol.service ashlar@vol.socket 2>&1)"
	is "the manual page" /usr/share/man/man1/ashlar.1.gz "$(chrooted man -w ashlar)"
	is "the manual page of the configuration" /usr/share/man/man5/ashlar-stack.toml.5.gz "$(chrooted man -w ashlar-stack.toml)"
	text=$(chrooted env MANWIDTH=100 man --warnings ashlar-serve 2>"$W/log")
	is "what man says of the page" "" "$(cat "$W/log")"
	grep -q -- --nbd-memory <<<"$text" || fail "the manual page of serve is not complete"
	# shellcheck disable=SC2016 # for the shells inside
	text=$(chrooted bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader ashlar || [ $? = 124 ]
		COMP_WORDS=(ashlar md cr) COMP_CWORD=2; _ashlar ashlar cr md; echo "${COMPREPLY[@]}"' 2>&1)
	is "bash's completion of 'ashlar md cr'" create "$text"
	# shellcheck disable=SC2016
	is "zsh's function" _ashlar "$(chrooted zsh -fc 'autoload -Uz compinit; compinit -u -d /tmp/dump; print $_comps[ashlar]')"
	is "fish's completion" create "$(chrooted fish -c 'complete -C "ashlar md cr"' | cut -f1)"
	for shell in /etc/ashlar/vol.toml.example /usr/share/doc/ashlar/{packages.md,third-party-licences.gz,examples/mount.conf}; do
		[ -s "$W/system$shell" ] || fail "there is no $shell"
	done
	if chrooted udevadm verify --help >/dev/null 2>&1; then
		chrooted udevadm verify /usr/share/doc/ashlar/examples/70-ashlar-md.rules >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	fi
}
# score NAME - what systemd-analyze says of the unit, offline, with the drop-ins that it has
score() {
	chrooted systemd-analyze security --offline=yes --no-pager "ashlar@$1.service" >"$W/security" 2>"$W/log" || fail "$(cat "$W/log")"
	sed -n 's/^.*Overall exposure level for .*: \([0-9.]*\).*/\1/p' "$W/security"
}

# boot - the system with its own systemd as its first process
boot() {
	local child
	systemd-nspawn --quiet --register=no --keep-unit --private-network --bind=/dev/fuse --bind="$W/node:$loop" \
		--directory="$W/system" --boot </dev/null >"$W/console" 2>&1 &
	machine=$!
	has_leader() {
		for child in $(ps -o pid= --ppid "$machine"); do
			leader=$child
			[ "$(cat "/proc/$child/comm" 2>/dev/null)" = systemd ] && return
		done
		leader=''
		return 1
	}
	until_done 30 "systemd starts" has_leader
	is_up() { [[ $(inside systemctl is-system-running 2>&1) =~ ^(running|degraded)$ ]]; }
	until_done 60 "the system is up" is_up
}
power_off() {
	inside systemctl poweroff >/dev/null 2>&1 || true
	wait "$machine" || true
	machine='' leader=''
}

# serves URI - what was written comes back, through the connections of a client outside
serves() {
	nbdcopy -- "$W/letter" "$1" && reads "$1"
}
reads() {
	rm -f "$W/back"
	nbdcopy -- "$1" "$W/back" && cmp --bytes "$(stat -c %s "$W/letter")" "$W/back" "$W/letter"
}
unit() {
	local state=/var/lib/private/ashlar/vol outside waiting before restart offer uid n
	head -c 2M /dev/urandom >"$W/letter"
	inside install -d -m 700 $state
	inside truncate -s 64M $state/disk0.img $state/disk1.img
	inside ashlar md create --homehost=any --assume-clean -l1 -n2 /dev/md0 $state/disk0.img $state/disk1.img >/dev/null
	inside cp /etc/ashlar/vol.toml.example /etc/ashlar/vol.toml
	inside systemctl start ashlar@vol || fail "it does not start"
	uid=$(inside stat -c %u "/proc/$(property vol MainPID)")
	[ "$uid" -ge 61184 ] || fail "the user of the daemon is $uid"
	outside="nbd+unix:///md0?socket=/proc/$leader/root/run/ashlar/vol/nbd.sock"
	serves "$outside" || fail "a client outside"
	# Members of the group control it, others do not.
	inside useradd --groups ashlar member
	inside useradd stranger
	status() { inside setpriv --reuid="$1" --regid="$1" --init-groups ashlar status --control /run/ashlar/vol/control.sock; }
	status member >"$W/status" || fail "a member of the group does not reach the daemon"
	! status stranger >/dev/null 2>&1 || fail "a stranger reaches the daemon"
	# The unit's filter of system calls has those of io_uring; the status names the way only where it is another.
	if [ "$(cat /proc/sys/kernel/io_uring_disabled)" = 0 ]; then
		! grep -q threads "$W/status" || fail "I/O is by threads: $(cat "$W/status")"
	fi
	before=$(property vol MainPID)
	inside kill -KILL "$before"
	is_back() { [ "$(property vol ActiveState)" = active ] && [ "$(property vol MainPID)" != "$before" ]; }
	until_done 20 "it starts again after SIGKILL" is_back
	reads "$outside" || fail "after SIGKILL"

	# The package is installed over a running daemon, which runs on.
	before=$(property vol MainPID)
	inside apt-get -qq -o Dpkg::Use-Pty=0 install --reinstall --no-install-recommends /root/ashlar.deb >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	is "the daemon after an upgrade" "$before" "$(property vol MainPID)"

	# The socket unit: a client that comes while the daemon is gone waits. One that the old daemon has accepted connects again.
	inside systemctl stop ashlar@vol
	inside systemctl start ashlar@vol.socket || fail "the socket"
	is "the daemon before the first client" inactive "$(property vol ActiveState)"
	waiting="nbd+unix:///md0?socket=/proc/$leader/root/run/ashlar/vol.sock"
	reads "$waiting" || fail "the first client of the socket"
	is "the daemon after the first client" active "$(property vol ActiveState)"
	before=$(property vol MainPID)
	inside systemctl restart ashlar@vol &
	restart=$!
	until_done 20 "a client during a restart" reads "$waiting"
	wait $restart || fail "a restart"
	! [ "$(property vol MainPID)" = "$before" ] || fail "it was not restarted"
	is "the mode of the socket" "660 ashlar" "$(inside stat -c '%a %G' /run/ashlar/vol.sock)"
	reads "$outside" || fail "the daemon's own socket beside it"

	# A block device: only with the drop-in, and then by name.
	echo "disks = [\"$loop\"]" >"$W/system/etc/ashlar/disk.toml"
	inside systemctl start ashlar@disk 2>/dev/null && fail "a block device without the drop-in"
	inside systemctl stop ashlar@disk
	inside install -d /etc/systemd/system/ashlar@disk.service.d
	sed -e "s|/dev/sdb|$loop|" -e '/sdc/d' packaging/examples/disks.conf >"$W/system/etc/systemd/system/ashlar@disk.service.d/disks.conf"
	inside systemctl daemon-reload
	inside systemctl start ashlar@disk || fail "a block device with the drop-in"
	inside systemctl stop ashlar@disk

	# The udev rule, off by default: what udev would run for a member of an array hands it to ashlar@md.
	inside install -d /etc/systemd/system/ashlar@md.service.d
	inside cp /etc/systemd/system/ashlar@disk.service.d/disks.conf /etc/systemd/system/ashlar@md.service.d/
	echo 'incremental = true' >"$W/system/etc/ashlar/md.toml"
	inside systemctl daemon-reload
	inside systemctl start ashlar@md || fail "a daemon that waits for members"
	inside ashlar md create --homehost=any --assume-clean -l1 -n2 /dev/md0 "$loop" missing >/dev/null
	udev() { inside udevadm test --action=add "/sys/class/block/${loop#/dev/}" 2>&1 | grep -o '/usr/bin/ashlar [^'"'"']*' | grep -v devnode | sort -u || true; }
	is "what udev runs without the rule" "" "$(udev)"
	inside cp /usr/share/doc/ashlar/examples/70-ashlar-md.rules /etc/udev/rules.d/
	read -ra offer < <(udev)
	is "what udev runs" "/usr/bin/ashlar md incremental --control /run/ashlar/md/control.sock $loop" "${offer[*]}"
	inside "${offer[@]}" >/dev/null || fail "the member is not taken"
	inside ashlar md detail --control /run/ashlar/md/control.sock md0 2>&1 | grep -q raid1 || fail "the member is not in an array"
	inside systemctl stop ashlar@md

	# A mount is seen outside the unit.
	inside install -d /etc/systemd/system/ashlar@mounted.service.d /mnt/volumes
	inside cp /usr/share/doc/ashlar/examples/mount.conf /etc/systemd/system/ashlar@mounted.service.d/
	inside truncate -s 64M /srv/plain.img
	printf 'disks = ["/srv/plain.img"]\nmount = "/mnt/volumes"\n' >"$W/system/etc/ashlar/mounted.toml"
	inside systemctl daemon-reload
	inside systemctl start ashlar@mounted || fail "a mount with the drop-in"
	is "the size in the mount" $((64 << 20)) "$(inside stat -c %s /mnt/volumes/dev/plain.img)"
	inside systemctl stop ashlar@mounted
	is "how the mounted one ended" success "$(property mounted Result)"

	# A wrong configuration is tried once.
	echo 'disks = [' >"$W/system/etc/ashlar/wrong.toml"
	for n in wrong none; do
		inside systemctl start ashlar@$n 2>/dev/null && fail "$n.toml is accepted"
		sleep 3
		is "the state with $n.toml" "failed 0 2" "$(property $n ActiveState) $(property $n NRestarts) $(property $n ExecMainStatus)"
	done
	# A missing disk may come.
	echo 'disks = ["/srv/later.img"]' >"$W/system/etc/ashlar/later.toml"
	inside systemctl start ashlar@later 2>/dev/null && fail "a missing disk is served"
	install -m 666 /dev/null "$W/system/srv/later.img"
	truncate -s 64M "$W/system/srv/later.img"
	mkdir -p "$W/system/etc/systemd/system/ashlar@later.service.d"
	printf '[Service]\nReadWritePaths=/srv\n' >"$W/system/etc/systemd/system/ashlar@later.service.d/srv.conf"
	inside systemctl daemon-reload
	is_later() { [ "$(property later ActiveState)" = active ]; }
	until_done 20 "a disk that comes later is served" is_later

	inside systemctl stop ashlar@vol
	is "how it ended" "inactive success" "$(property vol ActiveState) $(property vol Result)"
	# Removal ends what runs; nothing of the package is left but the configuration.
	inside systemctl start ashlar@vol
	inside apt-get -qq purge ashlar >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	is "the daemons after removal" "" "$(inside systemctl --no-legend --state=active list-units 'ashlar@*')"
}

release() {
	local vol name disks mount
	system "$1"
	files
	vol=$(score vol)
	[ "$vol" ] || fail "systemd-analyze gives no score: $(tail -n 3 "$W/security")"
	[ "${vol/./}" -le $LIMIT ] || fail "the exposure is $vol"
	for name in disks mount; do
		mkdir -p "$W/system/etc/systemd/system/ashlar@$name.service.d"
		cp "packaging/examples/$name.conf" "$W/system/etc/systemd/system/ashlar@$name.service.d/"
	done
	disks=$(score disks)
	mount=$(score mount)
	rm -f "$W/disk"
	truncate -s 64M "$W/disk"
	loop=$(losetup --find --show "$W/disk")
	# As udev makes the node of a disk.
	rm -f "$W/node"
	mknod --mode 660 "$W/node" b "0x$(stat -c %t "$loop")" "0x$(stat -c %T "$loop")"
	chgrp disk "$W/node"
	boot
	unit
	echo "$1: $(inside systemctl --version | head -n 1): the unit's exposure is $vol of 10, with disks $disks, with a mount $mount"
	power_off
	losetup --detach "$loop"
	loop=''
}

# --- the image ------------------------------------------------------------------
# pod COMMAND... - podman, with storage of its own
pod() {
	podman --root "$W/storage" --runroot "$W/run" --storage-driver vfs --cgroup-manager cgroupfs --runtime crun "$@"
}
image_case() {
	local image tag options
	image=$(scripts/image "$cache")
	is "the bytes of a second image" "$(sha256sum <"$image")" "$(sha256sum <"$(scripts/image "$W/again")")"
	# crun refuses the two kinds of cgroups side by side.
	if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
		umount --recursive /sys/fs/cgroup
		mount -t cgroup2 none /sys/fs/cgroup
	fi
	pod load --quiet --input "$image" >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	tag=$(sed -n 's/^Loaded image: //p' "$W/log")
	mkdir "$W/data"
	truncate -s 64M "$W/data/disk0.img" "$W/data/disk1.img"
	head -c 2M /dev/urandom >"$W/letter"
	# The limits are this process's: podman's own are higher, and raising them needs CAP_SYS_RESOURCE.
	options=(--rm --cgroups=disabled --network=none --read-only --cap-drop=ALL --security-opt=no-new-privileges
		--security-opt=seccomp=/usr/share/containers/seccomp.json --ulimit=nofile=4096:4096 --ulimit=nproc=1000:1000
		--volume="$W/data:/data")
	! grep -q io_uring_setup /usr/share/containers/seccomp.json || fail "the profile allows io_uring"
	is "the version" "$("$ASHLAR" --version)" "$(pod run "${options[@]}" "$tag" --version)"
	pod run "${options[@]}" "$tag" md create --homehost=any --assume-clean -l1 -n2 /dev/md0 disk0.img disk1.img >/dev/null
	pod run "${options[@]}" --name served "$tag" serve disk0.img disk1.img --nbd unix:nbd.sock --control control.sock >"$W/log" 2>&1 &
	runs=$!
	until_done 30 "the container is ready" grep -qx ready "$W/log"
	serves "nbd+unix:///md0?socket=$W/data/nbd.sock" || fail "a client outside"
	"$ASHLAR" status --control "$W/data/control.sock" >"$W/status"
	grep -q threads "$W/status" || fail "I/O is not by threads: $(cat "$W/status")"
	"$ASHLAR" stop --control "$W/data/control.sock"
	wait $runs || fail "the container ended with $?: $(cat "$W/log")"
	runs=''
	echo "image: podman $(podman --version | cut -d' ' -f3), crun: $(stat -c %s "$image") bytes; podman run ${options[*]/$W/DIR}"
}

cd "$root"
case=deb
deb=$(scripts/deb "$cache")
for case in "${names[@]}"; do
	case $case in
	lintian) lintian_case ;;
	bookworm | trixie) release "$case" ;;
	image) image_case ;;
	*) fail "there is no such case" ;;
	esac
done
