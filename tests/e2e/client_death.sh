#!/usr/bin/env bash
# Clients are killed in the middle of a transfer: nothing of them stays in the daemons, and the next client is served.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/netns.bash
source scripts/netns.bash
require_root timeout
start_daemons af_packet
head -c $((64 << 20)) /dev/urandom >"$work/file"

sessions() { "$bin/ferroce" --socket "$work/$1.sock" --json res | grep -o '"session"' | wc -l; }
both_connected() { (($(sessions a) == 2 && $(sessions b) == 2)); }
only_mine() { (($(sessions a) == 1 && $(sessions b) == 1)); }

for round in {1..10}; do
  start "serve-$round" ip netns exec "$ns_b" "$bin/examples/file_copy" --socket "$work/b.sock" serve --once
  until_true 5 "the server offers memory" grep -q offering "$work/serve-$round.log"
  start "send-$round" ip netns exec "$ns_a" "$bin/examples/file_copy" --socket "$work/a.sock" send 10.99.0.2 "$work/file"
  until_true 5 "both are connected" both_connected
  victims=("serve-$round" "send-$round")
  kill -9 "${pid_of[${victims[round % 2]}]}"
  kill -9 "${pid_of[${victims[1 - round % 2]}]}" 2>/dev/null || true
  until_true 5 "the daemons have forgotten both clients" only_mine
done

start serve ip netns exec "$ns_b" "$bin/examples/file_copy" --socket "$work/b.sock" serve --once
until_true 5 "the server offers memory" grep -q offering "$work/serve.log"
on_a timeout 60 "$bin/examples/file_copy" --socket "$work/a.sock" send 10.99.0.2 "$work/file" || fail "the next client is not served"
stop ferroced-a
stop ferroced-b
say "10 killed clients left nothing behind"
