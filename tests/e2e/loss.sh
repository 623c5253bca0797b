#!/usr/bin/env bash
# 1 % of the frames lost, duplicated and reordered in both directions: the data is right, in bounded time, going back N and repeating
# selectively; and two decoders can read the selective acknowledgements.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root timeout tcpdump tshark
join_by_veth 9600
head -c $((16 << 20)) /dev/urandom >"$work/file"
for policy in gbn hybrid; do
  for host in a b; do
    cat >"$work/$host.toml" <<TOML
[[port]]
vdev = "net_af_packet0,iface=eth0"
[port.fault]
drop = 0.01
duplicate = 0.01
reorder = 0.01
seed = $([[ $host == a ]] && echo 1 || echo 2)
[recovery]
unasked = "$policy"
TOML
    start_daemon "$host" --config "$work/$host.toml"
  done
  # Opcode 0xc0 in the first byte of the BTH.
  start tcpdump ip netns exec "$ns_a" tcpdump -Z root -U --immediate-mode -i eth0 -s 0 -c 1000 -w "$work/$policy.pcap" 'udp port 4791 and udp[8] = 0xc0'
  until_true 5 "tcpdump listens" test -s "$work/$policy.pcap"
  start serve ip netns exec "$ns_b" "$bin/examples/file_copy" --socket "$work/b.sock" serve --once
  until_true 5 "the server offers memory" grep -q offering "$work/serve.log"
  on_a timeout 120 "$bin/examples/file_copy" --socket "$work/a.sock" send 10.99.0.2 "$work/file" || fail "the file did not arrive"
  retransmitted=$("$bin/ferroce" --socket "$work/a.sock" --json stat | grep -o '"retransmitted_packets": *[0-9]*' | grep -o '[0-9]*$')
  ((retransmitted > 0)) || fail "nothing was sent again: there was no loss"
  say "$policy: $retransmitted packets were sent again"
  if [[ $policy == hybrid ]]; then
    # More than the header of the file: what the kernel still holds back when tcpdump ends is gone.
    # shellcheck disable=SC2016 # The inner shell expands it.
    until_true 5 "a selective acknowledgement is captured" bash -c '(($(stat -c %s "$0") > 24))' "$work/$policy.pcap"
  fi
  kill "${pid_of[tcpdump]}" 2>/dev/null || true
  wait "${pid_of[tcpdump]}" 2>/dev/null || true
  stop ferroced-a
  stop ferroced-b
done
"$bin/ferroce" pcap "$work/gbn.pcap" | grep -q SACKETH && fail "a selective acknowledgement went to a peer that goes back N"
named=$("$bin/ferroce" pcap "$work/hybrid.pcap" | grep -c 'SACKETH missing 0x[0-9a-f]* has +') || fail "no selective acknowledgement came"
undecoded=$(tshark -r "$work/hybrid.pcap" -T fields -e infiniband.bth.opcode -e _ws.malformed 2>/dev/null | awk -F '\t' '$1 != 192 || $2 != ""' | wc -l)
((undecoded == 0)) || fail "tshark does not take $undecoded selective acknowledgements for packets of opcode 192"
say "$named selective acknowledgements, none malformed to tshark"
