#!/usr/bin/env bash
# Kills examples/resume_check.lua with SIGKILL, at moments drawn uniformly over its wall time and between the system calls of
# a save; every other run saves in the background. Goes on each time, and compares the final record with the one of a run left
# alone, byte for byte. Then leaves out one part of the state after the other, which must end in another record.
# Usage: scripts/resume_kills.sh [--kills N (50)] [--forced N (10)] [--updates N (100)] [--seed N]
set -u
cd "$(dirname "$0")/.." || exit
kills=50
forced=10
updates=100
seed=$RANDOM
while [ $# -gt 0 ]; do
  case "$1" in
    --kills) kills=$2 ;;
    --forced) forced=$2 ;;
    --updates) updates=$2 ;;
    --seed) seed=$2 ;;
    *) echo "usage: scripts/resume_kills.sh [--kills N] [--forced N] [--updates N] [--seed N]" >&2; exit 2 ;;
  esac
  shift 2
done
RANDOM=$seed
export LUDA_THREADS=${LUDA_THREADS:-1}
work=$(mktemp -d "${TMPDIR:-/tmp}/luda-kills.XXXXXX")
passed=0
failed=0

stop() {
  echo "resume_kills: $*; the records are in $work" >&2
  exit 1
}
train=(build/luda examples/resume_check.lua --updates "$updates" --dir) # not a function: $! would be a shell, and the run outlive its kill
draw() { drawn=$((((RANDOM << 15) | RANDOM) % $1)); } # not in $(…): a subshell would not follow the seed
newest() { ls "$1" 2>/dev/null | sort -t- -k2n | tail -n 1; }

# verdict TEXT equal|differs DIR: whether the final record in DIR is what it must be.
verdict() {
  local is="differs"
  cmp -s "$work/alone/$final" "$3/$final" && is=equal
  if [ -f "$3/$final" ] && [ "$is" = "$2" ]; then
    passed=$((passed + 1))
    echo "$1: $is"
    rm -rf "$3"
  else
    failed=$((failed + 1))
    if [ ! -f "$3/$final" ]; then
      echo "$1: FAILED, there is no final record"
    else
      echo "$1: FAILED, the final record $is"
      build/luda record diff "$work/alone/$final" "$3/$final" | head -n 5
    fi
    mv "$3" "$3-failed-$failed"
  fi
}

# finish TEXT DIR: goes on after a kill, from the newest record.
finish() {
  local at from
  at=$(newest "$2")
  "${train[@]}" "$2" >"$2.log" 2>&1 || tail -n 5 "$2.log"
  from=$(sed -n 's/^going on from .*\(step-[^,]*\),.*/\1/p' "$2.log")
  [ "$from" = "$at" ] || stop "$1: the newest record was '$at', but it went on from '$from'"
  verdict "$1, went on from ${at:-the beginning}" equal "$2"
}

killer=$PWD/build/spec/libkill_at.so # kills before a given system call of a given save
ninja -C build kill_at >"$work/build.log" 2>&1 || stop "cannot build $killer: $(tail -n 3 "$work/build.log")"
start=$(date +%s%N)
KILL_LOG=$work/calls LD_PRELOAD=$killer "${train[@]}" "$work/alone" --keep 1000 >"$work/alone.log" 2>&1 || stop "the run that was left alone failed: $(tail -n 3 "$work/alone.log")"
took=$((($(date +%s%N) - start) / 1000000))
saves=$(ls "$work/alone" | wc -l)
final=$(newest "$work/alone")
echo "left alone: $took ms, $saves records by $(wc -l <"$work/calls") system calls, the last is $final; seed $seed"

number=0
early=0
while [ "$number" -lt "$kills" ] && [ "$early" -le $((10 + 2 * kills)) ]; do
  draw "$took"
  moment=$drawn
  dir=$work/killed-$number
  how=()
  [ $((number % 2)) = 0 ] || how=(--async)
  "${train[@]}" "$dir" "${how[@]}" >"$dir.log" 2>&1 &
  sleep "$(printf '%d.%03d' $((moment / 1000)) $((moment % 1000)))"
  if kill -KILL $! 2>/dev/null && { wait $! 2>/dev/null; [ $? = 137 ]; }; then
    number=$((number + 1))
    finish "kill $number after $moment ms${how[*]:+ (saving in the background)}" "$dir"
  else
    early=$((early + 1)) # this time it had ended before: another moment is drawn
    rm -rf "$dir"
  fi
done
[ "$number" = "$kills" ] || stop "only $number kills: the run ended before the moment $early times"

for index in $(seq 0 $((forced - 1))); do
  draw "$saves"
  save=$((1 + drawn))
  calls=$(grep -c "^$save\." "$work/calls") # a record without open sums takes one less
  gaps=$((calls - 1))
  draw $(((gaps + forced - 1) / forced))
  call=$((2 + index * gaps / forced + drawn))
  [ "$call" -le "$calls" ] || call=$calls
  dir=$work/forced-$index
  how=()
  [ $((index % 2)) = 0 ] || how=(--async)
  KILL_LOG=$dir.calls KILL_AT=$save.$call LD_PRELOAD=$killer "${train[@]}" "$dir" "${how[@]}" >"$dir.log" 2>&1 &
  wait $! 2>/dev/null
  [ $? = 137 ] || stop "call $call of save $save never came"
  finish "killed in a save before call $(grep "^$save\.$call " "$dir.calls")${how[*]:+ (in the background)}" "$dir"
done

# In the middle of the run and between two updates (records 4, 8, ... follow an update): every part matters there.
middle=$(ls "$work/alone" | sort -t- -k2n | sed -n "$((saves / 8 * 4 + 1))p")
"${train[@]}" "$work/names" --forget nothing 2>&1 | sed -n 's/.*the parts are //p' | sed 's/, /\n/g' >"$work/parts"
[ -s "$work/parts" ] || stop "no parts to forget"
mkdir "$work/kept"
cp "$work/alone/$middle" "$work/kept"
"${train[@]}" "$work/kept" >"$work/kept.log" 2>&1
verdict "from $middle" equal "$work/kept"
while read -r part; do
  mkdir "$work/forgot"
  cp "$work/alone/$middle" "$work/forgot"
  "${train[@]}" "$work/forgot" --forget "$part" >"$work/forgot.log" 2>&1 || tail -n 5 "$work/forgot.log"
  verdict "from $middle without its $part" differs "$work/forgot"
done <"$work/parts"

[ "$failed" = 0 ] && rm -rf "$work"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
