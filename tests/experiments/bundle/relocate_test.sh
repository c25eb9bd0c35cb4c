#!/usr/bin/env bash
# Relocated programs find each other and start with the host's libc, with their own where that is newer, and where nothing else is
# installed: relocate_test.sh SCRIPTS PROGRAMS. SCRIPTS is experiments/bundle; PROGRAMS has psring and trainer.
set -euo pipefail
scripts=$1 programs=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# expect PATTERN COMMAND...: the output matches, and the command succeeds.
expect() {
  local pattern=$1 output status=0
  shift
  output=$("$@" 2>&1) || status=$?
  ((status != 77)) || { echo "skipped: $output"; exit 77; }
  [[ $status == 0 && $output =~ $pattern ]] || fail "'$*' exited with $status: $output (expected: $pattern)"
}

mkdir -p "$work/made/bin"
cp "$programs"/{psring,trainer,ps_server} "$work/made/bin/"
"$scripts/relocate.sh" "$work/made" "$work/made"/bin/*
mv "$work/made" "$work/package"
package=$work/package
grep -q "SHA-256 of the program: $(sha256sum <"$package/libexec/psring" | cut -d ' ' -f 1)" "$package/bin/psring" ||
  fail "no hash of the program"

uses_own_libc() { LD_DEBUG=libs "$package/bin/psring" --version 2>&1 | grep "$package/lib/glibc/libc.so.6" >/dev/null; }
train=(train --strategy ps-sync --workers 2 --model mlp-small --data synthetic --steps 2 --no_eval --lang en)

# The host's libc has the package's version.
! uses_own_libc || fail "the package's libc is used, although the host's is as new"
expect "samples/s" "$package/bin/psring" "${train[@]}" --out "$work/with-host"
ln -s "$package/bin/psring" "$work/link"
expect "^psring " "$work/link" --version

echo 99 >"$package/lib/glibc/version"
uses_own_libc || fail "the package's libc is not used, although it is newer"
expect "samples/s" "$package/bin/psring" "${train[@]}" --out "$work/with-own"
expect '"psring"' cat "$work/with-own/manifest.json"

expect "^psring " "$scripts/empty_root.sh" "$package" lib/glibc/ld-linux-x86-64.so.2 \
  --library-path /psring/lib/glibc:/psring/lib /psring/libexec/psring --version
echo passed
