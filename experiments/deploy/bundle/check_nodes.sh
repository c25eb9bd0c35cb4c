# Part of check.sh: what several machines measure together. Uses its functions, and exits. CHECK_ROUNDS: rounds of the
# comparison, for tests.
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep -c .)
log "machine $rank: $(hostname), GPUs: $gpus"
port=${MASTER_PORT:-$((20000 + ${SLURM_JOB_ID:-0} % 1000 * 10))}  # of the first step; each has its own
# together NAME SECONDS VERB FLAGS...: a step that all machines run at the same time.
together() {
  MASTER_PORT=$((port++)) step "$1" "$2" "$here/bin/psring" "$3" "${nodes[@]}" --timeout 120 --out "$out/$1" "${@:4}"
}
together bench 900 bench --backend native --collective all_reduce,ps_push_pull -b 4K -e 16M
if [[ $rank == 0 ]]; then  # the network between the machines
  sed -n '/^# Network/,/^===/p' "$out/bench.log" | grep '^#' | tee -a "$out/summary.txt"
fi
together train 300 train --device cpu --strategy ring --check_replicas --model mlp-small --data synthetic --steps 50
together compare 1800 compare --device cpu --strategies ring,ps-sync,ps-async --workload inception_bn --no_eval --steps 5 \
  --repeats "${CHECK_ROUNDS:-3}"
if ((gpus > 0)); then
  if [[ " ${nodes[*]} " != *" --nproc_per_node "* ]]; then nodes+=(--nproc_per_node "$gpus"); fi
  together train-nccl 900 train --device cuda --strategy nccl --check_replicas --model mlp --data synthetic --steps 200
  together bench-nccl 900 bench --device cuda --backend nccl -b 4K -e 256M -f 16
  together compare-nccl 1800 compare --device cuda --strategies nccl,nccl-tcp,ps-sync --model mlp --data synthetic --no_eval \
    --time_budget 10m
else
  log "skipped  training, collectives and strategies on GPUs: this machine has none"
fi
log "$( ((failed)) && echo "some steps failed" || echo "no step failed"); see $out"
exit $failed
