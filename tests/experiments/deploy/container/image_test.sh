#!/usr/bin/env bash
# Builds the image of experiments/deploy/container and runs it as a user without privileges, with a read-only root file system and
# a mounted folder. The base image is bootstrapped from the package sources of this machine. Exits with 77, and says why,
# if this machine cannot do so. About 15 minutes on 2 cores: image_test.sh [BUILDAH_FLAG...]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../../.." && pwd)
skip() { echo "container: skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }

((EUID == 0)) || skip "debootstrap needs root"
for tool in debootstrap buildah podman; do
  command -v $tool >/dev/null || skip "no $tool"
done
work=$(mktemp -d /var/tmp/psring-container.XXXXXX)
storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
finish() {
  buildah "${storage[@]}" umount --all >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work"
}
trap finish EXIT

# From the mirror, and with the certificates and proxies, of this machine.
codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' "Release: $codename" 2>/dev/null | head -n 1)
[[ -n $mirror ]] || skip "apt has no package lists of $codename; run apt-get update"
echo "container: bootstrapping $codename"
debootstrap --variant=minbase --include=ca-certificates "$codename" "$work/base" "$mirror" >"$work/log" 2>&1 ||
  { tail -n 5 "$work/log"; fail "debootstrap"; }
echo "deb $mirror $codename main" >"$work/base/etc/apt/sources.list"
cp -rL /etc/ssl/certs "$work/base/etc/ssl/" 2>/dev/null || true
apt-config dump | grep -E '^Acquire::(https?|Check-[A-Za-z-]*)[: ]' >"$work/base/etc/apt/apt.conf.d/90machine" || true
tar -C "$work/base" -c . | podman "${storage[@]}" import --quiet - localhost/psring-base >/dev/null
rm -rf "$work/base"

echo "container: building the target cpu ($((SECONDS / 60)) min so far)"
if ! buildah "${storage[@]}" build --isolation chroot --build-arg BASE=localhost/psring-base --target cpu -t localhost/psring \
  -f "$root/experiments/deploy/container/Containerfile" "$@" "$root" >"$work/log" 2>&1; then
  tail -n 30 "$work/log"
  fail "the image cannot be built"
fi

runs=$work/runs
mkdir "$runs" && chown 12345:12345 "$runs" && chmod 755 "$work"
engine=() limits=()
# in_container COMMAND...: with psring's defaults if the first word is a verb, else the program of that path.
in_container() {
  local entry=()
  [[ $1 != /* ]] || { entry=(--entrypoint "$1"); shift; }
  podman "${storage[@]}" "${engine[@]}" run --rm --network none --read-only --tmpfs /tmp --shm-size 512m --user 12345:12345 \
    "${limits[@]}" -v "$runs:/work/runs" "${entry[@]}" localhost/psring "$@"
}
if ! in_container --version >"$work/log" 2>&1; then
  # A container within another may need lower limits and an older runtime.
  engine=(--runtime runc) limits=(--ulimit nofile=1024:1024 --ulimit nproc=4096:4096)
  in_container --version >>"$work/log" 2>&1 || { cat "$work/log"; skip "podman cannot run containers here (see above)"; }
fi

echo "container: running ($((SECONDS / 60)) min so far)"
[[ $(in_container /usr/bin/id -u) == 12345 ]] || fail "another user"
! in_container /usr/bin/touch /opt/psring/written 2>/dev/null || fail "the root file system can be written to"
in_container compare --strategies ring,ps-sync --workers 2 --repeats 2 --steps 20 --model mlp-small --no_eval \
  --out runs/compared >"$work/log" 2>&1 || { cat "$work/log"; fail "compare"; }
grep -q runs/compared "$work/log" || { cat "$work/log"; fail "compare names no run folder"; }
[[ $(stat -c %u "$runs/compared/report.html") == 12345 ]] || fail "no report of that user in the mounted folder"
for strategy in ring ps-sync; do
  grep -q "$strategy" "$runs/compared/summary.csv" || fail "no row of $strategy"
done
in_container /opt/psring/bin/trainer --help >/dev/null || fail "trainer"
echo "container: passed after $((SECONDS / 60)) min; the image has $(podman "${storage[@]}" images --format '{{.Size}}' localhost/psring)"
