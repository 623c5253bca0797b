#!/usr/bin/env bash
# Two hosts play pingpong by `ferroce pingpong`: every type, messages of nothing and of a MiB, polling and sleeping, every byte checked.
# That it is the ibv programs' game is shown by scripts/interop.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root timeout ss
start_daemons af_packet

listening() { [[ -n $(on_b ss -Hltn "sport = :18515") ]]; }

# play OPTION...: both sides with the same options.
play() {
  start server on_b timeout 60 "$bin/ferroce" --socket "$work/b.sock" pingpong --chk "$@"
  until_true 10 "the server of pingpong $* listens" listening
  on_a timeout 60 "$bin/ferroce" --socket "$work/a.sock" pingpong --chk "$@" 10.99.0.2 >"$work/client.log" 2>&1 ||
    fail "pingpong $*: the client ended with status $?"
  wait "${pid_of[server]}" || fail "pingpong $*: the server ended with status $?"
  grep -q 'usec/iter' "$work/client.log" || fail "pingpong $*: no result"
}

for type in rc uc ud srq; do
  play --type "$type"
  play --type "$type" --size 0 --events
done
for type in rc uc srq; do
  play --type "$type" --size 1048576 --mtu 4096 --iters 40
done

# Sides that disagree are told so, and neither hangs.
start server on_b timeout 60 "$bin/ferroce" --socket "$work/b.sock" pingpong --size 100
until_true 10 "the server listens" listening
if on_a timeout 60 "$bin/ferroce" --socket "$work/a.sock" pingpong --size 200 10.99.0.2 >"$work/client.log" 2>&1; then
  fail "a client with messages of 200 bytes and a server with 100 were content with each other"
fi
grep -q 'the same --size' "$work/client.log" || fail "the client does not say that the sizes differ"
if wait "${pid_of[server]}"; then
  fail "the server did not mind"
fi

stop ferroced-a
stop ferroced-b
say "rc, uc, ud and srq: every message came back right"
