#!/usr/bin/env bash
# In an image: builds psring with PRESET and installs it to /opt/psring, with a script that installs the packages of the
# shared libraries that it uses: build.sh PRESET. Debian and Ubuntu name these packages differently in each version.
set -euo pipefail
preset=$1 to=/opt/psring
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
PSRING_PRESET=$preset ./run build psring trainer ps_server ring_worker ps_worker
cmake --install "build/$preset" --prefix "$to" --strip

mapfile -t libraries < <(ldd "$to"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u)
# ldd may name /lib/..., and dpkg the same file /usr/lib/...
mapfile -t packages < <(dpkg -S "${libraries[@]}" "${libraries[@]/#//usr}" 2>/dev/null | cut -d: -f1 | sort -u)
# Beside them: mpirun, and what `--link` and the default data set need.
packages+=(openmpi-bin iproute2 dataset-fashion-mnist)
cat >"$to/install_packages.sh" <<END
#!/bin/sh
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y --no-install-recommends ${packages[*]}
rm -rf /var/lib/apt/lists/*
END
chmod +x "$to/install_packages.sh"
