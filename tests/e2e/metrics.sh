#!/bin/bash
# metrics.sh - promtool, Prometheus's own checker, reads the metrics of a daemon, the rules of docs/metrics.md and the queries of the
# dashboard, and finds nothing to complain about.
#
# A stack with every kind of device and of long work that needs no root: an array that is checked while a member has failed, a
# partition table, a volume group, a plain disk.
#
# usage: metrics.sh
# environment: ASHLAR=FILE the program, default target/debug/ashlar; PROMTOOL=FILE, default promtool, or the one that
# scripts/setup soak puts into target/tools
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
# shellcheck source=tests/e2e/until.sh
. "$root/tests/e2e/until.sh"
needs "$ashlar"
promtool=${PROMTOOL:-$(command -v promtool || echo "$root/target/tools/promtool")}
[ -x "$promtool" ] || {
	echo "metrics.sh: there is no promtool: scripts/setup soak, or set PROMTOOL" >&2
	exit 1
}

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-metrics.XXXXXX")
server=''
cleanup() {
	[ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
	wait 2>/dev/null || true
	rm -rf --one-file-system "$W"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "metrics.sh: $*" >&2
	[ ! -e "$W/log" ] || tail -n 30 "$W/log" >&2
	exit 1
}
cd "$W"

truncate -s 64M a0 a1 plain pv
"$ashlar" md create -l1 -n2 --homehost=any --assume-clean /dev/md/data a0 a1 >/dev/null
"$ashlar" lvm vgcreate vg pv >/dev/null
"$ashlar" lvm lvcreate -n lv -L 16M --devices pv vg >/dev/null
"$ashlar" serve a0 a1 plain pv --control control --metrics tcp:0 >out 2>log &
server=$!
until_done 30 "the daemon is ready" grep -qx ready out
client() { "$ashlar" "$@" --control control; }
port=$(client status --json | sed -n 's/.*"metrics": *"tcp:127.0.0.1:\([0-9]*\)".*/\1/p')
[ "$port" ] || fail "the daemon has no address for metrics"

# page FILE - what a scraper gets
page() {
	exec 3<>"/dev/tcp/127.0.0.1/$port"
	printf 'GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n' >&3
	sed '1,/^\r$/d' <&3 >"$1"
	exec 3<&-
}
# checked STATE - the page has no fault; promtool exits with 1 for those of the syntax, and with 3 for those of style
checked() {
	page page
	"$promtool" check metrics <page >faults 2>&1 || fail "$1: $(cat faults)"
	[ ! -s faults ] || fail "$1: $(cat faults)"
	echo "$1: $(grep -c '^# TYPE' page) metrics, $(grep -vc '^#' page) values"
}
checked "at rest"
client set sys/block/md127/md/sync_speed_max 1
client md action md/data check --no-wait >/dev/null
is_checked() { page page && grep -q '^ashlar_job_state.*kind="check".* 1$' page; }
until_done 10 "the check is a job" is_checked
checked "during a check"
client md fail md/data a1 >/dev/null
checked "degraded"
grep -q '^ashlar_md_degraded.* 1$' page || fail "a failed member is not seen"
kill $server
wait $server || fail "the daemon did not end in good order"
server=''

# The dashboard's queries are checked as the expressions of rules, with values for its variables.
sed -n '/^groups:/,/^```/{/^```/!p}' "$root/docs/metrics.md" >alerts.yaml
python3 - "$root/docs/grafana/ashlar.json" >queries.yaml <<'END'
import json, sys
def queries(node):
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"]
        for value in node.values():
            yield from queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from queries(value)
rules = []
for n, query in enumerate(queries(json.load(open(sys.argv[1])))):
    query = query.replace("$__rate_interval", "5m").replace("$instance", ".*").replace("$device", ".*")
    rules.append({"record": f"query:{n}", "expr": query})
print(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
END
for rules in alerts.yaml queries.yaml; do
	"$promtool" check rules "$rules" >faults 2>&1 || fail "$rules: $(cat faults)"
	echo "$rules: $(sed -n 's/.*SUCCESS: //p' faults)"
done
