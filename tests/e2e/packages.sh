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
#               for block devices and for a mount; virtual machines, TLS for clients and for disks, and limits, with their drop-ins;
#               what udev runs by the rule for members of arrays; a wrong configuration is
#               tried once, a missing disk several times; removal stops the daemons
#   image       serves NBD, with TLS too, and a virtual machine through a bound folder, and another container has its disk there;
#               without capabilities, without io_uring, on a read-only root
#
# The systems come from the machine's own source of Debian packages, once: target/packages keeps them.
#
# usage: packages.sh [CASE...]    default: all
# environment: ASHLAR=FILE the program, default target/dist/ashlar; KEEP=1 keep the files
# Needs root (namespaces, loop devices) and the packages of scripts/setup packages.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/until.sh
. "$root/tests/until.sh"
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
	# As commands of root that ran before make it.
	install -d -m 700 "$W/system/var/lib/ashlar"
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
	# Its sockets are at hand here, too.
	rm -rf "$W/sockets"
	mkdir "$W/sockets"
	# Landlock is not among the system calls that it allows by itself.
	systemd-nspawn --quiet --register=no --keep-unit --private-network \
		--system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self' --bind=/dev/fuse --bind="$W/node:$loop" --bind="$W/sockets:/run/ashlar" \
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
	is "the mode of the directory of states" 755 "$(inside stat -c %a /var/lib/ashlar)"
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

	machines
	secure

	inside systemctl stop ashlar@vol
	is "how it ended" "inactive success" "$(property vol ActiveState) $(property vol Result)"
	# Removal ends what runs; nothing of the package is left but the configuration.
	inside systemctl start ashlar@vol
	inside apt-get -qq purge ashlar >"$W/log" 2>&1 || fail "$(cat "$W/log")"
	is "the daemons after removal" "" "$(inside systemctl --no-legend --state=active list-units 'ashlar@*')"
}

# authority - a CA in $W/pki, with certificates of a server and of a client, and one of another CA's server in $W/other
authority() {
	local name kind use
	for name in pki other; do
		mkdir "$W/$name"
		openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj "/CN=CA $name" -keyout "$W/$name/ca-key.pem" \
			-out "$W/$name/ca-cert.pem" -addext keyUsage=critical,keyCertSign,cRLSign 2>>"$W/log"
		for kind in server client; do
			use=$'subjectAltName=DNS:localhost\nkeyUsage=digitalSignature\nextendedKeyUsage='${kind}Auth
			openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj "/CN=$kind" -keyout "$W/$name/$kind-key.pem" \
				-out "$W/request" 2>>"$W/log"
			openssl x509 -req -in "$W/request" -CA "$W/$name/ca-cert.pem" -CAkey "$W/$name/ca-key.pem" -days 2 -extfile <(echo "$use") \
				-out "$W/$name/$kind-cert.pem" 2>>"$W/log"
		done
		rm "$W/$name/ca-key.pem"
	done
}
# instance NAME DROP-IN... - the configuration on standard input, for a unit with these examples, and a disk plain.img
instance() {
	local name=$1 example to
	shift
	cat >"$W/system/etc/ashlar/$name.toml"
	to=$W/system/etc/systemd/system/ashlar@$name.service.d
	mkdir -p "$to"
	for example in "$@"; do cp "packaging/examples/$example.conf" "$to/"; done
	inside install -d -m 700 "/var/lib/private/ashlar/$name"
	inside truncate -s 64M "/var/lib/private/ashlar/$name/plain.img"
	inside systemctl daemon-reload
}
# status_of NAME - as the unit's daemon says it
status_of() { inside ashlar status --control "/run/ashlar/$1/control.sock"; }

# machines - virtual machines: the sockets are for QEMU's users, who do not control the daemon
machines() {
	local dir=/run/ashlar/vms guest
	instance vms vms <<-'END'
		disks = ["/var/lib/ashlar/vms/plain.img"]
		vhost_user = "unix:/run/ashlar/vms/{}.sock"
		vhost_user_mode = "660"
		[limit]
		"plain.*" = "wbps=100M"
	END
	inside systemctl start ashlar@vms || fail "a daemon for virtual machines"
	is "the socket for machines" "660 kvm" "$(inside stat -c '%a %G' $dir/plain.img.sock)"
	is "the control socket" "660 ashlar" "$(inside stat -c '%a %G' $dir/control.sock)"
	is "the sandbox" "sandbox: on" "$(status_of vms | grep ^sandbox)"
	inside useradd --groups kvm machine
	as_machine() { inside setpriv --reuid=machine --regid=machine --init-groups "$@"; }
	as_machine test -w $dir/plain.img.sock || fail "a user of QEMU does not reach the socket"
	! as_machine ashlar status --control $dir/control.sock >/dev/null 2>&1 || fail "a user of QEMU controls the daemon"
	guest=$W/guest.sh
	# shellcheck disable=SC2016 # for the shell inside
	printf '%s\n' 'set -e; [ "$(blockdev --getsize64 "$VDISK0")" = 67108864 ]' 'dd if="$1" of="$VDISK0" bs=64k oflag=direct conv=fsync status=none' \
		'cmp -n 2097152 "$1" "$VDISK0"' >"$guest"
	tests/oracle/uml-run --timeout 300 --vhost-user "$W/sockets/vms/plain.img.sock" --log "$W/klog" "$guest" "$W/letter" >"$W/log" 2>&1 ||
		fail "a virtual machine: $(cat "$W/log" "$W/klog")"
	cmp -n 2097152 "$W/letter" "$W/system/var/lib/private/ashlar/vms/plain.img" || fail "what the machine wrote is not on the disk"
	grep -q 'wbps=104857600' <(inside ashlar get --control $dir/control.sock sys/block/plain.img/queue/io_max) || fail "the limit"
	inside systemctl stop ashlar@vms
	is "how it ended" "success" "$(property vms Result)"
	is "what is left of it" "" "$(ls "$W/sockets/vms" 2>/dev/null)"
}

# secure - TLS with certificates that only root can read, for clients and for a disk; and with some that are renewed
secure() {
	local etc=$W/system/etc/ashlar at before
	mkdir -m 700 "$etc/tls"
	cp "$W"/pki/*.pem "$etc/tls/"
	chmod 600 "$etc"/tls/*-key.pem
	instance tls tls <<-'END'
		disks = ["/var/lib/ashlar/tls/plain.img"]
		nbd = ["unix:/run/ashlar/tls/nbd.sock", "tcp:127.0.0.1:10809"]
		nbd_mode = "660"
		tls = "require"
		tls_dir = "/run/credentials/ashlar@tls.service"
		tls_verify_peer = true
	END
	inside systemctl start ashlar@tls || fail "TLS with credentials of systemd"
	is "the sandbox" "sandbox: on" "$(status_of tls | grep ^sandbox)"
	at="nbds+unix:///plain.img?socket=$W/sockets/tls/nbd.sock&tls-certificates"
	serves "$at=$W/pki" || fail "a client with TLS"
	! nbdinfo "$at=$W/other" >/dev/null 2>&1 || fail "a client with another CA's certificate"
	! nbdinfo "nbd+unix:///plain.img?socket=$W/sockets/tls/nbd.sock" >/dev/null 2>&1 || fail "a client without TLS"

	# Its disk is the other one's volume.
	echo '127.0.0.1 localhost' >"$W/system/etc/hosts"
	instance far tls <<-'END'
		disks = ["nbds://localhost:10809/plain.img?tls-certificates=/run/credentials/ashlar@far.service"]
		nbd = ["unix:/run/ashlar/far/nbd.sock"]
	END
	printf '[Service]\nLoadCredential=client-%s.pem:/etc/ashlar/tls/client-%s.pem\n' cert cert key key >"$W/system/etc/systemd/system/ashlar@far.service.d/own.conf"
	inside systemctl daemon-reload
	inside systemctl start ashlar@far || fail "a disk with TLS"
	reads "nbd+unix:///?socket=$W/sockets/far/nbd.sock" || fail "the data of a disk with TLS"
	inside systemctl stop ashlar@far
	is "how the daemon with a disk of TLS ended" success "$(property far Result)"
	inside systemctl stop ashlar@tls

	# Renewed while it serves, in a directory that the group can read.
	inside install -d -m 750 -g ashlar /etc/ashlar/renewed
	renew() { for kind in cert key; do inside install -m 640 -g ashlar "/root/$1-$kind.pem" "/etc/ashlar/renewed/server-$kind.pem"; done; }
	for kind in cert key; do
		cp "$W/other/server-$kind.pem" "$W/system/root/other-$kind.pem"
		cp "$W/pki/server-$kind.pem" "$W/system/root/pki-$kind.pem"
	done
	renew other
	instance renewed <<-'END'
		disks = ["/var/lib/ashlar/renewed/plain.img"]
		nbd = ["unix:/run/ashlar/renewed/nbd.sock"]
		tls = "require"
		tls_dir = "/etc/ashlar/renewed"
	END
	inside systemctl start ashlar@renewed || fail "TLS with a directory"
	is "the sandbox" "sandbox: on" "$(status_of renewed | grep ^sandbox)"
	at="nbds+unix:///plain.img?socket=$W/sockets/renewed/nbd.sock&tls-certificates"
	# Clients of libnbd 1.14 compare no certificate on a Unix socket.
	"$ASHLAR" scan "$at=$W/other" >/dev/null || fail "a client of the first certificate"
	! "$ASHLAR" scan "$at=$W/pki" >/dev/null 2>&1 || fail "the first certificate is of both CAs"
	before=$(property renewed MainPID)
	renew pki
	"$ASHLAR" scan "$at=$W/pki" >/dev/null || fail "a client of the renewed certificate"
	serves "$at=$W/pki" || fail "a client of the renewed certificate"
	! "$ASHLAR" scan "$at=$W/other" >/dev/null 2>&1 || fail "the first certificate is still shown"
	is "the daemon after a renewal" "$before" "$(property renewed MainPID)"
	inside systemctl stop ashlar@renewed
}

release() {
	local vol name scores=''
	system "$1"
	files
	vol=$(score vol)
	[ "$vol" ] || fail "systemd-analyze gives no score: $(tail -n 3 "$W/security")"
	[ "${vol/./}" -le $LIMIT ] || fail "the exposure is $vol"
	for name in disks mount vms tls ublk; do
		mkdir -p "$W/system/etc/systemd/system/ashlar@$name.service.d"
		cp "packaging/examples/$name.conf" "$W/system/etc/systemd/system/ashlar@$name.service.d/"
		is "what systemd-analyze verify says of $name" "" "$(chrooted systemd-analyze verify "ashlar@$name.service" 2>&1)"
		scores+=", with $name.conf $(score $name)"
		rm -r "$W/system/etc/systemd/system/ashlar@$name.service.d"
	done
	rm -f "$W/disk"
	truncate -s 64M "$W/disk"
	loop=$(losetup --find --show "$W/disk")
	# As udev makes the node of a disk.
	rm -f "$W/node"
	mknod --mode 660 "$W/node" b "0x$(stat -c %t "$loop")" "0x$(stat -c %T "$loop")"
	chgrp disk "$W/node"
	boot
	unit
	echo "$1: $(inside systemctl --version | head -n 1): the unit's exposure is $vol of 10$scores"
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
	local image tag options far
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
	# The options of exports, and another container whose disk is the first one's volume. It knows CAs by a variable of the library.
	mkdir "$W/data/pki"
	cp "$W"/pki/*.pem "$W/data/pki/"
	pod run "${options[@]}" --name secured "$tag" serve disk0.img disk1.img --nbd unix:nbd.sock --tls=require --tls-dir=pki \
		--vhost-user 'unix:{}.sock' --limit '*:wbps=100M' --control control.sock >"$W/log" 2>&1 &
	runs=$!
	until_done 30 "the container with TLS is ready" grep -qx ready "$W/log"
	serves "nbds+unix:///md0?socket=$W/data/nbd.sock&tls-certificates=$W/pki" || fail "a client with TLS"
	"$ASHLAR" get --control "$W/data/control.sock" sys/block/md0/queue/io_max | grep -q wbps=104857600 || fail "a limit"
	# shellcheck disable=SC2016 # for the shell inside
	printf '%s\n' 'set -e; cmp -n 2097152 "$1" "$VDISK0"' >"$W/guest.sh"
	tests/oracle/uml-run --timeout 300 --vhost-user "$W/data/md0.sock" --log "$W/klog" "$W/guest.sh" "$W/letter" >"$W/guest.log" 2>&1 ||
		fail "a virtual machine: $(cat "$W/guest.log" "$W/klog")"
	far=(scan 'nbds+unix:///md0?socket=nbd.sock')
	! pod run "${options[@]}" "$tag" "${far[@]}" >"$W/status" 2>&1 || fail "a server of an unknown CA"
	grep -q 'certificate is refused' "$W/status" || fail "a server of an unknown CA: $(cat "$W/status")"
	pod run "${options[@]}" --env=SSL_CERT_FILE=/data/pki/ca-cert.pem "$tag" "${far[@]}" >"$W/status" 2>&1 || fail "a disk with TLS: $(cat "$W/status")"
	"$ASHLAR" stop --control "$W/data/control.sock"
	wait $runs || fail "the container with TLS ended with $?: $(cat "$W/log")"
	runs=''
	echo "image: podman $(podman --version | cut -d' ' -f3), crun: $(stat -c %s "$image") bytes; podman run ${options[*]/$W/DIR}"
}

cd "$root"
authority
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
