#!/usr/bin/env bash
# Cross-compiles psring for arm64 (the preset arm64), runs the core tests with qemu-user, and trains: arm64.sh [TEST...]
# Called by `./run check --all`, which installs the tools. The libraries are packages of this machine's Debian release for
# arm64. They are unpacked to build/arm64-sysroot, not installed, and apt uses lists and a cache of its own.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

packages=(libc6-dev libprotobuf-dev libgrpc++-dev libabsl-dev libgtest-dev libgmock-dev libdnnl-dev libcli11-dev
          nlohmann-json3-dev libtomlplusplus-dev libboost-math-dev zlib1g-dev libssl-dev libgloo-dev libjs-d3)
programs=(psring trainer ps_server ring_worker ps_worker)
tests=(common_test common_ops_test reduce_test ring_worker_test ps_server_test ps_direct_test trainer_test)

sysroot=$root/build/arm64-sysroot
bin=$root/build/arm64/bin
export QEMU_LD_PREFIX=$sysroot

step() { echo "arm64: $1 ($((SECONDS / 60)) min so far)"; }
fail() { echo "arm64: $1" >&2; exit 1; }

# download FOLDER: the packages and what they depend on, as if nothing were installed.
download() {
  mkdir -p "$1/lists/partial" "$1/archives/partial"
  touch "$1/status"
  # Of this machine's configuration only proxies, certificates and checks, besides the package sources.
  {
    echo "Dir::Etc::main \"\"; Dir::Etc::parts \"\"; Dir::State \"$1\"; Dir::State::status \"$1/status\"; Dir::Cache \"$1\";"
    echo 'APT::Architecture "arm64"; APT::Architectures:: "arm64"; Acquire::Languages "none";'
    apt-config dump | grep -E '^Acquire::(https?|Check-[A-Za-z-]*)[: ]' || true
  } >"$1/apt.conf"
  APT_CONFIG=$1/apt.conf apt-get -qq update &&
    APT_CONFIG=$1/apt.conf apt-get -qq install -y --no-install-recommends --download-only "${packages[@]}"
}

make_sysroot() {
  [[ ! -f $sysroot/packages || $(<"$sysroot/packages") != "${packages[*]}" ]] || return 0
  step "downloading libraries for arm64"
  local apt package link part=$sysroot.part
  rm -rf "$sysroot" "$part"
  mkdir -p "$part"
  apt=$(mktemp -d)
  chmod 755 "$apt"  # apt downloads as another user
  if ! download "$apt" >"$apt/log" 2>&1; then
    tail -n 5 "$apt/log" >&2
    rm -rf "$apt"
    fail "apt cannot download the packages for arm64 (see above): ${packages[*]}"
  fi
  for package in "$apt"/archives/*.deb; do
    dpkg-deb -x "$package" "$part"
  done
  rm -rf "$apt"
  # Absolute links would lead to this machine's own files.
  find "$part" -type l -lname '/*' | while read -r link; do ln -snfr "$part$(readlink "$link")" "$link"; done
  # Programs are this machine's. gRPC's CMake package expects those that generate code in its own prefix.
  (cd "$part" && rm -rf bin sbin usr/bin usr/sbin)
  mkdir "$part/usr/bin"
  ln -s /usr/bin/grpc_*_plugin "$part/usr/bin/"
  echo "${packages[*]}" >"$part/packages"
  mv "$part" "$sysroot"
}

(($# == 0)) || tests=("$@")

# The filter of a binary's tests. With an emulator, all tests of two binaries would take too long. ring_worker_test runs
# collectives of all counts, sizes and types only in one process; trainer_test runs its tests of data, plans, checkpoints and
# tables, and of what strategies do with gradients, one strategy of each kind.
tests_of() {
  local filter='*' every='*EveryCollectiveIsExactForManyRankCountsSizesTypesAndOps' strategy
  case $1 in
    ring_worker_test) filter="*-$every/tcp_*:$every/shm_*:$every/mixed_*:$excluded" ;;
    trainer_test)
      filter='*SynchronousStrategy*:*DataParallel*:*ErrorFeedback*:*Checkpoint*:*Sampler*:Data*:*Plan*:*Registry*'
      filter+=':TableTraining*:Hybrid*:Models.*'
      for strategy in single_1 dp_1 ring_3 ps_sync_2; do
        filter+=":*SynchronousConformance*/$strategy"
      done
      ;;
    *) filter="*-$excluded" ;;
  esac
  echo "$filter"
}

# emulated COMMAND...: runs an arm64 program.
emulated() { "${namespace[@]}" qemu-aarch64 "$@"; }

# The programs that a program starts are arm64 programs, too. The kernel starts them if binfmt_misc says how: this machine's,
# or else a private one in a user namespace (from Linux 6.7 on). Sets `namespace`, `starts_children` and `excluded`.
find_namespace() {
  namespace=() starts_children=yes excluded=
  ! "$bin/trainer" --version >/dev/null 2>&1 || return 0
  # The namespace has only one user, so the test cannot give files to others.
  excluded=JobSecretTest.AFileOfRootMayBeReadableByAGroupOfThisProcess
  namespace=(unshare --user --map-root-user --mount sh -c 'mount -t binfmt_misc none /proc/sys/fs/binfmt_misc &&
    echo ":psring:M:18:\\xb7\\x00::$(command -v qemu-aarch64):" >/proc/sys/fs/binfmt_misc/register && exec "$@"' sh)
  ! "${namespace[@]}" "$bin/trainer" --version >/dev/null 2>&1 || return 0
  # These start ring_worker, or themselves.
  excluded='RingWorker*:RendezvousTest.DeathOfAProcessEndsTheWaitsForIt'
  namespace=() starts_children=
  echo "arm64: the kernel cannot start arm64 programs: left out are $excluded and a training with several processes"
}

for tool in aarch64-linux-gnu-g++ qemu-aarch64 apt-get dpkg-deb grpc_cpp_plugin; do
  command -v $tool >/dev/null || fail "no $tool: run ./run check --all, or install g++-aarch64-linux-gnu and qemu-user"
done
make_sysroot
step "building"
PSRING_PRESET=arm64 ./run build "${programs[@]}" "${tests[@]}"
find_namespace
for test in "${tests[@]}"; do
  step "$test"
  emulated "$bin/$test" --gtest_brief=1 --gtest_filter="$(tests_of "$test")"
done
step "training"
run=$(mktemp -d)
training=(--model mlp-small --data synthetic --batch 16 --steps 20)
if [[ -n $starts_children ]]; then
  emulated "$bin/psring" train --strategy ring --workers 2 "${training[@]}" --out "$run/trained"
else
  emulated "$bin/trainer" --strategy single "${training[@]}"
fi
rm -rf "$run"
step "all passed"
