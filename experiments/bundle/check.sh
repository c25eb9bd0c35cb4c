#!/usr/bin/env bash
# Runs every test and, where there are GPUs, every kind of training on them, and leaves one folder with what came
# of it. Returns 0 where nothing failed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$PWD/results-$(hostname)-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out" || exit 1
failed=0

# CUDA's libraries, as pip installs them.
for folder in $(python3 -c 'import glob, site, sys
places = site.getsitepackages() + [site.getusersitepackages()] + sys.path
print(*sorted({lib for place in places for lib in glob.glob(place + "/nvidia/*/lib")}))' 2>/dev/null); do
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}

say() { echo "$*" | tee -a "$out/summary.txt"; }

# step NAME SECONDS COMMAND...: its output goes to NAME.log.
step() {
  local name=$1 seconds=$2 status
  shift 2
  timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1 </dev/null
  status=$?
  local skipped
  skipped=$(grep -c '^\[  SKIPPED \] [A-Za-z].*[./]' "$out/$name.log")
  case $status in
    0) say "passed   $name${skipped:+$( ((skipped)) && echo " ($skipped skipped)")}" ;;
    124 | 137) say "TOO LATE $name, after $seconds s"; failed=1 ;;
    *) say "FAILED   $name: $(tail -n 1 "$out/$name.log")"; failed=1 ;;
  esac
}

{ uname -a; nvidia-smi || true; } >"$out/machine.log" 2>&1
step doctor 60 "$here/bin/psring" doctor
for test in "$here"/tests/*; do
  step "$(basename "$test")" 600 "$test" --gtest_brief=0
done

gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
say "GPUs: $gpus"
train() { # NAME FLAGS...
  local data="--data synthetic"
  [[ $* == *--workload* ]] && data=
  step "train-$1" 900 "$here/bin/psring" train $data --out "$out/$1" "${@:2}"
}
# compare_speed OURS THEIRS: samples/s of a training beside PyTorch's, as a line of the summary.
compare_speed() {
  python3 - "$out" "$1" "$2" <<'END' 2>/dev/null | tee -a "$out/summary.txt"
import csv, json, sys
out, ours, theirs = sys.argv[1:]
with open(f"{out}/{ours}/summary.csv") as f:
    mine = float(next(csv.DictReader(f))["samples_per_s"])
with open(f"{out}/{theirs}.log") as f:
    peer = json.loads(f.read().strip().splitlines()[-1])["samples_per_s"]
print(f"speed    {ours} {mine:,.0f} samples/s, {theirs} {peer:,.0f}: {mine / peer:.2f} times")
END
}
peer=()
train cpu-ring --device cpu --strategy ring --workers 2 --model mlp-small --steps 50
train cpu-ps-sync --device cpu --strategy ps-sync --workers 2 --model mlp-small --steps 50
step op-bandwidth-cpu 120 "$here/bin/op_bandwidth" cpu 64
if ((gpus > 0)); then
  # Adding and optimizer steps beside a copy.
  step op-bandwidth 300 "$here/bin/op_bandwidth" cuda 256
  for model in mlp cnn; do
    train "single-$model" --device cuda --strategy single --model $model --steps 500 --warmup_steps 20
    train "single-graph-$model" --device cuda --strategy single --model $model --steps 500 --warmup_steps 20 --cuda_graph
    # PyTorch on the same GPU, by itself and compiled.
    if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
      peer=(python3 "$here/pytorch_peer.py" --device cuda --model $model --steps 500 --warmup_steps 20)
      step "pytorch-$model" 900 "${peer[@]}"
      step "pytorch-compiled-$model" 900 "${peer[@]}" --compile
    fi
    # At batch 128; the goal is twice PyTorch by itself.
    for ours in single single-graph; do
      compare_speed "$ours-$model" "pytorch-$model"
      compare_speed "$ours-$model" "pytorch-compiled-$model"
    done
    train "none-$model" --device cuda --strategy none --workers "$gpus" --model $model --steps 500 --warmup_steps 20
  done
  # Large products, beside torch.compile in the same precision; at least as fast.
  wide=(--device cuda --model mlp --width 8192 --batch 4096 --steps 50 --warmup_steps 10)
  for precision in float32 tf32 bfloat16; do
    train "wide-$precision" --strategy single --lr 0.001 --precision $precision "${wide[@]}"
    train "wide-graph-$precision" --strategy single --lr 0.001 --precision $precision --cuda_graph "${wide[@]}"
    if ((${#peer[@]})); then
      step "pytorch-wide-$precision" 900 python3 "$here/pytorch_peer.py" --lr 0.001 --precision $precision --compile "${wide[@]}"
      compare_speed "wide-$precision" "pytorch-wide-$precision"
      compare_speed "wide-graph-$precision" "pytorch-wide-$precision"
    fi
  done
  # With two ranks at least, which share a GPU where there is one: functional, not a measurement.
  workers=$((gpus > 1 ? gpus : 2))
  share=$( ((gpus > 1)) || echo --oversubscribe)
  for strategy in ring nccl star ps-sync ps-async ps-ssp:1 ps-backup:1; do
    train "$strategy-$workers" --device cuda --strategy $strategy --workers $workers $share --model mlp --steps 200 \
      --warmup_steps 10 --check_replicas
  done
  # Our schedules between GPUs, in segments of several rounds, and through the host beside them.
  for strategy in ring star; do
    train "native-$strategy-$workers" --device cuda --strategy $strategy --backend native --workers $workers $share \
      --model mlp --steps 200 --check_replicas
  done
  train "native-ring-pinned-$workers" --device cuda --strategy ring --backend native --fabric shm --workers $workers $share \
    --model mlp --steps 200 --check_replicas
  # Every element is checked. Collectives of the two in turn, then NCCL's over sockets.
  for collective in all_reduce reduce_scatter all_gather broadcast; do
    step "bench-$collective" 600 "$here/bin/psring" bench --device cuda --workers $workers $share --collective $collective \
      -b 4K -e 256M -f 16 -d float,bfloat16 --out "$out/bench-$collective"
  done
  step bench-algorithms 600 "$here/bin/psring" bench --device cuda --workers $workers $share --backend native \
    --algorithm ring,direct,one-shot,halving-doubling,double-binary-tree -b 4K -e 64M -f 16 --out "$out/bench-algorithms"
  step bench-nccl-tcp 600 "$here/bin/psring" bench --device cuda --workers $workers $share --backend nccl --transport tcp \
    -b 4K -e 16M -f 16 --out "$out/bench-nccl-tcp"
  # A round of 98 MiB with the server on GPU 0: out of the worker's GPU memory (auto), through pinned memory, over gRPC.
  for payload in auto shm grpc; do
    train "round-$payload" --device cuda --strategy ps-sync --workers 1 --workload resnet50 --align_steps \
      --payload $payload --steps 30 --warmup_steps 3
  done
  # Synchronous strategies beside single, which adds as many micro-batches: their losses agree.
  for ranks in 1 2 4; do
    train "single-as-$ranks" --device cuda --strategy single --micro_batches $ranks --model mlp --steps 20
    for strategy in ring ps-sync; do
      train "$strategy-as-$ranks" --device cuda --strategy $strategy --workers $ranks --oversubscribe --model mlp --steps 20 \
        --check_replicas
    done
  done
  train "nccl-tcp-$workers" --device cuda --strategy nccl --fabric tcp --workers $workers $share --steps 200
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      for ops in ops_test reduced_precision_ops_test; do
        step "$tool-$ops" 1800 compute-sanitizer --tool $tool --error-exitcode 9 "$here/tests/$ops" \
          --gtest_filter='*Cuda*'
      done
      step "$tool-shard" 1800 compute-sanitizer --tool $tool --error-exitcode 9 "$here/tests/ps_on_gpu_test" \
        --gtest_filter='Devices/*'
    done
  fi
fi
say "$( ((failed)) && echo "something failed" || echo "all is well"); see $out"
exit $failed
