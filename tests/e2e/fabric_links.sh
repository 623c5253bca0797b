#!/usr/bin/env bash
# Two fabrics with two parallel links between them: flows spread over both, and go by what is left when a link goes down by command, loses its
# carrier or vanishes. A port that is a tap. Nobody gets a port twice.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/fabric.bash
source scripts/fabric.bash
require_root ethtool jq ss timeout

near() { ip netns exec "${ns_of[fabric]}" "$@"; }
far() { ip netns exec "${ns_of[far]}" "$@"; }
# tell 1|2 COMMAND...: to that fabric. frames 1|2 PORT: what it has sent by that port.
tell() {
  local number=$1
  shift
  "$bin/ferroce" fabric --control "$work/$number.sock" "$@" || fail "fabric $number: $*"
}
frames() { tell "$1" --json stats | jq ".ports[] | select(.name == \"$2\") | .tx_frames"; }
more_frames() { (($(frames "$1" "$2") > $3)); }
# goes_by NUMBER PORT OTHER: frames leave by this port, and none by the other.
goes_by() {
  local before
  # What was on its way has gone.
  sleep 0.2
  before=$(frames "$1" "$3")
  until_true 10 "fabric $1 sends by $2" more_frames "$1" "$2" "$(($(frames "$1" "$2") + 200))"
  [[ $(frames "$1" "$3") == "$before" ]] || fail "fabric $1 sends by $3, too"
}
spreads() {
  local port
  for port in net_af_packet1 net_af_packet2; do
    until_true 10 "fabric $1 sends by $port" more_frames "$1" $port "$(($(frames "$1" $port) + 200))"
  done
}
said() { grep -q "$2" "$work/fabric$1.log"; }

join_by_fabric 4500 a b
# Host b's fabric has a namespace of its own.
ns_of[far]=frc-g-$$
ip netns add "${ns_of[far]}"
ip -n "${ns_of[fabric]}" link set dev b netns "${ns_of[far]}"
for link in one two; do
  ip link add "$link" netns "${ns_of[fabric]}" mtu 4500 type veth peer name "$link" netns "${ns_of[far]}" mtu 4500
done
for link in a one two; do
  near sysctl -qw "net.ipv6.conf.$link.disable_ipv6=1"
  ip -n "${ns_of[fabric]}" link set dev "$link" up
done
for link in b one two; do
  far sysctl -qw "net.ipv6.conf.$link.disable_ipv6=1"
  ip -n "${ns_of[far]}" link set dev "$link" up
done
keys=mtu=4500,rate=1Gbps,delay=20us
parallel=(--port "net_af_packet1,iface=one,$keys,group=between" --port "net_af_packet2,iface=two,$keys,group=between" --switch frames=2048)
start fabric1 ip netns exec "${ns_of[fabric]}" "$bin/ferroce" fabric --memory no-huge --control "$work/1.sock" --port "net_af_packet0,iface=a,$keys" "${parallel[@]}"
start fabric2 ip netns exec "${ns_of[far]}" "$bin/ferroce" fabric --memory no-huge --control "$work/2.sock" --port "net_af_packet0,iface=b,$keys" "${parallel[@]}" \
  --port net_tap0,iface=tap0,mtu=1500
for number in 1 2; do
  until_true 20 "fabric $number is up" said "$number" 'ports are up'
done
for host in a b; do
  start_daemon "$host" --vdev net_af_packet0,iface=eth0
done

say "== a port that is taken"
status=0
near timeout 20 "$bin/ferroce" fabric --memory no-huge --port net_af_packet0,iface=a --port net_ring0 >"$work/twice" 2>&1 || status=$?
{ ((status == 1)) && grep -q 'a is a port of another fabric' "$work/twice"; } || fail "a fabric took a port twice: $status, $(cat "$work/twice")"
status=0
"$bin/ferroce" fabric --control "$work/1.sock" down nothing 2>"$work/twice" || status=$?
{ ((status == 2)) && grep -q 'no port is "nothing": ports are net_af_packet0, ' "$work/twice"; } || fail "a port that is not there: $(cat "$work/twice")"

say "== flows on both links"
start server ip netns exec "${ns_of[b]}" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/b.sock" -q 8 -s 16K -m 4096 -D 40 --no-floor --rate 30Mbps
until_true 10 "the server listens" ip netns exec "${ns_of[b]}" sh -c 'ss -Hltn | grep -q .'
start client ip netns exec "${ns_of[a]}" timeout 60 "$bin/ferroce-perf" write_bw --socket "$work/a.sock" -q 8 -s 16K -m 4096 -D 40 --no-floor --rate 30Mbps 10.99.0.2
spreads 1
spreads 2

say "== one link down, by command"
tell 1 down one
tell 2 down one
goes_by 1 net_af_packet2 net_af_packet1
goes_by 2 net_af_packet2 net_af_packet1
[[ $(tell 1 --json stats | jq -c '.ports[1] | [.is_up, .flaps]') == '[false,1]' ]] || fail "fabric 1 does not show that its link is down"
tell 1 up net_af_packet1
tell 2 up 1
spreads 1

say "== a cable that is pulled, and one that is gone"
ip -n "${ns_of[fabric]}" link set dev one down
for number in 1 2; do
  until_true 5 "fabric $number notices" said "$number" 'one of net_af_packet1 is down, and so is its link'
  goes_by "$number" net_af_packet2 net_af_packet1
done
ip -n "${ns_of[fabric]}" link set dev one up
for number in 1 2; do
  until_true 5 "fabric $number notices" said "$number" 'one of net_af_packet1 is up again'
  spreads "$number"
done
ip -n "${ns_of[fabric]}" link del one
for number in 1 2; do
  until_true 5 "fabric $number notices" said "$number" 'one of net_af_packet1 is gone: its link stays down'
  goes_by "$number" net_af_packet2 net_af_packet1
done
kill -0 "${pid_of[client]}" || fail "the client has ended: $(tail -n 3 "$work/client.log")"
kill "${pid_of[client]}" "${pid_of[server]}"

say "== a tap"
ip -n "${ns_of[far]}" link set dev tap0 up
ip -n "${ns_of[far]}" addr add 10.99.0.3/24 dev tap0
far ethtool -K tap0 tx off >/dev/null 2>&1 || true
ns_of[c]=${ns_of[far]}
start_daemon c --vdev net_af_packet0,iface=tap0
start pingpong ip netns exec "${ns_of[far]}" timeout 20 "$bin/ferroce" --socket "$work/c.sock" pingpong -c -n 100 -m 1024
until_true 5 "the server of pingpong listens" far sh -c 'ss -Hltn | grep -q :18515'
ip netns exec "${ns_of[a]}" timeout 20 "$bin/ferroce" --socket "$work/a.sock" pingpong -c -n 100 -m 1024 10.99.0.3 >"$work/client.log" 2>&1 ||
  fail "pingpong with a host behind a tap: $(tail -n 3 "$work/client.log")"
wait "${pid_of[pingpong]}" || fail "the server of pingpong"
(($(frames 2 net_tap0) > 100)) || fail "nothing left by the tap"
for number in 1 2; do
  [[ $(tell "$number" --json stats | jq .balance.is_even) == true ]] || fail "frames of fabric $number do not add up"
  stop "fabric$number"
done
[[ ! -e $work/1.sock ]] || fail "the socket of fabric 1 is left"
for host in a b c; do
  stop "ferroced-$host"
done
# It is that of the second fabric, which is removed once.
unset 'ns_of[c]'
