#!/usr/bin/env bash
# ./run for a user who cannot write to the build: run_test.sh RUN
set -euo pipefail
run=$1
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
user=()
if ((EUID == 0)); then
  command -v setpriv >/dev/null || { echo "no setpriv, and root can write everywhere" >&2; exit 77; }
  user=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
# expect CODE TEXT: of the last command, with one line on stderr
expect() {
  [[ $code == "$1" && $(wc -l <"$work/err") == 1 ]] && grep -qF -- "$2" "$work/err" || fail "code $code: $(<"$work/err")"
}
start() {
  code=0
  "${user[@]}" bash "$work/project/run" "$@" >"$work/out" 2>"$work/err" </dev/null || code=$?
}

mkdir "$work/project"
cp "$run" "$work/project/run"
chmod -R a+rX,a-w "$work"
touch "$work/out" "$work/err" 2>/dev/null || { chmod u+w "$work"; touch "$work/out" "$work/err"; }

echo "nothing is built, and the project cannot be written to"
start compare
expect 1 "cannot write to $work/project; build as $(stat -c %U "$work/project"), or clone psring"

echo "the programs are there"
chmod -R u+w "$work/project"
mkdir -p "$work/project/build/release/bin"
for program in psring trainer ps_server ring_worker ps_worker; do
  printf '#!/bin/sh\necho "%s $*"\n' "$program" >"$work/project/build/release/bin/$program"
done
chmod -R a+rx,a-w "$work/project"
start compare --dry_run
expect 0 "cannot write to $work/project/build/release, so its programs are used"
[[ $(<"$work/out") == "psring compare --dry_run" ]] || fail "$(<"$work/out")"

echo "a build needs more than the programs"
start build
expect 1 "cannot write to $work/project/build/release; build as"
