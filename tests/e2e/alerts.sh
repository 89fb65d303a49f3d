#!/bin/bash
# alerts.sh - promtool, Prometheus's own checker, reads docs/prometheus/ashlar.rules.yml, and runs its unit tests, alerts.test.yml.
#
# usage: alerts.sh
# environment: PROMTOOL=FILE, default promtool, or the one that scripts/setup puts into target/tools
set -euo pipefail
here=$(dirname "$(realpath "$0")")
root=$(dirname "$(dirname "$here")")
promtool=${PROMTOOL:-$(command -v promtool || echo "$root/target/tools/promtool")}
[ -x "$promtool" ] || {
	echo "alerts.sh: there is no $promtool: scripts/setup test, or set PROMTOOL" >&2
	exit 1
}
"$promtool" check rules "$root/docs/prometheus/ashlar.rules.yml"
"$promtool" test rules "$here/alerts.test.yml"
