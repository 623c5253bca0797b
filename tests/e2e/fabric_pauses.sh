#!/usr/bin/env bash
# Priority flow control between engines and a fabric: the fabric's pauses hold a sender's engine, and nothing is dropped; without them it is;
# the receiver's pauses hold the fabric's port. Priorities are those of the DSCP table.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/fabric.bash
source scripts/fabric.bash
require_root ethtool jq ss timeout

# of_priority HOST PRIORITY COUNTER, of_fabric FILTER: as it is now.
of_priority() { "$bin/ferroce" --socket "$work/$1.sock" --json qos show | jq ".priorities[$2].counters.$3"; }
of_fabric() { "$bin/ferroce" fabric --control "$work/fabric.sock" --json stats | jq "$1"; }
counts_on() { (($(of_priority "$1" "$2" "$3") > $4)); }
fabric_counts_on() { (($(of_fabric "$1") > $2)); }
qos() {
  local host=$1
  shift
  "$bin/ferroce" --socket "$work/$host.sock" qos set "$@" >/dev/null || fail "qos set $* on host $host"
}

# run RATE-OF-B: WRITEs of 32 QPs from a to b through a fabric of its own, as fast as they go, in the background.
run() {
  extra[b]=rate=$1
  fabric_ports rate=2Gbps,delay=20us a b
  # Several of the kernel's rings of a port come after a pause was asked for, since programs take turns on the cores; the QPs' windows, 32 MiB, do not.
  start_fabric "${ports[@]}" --control "$work/fabric.sock" --switch buffer=32MiB,queue_limit=64KiB,pfc=5,headroom=12MiB,dscp_to_priority=0:5
  start server ip netns exec "${ns_of[b]}" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/b.sock" -q 32 -s 64K -m 4096 -D 40 --no-floor
  until_true 10 "the server listens" ip netns exec "${ns_of[b]}" sh -c 'ss -Hltn | grep -q .'
  start client ip netns exec "${ns_of[a]}" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/a.sock" -q 32 -s 64K -m 4096 -D 40 --no-floor --cc none 10.99.0.2
  until_true 10 "frames flow" fabric_counts_on '.ports[1].tx_frames' 500
}
end() {
  kill "${pid_of[client]}" "${pid_of[server]}"
  wait "${pid_of[client]}" "${pid_of[server]}" 2>/dev/null || true
  stop_fabric
}

join_by_fabric 4500 a b
for host in a b; do
  start_daemon "$host" --vdev net_af_packet0,iface=eth0
  qos "$host" --dscp2prio set,0,5
done

say "== the fabric pauses the sender, who obeys"
qos a --pfc 0,0,0,0,0,1,0,0
run 200Mbps
until_true 10 "the sender is paused" counts_on a 5 rx_pause_transition 5
before=$(of_fabric '.ports[1].tx_frames')
until_true 10 "frames flow" fabric_counts_on '.ports[1].tx_frames' "$((before + 1000))"
say "paused $(of_priority a 5 rx_pause_transition) times, for $(($(of_priority a 5 rx_pause_duration_ns) / 1000000)) ms"
end
[[ $(counted .balance.dropped) == 0 ]] || fail "frames were dropped although the sender obeys: $(counted .switch)"
(($(counted .switch.pauses_sent) > 5)) || fail "the fabric sent no pauses: $(counted .switch)"

say "== who does not obey loses"
qos a --pfc 0,0,0,0,0,0,0,0
run 200Mbps
until_true 20 "frames are dropped" fabric_counts_on .switch.dropped_headroom 0
ignored=$(of_priority a 5 rx_pause_ignored)
((ignored > 0)) || fail "the sender was asked for no pause"
say "$(of_fabric .switch.dropped_headroom) frames dropped, $ignored pauses ignored"
end

say "== the receiver pauses the fabric"
qos b --pfc 0,0,0,0,0,1,0,0 pfc_xon_frames=0 pfc_xoff_frames=1 pfc_pause_quanta=2000
# Whose own backlog of acknowledgements is to pause nobody.
qos a --pfc 0,0,0,0,0,1,0,0 pfc_xoff_frames=65535
run 2Gbps
until_true 20 "the receiver sends pauses" counts_on b 5 tx_pause 5
until_true 5 "the fabric takes them" fabric_counts_on .switch.pauses_received 5
until_true 5 "its port waits" fabric_counts_on '.ports[1].paused_ns' 0
before=$(of_fabric '.ports[1].tx_frames')
until_true 10 "frames flow" fabric_counts_on '.ports[1].tx_frames' "$((before + 1000))"
end
say "$(counted .switch.pauses_received) pauses held the fabric's port for $(($(counted '.ports[1].paused_ns') / 1000)) us"
[[ $(counted '.ports[0].paused_ns') == 0 ]] || fail "the other port was held, too"
stop ferroced-a
stop ferroced-b
