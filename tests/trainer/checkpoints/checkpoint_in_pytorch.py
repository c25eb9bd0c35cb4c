#!/usr/bin/python3
"""PyTorch loads a checkpoint's weights by their layers' names, and scores what psring scored.

usage: checkpoint_in_pytorch.py TRAINER    (exit code 77: PyTorch or the data are not here)

Only json and struct read the file, as anybody could; where the package safetensors is installed it must read
the same.
"""
import gzip
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError:
    print("skipped: no PyTorch here")
    sys.exit(77)

DATA = "/usr/share/datasets/fashion-mnist"  # Debian's dataset-fashion-mnist


def read_safetensors(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, at in header.items():
        assert at["dtype"] == "F32", at
        begin, end = at["data_offsets"]
        flat = torch.frombuffer(data, dtype=torch.float32, offset=begin, count=(end - begin) // 4)
        tensors[name] = flat.reshape(at["shape"]).clone()
    return tensors


def idx(name):
    for path in (f"{DATA}/{name}", f"{DATA}/{name}.gz"):
        if os.path.exists(path):
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                raw = bytearray(file.read())
            dimensions = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
            return torch.frombuffer(raw, dtype=torch.uint8, offset=4 + 4 * raw[3]).reshape(dimensions)
    print(f"skipped: no {name} in {DATA}")
    sys.exit(77)


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = (torch.nn.Linear(i, o) for i, o in ((784, 1024), (1024, 1024), (1024, 10)))

    def forward(self, x):
        x = x.flatten(1)
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Cnn(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = torch.nn.Conv2d(1, 32, 3), torch.nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = torch.nn.Linear(9216, 128), torch.nn.Linear(128, 10)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(self.conv2(self.conv1(x).relu()).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


def normalized(images):
    return ((images.float() / 255 - 0.2860) / 0.3530)[:, None]  # as trainer/data/data.cc has it


def main(trainer):
    torch.set_num_threads(1)
    images, labels = idx("t10k-images-idx3-ubyte"), idx("t10k-labels-idx1-ubyte").long()
    inputs = normalized(images)
    for name, model in (("mlp", Mlp()), ("cnn", Cnn())):
        with tempfile.TemporaryDirectory() as folder:
            environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
            subprocess.run(
                [trainer, "--model", name, "--steps", "12", "--record", f"{folder}/records", "--progress", "none",
                 "--checkpoint_dir", f"{folder}/checkpoints"],
                check=True, env=environment)
            with open(f"{folder}/records/result-rank0.json") as file:
                told = json.load(file)["curve"][-1]
            weights = read_safetensors(f"{folder}/checkpoints/step12/model.safetensors")
            state = read_safetensors(f"{folder}/checkpoints/step12/optimizer.safetensors")
            try:
                from safetensors.torch import load_file
                theirs = load_file(f"{folder}/checkpoints/step12/model.safetensors")
                assert all(torch.equal(theirs[key], weights[key]) for key in weights)
            except ImportError:
                pass
        model.load_state_dict(weights)  # strict: every name and shape
        assert {key: list(value.shape) for key, value in state.items()} == {
            f"momentum_buffer.{key}": list(value.shape) for key, value in weights.items()}
        with torch.no_grad():
            logits = torch.cat([model(part) for part in inputs.split(500)])
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).double().mean().item()
        print(f"{name}: PyTorch loss {loss:.6f}, accuracy {accuracy:.4f}; "
              f"psring loss {told['test_loss']:.6f}, accuracy {told['test_accuracy']:.4f}")
        assert accuracy > 0.3, "it has learnt nothing, so this says nothing"
        assert abs(loss - told["test_loss"]) < 1e-4 and abs(accuracy - told["test_accuracy"]) < 3e-4


main(sys.argv[1])
