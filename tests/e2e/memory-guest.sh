#!/bin/bash
# memory-guest.sh ASHLAR VERSION RIGHT LIMIT_MIB - the half of memory.sh that runs in a guest: a writer to the daemon's mount has no more memory
# than is left in the control group of both.
#
#   ASHLAR    the program
#   VERSION   1 or 2, of control groups
#   RIGHT     yes or no: whether the daemon has CAP_SYS_RESOURCE
#
# Prints `done`, or `stuck` if the writer makes no progress for 30 s, with what the daemon's threads wait for. Then it cuts the guest's
# power: a sync would wait for the daemon.
set -eu
# shellcheck source=tests/until.sh
. "$(dirname "$(realpath "$0")")/../until.sh"
ashlar=$1 version=$2 right=$3 limit=$4
modprobe -q loop || true
modprobe -q fuse || true
W=/memory groups=/sys/fs/cgroup
mkdir -p $W/volumes $W/files
umount -R $groups 2>/dev/null || true
if [ "$version" = 1 ]; then
	mount -t tmpfs none $groups
	mkdir $groups/memory
	mount -t cgroup -o memory none $groups/memory
	group=$groups/memory/limited
	mkdir $group
	echo $((limit << 20)) >$group/memory.limit_in_bytes
else
	mount -t cgroup2 none $groups
	echo +memory >$groups/cgroup.subtree_control
	group=$groups/limited
	mkdir $group
	echo $((limit << 20)) >$group/memory.max
fi
drop=()
[ "$right" = yes ] || drop=(setpriv --bounding-set=-sys_resource)
# This shell stays outside, to look on.
inside() {
	# shellcheck disable=SC2016 # the shell inside expands it
	exec bash -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" "$@"
}
inside "${drop[@]}" "$ashlar" serve "$DISK0" --mount $W/volumes --control $W/control >$W/log 2>&1 &
daemon=$!
until_it $daemon grep -q '^ready$' $W/log || { cat $W/log; exit 1; }
sed -n 's/.*WARN/WARN/p' $W/log
volume=$(find $W/volumes/dev -type f | head -n 1)
loop=$(losetup --find --show "$volume")
mkfs.ext4 -q -E nodiscard "$loop"
mount "$loop" $W/files
inside dd if=/dev/zero of=$W/files/zeroes bs=1M count=$((limit * 3)) conv=fsync 2>/dev/null &
writer=$!
sectors() { awk '{ print $7 }' "/sys/block/${loop#/dev/}/stat"; }
before=-1 still=0
while kill -0 $writer 2>/dev/null; do
	sleep 1
	now=$(sectors)
	still=$((now == before ? still + 1 : 0)) before=$now
	if [ $still -ge 30 ]; then
		echo "stuck after $((now / 2048)) MiB"
		for thread in /proc/$daemon/task/*; do echo "$(cat "$thread/comm"): $(tr '\n' ' ' <"$thread/stack" | cut -c 1-600)"; done
		busybox poweroff -nf
	fi
done
wait $writer || { echo "the writer failed"; cat $W/log; exit 1; }
umount $W/files
losetup -d "$loop"
timeout 60 "$ashlar" stop --control $W/control
wait $daemon || { echo "the daemon failed"; exit 1; }
echo "done"
