#!/usr/bin/env bash
# Lets programs start on any x86-64 Linux: relocate.sh FOLDER PROGRAM... Adds to FOLDER/lib the shared libraries that the
# programs need, and to FOLDER/lib/glibc those of libc and its loader, and hides the loader's path from the kernel
# (start/start.cc). The programs are in FOLDER/bin or another folder of FOLDER, and are linked with psring_start.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder/lib/glibc"

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
[[ -e $folder/lib/glibc/libc.so.6 ]] || { echo "relocate.sh: the programs do not use glibc" >&2; exit 1; }
for library in "${libraries[@]}"; do
  ! readelf -d "$library" | grep -qE 'RUNPATH|RPATH' ||
    { echo "relocate.sh: $library has its own search path (RUNPATH), so it would not use the package's libraries" >&2; exit 1; }
  [[ " ${glibc[*]} " == *" ${library##*/} "* ]] || cp -L "$library" "$folder/lib/"
done

# PT_INTERP becomes PT_NULL: the first 4 bytes of its entry in the table of 56-byte entries after the 64-byte header.
for program in "$@"; do
  index=$(readelf -lW "$program" | awk '$2 ~ /^0x/ {if ($1 == "INTERP") print count; ++count}')
  [[ -n $index && $(readelf -hW "$program") =~ headers:\ +64\  ]] ||
    { echo "relocate.sh: $program has no path of a loader to hide" >&2; exit 1; }
  printf '\0\0\0\0' | dd of="$program" bs=1 seek=$((64 + 56 * index)) conv=notrunc status=none
done
