#!/bin/bash
# trace.sh [PICTURE] - makes trace.svg: a real trace of random reads and writes on a RAID1 while it is checked.
# Packages: fio with its engine nbd. ASHLAR is the program (default: target/debug/ashlar).
set -eu
here=$(dirname "$(realpath "$0")")
picture=$(realpath "${1:-$here/trace.svg}")
ashlar=$(realpath "${ASHLAR:-$here/../../target/debug/ashlar}")
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$work"' EXIT
cd "$work"
truncate -s 64M disk0.img disk1.img
"$ashlar" md create --homehost=any --raid-devices=2 --level=1 --name=0 disk0.img disk1.img >create.log
"$ashlar" serve --control control --nbd unix:nbd disk0.img disk1.img >serve.log 2>&1 &
until grep -qs ready serve.log; do sleep 0.1; done
"$ashlar" set --control control sys/block/md0/md/sync_speed_max 16000 >set.log
"$ashlar" trace --control control -v -w 5 --plot trace.svg md0 disk0.img disk1.img >sums.txt 2>trace.log &
trace=$!
until grep -qs tracing trace.log; do sleep 0.1; done
"$ashlar" set --control control sys/block/md0/md/sync_action check >>set.log
fio --name=random --ioengine=nbd --uri="nbd+unix:///md0?socket=nbd" --rw=randrw --rwmixread=30 --bs=4k \
	--iodepth=8 --size=56m --io_size=5m --rate_iops=300,100 --fsync=400 --output=fio.log
wait "$trace"
# Without the part of the kernel's release that its builder chose.
release=$(uname -r)
sed "s/${release//./\\.}/${release%%-*}/" trace.svg >"$picture"
