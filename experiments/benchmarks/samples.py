"""The samples that psring trains on, in the same order, as arrays: inputs, then labels. Requires NumPy."""
import collections
import gzip
import math
import pathlib
import re
import subprocess

import numpy as np

FASHION = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist
NUMBERS, TABLES, LOOKUPS, CLICKS = 13, 8, 26, 65536  # of a click, as in trainer/data/sources.h
WINDOW, TARGETS = 5, 6  # of a pair of words, as in trainer/data/sources.h


class Random:
    """psring's generator (common/base/random.h), or several of them: `stream` may be an array."""

    def __init__(self, seed, stream):
        self.state = self.mix(np.array([seed], np.uint64)) ^ self.mix(~np.asarray(stream, np.uint64).reshape(-1))

    @staticmethod
    def mix(z):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xbf58476d1ce4e5b9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94d049bb133111eb)
        return z ^ (z >> np.uint64(31))

    def draws(self, places):
        """Those with these numbers, from 0."""
        return self.mix(self.state + (np.asarray(places, np.uint64) + np.uint64(1)) * np.uint64(0x9e3779b97f4a7c15))


def below(draws, bound):
    return (((draws >> np.uint64(32)) * np.asarray(bound, np.uint64)) >> np.uint64(32)).astype(np.int64)


def parts(draws):
    """In [0, 1)."""
    return (draws >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(draws):
    """One from each three draws of the last axis."""
    quarters = (draws[..., None] >> np.array([0, 16, 32, 48], np.uint64)) & np.uint64(0xffff)
    return (2 * quarters.sum((-1, -2)).astype(np.int64) - 12 * 0xffff) * 2.0**-17


def batches(count, batch, steps, seed):
    """The samples of each step; an epoch's last, incomplete batch is dropped."""
    found, epoch = [], 0
    while len(found) < steps:
        order, last = list(range(count)), range(count, 1, -1)
        for i, j in zip(last, below(Random(seed, epoch).draws(np.arange(count - 1)), last).tolist()):
            order[i - 1], order[j] = order[j], order[i - 1]
        found += [order[first:first + batch] for first in range(0, count - batch + 1, batch)]
        epoch += 1
    return found[:steps]


def read_idx(folder, name):
    """The bytes of a file of MNIST's format, which may be compressed. FileNotFoundError: it is absent."""
    path = pathlib.Path(folder) / name
    return path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.gz").read_bytes())


def pictures(folder=FASHION, kind="train"):
    pixels = np.frombuffer(read_idx(folder, f"{kind}-images-idx3-ubyte"), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    labels = np.frombuffer(read_idx(folder, f"{kind}-labels-idx1-ubyte"), np.uint8, offset=8).astype(np.int64)
    return (pixels.astype(np.float32) / np.float32(255) - np.float32(0.2860)) / np.float32(0.3530), labels  # as trainer/data/data.cc


def bible():
    """The King James Bible, or an artificial text."""
    try:
        return subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        return bytes(range(73)) * 60000


def tokens(text):
    """(Numbers of the text's bytes, how many different ones)."""
    symbols = sorted(set(text))
    return np.searchsorted(symbols, np.frombuffer(text, np.uint8)), len(symbols)


def windows(numbers, context):
    """`context` tokens, and those that follow each of them."""
    count = (len(numbers) - 1) // context
    return numbers[:count * context].reshape(count, context), numbers[1:count * context + 1].reshape(count, context)


class Zipf:
    """common/workloads/zipf.cc."""

    def __init__(self, items, alpha):
        self.items, self.alpha = items, alpha
        self.first, self.last = self.integral(1.5) - 1, self.integral(items + .5)
        self.shift = 2 - self.inverse_integral(self.integral(2.5) - 2.0**-alpha)

    @staticmethod
    def ratio(function, x, sign):
        """function(x) / x, also near 0."""
        near = np.abs(x) <= 1e-8
        return np.where(near, 1 + sign * x / 2, function(np.where(near, 1, x)) / np.where(near, 1, x))

    def integral(self, x):
        return self.ratio(np.expm1, (1 - self.alpha) * np.log(x), 1) * np.log(x)

    def inverse_integral(self, x):
        return np.exp(self.ratio(np.log1p, x * (1 - self.alpha), -1) * x)

    def tries(self, draws):
        """The item of each draw, and whether it is accepted."""
        u = self.last + parts(draws) * (self.first - self.last)
        x = self.inverse_integral(u)
        k = np.clip(np.floor(x + .5), 1, self.items)
        return k.astype(np.int64), (k - x <= self.shift) | (u >= self.integral(k + .5) - np.exp(-self.alpha * np.log(k)))


def lookups_of_tables():
    """Rows that a click reads from each table."""
    return [LOOKUPS // TABLES + (table < LOOKUPS % TABLES) for table in range(TABLES)]


def clicks(rows, alpha=1.05, seed=1, count=CLICKS):
    """The generated log of trainer/data/clicks.cc: numbers, rows of each table, labels."""
    weights = normals(Random(seed, 11).draws(np.arange(3 * NUMBERS)).reshape(NUMBERS, 3)).astype(np.float32) * np.float32(.3)
    draws = Random(seed, 12).draws(np.arange(count * (3 * NUMBERS + LOOKUPS * 3 // 2)))  # most tries of a lookup are accepted
    items, accepted = Zipf(rows, alpha).tries(draws)
    places, before = np.flatnonzero(accepted), np.cumsum(accepted)
    starts, of_lookups = np.zeros(count + 1, np.int64), np.empty((count, LOOKUPS), np.int64)
    for i in range(count):
        first = before[starts[i] + 3 * NUMBERS - 1]
        of_lookups[i] = places[first:first + LOOKUPS]
        starts[i + 1] = of_lookups[i, -1] + 2  # after the draw of the label
    numbers = normals(draws[starts[:-1, None] + np.arange(3 * NUMBERS)].reshape(count, NUMBERS, 3))
    logit = np.full(count, -1.0)
    for weight, column in zip(weights.astype(np.float64), numbers.T):
        logit += weight * column
    found, column = items[of_lookups], 0
    for table, lookups in enumerate(lookups_of_tables()):
        random = Random(seed, 100 + table)
        factors = below(random.draws(np.arange(1, 1000)), rows) | 1
        factor = next(one for one in factors.tolist() if math.gcd(one, rows) == 1)
        for column in range(column, column + lookups):
            found[:, column] = ((found[:, column] - 1) * factor + below(random.draws(0), rows)) % rows
            effects = Random(seed, found[:, column].astype(np.uint64) + np.uint64((1 << 62) + (table << 32)))
            logit += .3 * normals(effects.draws(np.arange(3)[:, None]).T)
        column += 1
    return numbers.astype(np.float32), found, (parts(draws[starts[1:] - 1]) < 1 / (1 + np.exp(-logit))).astype(np.int64)


def pairs_of_words(text, seed=1):
    """The pairs of near words of trainer/data/words.cc: words, targets, labels, and the number of different words."""
    words = re.findall(b"[a-z]+", text.lower())
    counts = collections.Counter(words)
    kept = sorted(word for word, often in counts.items() if often > 1) or [b"a", b"b"]
    number = {word: i for i, word in enumerate(kept)}
    words = np.array([number[word] for word in words if word in number] or [0, 1] * 5000)
    count = len(words) - len(words) // 50
    places, tries = np.arange(count), np.zeros(count, np.int64)
    random, near = Random(seed, places.astype(np.uint64) + np.uint64(1 << 61)), places.copy()
    while (same := near == places).any():
        distance = below(random.draws(tries), 2 * WINDOW + 1) - WINDOW
        near = np.where(same, np.clip(places + distance, 0, count - 1), near)
        tries += same
    cumulative = np.cumsum([counts.get(word, 1)**.75 for word in kept])
    drawn = [np.searchsorted(cumulative, parts(random.draws(tries + i)) * cumulative[-1], side="right") for i in range(TARGETS - 1)]
    targets = np.stack([words[near], *drawn], 1)
    return words[:count, None], targets, np.eye(1, TARGETS, dtype=np.float32).repeat(count, 0), len(kept)
