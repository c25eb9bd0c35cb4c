#!/usr/bin/env python3
"""Trains for some minutes and checks that memory and descriptors do not grow.

    ./run build && experiments/benchmarks/soak.py [--minutes 10] [--settle 2] [--cases single,ring] [--out FILE]

Runs the cases one after another: single, ring and ps-async with a batch of 32, ps-sync with 128; with 4 workers and a server
process where there are workers. After --settle minutes and at the end, it adds up the resident memory (anonymous pages and
shared memory, from /proc/PID/smaps_rollup: Pss, so that pages of several processes count once) and the open descriptors of all
processes of the job. Pages of files do not count: a process's part of a library changes when other programs use it. Exit code 1
if memory grew by 1% or more, or descriptors at all, or if the job ended by itself.
"""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import runs

SERVER = ["--workers", "4", "--server_placement", "dedicated"]
CASES = {"single": ["--strategy", "single", "--batch", "32"],
         "ring": ["--strategy", "ring", "--workers", "4", "--batch", "32"],
         "ps-async": ["--strategy", "ps-async", *SERVER, "--batch", "32"],
         "ps-sync": ["--strategy", "ps-sync", *SERVER, "--batch", "128"]}
GROWTH_BELOW = .01
EXPLANATION = ("Memory: resident anonymous and shared pages of all processes of a job. `single`, `ring` and `ps-async` have a batch of "
               "32, `ps-sync` of 128; all but `single` have 4 workers, and `ps-*` a server.")


def family(root):
    """The process `root` and all its descendants."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    members = [root]
    for one in members:  # which grows
        members += [pid for pid, parent in parents.items() if parent == one]
    return members


def usage(root):
    """(KiB of memory, open descriptors, processes) of a job."""
    kib = descriptors = 0
    members = family(root)
    for pid in members:
        folder = pathlib.Path("/proc") / str(pid)
        kib += sum(int(line.split()[1]) for line in (folder / "smaps_rollup").read_text().splitlines()
                   if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
        descriptors += len(os.listdir(folder / "fd"))
    return kib, descriptors, len(members)


def soak(arguments, minutes, settle):
    """Returns (usage after `settle` minutes, usage after `minutes`)."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([runs.PSRING, "train", *arguments, "--steps", "1000000000", "--no_eval", "--out", folder + "/run"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            begin, seen = time.monotonic(), []
            for after in (settle, minutes):
                try:
                    job.wait(max(0, begin + 60 * after - time.monotonic()))
                except subprocess.TimeoutExpired:
                    seen.append(usage(job.pid))
                else:
                    sys.exit(f"the job ended after {(time.monotonic() - begin) / 60:.1f} minutes: {job.stderr.read()}")
            return seen
        finally:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)


def grew(before, after):
    """Whether memory or descriptors grew between two values of usage()."""
    return after[0] >= before[0] * (1 + GROWTH_BELOW) or after[1] > before[1]


def main():
    args = runs.parse(__doc__, minutes=10.0, settle=2.0, cases=",".join(CASES), out=(str, runs.ALSO_TO))
    rows, failed = [], False
    for case in args.cases.split(","):
        if case not in CASES:
            sys.exit(f"--cases: {case} is none of {', '.join(CASES)}")
        before, after = soak(CASES[case], args.minutes, args.settle)
        failed |= grew(before, after)
        (kib0, fds0, processes), (kib1, fds1, _) = before, after
        rows.append((case, processes, f"{kib0 / 1024:.1f}", f"{kib1 / 1024:.1f}", f"{kib1 / kib0 - 1:+.2%}", fds0, fds1))
        print(f"{case}: memory {kib1 / kib0 - 1:+.2%}, descriptors {fds0} to {fds1}", file=sys.stderr)
    settled, ended = f"after {args.settle:g} min", f"after {args.minutes:g} min"
    lines = runs.table(f"case | processes | MiB {settled} | {ended} | growth | descriptors {settled} | {ended}", rows)
    print("\n".join(lines))
    if args.out:
        runs.write(["# Memory and descriptors of long jobs", "", f"{runs.measured_on()}. Written by "
                    "experiments/benchmarks/soak.py; all *measured*.", "", EXPLANATION, "", *lines], args.out)
    return failed


if __name__ == "__main__":
    sys.exit(main())
