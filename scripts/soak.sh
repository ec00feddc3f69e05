#!/usr/bin/env bash
# Hours of everything: instruction sets, emulator orders, whatever communicates beside a CPU hog, kills, mutants, long fuzzing.
# Goes on where it stopped (state in build/soak.state) and writes build/soak.json. Options: --fresh forgets the state;
# --only WORD runs the tasks whose names contain it. The C tests also run on aarch64 under an emulator, where there are
# Debian's gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user. SOAK_REPEATS (20), SOAK_KILLS (50), SOAK_FUZZ seconds (1800) change sizes.
set -u
cd "$(dirname "$0")/.."
repeats=${SOAK_REPEATS:-20}
kills=${SOAK_KILLS:-50}
fuzz=${SOAK_FUZZ:-1800}
only=
while [ $# -gt 0 ]; do
  case "$1" in
    --fresh) rm -f build/soak.state ;;
    --only) only=$2; shift ;;
    *) echo "usage: scripts/soak.sh [--fresh] [--only WORD]" >&2; exit 2 ;;
  esac
  shift
done
mkdir -p build
state=build/soak.state
touch "$state"
log=$(mktemp)
trap 'rm -f "$log"; [ -z "${hog:-}" ] || kill "$hog" 2>/dev/null' EXIT

# task NAME COMMAND…: once; a task that passed is not run again.
task() {
  local name=$1 status started=$SECONDS
  shift
  case "$name" in *"$only"*) ;; *) return ;; esac
  grep -q "^passed $name " "$state" && return
  printf '%s … ' "$name"
  "$@" >"$log" 2>&1
  status=$?
  if [ "$status" = 0 ]; then
    echo "passed ($((SECONDS - started)) s) $(grep -E '(^|: )[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)"
    echo "passed $name $((SECONDS - started))" >>"$state"
  else
    echo "FAILED with status $status"
    tail -n 30 "$log"
    echo "failed $name $((SECONDS - started))" >>"$state"
  fi
}

beside_hog() {
  sh -c 'while :; do :; done' &
  hog=$!
  "$@"
  local status=$?
  kill "$hog"
  hog=
  return $status
}

orders() { # NAME ORDER
  CUDAEMU_ORDER=$2 timeout 600 "build/spec/$1"
}

aarch64_build() {
  cmake -S . -B build-aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=scripts/aarch64.cmake -DLUDA_BARE=ON && ninja -C build-aarch64 tests
}

aarch64() {
  for program in aarch64-linux-gnu-gcc qemu-aarch64; do
    if ! command -v "$program" >/dev/null 2>&1; then
      echo "aarch64: skipped, there is no $program here"
      return
    fi
  done
  task aarch64-build aarch64_build
  for test in build-aarch64/spec/*_test; do
    task "aarch64-$(basename "$test")" timeout 1200 qemu-aarch64 -L /usr/aarch64-linux-gnu "$test"
  done
}

task setup scripts/setup.sh --data
task tests-build ninja -C build tests
for level in baseline v3 v4; do
  task "simd-$level" env LUDA_SIMD="$level" scripts/run_tests.sh build
done
aarch64
task emulator-build sh -c 'cmake -S . -B build -DLUDA_EMULATOR=ON >/dev/null && ninja -C build cuda_test cuda_rows_test'
for order in forward reverse $(seq -f 'random:%g' "$repeats"); do
  for name in cuda_test cuda_rows_test; do
    task "$name-$order" orders "$name" "$order"
  done
done
# Everything that communicates, two or more tests at a time and a hog beside them.
talking=$(grep -lE 'luda_comm|luda_rendezvous|collective/' spec/c/*_test.c | sed 's#.*/#/#; s#\.c$##'
  grep -lE 'luda\.dist| run -n |luda run|spec\.processes|spec\.runs|work\.over' spec/*_spec.lua | sed 's#.*/#/#')
for round in $(seq "$repeats"); do
  task "collectives-hog-$round" beside_hog scripts/run_tests.sh build "$talking"
done
for seed in $(seq "$kills"); do
  task "kill-$seed" env LUDA_DEMO_SEED="$seed" LUDA_DEMO_STEPS=40 LUDA_DEMO_EVERY=5 scripts/demo.sh --no-setup
done
task resume-kills scripts/resume_kills.sh --kills "$kills" --forced 10
task mutants build/luda scripts/mutants.lua --seed "$(date +%s)"
task fuzz env LUDA_FUZZ_SECONDS="$fuzz" .ci/run fuzz

awk 'BEGIN { printf "{\"tasks\":[" }
  { printf "%s{\"name\":\"%s\",\"result\":\"%s\",\"seconds\":%d}", (NR > 1 ? "," : ""), $2, $1, $3; n[$1]++ }
  END { printf "],\"passed\":%d,\"failed\":%d}\n", n["passed"], n["failed"] }' "$state" >build/soak.json
echo "$(grep -c ^passed "$state") passed, $(grep -c ^failed "$state") failed"
! grep -q ^failed "$state"
