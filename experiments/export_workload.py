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
import contextlib
import csv
import gzip
import json
import math
import os
import re
import sys
import time
import zlib

MAX_TRACE_BYTES = 1 << 30  # after decompression
MAX_TENSOR_BYTES = 4 * (2**31 - 1)


def one_line(text):
    return " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", str(text)).split())


def quoted(name):
    """A name as a CSV field. An unquoted '#' begins a comment."""
    name = one_line(name)
    plain = not name.startswith("#") and not re.search('[,;"]', name)
    return name if plain else '"' + name.replace('"', '""') + '"'


def write(out, rows, forward_ms, backward_ms, batch, device, declared=False, **remarks):
    """rows: (name, bytes, ready_ms); ready_ms counts from the begin of backward. declared: rows are in the model's order."""
    head = {"batch": batch, "device": device, "forward_ms": f"{forward_ms:.4f}", "backward_ms": f"{backward_ms:.4f}", **remarks}
    for key, value in head.items():
        print(f"# {key}: {one_line(value)}", file=out)
    # The declared order is written only if backward does not finish tensors in the reverse order.
    order = sorted(range(len(rows)), key=lambda i: rows[i][2])
    tell = declared and order != list(range(len(rows)))[::-1]
    print("name,bytes,ready_ms" + (",declared" if tell else ""), file=out)
    for i in order:
        name, size, ready = rows[i]
        print(f"{quoted(name)},{size},{max(0.0, ready):.4f}" + (f",{i}" if tell else ""), file=out)


LOSS_IS_OLD = ("loss() uses values of an earlier step, whose graph backward() has freed: run the whole forward pass inside loss(), "
               "as in record(model, lambda: loss_fn(model(x), y), ...)")


def elements_of(name, parameter):
    placeholder_for = getattr(parameter, "ds_numel", None)
    if isinstance(placeholder_for, int):
        return placeholder_for
    try:
        return parameter.numel()
    except ValueError:  # of torch.nn.Lazy... before its first forward pass
        raise ValueError(f"{name} has no shape yet: run one forward pass before record()") from None


def record(model, loss, batch, path=None, steps=5, device=None, **remarks):
    """Runs `loss()` (forward) and its backward `steps` times after two warm-up steps; keeps the median of every time.

    Times are from CUDA events on the current stream on a GPU, else from the host's clock. Gradients have 4 bytes per
    element, as psring sends them. Parameters without elements are left out; DeepSpeed's placeholders (ZeRO-3) count with
    the elements that they stand for. Returns the rows.
    """
    import torch

    if batch < 1 or steps < 1:
        raise ValueError(f"batch and steps must be at least 1, but they are {batch} and {steps}")
    # Frozen parameters have no gradient to send.
    parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad and elements_of(name, p) > 0]
    if not parameters:
        raise ValueError("no parameter of the model has elements and requires a gradient")
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
    value = None
    try:
        for step in range(steps + 2):
            model.zero_grad(set_to_none=True)
            ready.clear()
            begin = mark()
            last, value = value, loss()
            middle = mark()
            if not hasattr(value, "backward"):
                raise ValueError(f"loss() must return the loss as a tensor, but it returned {value!r:.80}")
            if value is last:
                raise ValueError(LOSS_IS_OLD)
            try:
                value.backward()
            except RuntimeError as error:
                if "second time" in str(error):
                    raise ValueError(LOSS_IS_OLD) from None
                raise
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
    rows = [(name, 4 * elements_of(name, p), median(samples[name])) for name, p in parameters]
    end = max(median(backward), max(row[2] for row in rows))
    device = device or (torch.cuda.get_device_name() if on_gpu else "CPU")
    with open(path, "w", encoding="utf-8", errors="replace") if path else contextlib.nullcontext(sys.stdout) as out:
        write(out, rows, median(forward), end, batch, device, declared=True, **remarks)
    return rows


def refuse(why):
    print(f"export_workload: {one_line(why)}", file=sys.stderr)
    sys.exit(2)


def read(path):
    """The text of a file, decompressed if it is in gzip's format."""
    try:
        with open(path, "rb") as file:
            compressed = file.peek(2)[:2] == b"\x1f\x8b"
            content = (gzip.GzipFile(fileobj=file) if compressed else file).read(MAX_TRACE_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        refuse(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")
    if len(content) > MAX_TRACE_BYTES:
        refuse(f"{path} has more than {MAX_TRACE_BYTES} bytes; record fewer steps")
    return content.decode("utf-8-sig", errors="replace")


def read_sizes(path):
    """(name, bytes) of each row. The same rules as psring's for a workload file."""
    sizes, delimiter, number = [], None, 0

    def wrong(why):
        refuse(f"{path}: line {number}: {why}")

    for number, line in enumerate(re.split(r"\r\n|\r|\n", read(path)), 1):
        comment = line.lstrip().startswith("#")
        if comment and re.match(r"\s*#[^\s#].*[,;\t] *[0-9]+[,;\s]*$", line):
            wrong(f"'{line.strip()}' is a comment or a row; write a space after the #, or quote the name")
        if comment or not line.strip(",; \t"):
            continue
        if delimiter is None:
            delimiter = max(",;\t", key=re.sub('"[^"]*"', "", line).count)
        try:
            fields = [field.strip() for field in next(csv.reader([line.strip(" ")], delimiter=delimiter, strict=True))]
        except csv.Error as error:
            wrong(f"it is not CSV: {error}")
        while fields and not fields[-1]:
            fields.pop()
        if not sizes and fields == ["name", "bytes"]:
            continue
        if len(fields) != 2:
            wrong(f"it has {len(fields)} fields instead of name and bytes; quote names that contain '{delimiter}', and write numbers "
                  "without thousands separators")
        name, size = fields
        if not re.fullmatch("[0-9]{1,18}", size, re.ASCII):
            wrong(f"bytes '{size[:80]}' is not a whole number without thousands separators")
        if not 4 <= int(size) <= MAX_TENSOR_BYTES or int(size) % 4 != 0:
            wrong(f"bytes {size} is not a size of float32 values, from 4 to {MAX_TENSOR_BYTES}; leave out parameters without "
                  "elements")
        sizes.append((name, int(size)))
    return sizes or refuse(f"{path} lists no sizes; write a line name,bytes for each parameter that gets a gradient")


def read_events(path):
    """(name, begin, end, arguments) of each complete event with a name, in microseconds."""
    try:
        content = json.loads(read(path), strict=False)  # names with control characters are usual
    except (ValueError, RecursionError) as error:
        refuse(f"{path} is not JSON: {error}; it may be cut off, or the name of an event contains quotes or backslashes: record it "
               "again, with with_stack=False")
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        refuse(f"{path} has no list traceEvents; it is not a trace of torch.profiler")

    def number(value):
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,20}(\.\d*)?", value, re.ASCII):
            value = float(value)
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if numeric and abs(value) < 1e18 else None

    timed = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("name"), str):
            continue
        name, begin, duration = event["name"], number(event.get("ts")), number(event.get("dur"))
        if begin is not None and duration is not None and duration >= 0:
            timed.append((name, begin, begin + duration, event.get("args")))
        elif is_backward(name):
            refuse(f"{path}: ts {event.get('ts')!r:.40} and dur {event.get('dur')!r:.40} of the event '{name[:80]}' are not times in "
                   "microseconds")
    return sorted(timed, key=lambda event: event[1:3])


def is_backward(name):
    return "Backward" in name or "AccumulateGrad" in name


def backward_passes(events):
    """Lists of backward operations. A forward operation between two of them begins another pass."""
    passes, end, forward = [], 0, False
    for event in events:
        name, begin = event[:2]
        if is_backward(name):
            if forward or not passes:
                passes.append([])
            passes[-1].append(event)
            end, forward = max(end, event[2]), False
        elif begin >= end and name.startswith(("aten::", "ProfilerStep")):
            forward = True
    return passes


def gradients(operations):
    """(moment, bytes or None) of each gradient of a backward pass, in the order in which they are finished."""
    ends = [event for event in operations if event[0].endswith("AccumulateGrad")]
    outer = [event for event in ends if "evaluate_function" in event[0]]
    inner = [event for event in ends if "evaluate_function" not in event[0]]

    def size(arguments):  # with record_shapes=True: [[64, 3, 7, 7]]
        shapes = arguments.get("Input Dims") if isinstance(arguments, dict) else None
        shape = shapes[0] if isinstance(shapes, list) and len(shapes) == 1 else None
        return 4 * math.prod(shape) if isinstance(shape, list) and all(isinstance(n, int) for n in shape) else None

    moments = sorted(event[2] for event in outer or inner)
    sizes = [size(event[3]) for event in sorted(inner, key=lambda event: event[2])]
    return list(zip(moments, sizes if len(sizes) == len(moments) else [None] * len(moments)))


def from_trace(trace, sizes, batch, device, out):
    """A gradient is ready when its AccumulateGrad ends; backward begins with the first backward node."""
    events = read_events(trace)
    passes = [operations for operations in backward_passes(events) if gradients(operations)]
    if not passes:
        refuse(f"{trace} has no backward operations (no AccumulateGrad); record a training step including backward with "
               "torch.profiler's CPU activities")
    counts = sorted({len(gradients(operations)) for operations in passes})
    if counts != [len(sizes)]:
        refuse(f"{trace} completes {' or '.join(map(str, counts))} gradients in a backward pass, but there are {len(sizes)} sizes; "
               "list every parameter that gets a gradient once")
    begin = passes[0][0][1]
    steps = [at for name, at, _, _ in events if name.startswith("ProfilerStep") and at <= begin]
    start = max(steps) if steps else events[0][1]
    rows = []
    for (name, size), (at, recorded) in zip(sizes, gradients(passes[0])):
        if recorded not in (None, size):
            refuse(f"gradient {len(rows) + 1} of {trace} has {recorded} bytes as float32, but {name} has {size}; list the sizes in the "
                   "order in which backward finishes the gradients")
        rows.append((name, size, (at - begin) / 1e3))
    write(out, rows, (begin - start) / 1e3, rows[-1][2], batch, device, source=os.path.basename(trace))


def demo():
    try:
        import torch
    except ImportError as error:
        refuse(f"--demo needs PyTorch: {error}")
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
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    from_trace(arguments.trace, read_sizes(arguments.sizes), arguments.batch, arguments.device, sys.stdout)


if __name__ == "__main__":
    main()
