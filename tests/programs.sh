# shellcheck shell=bash
# programs.sh - the programs that the suites test, and what waits for them; sourced, with the repository's folder in $root.
#
# environment
#   ASHLAR=FILE     the program, default target/debug/ashlar
#   EXAMPLES=DIR    the crates' examples, default target/debug/examples
# shellcheck source=tests/until.sh
. "$root/tests/until.sh"
ashlar=${ASHLAR:-$root/target/debug/ashlar}
# shellcheck disable=SC2034 # used by the suites of libraries
examples=${EXAMPLES:-$root/target/debug/examples}

# needs FILE... - ends the suite unless all of them were built
needs() {
	local file
	for file; do
		[ -x "$file" ] || {
			echo "${0##*/}: there is no $file: cargo build --workspace --bins --examples, or set ASHLAR and EXAMPLES" >&2
			exit 1
		}
	done
}
