#!/usr/bin/env python3
"""Compares the training speed of psring with PyTorch and TensorFlow on one machine, in samples/s (of texts: tokens/s).

    ./run build && experiments/benchmarks/training.py [--rounds 5] [--models mlp,cnn,gpt-nano,gpt-mini,resnet18,dlrm-small,skipgram]
                                                      [--torch_python torch/bin/python] [--tensorflow_python tf/bin/python]

One process, two workers with an all-reduce (psring's ring; PyTorch DDP over gloo), and two workers with a parameter server in a
process of its own (psring; PyTorch's RPC; TensorFlow's ParameterServerStrategy, which is asynchronous). All train the same
network with the same batch, optimizer and learning rate in float32, with one computing thread per process, and report the loss
at the end, so that different work would be seen, and the peak memory of a rank. Models other than mlp and cnn are compared
with PyTorch and DDP only, over TCP.

PyTorch is measured as most programs use it, and at its best: the fastest of eager, the fused optimizer, torch.compile, channels
last and, of several tables, one table with the rows of all; then the fastest allocator with it. Both are searched for one process
and for two, before the rounds, in two interleaved rounds each. Tables have sparse gradients. What is not installed is omitted.
The rounds are interleaved, the first is a warm-up. Then step_limit compares psring's step with only its matrix products and
convolutions. Prints the tables and writes a section for each model to training_MODEL.md, or training_models.md, in --out; other
sections of the page are kept. If other programs used more than 5% of the processors during the search or the rounds of a model,
its section is not written, and the exit code is 1.
"""
import json
import statistics
import sys
import typing

import peers
import runs

SEARCH_ROUNDS = 2
MOMENTUM = ["--optimizer", "momentum", "--lr", "0.02"]
ADAMW = ["--optimizer", "adamw", "--lr", "0.001"]
CODE = {"eager": [], "fused optimizer": ["--fused"], "torch.compile, fused optimizer": ["--fused", "--compile"]}
CHANNELS_LAST = {"channels last, fused optimizer": ["--fused", "--channels_last"],
                 "channels last, torch.compile, fused optimizer": ["--fused", "--channels_last", "--compile"]}
JOINED = {"one table, fused optimizer": ["--fused", "--joined_tables"],
          "one table, torch.compile, fused optimizer": ["--fused", "--joined_tables", "--compile"]}


class Work(typing.NamedTuple):
    steps: int
    batch: int  # per worker
    update: list
    text: str
    warmup_steps: int = 10
    unit: str = "samples"
    code: dict = CODE  # of PyTorch
    with_servers: bool = False
    limit_rounds: int = 20


PICTURES, BIBLE = "momentum SGD, float32, Fashion-MNIST", "AdamW, float32, King James Bible"
WORK = {"mlp": Work(300, 128, MOMENTUM, PICTURES, with_servers=True),
        "cnn": Work(30, 128, MOMENTUM, PICTURES, code={**CODE, **CHANNELS_LAST}, with_servers=True),
        "gpt-nano": Work(100, 12, ADAMW, BIBLE, unit="tokens"),
        "gpt-mini": Work(8, 12, ADAMW, BIBLE, warmup_steps=2, unit="tokens", limit_rounds=3),
        "resnet18": Work(6, 16, MOMENTUM, PICTURES, warmup_steps=2, code={**CODE, **CHANNELS_LAST}, limit_rounds=5),
        "dlrm-small": Work(150, 512, ["--optimizer", "sgd", "--lr", "1"], "SGD, float32, 8 tables of 1,000,000 rows of width 64, "
                           "26 lookups per sample by Zipf's distribution (1.05)", warmup_steps=20, code={**CODE, **JOINED}),
        "skipgram": Work(1000, 256, ["--optimizer", "sgd", "--lr", "10"], "SGD, float32, words of the King James Bible, width 128, "
                         "5 negatives", warmup_steps=50, unit="targets")}


class Contenders:
    """Functions that return samples/s, and the loss at the end of each one's last run."""

    def __init__(self, args, model, work=None):
        """work: instead of the model's."""
        self.args, self.model, self.work = args, model, work or WORK[model]
        self.steps = str(args.steps or self.work.steps)
        self.measure, self.loss, self.memory_mb, self.base, self.tried = {}, {}, {}, {}, []
        self.common = ["--model", model, "--steps", self.steps, "--warmup_steps", str(self.work.warmup_steps), "--batch",
                       str(self.work.batch), *self.work.update]

    def add(self, name, run, base=""):
        """run: returns {"samples_per_s", "loss", a peak memory}. base: the psring contender that it is compared with."""
        def measure():
            result = run()
            self.loss[name] = float(result["loss"])
            self.memory_mb[name] = float(result.get("worker_peak_memory_mb") or result.get("peak_memory_mb") or 0)
            return float(result["samples_per_s"])
        self.measure[name], self.base[name] = measure, base

    def add_psring(self, name, *flags):
        self.add(name, lambda: runs.train([*self.common, "--schedule", "constant", "--no_eval", "--strategy", *flags]))

    def add_torch(self, name, base, workers, code, env, *script):
        self.add(name, lambda: self.torch(workers, code, env, *script), base)

    def torch(self, workers, code, env, script="pytorch_peer.py"):
        return peers.torch(self.args, script, *self.common, "--workers", workers, *code, env=env)

    def table(self, results):
        """Lines: of each contender the speed in tokens/s, loss and memory."""
        rows = [[name, runs.spread(values),
                 f"{runs.paired_ratio(results[self.base[name]], values):.2f}" if self.base[name] else "",
                 f"{self.loss[name]:.4f}", f"{self.memory_mb[name]:,.0f}", ", ".join(f"{v:,.0f}" for v in values)]
                for name, values in results.items()]
        return runs.table("contender | tokens/s | psring's speed over this one's (paired median) | loss | memory | each round", rows)

    def variants(self, unit="tokens"):
        """Lines: what best_torch has tried; none without PyTorch."""
        if not self.tried:
            return []
        return ["", f"Variants of PyTorch, in {SEARCH_ROUNDS} interleaved rounds to find the fastest:", "",
                *runs.table(f"PyTorch | {unit}/s, mean (each round)", self.tried)]

    def best_torch(self, workers, processes=""):
        """Returns (name, flags, environment) of the fastest: of the code, then of the allocators with it. What fails is
        omitted: torch.compile needs a compiler, and old versions have no fused optimizer on CPUs. workers: as of torch();
        processes: what the table calls them."""
        processes = processes or f"{workers} process{'es' * (workers > 1)}"

        def fastest(candidates):
            failed = set()

            def measure(name, code, env):
                if name in failed:
                    return 0
                try:
                    return self.torch(workers, code, env)["samples_per_s"]
                except SystemExit as failure:
                    failed.add(name)
                    print(f"omitted: PyTorch, {name}, {processes}: {str(failure).strip().splitlines()[-1]}", file=sys.stderr)
                    return 0

            speeds, _ = runs.interleave({one[0]: lambda one=one: measure(*one) for one in candidates}, SEARCH_ROUNDS,
                                        f"{self.model}: PyTorch, {processes}, search", warm_up=0)
            means = {name: 0 if name in failed else statistics.mean(values) for name, values in speeds.items()}
            self.tried += [[f"{name}, {processes}", f"{means[name]:,.0f} ({', '.join(f'{v:,.0f}' for v in values)})"]
                           for name, values in speeds.items() if name not in failed]
            return max(candidates, key=lambda one: means[one[0]])

        name, code, _ = fastest([(f"{name}, malloc tuned", code, peers.GLIBC_TUNED) for name, code in self.work.code.items()])
        name = name.removesuffix(", malloc tuned")
        return fastest([(f"{name}, {allocator}", code, env) for allocator, env in peers.allocators().items()])


def contenders(args, model, with_torch, with_tensorflow):
    found = Contenders(args, model)
    servers, single = found.work.with_servers, "psring single, 1 process"
    ring = f"psring ring over {'shared memory' if servers else 'TCP'}, 2 workers"
    found.add_psring(single, "single")
    found.add_psring("psring none, 2 processes", "none", "--workers", 2)
    for transport, name in (("shm", "shared memory"), ("tcp", "TCP")) if servers else (("tcp", "TCP"),):
        found.add_psring(f"psring ring over {name}, 2 workers", "ring", "--workers", 2, "--transport", transport)
        for strategy in ("ps-sync", "ps-async") if servers else ():
            found.add_psring(f"psring {strategy} over {name}, 2 workers and a server", strategy, "--workers", 2, "--transport",
                             transport, "--server_placement", "dedicated")
    if with_torch:
        (name, code, env), (ddp, ddp_code, ddp_env) = found.best_torch(1), found.best_torch(2)
        if servers:
            found.add_torch("PyTorch eager, 1 process", single, 1, [], {})
        found.add_torch(f"PyTorch at its best ({name}), 1 process", single, 1, code, env)
        if servers:
            found.add_torch("PyTorch DDP, 2 workers", ring, 2, [], {})
        found.add_torch(f"PyTorch DDP at its best ({ddp}), 2 workers", ring, 2, ddp_code, ddp_env)
        for mode, flags in (("sync", []), ("async", ["--asynchronous"])) if servers else ():  # with the best code of one process
            found.add_torch(f"PyTorch RPC, {mode}hronous, 2 workers and a server",
                            f"psring ps-{mode} over shared memory, 2 workers and a server", 2, [*code, *flags], env,
                            "pytorch_server_peer.py")
    if with_tensorflow and servers:
        found.add("TensorFlow ParameterServerStrategy, 2 workers and a server",
                  lambda: peers.tensorflow(args, *found.common, "--workers", 2),
                  "psring ps-async over TCP, 2 workers and a server")
    return found


def limit_text(model):
    """A step of one process, alternating with only its matrix products and convolutions, by the same calls."""
    try:
        found = json.loads(runs.run([runs.PSRING.with_name("step_limit"), model, WORK[model].batch, WORK[model].limit_rounds]))
    except (SystemExit, OSError) as failure:
        print(f"omitted: step_limit: {str(failure).strip().splitlines()[-1]}", file=sys.stderr)
        return ""
    return (f"One psring process: a step takes {found['step_ms']:.1f} ms, only its matrix products and convolutions "
            f"{found['limit_ms']:.1f} ms: {found['step_over_limit']:.2f} times as long (medians of {found['rounds']} alternating "
            f"round{'s' * (found['rounds'] > 1)}; the same library calls, with one thread).")


def write(args, model, found, results, others, versions):
    rows = []
    for name, values in results.items():
        base, memory = found.base[name], found.memory_mb[name]
        rows.append([name, runs.spread(values), f"{runs.paired_ratio(results[base], values):.2f}" if base else "",
                     base.removeprefix("psring "), f"{memory:,.0f}" if memory else "", f"{found.loss[name]:.3f}",
                     ", ".join(f"{v:,.0f}" for v in values)])
    unit = found.work.unit
    lines = [f"{runs.measured_on()}, no GPU; {versions}; batch {found.work.batch} per worker, {found.steps} steps "
             f"after {found.work.warmup_steps} of warm-up, one computing thread per process, {found.work.text}; "
             f"{args.rounds} interleaved rounds; {unit}/s as median (lowest to highest); peak memory of rank 0, MiB (VmHWM). "
             f"All *measured*. {runs.congestion_control()} {others}", "",
             *runs.table(f"contender | {unit}/s | psring's speed over this one's (paired median) | compared with psring's | memory | "
                         "training loss, mean of the last tenth of the steps | each round", rows)]
    lines += found.variants(unit)
    name = f"training_{model}.md" if found.work.with_servers else "training_models.md"
    path = args.out / name
    head = (f"# Training speed compared with PyTorch{' and TensorFlow' * found.work.with_servers}\n\n"
            "Sections of models are written by experiments/benchmarks/training.py.\n\n")
    page = runs.with_section(path.read_text() if path.exists() else head, model, [*lines, "", limit_text(model)])
    runs.write_result(name, page.splitlines(), args.out)


def main():
    parser = runs.flags(__doc__, rounds=5, models="mlp,cnn", steps=(0, "measured steps; else the model's"), out=runs.RESULTS)
    peers.add_flags(parser)
    args = parser.parse_args()
    models = args.models.split(",")
    if not set(models) <= set(WORK):
        parser.error(f"--models: of {','.join(WORK)}")
    torch = peers.torch_version(args)
    tensorflow = peers.tensorflow_version(args) if any(WORK[model].with_servers for model in models) else ""
    disturbed = False
    for model in models:
        versions = f"PyTorch {torch or 'absent'}" + f", TensorFlow {tensorflow or 'absent'}" * WORK[model].with_servers
        try:
            found = contenders(args, model, torch, tensorflow)
            results, others = runs.interleave(found.measure, args.rounds, model)
        except runs.Disturbed as why:
            disturbed = True
            print(why, file=sys.stderr)
            continue
        write(args, model, found, results, others, versions)
    return int(disturbed)


if __name__ == "__main__":
    sys.exit(main())
