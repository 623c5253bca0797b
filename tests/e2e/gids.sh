#!/usr/bin/env bash
# Every kind of GID between two daemons: on taps of their own, where they answer ARP and Neighbour Discovery themselves, and
# in a VLAN of an interface that the kernel shares.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root timeout

# write_by INDEX PATTERN: RDMA WRITEs by the GID of this index, whose line in devinfo matches.
write_by() {
  local index=$1 pattern=$2
  "$bin/ferroce" --socket "$work/a.sock" devinfo | grep -q "GID\[$index\].*$pattern" || fail "GID $index is not $pattern"
  start "server-$index" ip netns exec "$ns_b" timeout 30 "$bin/ferroce-perf" write_bw --socket "$work/b.sock" --gid-index "$index"
  on_a timeout 30 "$bin/ferroce-perf" write_bw --socket "$work/a.sock" --gid-index "$index" --size 4096 --iters 500 10.99.0.2 \
    >"$work/client.log" 2>&1 || fail "GID $index: $pattern"
  say "GID $index: $pattern"
}

join_by_tap
for host in a b; do
  n=$([[ $host == a ]] && echo 1 || echo 2)
  cat >"$work/$host.toml" <<TOML
[[port]]
vdev = "net_tap0,iface=dtap0"
addresses = ["10.99.1.$n", "fd99::$n", "10.99.77.$n@77"]
roce_v1 = true
TOML
  start_daemon "$host" --config "$work/$host.toml"
done
for ns in "$ns_a" "$ns_b"; do
  ip -n "$ns" link set dtap0 master br0
  ip -n "$ns" link set dtap0 up
done
write_by 0 'RoCE v2 *(10.99.1.1)'
write_by 1 '(10.99.77.1) *vlan 77'
write_by 2 'RoCE v2 *(fd99::1)'
write_by 3 'RoCE v2 *(fe80::'
write_by 4 'RoCE v1 *(10.99.1.1)'
write_by 6 'RoCE v1 *(fd99::1)'
stop ferroced-a
stop ferroced-b

ip netns del "$ns_a"
ip netns del "$ns_b"
join_by_veth 9600
for host in a b; do
  ns=$([[ $host == a ]] && echo "$ns_a" || echo "$ns_b")
  n=$([[ $host == a ]] && echo 1 || echo 2)
  ip -n "$ns" link add link eth0 name eth0.77 type vlan id 77 2>/dev/null || {
    say "left out: this kernel has no VLAN interfaces to share"
    exit
  }
  ip -n "$ns" addr add "10.99.77.$n/24" dev eth0.77
  ip -n "$ns" link set eth0.77 up
  start_daemon "$host" --vdev net_af_packet0,iface=eth0 --address "10.99.0.$n,10.99.77.$n@77"
done
write_by 1 '(10.99.77.1) *vlan 77'
stop ferroced-a
stop ferroced-b
