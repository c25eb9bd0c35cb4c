"""Finds and runs the programs that psring is compared with. An absent one is named with how to install it, and omitted."""
import glob
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import runs

HERE = pathlib.Path(__file__).resolve().parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
GLIBC_TUNED = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296",
               "MALLOC_TOP_PAD_": "67108864"}
HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # PyTorch's allocator, and glibc's


def add_flags(parser):
    for name, module in (("torch_python", "PyTorch"), ("tensorflow_python", "TensorFlow")):
        parser.add_argument(f"--{name}", default=sys.executable, help=f"a Python with {module}; empty: without {module}")


def version(python, module, install):
    """The module's version, or "" (with a line on stderr) if `python` does not have it."""
    if not python:
        return ""
    try:
        probe = subprocess.run([python, "-c", f"import {module}; print({module}.__version__)"], capture_output=True, text=True,
                               timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"})
        found = "" if probe.returncode else probe.stdout.strip().splitlines()[-1]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        found = ""
    if not found:
        print(f"omitted: {python} has no {module}: {install}", file=sys.stderr)
    return found


def torch_version(args):
    return version(args.torch_python, "torch", "python3 -m venv torch && torch/bin/pip install torch numpy, then "
                   "--torch_python torch/bin/python")


def tensorflow_version(args):
    return version(args.tensorflow_python, "tensorflow", "python3 -m venv tf && tf/bin/pip install tensorflow-cpu, then "
                   "--tensorflow_python tf/bin/python")


def allocators():
    """{name: environment} of the memory allocators that this machine has."""
    found = {"default malloc": {}, "malloc tuned": GLIBC_TUNED, "malloc with huge pages": HUGE_PAGES}
    for name, package in (("tcmalloc_minimal", "libtcmalloc-minimal4"), ("jemalloc", "libjemalloc2")):
        files = sorted(glob.glob(f"/usr/lib/*/lib{name}.so.[0-9]"))
        if files:
            found[name] = {"LD_PRELOAD": files[0]}
        else:
            print(f"omitted: {name} for PyTorch is not installed: apt-get install {package}", file=sys.stderr)
    return found


def torch(args, script, *arguments, env=None, python=None):
    """Runs a peer with one computing thread per process; returns the JSON object of its last line."""
    output = runs.run([python or args.torch_python, HERE / script, *arguments], timeout=1800,
                      env={**os.environ, **ONE_THREAD, **(env or {})})
    return json.loads(output.strip().splitlines()[-1])


def tensorflow(args, *arguments):
    return torch(args, "tensorflow_peer.py", *arguments, python=args.tensorflow_python)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def build_ps_lite(folder, out):
    """Compiles ps_lite_peer.cc against a built ps-lite. Returns the program, or None (with a line on stderr)."""
    library = pathlib.Path(folder) / "build/libps.a"
    if not folder or not library.exists():
        print(f"omitted: no ps-lite in '{folder}': build it as the README of github.com/dmlc/ps-lite says, then --ps_lite "
              "its folder, the one with build/libps.a", file=sys.stderr)
        return None
    program = pathlib.Path(out) / "ps_lite_peer"
    dependencies = pathlib.Path(folder) / "deps"  # ps-lite's own copies of protobuf and ZeroMQ, if it was built with them
    runs.run(["g++", "-std=c++17", "-O3", "-march=native", "-I", pathlib.Path(folder) / "include",
              "-I", dependencies / "include", HERE / "ps_lite_peer.cc", library, "-L", dependencies / "lib",
              f"-Wl,-rpath,{dependencies / 'lib'}", "-lprotobuf", "-lzmq", "-pthread", "-o", program])
    return program


def ps_lite(program, workers, size, part_bytes, warmup, iterations):
    """Times of the slowest worker in each iteration, us."""
    (port,) = free_ports(1)
    env = {**os.environ, **ONE_THREAD, "DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(workers), "DMLC_PS_ROOT_URI": "127.0.0.1",
           "DMLC_PS_ROOT_PORT": str(port), "DMLC_NODE_HOST": "127.0.0.1"}
    command = [str(part) for part in (program, size, part_bytes, warmup, iterations)]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [open(os.path.join(folder, str(i)), "w+") for i in range(workers + 2)]
        nodes = [subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**env, "DMLC_ROLE": role})
                 for role, output in zip(["scheduler", "server", *["worker"] * workers], outputs)]
        try:
            codes = [node.wait(timeout=600) for node in nodes]
        finally:
            for node in nodes:
                if node.poll() is None:
                    node.kill()
                    node.wait()
        texts = [(output.seek(0), output.read())[1] for output in outputs]
    if any(codes):
        sys.exit(f"{' '.join(command)} failed:\n{''.join(texts)}")
    return [max(of_one) for of_one in zip(*([float(line) for line in text.split()] for text in texts[2:]))]
