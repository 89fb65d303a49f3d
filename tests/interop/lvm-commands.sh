#!/bin/bash
# lvm-commands.sh - `ashlar lvm`, judged by LVM and the kernel, and its reports held against LVM's
#
#   1  ashlar makes a group with linear and striped volumes and snapshots
#   2  LVM (in UML) takes it without a warning; the kernel activates it, writes to origin and snapshots;
#      LVM makes groups of its own: striped, snapshots, merging, RAID, thin, odd areas, tags
#   3  pvs, vgs and lvs of ashlar say of all groups what LVM's say, in the same words, also with a
#      physical volume missing; they select and sort alike, and refuse alike what is not a selection; so do the
#      display and scan commands; ashlar merges a snapshot, marks another, extends and removes volumes
#   4  LVM takes the result; origins and the other snapshot have the contents that they should have: the
#      kernel continues the merge that was marked
#
# environment: KEEP=1 keeps the files and says where; ASHLAR=FILE the program, default target/debug/ashlar
# Debian packages: scripts/setup test. Works as an ordinary user.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")

# The groups, the first disk of each, and how many they have.
groups=("ours 0 3" "lin 3 2" "str 5 3" "snaps 8 1" "merging 9 1" "raid 10 4" "thin 14 1")
# reports DIR NAME COMMAND DEVICES: all reports of a group, by COMMAND pvs, COMMAND vgs, COMMAND lvs
reports() {
	local dir=$1 name=$2 devices=$4 units
	local -a run
	read -ra run <<<"$3"
	mkdir -p "$dir"
	# json SUFFIX COMMAND ARGS...
	json() { "${run[@]}" "$2" --devices "$devices" --reportformat json --units "$units" "${@:3}" >"$dir/$name.$1.$units"; }
	for units in $([ "$name" = lin ] && echo r b S || echo r); do
		json pv pvs -o pv_all,vg_name
		json vg vgs -o vg_all
		json lv lvs -a -o vg_name,lv_all
		json seg lvs -a -o lv_full_name,seg_all
		json pvseg pvs --segments -o pv_name,pvseg_all,lv_name,lv_size,segtype,seg_size,devices,vg_free
	done
	"${run[@]}" lvs --devices "$devices" --reportformat json >"$dir/$name.lvs"
	[ "$name" = lin ] || return 0
	"${run[@]}" pvs --devices "$devices" --nosuffix --units k --separator / --noheadings >"$dir/$name.pvs"
	"${run[@]}" vgs --devices "$devices" --separator / >"$dir/$name.vgs"
}

# The other reports and the displays of all groups: what both must print alike.
texts() {
	cat <<-'C'
		pvdisplay -m
		pvdisplay -c
		pvdisplay -s
		pvdisplay --units b
		pvdisplay --units S -s
		pvdisplay --units M --nosuffix
		pvdisplay -m DISK04 DISK07
		pvdisplay -S 'pv_free=0'
		pvdisplay -C -o pv_name,pv_size --noheadings --separator : -O -pv_size,pv_name DISK03 DISK04
		vgdisplay
		vgdisplay -c
		vgdisplay -s
		vgdisplay --units H str
		vgdisplay --units r --nosuffix -s
		vgdisplay -S 'vg_name=~"^s" && lv_count>2'
		vgdisplay -C -o vg_name,vg_attr,vg_extent_size --noheadings --separator :
		lvdisplay -m -a
		lvdisplay lin/small snaps merging thin
		lvdisplay -c -a
		lvdisplay --units s lin/small snaps
		lvdisplay -S 'lv_size>=12m&&lv_name!=stripes'
		lvdisplay -C -o lv_full_name,lv_size --noheadings --separator : lin
		pvscan
		pvscan -s
		pvscan -u
		vgscan
		lvscan -a
		pvs --noheadings --separator : -o pv_name,pv_size -O -pv_free,-pv_name
		pvs --noheadings --separator : -o pv_name,vg_name -O ''
		pvs --noheadings --separator : -o pvname,VG_NAME,vg__attr,Tags -O -vg_name,name
		pvs --noheadings --separator : -o +vg_free_count,vg_tags
		pvs --noheadings --separator : -o pv_name -o vg_name -o +pv_used
		vgs --noheadings --separator : -o vg_name,lv_count,vg_size -O -vg_size,+lv_count
		vgs --noheadings --separator : -o vg_name -O pv_count,-vg_free,vg_name
		lvs --noheadings --separator : -o lv_full_name,lv_size -O lv_size
		lvs -a --noheadings --separator : -o lv_full_name,lv_size -O -lv_size,-lv_name
		lvs -a --noheadings --separator : -o lv_full_name,lv_attr -O lv_name,vg_name
		lvs --noheadings --separator : -o lv_full_name,origin -O origin
		lvs --noheadings --separator : -o lv_full_name,vg_size,vg_extent_size,vg_tags -O vg_size
		lvs -a --segments --noheadings --separator : lin str raid thin
		lvs -a --noheadings --separator : -o lv_name,devices -O -lv_name,-seg_start lin str
		pvs --segments --noheadings --separator :
		pvs --noheadings --separator : -o pv_name,pvseg_start,lv_name,segtype,lv_role,seg_start_pe -O pv_name,pvseg_start
		vgs --noheadings --separator : -o vg_name,lv_name -O vg_name,lv_name
		vgs --noheadings --separator : -o vg_name,segtype,seg_size -O vg_name,seg_size,segtype
		vgs --noheadings --separator : -o vg_name,pv_name,pv_free -O pv_name
		vgs --noheadings --separator : -o uuid,Extendable,AUTO_activation -O vg_name
		pvs --nameprefixes -o pv_name,pv_free,pv_tags
		pvs --nameprefixes --unquoted --noheadings -o pv_name,vg_name,pv_free,pv_tags
		pvs --nameprefixes --separator , -o pv_name,pv_free,pv_tags
		vgs --rows -o vg_name,vg_free,vg_tags
		vgs --separator : --aligned -o vg_name,vg_free,vg_attr
		vgs --binary --noheadings --separator : -o vg_name,vg_extendable,vg_exported,vg_partial,vg_clustered
		pvs --binary --noheadings --separator : -o pv_name,pv_allocatable,pv_missing,pv_in_use
		lvs --binary --noheadings --separator : -a -o lv_name,lv_merging,lv_fixed_minor,lv_skip_activation,lv_device_open
		vgs --rows --nameprefixes --units k -o vg_name,vg_free
		lvs --nameprefixes --noheadings -a -o lv_name,vg_name,lv_path,pool_lv
	C
	# A selection for each line: what is selected, and from what.
	while IFS=' ' read -r what selection; do
		echo "${what}s --noheadings -o ${what/lv/lv_full}_name -S '$selection'"
	done <<-'C'
		pv vg_name=lin
		pv name=DISK03
		pv   vg_name  =  lin
		pv vg_name==lin
		pv vg_name=!lin
		pv vg_name=l|in
		pv vg_name=lin||vg_name=str&&pv_name=DISK05
		pv (vg_name=lin||vg_name=str)&&pv_name=DISK05
		pv vg_name=lin#vg_name=str,pv_name=DISK05
		pv !(vg_name=lin)
		pv ! ( vg_name = lin ) && pv_size>62
		pv vg_name!~[lsr]
		pv vg_name=~"^(lin|str)$"
		pv vg_name=~(merg|str)
		pv vg_name=~[str]
		pv vg_name=~"[k-m]in"
		pv vg_name=~"l{1}"
		pv vg_name=~"\w"
		pv vg_tags=one
		pv vg_tags=[one]
		pv vg_tags={one,two}
		pv vg_tags=[one,two,two]
		pv vg_tags={one || x}
		pv vg_tags=[one # x]
		pv vg_tags={"one" , "x"}
		pv vg_tags!=[one]
		pv pv_tags=[pvtag]
		pv pv_size<62.5
		pv pv_size>=60.00m && vg_name!=lin
		pv pv_size=0.0625g
		pv dev_size=67.108864M
		pv dev_size=67108864h
		pv dev_size=131072s
		pv dev_size<=.5g
		pv pv_pe_count>62&&pv_pe_count<=63
		pv pv_pe_count!=undef
		pv pv_pe_count>=-1
		vg lv_count>2,snap_count=0
		vg vg_extent_size!=1m
		vg vg_attr=~"^wz--l"
		lv lv_name=~"^s"
		lv lv_path=""
		lv lv_path!=""&&size<4m
		lv size>8M
		lv data_percent!=0%
		lv origin=origin||lv_tags="a#b"
		lv segtype=linear && seg_count=1
		lv lv_attr=~"^s.*k?$"
		lv lv_fixed_minor=fixed
		lv lv_skip_activation="skip activation"
		lv lv_active!=active&&lv_merging=1
		lv lv_suspended=unknown&&lv_name=small
		lv lv_role=[public]
		lv lv_role={origin,multithickorigin}
		lv lv_when_full=queue
		lv lv_metadata_size>1m
		lv lv_time>="2020-01-01 00:00:00"
		lv lv_time since "2020-01-01 00:00:00" && lv_name=~^s
		lv lv_time until "2020-01-01 00:00:00"
		pv pv_allocatable=no
		pv pv_ba_size>0&&pv_in_use=yes
		vg vg_mda_count>1&&vg_extendable=extendable
		lv vg_extent_size=512k
	C
	# Hidden volumes are selected by their bare names.
	echo "lvs -a --noheadings -o lv_name -S 'lv_name=~rimage'"
	echo "lvs -a --noheadings -o lv_name -S lv_name=r1_rimage_0"
	echo "lvs -a --noheadings -o lv_name -S 'lv_name=\"[r1_rimage_0]\"'"
}

# The same for a group of which a disk is missing.
partial_texts() {
	cat <<-'C'
		pvdisplay -m
		pvdisplay -c
		pvdisplay -s
		vgdisplay
		vgdisplay -c
		lvdisplay -m
		lvdisplay -c
		pvscan
		lvscan
	C
}

# Commands that fail.
mistakes() {
	cat <<-'C'
		pvs -o nonsense
		lvs -o pv_name
		lvs -S pv_name=x
		lvs -O pvseg_start
		vgs -o pv_name,lv_name
		lvs -S 'lv_time>nonsense'
		pvs -o pv_name,+vg_name
		pvs -O pv_size,-nonsense
		pvs -S nonsense=1
		pvs -S 'vg_name=lin xx'
		pvs -S '(vg_name=lin'
		pvs -S '!vg_name=lin'
		pvs -S 'vg_name>lin'
		pvs -S 'vg_name="lin'
		pvs -S 'pv_size=~10'
		pvs -S 'pv_size>10q'
		pvs -S 'pv_pe_count=2k'
		pvs -S 'pv_pe_count>99999999999999999999999'
		pvs -S 'vg_name=~"("'
		pvs -S 'vg_tags={a,b#c}'
		lvs -S 'data_percent>1k'
		lvdisplay -c -m
		pvdisplay -o pv_name
		lvdisplay lin/nonsense
		lvscan lin
	C
}

# each COMMAND [--devices DEVICES]: runs it with each line of stdin, and prints its exit code and what it says
each() {
	local line code
	while read -r line; do
		code=0
		eval "$1 $line ${*:2}" >"$log" 2>&1 || code=$?
		printf '== %s\n== %s\n' "$line" "$code"
		cat "$log"
	done
}

if [ "${1:-}" = --guest ]; then
	out=$3 log=$(mktemp)
	export TZ=UTC
	modprobe -a dm-mod dm-snapshot dm-thin-pool dm-raid dm-mirror 2>/dev/null || true
	cat >/etc/lvm/lvmlocal.conf <<-'C'
		devices { use_devicesfile=0 obtain_device_list_from_udev=0 multipath_component_detection=0 md_component_detection=0 global_filter=["a|^/dev/ubd|","r|.*|"] }
		activation { udev_sync=0 udev_rules=0 monitoring=0 }
		backup { backup=0 archive=0 }
	C
	disk() { local name=DISK$1; echo "${!name}"; }
	# quiet COMMAND...: it succeeds and warns of nothing
	quiet() {
		if ! "$@" >"$log" 2>&1 || grep -qiE 'warn|error|inconsist|fail|invalid|wrong' "$log"; then
			echo "FAILED: $*"
			cat "$log"
			exit 1
		fi
	}
	run() { "$@" >"$log" 2>&1 || {
		echo "FAILED: $*"
		cat "$log"
		exit 1
	}; }
	sum() { sha256sum <"/dev/ours/$1"; }
	for n in 0 1 2; do
		quiet pvck "$(disk $n)"
	done
	quiet vgck ours
	quiet pvs
	quiet vgs
	quiet lvs -a
	if [ "$2" = second ]; then
		run vgchange -ay --poll n ours
		[ "$(sum origin)" = "$(cat "$out/snap1")" ] || { echo "origin is not what the merged snapshot was"; exit 1; }
		[ "$(sum snap2)" = "$(cat "$out/snap2")" ] || { echo "the other snapshot has changed"; exit 1; }
		[ "$(sum base)" = "$(cat "$out/mark")" ] || { echo "the kernel does not merge what was marked"; exit 1; }
		quiet lvs ours/stripes
		exit 0
	fi
	reports "$out/lvm" ours env "$(disk 0),$(disk 1),$(disk 2)"
	run vgchange -ay ours
	for lv in lin stripes origin; do
		[ "$(head -c 4096 "/dev/ours/$lv" | tr -d '\0' | wc -c)" = 0 ] || { echo "$lv is not zeroed"; exit 1; }
	done
	head -c 6M /dev/urandom | dd of=/dev/ours/origin bs=64k conv=fsync 2>/dev/null
	[ "$(sum snap2)" != "$(sum origin)" ]
	head -c 1M /dev/urandom | dd of=/dev/ours/snap1 bs=4k seek=300 conv=fsync 2>/dev/null
	head -c 9M /dev/urandom | dd of=/dev/ours/stripes bs=64k conv=fsync 2>/dev/null
	head -c 2M /dev/urandom | dd of=/dev/ours/base bs=64k seek=9 conv=fsync 2>/dev/null
	head -c 1M /dev/urandom | dd of=/dev/ours/mark bs=64k seek=1 conv=fsync 2>/dev/null
	sum mark >"$out/mark"
	sum snap1 >"$out/snap1"
	sum snap2 >"$out/snap2"
	run vgchange -an ours

	lv() { run lvcreate -y -an -Wn -Zn "$@"; }
	run pvcreate --metadatacopies 2 "$(disk 3)"
	run pvcreate --bootloaderareasize 2M --dataalignment 256k "$(disk 4)"
	run vgcreate -s 1M --addtag one --addtag two lin "$(disk 3)" "$(disk 4)"
	run pvchange --addtag pvtag "$(disk 4)"
	lv -n small -l 7 lin
	lv -n large -l 70 --addtag 'a#b' lin
	lv -n apart -l 3 --alloc contiguous -pr lin
	lv -n minor -l 3 -My --minor 77 --major 253 lin
	lv -n skipped -l 1 -ky lin
	run lvextend -l +5 lin/small
	run vgcreate -s 512k --alloc cling str "$(disk 5)" "$(disk 6)" "$(disk 7)"
	lv -n three -i 3 -I 64k -l 12 str
	run lvextend -i 2 -I 16k -l +8 str/three
	lv -n with-dash -l 4 str
	run pvchange -xn "$(disk 7)"
	run vgcreate snaps "$(disk 8)"
	lv -n origin -L 12M snaps
	lv -n other -L 8M snaps
	run lvcreate -y -s -c 4k -n s1 -L 8M snaps/origin
	run lvcreate -y -s -c 64k -n s2 -L 4M --addtag snaptag -pr snaps/origin
	run vgcreate -s 1M merging "$(disk 9)"
	run lvcreate -y -Wn -Zn -n origin -L 12M merging
	run lvcreate -y -s -n s1 -L 4M merging/origin
	run lvcreate -y -s -n s2 -L 4M merging/origin
	run vgchange -an merging
	run lvconvert --merge merging/s1
	run vgcreate -s 1M raid "$(disk 10)" "$(disk 11)" "$(disk 12)" "$(disk 13)"
	lv --type raid1 -m 1 --nosync -n r1 -L 8M raid
	lv --type raid10 -m 1 -i 2 -I 64k --nosync -n r10 -L 8M raid
	lv --type raid5 -i 2 -I 64k -n r5 -L 8M raid
	lv --type raid0 -i 2 -I 64k -n r0 -L 8M raid
	lv --type mirror -m 1 --mirrorlog core --nosync -n m -L 4M raid
	run vgcreate -s 1M thin "$(disk 14)"
	run lvcreate -y -Wn -T -L 8M -c 64k -n pool thin
	run lvcreate -y -T -V 1G -n thin1 thin/pool
	run lvcreate -y -s -n thinsnap thin/thin1
	for group in "${groups[@]}"; do
		read -r name first count <<<"$group"
		[ "$name" = ours ] && continue
		run vgchange -an "$name"
		devices=$(for ((n = first; n < first + count; n++)); do disk $n; done | paste -sd,)
		reports "$out/lvm" "$name" env "$devices"
	done
	reports "$out/lvm" partial env "$(disk 3)" 2>/dev/null
	named=()
	for n in {0..14}; do
		named+=(-e "s,DISK$(printf %02d "$n"),$(disk "$n"),g")
	done
	# LVM's shell saves the time that it takes to start.
	texts | sed "${named[@]}" | lvm >"$out/texts.lvm" 2>&1
	mistakes | each "" >"$out/mistakes.lvm"
	lvs -o help >"$out/help.lvm" 2>&1
	sed -i "s,\^/dev/ubd,$(disk 3)," /etc/lvm/lvmlocal.conf
	partial_texts | lvm >"$out/partial.lvm" 2>/dev/null
	exit 0
fi

work=$(mktemp -d)
trap '[ "${KEEP:-}" ] && echo "kept $work" || rm -r "$work"' EXIT
export XDG_STATE_HOME=$work/state
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
disks=()
names=()
for n in {0..14}; do
	names+=("$work/disk$(printf %02d "$n")")
	truncate -s 64M "${names[n]}"
	disks+=(--disk "${names[n]}")
done
# devices FIRST COUNT: with commas between them
devices() { for ((n = $1; n < $1 + $2; n++)); do echo "${names[n]}"; done | paste -sd,; }
ours=$(devices 0 3)
# The places of volumes are to have something in them that must be zeroed.
for n in 0 1 2; do
	tr '\0' x </dev/zero | head -c 40M | dd of="${names[n]}" bs=1M seek=1 conv=notrunc status=none
done
# on VERB ARGS...: of the group
on() { "$ashlar" lvm "$1" --devices "$ours" "${@:2}" >>"$work/said"; }
on vgcreate -s 1M --addtag tag ours "${names[@]:0:2}"
on vgextend ours "${names[2]}" "${names[14]}"
on vgreduce ours "${names[14]}"
on pvremove "${names[14]}"
on lvcreate -n lin -L 4M ours
on lvcreate -n stripes -i 3 -I 16 -l 9 ours
on lvcreate -n origin -L 12M --addtag o ours
on lvcreate -s -n snap1 -c 8 -L 9M ours/origin
on lvcreate -s -n snap2 -l 100%ORIGIN -p r --addtag s ours/origin
on lvcreate -n base -L 4M ours
on lvcreate -s -n mark -L 5M ours/base
on lvcreate -n apart -L 2M --alloc contiguous ours "${names[2]}"

guest() {
	"$root/tests/oracle/uml-run" "${disks[@]}" --rw "$work" --timeout 200 "$here/lvm-commands.sh" --guest "$1" "$work"
}
guest first

for group in "${groups[@]}"; do
	read -r name first count <<<"$group"
	reports "$work/ashlar" "$name" "$ashlar lvm" "$(devices "$first" "$count")"
done
reports "$work/ashlar" partial "$ashlar lvm" "${names[3]}" 2>/dev/null
log=$work/log
all=$(devices 0 15)
named=()
for n in {0..14}; do
	named+=(-e "s,DISK$(printf %02d "$n"),${names[n]},g")
done
mkdir "$work/texts"
texts | sed "${named[@]}" | {
	number=10000
	while read -r line; do
		# Four at a time.
		[ "$(jobs -rp | wc -l)" -lt 4 ] || wait -n
		number=$((number + 1))
		(eval "\"$ashlar\" lvm $line --devices $all" || echo "FAILED: $line") >"$work/texts/$number" 2>&1 &
	done
	wait
}
cat "$work"/texts/* >"$work/texts.ashlar"
partial_texts | while read -r line; do
	eval "\"$ashlar\" lvm $line --devices ${names[3]}" || echo "FAILED: $line"
done >"$work/partial.ashlar" 2>/dev/null
"$ashlar" lvm lvs -o help >"$work/help.ashlar"
mistakes | each "\"$ashlar\" lvm" --devices "$all" >"$work/mistakes.ashlar"
python3 - "$work" <<'PY'
import difflib, json, os, re, sys

work = sys.argv[1]
wrong = 0


def read(name):
    text = open(f'{work}/{name}').read()
    # The kernel's names of the disks are ubda, ubdb, ...
    text = re.sub(r'/dev/ubd([a-p])', lambda m: 'disk%02d' % (ord(m[1]) - ord('a')), text)
    return text.replace(work + '/', '')


def rows(side, name):
    text = read(f'{side}/{name}')
    if name.endswith(('.pvs', '.vgs')):
        return [{'line': line} for line in sorted(text.split('\n'))]
    (report,) = json.loads(text)['report']
    (found,) = report.values()
    return sorted(found, key=lambda row: list(row.values()))


names = sorted(os.listdir(f'{work}/lvm'))
assert names == sorted(os.listdir(f'{work}/ashlar')) and len(names) == 8 * 6 + 2 * 5 + 2, names
fields = 0
for name in names:
    theirs, ours = rows('lvm', name), rows('ashlar', name)
    if len(theirs) != len(ours):
        wrong += 1
        print(f'{name}: LVM has {len(theirs)} rows, ashlar {len(ours)}')
        print([list(row.values())[0] for row in theirs], [list(row.values())[0] for row in ours])
        continue
    for a, b in zip(theirs, ours):
        # The fields of a newer LVM, and of ashlar. The numbers of the guest's disks are not known here.
        a = {key: a[key] for key in a if key not in ('pv_major', 'pv_minor')}
        b = {key: b[key] for key in a if key in b}
        if list(a) != list(b):
            wrong += 1
            print(f'{name}: fields {list(a)} {list(b)}')
        for key in a:
            fields += 1
            if a[key] != b.get(key):
                wrong += 1
                print(f'{name}: {list(a.values())[0]}: {key}: LVM {a[key]!r}, ashlar {b.get(key)!r}')
print(f'{fields} values compared')


def help(side):
    found = re.findall(r'^  (?:  (\w+) +- .*|(\w[^-]* Fields))$', read(f'help.{side}'), flags=re.M)
    return [name or title for name, title in found if name not in ('help', 'vdo_use_metadata_hints', 'vdo_write_policy')]


# Each field of this LVM, in its section and order, among those of newer ones.
theirs, ours = help('lvm'), help('ashlar')
assert len(theirs) > 200, theirs
if theirs != [name for name in ours if name in theirs]:
    wrong += 1
    print('\n'.join(difflib.unified_diff(theirs, ours, 'LVM', 'ashlar', lineterm='', n=1)))

for name in ['texts', 'partial']:
    # pvscan pads the names of devices, which have other lengths here.
    said = [re.sub(r'^(  PV .*?) +', r'\1 ', read(f'{name}.{side}').strip(), flags=re.M) for side in ('lvm', 'ashlar')]
    theirs, ours = ([line.rstrip() for line in text.split('\n')] for text in said)
    for line in difflib.unified_diff(theirs, ours, 'LVM', 'ashlar', lineterm='', n=4):
        wrong += 1
        print(line)
    assert len(theirs) > 150, theirs
    print(f'{len(theirs)} lines of {name} compared')


def mistakes(side):
    found = re.split(r'^== (.*)\n== (.*)\n', read(f'mistakes.{side}'), flags=re.M)[1:]
    return [found[at:at + 3] for at in range(0, len(found), 3)]


for (line, code, theirs), (_, our_code, ours) in zip(mistakes('lvm'), mistakes('ashlar'), strict=True):
    # After the list of fields.
    theirs = theirs.rsplit('\n   \n', 1)[-1].strip().split('\n')
    theirs = [re.sub(r"^(.*: )?Selection syntax error at '(.*)'\.$", r"Selection syntax error at '\2'", said.strip()) for said in theirs]
    theirs = [said.removeprefix('dm_report: ') for said in theirs if not re.match('Use |Run |Cannot process |.*regular expr|.*regex$', said)]
    if code == '3':
        theirs = []
    missing = [said for said in theirs if said not in ours]
    if code != our_code or missing:
        wrong += 1
        print(f'{line}: exit codes {code} {our_code}; LVM says {missing}, ashlar {ours!r}')
sys.exit(wrong != 0)
PY

on lvconvert --merge ours/snap1
on lvconvert --merge --background ours/mark
on lvextend -L +3M ours/stripes
on lvremove -y ours/apart
guest second
echo "ok: LVM accepts what ashlar lvm makes, and reports say the same"
