#!/bin/sh
# A broker with ledgers, messages to a client that is away, kill -9 of the storage node meanwhile; export, compaction,
# the audit's proof; then the compacted runs in an empty node, and the messages: sh audit_and_restore.sh [FOLDER]
# Needs stratamq with its jobs extra, Java 17, and mosquitto_pub and mosquitto_sub as clients. About a minute.
set -eu
work=${1:-$(mktemp -d)}
mkdir -p "$work"
messages=2000

up() {
    stratamq up --data "$work/data" --tls-port 0 --plain-port 0 "$@" >"$work/up.log" 2>&1 &
    broker=$!
    trap 'kill -INT $broker 2>/dev/null || true' EXIT
    until grep -q "ready after" "$work/up.log"; do kill -0 $broker; sleep 0.2; done
    port=$(python3 -c "import json; print(json.load(open('$work/data/up.json'))['listeners']['edge-0']['plain'])")
}

up --set "edge.ledger=$work/ledgers" --set "storage.ledger=$work/ledgers"
mosquitto_sub -p "$port" -i away -c -q 2 -t 'work/#' -E                 # subscribes, and is away
seq $messages | mosquitto_pub -p "$port" -i sender -q 2 -t work/1 -l &
sender=$!
kill -9 "$(python3 -c "import json; print(json.load(open('$work/data/up.json'))['nodes']['storage-0']['pid'])")"
wait $sender                                                            # every PUBREC and PUBCOMP came
mosquitto_pub -p "$port" -q 1 -r -t kept/1 -m 'the last value'

stratamq store export --data "$work/data" --output "$work/data/exports/runs"
kill -INT $broker && wait $broker || true
stratamq jobs compact --input "$work/data/exports/runs" --output "$work/compacted" --all
stratamq jobs audit --input "$work/compacted" --ledger "$work/ledgers" --output "$work/report"

mv "$work/data/storage-0" "$work/storage-0.before"
stratamq store import --input "$work/compacted" --store "$work/data/storage-0/store" --node storage-0
up
mosquitto_sub -p "$port" -i away -c -q 2 -t 'work/#' -C $messages -W 60 >"$work/received"
test "$(sort -n "$work/received" | tr '\n' ' ')" = "$(seq $messages | tr '\n' ' ')"
test "$(mosquitto_sub -p "$port" -t 'kept/#' -C 1 -W 60)" = 'the last value'
echo "all $messages messages, each once, and the retained one are there again; $work/report/report.html"
