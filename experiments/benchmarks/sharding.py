#!/usr/bin/env python3
"""Compares sharded data parallelism and tensor parallelism with PyTorch's, measures the memory of shards, and compares steps with
the simulated ones.

    ./run build && experiments/benchmarks/sharding.py [--parts speed,memory,walk] [--rounds 3] [--torch_python torch/bin/python]

speed: gpt-mini with AdamW in float32, two processes with one computing thread each, over TCP on the loopback. psring's zero1,
zero2, fsdp and --tp 2 beside ring; PyTorch's fully_shard of each half block and its tensor parallelism over Gloo, each at its
best: the fastest of eager and the fused optimizer, then of the allocators. All alternate; the first round does not count.

memory: of four workers with ring, zero1, zero2 and fsdp, the parameters, gradients and optimizer state of the largest rank, as
allocated, beside the formulas.

walk: the mean step of runs with zero2, fsdp, --tp and --cp, and the bytes that a rank sends, beside those of the walk of their
program with the runs' own computing time (layout_walk.py). Two processes that compute, also on a virtual cluster (network
namespaces; root), and replayed computing with 4 and 8; --cases 'fsdp|tp2' measures those whose names match. Exit code 1 if a step is
more than 5%, or bytes more than 2%, from the walk's.

Writes the sections Speed, Memory and Walk of sharding.md in --out; others are kept. If other programs used more than 5% of the
processors, nothing is written and the exit code is 1, unless --any_load is given; the page states the load.
"""
import re
import sys
import tempfile

import layout_walk
import peers
import runs
import training

TARGET = 1.15
WORKERS, SHARDED = 2, {"fsdp": "fully_shard", "tp": "parallelize_module"}
PAGE, HEAD = "sharding.md", "# Shards and divided matrices\n\nSections are written by experiments/benchmarks/sharding.py.\n\n"
CODE = {"eager": [], "fused optimizer": ["--fused"]}  # of PyTorch
CLASSES = ("params_mb", "grads_mb", "optimizer_mb")


def psring_name(layout):
    return f"psring {layout}, {WORKERS} workers"


class Sharded(training.Contenders):
    def torch(self, workers, code, env, script="pytorch_peer.py"):
        layout = [] if workers in ("dp", 1) else ["--layout", workers]
        return super().torch(1 if workers == 1 else WORKERS, [*code, *layout], env, script)


def contenders(args, with_torch):
    found = Sharded(args, "gpt-mini", training.WORK["gpt-mini"]._replace(batch=args.batch, code=CODE))
    for strategy in ("ring", "zero1", "zero2", "fsdp"):
        found.add_psring(psring_name(strategy), strategy, "--workers", WORKERS, "--transport", "tcp")
    found.add_psring(psring_name("tp"), "single", "--workers", WORKERS, "--tp", WORKERS, "--transport", "tcp")
    if with_torch:
        for layout, name in {"dp": "DDP", **SHARDED}.items():
            best, code, env = found.best_torch(layout, name)
            base = psring_name("ring" if layout == "dp" else layout)
            found.add_torch(f"PyTorch {name} at its best ({best}), {WORKERS} workers", base, layout, code, env)
    return found


def speed(args):
    version = peers.torch_version(args)
    found = contenders(args, version)
    results, others = runs.interleave(found.measure, args.rounds, "sharding")
    problems = []
    for name, values in results.items():
        ratio = runs.paired_ratio(results[found.base[name]], values) if found.base[name] else TARGET
        problems += [f"{found.base[name]} is {ratio:.2f} times as fast as {name} (target {TARGET})"] * (ratio < TARGET)
    lines = [f"{runs.measured_on()}, no GPU; PyTorch {version or 'absent'}; gpt-mini, batch {args.batch} per worker (tp: of both), "
             f"{found.steps} steps after {found.work.warmup_steps} of warm-up, one computing thread per process, AdamW, float32; psring "
             f"over TCP, PyTorch over Gloo, both on the loopback. {runs.congestion_control()} {args.rounds} interleaved rounds after "
             "one that does not count. Tokens/s as median (lowest to highest); peak memory of the largest rank, MiB (VmHWM). All "
             f"*measured*. {others}", "",
             *found.table(results), "",
             f"Target: {TARGET} times PyTorch's speed. " + ("; ".join(problems) + "." if problems else "It is met."),
             *found.variants()]
    save(args, "Speed", lines)
    return problems


def memory(args):
    """By formula with N workers: ring 1 + 1 + 2 parts of the parameters P, zero1 1 + 1 + 2/N, zero2 1 + 1/N + 2/N and the gradients
    of two units, fsdp all of it / N with the weights and the gradients of two units."""
    state = {}
    for strategy in ("ring", "zero1", "zero2", "fsdp"):
        with tempfile.TemporaryDirectory() as out:
            runs.run([runs.PSRING, "train", "--model", "gpt-mini", "--batch", 1, "--steps", 2, "--warmup_steps", 1, "--no_eval", "--workers",
                      4, "--strategy", strategy, "--optimizer", "adamw", "--out", f"{out}/run"])
            row = runs.read_csv(f"{out}/run", "summary.csv")[0]
            state[strategy] = [float(row[name]) for name in CLASSES]
    rows = [[name, *(f"{value:.2f}" for value in values), f"{sum(values):.2f}", f"{sum(values) / sum(state['ring']):.3f}"]
            for name, values in state.items()]
    save(args, "Memory", [
        f"{runs.measured_on()}; gpt-mini with AdamW, 4 workers; MiB of the largest rank, as allocated (*measured*).", "",
        *runs.table("strategy | parameters | gradients | optimizer | sum | of ring's", rows)])
    return []


def walk(args):
    cases = {name: case for name, case in layout_walk.CASES.items() if re.search(args.cases, name)}
    if not cases:
        sys.exit(f"no case matches {args.cases}; there are: {'; '.join(layout_walk.CASES)}")
    lines, problems = layout_walk.lines(cases)
    save(args, "Walk", lines)
    return problems


def save(args, title, lines):
    runs.save_section(args.out / PAGE, HEAD, title, lines)


def main():
    parts = {"speed": speed, "memory": memory, "walk": walk}
    parser = runs.flags(__doc__, rounds=3, parts=("speed,memory,walk", "of speed, memory, walk"), batch=4,
                        steps=(0, "measured steps; else the model's"), cases=(".", "of walk: those whose names match"),
                        any_load=(False, "write figures although other programs were busy"), out=runs.RESULTS)
    peers.add_flags(parser)
    args = parser.parse_args()
    if not set(args.parts.split(",")) <= set(parts):
        parser.error(f"--parts: of {','.join(parts)}")
    return runs.measure_parts(args, parts)


if __name__ == "__main__":
    sys.exit(main())
