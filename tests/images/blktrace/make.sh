#!/bin/bash
# blktrace of a disk by the kernel of tests/oracle/get-kernel (6.12): direct writes and reads, buffered writes and a flush.
# usage: make.sh; writes linux-6.12.blktrace.0 beside itself. Packages: those of tests/oracle/qemu-run, and blktrace.
set -eu
here=$(dirname "$(realpath "$0")")
oracle=$here/../../oracle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/out"
truncate -s 32M "$work/disk"
cat >"$work/guest" <<-EOF
	mount -t debugfs none /sys/kernel/debug
	cd "$work/out"
	blktrace -d "\$DISK0" -o k -w 6 &
	sleep 2
	dd if=/dev/urandom of="\$DISK0" bs=64k count=16 oflag=direct
	dd if="\$DISK0" of=/dev/null bs=16k count=64 iflag=direct
	dd if=/dev/urandom of="\$DISK0" bs=4k count=32 seek=1000 conv=fsync
	wait
EOF
"$oracle/get-kernel"
"$oracle/qemu-run" --disk "$work/disk" --rw "$work/out" "$work/guest"
cp "$work/out/k.blktrace.0" "$here/linux-6.12.blktrace.0"
