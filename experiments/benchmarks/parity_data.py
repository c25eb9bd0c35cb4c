"""The samples that psring trains on, in the same order, as tensors. Requires PyTorch.

Each class writes what psring reads to `folder`, and has `flags` for the trainer, `count` samples, batch(indices), which returns
(inputs, labels), and loss(outputs, labels). `seed`: the trainer's.
"""
import bisect
import collections
import functools
import gzip
import itertools
import math
import pathlib
import re
import struct
import sys

import runs
import torch
from pytorch_data import NUMBERS, TABLES, TARGETS, WINDOW, lookups_of_tables
from torch.nn import functional

FASHION = pathlib.Path("/usr/share/datasets/fashion-mnist")  # Debian's dataset-fashion-mnist


class Random:
    """psring's generator (common/base/random.h)."""
    MASK, STEP = (1 << 64) - 1, 0x9e3779b97f4a7c15

    def __init__(self, seed, stream):
        self.state = self.mix(seed) ^ self.mix(~stream & self.MASK)

    @classmethod
    def mix(cls, z):
        z = ((z ^ (z >> 30)) * 0xbf58476d1ce4e5b9) & cls.MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & cls.MASK
        return z ^ (z >> 31)

    def skip(self, count):
        self.state = (self.state + count * self.STEP) & self.MASK

    def next(self):
        self.skip(1)
        return self.mix(self.state)

    def below(self, bound):
        return ((self.next() >> 32) * bound) >> 32

    def part(self):
        """In [0, 1)."""
        return (self.next() >> 11) * 2.0**-53

    def normal(self):
        total = sum(sum(struct.unpack("4H", struct.pack("Q", self.next()))) for _ in range(3))
        return (2 * total - 12 * 0xffff) * 2.0**-17

    def shuffled(self, count):
        items = list(range(count))
        for i in range(count, 1, -1):
            j = self.below(i)
            items[i - 1], items[j] = items[j], items[i - 1]
        return items


def batches(count, batch, steps, seed):
    """The samples of each step; an epoch's last, incomplete batch is dropped."""
    found, epoch = [], 0
    while len(found) < steps:
        order = Random(seed, epoch).shuffled(count)
        found += [order[first:first + batch] for first in range(0, count - batch + 1, batch)]
        epoch += 1
    return found[:steps]


def own_text():
    return b"".join((runs.ROOT / name).read_bytes() for name in ("README.md", "CHANGELOG.md", "trainer/modes.md"))


class Texts:
    """This project's own texts, a byte a token. `vocabulary`: the numbers of the bytes are spread over [0, vocabulary)."""
    loss = staticmethod(functional.cross_entropy)

    def __init__(self, folder, _, context, vocabulary=None):
        text, self.context = own_text(), context
        symbols = sorted(set(text))
        self.classes = vocabulary or len(symbols)
        number = {byte: i * (self.classes - 1) // (len(symbols) - 1) for i, byte in enumerate(symbols)}
        self.tokens = torch.tensor([number[byte] for byte in text])
        for name in ("train.bin", "val.bin"):
            (folder / name).write_bytes(struct.pack(f"<{len(text)}H", *self.tokens.tolist()))
        self.count = (len(text) - 1) // context
        self.flags = ["--data", "tokens", "--data_dir", folder, "--context", context]

    def batch(self, indices):
        windows = torch.stack([self.tokens[i * self.context:(i + 1) * self.context + 1] for i in indices])
        return (windows[:, :-1],), windows[:, 1:].flatten()


class Pictures:
    """The first 1,600 pictures of Fashion-MNIST."""
    count = 1600
    loss = staticmethod(functional.cross_entropy)

    def __init__(self, folder, _):
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
        sys.exit(f"parity.py needs Fashion-MNIST in {FASHION}: apt-get install dataset-fashion-mnist, or name --models without "
                 "pictures")

    def batch(self, indices):
        return (self.images[indices],), self.labels[indices]


class Zipf:
    """common/workloads/zipf.cc."""

    def __init__(self, items, alpha):
        self.items, self.alpha = items, alpha
        self.first, self.last = self.integral(1.5) - 1, self.integral(items + .5)
        self.shift = 2 - self.inverse_integral(self.integral(2.5) - self.density(2))

    def integral(self, x):
        log = math.log(x)
        scaled = (1 - self.alpha) * log
        return (math.expm1(scaled) / scaled if abs(scaled) > 1e-8 else 1 + scaled / 2) * log

    def inverse_integral(self, x):
        scaled = x * (1 - self.alpha)
        return math.exp((math.log1p(scaled) / scaled if abs(scaled) > 1e-8 else 1 - scaled / 2) * x)

    def density(self, x):
        return math.exp(-self.alpha * math.log(x))

    def next(self, random):
        while True:
            u = self.last + random.part() * (self.first - self.last)
            x = self.inverse_integral(u)
            k = min(max(math.floor(x + .5), 1), self.items)
            if k - x <= self.shift or u >= self.integral(k + .5) - self.density(k):
                return k


class Clicks:
    """The generated log of clicks of trainer/data/clicks.cc, with smaller tables."""
    rows, alpha, count = 1000, 1.05, 65536
    loss = staticmethod(functional.cross_entropy)

    def __init__(self, _, seed):
        self.flags, self.seed = ["--data", f"zipf:{self.rows}:{self.alpha}"], seed
        random = Random(seed, 11)
        self.weights = (torch.tensor([random.normal() for _ in range(NUMBERS)]) * .3).tolist()
        self.zipf, self.spread = Zipf(self.rows, self.alpha), []
        for table in range(TABLES):
            random, factor = Random(seed, 100 + table), 0
            shift = random.below(self.rows)
            while math.gcd(factor, self.rows) != 1:
                factor = random.below(self.rows) | 1
            self.spread.append((factor, shift))
        random, self.states = Random(seed, 12), []  # of the generator before each sample
        for _ in range(self.count):
            self.states.append(random.state)
            random.skip(3 * NUMBERS)
            for _ in range(sum(lookups_of_tables())):
                self.zipf.next(random)
            random.skip(1)

    @functools.cache
    def sample(self, index):
        random = Random(0, 0)
        random.state = self.states[index]
        numbers, rows = [random.normal() for _ in range(NUMBERS)], []
        logit = -1.0
        for weight, number in zip(self.weights, numbers):
            logit += weight * number
        for table, lookups in enumerate(lookups_of_tables()):
            factor, shift = self.spread[table]
            for _ in range(lookups):
                rows.append(((self.zipf.next(random) - 1) * factor + shift) % self.rows)
                logit += .3 * Random(self.seed, (1 << 62) + (table << 32) + rows[-1]).normal()
        return numbers, rows, int(random.part() < 1 / (1 + math.exp(-logit)))

    def batch(self, indices):
        numbers, rows, labels = zip(*map(self.sample, indices))
        return (torch.tensor(numbers), torch.tensor(rows)), torch.tensor(labels)


class Words:
    """The pairs of near words of trainer/data/words.cc, of this project's own texts."""
    loss = staticmethod(functional.binary_cross_entropy_with_logits)

    def __init__(self, folder, seed):
        self.seed = seed
        (folder / "text").write_bytes(own_text())
        self.flags = ["--data", "words", "--text", folder / "text"]
        found = re.findall(b"[a-z]+", own_text().lower())
        counts = collections.Counter(found)
        kept = sorted(word for word, count in counts.items() if count > 1)
        number = {word: i for i, word in enumerate(kept)}
        self.words = [number[word] for word in found if word in number]
        self.count, self.classes = len(self.words) - len(self.words) // 50, len(kept)
        self.cumulative = list(itertools.accumulate(counts[word]**.75 for word in kept))

    def sample(self, index):
        random, near = Random(self.seed, (1 << 61) + index), index
        while near == index:
            near = min(max(index + random.below(2 * WINDOW + 1) - WINDOW, 0), self.count - 1)
        drawn = [bisect.bisect_right(self.cumulative, random.part() * self.cumulative[-1]) for _ in range(TARGETS - 1)]
        return self.words[index], [self.words[near], *drawn]

    def batch(self, indices):
        words, targets = zip(*map(self.sample, indices))
        labels = torch.zeros(len(indices), TARGETS)
        labels[:, 0] = 1
        return (torch.tensor(words)[:, None], torch.tensor(targets)), labels.flatten()
