#!/usr/bin/env bash
# Packs a build of the preset `bundle` into an archive for any x86-64 Linux: make.sh BUILD ARCHIVE. Programs find
# their libraries and libc in ../lib. For GPUs, the target machine provides the driver, cuBLASLt, cuDNN and NCCL.
set -euo pipefail
build=$(cd "$1" && pwd) archive=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=psring
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
mkdir -p "$stage/$name"/{bin,tests,lecture}

for program in psring trainer ps_server ring_worker ps_worker op_bandwidth step_limit exercise; do
  cp "$build/bin/$program" "$stage/$name/bin/"
done
# Leaves out tests that need programs or sources (most contain the build folder's path), and tests on fakes of CUDA, which show
# nothing about another machine.
for test in "$build"/bin/*_test; do
  [[ $test == */structure_test ]] || grep -qE "${build%/build/*}|TheFakeCuda" "$test" || cp "$test" "$stage/$name/tests/"
done
cp "$here"/check*.sh "$here/README.md" "$here"/../../benchmarks/{runs,samples,pytorch_peer,pytorch_models}.py "$stage/$name/"
cp -r "$here"/../../lecture/{exercise,exercises,lecture.toml} "$stage/$name/lecture/"
strip "$stage/$name"/{bin,tests}/*

"$here/relocate.sh" "$stage/$name" "$stage/$name"/{bin,tests}/*

tar -C "$stage" -c "$name" | xz -T0 -5 >"$archive"
echo "$archive: $(du -h "$archive" | cut -f1), $(ls "$stage/$name/tests" | wc -l) tests"
