#!/usr/bin/env bash
# An interface goes down and up under the daemons, from either end and in the middle of traffic: connections wait, and go on.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root ss timeout
start_daemons af_packet

start server ip netns exec "$ns_b" "$bin/examples/pingpong" --socket "$work/b.sock" -n 100000000
until_true 5 "the server listens" ip netns exec "$ns_b" sh -c 'ss -Hltn | grep -q .'
start client ip netns exec "$ns_a" "$bin/examples/pingpong" --socket "$work/a.sock" 10.99.0.2 -n 100000000

received() { "$bin/ferroce" --socket "$work/a.sock" --json stat | grep -o '"rx_roce_packets": *[0-9]*' | grep -o '[0-9]*$'; }
more_than() { (($(received) > $1)); }

until_true 10 "packets flow" more_than 100
for flap in "$ns_a" "$ns_b" "$ns_a"; do
  # Not for longer than the retries last, half a second.
  ip -n "$flap" link set eth0 down
  ip -n "$flap" link set eth0 up
  before=$(received)
  until_true 20 "packets flow again" more_than "$((before + 100))"
  kill -0 "${pid_of[client]}" || fail "the client has ended"
done
say "packets flow after three flaps: $(received) received"
kill "${pid_of[client]}" "${pid_of[server]}"
stop ferroced-a
stop ferroced-b
