#!/usr/bin/env bash
# Lets programs start on any x86-64 Linux: relocate.sh FOLDER PROGRAM... Adds to FOLDER/lib the shared libraries that the
# programs need, and to FOLDER/lib/glibc those of libc, its loader and a file with its version. The programs are in FOLDER/bin or
# another folder of FOLDER; they move to FOLDER/libexec, and start.sh takes their places.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
shift
mkdir -p "$folder/lib/glibc" "$folder/libexec"

libraries=$(ldd "$@")
if missing=$(grep 'not found' <<<"$libraries"); then
  echo "relocate.sh: missing libraries:" $missing >&2
  exit 1
fi
mapfile -t libraries < <(grep -oE '/[^ ]+\.so[^ ]*' <<<"$libraries" | grep -vF "$folder/" | sort -u)
# All of glibc: a driver may need parts of it that the programs do not.
glibc=(ld-linux-x86-64.so.2 libc.so.6 libm.so.6 libmvec.so.1 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 libutil.so.1
       libanl.so.1 libnss_dns.so.2 libnss_files.so.2)
for library in "${libraries[@]}"; do
  [[ $library == */libc.so.6 ]] || continue
  for name in "${glibc[@]}"; do
    [[ ! -e ${library%/*}/$name ]] || cp -L "${library%/*}/$name" "$folder/lib/glibc/"
  done
done
version=$("$folder/lib/glibc/ld-linux-x86-64.so.2" --version 2>/dev/null | grep -oP 'release version 2\.\K[0-9]+') ||
  { echo "relocate.sh: the programs do not use a glibc of version 2.33 or later" >&2; exit 1; }
echo "$version" >"$folder/lib/glibc/version"
for library in "${libraries[@]}"; do
  ! readelf -d "$library" | grep -qE 'RUNPATH|RPATH' ||
    { echo "relocate.sh: $library has its own search path (RUNPATH), so it would not use the package's libraries" >&2; exit 1; }
  [[ " ${glibc[*]} " == *" ${library##*/} "* ]] || cp -L "$library" "$folder/lib/"
done

for program in "$@"; do
  moved=$folder/libexec/${program##*/}
  mv "$program" "$moved"
  # The hash identifies the program in the manifests of its runs.
  { cat "$here/start.sh" && echo "# SHA-256 of the program: $(sha256sum <"$moved" | cut -d ' ' -f 1)"; } >"$program"
  chmod +x "$program"
done
