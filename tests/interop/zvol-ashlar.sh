# shellcheck shell=bash
# zvol-ashlar.sh - ashlar's half of zvol.sh, which sources it: the same verbs as zvol-guest.sh.

ashlar() { fail "not yet"; }
ashlar_cleanup() { :; }
