"""The data that psring trains on, as tensors: (inputs, labels). Absent files are replaced by random data. Requires PyTorch."""
import collections
import gzip
import math
import os
import re
import subprocess

import torch

SYMBOLS = 73  # the different bytes of the King James Bible
NUMBERS, TABLES, LOOKUPS = 13, 8, 26  # of a click, as in trainer/data/clicks.h
WINDOW, TARGETS = 5, 6  # of a pair of words, as in trainer/data/words.h


def pictures(folder, count):
    if not os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")):
        return torch.randn(count, 1, 28, 28), torch.randint(10, (count,))
    with gzip.open(os.path.join(folder, "train-images-idx3-ubyte.gz")) as f:
        images = torch.frombuffer(bytearray(f.read(16 + count * 784)), dtype=torch.uint8)[16:].view(count, 1, 28, 28)
    with gzip.open(os.path.join(folder, "train-labels-idx1-ubyte.gz")) as f:
        labels = torch.frombuffer(bytearray(f.read(8 + count)), dtype=torch.uint8)[8:].long()
    return (images.float() / 255 - 0.2860) / 0.3530, labels


def bible():
    try:
        return subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        return bytes(range(SYMBOLS)) * 60000


def text(context):
    """The King James Bible in windows of `context` tokens, and the tokens that follow each of them: ((inputs, labels) of the
    first 98%, those of the rest)."""
    characters = bible()
    number = {byte: i for i, byte in enumerate(sorted(set(characters)))}
    tokens = torch.tensor([number[byte] for byte in characters])
    first = len(tokens) * 98 // 100
    windows = [part.unfold(0, context + 1, context) for part in (tokens[:first], tokens[first:])]
    return [(part[:, :-1], part[:, 1:]) for part in windows]


def lookups_of_tables():
    """Rows that a click reads from each table."""
    return [LOOKUPS // TABLES + (table < LOOKUPS % TABLES) for table in range(TABLES)]


def clicks(rows, alpha, count=65536):
    """Numbers and rows of each table, and whether there was a click; the distributions of trainer/data/clicks.cc."""
    numbers = torch.randn(count, NUMBERS)
    logit = -1 + numbers @ (.3 * torch.randn(NUMBERS))
    probability = torch.arange(1, rows + 1, dtype=torch.float64).pow_(-alpha)
    cumulative = probability.cumsum_(0)
    columns = []
    for lookups in lookups_of_tables():
        items = torch.searchsorted(cumulative, torch.rand(count, lookups, dtype=torch.float64) * cumulative[-1])
        factor = int(torch.randint(rows, ())) | 1
        while math.gcd(factor, rows) != 1:
            factor += 2
        at = (items.clamp_(max=rows - 1) * factor + int(torch.randint(rows, ()))) % rows  # frequent rows are not neighbors
        logit += .3 * torch.randn(rows)[at].sum(1)
        columns.append(at)
    return (numbers, torch.cat(columns, 1)), torch.rand(count).lt(logit.sigmoid()).long()


def pairs_of_words():
    """A word, and a near and 5 drawn words, for each word of the King James Bible that occurs more than once; labels are 1 for
    the near word. Returns (inputs, labels, number of different words)."""
    found = re.findall("[a-z]+", bible().decode("latin-1").lower())
    counts = collections.Counter(found)
    kept = sorted(word for word, count in counts.items() if count > 1) or ["a", "b"]
    number = {word: i for i, word in enumerate(kept)}
    words = torch.tensor([number[word] for word in found if word in number] or [0, 1] * 5000)
    words = words[:len(words) - len(words) // 50]
    distance = torch.randint(1, WINDOW + 1, words.shape) * (torch.randint(2, words.shape) * 2 - 1)
    near = words[(torch.arange(len(words)) + distance).clamp_(0, len(words) - 1)]
    weights = torch.tensor([counts[word] for word in kept], dtype=torch.float64).clamp_(min=1).pow_(.75)
    drawn = torch.multinomial(weights, len(words) * (TARGETS - 1), replacement=True).view(-1, TARGETS - 1)
    labels = torch.zeros(len(words), TARGETS)
    labels[:, 0] = 1
    return (words[:, None], torch.cat([near[:, None], drawn], 1)), labels, len(kept)
