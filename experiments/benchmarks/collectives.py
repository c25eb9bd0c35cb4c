#!/usr/bin/env python3
"""Compares the all-reduce and the all-to-all of all backends on one host and writes experiments/results/collectives.md.

    experiments/benchmarks/collectives.py [--iters 20] [--rounds 3] [--out FILE]

Runs `psring bench` four times: shared memory, TCP, kinds of buffers, and all-to-all. Combinations are measured in rounds and
alternate call by call, so that disturbances affect all equally. Run it on a quiet machine; the result states the load by other
programs.
"""
import runs

RUNS = [
    ("# All-reduce on one host through shared memory, float32 sum",
     "--backend native,mpi --algorithm ring,direct,one-shot,default,segmented-ring,rabenseifner --transport shm --workers 2,4 "
     "--sizes 4K,64K,256K,1M,4M,25M,100M"),
    ("# Over TCP on loopback",
     "--backend native,mpi,gloo --algorithm ring,direct,default --transport tcp --workers 2,4 --sizes 4K,64K,4M,25M,100M"),
    ("# Shared memory, three kinds of buffers, up to 8 processes",
     "--backend native,mpi --algorithm ring,direct,default --transport shm --buffers private,huge,shared --workers 2,4,8 "
     "--sizes 4K,4M,25M"),
    ("# All-to-all on one host through shared memory, float32",
     "--collective all_to_all --backend native,mpi --algorithm direct,pairwise,default --transport shm --workers 2,4 "
     "--sizes 1M,4M,25M,100M"),
]


def short(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def name(row):
    buffers = "" if row["transport"] == "tcp" else f", {row['buffers']} buffers"
    return f"{row['backend']} {row['algorithm']}, {row['transport']}{buffers}"


def both(row, figure, form):
    return " / ".join(f"{row[place][figure]:{form}}" for place in ("out_of_place", "in_place") if row[place])


def bandwidth(row):
    limit = row["percent_of_limit"]
    return both(row, "bus_bw", ".2f") + ("" if limit is None else f" ({limit:.0f}%)")


def table(rows, sizes):
    by_name = {}
    for row in rows:
        by_name.setdefault(name(row), {})[row["size"]] = row
    small = [size for size in sizes if size <= 1 << 18]  # the table also lists their time

    def cells(figure, rows, of_sizes):
        return [figure(rows[size]) if size in rows else "" for size in of_sizes]

    return runs.table(" | ".join(["", *map(short, sizes), *(f"{short(size)}, us" for size in small)]),
                      [[one, *cells(bandwidth, of_name, sizes), *cells(lambda row: both(row, "time", ".1f"), of_name, small)]
                       for one, of_name in by_name.items()])


def times_mpi(rows, sizes):
    """psring's best busbw divided by Open MPI's best, out of place: one line per kind of buffers."""
    def best(backend, buffers, size):
        found = [row["out_of_place"]["bus_bw"] for row in rows
                 if (row["backend"], row["buffers"], row["size"]) == (backend, buffers, size)]
        return max(found, default=None)

    lines = []
    for buffers in ("private", "huge", "shared"):
        ours = [best("native", buffers, size) for size in sizes]
        theirs = [best("mpi", buffers, size) or best("mpi", "private", size) for size in sizes]
        if any(ours) and any(theirs):
            lines.append([buffers, *(f"{a / b:.2f}" if a and b else "" for a, b in zip(ours, theirs))])
    return runs.table(" | ".join(["psring's buffers", *map(short, sizes)]), lines) if lines else []


def chosen(rows):
    """Which algorithm psring's default takes for each size: lines."""
    taken = sorted({(row["size"], row["chosen_algorithm"]) for row in rows
                    if (row["backend"], row["algorithm"]) == ("native", "default")})
    return [f"psring's default: {', '.join(f'{short(size)} {algorithm}' for size, algorithm in taken)}.", ""] if taken else []


def section(title, results, manifest, command):
    machine = manifest["machine"]
    sizes = sorted({row["size"] for row in results})
    foreign = [row["foreign_cpu_pct"] for row in results]
    runs.require_quiet(command, max(foreign))
    exchange = results[0]["collective"] == "all_to_all"
    factor, places, whose = (("(N-1)/N", "Out of place", "its") if exchange else
                             ("2(N-1)/N", "Out of place / in place", "the better one's"))
    lines = [
        title, "",
        f"{manifest['started_utc'][:10]}, {runs.machine_text(machine)}, {machine['cores']} cores, {machine['memory_mb']} MiB, "
        f"{machine['system']}, kernel {machine['kernel']}, revision {manifest['versions']['revision']}. Other programs "
        f"used {min(foreign):.0f} to {max(foreign):.0f}% of the processors meanwhile.", "",
        f"    {command}", "",
        f"All *measured*. busbw in GB/s (10^9 bytes) as nccl-tests defines it, {factor} × bytes / time; the time of a call is the "
        f"slowest rank's, the median over all iterations; every value is checked. {places}; in parentheses, "
        f"{whose} percentage of the machine's limit ([definition](../figures.md#bench))."
        f"{' ' + runs.congestion_control() if results[0]['transport'] == 'tcp' else ''}", ""]
    for workers in sorted({row["workers"] for row in results}):
        rows = [row for row in results if row["workers"] == workers]
        crowded = f" on {machine['cores']} cores" if workers > machine["cores"] else ""
        lines += [f"## {workers} processes{crowded}: busbw in GB/s; time of a call in us", "", *table(rows, sizes), ""]
        lines += chosen(rows)
        if compared := times_mpi(rows, sizes):
            lines += ["psring's best busbw divided by Open MPI's best, out of place (*derived*); Open MPI's buffers are of the "
                      "same kind, or private if it was not measured with them:", "", *compared, ""]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    args = runs.parse(__doc__, psring=runs.PSRING, iters=20, rounds=3, out=runs.RESULTS / "collectives.md")
    text = ""
    for title, flags in RUNS:
        flags = [*flags.split(), "-n", str(args.iters), "--rounds", str(args.rounds), "--limits"]
        results, manifest = runs.bench(args.psring, flags, capture_output=False, timeout=None)
        text += section(title, results, manifest, " ".join(["psring bench", *flags]))
        args.out.write_text(text)  # the sections so far
    print(f"wrote {args.out}")
