#!/usr/bin/env python3
"""Compares the training speed of psring with PyTorch and TensorFlow on one machine, in samples/s (of texts: tokens/s).

    ./run build && experiments/benchmarks/training.py [--rounds 5] [--models mlp,cnn,resnet18,gpt-nano,gpt-mini]
                                                      [--torch_python torch/bin/python] [--tensorflow_python tf/bin/python]

One process, two workers with an all-reduce (psring's ring; PyTorch DDP over gloo), and two workers with a parameter server in a
process of its own (psring; PyTorch's RPC; TensorFlow's ParameterServerStrategy, which is asynchronous). All train the same
network with the same batch, optimizer and learning rate in float32, with one computing thread per process, and report the loss
at the end, so that different work would be seen. Transformers are compared with PyTorch and DDP only.

PyTorch is measured as most programs use it, and at its best: the fastest of eager, the fused optimizer, torch.compile and
channels last, then the fastest allocator with it, each tried once before the rounds. What is not installed is omitted. The
rounds are interleaved, the first is a warm-up. Then step_limit compares psring's step with only its matrix products and
convolutions. Prints the tables and writes training_MODEL.md to --out.
"""
import json
import pathlib
import sys
import typing

import peers
import runs

MOMENTUM = ["--optimizer", "momentum", "--lr", "0.02"]
ADAMW = ["--optimizer", "adamw", "--lr", "0.001"]


class Work(typing.NamedTuple):
    steps: int
    batch: int  # per worker
    update: list
    text: str
    warmup_steps: int = 10

    def is_text(self):
        return self.update is ADAMW


PICTURES, BIBLE = "momentum SGD, float32, Fashion-MNIST", "AdamW, float32, King James Bible"
WORK = {"mlp": Work(300, 128, MOMENTUM, PICTURES), "cnn": Work(30, 128, MOMENTUM, PICTURES),
        "resnet18": Work(6, 16, MOMENTUM, PICTURES, warmup_steps=2),
        "gpt-nano": Work(100, 12, ADAMW, BIBLE), "gpt-mini": Work(6, 12, ADAMW, BIBLE, warmup_steps=2)}
CODE = {"eager": [], "fused optimizer": ["--fused"], "torch.compile, fused optimizer": ["--fused", "--compile"]}
CHANNELS_LAST = {"channels last, fused optimizer": ["--fused", "--channels_last"],
                 "channels last, torch.compile, fused optimizer": ["--fused", "--channels_last", "--compile"]}
SERVER = ["--server_placement", "dedicated"]


class Contenders:
    """Functions that return samples/s, and the loss at the end of each one's last run."""

    def __init__(self, args, model):
        self.args, self.model = args, model
        self.work = WORK[model]
        self.steps = str(args.steps or self.work.steps)
        self.measure, self.loss, self.base = {}, {}, {}
        self.tried = []

    def common(self):
        return ["--model", self.model, "--steps", self.steps, "--warmup_steps", str(self.work.warmup_steps),
                "--batch", str(self.work.batch), *self.work.update]

    def add(self, name, run, base=""):
        """run: returns {"samples_per_s", "loss"}. base: the psring contender that it is compared with."""
        def measure():
            result = run()
            self.loss[name] = float(result["loss"])
            return float(result["samples_per_s"])
        self.measure[name], self.base[name] = measure, base

    def add_psring(self, name, *flags):
        self.add(name, lambda: runs.train([*self.common(), "--no_eval", *flags]))

    def torch(self, workers, code, env, script="pytorch_peer.py"):
        return peers.torch(self.args, script, *self.common(), "--workers", str(workers), *code, env=env)

    def best_torch(self, workers):
        """Returns (name, flags, environment) of the fastest: of the code, then of the allocators with it. What fails is
        omitted: torch.compile needs a compiler, and old versions have no fused optimizer on CPUs."""
        def fastest(candidates):
            speeds = []
            for name, code, env in candidates:
                label = f"{name}, {workers} process{'es' * (workers > 1)}"
                try:
                    speeds.append(self.torch(workers, code, env)["samples_per_s"])
                except SystemExit as failure:
                    speeds.append(0)
                    print(f"omitted: PyTorch, {label}: {str(failure).strip().splitlines()[-1]}", file=sys.stderr)
                    continue
                self.tried.append([label, f"{speeds[-1]:,.0f}"])
                print(f"{self.model}: PyTorch, {label}: {speeds[-1]:,.0f}", file=sys.stderr)
            return candidates[speeds.index(max(speeds))]

        codes = {**CODE, **(CHANNELS_LAST if self.model in ("cnn", "resnet18") else {})}
        name, code, _ = fastest([(f"{name}, malloc tuned", code, peers.GLIBC_TUNED) for name, code in codes.items()])
        name = name.removesuffix(", malloc tuned")
        return fastest([(f"{name}, {allocator}", code, env) for allocator, env in peers.allocators().items()])


def contenders(args, model, with_torch, with_tensorflow):
    all_of = Contenders(args, model)
    all_of.add_psring("psring single, 1 process", "--strategy", "single")
    all_of.add_psring("psring none, 2 processes", "--strategy", "none", "--workers", 2)
    is_text = all_of.work.is_text()
    ddp_base = f"psring ring over {'TCP' if is_text else 'shared memory'}, 2 workers"
    for transport, name in (("shm", "shared memory"), ("tcp", "TCP")):
        for strategy, its, flags in (("ring", "", []), ("ps-sync", " and a server", SERVER),
                                     ("ps-async", " and a server", SERVER)):
            all_of.add_psring(f"psring {strategy} over {name}, 2 workers{its}", "--strategy", strategy, "--workers", 2,
                              "--transport", transport, *flags)
    if with_torch:
        all_of.add("PyTorch eager, 1 process", lambda: all_of.torch(1, [], {}), "psring single, 1 process")
        name, code, env = all_of.best_torch(1)
        all_of.add(f"PyTorch at its best ({name}), 1 process", lambda: all_of.torch(1, code, env), "psring single, 1 process")
        all_of.add("PyTorch DDP, 2 workers", lambda: all_of.torch(2, [], {}), ddp_base)
        ddp, ddp_code, ddp_env = all_of.best_torch(2)
        all_of.add(f"PyTorch DDP at its best ({ddp}), 2 workers", lambda: all_of.torch(2, ddp_code, ddp_env), ddp_base)
        for mode, flags in (("sync", []), ("async", ["--asynchronous"])) * (not is_text):  # with the best code of one process
            all_of.add(f"PyTorch RPC, {mode}hronous, 2 workers and a server",
                       lambda flags=flags: all_of.torch(2, [*code, *flags], env, "pytorch_server_peer.py"),
                       f"psring ps-{mode} over shared memory, 2 workers and a server")
    if with_tensorflow and not is_text:
        all_of.add("TensorFlow ParameterServerStrategy, 2 workers and a server",
                   lambda: peers.tensorflow(args, *all_of.common(), "--workers", "2"),
                   "psring ps-async over TCP, 2 workers and a server")
    return all_of


def limit_text(model):
    """A step of one process and the same calls of matrix products and convolutions alone, in turn."""
    found = json.loads(runs.run([runs.PSRING.with_name("step_limit"), model, WORK[model].batch, 20]))
    return (f"One psring process: a step takes {found['step_ms']:.1f} ms, its matrix products and convolutions alone "
            f"{found['limit_ms']:.1f} ms: {found['step_over_limit']:.2f} times (medians of {found['rounds']} rounds in turn; "
            "the same library calls, with one thread).")


def write(args, model, found, results, others, versions):
    rows = []
    for name, values in results.items():
        base = found.base[name]
        rows.append([name, runs.spread(values), f"{runs.paired_ratio(results[base], values):.2f}" if base else "",
                     base.removeprefix("psring "), f"{found.loss[name]:.3f}", ", ".join(f"{v:,.0f}" for v in values)])
    lines = ["# Training speed compared with PyTorch and TensorFlow", "",
             f"{runs.measured_on()}, no GPU; {versions}; batch {found.work.batch} per worker, {found.steps} steps "
             f"after {found.work.warmup_steps} of warm-up, one computing thread per process, {found.work.text}; "
             f"{args.rounds} interleaved rounds; {'tokens' if found.work.is_text() else 'samples'}/s as median (lowest to highest). All *measured*. Written by "
             "experiments/benchmarks/training.py.", "", f"## {model}", "", others, "",
             *runs.table(f"contender | {'tokens' if found.work.is_text() else 'samples'}/s | psring / it (paired median) | compared with psring's | "
                         "loss of the last tenth | each round", rows)]
    if found.tried:
        lines += ["", "PyTorch, each tried once to find the fastest:", "", *runs.table("PyTorch | samples/s", found.tried)]
    lines += ["", limit_text(model)]
    runs.write_result(f"training_{model}.md", lines, args.out)


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--steps", type=int, default=0, help="measured steps; else the model's")
    parser.add_argument("--out", type=pathlib.Path, default=runs.RESULTS, help="folder for the results")
    peers.add_flags(parser)
    args = parser.parse_args()
    models = args.models.split(",")
    if args.rounds < 1 or args.steps < 0 or not set(models) <= set(WORK):
        parser.error(f"--rounds must be at least 1, --steps not negative, --models of {','.join(WORK)}")
    torch, tensorflow = peers.torch_version(args), peers.tensorflow_version(args)
    versions = f"PyTorch {torch or 'absent'}, TensorFlow {tensorflow or 'absent'}"
    for model in models:
        found = contenders(args, model, torch, tensorflow)
        results, others = runs.interleave(found.measure, args.rounds, model)
        write(args, model, found, results, others, versions)


if __name__ == "__main__":
    main()
