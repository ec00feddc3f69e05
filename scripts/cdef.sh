#!/bin/sh
# Writes the FFI declarations: the public headers as the C preprocessor sees them, in a Lua long string. Status and dtype are
# declared as int there: an enum result would be boxed, and a collection could run between a call and the reading of its outputs.
# Usage: cdef.sh COMPILER SOURCE_DIR OUTPUT
set -eu

compiler=$1
source_dir=$2
output=$3

mkdir -p "$(dirname "$output")"
temporary=$output.$$
trap 'rm -f "$temporary" "$temporary.c"' EXIT
{
  printf 'return [==[\n'
  "$compiler" -E -P -x c -DLUDA_CDEF -DLUDA_API= -I "$source_dir/runtime" - <<'HEADERS' >"$temporary.c"
#include "luda.h"
#include "luda_lua.h"
enum { LUDA_DECLARED_VERSION = LUDA_VERSION_MAJOR * 10000 + LUDA_VERSION_MINOR * 100 + LUDA_VERSION_PATCH };
HEADERS
  sed -E 's/^} (luda_status|luda_dtype);/} \1_enum; typedef int \1;/' "$temporary.c"
  printf ']==]\n'
} >"$temporary"
mv "$temporary" "$output"
