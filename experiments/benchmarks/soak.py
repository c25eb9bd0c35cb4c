#!/usr/bin/env python3
"""Trains for some minutes and checks that memory and descriptors do not grow.

    ./run build && experiments/benchmarks/soak.py [--minutes 10] [--settle 2] [--cases single,ring] [--out FILE]

Runs the cases one after another: single, ring and ps-async with a batch of 32, ps-sync with 128; with 4 workers and a server
process where there are workers. After --settle minutes and at the end, it adds up the resident memory (anonymous pages and
shared memory, from /proc/PID/smaps_rollup: Pss, so that pages of several processes count once) and the open descriptors of all
processes of the job. Pages of files do not count: a process's part of a library changes when other programs use it. Exit code 1
if memory grew by 1% or more, or descriptors at all, or if the job ended by itself.
"""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import runs

WORKERS = ["--workers", "4"]
SERVER = ["--server_placement", "dedicated"]
CASES = {"single": ["--strategy", "single", "--batch", "32"],
         "ring": ["--strategy", "ring", *WORKERS, "--batch", "32"],
         "ps-async": ["--strategy", "ps-async", *WORKERS, *SERVER, "--batch", "32"],
         "ps-sync": ["--strategy", "ps-sync", *WORKERS, *SERVER, "--batch", "128"]}
GROWTH_BELOW = .01
EXPLANATION = ("Memory: resident anonymous and shared pages of all processes of a job. `single`, `ring` and `ps-async` have a batch of "
               "32, `ps-sync` of 128; all but `single` have 4 workers, and `ps-*` a server.")


def family(root):
    """The process `root` and all its descendants."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                pass
    members = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        if not more:
            return sorted(members)
        members |= more


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
    parser = runs.flags(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--settle", type=float, default=2)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--out", type=pathlib.Path, help="also write the table to this file")
    args = parser.parse_args()
    rows, failed = [], False
    for case in args.cases.split(","):
        if case not in CASES:
            sys.exit(f"--cases: {case} is none of {', '.join(CASES)}")
        before, after = soak(CASES[case], args.minutes, args.settle)
        failed |= grew(before, after)
        (kib0, fds0, processes), (kib1, fds1, _) = before, after
        growth = kib1 / kib0 - 1
        rows.append((case, processes, f"{kib0 / 1024:.1f}", f"{kib1 / 1024:.1f}", f"{growth:+.2%}", fds0, fds1))
        print(f"{case}: memory {growth:+.2%}, descriptors {fds0} to {fds1}", file=sys.stderr)
    lines = runs.table(f"case | processes | MiB after {args.settle:g} min | after {args.minutes:g} min | growth | "
                       f"descriptors after {args.settle:g} min | after {args.minutes:g} min", rows)
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(["# Memory and descriptors of long jobs", "", runs.measured_on() + ". Written by "
                                       "experiments/benchmarks/soak.py; all *measured*.", "", EXPLANATION, "", *lines]) + "\n")
    return failed


if __name__ == "__main__":
    sys.exit(main())
