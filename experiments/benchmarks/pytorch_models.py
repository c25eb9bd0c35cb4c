"""psring's models in PyTorch, with the same names of tensors. Requires PyTorch."""
import collections

import torch
from samples import NUMBERS, TABLES, lookups_of_tables
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, context, width = x.shape
        q, k, v = (part.view(batch, context, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, context, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.c_proj(functional.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2 (Radford et al. 2019) without dropout, with its initial weights: gpt-nano unless sizes are given."""

    def __init__(self, classes, layers=4, heads=4, width=128, context=64):
        super().__init__()
        self.context = context
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(classes, width), "wpe": nn.Embedding(context, width),
                                          "h": nn.ModuleList(Block(width, heads) for _ in range(layers)),
                                          "ln_f": nn.LayerNorm(width)})
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # each block adds to the residual stream twice
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if name.endswith("c_proj.weight") else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"].weight
        for block in t["h"]:
            x = block(x)
        return functional.linear(t["ln_f"](x), t["wte"].weight).flatten(0, 1)


def convolution(inputs, outputs, size, stride=1):
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    """A block of ResNet. layers: (outputs, size of the kernel, stride) of each convolution."""

    def __init__(self, inputs, *layers):
        super().__init__()
        self.count, outputs, stride, widths = len(layers), layers[-1][0], max(layer[2] for layer in layers), inputs
        for i, (width, size, step) in enumerate(layers, 1):
            setattr(self, f"conv{i}", convolution(widths, width, size, step))
            widths = width
        for i, (width, _, _) in enumerate(layers, 1):
            setattr(self, f"bn{i}", nn.BatchNorm2d(width))
        same = stride == 1 and inputs == outputs
        self.downsample = nn.Identity() if same else nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(functional.relu(y) if i > 1 else y))
        return functional.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """He et al. 2015, with a 3x3 stem as for CIFAR. `blocks`: of each stage; block(channels, stride): its layers."""

    def __init__(self, block, blocks, classes=10):
        super().__init__()
        self.conv1, self.bn1 = convolution(1, 64, 3), nn.BatchNorm2d(64)
        inputs = 64
        for stage, count in enumerate(blocks):
            parts = []
            for i in range(count):
                layers = block(64 << stage, 2 if stage and i == 0 else 1)
                parts.append(Residual(inputs, *layers))
                inputs = layers[-1][0]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*parts))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
        return self.fc(x.mean(dim=(2, 3)))


def resnet18():
    return ResNet(lambda channels, stride: [(channels, 3, stride), (channels, 3, 1)], (2, 2, 2, 2))


def resnet50():
    return ResNet(lambda channels, stride: [(channels, 1, 1), (channels, 3, stride), (4 * channels, 1, 1)], (3, 4, 6, 3))


def named(**parts):
    return nn.Sequential(collections.OrderedDict(parts))


def linear_layers(*widths, prefix="", first=0):
    """{name: part} of fully connected layers with ReLU between them."""
    parts = {}
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:]), first):
        parts |= {f"{prefix}{i}": nn.Linear(inputs, outputs), f"relu{i}": nn.ReLU()}
    parts.popitem()
    return parts


def mlp(*hidden):
    return named(flatten=nn.Flatten(), **linear_layers(784, *hidden, 10, prefix="fc", first=1))


def cnn():
    return named(conv1=nn.Conv2d(1, 32, 3), relu1=nn.ReLU(), conv2=nn.Conv2d(32, 64, 3), relu2=nn.ReLU(), pool=nn.MaxPool2d(2),
                 flatten=nn.Flatten(), fc1=nn.Linear(9216, 128), relu3=nn.ReLU(), fc2=nn.Linear(128, 10))


def table(rows, width, bound):
    return torch.empty(rows, width).uniform_(-bound, bound)


class Dlrm(nn.Module):
    """DLRM (Naumov et al. 2019). `joined`: one table with the rows of all, so that a step has one lookup and one gradient."""

    def __init__(self, rows, joined, width=64):
        super().__init__()
        self.lookups, self.width, self.joined = lookups_of_tables(), width, joined
        self.bottom = named(**linear_layers(NUMBERS, 2 * width, width))
        own = [rows * TABLES] if joined else [rows] * TABLES
        self.tables = nn.ModuleList(nn.EmbeddingBag(count, width, mode="sum", sparse=True,
                                                    _weight=table(count, width, rows**-.5)) for count in own)
        # Not buffers, which DDP would broadcast in every step.
        self.first_rows = torch.repeat_interleave(rows * torch.arange(TABLES), torch.tensor(self.lookups))
        self.first_lookups = torch.tensor([0, *self.lookups]).cumsum(0)[:-1]
        self.pairs = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        self.top = named(**linear_layers(width + TABLES * (TABLES + 1) // 2, 2 * width, width, 2))

    def bags(self, rows):
        if not self.joined:
            return [one(part) for one, part in zip(self.tables, rows.split(self.lookups, 1))]
        starts = torch.arange(len(rows))[:, None] * rows.shape[1] + self.first_lookups
        return self.tables[0]((rows + self.first_rows).flatten(), starts.flatten()).view(len(rows), TABLES, -1).unbind(1)

    def forward(self, numbers, rows):
        numbers = functional.relu(self.bottom(numbers))
        vectors = torch.stack([numbers, *self.bags(rows)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([numbers, products], 1))


class SkipGram(nn.Module):
    """word2vec's skip-grams with negative sampling (Mikolov et al. 2013): logits of a word's targets."""

    def __init__(self, words, width=128):
        super().__init__()
        self.words = nn.Embedding(words, width, sparse=True, _weight=table(words, width, .5 / width))
        self.targets = nn.Embedding(words, width, sparse=True, _weight=torch.zeros(words, width))

    def forward(self, word, targets):
        return torch.bmm(self.targets(targets), self.words(word).transpose(1, 2)).flatten()
