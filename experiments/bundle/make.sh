#!/usr/bin/env bash
# Packs a build of the preset `bundle` into a relocatable archive: make.sh BUILD ARCHIVE. Programs find their libraries
# in ../lib by a relative path. The target machine provides glibc and, for GPUs, the driver, cuBLASLt, cuDNN and NCCL.
set -euo pipefail
build=$(cd "$1" && pwd) archive=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=psring
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/$name"/{bin,lib,tests}

for program in psring trainer ps_server ring_worker ps_worker op_bandwidth step_limit; do
  cp "$build/bin/$program" "$stage/$name/bin/"
done
# Leaves out tests that contain the build folder's path: they need programs or sources there.
for test in "$build"/bin/*_test; do
  grep -qF "${build%/build/*}" "$test" || cp "$test" "$stage/$name/tests/"
done
cp "$here/check.sh" "$here/README.md" "$here/../benchmarks/pytorch_peer.py" "$stage/$name/"
strip "$stage/$name"/{bin,tests}/*

ldd "$stage/$name"/{bin,tests}/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' |
  while read -r library; do cp -L "$library" "$stage/$name/lib/"; done

tar -C "$stage" -c "$name" | xz -T0 -5 >"$archive"
echo "$archive: $(du -h "$archive" | cut -f1), $(ls "$stage/$name/tests" | wc -l) tests"
