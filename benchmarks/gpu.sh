#!/bin/sh
# SFT, DPO and generation beside TRL's trainers on one GPU: models of Qwen3-0.6B's and, with 60 GiB
# of memory or more, Qwen3-8B's shape, random weights in bfloat16, checkpointing, FlexAttention.
#
#   benchmarks/gpu.sh [FOLDER]     JSON and tables into FOLDER (default: $OUT, else runs/gpu)
#   benchmarks/gpu.sh --smoke [FOLDER]     the same on a CPU with a tiny shape, in seconds
#
# Needs an environment with `pip install '.[sim]'` (PYTHON names its python). The exit status is 0,
# or 1 if the first model's run failed, 2 if the second's, 3 if both; 64 if nothing could be run.
# Each model has a limit of its own, and each part is printed and written as it ends.
#
# What it may take at worst, in seconds. A step through all layers takes the host 0.025, whatever
# the GPU (a decode step; a forward without gradients). TRL takes 0.4 for a micro-batch of SFT, 0.5
# of DPO and 0.6 with the reference; FedPref 0.5 for a group of four pairs and 0.05 for its
# reference. 8B computes longer: 0.5, 0.7, 0.9; 0.8 and 0.4. Three turns, the first a warm-up.
#
#                                                        0.6B, 12 pairs       8B, 8 pairs
#   imports, sites, model                                            25                40
#   SFT, TRL                                        36 × 0.4 =       15   24 × 0.5 =   12
#   SFT, FedPref; once more for what follows   (9 + 3) × 0.5 =        6    8 × 0.8 =    7
#   DPO, TRL                                        36 × 0.6 =       22   24 × 0.9 =   22
#   DPO, TRL precomputed                           36 × 0.55 =       20   24 × 0.9 =   22
#   DPO, FedPref                                    9 × 0.55 =        5    6 × 1.2 =    8
#   FlexAttention, compiled for four lengths or modes   4 × 15 =     60                60
#   one by one, 8 reports, once                8 × 32 × 0.025 =       7  8 × 32 × 0.03 = 8
#   batched, 32 reports                        3 × 32 × 0.025 =       3  3 × 32 × 0.03 = 3
#   where the answers differ                        8 × 0.025 =       1                 1
#   log-probs: a compilation, four sequences in float64              25          left out
#   together                                                        189               183
#   limit                                                           215               225
#
# Together 372, and at most 440 and some seconds for killing and looking for the GPU: below 480.
set -eu
bench=$(dirname "$0")
smoke=no
if [ "${1:-}" = --smoke ]; then smoke=yes; shift; fi
out=${1:-${OUT:-runs/gpu}}
python=${PYTHON:-python3}

if [ "$smoke" = no ]; then
  gib=$("$python" - <<'END'
try:
    import fedpref
    import torch
except ImportError as error:
    raise SystemExit(f"gpu.sh: {error}; `pip install '.[sim]'`, and PYTHON names its python")
if not torch.cuda.is_available():
    raise SystemExit("gpu.sh: no CUDA GPU; `benchmarks/gpu.sh --smoke` runs the same on a CPU")
print(torch.cuda.get_device_properties(0).total_memory >> 30)
END
  ) || exit 64
fi
mkdir -p "$out"
status=0

# measure BIT SHAPE SECONDS ARGUMENTS…    adds BIT to the status if the run fails
measure() {
  bit=$1 shape=$2 limit=$3
  shift 3
  echo "== $shape"
  rm -f "$out/$shape.json" "$out/$shape.failed"
  {
    timeout -k 5 "$limit" "$python" "$bench/training.py" --shape "$shape" \
      --out "$out/$shape.json" --dtype bfloat16 --checkpointing "$@" 2>"$out/$shape.log" ||
      echo $? >"$out/$shape.failed"
  } | tee "$out/$shape.txt"
  if [ -e "$out/$shape.failed" ]; then
    status=$((status + bit))
    echo "$shape ended with status $(cat "$out/$shape.failed") (124: after $limit s)"
    tail -n 20 "$out/$shape.log"
  fi
}

if [ "$smoke" = yes ]; then
  measure 1 qwen3-smoke 600 --device cpu --no-memory --prompt-style compact \
    --pairs 5 --repeats 1 --reports 4 --one-by-one 2 --max-new-tokens 4
else
  measure 1 qwen3-0.6b 215 --device cuda \
    --pairs 12 --repeats 2 --reports 32 --one-by-one 8 --max-new-tokens 32
  if [ "$gib" -ge 60 ]; then
    measure 2 qwen3-8b 225 --device cuda --parts sft,dpo,generation \
      --pairs 8 --repeats 2 --reports 32 --one-by-one 8 --max-new-tokens 32
  else
    echo "== qwen3-8b left out: $gib GiB of GPU memory, 60 are needed"
  fi
fi
exit $status
