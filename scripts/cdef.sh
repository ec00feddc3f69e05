#!/bin/sh
# Writes the FFI declarations: the public headers as the C preprocessor sees them, in a Lua long string.
# Usage: cdef.sh COMPILER SOURCE_DIR OUTPUT
set -eu

compiler=$1
source_dir=$2
output=$3

mkdir -p "$(dirname "$output")"
temporary=$output.$$
trap 'rm -f "$temporary"' EXIT
{
  printf 'return [==[\n'
  "$compiler" -E -P -x c -DLUDA_CDEF -DLUDA_API= -I "$source_dir/runtime" - <<'HEADERS'
#include "luda.h"
#include "luda_lua.h"
enum { LUDA_DECLARED_VERSION = LUDA_VERSION_MAJOR * 10000 + LUDA_VERSION_MINOR * 100 + LUDA_VERSION_PATCH };
HEADERS
  printf ']==]\n'
} >"$temporary"
mv "$temporary" "$output"
