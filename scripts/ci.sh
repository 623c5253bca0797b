#!/usr/bin/env bash
# The gates, one stage each: `scripts/ci.sh STAGE...` or `scripts/ci.sh all`; without arguments it lists them.
# Each step's output goes to a log under target/ci; the end of it is shown when the step fails. The last line is
# `N passed, N failed`: the tests of the test runners, and one for each step that isn't a test runner.
set -euo pipefail
cd "$(dirname "$0")/.."

stages=(fmt lint unit doc nodpdk asan sim fuzz e2e interop)
# By hand: release builds of their own, minutes under valgrind, packages to install.
slow_stages=(perf apps)
target=${CARGO_TARGET_DIR:-$PWD/target}
logs=$target/ci
passed=0
failed=0
stage=
child=

export CARGO_TERM_COLOR=never
if [[ ${CI:-} == true ]]; then
  # Nothing is built twice there, so bookkeeping for the next build only costs time and disk.
  export CARGO_INCREMENTAL=0
fi

stage_fmt() {
  check rustfmt 60 cargo fmt --all --check -- --color never
  check rustfmt-fuzz 60 cargo fmt --manifest-path fuzz/Cargo.toml --check -- --color never
  check shellcheck 60 shellcheck -x .ci/* scripts/* tests/e2e/* tests/interop/guest/init
}

stage_lint() {
  check clippy 900 cargo clippy --workspace --all-targets --locked -- -D warnings
}

stage_unit() {
  if cargo nextest --version >/dev/null 2>&1; then
    tests nextest 900 env FERROCE_BIN_DIR="$target/debug" cargo nextest run --workspace --locked
  else
    tests tests 900 cargo test --workspace --all-targets --locked --no-fail-fast
  fi
  tests doctests 600 cargo test --workspace --doc --locked --no-fail-fast
}

stage_doc() {
  check rustdoc 600 env RUSTDOCFLAGS="-D warnings" \
    cargo doc --workspace --no-deps --document-private-items --locked
}

# The default members are what a machine with neither DPDK nor libclang can build: hide both and see.
stage_nodpdk() {
  check build-without-dpdk 600 env PKG_CONFIG_LIBDIR=/nonexistent PKG_CONFIG_PATH=/nonexistent \
    LIBCLANG_PATH=/nonexistent LLVM_CONFIG_PATH=/nonexistent cargo check --all-targets --locked
}

# shm is where another process's memory is touched, verbs-c where a C program's is. The sanitizer is a matter of LLVM passes and a runtime library,
# which the stable compiler has as well.
stage_asan() {
  local host
  host=$(rustc -vV | sed -n 's/^host: //p')
  tests shm 300 env RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
    cargo test --locked -p ferroce-shm --lib --tests --target "$host" --target-dir "$target/asan"
  local daemon=()
  if [[ -x $target/debug/ferroced ]]; then
    daemon=(FERROCE_BIN_DIR="$target/debug") # The unit stage's: one less to build.
  fi
  tests c-abi 900 env "${daemon[@]}" scripts/c-abi --asan
  forget "$target/asan"
}

# The programs that simulation, end-to-end runs and the matrix use: the same packages each time, or each would build them anew.
build_programs() {
  check build 900 cargo build --profile sim --bins --examples --locked \
    -p ferroce-sim -p ferroce-daemon -p ferroce-cli -p ferroce-perf -p ferroce-fabric -p ferroce
}

stage_sim() {
  build_programs || return
  check seeds-0..300 300 "$target/sim/ferroce-sim" --seeds 0..300
  check network-seeds-0..2000 300 "$target/sim/ferroce-sim" --swarm network --seeds 0..2000
  check papers 60 "$target/sim/ferroce-sim" papers R2 R7
  local seed
  seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
  check "fresh-seeds-$seed..$((seed + 20))" 120 "$target/sim/ferroce-sim" --seeds "$seed..$((seed + 20))"
}

stage_fuzz() {
  check targets 600 scripts/fuzz 10
  forget "$target/fuzz"
}

# One script a scenario; each makes its own namespaces and removes them. They find the binaries by FERROCE_BIN_DIR.
stage_e2e() {
  build_programs || return
  tests c-abi 300 env FERROCE_BIN_DIR="$target/sim" scripts/c-abi
  local script as_root=()
  if ((EUID != 0)); then
    # Root of a user namespace may make network namespaces; `ip netns` wants to write /run.
    # shellcheck disable=SC2016 # The inner shell expands it.
    as_root=(unshare -Urnm bash -c 'mount -t tmpfs tmpfs /run && exec "$0" "$@"')
  fi
  for script in tests/e2e/*.sh; do
    check "$(basename "$script" .sh)" 180 env FERROCE_BIN_DIR="$target/sim" "${as_root[@]}" "$script"
  done
}

# The small set of the matrix against Linux's rxe. Not where there is no QEMU to run Linux in.
stage_interop() {
  if ! command -v qemu-system-x86_64 >/dev/null; then
    echo "[interop] not run: qemu-system-x86_64 is missing, \`scripts/setup interop\` installs it"
    return
  fi
  build_programs || return
  tests matrix 400 env FERROCE_BIN_DIR="$target/sim" scripts/interop --fast
}

# Instructions of the hot paths against their budget.
stage_perf() {
  check callgrind 1800 scripts/callgrind
}

# Programs of Debian's packages, which it installs, over two daemons.
stage_apps() {
  check programs 2400 scripts/apps
}

# forget DIRECTORY: of a build that no later stage uses. In continuous integration only: its disks are small.
forget() {
  if [[ ${CI:-} == true ]]; then
    rm -rf "$1"
  fi
}

# check NAME LIMIT_S COMMAND...: a step that passes or fails as a whole.
check() {
  if step "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    return 1
  fi
}

# tests NAME LIMIT_S COMMAND...: a step whose log says how many tests passed and failed.
tests() {
  local status=0 ran_ok=0 ran_bad=0
  step "$@" || status=1
  read -r ran_ok ran_bad < <(count_tests "$logs/$stage-$1.log")
  if ((status != 0 && ran_bad == 0)); then
    ran_bad=1 # It did not build, ran out of time or died.
  elif ((ran_ok + ran_bad == 0)); then
    echo "[$stage] $1 ran no test at all: that can't be right"
    ran_bad=1
  fi
  passed=$((passed + ran_ok))
  failed=$((failed + ran_bad))
}

# Sums nextest's summary line, libtest's result lines and the last line of scripts/interop in a log: "PASSED FAILED".
count_tests() {
  local line ok=0 bad=0 pattern
  while read -r line; do
    if [[ $line =~ ([0-9]+)\ passed ]]; then
      ok=$((ok + BASH_REMATCH[1]))
    fi
    for pattern in '([0-9]+) failed' '([0-9]+) exec failed' '([0-9]+) timed out'; do
      if [[ $line =~ $pattern ]]; then
        bad=$((bad + BASH_REMATCH[1]))
      fi
    done
  done < <(grep -E '^ *Summary \[|^test result: |^[0-9]+ passed, [0-9]+ failed$' "$1" || true)
  echo "$ok $bad"
}

# step NAME LIMIT_S COMMAND...: runs it with a time limit, shows that it is alive, tells its seconds and result.
step() {
  local name=$1 limit=$2 log=$logs/$stage-$1.log start=$SECONDS status=0
  shift 2
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null &
  child=$!
  show_progress "$name" "$log" "$start"
  wait "$child" || status=$?
  child=
  local seconds=$((SECONDS - start)) result=ok
  case $status in
    0) ;;
    124 | 137) result="FAILED: not done after $limit s" ;;
    *) result="FAILED: exit status $status" ;;
  esac
  printf '[%s] %-28s %4d s  %s\n' "$stage" "$name" "$seconds" "$result"
  if ((status != 0)); then
    tail -n 80 "$log" | sed 's/^/    /'
    echo "    (all of it: $log)"
    return 1
  fi
}

# While the child runs: what it does now, every half second on a terminal, every 30 seconds in a log.
show_progress() {
  local name=$1 log=$2 start=$3 next=30 elapsed last
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.5
    elapsed=$((SECONDS - start))
    if [[ -t 1 ]]; then
      last=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-60)
      printf '\r\033[K[%s] %-28s %4d s  %s\r' "$stage" "$name" "$elapsed" "$last"
    elif ((elapsed >= next)); then
      next=$((elapsed + 30))
      last=$(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)
      printf '[%s] %-28s %4d s  ... %s\n' "$stage" "$name" "$elapsed" "$last"
    fi
  done
  if [[ -t 1 ]]; then
    printf '\033[K'
  fi
}

stop() {
  if [[ -n $child ]]; then
    kill "$child" 2>/dev/null || true
  fi
  echo "interrupted in stage $stage"
  exit 130
}

usage() {
  echo "usage: scripts/ci.sh STAGE... | all     (stages: ${stages[*]}; not in all: ${slow_stages[*]})" >&2
  exit 2
}

(($# > 0)) || usage
if [[ $* == all ]]; then
  set -- "${stages[@]}"
fi
for stage in "$@"; do
  [[ " ${stages[*]} ${slow_stages[*]} " == *" $stage "* ]] || usage
done
trap stop INT TERM
mkdir -p "$logs"
for stage in "$@"; do
  stage_start=$SECONDS
  echo "== $stage"
  # A failure is counted where it happens; the stages after it still run.
  "stage_$stage" || true
  echo "== $stage took $((SECONDS - stage_start)) s"
done
echo "$passed passed, $failed failed"
((failed == 0))
