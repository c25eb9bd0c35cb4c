#!/usr/bin/env bash
# A relocated program starts with its own libc where nothing else is installed, and with the host's where that is not
# older: relocate_test.sh SCRIPTS PROGRAM. SCRIPTS is experiments/bundle; PROGRAM is linked with psring_start.
set -euo pipefail
scripts=$1 program=$2
name=$(basename "$program")
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

expect "libc /" "$program"  # in the build folder, by the kernel

mkdir -p "$work/package/bin"
cp "$program" "$work/package/bin/"
"$scripts/relocate.sh" "$work/package" "$work/package/bin/$name"
! readelf -lW "$work/package/bin/$name" | grep -q INTERP || fail "the loader's path is still there"

host=$(ldd "$program" | awk '$1 == "libc.so.6" {print $3}')
expect "^program $work/package/bin/$name, 2 arguments, libc $host$" "$work/package/bin/$name" one two
expect "^program /psring/bin/$name, 2 arguments, libc /psring/bin/../lib/glibc/libc.so.6$" \
  "$scripts/empty_root.sh" "$work/package" "bin/$name" one two
mv "$work/package" "$work/moved"
expect "libc /psring/bin/../lib/glibc" "$scripts/empty_root.sh" "$work/moved" "bin/$name"

# A package with a newer libc than the host's uses its own. The number is only in a text of the loader.
loader=$work/moved/lib/glibc/ld-linux-x86-64.so.2
sed -i 's/release version 2\.[0-9][0-9]/release version 2.99/' "$loader"
expect "libc $work/moved/bin/../lib/glibc/libc.so.6$" "$work/moved/bin/$name"

# Without any libc: one line, no crash.
rm -r "$work/moved/lib/glibc"
status=0
output=$("$scripts/empty_root.sh" "$work/moved" "bin/$name" 2>&1) || status=$?
[[ $status == 127 && $output == "psring: cannot start: the package has no lib/glibc, and this machine no glibc" ]] ||
  fail "without a libc: status $status, $output"
mkdir "$work/moved/lib/glibc" && printf 'no ELF file' >"$loader"
status=0
output=$("$scripts/empty_root.sh" "$work/moved" "bin/$name" 2>&1) || status=$?
[[ $status == 127 && $output == "psring: cannot start: the dynamic loader is damaged" ]] ||
  fail "with a damaged loader: status $status, $output"
echo passed
