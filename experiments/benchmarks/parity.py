#!/usr/bin/env python3
"""Compares psring's gradients and weights with PyTorch's, for the same initial weights, samples and order.

    ./run build && torch/bin/python experiments/benchmarks/parity.py [--models gpt-nano,resnet18] [--optimizers sgd,adamw]

psring exports its initial weights, and PyTorch loads them by name. Of the first step, the gradient of every tensor is compared;
after --steps steps, the weights, whose difference is compared with PyTorch's own between one and two threads, and after a
change of each initial weight in its last bit. The distances of all of these from PyTorch in float64 show, step by step, whether
a difference is more than rounding. Writes a section for each model to experiments/results/parity.md, whose other sections are
kept, prints the page, and fails if a figure is above its limit. Needs PyTorch: python3 -m venv torch && torch/bin/pip install
torch numpy.
"""
import gzip
import json
import math
import pathlib
import re
import struct
import sys
import tempfile

import runs

try:
    import torch
except ImportError:
    sys.exit("parity.py needs PyTorch: python3 -m venv torch && torch/bin/pip install torch numpy, then torch/bin/python "
             "experiments/benchmarks/parity.py")
from pytorch_models import Gpt, ResNet18
from torch.nn import functional

TRAINER = runs.ROOT / "build/release/bin/trainer"
FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist
SEED = 1
HUGE, TINY = 2.0**20, 1e-30  # learning rates that leave only the gradient, or the weights as they were
GRADIENT_LIMIT, THREADS_FACTOR = 1e-5, 3
DECAY = 0.1  # of matrices, psring's default
SEEN = (1, 3, 10, 30, 100)  # steps after which distances from float64 are computed
RATES = {("gpt-nano", "sgd"): 0.1, ("gpt-nano", "adamw"): 1e-3, ("resnet18", "sgd"): 0.05, ("resnet18", "adamw"): 1e-3}
BATCH = {"gpt-nano": 12, "resnet18": 8}


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    return {name: torch.frombuffer(data, dtype=torch.float32, offset=at["data_offsets"][0],
                                   count=math.prod(at["shape"])).reshape(at["shape"]).clone() for name, at in header.items()}


def write_safetensors(path, tensors):
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [end, end + 4 * tensor.numel()]}
        end += 4 * tensor.numel()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


class Random:
    """psring's generator (common/base/random.h), which shuffles the samples of an epoch."""
    MASK = (1 << 64) - 1

    def __init__(self, seed, stream):
        self.state = self.mix(seed) ^ self.mix(~stream & self.MASK)

    @classmethod
    def mix(cls, z):
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & cls.MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & cls.MASK
        return z ^ (z >> 31)

    def below(self, bound):
        self.state = (self.state + 0x9e3779b97f4a7c15) & self.MASK
        return ((self.mix(self.state) >> 32) * bound) >> 32

    def shuffled(self, count):
        items = list(range(count))
        for i in range(count, 1, -1):
            j = self.below(i)
            items[i - 1], items[j] = items[j], items[i - 1]
        return items


def batches(count, batch, steps):
    """The samples of each step; an epoch's last, incomplete batch is dropped."""
    found, epoch = [], 0
    while len(found) < steps:
        order = Random(SEED, epoch).shuffled(count)
        found += [order[first:first + batch] for first in range(0, count - batch + 1, batch)]
        epoch += 1
    return found[:steps]


class Texts:
    """This project's own texts, a byte a token; samples of 64 tokens."""
    model, context = "gpt-nano", 64

    def __init__(self, folder):
        text = b"".join((runs.ROOT / name).read_bytes() for name in ("README.md", "CHANGELOG.md", "trainer/modes.md"))
        number = {byte: i for i, byte in enumerate(sorted(set(text)))}
        self.tokens = torch.tensor([number[byte] for byte in text])
        for name in ("train.bin", "val.bin"):
            (folder / name).write_bytes(struct.pack(f"<{len(text)}H", *self.tokens.tolist()))
        self.count, self.classes = (len(text) - 1) // self.context, len(number)
        self.flags = ["--data", "tokens", "--data_dir", folder]

    def module(self):
        return Gpt(self.classes, context=self.context)

    def batch(self, indices):
        windows = torch.stack([self.tokens[i * self.context:(i + 1) * self.context + 1] for i in indices])
        return windows[:, :-1], windows[:, 1:].flatten()


class Pictures:
    """The first 1,600 pictures of Fashion-MNIST."""
    model, count, classes = "resnet18", 1600, 10

    def __init__(self, folder):
        for kind, count in (("train", self.count), ("t10k", 128)):
            for name, header, size in ((f"{kind}-images-idx3-ubyte", 16, 784), (f"{kind}-labels-idx1-ubyte", 8, 1)):
                raw = self.read(name)[:header + count * size]
                (folder / name).write_bytes(raw[:4] + struct.pack(">I", count) + raw[8:])
        images = bytearray((folder / "train-images-idx3-ubyte").read_bytes()[16:])
        pixels = torch.frombuffer(images, dtype=torch.uint8).view(self.count, 1, 28, 28)
        self.images = (pixels.float() / 255 - 0.2860) / 0.3530  # as trainer/data/data.cc
        self.labels = torch.tensor(list((folder / "train-labels-idx1-ubyte").read_bytes()[8:]))
        self.flags = ["--data", "fashion-mnist", "--data_dir", folder]

    @staticmethod
    def read(name):
        for path in (FASHION / name, FASHION / f"{name}.gz"):
            if path.exists():
                return (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
        sys.exit(f"parity.py needs Fashion-MNIST in {FASHION}: apt-get install dataset-fashion-mnist, or --models gpt-nano")

    def module(self):
        return ResNet18(self.classes)

    def batch(self, indices):
        return self.images[indices], self.labels[indices]


def psring(data, folder, steps, optimizer, rate, initial=None):
    """The weights and buffers after `steps` steps of one process with one thread."""
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        runs.run([TRAINER, "--strategy", "single", "--model", data.model, "--device", "cpu", "--batch", BATCH[data.model],
                  "--steps", steps, "--optimizer", optimizer, "--lr", repr(rate), "--seed", SEED, "--no_eval", "--progress",
                  "none", "--checkpoint_dir", kept, *data.flags, *(["--resume", initial] if initial else [])])
        return read_safetensors(f"{kept}/step{steps}/model.safetensors")


def steps_of(data, initial, threads, steps, dtype=torch.float32):
    """Yields the module after backward of each step; the caller updates its weights."""
    torch.set_num_threads(threads)
    module = data.module().to(dtype)
    missing, unexpected = module.load_state_dict(initial, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        sys.exit(f"{data.model}: names differ: PyTorch's {missing}, psring's {unexpected}")
    for indices in batches(data.count, BATCH[data.model], steps):
        inputs, labels = data.batch(indices)
        if inputs.is_floating_point():
            inputs = inputs.to(dtype)
        module.zero_grad()
        functional.cross_entropy(module(inputs), labels).backward()
        yield module


def trained(data, initial, threads, steps, optimizer, rate, dtype=torch.float32):
    """{step: the weights and buffers after it} for each of `steps`, ascending."""
    update, found = None, {}
    for step, module in enumerate(steps_of(data, initial, threads, steps[-1], dtype), 1):
        if update is None:
            matrices = [p for p in module.parameters() if p.dim() > 1]
            others = [p for p in module.parameters() if p.dim() <= 1]
            update = torch.optim.SGD(module.parameters(), lr=rate) if optimizer == "sgd" else torch.optim.AdamW(
                [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0}], lr=rate)
        update.step()
        if step in steps:
            found[step] = {name: value.detach().clone() for name, value in module.state_dict().items()}
    return found


def in_last_bit(initial):
    """The weights, each moved to the next float32 above or below."""
    torch.manual_seed(SEED)
    return {name: torch.nextafter(value, torch.inf * (torch.randint(2, value.shape) * 2.0 - 1)) if "running_" not in name
            else value for name, value in initial.items()}


def distance(ours, theirs, names):
    """|ours - theirs| / |theirs| over all elements of these tensors."""
    squares = [((ours[name].double() - theirs[name].double()).square().sum(), theirs[name].double().square().sum())
               for name in names]
    return math.sqrt(sum(difference for difference, _ in squares) / sum(size for _, size in squares))


def first_update_error(data, folder, initial, initial_file, gradients):
    """AdamW's first update of the matrices, compared with the one that float64 computes from psring's own gradients."""
    rate, names = RATES[data.model, "adamw"], [name for name, value in initial.items() if value.dim() > 1]
    after = psring(data, folder, 1, "adamw", rate, initial_file)
    expected = {name: initial[name].double() * (1 - rate * DECAY) - rate * gradients[name] / (gradients[name].abs() + 1e-8)
                for name in names}
    return distance(after, expected, names)


def gradient_lines(data, folder, initial, initial_file):
    """Compares every tensor's gradient in the first step; returns the text, and whether all are within the limit."""
    def gradients(*how):
        return {name: parameter.grad for name, parameter in next(steps_of(data, initial, *how)).named_parameters()}

    after = psring(data, folder, 1, "sgd", HUGE, initial_file)
    theirs, two, exact = gradients(1, 1), gradients(2, 1), gradients(1, 1, torch.float64)
    ours = {name: (initial[name].double() - after[name].double()) / HUGE for name in theirs}

    def largest(one, other):
        return max((distance(one, other, [name]), name) for name in theirs)

    errors = sorted(distance(ours, theirs, [name]) for name in theirs)
    error, worst = largest(ours, theirs)
    our_error, their_error = largest(ours, exact)[0], largest(theirs, exact)[0]
    within = error <= GRADIENT_LIMIT or our_error <= their_error
    row = [len(errors), f"{errors[len(errors) // 2]:.1e}", f"{error:.1e} ({worst})", f"{largest(two, theirs)[0]:.1e}",
           f"{our_error:.1e}", f"{their_error:.1e}", "yes" if within else "no"]
    update = first_update_error(data, folder, initial, initial_file, ours)
    return ["Gradients of the first step, tensor by tensor. float64: PyTorch's in double precision.", "",
            *runs.table("tensors | psring - PyTorch: median | largest | PyTorch, 2 - 1 threads: largest | psring - float64: "
                        "largest | PyTorch - float64: largest | within the limit", [row]), "",
            f"The matrices after psring's first AdamW update differ by {update:.1e} from those that float64 computes from "
            "psring's own gradient."], within


def concentration_text(ours, theirs, exact, names):
    """Whether few elements make up the distances from float64 after AdamW's first step."""
    largest = 100
    norm = math.sqrt(sum(exact[name].square().sum() for name in names))

    def of(state):
        squares = torch.cat([(state[name].double() - exact[name]).square().flatten() for name in names]).sort(descending=True)[0]
        most = int((squares.cumsum(0) < 0.9 * squares.sum()).sum()) + 1
        return len(squares), most, math.sqrt(squares[largest:].sum()) / norm

    (count, most, rest), (_, their_most, their_rest) = of(ours), of(theirs)
    return (f"After AdamW's first step, {most} of {count:,} elements make up 90% of psring's squared distance (PyTorch: "
            f"{their_most}). AdamW divides a gradient by its size, so rounding decides the update where the gradient is nearly 0. "
            f"Without the {largest} largest differences of each, psring's distance is {rest:.1e}, PyTorch's {their_rest:.1e}.")


def weight_lines(data, folder, initial, initial_file, steps, optimizers):
    """Compares the weights; returns the text, and whether all are within the limit."""
    weights = [name for name in initial if "running_" not in name]
    buffers = [name for name in initial if "running_" in name]
    seen = [step for step in SEEN if step < steps] + [steps]
    rows, distances, ratios, concentration, passed = [], [], [], [], True
    for optimizer in optimizers:
        rate = RATES[data.model, optimizer]
        exact = trained(data, initial, 1, seen, optimizer, rate, torch.float64)
        of_all = {"psring": {step: psring(data, folder, step, optimizer, rate, initial_file) for step in seen},
                  "PyTorch, 1 thread": trained(data, initial, 1, seen, optimizer, rate),
                  "PyTorch, 2 threads": trained(data, initial, 2, seen, optimizer, rate),
                  "PyTorch, initial weights changed in the last bit":
                      trained(data, in_last_bit(initial), 1, seen, optimizer, rate)}
        from_exact = {name: [distance(state[step], exact[step], weights) for step in seen] for name, state in of_all.items()}
        distances += [[optimizer, name, *(f"{error:.1e}" for error in errors)] for name, errors in from_exact.items()]
        if optimizer == "adamw":
            of_first = [of_all[name][seen[0]] for name in ("psring", "PyTorch, 1 thread")]
            concentration = ["", concentration_text(*of_first, exact[seen[0]], weights)]
        ours, one, two, moved_start = (state[steps] for state in of_all.values())
        ratios += [ours / max(theirs) for ours, *theirs in zip(*list(from_exact.values())[:3])]
        error, own = distance(ours, one, weights), distance(two, one, weights)
        within = error <= THREADS_FACTOR * own
        rows.append([optimizer, rate, f"{distance(one, initial, weights):.2g}", f"{error:.1e}", f"{own:.1e}",
                     f"{distance(moved_start, one, weights):.1e}", f"{distance(ours, one, buffers):.1e}" if buffers else "",
                     "yes" if within else "no"])
        passed = passed and within
        print(rows[-1], file=sys.stderr)
    return [f"Weights after {steps} steps.", "",
            *runs.table("optimizer | rate | change by training | psring - PyTorch | PyTorch, 2 - 1 threads | PyTorch, initial "
                        "weights changed in the last bit | running statistics, psring - PyTorch | within the limit", rows), "",
            "Distance of the weights from PyTorch in float64, after steps:", "",
            *runs.table(" | ".join(["optimizer", "", *map(str, seen)]), distances), "",
            f"psring's distance is {min(ratios):.2f} to {max(ratios):.2f} times the larger one of PyTorch with 1 and 2 "
            "threads.", *concentration], passed


HEAD = f"""# Gradients and weights compared with PyTorch

Sections of models are written by experiments/benchmarks/parity.py. One psring process with one thread, float32. Differences are
relative L2 norms. All figures are *measured*.

* The gradients of a model are within the limit if the largest difference is at most {GRADIENT_LIMIT:g}, or if psring is closer
  to float64 than PyTorch is. The limit of the weights is {THREADS_FACTOR} times the difference between PyTorch with one and two
  threads.
* Two threads change less than float32 rounds: most of PyTorch's sums have the same bits with one thread and two. Training then
  amplifies each difference, which the column "initial weights changed in the last bit" shows. Where that difference is about as
  large as the change by training, the comparison cannot tell whether two implementations are equal.
* Distances from float64 tell rounding from an error: another epsilon, weight decay, bias correction or order of samples would
  separate psring from float64 in the first steps, at once or by the same amount in each, and more than PyTorch."""


def main():
    parser = runs.flags(__doc__)
    parser.add_argument("--models", default="gpt-nano,resnet18")
    parser.add_argument("--optimizers", default="sgd,adamw")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    path, passed = runs.RESULTS / "parity.md", True
    page = HEAD
    if path.exists():
        page += "\n\n" + "".join(re.findall(r"^## .*", path.read_text(), re.MULTILINE | re.DOTALL))
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as at:
            folder = pathlib.Path(at)
            data = {kind.model: kind for kind in (Texts, Pictures)}[name](folder)
            initial = psring(data, folder, 1, "sgd", TINY)
            for buffer in (key for key in initial if "running_" in key):  # the step has updated them
                initial[buffer].fill_(1.0 if buffer.endswith("var") else 0.0)
            initial_file = folder / "initial.safetensors"
            write_safetensors(initial_file, initial)
            gradients, gradients_pass = gradient_lines(data, folder, initial, initial_file)
            weights, weights_pass = weight_lines(data, folder, initial, initial_file, args.steps, args.optimizers.split(","))
        within = gradients_pass and weights_pass
        passed = passed and within
        page = runs.with_section(page, name, [
            f"{runs.measured_on()}; PyTorch {torch.__version__}; batches of {BATCH[name]}.", "", *gradients, "", *weights, "",
            f"All within their limits: {'yes' if within else 'no'}."])
    runs.write_result("parity.md", page.splitlines())
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
