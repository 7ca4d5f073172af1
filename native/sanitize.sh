#!/usr/bin/env bash
# Builds the core with sanitizers and runs its tests on that build: sanitize.sh [PYTHON].
# Address and undefined behaviour first, then threads. A finding ends the tests with an error.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "${1:-.venv/bin/python}")

check() { # name, sanitizers, libraries to load before Python
  local build=build/sanitize-$1
  shift
  mkdir -p "$build/src"
  cp -r src/selfspec "$build/src/"
  rm -f "$build"/src/selfspec/_native.*.so
  cmake -S native -B "$build" -DPython_EXECUTABLE="$python" -DSELFSPEC_SANITIZE="$1" \
    -DCMAKE_LIBRARY_OUTPUT_DIRECTORY="$PWD/$build/src/selfspec" >/dev/null
  cmake --build "$build" -j
  # an editable install puts its own sources before PYTHONPATH, with a finder
  cat > "$build/src/sitecustomize.py" <<'END'
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
END
  shift
  local preload=""
  for library in "$@"; do preload+="$(g++ -print-file-name="$library") "; done
  # Python itself never frees much; the allocator is asked to fail on purpose
  export PYTHONPATH="$PWD/$build/src:$PWD/tests"
  [[ $("$python" -c 'import importlib.util as u; print(u.find_spec("selfspec._native").origin)') == "$PWD/$build"/* ]]
  LD_PRELOAD="${preload% }" PYTHONMALLOC=malloc \
    ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    TSAN_OPTIONS=halt_on_error=1:report_signal_unsafe=0:die_after_fork=0 \
    "$python" -m pytest -q -x -p no:cacheprovider tests/native -m "not embedded" \
    --deselect tests/native/test_core_build.py::test_the_self_test_passes_quickly
}

check address address,undefined libasan.so libubsan.so
check thread thread libtsan.so
