#!/usr/bin/env bash
# What an operator sets while traffic runs: `ferroce cc`, `ferroce qos` and `ferroce qp set` take effect at once, refuse what cannot be with
# what is legal, and a restart brings back what the configuration file says.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root jq ss setpriv timeout

ferroce_a() { "$bin/ferroce" --socket "$work/a.sock" "$@"; }
ferroce_b() { "$bin/ferroce" --socket "$work/b.sock" "$@"; }
# set_a ARGS..., set_b ARGS...: what changes something, and has to succeed.
set_a() { ferroce_a "$@" >/dev/null || fail "'$*' on host a"; }
set_b() { ferroce_b "$@" >/dev/null || fail "'$*' on host b"; }

# of_qp QPN FILTER, of_cc FILTER ARGS..., of_priority HOST PRIORITY COUNTER: one value each.
of_qp() { ferroce_a --json qp "$1" | jq -r "$2"; }
of_cc() {
  local filter=$1
  shift
  ferroce_a --json cc show "$@" | jq -r ".congestion[0] | $filter"
}
of_priority() { "ferroce_$1" --json qos show | jq ".priorities[$2].counters.$3"; }

# is VALUE EXPECTED WHAT
is() { [[ $1 == "$2" ]] || fail "$3 is '$1' and not '$2'"; }

# refused SENTENCE ARGS...: exit status 2, nothing on standard output, and a sentence that has this in it.
refused() {
  local sentence=$1 status=0
  shift
  ferroce_a "$@" >"$work/out" 2>"$work/said" || status=$?
  ((status == 2)) || fail "'$*' ended with status $status: $(cat "$work/said")"
  [[ ! -s $work/out ]] || fail "'$*' was refused and printed something"
  grep -qF -- "$sentence" "$work/said" || fail "'$*' is refused without '$sentence': $(cat "$work/said")"
}

# goodput QPN: what it has sent in half a second, Mbit/s, in $mbps.
goodput() {
  local sent since
  sent=$(of_qp "$1" .figures.acked_packets) since=$(date +%s%N)
  sleep 0.5
  mbps=$((($(of_qp "$1" .figures.acked_packets) - sent) * 4096 * 8000 / ($(date +%s%N) - since)))
}
goes_on() {
  local sent
  sent=$(of_qp "$1" .figures.acked_packets)
  until_true 10 "QP $1 goes on" more_acked "$1" "$((sent + 100))"
}
more_acked() { (($(of_qp "$1" .figures.acked_packets) > $2)); }
counts_on() { (($(of_priority "$1" "$2" "$3") > $4)); }

join_by_veth 9600
for host in a b; do
  cat >"$work/$host.toml" <<TOML
socket_mode = "0666"
[[port]]
vdev = "net_af_packet0,iface=eth0"
[port.fault]
drop = 0.002
[congestion]
algorithm = "dcqcn-paper"
rai = "20Mbps"
[qos]
dscp_to_priority = { 0 = 2 }
[recovery]
unasked = "gbn"
TOML
  start_daemon "$host" --config "$work/$host.toml"
done
start server ip netns exec "$ns_b" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/b.sock" -q 2 -s 64K -m 4096 -D 50 --no-floor
until_true 10 "the server listens" on_b sh -c 'ss -Hltn | grep -q .'
start client ip netns exec "$ns_a" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/a.sock" -q 2 -s 64K -m 4096 -D 50 --no-floor 10.99.0.2
connected() { (($(ferroce_a --json qp | jq '[.qps[] | select(.state == "RTS")] | length') == 2)); }
until_true 10 "the QPs are connected" connected
mapfile -t qps < <(ferroce_a --json qp | jq '.qps[].qpn')
own=${qps[0]} other=${qps[1]}
goes_on "$own"

say "== congestion control of one QP"
is "$(of_cc .algorithm)" dcqcn-paper "the port's algorithm"
is "$(of_cc .params.rai.value)" 20Mbps "the port's rai"
is "$(of_cc .is_own --qp "$own")" false "whether the QP has settings of its own"
ferroce_a cc set rate_limit=20Mbps --qp "$own" | grep -q '^QP .*: dcqcn-paper, its own settings' || fail "cc set --qp says nothing of the QP"
goodput "$own"
# Half a second of 20 Mbit/s, and a burst of 32 KiB.
((mbps <= 22)) || fail "a QP limited to 20 Mbit/s has $mbps"
limited=$mbps
goodput "$other"
((mbps > 40)) || fail "the other QP has $mbps Mbit/s"
say "limited to 20 Mbit/s: $limited; the other QP: $mbps"
is "$(of_cc .figures.cc_rate_limited --qp "$own")" 1 "whether the QP is limited"
set_a cc set timely t_low=10ms t_high=100ms --qp "$own"
is "$(of_cc '.algorithm + " " + .params.rate_limit.value + " " + .params.t_low.value' --qp "$own")" "timely 20Mbps 10ms" "what was set"
is "$(of_cc .algorithm --qp "$other")" dcqcn-paper "the other QP's algorithm"
goes_on "$own"

say "== and of the port"
set_a cc set swift base_target=50ms rate_limit=300mbit --port 1
is "$(of_cc '.algorithm + " " + .params.base_target.value' --qp "$other")" "swift 50ms" "what a QP has of its port"
is "$(of_cc '.figures | has("cc_cwnd_thousandths")' --qp "$other")" true "whether Swift's window is shown"
is "$(of_cc .algorithm --qp "$own")" timely "what a QP has of its own"
goes_on "$other"
set_a cc reset --qp "$own"
is "$(of_cc '.algorithm + " " + .params.rate_limit.value' --qp "$own")" "swift 300Mbps" "what the QP has after its reset"
faster() { goodput "$own" && ((mbps > 40)); }
until_true 10 "the QP is faster without its limit" faster
say "without its limit: $mbps Mbit/s"
set_a cc reset
is "$(of_cc '.algorithm + " " + .params.rai.value')" "dcqcn-paper 20Mbps" "what the port has after its reset"

say "== what cannot be"
refused 'dcqcn-paper has no parameter "ray": it has rate_limit' cc set ray=5Mbps
refused 'there is no congestion control "cubic": it is one of none' cc set cubic --port 1
refused 'rate_limit is a parameter: rate_limit=VALUE sets it, 1Mbps to 400Gbps' cc set rate_limit
refused 'rate_limit = "3us" is no value in bits/s: 1Mbps to 400Gbps' cc set rate_limit=3us --qp "$own"
refused 'rate_limit = 500Gbps is out of range: 1Mbps to 400Gbps' cc set rate_limit=500Gbps --qp "$own"
refused 'base_target is a parameter of swift, not of dcqcn-paper' cc set base_target=1ms
refused 'QP 0x0000ff does not exist' cc set rai=5Mbps --qp 255
refused '0 to 0xffffff' cc show --qp 0x1000000
refused 'ports are 1 to 1' cc show --port 2
refused 'ports are 1 to 1' qos set --port 2 --trust pcp
refused 'priorities of 0 to 7' qos set --dscp2prio set,26,8
refused 'DSCPs of 0 to 63' qos set --dscp2prio set,64,1
refused 'traffic classes from 0 to 7' qos set --prio_tc 0,1,2,3,4,5,6,8
refused '1 to 100 are possible, and 0 if it is strict' qos set --tcbw 0,50,50,0,0,0,0,0
refused 'eight times 0 or 1' qos set --pfc 0,0,1
refused "\`dscp\` and \`pcp\` are possible" qos set --trust mac
refused 'keys are pfc_xoff_frames' qos set xoff=5
refused '1 to 65535 are possible' qos set pfc_xoff_frames=0
refused 'fewer than pfc_xoff_frames, which is 10' qos set pfc_xoff_frames=10
refused 'gbn, sr and hybrid are possible' qp set "$own" --recovery tcp
refused 'QP 0x0000ff does not exist' qp set 255 --recovery sr
status=0
"$bin/ferroce" --socket "$work/c.sock" cc show 2>"$work/said" || status=$?
{ ((status == 2)) && grep -q 'no daemon answers at .*c.sock' "$work/said"; } || fail "no daemon: status $status, $(cat "$work/said")"
# Another user may look, and not set: exit status 1.
chmod 711 "$work"
nobody() { setpriv --reuid 65534 --regid 65534 --clear-groups "$bin/ferroce" --socket "$work/a.sock" "$@"; }
if setpriv --reuid 65534 --clear-groups true 2>/dev/null; then
  nobody qos show >/dev/null || fail "another user may not look"
  for args in "qos set --trust pcp" "cc set none" "cc set none --qp $own"; do
    status=0
    # shellcheck disable=SC2086
    nobody $args 2>"$work/said" || status=$?
    { ((status == 1)) && grep -q 'root' "$work/said"; } || fail "another user's '$args': status $status, $(cat "$work/said")"
  done
else
  say "left out: this user namespace has no other user"
fi
is "$(of_cc '.algorithm + " " + .params.rate_limit.value')" "dcqcn-paper 0" "what the port has after refusals"

say "== quality of service"
is "$(ferroce_a --json qos show | jq -c '[.trust, .dscp_to_priority[0], .pfc_by]')" '["dscp",2,"nobody"]' "what the file says"
# moves_to PRIORITY FROM: what is sent is counted for the one priority, and not for the other any more.
moves_to() {
  local before
  # What was built before the change has gone.
  sleep 0.2
  before=$(of_priority a "$2" tx_packets)
  until_true 5 "priority $1 has packets" counts_on a "$1" tx_packets "$(($(of_priority a "$1" tx_packets) + 100))"
  is "$(of_priority a "$2" tx_packets)" "$before" "packets of priority $2"
}
until_true 5 "priority 2 has packets" counts_on a 2 tx_packets 100
set_a qos set --dscp2prio set,0,5
moves_to 5 2
set_a qos set --trust pcp
moves_to 0 5
set_a qos set --trust dscp --prio_tc 0,0,0,0,0,1,0,0 --tsa ets,strict,ets,ets,ets,ets,ets,ets
moves_to 5 0
is "$(ferroce_a qos show --port 1 | awk '$1 == 5 { print $2, $3, $12 }')" "1 strict 0,40-47" "the line of priority 5"

say "== flow control"
# The receiver asks for a pause whenever a frame waits. A sender without flow control ignores it, one with it obeys.
set_b qos set --dscp2prio set,0,5 --pfc 0,0,0,0,0,1,0,0 pfc_xon_frames=0 pfc_xoff_frames=1 pfc_pause_quanta=2000
until_true 10 "the receiver sends pauses" counts_on b 5 tx_pause 10
until_true 5 "they are ignored" counts_on a 5 rx_pause_ignored 10
is "$(of_priority a 5 rx_pause_duration_ns)" 0 "time paused without flow control"
ferroce_a qos set --pfc 0,0,0,0,0,1,0,0 | grep -q 'flow control by engine' || fail "it is not said who does flow control"
until_true 10 "the sender is paused" counts_on a 5 rx_pause_duration_ns 0
goes_on "$own"
set_a qos set --pfc 0,0,0,0,0,0,0,0
ignored=$(of_priority a 5 rx_pause_ignored)
until_true 10 "pauses are ignored again" counts_on a 5 rx_pause_ignored "$ignored"
say "paused for $(of_priority a 5 rx_pause_duration_ns) ns by $(of_priority b 5 tx_pause) pauses"

say "== loss recovery"
of_shard() { ferroce_a --json stat | jq ".groups[\"shard 0\"].$1"; }
is "$(of_qp "$own" .recovery)" gbn "the QP's recovery"
rewinds=$(of_shard rewinds)
((rewinds > 0)) || fail "nothing was lost"
for policy in hybrid sr; do
  # Both ends, and both QPs.
  for qp in "${qps[@]}"; do
    set_b qp set "$(of_qp "$qp" .dest_qpn)" --recovery "$policy"
    ferroce_a qp set "$qp" --recovery "$policy" | grep -q "^recovery *$policy" || fail "the QP does not say that it does $policy"
  done
  repeats=$(of_shard selective_repeats)
  repeated() { (($(of_shard selective_repeats) > repeats)); }
  until_true 10 "$policy repeats selectively" repeated
  goes_on "$own"
done

say "== a restart brings back the file's settings"
kill "${pid_of[client]}" "${pid_of[server]}"
set_a cc set none rate_limit=1Gbps
stop ferroced-a
start_daemon a --config "$work/a.toml"
is "$(of_cc '.algorithm + " " + .params.rai.value + " " + .params.rate_limit.value')" "dcqcn-paper 20Mbps 0" "congestion control"
is "$(ferroce_a --json qos show | jq -c '[.trust, .dscp_to_priority[0], .priority_to_class[5], .tsa[1], .pfc_by]')" '["dscp",2,5,"ets","nobody"]' "quality of service"
stop ferroced-a
stop ferroced-b
