#!/usr/bin/env python3
"""Writes the workloads whose tensors are computed from published architectures.

    common/workloads/architectures.py [NAME ...]

Sizes are those of the papers, of gpt_mini those of psring's model. No time is measured: a layer's share of the step follows
from its floating-point operations (2 per multiply-add; backward costs twice forward), and the whole step from a device's
measured speed (common/workloads/devices.cc). Biases and normalization cost nothing and are ready with their layer.
"""
import pathlib
import re
import sys

V100_CONVOLUTIONS, V100_TRANSFORMERS = .574 * 15.7e12, .533 * 15.7e12  # FLOP/s; float32, devices.cc


class Net:
    """Layers in forward order: (tensors [(name, values)], forward operations of one sample)."""

    def __init__(self):
        self.layers = []
        self.activations = 0  # values of one sample between two blocks, if their number is constant
        self.heads = 0  # of attention, of which each has its keys

    def add(self, tensors, operations):
        self.layers.append((tensors, operations))

    def conv(self, name, kernel, inputs, outputs, size, bias=False, norm=True, width=None):
        """size: of the output's side; width: the kernel's, if it is not square."""
        values = kernel * (width or kernel) * inputs * outputs
        tensors = [(f"{name}.weight", values)] + ([(f"{name}.bias", outputs)] if bias else [])
        if norm:
            tensors += [(f"{name}.bn.weight", outputs), (f"{name}.bn.bias", outputs)]
        self.add(tensors, 2 * values * size * size)

    def dense(self, name, inputs, outputs, times=1, bias=True):
        self.add([(f"{name}.weight", inputs * outputs)] + ([(f"{name}.bias", outputs)] if bias else []),
                 2 * inputs * outputs * times)

    def norm(self, name, size, bias=True):
        self.add([(f"{name}.weight", size)] + ([(f"{name}.bias", size)] if bias else []), 0)

    def parameters(self):
        return sum(values for tensors, _ in self.layers for _, values in tensors)

    def forward(self):
        return sum(operations for _, operations in self.layers)


def resnet152():
    net = Net()
    net.conv("conv1", 7, 3, 64, 112)
    inputs = 64
    for stage, (blocks, width, size) in enumerate(((3, 64, 56), (8, 128, 28), (36, 256, 14), (3, 512, 7)), 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            net.conv(f"{name}.conv1", 1, inputs, width, size)
            net.conv(f"{name}.conv2", 3, width, width, size)
            net.conv(f"{name}.conv3", 1, width, 4 * width, size)
            if block == 0:
                net.conv(f"{name}.downsample", 1, inputs, 4 * width, size)
            inputs = 4 * width
    net.dense("fc", 2048, 1000)
    return net


def inception_bn():
    net = Net()
    net.conv("conv1", 7, 3, 64, 112)
    net.conv("conv2.reduce", 1, 64, 64, 56)
    net.conv("conv2", 3, 64, 192, 56)
    inputs = 192
    # Outputs of: 1x1; 3x3 and its reduction; double 3x3 and its reduction; the projection after pooling.
    for name, size, one, (reduce3, three), (reduce5, five), pool in (
            ("3a", 28, 64, (64, 64), (64, 96), 32), ("3b", 28, 64, (64, 96), (64, 96), 64),
            ("3c", 14, 0, (128, 160), (64, 96), 0), ("4a", 14, 224, (64, 96), (96, 128), 128),
            ("4b", 14, 192, (96, 128), (96, 128), 128), ("4c", 14, 160, (128, 160), (128, 160), 128),
            ("4d", 14, 96, (128, 192), (160, 192), 128), ("4e", 7, 0, (128, 192), (192, 256), 0),
            ("5a", 7, 352, (192, 320), (160, 224), 128), ("5b", 7, 352, (192, 320), (192, 224), 128)):
        before = size if one else 2 * size  # without a 1x1 branch the 3x3 convolutions halve the side
        if one:
            net.conv(f"{name}.1x1", 1, inputs, one, size)
        net.conv(f"{name}.3x3.reduce", 1, inputs, reduce3, before)
        net.conv(f"{name}.3x3", 3, reduce3, three, size)
        net.conv(f"{name}.double.reduce", 1, inputs, reduce5, before)
        net.conv(f"{name}.double.0", 3, reduce5, five, before)
        net.conv(f"{name}.double.1", 3, five, five, size)
        if pool:
            net.conv(f"{name}.pool", 1, inputs, pool, size)
        inputs = one + three + five + (pool or inputs)
    net.dense("fc", 1024, 1000)
    return net


def vgg19_22k():
    net = Net()
    inputs = 3
    for stage, (count, width, size) in enumerate(((2, 64, 224), (2, 128, 112), (4, 256, 56), (4, 512, 28), (4, 512, 14))):
        for i in range(count):
            net.conv(f"conv{stage + 1}.{i + 1}", 3, inputs, width, size, bias=True, norm=False)
            inputs = width
    net.dense("fc6", 512 * 7 * 7, 4096)
    net.dense("fc7", 4096, 4096)
    net.dense("fc8", 4096, 21841)
    return net


def transformer(layers, width, wide, length, vocabulary, positions=0, segments=0, keys=0, gated=False, bias=True,
                causal=True):
    """keys: width of keys and values together (0: twice the width). gated: three matrices in the wide part."""
    net = Net()
    net.activations = length * width
    embeddings = [("embeddings.word", vocabulary * width)]
    embeddings += [("embeddings.position", positions * width)] if positions else []
    embeddings += [("embeddings.segment", segments * width)] if segments else []
    net.add(embeddings, 0)
    attention = 4 * length * length * width / (2 if causal else 1)  # scores and their sum over values
    for i in range(layers):
        name = f"layer.{i}"
        net.norm(f"{name}.norm1", width, bias)
        net.dense(f"{name}.attention.qkv", width, width + (keys or 2 * width), length, bias)
        net.add([], attention)
        net.dense(f"{name}.attention.output", width, width, length, bias)
        net.norm(f"{name}.norm2", width, bias)
        for part in ("gate", "up") if gated else ("up",):
            net.dense(f"{name}.mlp.{part}", width, wide, length, bias)
        net.dense(f"{name}.mlp.down", wide, width, length, bias)
    return net


def bert_base():
    net = transformer(12, 768, 3072, 128, 30522, positions=512, segments=2, causal=False)
    net.norm("embeddings.norm", 768)
    net.dense("pooler", 768, 768)
    net.dense("mlm.transform", 768, 768, 20)
    net.norm("mlm.norm", 768)
    net.add([("mlm.bias", 30522)], 2 * 768 * 30522 * 20)  # its matrix is the word embedding
    net.dense("nsp", 768, 2)
    return net


def gpt2():
    net = transformer(12, 768, 3072, 1024, 50257, positions=1024)
    net.heads = 12
    net.norm("final.norm", 768)
    net.add([], 2 * 768 * 50257 * 1024)  # the head's matrix is the word embedding
    return net


def gpt_mini():
    """psring's model gpt-mini (trainer/models/gpt.cc) on the King James Bible: the names, sizes and order of its gradients."""
    layers, width, length, vocabulary = 6, 384, 256, 73
    net = Net()
    net.activations, net.heads = length * width, 6
    net.add([("transformer.wte.weight", vocabulary * width), ("transformer.wpe.weight", length * width)], 0)
    for i in range(layers):
        name = f"transformer.h.{i}"
        net.norm(f"{name}.ln_1", width)
        net.dense(f"{name}.attn.c_attn", width, 3 * width, length)
        net.add([], 2 * length * length * width)  # causal attention
        net.dense(f"{name}.attn.c_proj", width, width, length)
        net.norm(f"{name}.ln_2", width)
        net.dense(f"{name}.mlp.c_fc", width, 4 * width, length)
        net.dense(f"{name}.mlp.c_proj", 4 * width, width, length)
    net.norm("transformer.ln_f", width)
    net.add([], 2 * width * vocabulary * length)  # the head's matrix is the embedding of tokens
    return net


def llama_8b():
    net = transformer(32, 4096, 14336, 8192, 128256, keys=2048, gated=True, bias=False)
    net.heads = 8  # of keys and values
    net.norm("final.norm", 4096, bias=False)
    net.dense("head", 4096, 128256, 8192, bias=False)
    return net


CNN, TEXT = "convolutions", "transformer"
# name: (builder, what, family, batch, sample, paper)
WORKLOADS = {
    "resnet152": (resnet152, "ResNet-152, 224x224", CNN, 32, "image", "He et al. 2016, Deep Residual Learning, table 1"),
    "inception_bn": (inception_bn, "Inception-BN, 224x224", CNN, 32, "image",
                     "Ioffe & Szegedy 2015, Batch Normalization, figure 5"),
    "vgg19_22k": (vgg19_22k, "VGG-19 with 21,841 classes, 224x224", CNN, 32, "image",
                  "Simonyan & Zisserman 2015, configuration E; the classes of Zhang et al. 2017, Poseidon"),
    "bert_base": (bert_base, "BERT-base, 128 tokens, 20 masked", TEXT, 32, "sentence", "Devlin et al. 2019, BERT"),
    "gpt2": (gpt2, "GPT-2 (124 M), 1,024 tokens", TEXT, 8, "text",
             "Radford et al. 2019, Language Models are Unsupervised Multitask Learners"),
    "gpt_mini": (gpt_mini, "gpt-mini (10.8 M), 256 tokens", TEXT, 64, "text",
                 "psring's model gpt-mini on the King James Bible; batch: Karpathy, nanoGPT, config/train_shakespeare_char.py"),
    "llama_8b": (llama_8b, "Llama 3 8B, 8,192 tokens", TEXT, 1, "text", "Dubey et al. 2024, The Llama 3 Herd of Models, table 3"),
}


def write(name):
    build, what, family, batch, sample, paper = WORKLOADS[name]
    net = build()
    speed = V100_CONVOLUTIONS if family == CNN else V100_TRANSFORMERS
    total_ms = 1e3 * 3 * net.forward() * batch / speed
    head = {"model": what, "device": "computed for V100, float32", "batch": batch, "sample": sample,
            "forward_ms": f"{total_ms / 3:.4f}", "backward_ms": f"{2 * total_ms / 3:.4f}",
            "flops_per_sample": f"{3 * net.forward():.6g}", "family": family,
            **{"tokens_per_sample": count.replace(",", "") for count in re.findall(r"([\d,]+) tokens", what)},
            **({"activation_bytes": 4 * net.activations} if net.activations else {}),
            **({"heads": net.heads} if net.heads else {}),
            "source": f"sizes: {paper}; times computed by architectures.py from operations and a V100's measured speed",
            "licence": "MIT"}
    done = 0
    rows = []
    for tensors, operations in reversed(net.layers):
        done += operations
        for tensor, values in reversed(tensors):
            rows.append(f"{tensor},{4 * values},{2 * total_ms / 3 * done / net.forward():.4f}")
    path = pathlib.Path(__file__).parent / f"{name}.csv"
    path.write_text("".join(f"# {k}: {v}\n" for k, v in head.items()) + "name,bytes,ready_ms\n" + "\n".join(rows) + "\n")
    print(f"{name}: {net.parameters():,} parameters, {3 * net.forward() / 1e9:.1f} GFLOP per {sample}, {len(rows)} tensors")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or WORKLOADS:
        if chosen not in WORKLOADS:
            sys.exit(f"unknown workload '{chosen}'; use one of {', '.join(WORKLOADS)}")
        write(chosen)
