#!/usr/bin/env bash
# Runs a program of an unpacked package where nothing else exists, as on a machine without any of its libraries:
# empty_root.sh FOLDER PROGRAM [ARGUMENT...]. FOLDER becomes /psring of a new root that has /proc, /dev and /tmp only, and
# PROGRAM is relative to it ("bin/psring"). Exits with 77 if this user may not make such a root.
set -euo pipefail
folder=$(cd "$1" && pwd)
shift
mine=()
((EUID == 0)) || mine=(--map-root-user)
unshare "${mine[@]}" --mount --pid --fork true 2>/dev/null || { echo "empty_root.sh: no new root for this user" >&2; exit 77; }
root=$(mktemp -d)
trap 'rm -rf --one-file-system "$root"' EXIT
mkdir -p "$root"/{psring,proc,dev,tmp}
exec_in='
  set -e
  mount --rbind "$1" "$0/psring"
  mount -t proc proc "$0/proc"
  mount --rbind /dev "$0/dev"
  mount -t tmpfs tmpfs "$0/tmp"
  root=$0 program=/psring/$2
  shift 2
  exec chroot "$root" "$program" "$@"'
status=0
unshare "${mine[@]}" --mount --pid --fork --kill-child bash -c "$exec_in" "$root" "$folder" "$@" || status=$?
exit $status
