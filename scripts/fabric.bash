# Hosts on one software switch, for scripts to source in place of netns.bash: a namespace for each host and one for the fabric.
# shellcheck shell=bash

# shellcheck source=scripts/netns.bash
source scripts/netns.bash

# join_by_fabric MTU HOST...: each host has eth0, 10.99.0.1 and so on, whose other end is a port of the fabric, named as the host.
join_by_fabric() {
  local mtu=$1 host number=0
  shift
  ns_of["fabric"]=frc-f-$$
  ip netns add "${ns_of[fabric]}"
  for host in "$@"; do
    number=$((number + 1))
    ns_of["$host"]=frc-$host-$$
    ip netns add "${ns_of[$host]}"
    ip link add eth0 netns "${ns_of[$host]}" mtu "$mtu" type veth peer name "$host" netns "${ns_of[fabric]}" mtu "$mtu"
    ip netns exec "${ns_of[$host]}" sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
    ip netns exec "${ns_of[fabric]}" sysctl -qw "net.ipv6.conf.$host.disable_ipv6=1"
    # A veth leaves checksums and segmentation to hardware that is not there: the fabric would hand on what the kernel left undone.
    ip netns exec "${ns_of[$host]}" ethtool -K eth0 tx off tso off gso off >/dev/null
    ip -n "${ns_of[$host]}" link set lo up
    ip -n "${ns_of[$host]}" link set eth0 up
    ip -n "${ns_of[fabric]}" link set dev "$host" up
    ip -n "${ns_of[$host]}" addr add "10.99.0.$number/24" dev eth0
  done
}

# fabric_ports KEYS HOST...: --port arguments for the hosts, in $ports; KEYS of each link. KEYS of one host alone: ${extra[HOST]}.
declare -A extra
fabric_ports() {
  local keys=$1 host number=0
  shift
  ports=()
  for host in "$@"; do
    ports+=(--port "net_af_packet$number,iface=$host,mtu=4500,$keys${extra[$host]:+,${extra[$host]}}")
    number=$((number + 1))
  done
}

# start_fabric ARGS...: its ports are up when this returns.
start_fabric() {
  start fabric ip netns exec "${ns_of[fabric]}" "$bin/ferroce" fabric --json --memory no-huge "$@"
  until_true 10 "the fabric is up" grep -q 'ports are up' "$work/fabric.log"
}

# stop_fabric: its last statistics are in $statistics (JSON).
stop_fabric() {
  stop fabric
  statistics=$(grep '^{' "$work/fabric.log" | tail -n 1)
  [[ -n $statistics ]] || fail "the fabric left no statistics"
  [[ $(counted .balance.is_even) == true ]] || fail "the fabric's frames do not add up: $(counted .balance)"
}

# counted FILTER: a part of $statistics, by jq.
counted() { jq -c "$1" <<<"$statistics"; }
