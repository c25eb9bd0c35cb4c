#!/usr/bin/env python3
"""Compares psring's gradients and weights with PyTorch's, for the same initial weights, samples and order.

    ./run build && torch/bin/python experiments/benchmarks/parity.py [--models gpt-nano,resnet18]

psring exports its initial weights, and PyTorch loads them by name. Of the first step, the gradient of every tensor is compared.
After 100 steps, the difference of the weights is compared with PyTorch's own between one and two threads, and after a change of
each initial weight in its last bit. The distances of all of these from PyTorch in float64 show, step by step, whether a
difference is more than rounding.

Writes a section for each model to experiments/results/parity.md, keeps the page's other sections, prints the page, and fails
if a model has the verdict "no". All models take about 90 minutes; gpt2 needs 16 GB of memory. Needs PyTorch and safetensors.
"""
import contextlib
import itertools
import math
import pathlib
import re
import statistics
import struct
import sys
import tempfile
import time
import typing

import runs

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError:
    sys.exit("parity.py needs PyTorch and safetensors: python3 -m venv torch && torch/bin/pip install torch numpy safetensors, then "
             "torch/bin/python experiments/benchmarks/parity.py")
import samples
from pytorch_models import Dlrm, Gpt, SkipGram, cnn, mlp, resnet18, resnet50
from torch.nn import functional

TRAINER = runs.ROOT / "build/release/bin/trainer"
# The page explains the limits.
ROWS = 1000  # of a table
HUGE, TINY = 2.0**20, 1e-30  # learning rates that leave only the gradient, or the weights as they were
SEEDS = (1, 2, 3)
GRADIENT_LIMIT, FACTOR = 1e-5, 3
VERDICTS = ("no", "float64", "yes")
SEEN = (1, 3, 10, 30, 100)  # steps after which distances from float64 are computed
LARGEST = 100  # elements
NEGLIGIBLE = 1e-6  # of the largest gradient
KINKS = 40  # ReLUs whose inputs are nearest to 0
CLOSE = 1e-6  # gradients that no ReLU separates
INITIAL, FEW_KINKS = "initial", "few kinks of ReLUs"
DECAY = {"adamw": 0.1}  # of matrices, psring's default
EPSILON = {"adamw": 1e-8, "adam": 1e-8, "adagrad": 1e-10}


class Data(typing.NamedTuple):
    flags: list  # of the trainer
    loss: typing.Callable
    arrays: list  # inputs, then labels
    size: int = 0  # classes, words, or rows of a table

    def batch(self, indices):
        *inputs, labels = (torch.from_numpy(part[indices]) for part in self.arrays)
        return inputs, labels.flatten()


def pictures(folder, _):
    """The first 1,600 of Fashion-MNIST."""
    for kind, count in (("train", 1600), ("t10k", 128)):
        for name, header, size in ((f"{kind}-images-idx3-ubyte", 16, 784), (f"{kind}-labels-idx1-ubyte", 8, 1)):
            try:
                raw = samples.read_idx(samples.FASHION, name)[:header + count * size]
            except FileNotFoundError:
                sys.exit("parity.py needs Fashion-MNIST: apt-get install dataset-fashion-mnist, or name --models without pictures")
            (folder / name).write_bytes(raw[:4] + struct.pack(">I", count) + raw[8:])
    return Data(["--data", "fashion-mnist", "--data_dir", folder], functional.cross_entropy, samples.pictures(folder))


def own_text():
    """This project's own texts."""
    return b"".join((runs.ROOT / name).read_bytes() for name in ("README.md", "CHANGELOG.md", "trainer/modes.md"))


def texts(folder, context, vocabulary):
    """A byte a token. `vocabulary`: the numbers of the bytes are spread over [0, vocabulary)."""
    numbers, symbols = samples.tokens(own_text())
    size = vocabulary or symbols
    numbers = numbers * (size - 1) // (symbols - 1)
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(numbers.astype("<u2").tobytes())
    return Data(["--data", "tokens", "--data_dir", folder, "--context", context], functional.cross_entropy,
                samples.windows(numbers, context), size)


def clicks(_, seed):
    """With smaller tables."""
    return Data(["--data", f"zipf:{ROWS}:1.05"], functional.cross_entropy, samples.clicks(ROWS, 1.05, seed), ROWS)


def words(folder, seed):
    (folder / "text").write_bytes(own_text())
    *arrays, size = samples.pairs_of_words(own_text(), seed)
    return Data(["--data", "words", "--text", folder / "text"], functional.binary_cross_entropy_with_logits, arrays, size)


class Model(typing.NamedTuple):
    data: typing.Callable  # of a folder and a seed
    module: typing.Callable  # of the data
    batch: int
    rates: dict  # learning rates of the compared optimizers
    seeds: int = len(SEEDS)  # with which the weights after 100 steps are compared
    updates: int = 100  # compared one by one
    start: float = TINY  # the learning rate of one step of psring before the comparison
    note: str = ""


def gpt(context, batch, *sizes, rates, vocabulary=None, **others):
    return Model(lambda folder, _: texts(folder, context, vocabulary), lambda data: Gpt(data.size, *sizes, context), batch, rates,
                 **others)


MODELS = {
    "mlp-small": Model(pictures, lambda _: mlp(300, 100), 32, {"sgd": .05, "adamw": 1e-3}),
    "mlp": Model(pictures, lambda _: mlp(1024, 1024), 32, {"sgd": .05, "adamw": 1e-3}),
    "cnn": Model(pictures, lambda _: cnn(), 16, {"sgd": .1, "adamw": 1e-3}),
    "resnet18": Model(pictures, lambda _: resnet18(), 4, {"sgd": .05, "adamw": 1e-3}, seeds=1),
    "resnet50": Model(pictures, lambda _: resnet50(), 2, {"sgd": .05, "adamw": 1e-3}, seeds=1),
    "gpt-nano": gpt(64, 12, 4, 4, 128, rates={"sgd": .1, "adamw": 1e-3}),
    "gpt-mini": gpt(128, 1, 6, 6, 384, rates={"sgd": .1, "adamw": 1e-3},
                    note="Contexts of 128 tokens instead of 256, for the time."),
    "gpt2": gpt(32, 1, 12, 12, 768, rates={"sgd": .1, "adamw": 6e-4}, vocabulary=50257, seeds=1,
                updates=5, note="Contexts of 32 tokens instead of 1,024, for the time. The tokens are numbers of bytes, spread "
                                "over GPT-2's 50,257, so that only the table of positions is smaller than GPT-2's."),
    "dlrm-small": Model(clicks, lambda data: Dlrm(data.size, joined=False), 128, {"sgd": 1, "adagrad": .01, "adam": 1e-3},
                        note="Tables of 1,000 rows. AdamW does not apply to tables."),
    "skipgram": Model(words, lambda data: SkipGram(data.size), 256, {"sgd": 10, "adagrad": .01, "adam": 1e-3}, start=1000,
                      note="AdamW does not apply to tables. The initial weights are those after one step of SGD with rate "
                           "1,000: vectors of targets begin at 0, with which the gradient of the words would be 0."),
}


class Figures(typing.NamedTuple):
    """Distances of one seed."""
    error: float  # psring from PyTorch
    threads: float  # PyTorch with two threads from one
    ours: float  # psring from float64
    theirs: float  # PyTorch from float64; of weights, the larger one with one and two threads

    def cells(self):
        return [f"{value:.1e}" for value in self]


def verdict(found, limit):
    """Of the largest Figures of the seeds. limit(figures): what the error is compared with."""
    largest = Figures(*map(max, zip(*found)))
    if largest.error <= limit(largest):
        return "yes"
    return "float64" if largest.theirs > limit(largest) and largest.ours <= FACTOR * largest.theirs else "no"


def checkpoint(kept, step):
    return load_file(f"{kept}/step{step}/model.safetensors")


def in_last_bit(initial):
    """The weights, each moved to the next float32 above or below."""
    torch.manual_seed(SEEDS[0])
    return {name: torch.nextafter(value, torch.inf * (torch.randint(2, value.shape) * 2.0 - 1)) if "running_" not in name
            else value for name, value in initial.items()}


def with_few_kinks(initial):
    """The weights, with BatchNorm's offsets 3 and -3 in turn, so that few inputs of ReLUs are near 0."""
    return {name: 3 * (-1.0)**torch.arange(len(value)) if name.replace("bias", "running_mean") in initial and "bias" in name
            else value for name, value in initial.items()}


def distance(ours, theirs, names):
    """|ours - theirs| / |theirs| over all elements of these tensors."""
    norms = [(torch.linalg.vector_norm(ours[name] - theirs[name], dtype=torch.float64),
              torch.linalg.vector_norm(theirs[name], dtype=torch.float64)) for name in names]
    return math.sqrt(sum(difference**2 for difference, _ in norms) / sum(size**2 for _, size in norms))


def distance_of_most(state, exact, names):
    """The distance without the largest differences."""
    squares = torch.cat([(state[name] - exact[name]).square().flatten() for name in names])
    squares[squares.topk(LARGEST)[1]] = 0
    return math.sqrt(squares.sum() / sum(exact[name].square().sum() for name in names))


@contextlib.contextmanager
def relus(changed, inputs):
    """Appends the input of each ReLU to `inputs`. Those in `changed`, (index of the call, index of the element), pass the
    gradient if their input is negative, and only then."""
    def relu(x, inplace=False):
        passes = (x.detach() > 0).flatten()
        for call, element in changed:
            if call == len(inputs):
                passes[element] = ~passes[element]
        inputs.append(x.detach())
        return x * passes.view(x.shape)

    original, functional.relu = functional.relu, relu
    try:
        yield
    finally:
        functional.relu = original


class SparseAdam(torch.optim.SparseAdam):
    """With the epsilon of Adam: PyTorch's is added to the root before the bias correction."""

    def step(self, closure=None):
        self.updates = getattr(self, "updates", 0) + 1
        for group in self.param_groups:
            group["eps"] = EPSILON["adam"] * math.sqrt(1 - group["betas"][1]**self.updates)
        return super().step(closure)


def optimizers(module, name, rate):
    """PyTorch's optimizers of all parameters."""
    tables = [p for part in module.modules() if getattr(part, "sparse", False) for p in part.parameters()]
    dense = [p for p in module.parameters() if all(p is not table for table in tables)]
    if name == "sgd":
        return [torch.optim.SGD(module.parameters(), lr=rate)]
    if name == "adagrad":
        return [torch.optim.Adagrad(module.parameters(), lr=rate)]
    if name == "adam":
        return [SparseAdam(tables, lr=rate)] + ([torch.optim.Adam(dense, lr=rate)] if dense else [])
    return [torch.optim.AdamW([{"params": [p for p in dense if p.dim() > 1], "weight_decay": DECAY[name]},
                               {"params": [p for p in dense if p.dim() <= 1], "weight_decay": 0}], lr=rate)]


class Comparison:
    """Of one model with one seed."""

    def __init__(self, name, folder, steps, seed):
        self.seen = [step for step in SEEN if step < steps] + [steps]
        self.figures, self.gradient_rows, self.rows, self.distances, self.updates = {}, [], [], [], []
        self.name, self.model, self.folder, self.seed = name, MODELS[name], folder, seed
        self.data = self.model.data(folder, seed)
        self.file = None
        self.initial = self.after(1, "sgd", self.model.start)
        self.weights = [key for key in self.initial if "running_" not in key]
        self.buffers = [key for key in self.initial if "running_" in key]
        for key in self.buffers:  # the step has updated them
            self.initial[key].fill_(1.0 if key.endswith("var") else 0.0)
        self.start_from(self.initial)

    def start_from(self, weights):
        self.initial, self.file = weights, self.folder / "initial.safetensors"
        save_file({name: value.clone() for name, value in weights.items()}, self.file)

    def psring(self, kept, steps, optimizer, rate, *flags):
        """Trains with one process and one thread. kept: the folder of its checkpoints."""
        resume = ["--resume", self.file] if self.file else []
        runs.run([TRAINER, "--strategy", "single", "--model", self.name, "--device", "cpu", "--batch", self.model.batch,
                  "--steps", steps, "--optimizer", optimizer, "--lr", repr(rate), "--seed", self.seed, "--no_eval", "--progress",
                  "none", "--checkpoint_dir", kept, *self.data.flags, *resume, *flags])

    def after(self, steps, optimizer, rate):
        """psring's weights and buffers after `steps` steps."""
        with tempfile.TemporaryDirectory(dir=self.folder) as kept:
            self.psring(kept, steps, optimizer, rate)
            return checkpoint(kept, steps)

    def steps_of(self, threads, steps, dtype=torch.float32, starts=None):
        """Yields PyTorch's module after backward of each step; the caller updates its weights. `starts`: the weights before
        each step; after its end, they are those after the step before."""
        torch.set_num_threads(threads)
        module, starts = self.model.module(self.data).to(dtype), iter(starts or [self.initial])
        for indices in samples.batches(len(self.data.arrays[-1]), self.model.batch, steps, self.seed):
            start = next(starts, None)
            if start:
                missing, unexpected = module.load_state_dict(start, strict=False)
                if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
                    sys.exit(f"{self.name}: names differ: PyTorch's {missing}, psring's {unexpected}")
            inputs, labels = self.data.batch(indices)
            *inputs, labels = (part.to(dtype) if part.is_floating_point() else part for part in (*inputs, labels))
            module.zero_grad()
            self.data.loss(module(*inputs), labels).backward()
            yield module

    def pytorch(self, optimizer, threads, dtype=torch.float32, starts=None):
        """Yields the weights and buffers after each of the steps `seen`."""
        updates = None
        for step, module in enumerate(self.steps_of(threads, self.seen[-1], dtype, starts), 1):
            updates = updates or optimizers(module, optimizer, self.model.rates[optimizer])
            for update in updates:
                update.step()
            if step in self.seen:
                yield {name: value.detach().clone() for name, value in module.state_dict().items()}

    def gradients_of(self, *how):
        """PyTorch's, of the first step."""
        return {name: p.grad.to_dense() for name, p in next(self.steps_of(*how)).named_parameters()}

    def with_decisions_of(self, ours):
        """The gradients of float64 after changes at ReLUs whose inputs are nearly 0, as long as they come closer to `ours`, and
        the number of changes."""
        changed, inputs = [], []
        with relus(changed, inputs):
            best = self.gradients_of(1, 1, torch.float64)
        nearest = []
        for call, x in enumerate(inputs):
            values, elements = (x.abs() / x.square().mean().sqrt()).flatten().topk(min(KINKS, x.numel()), largest=False)
            nearest += zip(values.tolist(), itertools.repeat(call), elements.tolist())
        error = distance(ours, best, best)
        for _, *kink in sorted(nearest)[:KINKS]:
            if error <= CLOSE:
                break
            with relus([*changed, kink], []):
                other = self.gradients_of(1, 1, torch.float64)
            if (closer := distance(ours, other, other)) < error:
                best, changed, error = other, [*changed, kink], closer
        return best, len(changed)

    def compare_gradients(self, title):
        """Adds to the rows of the table. Returns psring's gradients of the first step."""
        theirs, two, exact = self.gradients_of(1, 1), self.gradients_of(2, 1), self.gradients_of(1, 1, torch.float64)
        after = self.after(1, "sgd", HUGE)
        ours = {name: (self.initial[name].double() - after[name].double()) / HUGE for name in theirs}

        sizes = {name: torch.linalg.vector_norm(value) for name, value in exact.items()}
        names = [name for name, size in sizes.items() if title == INITIAL or size > NEGLIGIBLE * max(sizes.values())]

        def largest(one, other):
            return max((distance(one, other, [name]), name) for name in names)

        errors = sorted(distance(ours, theirs, [name]) for name in names)
        error, worst = largest(ours, theirs)
        figures = Figures(error, largest(two, theirs)[0], largest(ours, exact)[0], largest(theirs, exact)[0])
        self.figures[title] = figures
        cells = [*figures.cells(), ""]
        cells[0] += f" ({worst})"
        if self.buffers and title == INITIAL and figures.ours > GRADIENT_LIMIT:
            decided, changes = self.with_decisions_of(ours)
            self.figures[title] = figures._replace(ours=largest(ours, decided)[0])
            cells[-1] = f"{self.figures[title].ours:.1e} ({changes})"
        self.gradient_rows.append([title, self.seed, len(errors), f"{distance(ours, theirs, theirs):.1e}",
                                   f"{statistics.median(errors):.1e}", *cells])
        print(self.name, self.gradient_rows[-1], file=sys.stderr)
        return ours

    def compare_weights(self, optimizer):
        """Adds to the rows of the tables."""
        rate, weights, seen = self.model.rates[optimizer], self.weights, self.seen
        exact = list(self.pytorch(optimizer, 1, torch.float64))
        contenders = {"psring": (self.after(step, optimizer, rate) for step in seen),
                      "PyTorch, 1 thread": self.pytorch(optimizer, 1),
                      "PyTorch, 2 threads": self.pytorch(optimizer, 2),
                      "PyTorch, initial weights changed in the last bit":
                          self.pytorch(optimizer, 1, starts=[in_last_bit(self.initial)])}
        errors, first, last = {}, [], []
        for name, states in contenders.items():
            errors[name] = []
            for step, state, truth in zip(seen, states, exact):
                errors[name].append(distance(state, truth, weights))
                if step == 1:
                    first.append(state)
            last.append(state)
        ours, one, two, moved = last
        figures = Figures(distance(ours, one, weights), distance(two, one, weights), errors["psring"][-1],
                          max(errors["PyTorch, 1 thread"][-1], errors["PyTorch, 2 threads"][-1]))
        self.figures[optimizer] = figures
        self.rows.append([optimizer, rate, self.seed, f"{distance(one, self.initial, weights):.2g}", *figures.cells(),
                          f"{distance(moved, one, weights):.1e}",
                          f"{distance(ours, one, self.buffers):.1e}" if self.buffers else ""])
        print(self.name, self.rows[-1], file=sys.stderr)
        self.distances += [[optimizer, name, *(f"{x:.1e}" for x in distances)] for name, distances in errors.items()]
        if optimizer != "sgd":
            self.updates.append([optimizer, f"{self.first_update_error(first[0], optimizer):.1e}",
                                 *(f"{distance_of_most(state, exact[0], weights):.1e}" for state in first[:2])])

    def first_update_error(self, after, optimizer):
        """The distance of the matrices after the first update from those that float64 computes from psring's own gradients."""
        rate, decay = self.model.rates[optimizer], DECAY.get(optimizer, 0)
        names = [name for name in self.weights if self.initial[name].dim() > 1]
        expected = {name: self.initial[name].double() * (1 - rate * decay) -
                    rate * self.gradients[name] / (self.gradients[name].abs() + EPSILON[optimizer]) for name in names}
        return distance(after, expected, names)

    def compare_steps(self):
        """Each of psring's updates with SGD, compared with PyTorch's from the same weights."""
        steps, rate, errors, states = min(self.seen[-1], self.model.updates), self.model.rates["sgd"], [], [self.initial]
        kept = tempfile.mkdtemp(dir=self.folder)
        self.psring(kept, steps, "sgd", rate, "--checkpoint_every", 1, "--checkpoint_keep", steps)
        for step, module in enumerate(self.steps_of(1, steps, starts=iter(lambda: states[-1], None)), 1):
            optimizers(module, "sgd", rate)[0].step()
            theirs = module.state_dict()
            states = [states[-1], checkpoint(kept, step)]
            before, after = (distance(state, theirs, self.weights) for state in states)
            errors.append((after / before, step))
        (most, at), median = max(errors), sorted(errors)[steps // 2][0]
        return (f"psring's {steps} updates with SGD, each compared with PyTorch's from the same weights: the median difference "
                f"is {median:.1e} of the update, the largest is {most:.1e}, in step {at}. Of all, "
                f"{sum(error > 10 * median for error, _ in errors)} are above 10 times the median.")

    def compare(self):
        """Compares all, or only gradients if the model has fewer seeds."""
        self.gradients = self.compare_gradients(INITIAL)
        if self.buffers:
            initial = self.initial
            self.start_from(with_few_kinks(initial))
            self.compare_gradients(FEW_KINKS)
            self.start_from(initial)
        if self.seed in SEEDS[:self.model.seeds]:
            for optimizer in self.model.rates:
                self.compare_weights(optimizer)


def section(name, steps):
    """Returns the page's lines, and whether no verdict is "no"."""
    begin, model, figures, gradient_rows, rows, details = time.monotonic(), MODELS[name], [], [], [], None
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            one = Comparison(name, pathlib.Path(folder), steps, seed)
            one.compare()
            figures.append(one.figures)
            gradient_rows += one.gradient_rows
            rows += one.rows
            details = details or (seed, one.seen, one.distances, one.updates, one.compare_steps())
    seed, seen, distances, first_updates, updates = details

    def judged(title, limit):
        return verdict([found[title] for found in figures if title in found], limit)

    gradients = [judged(title, lambda _: GRADIENT_LIMIT) for title in (INITIAL, FEW_KINKS) if title in figures[0]]
    verdicts = {"gradients": min(gradients, key=VERDICTS.index),
                **{optimizer: judged(optimizer, lambda largest: FACTOR * largest.threads) for optimizer in model.rates}}
    return [f"{runs.measured_on()}, in {time.monotonic() - begin:.0f} s; PyTorch {torch.__version__}; batches of {model.batch}. "
            f"{model.note}".strip(), "",
            f"Within the limits: {', '.join(f'{what} {word}' for what, word in verdicts.items())}.", "",
            "Gradients of the first step, tensor by tensor:", "",
            *runs.table("weights | seed | tensors | psring - PyTorch: all together | median | largest | PyTorch, 2 - 1 threads: "
                        "largest | psring - float64: largest | PyTorch - float64: largest | psring - float64 with psring's "
                        "decisions: largest (ReLUs)",
                        sorted(gradient_rows, key=lambda row: row[0] != INITIAL)), "",
            f"Weights after {steps} steps:", "",
            *runs.table("optimizer | rate | seed | change by training | psring - PyTorch | PyTorch, 2 - 1 threads | psring - "
                        "float64 | PyTorch - float64 | PyTorch, initial weights changed in the last bit | running statistics, "
                        "psring - PyTorch", sorted(rows, key=lambda row: list(model.rates).index(row[0]))), "",
            f"Distance of the weights from float64 with seed {seed}, after steps:", "",
            *runs.table(" | ".join(["optimizer", "", *map(str, seen)]), distances), "",
            f"First update with seed {seed}:", "",
            *runs.table(f"optimizer | psring's matrices from its own gradient | psring, without the {LARGEST} largest "
                        f"differences | PyTorch, without the {LARGEST} largest", first_updates), "",
            updates], "no" not in verdicts.values()


if __name__ == "__main__":
    args = runs.parse(__doc__, models=",".join(MODELS), steps=max(SEEN))
    path, passed = runs.RESULTS / "parity.md", True
    for name in args.models.split(","):
        lines, within = section(name, args.steps)
        passed = passed and within
        page = runs.with_section(path.read_text(), name, lines)
        found = re.findall(r"^## (\S+)\n(?:(?!## ).*\n)*?Within the limits: (.*)\.$", page, re.MULTILINE)
        summary = runs.table("model | within the limits", sorted(found, key=lambda row: list(MODELS).index(row[0])))
        first, last = page.index("| model |"), page.index("\n\n## ")
        runs.write_result("parity.md", (page[:first] + "\n".join(summary) + page[last:]).splitlines())
    sys.exit(0 if passed else 1)
