# Two hosts on one machine, for scripts to source: network namespaces joined by veth, a `ferroced` in each.
# Everything that is made here is removed again when the script ends, however it ends.
# shellcheck shell=bash

# Directory of the binaries and of their sockets and logs.
bin=${FERROCE_BIN_DIR:?set FERROCE_BIN_DIR to the directory with the binaries}
# An error is a sentence here, not a stack.
export RUST_BACKTRACE=0
work=$(mktemp -d -t ferroce-XXXXXX)
ns_a=frc-a-$$
ns_b=frc-b-$$
# Namespace of each host, by its letter.
declare -A ns_of=([a]=$ns_a [b]=$ns_b)
pids=()
declare -A pid_of

say() { printf '%s\n' "$*"; }

fail() {
  printf 'FAILED: %s\n' "$*" >&2
  for log in "$work"/*.log; do
    [[ -s $log ]] && { echo "--- ${log##*/}"; tail -n 20 "$log"; } >&2
  done
  exit 1
}

cleanup() {
  local status=$? pid
  trap - EXIT
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in "${pids[@]}"; do
    wait "$pid" 2>/dev/null || true
  done
  local ns
  for ns in "${ns_of[@]}"; do
    ip netns del "$ns" 2>/dev/null || true
  done
  rm -rf "$work"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

require_root() {
  if ((EUID != 0)); then
    fail "network namespaces and packet sockets need root: run it by sudo, or in 'unshare -Urnm' with a writable /run"
  fi
  local tool
  for tool in ip "$@"; do
    command -v "$tool" >/dev/null || fail "$tool is missing: scripts/setup test installs it"
  done
}

on_a() { ip netns exec "$ns_a" "$@"; }
on_b() { ip netns exec "$ns_b" "$@"; }

# join_by_veth MTU: interface eth0 in both namespaces, 10.99.0.1 and 10.99.0.2.
join_by_veth() {
  local mtu=$1 ns
  ip netns add "$ns_a"
  ip netns add "$ns_b"
  ip link add eth0 netns "$ns_a" mtu "$mtu" type veth peer name eth0 netns "$ns_b" mtu "$mtu"
  for ns in "$ns_a" "$ns_b"; do
    # Nothing but what the test sends: no neighbour discovery or router solicitation.
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1
    ip -n "$ns" link set lo up
    ip -n "$ns" link set eth0 up
  done
  ip -n "$ns_a" addr add 10.99.0.1/24 dev eth0
  ip -n "$ns_b" addr add 10.99.0.2/24 dev eth0
}

# join_by_tap: in each namespace a bridge of the veth and of the tap that the daemon will make; the daemons own 10.99.1.1 and
# 10.99.1.2 on their taps, the kernels 10.99.0.1 and 10.99.0.2 on the bridges (for TCP).
join_by_tap() {
  join_by_veth 1500
  local ns address
  for ns in "$ns_a" "$ns_b"; do
    address=$([[ $ns == "$ns_a" ]] && echo 10.99.0.1/24 || echo 10.99.0.2/24)
    ip -n "$ns" addr flush dev eth0
    ip -n "$ns" link add br0 type bridge
    ip netns exec "$ns" sysctl -qw net.ipv6.conf.br0.disable_ipv6=1
    ip -n "$ns" link set eth0 master br0
    ip -n "$ns" link set br0 up
    ip -n "$ns" addr add "$address" dev br0
  done
}

# start NAME COMMAND...: in the background, its output in NAME.log; ended with the script.
start() {
  local name=$1
  shift
  "$@" >"$work/$name.log" 2>&1 &
  pids+=($!)
  pid_of[$name]=$!
}

# until_true SECONDS DESCRIPTION COMMAND...: asks ten times a second.
until_true() {
  local seconds=$1 what=$2 tries
  shift 2
  for ((tries = seconds * 10; tries > 0; tries--)); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  fail "$what: not within $seconds s"
}

# start_daemon HOST ARGS...: answers on $work/HOST.sock (of host a: $work/a.sock) when this returns.
start_daemon() {
  local host=$1
  shift
  start "ferroced-$host" ip netns exec "${ns_of[$host]}" \
    "$bin/ferroced" --socket "$work/$host.sock" --device "ferroce-$host" --no-huge "$@"
  until_true 10 "ferroced on host $host answers" "$bin/ferroce" --socket "$work/$host.sock" devinfo
}

# start_daemons af_packet|tap: both hosts.
start_daemons() {
  case $1 in
    af_packet)
      join_by_veth 9600
      start_daemon a --vdev net_af_packet0,iface=eth0
      start_daemon b --vdev net_af_packet0,iface=eth0
      ;;
    tap)
      join_by_tap
      start_daemon a --vdev net_tap0,iface=dtap0 --address 10.99.1.1
      start_daemon b --vdev net_tap0,iface=dtap0 --address 10.99.1.2
      local ns
      for ns in "$ns_a" "$ns_b"; do
        ip -n "$ns" link set dtap0 master br0
        ip -n "$ns" link set dtap0 up
      done
      ;;
    *) fail "the PMD is af_packet or tap, not $1" ;;
  esac
}

# stop NAME: by SIGTERM; fails unless it ends with status 0.
stop() {
  local status=0
  kill "${pid_of[$1]}"
  wait "${pid_of[$1]}" || status=$?
  ((status == 0)) || fail "$1 ended with status $status"
}
