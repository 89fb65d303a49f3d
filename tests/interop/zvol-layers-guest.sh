#!/bin/bash
# zvol-layers-guest.sh LAYERS DIR DEVICE - what else the kernel can put on a volume; runs inside a guest: in QEMU on a zvol
# of the kernel's, in UML on one of ashlar's over NBD.
#
#   ext4      a file system, in which DIR/source.tar is unpacked twice; one copy is deleted and its space discarded
#   lvm       a volume group: an origin that is written while it has a snapshot, and ext4 with the tarball in a third volume
#   thin      a thin pool, with a volume that is written while it has a snapshot, then discarded in part
#   again     what the last of these left is there, and can be written
#
# DEVICE is a block device that reads as zeros, or nbd:EXPORT for what $HOST_IP:10809 serves. DIR/layers remembers what was done.
set -u
here=$(dirname "$(realpath "$0")")
layers=$1 dir=$2 device=$3

fail() {
	echo "FAIL $*"
	exit 1
}
quiet() {
	local out
	out=$("$@" 2>&1) || {
		tail -n 20 <<<"$out"
		dmesg | tail -n 5
		fail "$*"
	}
}
stamps() { # VERB PHASE DEVICE
	quiet "$here/stamp.py" "$1" --seed "${4:-layers}" --phase "$2" "$3"
}

case $device in
nbd:*)
	modprobe -q nbd
	quiet nbd-client "$HOST_IP" 10809 /dev/nbd0 -N "${device#nbd:}" -b 512
	device=/dev/nbd0
	trap 'nbd-client -d /dev/nbd0 >/dev/null' EXIT
	;;
esac
modprobe -aq dm-mod dm-snapshot dm-thin-pool ext4
cat >/etc/lvm/lvmlocal.conf <<C
devices { use_devicesfile=0 global_filter=["a|^$device\$|","r|.*|"] types=["zvol",16,"nbd",16] }
activation { udev_sync=0 udev_rules=0 monitoring=0 }
backup { backup=0 archive=0 }
C

# unpacked DIRECTORY - it has just what the tarball has
unpacked() {
	(cd "$1" && quiet tar --compare --file "$dir/source.tar") || fail "what was unpacked differs"
}
# filed DEVICE - ext4 with the tarball
filed() {
	quiet mkfs.ext4 -q -F "$1"
	quiet mount -o discard "$1" /mnt
	mkdir /mnt/one /mnt/two
	quiet tar -C /mnt/one -xf "$dir/source.tar"
	quiet tar -C /mnt/two -xf "$dir/source.tar"
	quiet umount /mnt
	quiet e2fsck -fn "$1"
	quiet mount -o discard "$1" /mnt
	unpacked /mnt/one
	rm -r /mnt/one
	quiet fstrim /mnt
	quiet umount /mnt
	still_filed "$1"
}
still_filed() {
	quiet e2fsck -fn "$1"
	quiet mount "$1" /mnt
	unpacked /mnt/two
	echo more >>/mnt/more
	quiet umount /mnt
}

ext4() { filed "$device"; }
ext4_again() { still_filed "$device"; }

# group - a volume group of the device alone
group() {
	quiet pvcreate -y "$device"
	quiet vgcreate -s 1M onzvol "$device"
}
lvm() {
	group
	quiet lvcreate -y -Wn -Zn -L 8M -n origin onzvol
	stamps write 1 /dev/onzvol/origin
	quiet lvcreate -y -s -c 4k -L 12M -n before onzvol/origin
	stamps write 2 /dev/onzvol/origin
	quiet lvcreate -y -Wn -L 72M -n files onzvol
	filed /dev/onzvol/files
	lvm_judge
}
lvm_judge() {
	stamps verify 2 /dev/onzvol/origin
	stamps verify 1 /dev/onzvol/before
	quiet pvck "$device"
	quiet vgchange -an onzvol
}
lvm_again() {
	quiet vgchange -ay onzvol
	still_filed /dev/onzvol/files
	lvm_judge
	quiet vgchange -ay onzvol
	quiet lvconvert --merge -y onzvol/before
	stamps verify 1 /dev/onzvol/origin
	quiet vgremove -y -f onzvol
}

thin() {
	group
	quiet lvcreate -y -T -c 64k -L 64M --poolmetadatasize 4M -V 20M -n volume onzvol/pool
	stamps write 1 /dev/onzvol/volume
	quiet lvcreate -y -s -kn -n before onzvol/volume
	stamps write 2 /dev/onzvol/volume
	stamps write 2 /dev/onzvol/before
	stamps write 3 /dev/onzvol/before
	quiet lvcreate -y -V 12M -T -n emptied onzvol/pool
	stamps write 1 /dev/onzvol/emptied
	quiet blkdiscard /dev/onzvol/emptied
	thin_judge
}
thin_judge() {
	stamps verify 2 /dev/onzvol/volume
	stamps verify 3 /dev/onzvol/before
	[ "$(tr -d '\0' </dev/onzvol/emptied | wc -c)" = 0 ] || fail "what was discarded from the pool is not zero"
	quiet vgchange -an onzvol
	quiet vgchange -ay onzvol
	dmsetup status onzvol-pool-tpool | grep -q ' rw ' || fail "the pool is not writable"
	quiet vgchange -an onzvol
}
thin_again() {
	quiet vgchange -ay onzvol
	stamps write 1 /dev/onzvol/emptied
	stamps verify 1 /dev/onzvol/emptied
	quiet blkdiscard /dev/onzvol/emptied
	thin_judge
}

case $layers in
ext4 | lvm | thin)
	"$layers"
	echo "$layers" >"$dir/layers"
	;;
again) "$(cat "$dir/layers")_again" ;;
*)
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
quiet blockdev --flushbufs "$device"
echo "layers pass"
