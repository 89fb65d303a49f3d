#!/bin/bash
# lvm.sh - volume groups, snapshots among them, between LVM on a real kernel and ashlar
#
#   read      groups made by LVM (linear, striped, snapshots half filled and full, thin, raid0, raid1,
#             raid10) are read bit for bit; the RAIDs also with each disk missing
#   write     ashlar writes linear and striped volumes, origins and snapshots; LVM finds the groups good and
#             reads all of it bit for bit
#   crash     ashlar is killed while it writes the origin: the kernel reads the snapshots as they were;
#             the kernel loses power while it writes: ashlar reads them as they were
#   move      LVM begins to move extents and loses power: ashlar reads all of it, and ends the move; ashlar begins to move others,
#             writes meanwhile, and is killed: LVM ends that
#   restore   a served group is restored from a copy: LVM finds it good
#   extend    ashlar extends a snapshot that fills, and is killed: LVM finds the group good, and reads the snapshot as it was
#   later     a merge into a volume in use is put off, and ashlar is killed: LVM merges when it activates the volume
#
# usage: lvm.sh
# environment
#   ASHLAR=FILE     the binary, default target/debug/ashlar
#   ROUNDS=N        crashes of either side, default 1
#   KEEP=1          keep the images, and say where
#
# Debian packages: scripts/setup test. Works as an ordinary user.
set -u
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
rounds=${ROUNDS:-1}
python=/usr/bin/python3 # Debian's, which python3-libnbd belongs to

[ $# = 0 ] || {
	sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
	exit 2
}
needs "$ashlar"
work=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-lvm.XXXXXX") || exit 1
server=
cleanup() {
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null
	[ "${KEEP:-}" ] && echo "kept: $work" || rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

fail() {
	echo "FAIL $*"
	[ ! -s "$work/log" ] || sed 's/^/  server: /' "$work/log"
	exit 1
}
started=$SECONDS
passed() {
	printf '%-72s %3d s\n' "$1" $((SECONDS - started))
	started=$SECONDS
}

# guest VERB - 123 is a loss of power
guest() {
	local disks=() i
	for i in 0 1 2 3 4 5 6; do disks+=(--disk "$work/d$i.img"); done
	"$root/tests/oracle/uml-run" --timeout 240 --mem 640M "${disks[@]}" --rw "$work/shared" \
		"$here/lvm-guest.sh" "$1" "$work/shared" >"$work/guest" 2>&1
}
judged() {
	guest "$1" && grep -q '^pass$' "$work/guest" || {
		cat "$work/guest"
		fail "$2"
	}
}

# serve DISK... [OPTION...]
serve() {
	"$ashlar" serve "$@" --nbd "unix:$work/nbd" --control "$work/control" >"$work/log" 2>&1 </dev/null &
	server=$!
	until_it $server [ -S "$work/nbd" ] || fail "the server did not start"
}
# end SIGNAL STATUS
end() {
	kill "-$1" $server || fail "the server went away"
	{ wait $server; } 2>/dev/null
	local status=$?
	server=
	[ $status = "$2" ] || fail "the server ended with $status"
	rm -f "$work/nbd" "$work/control"
}

sum_of() { nbdcopy "nbd+unix:///$1?socket=$work/nbd" - | sha256sum | cut -d' ' -f1; }
# same REGEX - all volumes whose names match read as shared/sums says
same() {
	local sum volume
	while read -r sum volume; do
		[ "$(sum_of "$volume")" = "$sum" ] || fail "$volume reads differently"
	done < <(grep -E "$1" "$work/shared/sums")
}
# write VOLUME SEED COUNT [forever] - random writes, flushed now and then
write() {
	"$python" - "$work/nbd" "$@" <<'PY'
import hashlib, nbd, random, sys
socket, volume, seed, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
h = nbd.NBD()
h.connect_uri(f'nbd+unix:///{volume}?socket={socket}')
r, size = random.Random(seed), h.get_size()
for n in range(count):
    length = r.choice((512, 4096, 4096, 8192, 65536, 3 * 512))
    at = r.randrange(0, (size - length) // 512 + 1) * 512
    h.pwrite((hashlib.sha256(f'{seed} {n}'.encode()).digest() * (length // 32 + 1))[:length], at)
    if n % 50 == 49:
        h.flush()
h.flush()
PY
}

mkdir "$work/shared"
for i in 0 1 2 3 4 5 6; do truncate -s 96M "$work/d$i.img"; done
plain=("$work"/d[01].img) raid=("$work"/d[2345].img)

judged make "LVM makes the groups"
passed "LVM makes two groups with 14 volumes"

serve "${plain[@]}" "${raid[@]}" --read-only
same .
volumes=$(nbdinfo --list "nbd+unix://?socket=$work/nbd" | grep -c '^export=')
[ "$volumes" = "$(($(wc -l <"$work/shared/sums") + 0))" ] || fail "$volumes volumes are served"
grep -q 'plain/full' "$work/log" || fail "nothing is said of the snapshot that is full"
end TERM 0
passed "read bit for bit: $volumes volumes; the full snapshot is named"

for missing in 2 3 4 5; do
	rest=()
	for i in 2 3 4 5; do [ $i = $missing ] || rest+=("$work/d$i.img"); done
	serve "${rest[@]}" --read-only --run
	same '^[^ ]* raid/r10?$'
	end TERM 0
done
passed "raid1 and raid10 read with each of four disks missing"

serve "${plain[@]}"
for volume in plain/lin plain/str-ipes plain/odd plain/one plain/data plain/two; do
	write $volume "$volume" 150 || fail "writing $volume"
done
grep -v ' plain/[^t]\| plain/two' "$work/shared/sums" >"$work/sums"
for volume in plain/lin plain/str-ipes plain/odd plain/one plain/data plain/two; do
	echo "$(sum_of $volume) $volume"
done >>"$work/sums"
end TERM 0
cp "$work/sums" "$work/shared/sums"
judged judge "LVM reads what ashlar wrote"
passed "written by ashlar: pvck, vgck, and every volume read by the kernel"

# The origin changes, its snapshots do not.
sed -i '/ plain\/data$/d' "$work/shared/sums"
for ((round = 0; round < rounds; round++)); do
	serve "${plain[@]}"
	write plain/data "crash $round" 100000 2>"$work/writer" &
	writer=$!
	sleep "0.$((RANDOM % 9 + 1))"
	end KILL 137
	wait $writer
	judged judge "after ashlar was killed"
	guest write
	[ $? = 123 ] && [ -e "$work/shared/written" ] || { cat "$work/guest"; fail "the kernel writes"; }
	rm "$work/shared/written"
	serve "${plain[@]}" "${raid[@]}" --read-only
	same .
	end TERM 0
done
passed "snapshots as they were after $rounds crashes of either side"

# lvm VERB [ARG...] - on the disks of the first group, and one more
plain+=("$work/d6.img")
lvm() {
	local verb=$1
	shift
	XDG_STATE_HOME=$work/state "$ashlar" lvm "$verb" --devices "$(IFS=, && echo "${plain[*]}")" "$@" >"$work/said" 2>&1 || {
		cat "$work/said"
		fail "lvm $verb $*"
	}
}
lvm vgextend plain "$work/d6.img"
guest move
[ $? = 123 ] || { cat "$work/guest"; fail "LVM begins to move"; }
serve "${plain[@]}" --read-only
same ' plain/'
end TERM 0
lvm pvmove -i 1
grep -q 'd0.img: Moved: 100.00%' "$work/said" || fail "LVM's move does not continue"
[ "$("$ashlar" lvm pvs --devices "$(IFS=, && echo "${plain[*]}")" --noheadings -o pv_used "$work/d0.img" | tr -d ' ')" = 0 ] ||
	fail "extents are left"
judged judge "LVM reads what ashlar moved"
passed "a move that LVM began and lost power in: read, and ended by ashlar"

# Writes take long, so that the move is not over when it is paused.
serve "${plain[@]}" --model "$work/d0.img=custom:write=300ms" --model "$work/d6.img=custom:write=300ms"
"$ashlar" lvm pvmove --control "$work/control" -b -n plain/lin "$work/d1.img" >"$work/said" 2>&1 || { cat "$work/said"; fail "pvmove"; }
"$ashlar" jobs pause --control "$work/control" plain/pvmove0 || fail "pausing the move"
for volume in plain/lin plain/str-ipes; do
	write $volume "moving $volume" 5 || fail "writing $volume"
	sed -i "\: $volume\$:d" "$work/shared/sums"
	echo "$(sum_of $volume) $volume" >>"$work/shared/sums"
done
end KILL 137
lvm lvs -a --noheadings --separator : -o lv_name,lv_attr,move_pv plain
sed "s|$work/d1.img|d1|" "$work/said" >"$work/moving"
judged moved "LVM ends the move of ashlar"
diff "$work/moving" "$work/shared/moving" || fail "lvs says otherwise of a move than LVM's"
passed "a move that ashlar began, wrote in and was killed in: ended by LVM"

# live VERB [ARG...] - in the running server
live() {
	local verb=$1
	shift
	XDG_STATE_HOME=$work/state "$ashlar" lvm "$verb" --control "$work/control" "$@" >"$work/said" 2>&1 || {
		cat "$work/said"
		fail "lvm $verb $*"
	}
}
serve "${plain[@]}"
live vgcfgbackup -f "$work/copy" plain
live lvcreate -n new -L 2M plain
live lvcreate -s -n three -L 2M plain/lin
live lvextend -L +2M plain/odd
live lvrename plain/str-ipes striped
live vgcfgrestore --force -f "$work/copy" plain
same ' plain/'
end KILL 137
judged judge "LVM reads the restored group"
passed "a served group that was restored from a copy: vgck, and every volume"

serve "${plain[@]}" --snapshot-autoextend-threshold 50 --snapshot-autoextend-percent 100
live lvcreate -s -n grows -c 4 -L 3M plain/data
echo "$(sum_of plain/grows) plain/grows" >>"$work/shared/sums"
write plain/data extend 400 || fail "writing plain/data"
until_it $server grep -q 'snapshot plain/grows was extended to 9.00 MiB' "$work/log" || fail "the snapshot is not extended as far as its origin can fill it"
same ' plain/grows'
end KILL 137
judged judge "LVM reads a snapshot that was extended"
sed -i '\: plain/grows$:d' "$work/shared/sums"
lvm lvremove -y plain/grows
passed "a snapshot that ashlar extended by policy: vgck, and every volume"

serve "${plain[@]}"
sum=$(sum_of plain/two)
write plain/data later 100000 2>"$work/writer" &
writer=$!
sleep 1
live lvconvert --merge plain/two
grep -q 'Delaying merge since origin is open.' "$work/said" || fail "the merge is not put off"
sleep 1
end KILL 137
wait $writer
sed -i '\: plain/two$:d' "$work/shared/sums"
echo "$sum plain/data" >>"$work/shared/sums"
judged later "LVM merges what ashlar put off"
passed "a merge that ashlar put off while it wrote and was killed: done by LVM"
