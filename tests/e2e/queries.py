#!/usr/bin/env python3
"""queries.py - the queries of a dashboard, with values for its variables

usage: queries.py DASHBOARD             prints them as rules, for promtool
       queries.py DASHBOARD ADDRESS     asks Prometheus at ADDRESS; fails if one has no answer, or only answers that are no numbers
"""
import json
import math
import sys
import urllib.parse
import urllib.request


def queries(node):
    """All queries in a part of the dashboard."""
    if isinstance(node, dict):
        if "expr" in node:
            yield node["expr"]
        for value in node.values():
            yield from queries(value)
    elif isinstance(node, list):
        for value in node:
            yield from queries(value)


def results(address, query):
    """What Prometheus answers."""
    text = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"http://{address}/api/v1/query?{text}", timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def main():
    with open(sys.argv[1]) as file:
        dashboard = json.load(file)
    # Prometheus has run for seconds only.
    interval = "5m" if len(sys.argv) == 2 else "10s"
    texts = [
        query.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$device", ".*")
        for query in queries(dashboard)
    ]
    if len(sys.argv) == 2:
        rules = [{"record": f"query:{n}", "expr": text} for n, text in enumerate(texts)]
        print(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
        return
    values = 0
    missing = []
    for text in texts:
        numbers = [float(result["value"][1]) for result in results(sys.argv[2], text)]
        # Of a device without I/O of a kind there is no percentile, of others there is one.
        numbers = [number for number in numbers if not math.isnan(number)]
        values += len(numbers)
        if not numbers:
            missing.append(text)
    if missing:
        sys.exit("queries without an answer:\n" + "\n".join(missing))
    print(f"Prometheus: {len(texts)} queries of the dashboard, {values} values")


main()
