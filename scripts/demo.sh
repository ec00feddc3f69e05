#!/usr/bin/env bash
# The main job on real data: sets up, trains a character GPT on two rank processes, kills the whole process group with
# SIGKILL at a random moment, resumes from the last record, and compares with a run that was left alone: bit for bit.
# LUDA_DEMO_STEPS, LUDA_DEMO_EVERY and LUDA_DEMO_SEED change steps (300), steps between records (50), the moment's seed.
set -u
cd "$(dirname "$0")/.."
steps=${LUDA_DEMO_STEPS:-300}
every=${LUDA_DEMO_EVERY:-50}
seed=${LUDA_DEMO_SEED:-$RANDOM}
[ "${1:-}" = --no-setup ] || scripts/setup.sh --data || exit 1

work=$(mktemp -d "${TMPDIR:-/tmp}/luda-demo.XXXXXX")
train() { # DIR [OPTION…]
  local dir=$1
  shift
  build/luda run -n 2 --no-prefix examples/char_gpt.lua --steps "$steps" --every "$every" --dir "$dir" "$@"
}
fail() {
  echo "demo: $*; the records are in $work" >&2
  exit 1
}

echo "1. training $steps steps, left alone"
start=$(date +%s%N)
train "$work/alone" || fail "the run that was left alone failed"
took=$((($(date +%s%N) - start) / 1000000))

# Between a fifth and nine tenths of the time that the whole run took, so that records exist and steps remain.
RANDOM=$seed
moment=$((took * (200 + RANDOM % 700) / 1000))
echo "2. the same, killed with SIGKILL after $moment of about $took ms (seed $seed)"
setsid bash -c 'exec "$@"' demo build/luda run -n 2 --no-prefix examples/char_gpt.lua --steps "$steps" --every "$every" \
  --dir "$work/killed" --sample 0 >"$work/killed.log" 2>&1 &
group=$!
sleep "$(printf '%d.%03d' $((moment / 1000)) $((moment % 1000)))"
kill -KILL -- "-$group" 2>/dev/null
wait "$group" 2>/dev/null
for _ in $(seq 50); do pgrep -f -- "--dir $work/killed" >/dev/null || break; sleep 0.1; done
pgrep -f -- "--dir $work/killed" >/dev/null && fail "ranks outlived their launcher"
echo "   records at the kill: $(ls "$work/killed" 2>/dev/null | tr '\n' ' ')"

echo "3. resuming"
train "$work/killed" --resume || fail "resuming failed"

echo "4. comparing the final records"
status=0
for rank in 0 1; do
  a=$work/alone/step-$steps/rank-$rank.safetensors
  b=$work/killed/step-$steps/rank-$rank.safetensors
  sha256sum "$a" "$b" || fail "a final record is missing"
  build/luda record diff "$a" "$b" || status=1
  cmp "$a" "$b" || status=1
done
[ "$status" = 0 ] || fail "the resumed run differs from the one that was left alone"
rm -rf "$work"
echo "the killed and resumed run equals the uninterrupted one bit for bit"
