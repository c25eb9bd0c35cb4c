#!/usr/bin/env bash
# Installs a build to a temporary prefix, moves it, and uses what is there: install_test.sh CMAKE BUILD
set -euo pipefail
cmake=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# expect TEXT FILE
expect() {
  grep -qF -- "$1" "$2" || { tail -n 20 "$2" >&2; fail "no '$1' in $2"; }
}

"$cmake" --install "$build" --prefix "$work/first" >"$work/log" || { cat "$work/log" >&2; fail "cmake --install"; }
mv "$work/first" "$work/moved"
prefix=$work/moved
mkdir "$work/elsewhere"
cd "$work/elsewhere"

echo "programs"
"$prefix/bin/psring" explain ring --workers 3 >"$work/out"
expect "round 1 of 4" "$work/out"
"$prefix/bin/psring" predict --workload resnet50 --workers 2,4 --link 1gbit --out predicted >"$work/out"
expect "resnet50" "$work/out"
"$prefix/bin/psring" train --strategy ps-sync --workers 2 --model mlp-small --data synthetic --steps 6 --no_eval \
  --out trained >"$work/out" 2>&1
expect "ps-sync" "$work/out"
for file in predicted/report.html trained/report.html trained/summary.csv; do
  [[ -s $file ]] || fail "$file is missing"
done
if strings "$prefix/bin/psring" 2>/dev/null | grep -qF "$build/bin"; then fail "psring contains the build folder"; fi

echo "man pages"
for page in psring psring-compare psring-train psring-predict psring-report trainer ps_server; do
  [[ -s $prefix/share/man/man1/$page.1 ]] || fail "no man page of $page"
done
expect '.B \-\-time_budget TIME' "$prefix/share/man/man1/psring-compare.1"
if command -v groff >/dev/null; then
  problems=$(groff -man -Tascii -ww "$prefix"/share/man/man1/psring-compare.1 2>&1 >"$work/page" || true)
  [[ -z $problems ]] || fail "groff: $problems"
  expect "time_budget" "$work/page"
fi

echo "completion"
# complete WORD...: what follows the last word, which may be empty
complete_words() {
  bash -c 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _psring; printf "%s\n" "${COMPREPLY[@]}"' \
    "$prefix/share/bash-completion/completions/psring" "$@"
}
complete_words psring comp >"$work/out"
[[ $(<"$work/out") == compare ]] || fail "comp is completed to $(<"$work/out")"
complete_words psring compare --time >"$work/out"
expect --time_budget "$work/out"
complete_words psring help pre >"$work/out"
expect predict "$work/out"
complete_words psring compare -- >"$work/compare"
# Every flag of the help is offered.
for flag in $("$prefix/bin/psring" compare --help-all | grep -oE '^  --[a-z_.-]+'); do
  grep -qxF -- "$flag" "$work/compare" || fail "$flag is not completed"
done
echo "all passed"
