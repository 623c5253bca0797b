#!/usr/bin/env bash
# 1 % of the frames lost, duplicated and reordered in both directions: the data is right, in bounded time.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root timeout
join_by_veth 9600
for host in a b; do
  cat >"$work/$host.toml" <<TOML
[[port]]
vdev = "net_af_packet0,iface=eth0"
[port.fault]
drop = 0.01
duplicate = 0.01
reorder = 0.01
seed = $([[ $host == a ]] && echo 1 || echo 2)
TOML
  start_daemon "$host" --config "$work/$host.toml"
done
head -c $((16 << 20)) /dev/urandom >"$work/file"
start serve ip netns exec "$ns_b" "$bin/examples/file_copy" --socket "$work/b.sock" serve --once
until_true 5 "the server offers memory" grep -q offering "$work/serve.log"
on_a timeout 120 "$bin/examples/file_copy" --socket "$work/a.sock" send 10.99.0.2 "$work/file" || fail "the file did not arrive"
retransmitted=$("$bin/ferroce" --socket "$work/a.sock" --json stat | grep -o '"retransmitted_packets": *[0-9]*' | grep -o '[0-9]*$')
((retransmitted > 0)) || fail "nothing was sent again: there was no loss"
say "$retransmitted packets were sent again"
stop ferroced-a
stop ferroced-b
