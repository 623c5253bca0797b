#!/usr/bin/env bash
# Two hosts on the software switch: pingpong and rping through it, then with loss; every frame is accounted for.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/fabric.bash
source scripts/fabric.bash
require_root ethtool jq setpriv timeout
"$bin/ferroce" fabric --port net_ring0 --port net_ring1,rate=2Gbps --check-config | grep -q 'rate = "2Gbps"' || fail "--check-config"
status=0
"$bin/ferroce" fabric --port net_ring0,rate=fast --port net_ring1 2>"$work/refusal" || status=$?
{ [[ $status == 2 ]] && grep -q '1Mbps to 1600Gbps' "$work/refusal"; } || fail "a rate of no sense is not refused: $status"

join_by_fabric 4500 a b
as_nobody() { ip netns exec "${ns_of[fabric]}" setpriv --reuid 65534 --regid 65534 --clear-groups "$bin/ferroce-fabric" "$@"; }
if as_nobody --version >/dev/null 2>&1; then
  status=0
  as_nobody --memory no-huge --port net_af_packet0,iface=a --port net_af_packet1,iface=b >"$work/refusal" 2>&1 || status=$?
  { ((status == 1)) && grep -q 'needs CAP_NET_RAW' "$work/refusal"; } || fail "a user without rights: status $status, $(cat "$work/refusal")"
fi
fabric_ports rate=400Mbps,delay=20us a b
start_fabric "${ports[@]}"
for host in a b; do
  start_daemon "$host" --vdev net_af_packet0,iface=eth0
done

pingpong() {
  start pingpong ip netns exec "${ns_of[b]}" timeout 40 "$bin/ferroce" --socket "$work/b.sock" pingpong -c -n "$1" -s "$2" -m 4096
  until_true 5 "the server of pingpong listens" ip netns exec "${ns_of[b]}" sh -c 'ss -Hltn | grep -q :18515'
  ip netns exec "${ns_of[a]}" timeout 40 "$bin/ferroce" --socket "$work/a.sock" pingpong -c -n "$1" -s "$2" -m 4096 10.99.0.2 >"$work/client.log" ||
    fail "pingpong of $2 bytes"
  wait "${pid_of[pingpong]}" || fail "the server of pingpong"
}

say "== pingpong"
pingpong 200 4096
kill -USR1 "${pid_of[fabric]}"
until_true 5 "SIGUSR1 has the fabric print its statistics" grep -q '^{' "$work/fabric.log"
stop_fabric
[[ $(counted '.balance.lost + .balance.dropped') == 0 ]] || fail "frames were lost: $(counted .)"
(($(counted '.ports[1].tx_frames') >= 200 && $(counted '.switch.stations') == 2)) || fail "$(counted .)"

say "== 2 % of the packets lost on the way to b, half as many twice or late, and the link down for 10 ms twice a second"
extra[b]=loss=2%,duplicate=1%,reorder=1%,reorder_delay=200us,corrupt=0.5%,flap_every=500ms,flap_for=10ms
fabric_ports rate=400Mbps,delay=20us a b
start_fabric "${ports[@]}"
pingpong 40 65536
stop_fabric
(($(counted .balance.lost) > 0 && $(counted '.ports[1].duplicated') > 0)) || fail "nothing went wrong on the link: $(counted .)"
(($(counted '.ports[1].flaps') > 0)) || fail "the link was never down: $(counted .ports)"
# For want of a way: b is not known, and nobody else is there, while its link is down.
[[ $(counted '.balance.dropped - .switch.dropped_unknown - .switch.dropped_down') == 0 ]] || fail "the switch dropped frames: $(counted .switch)"
say "$(counted .balance), $(counted '.ports[1].flaps') flaps"
stop ferroced-a
stop ferroced-b
