# shellcheck shell=bash
# zvol-both.sh - the steps that are the same in both halves of zvol.sh; zvol-guest.sh and zvol-ashlar.sh source it, and define
#
#   quiet COMMAND...    does it, and fails with what it said
#   zvol VERB...        zfs or ashlar zvol: verbs, options and output are the same
#   target VOLUME       where stamp.py finds it
#   contents VOLUME     all that is on it
#   sys_of VOLUME       what would be its directory in /sys/block; $sys is what would be /sys
#   $shared             the directory that both see
# shellcheck disable=SC2154 # what the halves define

# What stamps a volume or snapshot has, $shared/contents says: name, seed, phase.

stamps() { # VERB VOLUME SEED PHASE
	local to
	to=$(target "$2") || exit 1
	quiet timeout 300 /usr/bin/python3 "$here/stamp.py" "$1" --seed "$3" --phase "$4" --discards "$to"
}
# fill - stamps on every volume that nothing else is meant for; of the first a snapshot and a clone
fill() {
	local name first='' phase
	while read -r name _; do
		case $name in scratch* | layers | crash*) continue ;; esac
		stamps write "$name" "$name" 1
		echo "$name $name 1"
		first=${first:-$name}
	done <"$shared/volumes" >"$shared/contents"
	quiet zvol set snapdev=visible "tank/$first"
	quiet zvol snapshot "tank/$first@then"
	quiet zvol clone "tank/$first@then" tank/clone
	for phase in 2 3; do stamps write clone "$first" $phase; done
	stamps write "$first" "$first" 2
	sed -i "s/^$first $first 1/$first $first 2/" "$shared/contents"
	printf '%s\n' "$first@then $first 1" "clone $first 3" >>"$shared/contents"
}
# write - the next phase to every volume
write() {
	local name seed phase
	while read -r name seed phase; do
		case $name in
		*@*) ;;
		*)
			phase=$((phase + 1))
			stamps write "$name" "$seed" $phase
			;;
		esac
		echo "$name $seed $phase"
	done <"$shared/contents" >"$shared/contents.new"
	mv "$shared/contents.new" "$shared/contents"
}
sum() { contents "$1" | sha256sum | cut -d' ' -f1; }
# verify - the stamps, and whole volumes by their sums
verify() {
	local name seed phase want
	while read -r name seed phase; do stamps verify "$name" "$seed" "$phase"; done <"$shared/contents"
	[ -e "$shared/sums" ] || return 0
	while read -r want name; do [ "$(sum "$name")" = "$want" ] || fail "$name reads differently"; done <"$shared/sums"
}
