#!/bin/bash
# lvm-live.sh - a volume group that is changed at random while it serves, with the daemon killed in between
#
#   1  a group on three disks, which a fourth one joins and leaves; two volumes are written all the time by crash.py, one by fio, which verifies what it wrote
#   2  lvm-live.py changes the group through the daemon: lvcreate, lvcreate -s, lvextend, lvreduce, lvrename, lvremove,
#      lvconvert --merge, vgextend, vgreduce, and writes to the volumes it made. After each EVERY changes the daemon is killed with SIGKILL, half
#      of the times in the middle of a change, and started again; all that was written is there then, or in a volume that
#      a change in flight has made or removed
#   3  the kernel (UML) activates the group: pvck and vgck are content, lvs lists the same volumes, and each has the
#      contents that it should have
#
# environment: CHANGES=N (1000), EVERY=N (50); SEED=N what is done; KEEP=1 keeps the files; ASHLAR=FILE the program
# Debian packages: scripts/setup test. Works as an ordinary user.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

if [ "${1:-}" = --guest ]; then
	dir=$2
	modprobe -a dm-mod dm-snapshot 2>/dev/null || true
	cat >/etc/lvm/lvmlocal.conf <<-'C'
		devices { use_devicesfile=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
		activation { udev_sync=0 udev_rules=0 monitoring=0 }
		backup { backup=0 archive=0 }
	C
	# quiet COMMAND...: it succeeds and warns of nothing
	quiet() {
		local out
		if ! out=$("$@" 2>&1) || grep -qiE 'warn|error|inconsist|fail|invalid|wrong' <<<"$out"; then
			echo "FAILED: $*"
			echo "$out"
			exit 1
		fi
	}
	for disk in "$DISK0" "$DISK1" "$DISK2"; do quiet pvck "$disk"; done
	! pvs "$DISK3" >/dev/null 2>&1 || quiet pvck "$DISK3"
	quiet vgck vg
	quiet vgchange -ay --poll n vg
	lvs --noheadings --units b --nosuffix --separator ' ' -o lv_name,origin,lv_size vg | awk '{$1=$1} 1' | sort >"$dir/lvs"
	diff "$dir/wanted" "$dir/lvs" || { echo "FAILED: lvs does not list what ashlar does"; exit 1; }
	while read -r name blocks sum; do
		found=$(/usr/bin/python3 "$dir/lvm-live.py" sum "/dev/vg/$name" "$dir/$blocks")
		[ "$found" = "$sum" ] || { echo "FAILED: $name has other contents"; exit 1; }
	done <"$dir/sums"
	echo "the kernel agrees on $(wc -l <"$dir/lvs") volumes"
	exit 0
fi

# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-live.XXXXXX")
trap 'pkill -KILL -f "$work/" || true; [ "${KEEP:-}" ] && echo "kept $work" || rm -r "$work"' EXIT
export XDG_STATE_HOME=$work/state
cp "$here/lvm-live.py" "$work"
disks=()
for n in 0 1 2; do
	truncate -s 256M "$work/disk$n"
	disks+=(--disk "$work/disk$n")
done
truncate -s 96M "$work/disk3"
disks+=(--disk "$work/disk3")
names=$work/disk0,$work/disk1,$work/disk2
"$ashlar" lvm vgcreate -s 1M vg "$work"/disk[012] >/dev/null
for volume in keep0 keep1 keep2; do
	"$ashlar" lvm lvcreate --devices "$names" -n $volume -L 16M vg >/dev/null
done
seed=${SEED:-$RANDOM}
/usr/bin/python3 "$here/lvm-live.py" run --ashlar "$ashlar" --work "$work" --seed "$seed" \
	--changes "${CHANGES:-1000}" --every "${EVERY:-50}" || { echo "lvm-live.sh: SEED=$seed" >&2; tail -n 20 "$work/log" >&2; exit 1; }
"$root/tests/oracle/uml-run" "${disks[@]}" --rw "$work" --timeout 200 "$here/lvm-live.sh" --guest "$work" || {
	echo "lvm-live.sh: SEED=$seed" >&2
	exit 1
}
