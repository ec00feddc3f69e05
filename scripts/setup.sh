#!/bin/sh
# Installs what a Debian machine lacks (elsewhere prints what is needed) and builds into build/.
# Options: --data also installs the data sets of the demo and the examples, and Open MPI and the tools of network namespaces
# for tests; --no-build only installs.
set -eu
cd "$(dirname "$0")/.."

data=no
build=yes
for option in "$@"; do
  case "$option" in
    --data) data=yes ;;
    --no-build) build=no ;;
    *) echo "usage: scripts/setup.sh [--data] [--no-build]" >&2; exit 2 ;;
  esac
done

packages="cmake ninja-build gcc g++ pkg-config luajit libluajit-5.1-dev libuv1-dev libjansson-dev zlib1g-dev
  lua-busted lua-check libdnnl-dev liblapack3 libsodium23"
[ "$data" = no ] || packages="$packages bible-kjv dataset-fashion-mnist procps openmpi-bin iproute2"

missing() {
  for package in $packages; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$package"
  done
}

if ! command -v apt-get >/dev/null 2>&1; then
  echo "This is not a Debian system. LUDA needs: CMake, Ninja, a C11 compiler, pkg-config, LuaJIT 2.1 with headers, libuv,"
  echo "jansson, zlib; for tests busted and luacheck; for speed oneDNN, for linear algebra LAPACK, for shared secrets libsodium. Then: cmake -S . -B build -G Ninja && ninja -C build"
else
  wanted=$(missing)
  if [ -n "$wanted" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "installing: $wanted"
    if ! { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
           -o DPkg::Lock::Timeout=300 $wanted >/dev/null; }; then
      echo "setup: apt-get could not install: $wanted" >&2
      exit 1
    fi
  fi
fi

[ "$build" = yes ] || exit 0
cuda=OFF
[ ! -e /dev/nvidiactl ] || cuda=AUTO
cmake -S . -B build -G Ninja -DLUDA_CUDA="${LUDA_CUDA:-$cuda}" >build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }
rm -f build.log
ninja -C build
