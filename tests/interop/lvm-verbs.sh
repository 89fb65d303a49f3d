#!/bin/bash
# lvm-verbs.sh - what users of LVM type: `ashlar lvm` and LVM do the same with it
#
#   1  ashlar runs a list of commands on disks of its own, LVM (in UML) the same list on others: after each
#      command, both have ended with the same code, and pvs, vgs and lvs show the same
#   2  LVM takes what ashlar left without a warning, and its pvck dumps the same headers and texts of D0 to D2
#
# environment: KEEP=1 keeps the files and says where; ASHLAR=FILE the program, default target/debug/ashlar
# Debian packages: scripts/setup test. Works as an ordinary user.
set -eu
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
disks=4

# The commands. D0 to D3 are disks; a command sees all of them, or those before a `|`.
commands() {
	cat <<-'C'
		vgcreate -s 1M --addtag one vg D0 D1
		lvcreate -y -an -Zn -Wn -n data -l 10 vg D0
		lvcreate -y -an -Zn -Wn -n other -l 7 vg D1
		lvresize -L +4M vg/data
		lvresize -L 14M vg/data
		lvresize -y -L -2M vg/data
		lvresize -l +50%FREE vg/data
		lvresize -y -l 33%VG vg/data
		lvresize -y -l -33%LV vg/data
		lvresize -y -l 25%FREE vg/data
		lvextend -l +33%PVS vg/data D1
		lvextend -l +33%VG vg/data
		lvreduce -y -l -5%FREE vg/data
		lvresize vg/data D0
		lvextend vg/data D0
		lvresize vg/data
		lvreduce -y -l 10 vg/data
		lvresize -L 1000M vg/data
		lvresize -y -L -1000M vg/data
		lvresize --siz 11M vg/data
		pvresize --setphysicalvolumesize 40M D1
		pvresize -y --setphysicalvolumesize 40M D1
		pvresize -y --setphysicalvolumesize 3M D0
		pvresize D1
		pvresize D3
		vgchange --addtag a --addtag b vg
		vgchange --deltag a --addtag a --addtag c vg
		vgchange vg
		vgchange --addtag d
		lvchange --addtag x vg/data
		lvchange --addtag y --deltag x vg
		lvchange --addtag y vg/none
		pvchange --addtag p D0 D1
		pvchange -xn D1
		pvchange -xn D1
		lvcreate -y -an -Zn -Wn -l 60 vg
		pvchange --deltag p D1
		pvchange -xy D1
		pvchange --addtag p D3
		vgexport vg
		lvcreate -y -an -Zn -Wn -l 1 vg
		vgexport vg
		vgimport vg
		vgimport vg
		vgimport none
		vgextend vg D2
		vgck vg
		vgck none
		vgreduce --removemissing vg
		D0,D1 | vgck vg
		D0,D1 | vgreduce --removemissing vg
		D0 | vgreduce --removemissing --force vg
		vgck vg
		vgck --updatemetadata vg
		vgck
		lvfrobnicate vg
		pvck D0 D1
		vgextend vg D1 D2
		lvcreate -y -an -Zn -Wn -n second -i 2 -I 16k -l 20 vg D1 D2
		lvresize -l +3 vg/second
		vgsplit vg new D1
		vgsplit vg new D1 D2
		vgmerge vg new
		vgsplit -n second vg new
		lvcreate -y -an -Zn -Wn -n data -l 3 new
		vgmerge vg new
		vgsplit new vg D1
		lvrename new data more
		vgsplit -n more new vg
		vgextend new D3
		vgsplit new vg D3
		vgsplit vg vg D0
		vgmerge vg vg
		vgmerge vg none
		vgsplit vg other
		vgsplit vg other D1
		vgmerge vg new
	C
}

# run PROGRAM DISK...: runs the commands, and prints after each how it ended, and what there is
run() {
	local line devices
	local -a program
	read -ra program <<<"$1"
	shift
	named=()
	for n in "${!disk[@]}"; do named+=(-e "s,D$n\>,${disk[n]},g"); done
	all=$(IFS=,; echo "${disk[*]}")
	commands | sed "${named[@]}" | while read -r line; do
		devices=$all
		case $line in *\|*) devices=${line%% |*} line=${line#*| } ;; esac
		read -ra words <<<"$line"
		code=0
		"${program[@]}" "${words[0]}" --devices "$devices" "${words[@]:1}" </dev/null >>"$log" 2>&1 || code=$?
		echo "== $line"
		echo "== $code"
		reports "${program[@]}" 2>>"$log"
	done
}

# reports PROGRAM...: what there is
reports() {
	local -a groups=(vgs --noheadings --separator : -o 'vg_name,vg_attr,vg_size,vg_free,pv_count,lv_count,vg_tags')
	local -a disks=(pvs --noheadings --separator : -o 'pv_name,vg_name,pv_attr,pv_size,pv_pe_count,pv_pe_alloc_count,pv_tags')
	local -a volumes=(lvs -a --noheadings --separator : -o 'lv_full_name,lv_size,lv_tags,segtype,seg_pe_ranges')
	local found
	if [ "$1" = lvm ]; then
		# LVM's shell saves the time that it takes to start. A second command with --devices is too much for it.
		printf '%s\n' "${groups[*]}" "${disks[*]}" "${volumes[*]}" | lvm
		return
	fi
	found=$("$@" "${groups[@]}" --devices "$all")
	echo "$found"
	"$@" "${disks[@]}" --devices "$all"
	# Of exported groups, LVM shows no volumes.
	[[ $found == *:wzx* ]] || "$@" "${volumes[@]}" --devices "$all"
}

if [ "${1:-}" = --guest ]; then
	out=$2 log=$2/lvm.log
	export TZ=UTC
	modprobe -a dm-mod 2>/dev/null || true
	# seen REGEX: what LVM sees
	seen() {
		cat >/etc/lvm/lvmlocal.conf <<-C
			devices { use_devicesfile=0 obtain_device_list_from_udev=0 global_filter=["a|^/dev/ubd$1|","r|.*|"] }
			activation { udev_sync=0 udev_rules=0 monitoring=0 }
			backup { backup=0 archive=0 }
		C
	}
	name() { local name=DISK$1; echo "${!name}"; }
	for ((n = 0; n < disks; n++)); do disk+=("$(name "$n")") ours+=("$(name $((disks + n)))"); done
	seen '[a-d]$'
	run lvm >"$out/lvm"
	seen ''
	# quiet COMMAND...: it succeeds and warns of nothing
	quiet() {
		if ! "$@" >"$out/quiet" 2>&1 || grep -qiE 'warn|error|inconsist|fail|invalid|wrong|check' "$out/quiet"; then
			echo "FAILED: $*"
			cat "$out/quiet"
			exit 1
		fi
	}
	all=$(IFS=,; echo "${ours[*]}")
	for n in 0 1 2; do
		quiet pvck "${ours[n]}"
		for what in headers metadata; do pvck --dump $what "${ours[n]}" >"$out/lvm.$n.$what"; done
	done
	quiet vgck --devices "$all" vg
	quiet pvs --devices "$all"
	quiet lvs --devices "$all"
	exit 0
fi

work=$(mktemp -d)
trap '[ "${KEEP:-}" ] && echo "kept $work" || rm -r "$work"' EXIT
export XDG_STATE_HOME=$work/state
log=$work/ashlar.log
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
given=()
for side in lvm ashlar; do
	for ((n = 0; n < disks; n++)); do
		truncate -s 64M "$work/$side$n"
		given+=(--disk "$work/$side$n")
	done
done
for ((n = 0; n < disks; n++)); do disk+=("$work/ashlar$n"); done
run "$ashlar lvm" >"$work/ashlar"
for n in 0 1 2; do
	for what in headers metadata; do
		"$ashlar" lvm pvck --dump $what "${disk[n]}" >"$work/ashlar.$n.$what" 2>>"$log"
	done
done
"$root/tests/oracle/uml-run" "${given[@]}" --rw "$work" --timeout 300 "$here/lvm-verbs.sh" --guest "$work"
# The kernel's names of the disks are ubda, ubdb, ... LVM's shell ends with an empty line.
sed -i -e 's,/dev/ubd\([a-p]\),\1,g' -e '/^$/d' "$work/lvm"
letters=(a b c d)
for ((n = 0; n < disks; n++)); do sed -i "s,$work/ashlar$n\>,${letters[n]},g" "$work/ashlar"; done
# LVM does not show physical volumes that a group has lost.
diff -u "$work/lvm" <(sed '/^  [a-d]::u--:/d' "$work/ashlar")
for n in 0 1 2; do
	for what in headers metadata; do diff -u "$work/lvm.$n.$what" "$work/ashlar.$n.$what"; done
done
echo "ok: $(grep -c '^== [0-9]' "$work/ashlar") commands do what they do in LVM"
