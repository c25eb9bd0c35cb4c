#!/usr/bin/env python3
"""All-reduce of every backend on one host, side by side: writes experiments/results/collectives.md.

usage: experiments/benchmarks/collectives.py [--iters 20] [--rounds 3] [--out FILE]

Three runs of `psring bench`: shared memory, TCP, and kinds of buffers. Every number of workers is measured in rounds, and in
a round the combinations take turns call by call, so that slow minutes hit all alike. Run it on a quiet machine: the table
says how much of the processors others took, and figures of a busy one mean little.
"""
import argparse
import datetime
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def short(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def table(rows, sizes, figure):
    lines = ["| | " + " | ".join(short(size) for size in sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    names = list(dict.fromkeys(row["name"] for row in rows))
    for name in names:
        cells = [next((figure(row) for row in rows if row["name"] == name and row["size"] == size), "") for size in sizes]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def text(title, results, manifest, command):
    machine = manifest["machine"]
    sizes = sorted({row["size"] for row in results})
    for row in results:
        kind = "" if row["buffers"] == "private" else f", {row['buffers']} buffers"
        row["name"] = f"{row['backend']} {row['algorithm']}, {row['transport']}{kind}"
    foreign = [row["foreign_cpu_pct"] for row in results]
    parts = [
        title + "\n",
        f"{manifest['started_utc'][:10]}, {machine['cpu']}, {machine['cores']} cores, {machine['memory_mb']} MiB, "
        f"{machine['system']}, kernel {machine['kernel']}, revision {manifest['versions']['revision']}. Other programs "
        f"used {min(foreign):.0f} to {max(foreign):.0f}% of the processors meanwhile.\n",
        f"    {command}\n",
        "All *measured*. busbw in GB/s (10^9 bytes) as nccl-tests defines it, 2(N-1)/N bytes/time; the time of a call is the "
        "slowest rank's, the median over all iterations; every value checked. Out of place / in place; in brackets the "
        "better one's percentage of what the machine can do at most (experiments/README.md says how that is measured).\n"]

    def bandwidth(row):
        two = " / ".join(f"{row[place]['bus_bw']:.2f}" for place in ("out_of_place", "in_place"))
        limit = row["percent_of_limit"]
        return two if limit is None else f"{two} ({limit:.0f}%)"

    def latency(row):
        return " / ".join(f"{row[place]['time']:.1f}" for place in ("out_of_place", "in_place"))

    for workers in sorted({row["workers"] for row in results}):
        rows = [row for row in results if row["workers"] == workers]
        crowded = f" on {machine['cores']} cores" if workers > machine["cores"] else ""
        parts.append(f"## {workers} processes{crowded}: busbw, GB/s\n\n{table(rows, sizes, bandwidth)}\n")
        small = [size for size in sizes if size <= 1 << 18]
        if small:
            parts.append(f"### Time of a call, us\n\n{table(rows, small, latency)}\n")
    return "\n".join(parts)


def bench(psring, flags):
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder) / "run"
        if subprocess.run([psring, "bench"] + flags + ["--out", str(run)], check=False).returncode != 0:
            sys.exit("collectives.py: psring bench failed (see above)")
        results = json.loads((run / "bench.json").read_text())["results"]
        return results, json.loads((run / "manifest.json").read_text()), " ".join(["psring", "bench"] + flags)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--psring", default=str(ROOT / "build/release/bin/psring"))
    parser.add_argument("--iters", default="20")
    parser.add_argument("--rounds", default="3")
    parser.add_argument("--out", default=str(ROOT / "experiments/results/collectives.md"))
    arguments = parser.parse_args()
    often = ["-n", arguments.iters, "--rounds", arguments.rounds, "--limits"]
    parts = []
    for title, flags in (
            ("# All-reduce on one host through shared memory, float32 sum",
             ["--backend", "native,mpi", "--algorithm", "ring,direct,one-shot,default,segmented-ring,rabenseifner", "--transport",
              "shm", "--workers", "2,4", "--sizes", "4K,256K,4M,25M,100M"]),
            ("# Over TCP on loopback",
             ["--backend", "native,mpi,gloo", "--algorithm", "ring,default", "--transport", "tcp", "--workers", "2,4", "--sizes",
              "4K,4M,25M,100M"]),
            # Huge pages suit those that let the kernel copy; eight processes must not fall off a cliff.
            ("# Shared memory, three kinds of buffers, up to 8 processes",
             ["--backend", "native,mpi", "--algorithm", "ring,direct,default", "--transport", "shm", "--buffers",
              "private,huge,shared", "--workers", "2,4,8", "--sizes", "4K,4M,25M"])):
        results, manifest, shown = bench(arguments.psring, flags + often)
        parts.append(text(title, results, manifest, shown))
        pathlib.Path(arguments.out).write_text("\n".join(parts) + "\n")
    print(f"wrote {arguments.out} ({datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC)")


if __name__ == "__main__":
    main()
