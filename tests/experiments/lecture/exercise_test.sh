#!/usr/bin/env bash
# The programming exercises as processes: exercise_test.sh LECTURE CHECKS
set -euo pipefail
lecture=$1
export PSRING_EXERCISE=$2
command -v g++ >/dev/null || { echo "no g++" >&2; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  cat "$work/out" "$work/err" >&2
  exit 1
}
# expect CODE ARGUMENT...: of `exercise`
expect() {
  local code=0
  "$lecture/exercise" "${@:2}" >"$work/out" 2>"$work/err" || code=$?
  [[ $code == "$1" ]] || fail "exercise ${*:2} exited with $code"
}
says() { grep -qF -- "$1" "$work/$2" || fail "no '$1' in $2"; }

for name in ring ssp; do
  echo "$name as shipped: compiles without warnings, and each case that fails says why"
  expect 1 "$name"
  [[ ! -s $work/err ]] || fail "warnings"
  says "TAP version 13" out
  grep -q '^not ok 4 - N=2: rank 0 has 0 rounds; expected 2(N-1) = 2$\|^not ok 2 - K=1, 2 workers with 4, 4 steps: ' "$work/out" ||
    fail "the case is not named"
  echo "$name solved"
  expect 0 "$name" "$lecture/solutions/$name.cc"
  ! grep -q '^not ok' "$work/out" || fail "the solution is wrong"
  [[ $(sed -n 's/^1\.\.//p' "$work/out") == "$(grep -c '^ok' "$work/out")" ]] || fail "the plan differs from the results"
done
says "K=0, 2 workers" out

echo "what is not a solution"
expect 2 tree
says "usage: exercise ring|ssp" err
expect 2 ring "$work/none.cc"
says "cannot be compiled" err
echo 'int main() { return 0 }' >"$work/typo.cc"
expect 2 ring "$work/typo.cc"
says "typo.cc" err
echo 'int Unrelated() { return 0; }' >"$work/other.cc"
expect 2 ring "$work/other.cc"
says "no function ListRounds" err
says "other.cc must define the function of ring.h" err
printf '%s\n' '#include "ring.h"' 'void ListRounds(int, int, std::vector<RingRound>& rounds) { rounds[size_t{5}].to = 0; }' >"$work/crash.cc"
expect 1 ring "$work/crash.cc"
says "crash.cc crashed" err
