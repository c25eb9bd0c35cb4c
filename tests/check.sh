#!/usr/bin/env bash
# Checks that take longer than tests or need more tools: formatting, clang-tidy and sanitizers. Called by `./run check`,
# which installs the tools. --all: clang-tidy on all sources, all test cases with sanitizers instead of one in four and
# those of experiments/, 10 minutes of fuzzing for each parser instead of 10 s, 200 random faults of real jobs, 20 deaths
# in pipelines and 140 in transformers, training by every layout, the container image, and the core tests for arm64.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
export PSRING_LANG=en  # whatever the locale

all=
case ${1:-} in
  '') ;;
  --all) all=yes ;;
  *)
    echo "run check: unknown flag $1; the only flag is --all" >&2
    exit 2
    ;;
esac

# Tests that start no other process, by sanitizer. trainer_test, too, uses what ps_direct_test tests.
address_tests=(common_test common_ops_test ring_worker_test ps_server_test ps_grpc_test ps_shared_test ps_stream_test
               ps_wire_test trainer_test)
# A quarter of the build for code that has no threads and no memory of its own; its parsers are fuzzed below.
[[ -z $all ]] || address_tests+=(experiments_test)
thread_tests=(common_test ring_worker_test ps_server_test ps_direct_test)
# Sanitizers have a pthread_create of their own, with which a program cannot report that a thread does not start.
not_with_sanitizers='*AThreadThatCannotStartEndsTheProcess*'
# Debian's gRPC is not built for the thread sanitizer, and reports races of its own. Of the collectives, the tests of all
# counts, sizes and types would take an hour. The last ones have no threads and compute for long.
not_with_threads='-*Rendezvous*:*ARankThatEndsBeforeItConnects*:RingWorker*:*EveryCollective*'
not_with_threads+=":$not_with_sanitizers:CheckScheduleTest.*:ScheduleTest.*:CommonStep.*:BenchValues.*:Csv.*:Json*"
shards=4

step() { echo "check: $1 ($((SECONDS / 60)) min so far)"; }

formatting() {
  step formatting
  git ls-files '*.h' '*.cc' '*.cu' | xargs clang-format --dry-run -Werror
}

# The sources that differ from the last release, or else from main; on main, those of the last commit. Of many, a part:
# every n-th, beginning with another one for each commit.
tidied=60
changed_sources() {
  local base
  base=$(git describe --tags --abbrev=0 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null ||
         git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  [[ $(git rev-parse "$base^{commit}") != $(git rev-parse HEAD) ]] || base=$(git rev-parse -q --verify HEAD^ || echo HEAD)
  git diff --name-only --diff-filter=d "$base" -- '*.cc' ':!tests' |
    awk -v most=$tidied -v seed="$((0x$(git rev-parse --short=7 HEAD)))" \
      '{ line[NR - 1] = $0 } END { n = int((NR + most - 1) / most); for (i = n ? seed % n : 0; i < NR; i += n) print line[i] }'
}

tidy() {
  local sources
  if [[ -n $all ]]; then
    mapfile -t sources < <(git ls-files '*.cc' ':!tests')
  else
    mapfile -t sources < <(changed_sources)
  fi
  step "clang-tidy on ${#sources[@]} files"
  # One command per source, which a unity build does not have; generated headers must exist.
  cmake --preset debug -B build/tidy -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DBUILD_TESTING=OFF >/dev/null
  ninja -C build/tidy psring_proto >/dev/null
  # Files of parts that were not found have no command.
  local built=() source
  for source in "${sources[@]}"; do
    ! grep -q "\"file\": \"$root/$source\"" build/tidy/compile_commands.json || built+=("$source")
  done
  ((${#built[@]} == 0)) ||
    printf '%s\0' "${built[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy -p build/tidy --quiet --warnings-as-errors='*'
}

# sanitized PRESET GTEST_FILTER TEST...
sanitized() {
  local preset=$1 filter=$2 test shard
  shift 2
  step "building ${#} test binaries with the $preset preset"
  PSRING_PRESET=$preset ./run build "$@"
  for test in "$@"; do
    step "$test ($preset)"
    for ((shard = 0; shard < (${#all} ? shards : 1); ++shard)); do
      GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard "build/$preset/bin/$test" --gtest_brief=1 --gtest_filter="$filter"
    done
  done
}

# fuzz TARGET SECONDS: starts from the target's seeds, if it has any, and keeps what it finds in a temporary folder.
fuzz() {
  local found inputs
  found=$(mktemp -d)
  mkdir "$found/inputs"
  inputs=("$found/inputs" "$root/tests/fuzz/seeds/$1")
  [[ -d ${inputs[1]} ]] || unset 'inputs[1]'
  # The packages' libraries are not instrumented, which the check of containers' bounds does not allow.
  if ! (cd "$found" && TMPDIR=$found ASAN_OPTIONS=detect_container_overflow=0 "$root/build/fuzz/bin/fuzz_$1" \
    -max_total_time="$2" -timeout=20 -rss_limit_mb=2048 -verbosity=0 -artifact_prefix=/tmp/ "${inputs[@]}" >log 2>&1); then
    cat "$found/log"
    return 1
  fi
  rm -rf "$found"
}

fuzzing() {
  local targets seconds=10
  [[ -z $all ]] || seconds=600
  step "building the fuzz targets"
  PSRING_PRESET=fuzz ./run build fuzz
  mapfile -t targets < <(basename -a build/fuzz/bin/fuzz_* | sed s/^fuzz_//)
  step "fuzzing ${#targets[@]} parsers for $seconds s each"
  export root
  export -f fuzz
  printf '%s\0' "${targets[@]}" | xargs -0 -P "$(nproc)" -I{} bash -c "fuzz {} $seconds"
}

# Real jobs under random faults; the plain tests draw only 8, and 1 death in a pipeline.
faults() {
  [[ -n $all ]] || return 0
  step "200 random faults"
  ./run build faults_test psring_process_test psring trainer ps_server
  PSRING_FAULTS=200 build/release/bin/faults_test --gtest_brief=1
  local in_turn='*OfATransformerContinue*'  # 20 for each of 7 layouts
  step "20 deaths in pipelines"
  PSRING_DEATHS=20 build/release/bin/psring_process_test --gtest_brief=1 \
    --gtest_filter="MortalPipelineTest.*-$in_turn"
  step "140 deaths in transformers"
  PSRING_DEATHS=140 build/release/bin/psring_process_test --gtest_brief=1 --gtest_filter="$in_turn"
}

# Training by every layout; the plain tests draw a sample.
layouts() {
  [[ -n $all ]] || return 0
  step "every layout"
  ./run build trainer_test
  PSRING_LAYOUTS=1 build/release/bin/trainer_test --gtest_brief=1 --gtest_filter='EveryLayout.*'
}

# The image, as users build and run it. Says so where this machine cannot run containers.
containers() {
  [[ -n $all ]] || return 0
  step "the container image"
  local status=0
  tests/experiments/deploy/container/image_test.sh || status=$?
  ((status == 0 || status == 77)) || return $status
}

# Cross-compiled, with an emulator.
arm64() {
  [[ -n $all ]] || return 0
  step "arm64"
  tests/arm64.sh
}

formatting
tidy
faults
layouts
containers
arm64
sanitized asan "-$not_with_sanitizers" "${address_tests[@]}"
sanitized tsan "$not_with_threads" "${thread_tests[@]}"
fuzzing
step "all passed"
