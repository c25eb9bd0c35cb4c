#!/usr/bin/env python3
"""Writes a workload file for psring (`--workload ./mine.csv`) from a PyTorch model or from a profiler's trace.

In your program, for one step of any model:

    from export_workload import record
    record(model, lambda: loss_fn(model(x), y), batch=len(x), path="mine.csv")

From a trace of torch.profiler (Kineto, Chrome JSON). It does not name parameters, so their sizes come from a list
"name,bytes" in the order in which backward finishes them:

    export_workload.py --trace trace.json --sizes sizes.csv --batch 32 --device V100 > mine.csv

A demonstration, which requires torch: export_workload.py --demo
"""
import argparse
import json
import os
import sys
import time


def write(out, rows, forward_ms, backward_ms, batch, device, declared=False, **remarks):
    """rows: (name, bytes, ready_ms); ready_ms counts from the begin of backward. declared: rows are in the model's order."""
    print(f"# batch: {batch}\n# device: {device}\n# forward_ms: {forward_ms:.4f}\n# backward_ms: {backward_ms:.4f}", file=out)
    for key, value in remarks.items():
        print(f"# {key}: {value}", file=out)
    # The declared order is written only if backward does not finish tensors in the reverse order.
    order = sorted(range(len(rows)), key=lambda i: rows[i][2])
    tell = declared and order != list(range(len(rows)))[::-1]
    print("name,bytes,ready_ms" + (",declared" if tell else ""), file=out)
    for i in order:
        name, size, ready = rows[i]
        print(f"{name},{size},{max(0.0, ready):.4f}" + (f",{i}" if tell else ""), file=out)


def record(model, loss, batch, path=None, steps=5, device=None, **remarks):
    """Runs `loss()` (forward) and its backward `steps` times after two warm-up steps; keeps the median of every time.

    Times are from CUDA events on the current stream on a GPU, else from the host's clock. Gradients have 4 bytes per
    element, as psring sends them. Returns the rows.
    """
    import torch

    # Frozen parameters have no gradient to send.
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("no parameter of the model requires a gradient")
    on_gpu = parameters[0][1].is_cuda

    def mark():
        if not on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(a, b):
        return a.elapsed_time(b) if on_gpu else 1e3 * (b - a)

    ready = {}
    # A hook runs when a gradient is complete. A tied tensor's runs several times; the last call counts.
    hooks = [p.register_hook(lambda grad, n=name: ready.__setitem__(n, mark())) for name, p in parameters]
    samples = {name: [] for name, _ in parameters}
    forward, backward = [], []
    try:
        for step in range(steps + 2):
            model.zero_grad(set_to_none=True)
            ready.clear()
            begin = mark()
            value = loss()
            middle = mark()
            value.backward()
            end = mark()
            if on_gpu:
                torch.cuda.synchronize()
            if step < 2:
                continue
            forward.append(between(begin, middle))
            backward.append(between(middle, end))
            for name, moment in ready.items():
                samples[name].append(between(middle, moment))
    finally:
        for hook in hooks:
            hook.remove()

    def median(values):
        return sorted(values)[len(values) // 2]

    unused = [name for name, _ in parameters if not samples[name]]
    if unused:
        raise ValueError(f"no gradient for {', '.join(unused)}, but psring sends every tensor in every step: use these parameters "
                         "in loss(), or leave them out with requires_grad_(False)")
    rows = [(name, 4 * p.numel(), median(samples[name])) for name, p in parameters]
    end = max(median(backward), max(row[2] for row in rows))
    device = device or (torch.cuda.get_device_name() if on_gpu else "CPU")
    with open(path, "w") if path else os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:
        write(out, rows, median(forward), end, batch, device, declared=True, **remarks)
    return rows


def refuse(why):
    print(f"export_workload: {why}", file=sys.stderr)
    sys.exit(2)


def from_trace(trace, sizes, batch, device, out):
    """A gradient is ready when its AccumulateGrad ends; backward begins with the first backward node."""
    with open(trace) as f:
        content = json.load(f)
    events = content["traceEvents"] if isinstance(content, dict) else content
    events = [e for e in events if e.get("ph") == "X" and "dur" in e]
    nodes = [e for e in events if "Backward" in e.get("name", "") or "AccumulateGrad" in e.get("name", "")]
    ready = sorted(e["ts"] + e["dur"] for e in nodes
                   if e["name"].endswith("AccumulateGrad") and "evaluate_function" in e["name"])
    ready = ready or sorted(e["ts"] + e["dur"] for e in nodes if e["name"].endswith("AccumulateGrad"))
    if not nodes or not ready:
        refuse(f"{trace} has no backward operations (no AccumulateGrad); record a training step including backward with "
               "torch.profiler's CPU activities")
    begin = min(e["ts"] for e in nodes)
    steps = [e["ts"] for e in events if e["name"].startswith("ProfilerStep") and e["ts"] <= begin]
    start = max(steps) if steps else min(e["ts"] for e in events)
    if len(ready) % len(sizes) != 0:
        refuse(f"{trace} completes {len(ready)} gradients, not a multiple of the {len(sizes)} sizes; list every parameter that gets a gradient once")
    ready = ready[:len(sizes)]  # of the first step
    rows = [(name, size, (at - begin) / 1e3) for (name, size), at in zip(sizes, ready)]
    write(out, rows, (begin - start) / 1e3, rows[-1][2], batch, device, source=os.path.basename(trace))


def demo():
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(784, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10))
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    record(model, lambda: torch.nn.functional.cross_entropy(model(x), y), batch=128, source="MLP 784-1024-10")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", help="Chrome JSON of torch.profiler")
    parser.add_argument("--sizes", help="CSV of name,bytes in the order in which backward finishes them")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--device", default="")
    parser.add_argument("--demo", action="store_true")
    arguments = parser.parse_args()
    if arguments.demo:
        return demo()
    if not (arguments.trace and arguments.sizes and arguments.batch > 0 and arguments.device):
        parser.error("a trace needs --trace, --sizes, --batch and --device; for a model see the top of this file")
    with open(arguments.sizes) as f:
        lines = [line.strip() for line in f if line.strip() and not line.startswith(("#", "name,"))]
    sizes = [(line.split(",")[0], int(line.split(",")[1])) for line in lines]
    from_trace(arguments.trace, sizes, arguments.batch, arguments.device, sys.stdout)


if __name__ == "__main__":
    main()
