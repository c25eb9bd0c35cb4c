#!/usr/bin/env bash
# Relocated programs find each other and start with the host's libc, with their own where that is newer, and where nothing else is
# installed: relocate_test.sh SCRIPTS PSRING. SCRIPTS is experiments/deploy/bundle.
set -euo pipefail
scripts=$1 psring=$2
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
cp "$psring" "$work/made/bin/psring"
"$scripts/relocate.sh" "$work/made" "$work/made/bin/psring"
mv "$work/made" "$work/package"
package=$work/package
grep -q "SHA-256 of the program: $(sha256sum <"$package/libexec/psring" | cut -d ' ' -f 1)" "$package/bin/psring" ||
  fail "no hash of the program"
# Programs that only show that psring finds them.
for name in trainer ps_server; do
  printf '#!/bin/sh\ntouch "%s"\nexit 1\n' "$work/started" >"$package/bin/$name"
  chmod +x "$package/bin/$name"
done
finds_others() {
  rm -f "$work/started"
  "$1" train --dry_run >/dev/null 2>&1 || true
  [[ -e $work/started ]] || fail "$1 does not start the trainer beside it"
}
uses_own_libc() { LD_DEBUG=libs "$package/bin/psring" --version 2>&1 | grep "$package/lib/glibc/libc.so.6" >/dev/null; }

# The host's libc has the package's version.
! uses_own_libc || fail "the package's libc is used, although the host's is as new"
finds_others "$package/bin/psring"
ln -s "$package/bin/psring" "$work/link"
finds_others "$work/link"

echo 99 >"$package/lib/glibc/version"
uses_own_libc || fail "the package's libc is not used, although it is newer"
finds_others "$package/bin/psring"

expect "^psring " "$scripts/empty_root.sh" "$package" lib/glibc/ld-linux-x86-64.so.2 \
  --library-path /psring/lib/glibc:/psring/lib /psring/libexec/psring --version
echo passed
