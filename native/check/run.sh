#!/usr/bin/env bash
# Builds the core for another processor and compares its kernel sets there: run.sh [COMPILER [EMULATOR]].
# For ARM64 on x86-64: native/check/run.sh aarch64-linux-gnu-g++ "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu"
# (Debian packages g++-aarch64-linux-gnu and qemu-user).
set -euo pipefail
cd "$(dirname "$0")/.."
compiler=${1:-g++} emulator=${2:-}
build=../build/check-$(basename "$compiler")
mkdir -p "$build"
flags=(-std=c++20 -O2 -Wall -Wextra -ffp-contract=off)
sources=(cache kernels model pack pass pass_attention pass_experts scratch threads tiling kernels_portable)
case $("$compiler" -dumpmachine) in
  x86_64*)
    sources+=(kernels_avx2 kernels_avx_vnni kernels_avx512 kernels_avx512_vnni)
    flags+=(-DSELFSPEC_X86 -DSELFSPEC_AVX_VNNI_KERNELS)
    ;;
  aarch64*) sources+=(kernels_neon kernels_neon_dot) flags+=(-DSELFSPEC_NEON) ;;
esac
objects=()
for source in "${sources[@]}" check/kernels; do
  own=()
  case $source in
    kernels_avx*) own=(-mavx2 -mfma -mf16c) ;;&
    kernels_avx_vnni) own+=(-mavxvnni) ;;
    kernels_avx512*) own+=(-Wno-maybe-uninitialized -Wno-uninitialized -mavx512f -mavx512bw -mavx512dq -mavx512vl) ;;&
    kernels_avx512_vnni) own+=(-mavx512vnni) ;;
    kernels_neon_dot) own=(-march=armv8.2-a+dotprod) ;;
  esac
  object=$build/$(basename "$source")-$(dirname "$source" | tr -d .).o
  "$compiler" "${flags[@]}" "${own[@]}" -c "$source.cpp" -o "$object"
  objects+=("$object")
done
"$compiler" "${objects[@]}" -pthread -o "$build/kernels"
$emulator "$build/kernels"
