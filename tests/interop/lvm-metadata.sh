#!/bin/bash
# lvm-metadata.sh - physical volumes and groups written by ashlar, judged and changed by LVM
#
#   1  ashlar makes two physical volumes and a group on files, and changes it 3 times
#   2  LVM (in UML) takes them: pvck, vgck, pvs, vgs, lvs without a warning; vgcfgbackup says the
#      same as ashlar does; LVM changes the group
#   3  ashlar reads LVM's change, and changes the group so often that all rings wrap around
#   4  LVM takes them again
#
# environment: KEEP=1 keeps the files and says where
# Debian packages: scripts/setup test. Works as an ordinary user.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
if [ "${1:-}" = --guest ]; then
	# shellcheck disable=SC2153 # the disks are named by uml-run
	disks=("$DISK0" "$DISK1")
	out=$2 log=$(mktemp)
	export TZ=UTC
	modprobe -a dm-mod dm-snapshot 2>/dev/null || true
	cat >/etc/lvm/lvmlocal.conf <<-'C'
		devices { use_devicesfile=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
		activation { udev_sync=0 udev_rules=0 monitoring=0 }
		backup { backup=0 archive=0 }
	C
	# quiet COMMAND...: it succeeds and warns of nothing
	quiet() {
		if ! "$@" >"$log" 2>&1 || grep -qiE 'warn|error|inconsist|fail|invalid|wrong' "$log"; then
			echo "FAILED: $*"
			cat "$log"
			exit 1
		fi
	}
	for disk in "${disks[@]}"; do
		quiet pvck "$disk"
		quiet pvck --dump headers "$disk"
		if grep -q 'CHECK' "$log"; then
			cat "$log"
			exit 1
		fi
		quiet pvck --dump metadata "$disk"
	done
	quiet vgck vg
	quiet pvs -o+pv_mda_count,pv_mda_used_count,pv_used
	quiet vgs -o+vg_seqno,vg_mda_count
	cat "$log"
	quiet lvs -a -o+devices,segtype
	cat "$log"
	quiet vgcfgbackup -f "$out/backup" vg
	# LVM warns that it keeps no backup.
	vgchange --addtag from+lvm vg >"$log" 2>&1 || { cat "$log"; exit 1; }
	lvcreate -y -an -Zn -Wn -l 2 vg >"$log" 2>&1 || { cat "$log"; exit 1; }
	quiet vgck vg
	exit 0
fi

work=$(mktemp -d)
trap '[ "${KEEP:-}" ] && echo "kept $work" || rm -r "$work"' EXIT
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
ours=$examples/lvm-files
needs "$ours"
files=("$work/disk0" "$work/disk1")
truncate -s 64M "${files[0]}"
truncate -s 33333248 "${files[1]}"

# body FILE: the text without who wrote it, and without names of devices, which LVM puts in
body() { sed -E -e '/^(# Generated|description|creation_host|creation_time)/d' -e 's/^(\t+device = ).*/\1/' "$1"; }

# judge: LVM accepts what there is, and reads the same
judge() {
	"$ours" show "${files[@]}" >"$work/ours"
	"$root/tests/oracle/uml-run" --disk "${files[0]}" --disk "${files[1]}" --rw "$work" --timeout 120 \
		"$here/lvm-metadata.sh" --guest "$work"
	diff <(body "$work/ours") <(body "$work/backup")
}

"$ours" make "${files[@]}"
"$ours" change 3 "${files[@]}"
judge
"$ours" change 150 "${files[@]}"
judge
"$ours" show "${files[@]}" | grep -q '"from+lvm"'
echo "ok: LVM accepts what ashlar writes, and the other way round"
