#!/bin/sh
# SFT, DPO and generation beside TRL's trainers on one GPU: models of Qwen3-0.6B's and, with 60 GiB
# of memory or more, Qwen3-8B's shape, random weights in bfloat16, checkpointing, FlexAttention.
#
#   benchmarks/gpu.sh [FOLDER]     JSON and tables into FOLDER (default: $OUT, else runs/gpu)
#   benchmarks/gpu.sh --smoke [FOLDER]     the same on a CPU with a tiny shape, in seconds
#
# Needs an environment with `pip install '.[sim]'` (PYTHON names its python). Under 8 minutes: each
# model has a limit of its own, and what it has printed by then stays.
set -eu
cd "$(dirname "$0")/.."
smoke=no
if [ "${1:-}" = --smoke ]; then smoke=yes; shift; fi
out=${1:-${OUT:-runs/gpu}}
python=${PYTHON:-python3}
mkdir -p "$out"

failed=0

# measure SHAPE SECONDS ARGUMENTS…
measure() {
  shape=$1 limit=$2
  shift 2
  echo "== $shape"
  rm -f "$out/$shape.json"
  timeout "$limit" "$python" benchmarks/training.py --shape "$shape" --out "$out/$shape.json" "$@" \
    >"$out/$shape.txt" 2>"$out/$shape.log" && status=0 || status=$?
  cat "$out/$shape.txt"
  if [ "$status" != 0 ]; then
    failed=1
    echo "$shape ended with status $status (124: after $limit s)"
    tail -n 20 "$out/$shape.log"
  fi
}

if [ "$smoke" = yes ]; then
  measure qwen3-smoke 600 --pairs 2 --reports 2 --repeats 1 --max-new-tokens 4 \
    --dtype float32 --device cpu --no-memory
else
  gib=$("$python" -c 'import torch; print(torch.cuda.get_device_properties(0).total_memory >> 30)')
  measure qwen3-0.6b 180 --pairs 32 --reports 32 --repeats 3 --max-new-tokens 64 \
    --dtype bfloat16 --device cuda --checkpointing
  if [ "$gib" -ge 60 ]; then
    measure qwen3-8b 270 --pairs 16 --reports 16 --repeats 2 --max-new-tokens 64 \
      --dtype bfloat16 --device cuda --checkpointing
  else
    echo "== qwen3-8b left out: $gib GiB of GPU memory, 60 are needed"
  fi
fi
exit $failed
