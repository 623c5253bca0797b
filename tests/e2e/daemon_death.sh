#!/usr/bin/env bash
# A daemon is killed under its clients: they end with an error at once, and a new daemon serves new ones.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root ss
start_daemons af_packet

start server ip netns exec "$ns_b" "$bin/examples/pingpong" --socket "$work/b.sock" -n 100000000
until_true 5 "the server listens" ip netns exec "$ns_b" sh -c 'ss -Hltn | grep -q .'
start client ip netns exec "$ns_a" "$bin/examples/pingpong" --socket "$work/a.sock" 10.99.0.2 -n 100000000
sent() { "$bin/ferroce" --socket "$work/a.sock" --json stat | grep -q '"tx_roce_packets": *[1-9][0-9][0-9]'; }
until_true 10 "packets flow" sent

kill -9 "${pid_of[ferroced-a]}"
ended() { ! kill -0 "${pid_of[client]}"; }
until_true 2 "the client of the dead daemon ends" ended
status=0
wait "${pid_of[client]}" || status=$?
((status != 0)) || fail "the client ended as if all were well"
say "the client said: $(tail -n 1 "$work/client.log")"

# Its socket is free once the kernel has closed all that it had.
wait "${pid_of[ferroced-a]}" 2>/dev/null || true
start_daemon a --vdev net_af_packet0,iface=eth0
kill "${pid_of[server]}" 2>/dev/null || true
start server2 ip netns exec "$ns_b" "$bin/examples/pingpong" --socket "$work/b.sock" --port 18600 -n 100
until_true 5 "the server listens" ip netns exec "$ns_b" sh -c 'ss -Hltn | grep -q 18600'
on_a timeout 60 "$bin/examples/pingpong" --socket "$work/a.sock" --port 18600 10.99.0.2 -n 100 || fail "the new daemon does not serve"
stop ferroced-a
stop ferroced-b
