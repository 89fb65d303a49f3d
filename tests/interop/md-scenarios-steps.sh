# shellcheck shell=bash
# md-scenarios-steps.sh - the steps of md-scenarios.sh, and the words that they are written in; sourced by it, with the
# side that takes them, ashlar or kernel (inside UML).
#
# shellcheck disable=SC2034,SC2154 # variables are shared with md-scenarios.sh and side-*.sh

# ------------------------------------------------------------------- words --
# Members are m0, m1 ... in the current directory, which is $dir, too.

side=$1
# shellcheck source=/dev/null
. "$here/side-$side.sh"

# until_true SECONDS COMMAND... - wait for it
until_true() {
	local _ seconds=$1
	shift
	for _ in $(seq $((seconds * 20))); do
		! "$@" || return 0
		sleep 0.05
	done
	echo "in vain: $*"
	for _ in array_state sync_action sync_completed resync_start degraded; do echo "$_: $(attribute $_ 2>&1)"; done
	mdstat
	return 1
}

is() { [ "$(attribute "$1" 2>/dev/null)" = "$2" ]; }
quiet() { is sync_action idle; }
busy() { ! quiet; }
idle() { quiet && is resync_start none; }
whole() { idle && is degraded 0; }
unmarked() { [ "$(dirty_bits m0)" = 0 ]; }

# same WHAT FOUND WANTED
same() { [ "$2" = "$3" ] || { echo "$1: $2, not $3"; return 1; }; }

# refused REGEX COMMAND... - it fails, and says why
refused() {
	local output want=$1
	shift
	if output=$("$@" 2>&1); then
		echo "not refused: $*"
		# It was started in another shell.
		[ $side = kernel ] || [ ! -s "$socket.pid" ] || kill -KILL "$(<"$socket.pid")" 2>/dev/null || true
		return 1
	fi
	grep -Eq -- "$want" <<<"$output" || { printf '%s\n' "$output" "refused, but without a word of $want: $*"; return 1; }
	# Then the kernel has reason to complain.
	[ $side = ashlar ] || dmesg --clear
}

md_member() { $python "$here/md_member.py" "$@"; }

# stamp VERB PHASE - a phase such as 2f is of few writes
stamp() {
	local few=()
	[[ $2 != *f ]] || few=(--few)
	timeout 120 $python "$here/stamp.py" "$1" --seed "$name" --phase "${2%f}" "${few[@]}" "$target" >"$dir/stamp" 2>&1 || {
		cat "$dir/stamp"
		return 1
	}
}

# enter DIR - the array there is meant from now on
enter() {
	dir=$CASE${1:+/$1}
	mkdir -p "$dir"
	cd "$dir" || return
}

disks() { for member; do rm -f "$member.img" && truncate -s ${kib}K "$member.img"; done; }
garbage() { for member; do head -c $((kib * 1024)) /dev/urandom >"$member.img"; done; }

# slots - of the running array, as [UU_U]
slots() { mdstat | sed -n 's/^ .* \(\[[U_]*\]\)$/\1/p'; }

# removes MEMBER - which the array may need a moment to release
removes() { until_true 10 hushed manage remove "$1"; }
hushed() { "$@" 2>/dev/null; }

# mismatches [ACTION] - of a check (or repair) of the running array
mismatches() {
	attribute sync_action "${1:-check}"
	until_true 30 quiet >&2
	attribute mismatch_cnt
}

# sound MEMBER... - their superblocks are right, and say that the array is clean
sound() {
	local text member
	for member; do
		text=$(examine "$member" 2>&1) || true
		if ! grep -Eq '^ *State : clean$' <<<"$text" || ! grep -Eq '^ *Checksum : [0-9a-f]+ - correct' <<<"$text"; then
			printf '%s\n' "$text" "the superblock of $member is not sound"
			return 1
		fi
	done
}

# makes OPTION... -- MEMBER... - or "missing", for one that is to come
makes() {
	local options=()
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	shift
	make "$@" "${options[@]}"
}

# reads PHASE MEMBER... - from these, which suffice
reads() {
	start --run --read-only "${@:2}"
	stamp verify "$1"
	stop
}

# writes PHASE MEMBER... - to these
writes() {
	start --run "${@:2}"
	until_true 20 idle
	stamp write "$1"
	stamp verify "$1"
	stop
}

# completes NEW... -- OTHER... - members come to the others, and are rebuilt
completes() {
	local new=()
	while [ "$1" != -- ]; do
		new+=("$1")
		shift
	done
	shift
	start --run "$@"
	for member in "${new[@]}"; do manage add "$member"; done
	until_true 30 whole
	stop
}

# contents FILE MEMBER... - what is read from these has the sum that the file says, if there is one
contents() {
	local sum
	start --run --read-only "${@:2}"
	sum=$(md_member sum "$target")
	stop
	[ -e "$1" ] || echo "$sum" >"$1"
	same "sum of what is read from ${*:2}" "$sum" "$(<"$1")"
}

# judge PHASE MEMBER... - the array is whole, parity fits, and all is as written (phase 0: whatever it is)
judge() {
	local found
	sound "${@:2}"
	start "${@:2}"
	until_true 20 whole
	[ ! -e size ] || same size "$(array_sectors)" "$(<size)"
	found=$(mismatches)
	same mismatch_cnt "$found" 0
	[ "$1" = 0 ] || stamp verify "$1"
	stop
	sound "${@:2}"
}

# ------------------------------------------------------------ ashlar's side --
# What side-ashlar.sh does not have, or has without options.

ashlar_words() {
	mdstat() { "$ashlar" get "${control[@]}" proc/mdstat; }
	array_sectors() { "$ashlar" get "${control[@]}" "sys/block/$array/size"; }
	speed_up() { attribute sync_speed_max 1000000; }
	bitmap_of() { "$ashlar" md grow "${control[@]}" "$array" --bitmap="$1" --bitmap-chunk=8 >>"$socket.log"; }

	# make MEMBER... OPTION...
	make() {
		local words=() word
		for word; do
			[[ $word != m[0-9] ]] || word+=.img
			words+=("$word")
		done
		# Superblocks of version 0.90 have no place for a name.
		[[ " ${words[*]} " == *" --metadata=0.90 "* ]] || words+=(--homehost=any --name="$name")
		"$ashlar" md create "${words[@]}" >>"$socket.log"
	}

	# start OPTION... MEMBER... - with --uuid or --name only of the array that has it; with --slow syncs are slow; with --files
	# $node is a file that is the volume
	start() {
		local words=() verb=(serve) word _
		for word; do
			case $word in
			--uuid=* | --name=*) verb=(md assemble) words+=("$word") ;;
			--slow) words+=(--set=sys/block/md127/md/sync_speed_max=500 --set=sys/block/md127/md/sync_speed_min=50) ;;
			--files) mkdir -p mnt && words+=(--mount mnt) ;;
			m[0-9]) words+=("$word.img") ;;
			*) words+=("$word") ;;
			esac
		done
		rm -f "$socket" "$socket.control"
		: >"$socket.said"
		"$ashlar" "${verb[@]}" "${words[@]}" --nbd "unix:$socket" "${control[@]}" >"$socket.said" 2>&1 </dev/null &
		server=$!
		echo $server >"$socket.pid"
		local served=yes
		until_it $server grep -q '^ready' "$socket.said" || served=no
		cat "$socket.said" >>"$socket.log"
		if [ $served = no ]; then
			cat "$socket.said"
			kill -KILL $server 2>/dev/null || true
			wait $server 2>/dev/null || true
			server=
			echo "the server did not start: ${words[*]}"
			return 1
		fi
		array=$(mdstat | sed -n 's/^ *\(md[0-9]*\) : active.*/\1/p')
		node=$dir/mnt/dev/$array
	}
}

# ------------------------------------------------------------ kernel's side --

kernel_words() {
	node=$target
	mdstat() { cat /proc/mdstat; }
	array_sectors() { blockdev --getsz $target; }
	speed() { echo "$1" >/proc/sys/dev/raid/speed_limit_min && echo "$2" >/proc/sys/dev/raid/speed_limit_max; }
	speed_up() { speed 1000000 1000000; }
	bitmap_of() { mdadm --quiet --grow $target --bitmap="$1" --bitmap-chunk=8; }

	make() {
		local words=() word
		for word; do
			case $word in
			m[0-9])
				attach "$word"
				words+=("${device[$word]}")
				;;
			*) words+=("$word") ;;
			esac
		done
		[[ " ${words[*]} " == *" --metadata=0.90 "* ]] || words+=(--homehost=none --name="$name")
		[[ " ${words[*]} " != *" --bitmap=internal "* ]] || words+=(--delay=1) # seconds until marks go
		mdadm --quiet --create $target --run "${words[@]}"
		stop
	}

	start() {
		local words=() devices=() word read_only=
		for word; do
			case $word in
			--read-only) read_only=1 words+=(--readonly) ;;
			--slow) speed 50 100 ;;
			--files) ;;
			m[0-9])
				attach "$word"
				devices+=("${device[$word]}")
				;;
			*) words+=("$word") ;;
			esac
		done
		if ! mdadm --assemble $target "${words[@]}" "${devices[@]}" >/tmp/assemble 2>&1 || is array_state inactive; then
			cat /tmp/assemble
			[ ! -e /sys/block/md0/md ] || mdadm --quiet --stop $target
			losetup --detach "${device[@]}"
			device=()
			return 1
		fi
		# Debian lets arrays start read-only until they are written.
		[ "$read_only" ] || ! is array_state read-auto || mdadm --quiet --readwrite $target
	}
}

"${side}_words"

# ------------------------------------------------------------------- steps --
# Either side can take each of them.

creation() { # LEVEL METADATA MEMBER...
	local unit
	makes --level="$1" --metadata="$2" --raid-devices=$(($# - 2)) --chunk=64 -- "${@:3}"
	start "${@:3}"
	until_true 20 whole
	array_sectors >size
	unit=$(attribute component_size)
	# Whole chunks of each member, of which all but one or two have data.
	same size "$(<size)" $((unit * 2 * ($# - 3 - ($1 == 6))))
	same "a rest of a chunk" $((unit % 64)) 0
	stop
}

# An ext4 of the kernel's, with files; then read, and made anew with the same ones, by the tools of ext4.
files_first() {
	start "$@"
	mkfs.ext4 -q -F "$node"
	mount_ext4 "$node"
	cp /usr/share/common-licenses/* /tmp/ext4
	head -c 1500000 /dev/urandom >/tmp/ext4/random
	(cd /tmp/ext4 && find . -type f -print0 | sort -z | xargs -0 sha256sum) >sums
	umount /tmp/ext4
	stop
}
files_second() {
	start --files "$@"
	fsck
	mkdir out
	debugfs -R "rdump / out" "$node" >>"$dir/fsck" 2>&1
	rm -rf out/lost+found
	(cd out && sha256sum --quiet -c ../sums)
	mkfs.ext4 -q -F -d out "$node"
	fsck
	stop
}
files_third() {
	start "$@"
	fsck
	mount_ext4 "$node"
	(cd /tmp/ext4 && sha256sum --quiet -c "$dir/sums")
	umount /tmp/ext4
	stop
}
fsck() { e2fsck -fn "$node" >"$dir/fsck" 2>&1 || { cat "$dir/fsck"; return 1; }; }
mount_ext4() { mkdir -p /tmp/ext4 && mount -t ext4 "$@" /tmp/ext4; }

# Whatever the garbage is taken for, it reads the same from any members that suffice, also where a block was written.
one_missing() {
	makes --level=6 --raid-devices=4 --chunk=64 -- m0 missing m2 m3
	start --run m0 m2 m3
	until_true 20 idle
	stamp write 2f
	stop
	contents sum m0 m2 m3
}

slow_creation() {
	speed 50 100
	makes --level=5 --raid-devices=4 --chunk=64 -- m0 m1 m2 m3
}
# mdadm has the last member rebuilt at first. It fails meanwhile, and a spare is rebuilt; then the next member fails.
first_recovery() {
	start --slow m0 m1 m2 m3
	until_true 5 is sync_action recover
	manage fail m3
	until_true 5 quiet
	same "slots without m3" "$(slots)" '[UUU_]'
	stamp write 1
	manage add m4
	manage add m5
	until_true 5 is sync_action recover
	speed_up
	until_true 20 whole
	manage fail m0
	stamp write 2
	removes m3
	removes m0
	until_true 20 whole
	same "slots with the spare" "$(slots)" '[UUUU]'
	manage add m3
	until_true 5 whole
	same spares "$(mdstat | grep -o '(S)' | wc -l)" 1
	stamp verify 2
	stop
}
# Until parity is there, data are only where they are: ashlar keeps every member that has some.
first_resync() {
	start --slow m0 m1 m2 m3
	until_true 5 busy
	if [ $side = ashlar ]; then
		refused 'busy|parity' manage fail m3
		same slots "$(slots)" '[UUUU]'
	fi
	speed_up
	until_true 20 whole
	manage fail m3
	same "slots without m3" "$(slots)" '[UUU_]'
	removes m3
	manage add m4
	until_true 20 whole
	stop
}

# Each member leaves, then each of those before it, too; they come back and are rebuilt.
integrity() {
	local second first tested=()
	makes --level=6 --layout="$1" --raid-devices=5 --chunk=64 --assume-clean -- m0 m1 m2 m3 m4
	start m0 m1 m2 m3 m4
	stamp write 1
	for second in m0 m1 m2 m3 m4; do
		manage fail $second
		removes $second
		stamp verify 1 || { echo "without $second"; return 1; }
		for first in "${tested[@]}"; do
			manage fail "$first"
			removes "$first"
			stamp verify 1 || { echo "without $first and $second"; return 1; }
			manage add "$first"
			until_true 20 is degraded 1
			until_true 20 quiet
		done
		manage add $second
		until_true 20 whole
		tested+=("$second")
	done
	# And what was written meanwhile is on them afterwards.
	manage fail m1
	manage fail m3
	stamp write 2
	removes m1
	removes m3
	manage add m3
	manage add m1
	until_true 20 whole
	stop
}

# m0, m1 and m2 are an array whose m1 missed phase 2; m3, m4 and m5 one of the same shape.
assembly_first() {
	makes --level=5 --raid-devices=3 --chunk=64 --assume-clean -- m0 m1 m2
	writes 1 m0 m1 m2
	local name=other
	makes --level=5 --raid-devices=3 --chunk=64 --assume-clean -- m3 m4 m5
	writes 1 m3 m4 m5
	name=r5assem
	mkdir sound changed
	cp m?.img sound
	start m0 m1 m2
	manage fail m1
	removes m1
	stamp write 2
	stop
	mv m[0-2].img changed
}
assembled() { # PHASE SLOTS OPTION... MEMBER...
	start "${@:3}"
	same "slots of ${*:3}" "$(slots)" "$2"
	stamp verify "$1"
	stop
}
full_name() { examine "$1" | sed -n 's/^ *Name : \([^ ]*\).*/\1/p'; }
assembly() {
	local uuid too_few='run|enough|need|few|missing|member'
	cp sound/m[0-2].img .
	uuid=$(examine m0 | sed -n 's/^ *Array UUID : //p')
	assembled 1 '[UUU]' m0 m1 m2
	assembled 1 '[UUU]' m2 m0 m1
	assembled 1 '[UUU]' --uuid="$uuid" m0 m1 m2 m3 m4 m5
	assembled 1 '[UUU]' --name="$(full_name m0)" m5 m2 m4 m1 m3 m0
	local name=other
	assembled 1 '[UUU]' --name="$(full_name m3)" m0 m1 m2 m3 m4 m5
	name=r5assem
	# The disks are in other places.
	mv m0.img m && mv m2.img m0.img && mv m1.img m2.img && mv m m1.img
	assembled 1 '[UUU]' m0 m1 m2
	# One is missing, which was there last time.
	cp sound/m[0-2].img .
	refused "$too_few" start m0 m2
	assembled 1 '[U_U]' --run m0 m2
	# A member of another array is not a substitute.
	cp sound/m[0-2].img .
	refused "$too_few|match" start m0 m4 m2
	# Two are missing.
	refused "$too_few" start --run m1
	# One is stale: it stays out.
	cp changed/m?.img .
	assembled 2 '[U_U]' m0 m1 m2
	assembled 2 '[U_U]' m1 m2 m0
	# A stale member is not a substitute for a missing one.
	refused "$too_few" start --run m1 m2
	completes m1 -- m0 m2
	assembled 2 '[UUU]' m0 m1 m2
}

swapped_first() {
	makes --level=5 --metadata=0.90 --raid-devices=4 --chunk=64 --assume-clean -- m0 m1 m2 m3
	writes 1 m0 m1 m2 m3
}
swapped() {
	refused 'big-endian' start m0 m1 m2 m3
	reads 1 m0 m1 m2 m3
	reads 1 m0 m1 m3
}
swapped_back() {
	attach m0 m1 m2 m3
	mdadm --quiet --assemble $target --update=byteorder "${device[@]}"
	stop
}

# marks LOST MEMBER... - phase 1 is written everywhere, a little of phase 2 without one
marks() {
	local before begun=$SECONDS
	start "${@:2}"
	stamp write 1
	before=$(dirty_bits m0)
	[ "$before" -gt 400 ] || { echo "$before marks after writing everywhere"; return 1; }
	until_true 30 unmarked
	begun=$((SECONDS - begun))
	manage fail "$1"
	removes "$1"
	stamp write 2f
	before=$(dirty_bits m0)
	[ "$before" -gt 0 ] && [ "$before" -lt 400 ] || { echo "$before marks after writing a little"; return 1; }
	# Longer than they took to go before.
	sleep $((begun + 1))
	stop
	dirty_bits m0 >marks
	# The kernel unmarks rows that needed no write of the one that is away; ashlar keeps them marked.
	if [ $side = kernel ] && [ "$(<marks)" -gt 0 ] && [ "$(<marks)" -lt "$before" ]; then return; fi
	same "marks while $1 is away" "$(<marks)" "$before"
}
# marked LOST OTHER... - the same marks, after which the member comes back
marked() {
	same "marks that this side counts" "$(dirty_bits m0)" "$(<marks)"
	start --run "${@:2}"
	manage add "$1"
	until_true 20 whole
	until_true 30 unmarked
	stop
	same "marks afterwards" "$(dirty_bits m0)" 0
}

bitmap_in_file() {
	truncate -s 16M /tmp/ext4.img
	mkfs.ext4 -q -F /tmp/ext4.img
	mount_ext4 -o loop /tmp/ext4.img
	attach m0 m1 m2 m3
	mdadm --quiet --create $target --run --homehost=none --name="$name" --assume-clean --level=6 --raid-devices=4 --chunk=64 \
		--bitmap=/tmp/ext4/bits --bitmap-chunk=8 "${device[m0]}" "${device[m1]}" "${device[m2]}" "${device[m3]}"
	mdstat | grep -q 'file: /tmp/ext4/bits'
	stop
	umount /tmp/ext4
}
bitmap_inside() {
	if [ $side = ashlar ]; then
		refused 'internal, lockless, none' make m4 m5 m6 m7 --level=6 --raid-devices=4 --bitmap="$PWD/bits"
		[ ! -e bits ]
	fi
	start m0 m1 m2 m3
	[ $side != ashlar ] || refused 'internal, lockless, none' bitmap_of "$PWD/bits"
	bitmap_of internal
	stop
}

# each_shape LEVEL STEP... - for each in its directory, with its layout, all members, some that suffice, and the others
each_shape() {
	local level=$1 layout all=(m0 m1 m2 m3) some=(m0 m2 m3) others=(m1)
	[ "$level" != 6 ] || all+=(m4) some=(m0 m2 m4) others=(m3 m1)
	for layout in $(layouts "$level"); do
		where=$layout
		enter "$layout"
		"${@:2}"
	done
	where=
}
layout_first() {
	disks "${all[@]}"
	makes --level="$level" --layout="$layout" --raid-devices=${#all[@]} --chunk=64 --assume-clean -- "${all[@]}"
	writes 1 "${all[@]}"
	writes 2 "${some[@]}"
}
layout_second() {
	local found
	start --run "${some[@]}"
	stamp verify 2 || { echo "without ${others[*]}"; return 1; }
	for member in "${others[@]}"; do manage add "$member"; done
	until_true 20 whole
	found=$(mismatches)
	same mismatch_cnt "$found" 0
	stamp verify 2
	stop
}

filled() { # LEVEL LAYOUT MEMBER...
	makes --level="$1" ${2:+--layout="$2"} --raid-devices=$(($# - 2)) --chunk=64 --assume-clean -- "${@:3}"
	writes 1 "${@:3}"
}
# A check counts 8 sectors for each row of blocks of 4 KiB that does not fit, however much of whichever member is wrong.
counted() { # MEMBER...
	local member first count want found
	while read -r member first count want; do
		md_member spoil "$member.img" "$first" "$count"
		start "$@"
		found=$(mismatches)
		stop
		same "mismatch_cnt after damage of $member $first+$count" "$found" "$want"
	done <<-END
		m1 700 1 8
		m2 1023 2 24
		m0 128 128 152
		m1 136 8 152
	END
}

# repaired LEVEL MEMBER... - a chunk of each member in turn is spoilt and repaired, in a directory of its own
repaired() {
	local where parities=0 sub=${dir#"$CASE/"}
	for where in "${@:2}"; do
		enter "$sub/$where"
		cp ../../m?.img .
		[ ! -e ../../tampered ] || md_member spoil m1.img 200 1
		md_member spoil "$where.img" 384 128
		# The data are what their members have, before the repair and after it.
		[ $side = kernel ] || contents sum "${@:2}"
		start "${@:2}"
		same "mismatch_cnt of a repair" "$(mismatches repair)" 128
		same "mismatch_cnt of a check after it" "$(mismatches)" 0
		stop
		[ $side = kernel ] || contents sum "${@:2}"
		data_of "${@:2}" >data
		! cmp -s data ../../data || parities=$((parities + 1))
	done
	# Where a parity was spoilt, it is as it was, and so is everything else.
	same "repairs to what was there before" $parities $(($1 == 6 ? 2 : 1))
}
data_of() { md_member data "${@/%/.img}"; }

repaired_nothing() { # MEMBER...
	data_of "$@" >before
	start --run "$@"
	same "mismatch_cnt of a repair" "$(mismatches repair)" 0
	stop
	data_of "$@" >after
	cmp before after
}
