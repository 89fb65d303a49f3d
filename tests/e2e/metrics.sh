#!/bin/bash
# metrics.sh - promtool, Prometheus's own checker, reads the metrics of a daemon and the queries of the dashboard, and finds nothing to
# complain about. Prometheus itself scrapes the daemon under load, has an answer to each query of the dashboard, and evaluates the alert
# rules on the samples: with a failed member, those alerts are pending that shall be, and no others.
#
# A stack with every kind of device and of long work that needs no root: an array that is checked while a member has failed, a
# partition table, a volume group with a snapshot, a plain disk.
#
# usage: metrics.sh
# environment: ASHLAR=FILE the program, default target/debug/ashlar; PROMTOOL=FILE and PROMETHEUS=FILE, default promtool and prometheus,
# or those that scripts/setup soak puts into target/tools
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
# shellcheck source=tests/programs.sh
. "$root/tests/programs.sh"
needs "$ashlar"
promtool=${PROMTOOL:-$(command -v promtool || echo "$root/target/tools/promtool")}
prometheus=${PROMETHEUS:-$(command -v prometheus || echo "$root/target/tools/prometheus")}
for program in "$promtool" "$prometheus"; do
	[ -x "$program" ] || {
		echo "metrics.sh: there is no $program: scripts/setup soak, or set PROMTOOL and PROMETHEUS" >&2
		exit 1
	}
done

W=$(mktemp -d "${TMPDIR:-/tmp}/ashlar-metrics.XXXXXX")
server='' scraper='' load=''
cleanup() {
	local process
	for process in $load $scraper $server; do kill -KILL "$process" 2>/dev/null || true; done
	wait 2>/dev/null || true
	rm -rf --one-file-system "$W"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "metrics.sh: $*" >&2
	[ ! -e "$W/log" ] || tail -n 30 "$W/log" >&2
	[ ! -e "$W/raised" ] || cat "$W/raised" >&2
	[ ! -s "$W/unanswered" ] || cat "$W/unanswered" >&2
	[ ! -e "$W/scraper" ] || tail -n 10 "$W/scraper" >&2
	exit 1
}
cd "$W"

truncate -s 64M a0 a1 plain pv
"$ashlar" md create -l1 -n2 --homehost=any --assume-clean /dev/md/data a0 a1 >/dev/null
"$ashlar" lvm vgcreate vg pv >/dev/null
"$ashlar" lvm lvcreate -n lv -L 16M --devices pv vg >/dev/null
"$ashlar" lvm lvcreate -n origin -L 8M --devices pv vg >/dev/null
"$ashlar" lvm lvcreate -s -n snap -L 8M --devices pv vg/origin >/dev/null
"$ashlar" serve a0 a1 plain pv --control control --metrics tcp:0 --nbd unix:nbd.sock >out 2>log &
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

# Prometheus scrapes the daemon each second while a client reads, writes, discards and flushes, and a check runs, as fast
# as it takes to have a speed.
client set sys/block/md127/md/sync_speed_max 400
cat >prometheus.yml <<END
global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }
rule_files: ["$root/docs/prometheus/ashlar.rules.yml"]
scrape_configs:
  - job_name: ashlar
    static_configs: [{ targets: ["127.0.0.1:$port"] }]
END
"$prometheus" --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:0 \
	--log.level=info >scraper 2>&1 &
scraper=$!
for device in md/data plain vg/lv; do
	/usr/bin/python3 - "nbd+unix:///$device?socket=nbd.sock" <<'END' &
import nbd, sys, time
h = nbd.NBD()
h.connect_uri(sys.argv[1])
while True:
    for at in range(0, 8 << 20, 1 << 20):
        h.pwrite(b"x" * 65536, at)
        h.pread(65536, at)
        h.trim(65536, at + (1 << 19))
    h.flush()
    time.sleep(0.02)
END
	load+=" $!"
done
address=''
listens() {
	# In the order in which the fields are logged.
	address=$(sed -n 's/.*msg="Listening on" address=\([0-9.:]*\).*/\1/p' scraper)
	[ "$address" ]
}
until_done 30 "Prometheus listens" listens
answered() { python3 "$here/queries.py" "$root/docs/grafana/ashlar.json" "$address" >answers 2>unanswered; }
until_done 60 "Prometheus answers every query of the dashboard" answered
cat answers
for process in $load; do
	kill "$process"
	wait "$process" || true
done
load=''

client md fail md/data a1 >/dev/null
checked "degraded"
grep -q '^ashlar_md_degraded.* 1$' page || fail "a failed member is not seen"
# alerts - the rules that cannot be evaluated, and the names of the alerts
alerts() {
	python3 -c '
import json, sys, urllib.request
with urllib.request.urlopen(f"http://{sys.argv[1]}/api/v1/rules", timeout=10) as answer:
    rules = [rule for group in json.load(answer)["data"]["groups"] for rule in group["rules"]]
for rule in rules:
    if rule["health"] != "ok":
        print("not evaluated:", rule["name"], rule.get("lastError"))
print(*sorted(rule["name"] for rule in rules if rule["alerts"]))' "$address" >raised
}
raised() { alerts && grep -qx "AshlarArrayDegraded AshlarMemberFailed" raised; }
until_done 30 "Prometheus evaluates all rules, and raises the alerts of a failed member and no others" raised
echo "Prometheus: alerts $(cat raised)"
kill "$scraper"
wait "$scraper" || fail "Prometheus did not stop cleanly"
scraper=''
kill $server
wait $server || fail "the daemon did not stop cleanly"
server=''

# The dashboard's queries are checked as the expressions of rules, with values for its variables.
python3 "$here/queries.py" "$root/docs/grafana/ashlar.json" >queries.yaml
"$promtool" check rules queries.yaml >faults 2>&1 || fail "queries.yaml: $(cat faults)"
echo "queries.yaml: $(sed -n 's/.*SUCCESS: //p' faults)"
