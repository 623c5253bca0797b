#!/usr/bin/env bash
# The same on net_tap: path MTU 1024, the daemons' own addresses and ARP.
set -euo pipefail
exec "$(dirname "$0")/../../scripts/netns-demo" --pmd tap --mib 4
