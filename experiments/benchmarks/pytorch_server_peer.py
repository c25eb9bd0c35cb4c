#!/usr/bin/env python3
"""A parameter server over PyTorch's RPC: one server, --workers workers, one process and one thread of computing each.

The server is that of PyTorch's tutorial on batched RPC: it answers a push of gradients with the weights after an update.
Synchronous: it waits for the gradients of all workers and applies their mean. --asynchronous: it applies each when it arrives.
Prints one JSON line like pytorch_peer.py. With --round_bytes N, no network is trained: every worker pushes a gradient of N
bytes and receives the weights (plain SGD, every weight of the last round checked), and the line is {"times_us": [of each
round, the slowest worker's], "torch": version}. Started by training.py and ps_round.py; requires PyTorch.
"""
import json
import threading
import time

import peers
import pytorch_peer
import runs
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn

SERVER = None  # in the server's process


class Server:
    def __init__(self, params, lr, momentum, wanted):
        self.params = [nn.Parameter(p) for p in params]
        self.optimizer = torch.optim.SGD(self.params, lr=lr, momentum=momentum, fused=True)
        self.wanted = wanted  # gradients of one update
        self.lock = threading.Lock()
        self.arrived = 0
        self.future = torch.futures.Future()

    def push(self, gradients):
        with self.lock:
            for p, gradient in zip(self.params, gradients):
                if self.arrived:
                    p.grad.add_(gradient)
                else:
                    p.grad = gradient
            self.arrived += 1
            future = self.future
            if self.arrived < self.wanted:
                return future
            if self.wanted > 1:
                torch._foreach_mul_([p.grad for p in self.params], 1 / self.wanted)
            self.optimizer.step()
            self.arrived, self.future = 0, torch.futures.Future()
            # Replies are sent after this function; the next asynchronous update must not change them.
            weights = [p.detach() if self.wanted > 1 else p.detach().clone() for p in self.params]
        future.set_result(weights)
        return future


@rpc.functions.async_execution
def push(gradients):
    return SERVER.push(gradients)


def serve(params, lr, momentum, wanted):
    global SERVER
    torch.set_num_threads(1)
    SERVER = Server(params, lr, momentum, wanted)


def step_of_training(rank, args):
    """Returns (step, the initial weights, a function that returns the result of so many seconds)."""
    task = pytorch_peer.Task(rank, args)
    if args.compile:
        task.compile()
    params = list(task.model.parameters())

    def step(i):
        task.backward(i)
        for p, weights in zip(params, rpc.rpc_sync("server", push, args=([p.grad for p in params],))):
            p.data, p.grad = weights, None

    return step, [p.detach().clone() for p in params], lambda seconds, _: {
        "samples_per_s": args.steps * args.batch * args.workers / seconds, "loss": task.final_loss()}


def step_of_round(args):
    gradient = torch.ones(args.round_bytes // 4)

    def step(i):
        weights = rpc.rpc_sync("server", push, args=([gradient],))[0]
        if i == args.warmup_steps + args.steps - 1 and not args.asynchronous:
            expected = -float(i + 1)
            if not bool((weights == expected).all()):
                raise SystemExit(f"wrong weights in round {i}: {weights[0].item()} instead of {expected}")

    return step, [torch.zeros(args.round_bytes // 4)], lambda _, times: {"times_us": times}


def work(rank, args, ports, results):
    torch.set_num_threads(1)
    name = "server" if rank == args.workers else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=args.workers + 1, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://127.0.0.1:{ports[0]}", rpc_timeout=600, num_worker_threads=max(4, args.workers)))
    if rank < args.workers:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{ports[1]}", rank=rank, world_size=args.workers)
        step, params, result = step_of_round(args) if args.round_bytes else step_of_training(rank, args)
        if rank == 0:
            lr, momentum = (1.0, 0.0) if args.round_bytes else (args.lr, 0.9)
            rpc.rpc_sync("server", serve, args=(params, lr, momentum, 1 if args.asynchronous else args.workers))
        times = []
        for first, count in ((0, args.warmup_steps), (args.warmup_steps, args.steps)):
            dist.barrier()
            begin, times = time.monotonic(), []
            for i in range(first, first + count):
                start = time.monotonic()
                step(i)
                times.append((time.monotonic() - start) * 1e6)
        dist.barrier()
        seconds, every = time.monotonic() - begin, [None] * args.workers
        dist.all_gather_object(every, times)
        if rank == 0:
            results.put({**result(seconds, [max(of_one) for of_one in zip(*every)]), "torch": torch.__version__})
    rpc.shutdown()


if __name__ == "__main__":
    args = runs.parse(__doc__, **pytorch_peer.FLAGS, asynchronous=False, round_bytes=0)
    results = mp.get_context("spawn").SimpleQueue()
    mp.spawn(work, (args, peers.free_ports(2), results), nprocs=args.workers + 1)
    print(json.dumps(results.get()))
