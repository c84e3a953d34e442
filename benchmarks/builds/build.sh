#!/bin/bash
# Makes OUT_DIR/NAME.so of a source tree's kernels, and OUT_DIR/compare.
#   build.sh TREE NAME OUT_DIR
# MARCH: the compiler's flags for instructions; DRIVER: the folder of the step driver.
set -euo pipefail
if [ $# -ne 3 ]; then sed -n '2,4s/^# *//p' "$0" >&2; exit 2; fi
tree=$1 name=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
source=$tree/kernels/tenora_kernels/compiled/src
# A tree that lays its adapters out otherwise, or has another decoder, brings its own driver.
driver=${DRIVER:-$here}
if [ -z "${DRIVER:-}" ] && [ -e "$tree/benchmarks/builds/step_driver.cpp" ]; then
  driver=$tree/benchmarks/builds
fi
read -ra instructions <<<"${MARCH:--march=native}"
flags=(-O3 "${instructions[@]}" -std=c++20 -fPIC -fopenmp -Wno-psabi)

mkdir -p "$out"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
# What inline functions keep would otherwise be one for all builds: -fno-gnu-unique.
for file in "$source"/*.cpp "$driver/step_driver.cpp"; do
  case $file in *bindings.cpp) continue ;; esac
  printf '%s\0' "$file"
done | xargs -0 -P "${JOBS:-2}" -I{} sh -c \
  'file=$1 objects=$2; shift 2; exec "$@" -c "$file" -o "$objects/$(basename "$file" .cpp).o"' \
  _ {} "$objects" "${CXX:-c++}" "${flags[@]}" -fno-gnu-unique "-I$source" "-I$driver"
"${CXX:-c++}" "${flags[@]}" -shared "$objects"/*.o -o "$out/$name.so"
"${CXX:-c++}" "${flags[@]}" "$here/compare.cpp" -ldl -o "$out/compare"
