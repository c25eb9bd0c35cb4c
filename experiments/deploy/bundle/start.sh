#!/bin/sh
# Starts the program of this name in ../libexec: with the machine's glibc, which fits its drivers and name services, or with
# the package's (lib/glibc) if that is newer. relocate.sh puts a copy in the place of each program.
self=$(readlink -f "$0")
folder=${self%/*/*} program=${self##*/}
export PSRING_PROGRAM="$self"
read -r own <"$folder/lib/glibc/version"
host=$(/lib64/ld-linux-x86-64.so.2 --version 2>/dev/null)  # "ld.so (Debian GLIBC 2.41-12) stable release version 2.41. ..."
host=${host#*release version 2.}
host=${host%%[!0-9]*}
[ "${host:-0}" -lt "$own" ] || exec "$folder/libexec/$program" "$@"
exec "$folder/lib/glibc/ld-linux-x86-64.so.2" --library-path \
  "$folder/lib/glibc:$folder/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$folder/libexec/$program" "$@"
