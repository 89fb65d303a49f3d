#!/bin/bash
# recipe.sh - volume groups made by the real LVM, as their text and as the tables that LVM loads for them
#
# usage: recipe.sh         (on the host: boots User Mode Linux and writes NAME.text and NAME.tables here)
#
# NAME.tables is `dmsetup table` with the numbers of physical volumes in the place of device numbers
# (PV0, PV1 ...) and the names of other devices in the place of theirs.
# Debian packages: scripts/setup test.
set -eu
here=$(dirname "$(realpath "$0")")

if [ "${1:-}" != guest ]; then
	work=$(mktemp -d)
	trap 'rm -r "$work"' EXIT
	disks=()
	for i in 0 1 2 3; do
		truncate -s 64M "$work/d$i"
		disks+=(--disk "$work/d$i")
	done
	mkdir "$work/out"
	"$here/../../oracle/uml-run" "${disks[@]}" --rw "$work/out" "$here/recipe.sh" guest "$work/out"
	cp "$work/out"/* "$here"
	exit
fi

out=$2
modprobe -a dm-mod dm-snapshot dm-mirror dm-raid dm-thin-pool 2>/dev/null || true
cat >/etc/lvm/lvmlocal.conf <<C
devices { use_devicesfile=0 global_filter=["a|^/dev/(ubd|vd)|","r|.*|"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 }
backup { backup=0 archive=0 }
C
quiet() { "$@" >/dev/null 2>&1 || { echo "failed: $*"; "$@"; }; }

# save NAME - text and tables of the group vg
save() {
	vgcfgbackup -f "$out/$1.text" vg >/dev/null
	local edit=() pv name minor i=0
	while read -r pv; do
		edit+=(-e "s/\\b$(stat -c '%Hr:%Lr' "$pv")\\b/PV$i/g")
		i=$((i + 1))
	done < <(sed -n 's/.*device = "\([^"]*\)".*/\1/p' "$out/$1.text")
	while read -r name minor; do
		edit+=(-e "s/\\b$minor\\b/$name/g")
	done < <(dmsetup info -c --noheadings --separator ' ' -o name,major,minor | sed 's/ \([0-9]*\)$/:\1/')
	dmsetup table | sort | sed "${edit[@]}" >"$out/$1.tables"
}

fresh() {
	vgchange -an vg >/dev/null 2>&1 || true
	vgremove -ff -y vg >/dev/null 2>&1 || true
	dmsetup remove_all >/dev/null 2>&1 || true
	quiet pvcreate -ff -y "${@:3}"
	quiet vgcreate -s "$2" "$1" "${@:3}"
}

fresh vg 1M "$DISK0" "$DISK1"
quiet lvcreate -y -Wn -Zn -n first -L 8M vg
quiet lvcreate -y -Wn -Zn -n second -L 8M vg
quiet lvextend -y -L 16M vg/first
quiet lvcreate -y -Wn -Zn -n str-ipes -i2 -I64k -L 16M vg
quiet lvcreate -y -Wn -Zn -n both -l 100%FREE vg
save linear

fresh vg 1M "$DISK0" "$DISK1"
quiet lvcreate -y -Wn -Zn -n data -L 8M vg
quiet lvcreate -y -s -c 4k -n one -L 4M vg/data
quiet lvcreate -y -s -c 32k -n two -L 4M vg/data
quiet lvcreate -y -Wn -Zn -n other -L 8M vg
quiet lvcreate -y -s -p r -n frozen -L 4M vg/other
save snapshots

if dmsetup targets | grep -q '^thin-pool'; then
	fresh vg 1M "$DISK0" "$DISK1"
	quiet lvcreate -y -Zn -Wn -T -L 16M -V 64M -n thin vg/pool
	quiet lvcreate -y -s -n copy vg/thin
	quiet lvcreate -y -Wn -Zn -n plain -L 8M vg
	save thin
fi

# A move whose first piece has moved and whose second one is copied: then pvmove is gone.
fresh vg 1M "$DISK0" "$DISK1" "$DISK2"
quiet lvcreate -y -Wn -Zn -n first -L 12M vg "$DISK0"
quiet lvcreate -y -Wn -Zn -n str-ipes -i2 -L 8M vg "$DISK0" "$DISK1"
quiet lvextend -y -L +4M vg/first "$DISK1"
quiet lvextend -y -L +4M vg/first "$DISK0"
quiet lvcreate -y -s -n snap -L 4M vg/first "$DISK0"
pvmove -i 30 "$DISK0" >/dev/null 2>&1 &
for _ in $(seq 100); do
	[ "$(dmsetup table vg-pvmove0 2>/dev/null | awk 'NR == 2 {print $3}')" != mirror ] || break
	sleep 0.1
done
kill -9 $!
save pvmove
dmsetup targets
