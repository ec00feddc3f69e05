#!/bin/sh
# Sets up, lints, and runs the specs under LuaJIT and the C tests. Ends with a line "N passed, N failed, N skipped".
set -eu
cd "$(dirname "$0")/.."
scripts/setup.sh
ninja -C build tests
luacheck -q --no-color lua spec scripts examples
luajit scripts/lint.lua
exec scripts/run_tests.sh build "$@"
