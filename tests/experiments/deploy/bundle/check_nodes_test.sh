#!/usr/bin/env bash
# check.sh --nnodes on two processes that represent machines: check_nodes_test.sh SCRIPTS PROGRAMS. SCRIPTS is
# experiments/deploy/bundle; PROGRAMS has psring, trainer and the others. The processes share a folder, as machines would.
set -euo pipefail
scripts=$1 programs=$2
work=$(mktemp -d)
started=()
trap '((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true; rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  for file in "$work"/{out,results}/*.{txt,log} "$work"/results/node-1/*; do
    [[ ! -f $file ]] || { echo "== $file"; tail -n 20 "$file"; } >&2
  done
  exit 1
}
mkdir "$work/package" "$work/out"
cp "$scripts"/check*.sh "$work/package/"
ln -s "$programs" "$work/package/bin"
# A port below the ephemeral ports; the steps use it and those that follow.
export CHECK_ROUNDS=1 MASTER_PORT=$((12000 + $$ % 1600 * 10)) PSRING_SECRET=0123456789abcdef0123456789abcdef
for rank in 1 0; do
  (cd "$work" && exec "$work/package/check.sh" --nnodes 2 --node_rank $rank --master_addr 127.0.0.1 results) \
    >"$work/out/$rank.log" 2>&1 &
  started+=($!)
done
status=0
for one in "${started[@]}"; do wait "$one" || status=$?; done
started=()

summary=$work/results/summary.txt
((status == 0)) || fail "it exited with $status"
for expected in "^machine 0: .*, GPUs: [0-9]+" "^passed   bench" "^# Network between 2 machines" "^passed   train" \
  "^passed   compare" "^no step failed"; do
  grep -qE "$expected" "$summary" || fail "the summary has no '$expected'"
done
for file in bench/report.html bench/network.csv train/summary.csv compare/summary.csv; do
  [[ -s $work/results/$file ]] || fail "no $file"
done
grep -q "^machine 1: " "$work/results/node-1/summary.txt" || fail "machine 1 wrote no summary"
[[ $(ls "$work") == $'out\npackage\nresults' ]] || fail "more than one folder: $(ls "$work")"

# Flags that psring rejects fail each step, with psring's line.
if "$work/package/check.sh" --nnodes 2 "$work/out/rejected" >"$work/out/rejected.log" 2>&1; then
  fail "check.sh without --master_addr succeeded"
fi
grep -q "^FAILED   bench: .*needs --master_addr" "$work/out/rejected.log" || fail "no error that names --master_addr"
if "$work/package/check.sh" --nnodes=2 >"$work/out/words.log" 2>&1; then fail "--nnodes=2 was accepted"; fi
grep -q "write --nnodes and its value as two words" "$work/out/words.log" || fail "no error that names --nnodes"
