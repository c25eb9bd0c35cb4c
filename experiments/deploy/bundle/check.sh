#!/usr/bin/env bash
# Runs all tests and, if there are GPUs, trainings and benchmarks on them: check.sh [--only REGEX] [FOLDER]. Writes the results
# to one folder. Exits with 0 if no step failed. --only: the steps whose names match.
# On several machines, by hand or under srun: check.sh --nnodes N [--node_rank I --master_addr HOST] [FOLDER]. Measures their
# network, collectives, strategies and GPUs together instead. Machine 0's folder has the results; machine I's logs are in its
# subfolder node-I, of the same folder if the machines share it. Other flags of psring for several machines are passed on.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
only=. nodes=() rank=${SLURM_PROCID:-${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${JOB_COMPLETION_INDEX:-0}}}}
while [[ ${1:-} == --* ]]; do
  [[ $1 != *=* && $# -gt 1 ]] || { echo "check.sh: write ${1%%=*} and its value as two words" >&2; exit 1; }
  if [[ $1 == --node_rank ]]; then rank=$2; fi
  if [[ $1 == --only ]]; then only=$2; else nodes+=("$1" "$2"); fi
  shift 2
done
name=$(hostname)-$(date -u +%Y%m%dT%H%M%SZ)
out=${1:-$PWD/results-${SLURM_STEP_ID:+slurm-$SLURM_JOB_ID.}${SLURM_STEP_ID:-$name}}
if ((${#nodes[@]})) && [[ $rank != 0 ]]; then out=$out/node-$rank; fi
mkdir -p "$out" || exit 1
failed=0

# CUDA libraries installed by pip.
for folder in $(python3 -c 'import glob, site, sys
places = site.getsitepackages() + [site.getusersitepackages()] + sys.path
print(*sorted({lib for place in places for lib in glob.glob(place + "/nvidia/*/lib")}))' 2>/dev/null); do
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

log() { echo "$*" | tee -a "$out/summary.txt"; }

wanted() { [[ $1 =~ $only ]]; }  # whether --only wants a step

# step NAME SECONDS COMMAND...: runs a command with a time limit; its output is in NAME.log.
step() {
  local name=$1 seconds=$2 status
  shift 2
  wanted "$name" || return 0
  timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  local skipped
  skipped=$(grep -c '^\[  SKIPPED \] [A-Za-z].*[./]' "$out/$name.log")
  case $status in
    0) log "passed   $name${skipped:+$( ((skipped)) && echo " ($skipped skipped)")}" ;;
    124 | 137) log "TOO LATE $name, after $seconds s"; failed=1 ;;
    *) log "FAILED   $name: $(tail -n 1 "$out/$name.log")"; failed=1 ;;
  esac
}

{ uname -a; nvidia-smi || true; } >"$out/machine.log" 2>&1
step doctor 60 "$here/bin/psring" doctor
if ((${#nodes[@]})); then . "$here/check_nodes.sh"; fi
for test in "$here"/tests/*; do
  step "$(basename "$test")" 600 "$test" --gtest_brief=0
done

gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
log "GPUs: $gpus"
train() { # NAME FLAGS...
  local data="--data synthetic"
  [[ $* == *--workload* ]] && data=
  step "train-$1" 900 "$here/bin/psring" train $data --out "$out/$1" "${@:2}"
}
# compare_speed OURS THEIRS [GOAL]: adds the ratio of samples/s of a training and of PyTorch to the summary.
compare_speed() {
  python3 - "$out" "$1" "$2" "${3:-}" <<'END' 2>/dev/null | tee -a "$out/summary.txt"
import csv, json, sys
out, ours, theirs, goal = sys.argv[1:]
with open(f"{out}/{ours}/summary.csv") as f:
    mine = float(next(csv.DictReader(f))["samples_per_s"])
with open(f"{out}/{theirs}.log") as f:
    peer = json.loads(f.read().strip().splitlines()[-1])["samples_per_s"]
verdict = f", at least {goal}: {'met' if mine / peer >= float(goal) else 'MISSED'}" if goal else ""
print(f"speed    {ours} {mine:,.0f} samples/s, {theirs} {peer:,.0f}: {mine / peer:.2f} times{verdict}")
END
  return 0
}
# goal WHAT VALUE LEAST: reports whether VALUE is at least LEAST. A missed goal is not a failure.
goal() {
  awk -v what="$1" -v value="$2" -v least="$3" 'BEGIN {
    verdict = (value + 0 >= least + 0) ? "met" : "MISSED"
    printf "goal     %s: %.2f, at least %s: %s\n", what, value, least, verdict
  }' | tee -a "$out/summary.txt"
}
# column RUN NAME: a value of the first row of a training's summary.
column() {
  python3 -c 'import csv, sys
print(next(csv.DictReader(open(sys.argv[1])))[sys.argv[2]])' "$out/$1/summary.csv" "$2" 2>/dev/null || echo 0
}
# agree OURS THEIRS: fails unless the weights of the last checkpoints differ by at most 1e-4 (relative L2 norm).
agree() {
  local output
  wanted "train-$1" && wanted "train-$2" || return 0
  if ! command -v python3 >/dev/null; then
    log "skipped  weights of $1 and $2: no python3"
  elif output=$(python3 - "$out/checkpoints/$1" "$out/checkpoints/$2" <<'END' 2>&1
import array, glob, json, math, struct, sys
def weights(folder):
    newest = max(glob.glob(folder + "/step*"), key=lambda path: int(path.rsplit("step", 1)[1]))
    with open(newest + "/model.safetensors", "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    return {name: array.array("f", data[slice(*about["data_offsets"])])
            for name, about in head.items() if name != "__metadata__"}
ours, theirs = map(weights, sys.argv[1:])
pairs = [pair for name in theirs for pair in zip(ours[name], theirs[name], strict=True)]
apart = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / sum(b * b for _, b in pairs))
print(f"{apart:.2e} apart")
sys.exit(not apart <= 1e-4)
END
  ); then
    log "passed   weights of $1 and $2: ${output##*$'\n'}"
  else
    log "FAILED   weights of $1 and $2: ${output##*$'\n'}"
    failed=1
  fi
}
# Trains 20 steps with SGD and writes a checkpoint.
steps_of() { # NAME FLAGS...
  train "$1" "${@:2}" --model mlp --optimizer sgd --steps 20 --warmup_steps 1 --checkpoint_dir "$out/checkpoints/$1"
}
train cpu-ring --device cpu --strategy ring --workers 2 --model mlp-small --steps 50
train cpu-ps-sync --device cpu --strategy ps-sync --workers 2 --model mlp-small --steps 50
step op-bandwidth-cpu 120 "$here/bin/op_bandwidth" cpu 64
step step-limit-mlp 120 "$here/bin/step_limit" mlp
step step-limit-cnn 300 "$here/bin/step_limit" cnn
if ((gpus > 0)); then
  step op-bandwidth 300 "$here/bin/op_bandwidth" cuda 256
  while read -r op share; do
    goal "$op relative to a copy" "$share" 0.85
  done < <(awk '$1 ~ /^(add|sgd|momentum|adam)$/ {print $1, $3}' "$out/op-bandwidth.log" 2>/dev/null)
  torch=$(python3 -c 'import torch; print(torch.cuda.is_available())' 2>/dev/null)
  [[ $torch == True ]] || log "skipped  comparison with PyTorch: python3 has no torch with a GPU"
  for model in mlp cnn; do
    train "single-$model" --device cuda --strategy single --model $model --steps 500 --warmup_steps 20
    train "single-graph-$model" --device cuda --strategy single --model $model --steps 500 --warmup_steps 20 --cuda_graph
    # PyTorch on the same GPU, eager and compiled.
    if [[ $torch == True ]]; then
      peer=(python3 "$here/pytorch_peer.py" --device cuda --model $model --steps 500 --warmup_steps 20)
      step "pytorch-$model" 900 "${peer[@]}"
      step "pytorch-compiled-$model" 900 "${peer[@]}" --compile
    fi
    # At batch 128.
    for ours in single single-graph; do
      compare_speed "$ours-$model" "pytorch-$model" 2
      compare_speed "$ours-$model" "pytorch-compiled-$model"
    done
    train "none-$model" --device cuda --strategy none --workers "$gpus" --model $model --steps 500 --warmup_steps 20
  done
  # Large products, compared with torch.compile in the same precision; the goal is the same speed.
  wide=(--device cuda --model mlp --width 8192 --batch 4096 --steps 50 --warmup_steps 10)
  for precision in float32 tf32 bfloat16; do
    train "wide-$precision" --strategy single --lr 0.001 --precision $precision "${wide[@]}"
    train "wide-graph-$precision" --strategy single --lr 0.001 --precision $precision --cuda_graph "${wide[@]}"
    if [[ $torch == True ]]; then
      step "pytorch-wide-$precision" 900 python3 "$here/pytorch_peer.py" --lr 0.001 --precision $precision --compile "${wide[@]}"
      compare_speed "wide-$precision" "pytorch-wide-$precision" 1
      compare_speed "wide-graph-$precision" "pytorch-wide-$precision" 1
    fi
  done
  # At least two ranks. They share a GPU if there is only one: a functional test, not a measurement.
  workers=$((gpus > 1 ? gpus : 2))
  share=$( ((gpus > 1)) || echo --oversubscribe)
  for strategy in ring nccl star ps-sync ps-async ps-ssp:1 ps-backup:1; do
    train "$strategy-$workers" --device cuda --strategy $strategy --workers $workers $share --model mlp --steps 200 \
      --warmup_steps 10 --check_replicas
  done
  # Whole steps as CUDA graphs, including the all-reduces.
  for strategy in ring nccl; do
    train "$strategy-graph-$workers" --device cuda --strategy $strategy --workers $workers $share --model mlp --steps 200 \
      --warmup_steps 10 --check_replicas --cuda_graph
  done
  # Native schedules between GPUs and through host memory.
  for strategy in ring star; do
    train "native-$strategy-$workers" --device cuda --strategy $strategy --backend native --workers $workers $share \
      --model mlp --steps 200 --check_replicas
  done
  train "native-ring-pinned-$workers" --device cuda --strategy ring --backend native --transport shm --workers $workers $share \
    --model mlp --steps 200 --check_replicas
  # Collectives of psring and NCCL, then NCCL over sockets. Every element is checked.
  for collective in all_reduce reduce_scatter all_gather broadcast all_to_all; do
    step "bench-$collective" 600 "$here/bin/psring" bench --device cuda --workers $workers $share --collective $collective \
      -b 4K -e 256M -f 16 -d float,bfloat16 --out "$out/bench-$collective"
  done
  step bench-algorithms 600 "$here/bin/psring" bench --device cuda --workers $workers $share --backend native \
    --algorithm ring,direct,one-shot,halving-doubling,double-binary-tree -b 4K -e 64M -f 16 --out "$out/bench-algorithms"
  step bench-nccl-tcp 600 "$here/bin/psring" bench --device cuda --workers $workers $share --backend nccl --transport tcp \
    -b 4K -e 16M -f 16 --out "$out/bench-nccl-tcp"
  # A round of 98 MiB with the server on GPU 0: by CUDA IPC from the worker's memory (auto), pinned memory (shm), gRPC (tcp).
  for transport in auto shm tcp; do
    train "round-$transport" --device cuda --strategy ps-sync --workers 1 --workload resnet50 --align_steps \
      --transport $transport --steps 30 --warmup_steps 3
  done
  ! wanted train-round-auto || goal "speed-up of a server's round by CUDA IPC over pinned memory" \
    "$(awk -v ipc="$(column round-auto comm_busy_ms)" -v pinned="$(column round-shm comm_busy_ms)" \
      'BEGIN {print (ipc > 0) ? pinned / ipc : 0}')" 5
  # Synchronous strategies must agree with single, which accumulates as many micro-batches.
  for ranks in 1 2 4; do
    steps_of "single-as-$ranks" --device cuda --strategy single --reference_workers $ranks
    for strategy in ring star ps-sync; do
      steps_of "$strategy-as-$ranks" --device cuda --strategy $strategy --workers $ranks --oversubscribe --check_replicas
      agree "$strategy-as-$ranks" "single-as-$ranks"
    done
    steps_of "ring-graph-as-$ranks" --device cuda --strategy ring --workers $ranks --oversubscribe --check_replicas --cuda_graph
    agree "ring-graph-as-$ranks" "single-as-$ranks"
  done
  train "nccl-tcp-$workers" --device cuda --strategy nccl-tcp --workers $workers $share --steps 200
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      step "$tool-ops" 1800 compute-sanitizer --tool $tool --error-exitcode 9 "$here/tests/common_ops_test" \
        --gtest_filter='*Cuda*'
      step "$tool-shard" 1800 compute-sanitizer --tool $tool --error-exitcode 9 "$here/tests/ps_on_gpu_test" \
        --gtest_filter='Devices/*'
    done
  else
    log "skipped  memcheck and racecheck: no compute-sanitizer"
  fi
else
  log "skipped  everything that needs a GPU: training, collectives, server rounds, bandwidth, PyTorch, compute-sanitizer"
fi
log "$( ((failed)) && echo "some steps failed" || echo "no step failed"); see $out"
exit $failed
