# shellcheck shell=bash
# zvol-datasets.sh - what both halves of zvol.sh do with volumes as a whole: change and undo, configure and reconfigure. They source it
# behind zvol-both.sh.
#
# Of each volume and snapshot there is a file of the same name in $shared/model, to which the same is done; and $shared/state has what
# the side that had the pool last says of it.
# shellcheck disable=SC2154 # what the halves define
model=$shared/model

names() { zvol list -H -o name -t volume,snapshot | sed 's,^tank/,,' | sort; }

# --------------------------------------------------------- what a side says --
# Not dma_alignment (ashlar's users may have their data anywhere), write_zeroes_max_bytes (the kernel writes zeroes), and nr_requests
# (which the kernel has for merging queues only).
of_queue=(logical_block_size physical_block_size hw_sector_size minimum_io_size optimal_io_size max_hw_sectors_kb discard_granularity
	discard_max_bytes discard_max_hw_bytes discard_zeroes_data write_same_max_bytes write_cache fua nomerges rotational add_random zoned)
# Not those of the ARC: the guest's is small.
of_module=(zfs_txg_timeout zvol_blk_mq_blocks_per_thread zvol_blk_mq_queue_depth zvol_max_discard_blocks
	zvol_num_taskqs zvol_request_sync zvol_threads zvol_use_blk_mq)

# Not those of the pool that change while it is imported, scrubbed and exported.
not_of_pool='allocated|capacity|dedup_table_size|fragmentation|free|freeing|last_scrubbed_txg|load_guid'

# state - properties and features of the pool, properties of all volumes and snapshots and where these come from, the limits of
# their queues, and the module's parameters
# Not what is available, which depends on what the pool needs for itself.
state() {
	local name
	# This waits for the transaction group: what was written before is counted.
	quiet zvol set "com.example:asked=$SECONDS" tank
	quiet zvol inherit com.example:asked tank
	zpool get -Hp all tank | grep -vE $'^tank\t'"($not_of_pool)"$'\t'
	for name in $(names); do
		zvol get -H -p -o name,property,value,source all "tank/$name" | grep -v $'\tavailable\t' | sort
		case $name in *@*) ;; *) limits "$name" "$(sys_of "$name")/queue" ;; esac
	done
	attributes_in "$sys/module/zfs/parameters" "${of_module[@]}"
}
limits() { # VOLUME DIRECTORY
	local sectors segments blocks
	attributes_in "$2" "${of_queue[@]}" | sed "s,^,$1 ,"
	# A merged request is bounded by its pages there, by its blocks here, where a bio that is larger stays whole.
	sectors=$(($(cat "$2/max_sectors_kb") << 10))
	segments=$(($(cat "$2/max_segments") * $(cat "$2/max_segment_size")))
	if [ "$(cat "$2/../zvol/use_blk_mq" 2>/dev/null)" = 1 ]; then
		blocks=$(cat "$2/../zvol/blk_mq_blocks_per_thread")
		[ "$blocks" = 0 ] || segments=$((blocks * $(cat "$2/../zvol/volblocksize")))
	fi
	echo "$1 largest merged request $((sectors < segments ? sectors : segments))"
}
attributes_in() { # DIRECTORY NAME...
	local name
	for name in "${@:2}"; do echo "$name $(cat "$1/$name" 2>/dev/null)"; done
}
tell() { state >"$shared/state"; }
# compare - what the other side has told is what this one says
compare() {
	diff "$shared/state" <(state) || fail "this side says something else"
}

# ----------------------------------------------------- one thing, done to both --
# begin - the model is what the stamps say is right
begin() {
	local name
	verify
	quiet zvol set snapdev=visible tank
	quiet zvol inherit snapdev tank/v16k
	mkdir "$model"
	for name in $(names); do contents "$name" >"$model/$name" || fail "$name is not read"; done
}
# agree - names, sizes and contents are those of the model
agree() {
	local file name size
	diff <(cd "$model" && printf '%s\n' * | sort) <(names) || fail "these are not the volumes and snapshots of the model"
	for file in "$model"/*; do
		name=${file##*/}
		size=$(zvol get -H -p -o value volsize "tank/$name")
		[ "$size" = "$(stat -c %s "$file")" ] || fail "$name: $size bytes, not $(stat -c %s "$file")"
		contents "$name" | cmp - "$file" || fail "$name reads differently"
	done
}
put() { # VOLUME SEED: writes at random, to its end
	local to
	for to in "$(target "$1")" "$model/$1"; do
		quiet timeout 300 /usr/bin/python3 "$here/stamp.py" write --seed "$2" --phase 3 "$to"
	done
}
resize() { # VOLUME SIZE
	quiet zvol set "volsize=$2" "tank/$1"
	truncate -s "$2" "$model/$1"
}
snapshot() { # SNAPSHOT...: all at one time
	local one
	quiet zvol snapshot "${@/#/tank/}"
	for one; do cp "$model/${one%@*}" "$model/$one"; done
}
clone() { # SNAPSHOT VOLUME
	quiet zvol clone "tank/$1" "tank/$2"
	cp "$model/$1" "$model/$2"
}
rename() { # FROM TO: with its snapshots, if it is a volume
	local file
	quiet zvol rename "tank/$1" "tank/$2"
	for file in "$model/$1" "$model/$1@"*; do
		[ ! -e "$file" ] || mv "$file" "$model/$2${file#"$model/$1"}"
	done
}
promote() { # CLONE ORIGIN TAG...: these snapshots become the clone's
	local tag
	quiet zvol promote "tank/$1"
	for tag in "${@:3}"; do mv "$model/$2@$tag" "$model/$1@$tag"; done
}
rollback() { # SNAPSHOT NEWER...: which are destroyed
	local newer
	quiet zvol rollback -r "tank/$1"
	for newer in "${@:2}"; do rm "$model/$newer"; done
	cp "$model/$1" "$model/${1%@*}"
}
destroy() { # VOLUME: with its snapshots
	quiet zvol destroy -r "tank/$1"
	rm -f "$model/$1" "$model/$1@"*
}

# ------------------------------------------------------------------- changes --
# change - of the pool that fill leaves
change() {
	begin
	resize v16k 12M
	put v16k grown
	resize v512 640K
	put v512 shrunk
	snapshot v16k@one v512@one
	put v16k second
	put v512 second
	snapshot v16k@two
	put v16k third
	clone v16k@two fork
	put fork forked
	resize fork 14M
	snapshot fork@mine
	put fork again
	promote fork v16k 'then' one two
	rename fork@one fork@uno
	rename v512 other
	rollback other@one
	agree
	tell
}
# undo - what change has done, as far as it can be
undo() {
	compare
	agree
	promote v16k fork 'then' uno two
	destroy fork
	rollback v16k@uno v16k@two
	rename v16k@uno v16k@one
	rename other v512
	resize v512 2M
	put v512 fourth
	rollback v16k@then v16k@one
	destroy clone
	snapshot v16k@last v512@last
	put v16k last
	put v512 last # or opening it, which frees what its log had, would be the first that is written behind the snapshot
	agree
	tell
}
settle() {
	compare
	agree
}

# ---------------------------------------------------------------- properties --
# What a volume can have, none of it the default; numbers as zfs get -p prints them.
settings='checksum=sha512 compression=gzip-3 copies=3 dedup=verify logbias=throughput primarycache=none secondarycache=metadata prefetch=metadata
	redundant_metadata=most sync=disabled snapdev=hidden snapshot_limit=7 volmode=dev volthreading=off reservation=10485760 refreservation=12582912
	volsize=9437184 com.example:owner=somebody'
# and what volumes get from what they are in
inherited='compression=zstd-7 checksum=blake3 copies=2 sync=always primarycache=metadata snapdev=visible com.example:owner=them'

is() { # DATASET PROPERTY VALUE SOURCE
	local said
	said=$(zvol get -H -p -o value,source "$2" "tank/$1")
	[ "$said" = "$3"$'\t'"$4" ] || fail "$2 of $1 is $said, not $3 $4"
}
give() { # DATASET PROPERTY=VALUE...
	local setting
	for setting in "${@:2}"; do
		quiet zvol set "$setting" "tank/$1"
		is "$1" "${setting%%=*}" "${setting#*=}" local
	done
}
# configure - the pool that fill leaves
configure() {
	local setting
	# shellcheck disable=SC2086 # words
	give v16k $settings
	give v512 refreservation=1048576 com.example:number=1
	give clone readonly=on
	give v16k@then com.example:note=before
	quiet zvol create -p -s -V 4M -b 16k tank/in/side
	# shellcheck disable=SC2086 # words
	give in $inherited
	for setting in $inherited; do is in/side "${setting%%=*}" "${setting#*=}" "inherited from tank/in"; done
	quiet zvol snapshot tank/in/side@one
	tell
}
# reconfigure - as it was before
reconfigure() {
	local setting
	compare
	for setting in $settings; do
		case $setting in
		volsize=*) give v16k volsize=8388608 ;;
		volthreading=*) quiet zvol set volthreading=on tank/v16k ;; # it cannot be inherited
		*reservation=* | snapshot_limit=*) quiet zvol set "${setting%%=*}=none" tank/v16k ;;
		*) quiet zvol inherit "${setting%%=*}" tank/v16k ;;
		esac
	done
	is v16k compression on default
	is v16k com.example:owner - -
	quiet zvol set readonly=off tank/clone
	quiet zvol set refreservation=auto tank/v512
	quiet zvol inherit com.example:note tank/v16k@then
	quiet zvol rename tank/in/side tank/side
	is side compression on default
	tell
}
