#!/bin/sh
# Runs spec files (one process each, so that a crash is one failure) and C test programs; prints what failed and one line
# with the totals.
# Usage: run_tests.sh BUILD_DIR [WORDS]: those whose paths contain one of the words, or all. BUSTED_PRELOAD is put into LD_PRELOAD of the spec processes.
set -u
cd "$(dirname "$0")/.."
build=$1
pattern=${2:-}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0
failed=0
skipped=0

# add LOG NAME STATUS: counts the last line "N passed, N failed[, N skipped]"; a process without one is one failure.
add() {
  line=$(grep -E '(^|: )[0-9]+ passed, [0-9]+ failed' "$1" | tail -n 1)
  if [ -z "$line" ]; then
    failed=$((failed + 1))
    echo "--- $2 died (status $3)"
    tail -n 40 "$1"
    return
  fi
  p=$(echo "$line" | sed -E 's/(^|.* )([0-9]+) passed.*/\2/')
  f=$(echo "$line" | sed -E 's/.* ([0-9]+) failed.*/\1/')
  s=$(echo "$line" | sed -nE 's/.* ([0-9]+) skipped.*/\1/p')
  passed=$((passed + p))
  failed=$((failed + f))
  skipped=$((skipped + ${s:-0}))
  if [ "$f" -gt 0 ] || [ "${s:-0}" -gt 0 ] || [ "$3" -ne 0 ]; then
    echo "--- $2: $line (status $3)"
    tail -n 60 "$1"
    [ "$f" -gt 0 ] || [ "$3" -eq 0 ] || failed=$((failed + 1))
  fi
}

LUDA_LIB="$(cd "$build" && pwd)/libluda.so"
export LUDA_LIB LUDA_BUILD="$(cd "$build" && pwd)"
# Every test writes LOG and LOG.status; as many run at once as there are cores.
one='
name=$(basename "$2" .lua)
case "$2" in
  *.lua) LD_PRELOAD="${BUSTED_PRELOAD:-}" timeout 300 luajit /usr/bin/busted "$2" ;;
  *) timeout 300 "$2" ;;
esac >"$1/$name" 2>&1
echo $? >"$1/$name.status"
'
list=$(for test in spec/*_spec.lua "$build"/spec/*_test; do
  [ -x "$test" ] || [ "${test%.lua}" != "$test" ] || continue
  for word in ${pattern:-/}; do
    case "$test" in *"$word"*) echo "$test"; break ;; esac
  done
done)
echo "$list" | xargs -r -P "$(nproc)" -I TEST sh -c "$one" run "$logs" TEST
for test in $list; do
  name=$(basename "$test" .lua)
  add "$logs/$name" "$test" "$(cat "$logs/$name.status")"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
