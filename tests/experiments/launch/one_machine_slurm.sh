#!/bin/sh
# Runs a command in a temporary Slurm of this machine: one_machine_slurm.sh srun -n 2 ...
# Needs slurm-wlm, munge and root. Removes its daemons and files afterwards.
set -eu
folder=$(mktemp -d "${TMPDIR:-/tmp}/psring-slurm-XXXXXX")
daemons=
# Our daemons, and slurmd's step daemons with our configuration.
ours() {
  for pid in $daemons; do
    if kill -0 "$pid" 2>/dev/null; then echo "$pid"; fi
  done
  for environment in /proc/[0-9]*/environ; do
    pid=${environment%/environ}
    pid=${pid#/proc/}
    if grep -q slurmstepd "/proc/$pid/comm" 2>/dev/null && grep -q "$folder" "$environment" 2>/dev/null; then
      echo "$pid"
    fi
  done
}
end() {
  # A step that has not reported its end keeps slurmd.
  for i in $(seq 25); do
    if [ -z "$(squeue -h 2>/dev/null)" ]; then break; fi
    sleep 0.2
  done
  for signal in TERM KILL; do
    for pid in $(ours); do kill -$signal "$pid" 2>/dev/null || true; done
    for i in $(seq 15); do
      if [ -z "$(ours)" ]; then break; fi
      sleep 0.2
    done
  done
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 143' TERM INT HUP

host=$(hostname -s)
cpus=$(nproc)
if [ "$cpus" -lt 4 ]; then cpus=4; fi  # for a batch job of four tasks
port=$((20000 + $$ % 6000 * 2))  # below those that the system gives to others
mkdir "$folder/state" "$folder/spool" "$folder/munge"
chmod 0700 "$folder/munge"
head -c 1024 /dev/urandom > "$folder/munge/key"
chmod 0400 "$folder/munge/key"
chmod 0755 "$folder"
munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munge/pid" --seed-file="$folder/munge/seed" --log-file="$folder/munge/log" \
  > "$folder/munged.log" 2>&1 &
daemons="$daemons $!"
cat > "$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmctldPort=$port
SlurmdPort=$((port + 1))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF="$folder/slurm.conf"
slurmctld -D -f "$SLURM_CONF" > "$folder/out" 2>&1 &
daemons="$daemons $!"
slurmd -D -f "$SLURM_CONF" -N "$host" > "$folder/out2" 2>&1 &
daemons="$daemons $!"
for i in $(seq 100); do
  if sinfo -h -o %T 2>/dev/null | grep -q idle; then break; fi
  if [ "$i" = 100 ]; then
    echo "one_machine_slurm: no node became idle; logs of the daemons:" >&2
    tail -n 5 "$folder"/*.log "$folder"/out* >&2
    exit 1
  fi
  sleep 0.2
done
# A node that is reported as idle may still reject its first step.
for i in 1 2 3; do
  if timeout 10 srun -n 1 true > "$folder/out3" 2>&1; then break; fi
  if [ "$i" = 3 ]; then
    echo "one_machine_slurm: no step can be run; logs of the daemons:" >&2
    tail -n 5 "$folder"/*.log "$folder"/out* >&2
    exit 1
  fi
done
"$@"
