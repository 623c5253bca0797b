#!/usr/bin/env bash
# Connections by address: `ferroce rping` and the example cm_echo between two daemons, refusals, disconnects, and tshark's verdict.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root tcpdump tshark
start_daemons af_packet
start tcpdump ip netns exec "$ns_b" tcpdump -Z root -U -i eth0 -s 0 -c 20000 -w "$work/rping.pcap" udp port 4791
until_true 5 "tcpdump listens" test -s "$work/rping.pcap"

rping_a() { on_a timeout 30 "$bin/ferroce" --socket "$work/a.sock" rping "$@"; }
serve() {
  local name=$1
  shift
  start "$name" ip netns exec "$ns_b" "$bin/ferroce" --socket "$work/b.sock" rping -s -d "$@"
  until_true 5 "the server listens" grep -q listening "$work/$name.log"
}

say "== nobody listens"
status=0
rping_a -c -a 10.99.0.2 -C 1 2>"$work/refused.log" || status=$?
((status == 1)) || fail "a refused client ended with status $status"
grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$work/refused.log" || fail "$(cat "$work/refused.log")"

say "== one client"
serve server -v
rping_a -c -a 10.99.0.2 -C 10 -v -V >"$work/client.log" || fail "the client failed"
(($(grep -c '^ping data: rdma-ping-' "$work/client.log") == 10)) || fail "not ten pings came back"
wait "${pid_of[server]}" || fail "the server failed"
(($(grep -c '^server ping data: rdma-ping-' "$work/server.log") == 10)) || fail "not ten pings were seen"

say "== clients of every size, several at a time, also with QPs of their own"
serve persistent -P
clients=()
for size in 26 64 4096 65535; do
  rping_a -c -a 10.99.0.2 -C 20 -V -S "$size" &
  clients+=($!)
done
rping_a -c -a 10.99.0.2 -C 20 -V -q || fail "the client with a QP of its own"
for client in "${clients[@]}"; do
  wait "$client" || fail "a client of the persistent server"
done
serve own -q -p 7175
rping_a -c -a 10.99.0.2 -p 7175 -C 5 -V || fail "the server with a QP of its own"

say "== a server that is killed"
start endless ip netns exec "$ns_a" "$bin/ferroce" --socket "$work/a.sock" rping -c -a 10.99.0.2 -v
until_true 5 "pings" grep -q 'rdma-ping-50' "$work/endless.log"
kill -9 "${pid_of[persistent]}"
ended() { ! kill -0 "${pid_of[endless]}"; }
until_true 10 "its client ends" ended
grep -q 'client DISCONNECT EVENT' "$work/endless.log" || fail "the client was not told"

say "== the example"
start echo ip netns exec "$ns_b" "$bin/examples/cm_echo" --socket "$work/b.sock" serve --address 10.99.0.2 --once
until_true 5 "the server listens" grep -q listening "$work/echo.log"
on_a timeout 30 "$bin/examples/cm_echo" --socket "$work/a.sock" say 10.99.0.2 "hello there" || fail "cm_echo"
wait "${pid_of[echo]}" || fail "the server of cm_echo"

say "== what tcpdump saw"
kill "${pid_of[tcpdump]}" 2>/dev/null || true
wait "${pid_of[tcpdump]}" 2>/dev/null || true
"$bin/ferroce" pcap "$work/rping.pcap" | tail -n 1
malformed=$(tshark -r "$work/rping.pcap" -Y _ws.malformed 2>/dev/null | wc -l)
((malformed == 0)) || fail "tshark calls $malformed packets malformed"
stop ferroced-a
stop ferroced-b
