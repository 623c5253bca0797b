#!/usr/bin/env bash
# The demo of two hosts on net_af_packet, with a small file: data, benchmarks, and tshark's verdict on the packets.
set -euo pipefail
exec "$(dirname "$0")/../../scripts/netns-demo" --pmd af_packet --mib 10
