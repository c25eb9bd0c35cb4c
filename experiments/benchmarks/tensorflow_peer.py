#!/usr/bin/env python3
"""TensorFlow's ParameterServerStrategy: one server, --workers workers and the coordinator, one process each.

The strategy is asynchronous: the server applies every gradient when it arrives. The networks, batch and optimizer are those of
pytorch_peer.py; a worker takes --steps_per_call steps for each call from the coordinator. Prints one JSON line:
{"samples_per_s": ..., "loss": mean of the last tenth of the steps, "tensorflow": version}. With --round_bytes N, no network is
trained: every worker adds a gradient of N bytes to the server's weights and reads them (plain SGD), and the line is
{"times_us": [of each call, divided by its rounds], "tensorflow": version}. Started by training.py and ps_round.py; requires
TensorFlow.
"""
import json
import multiprocessing
import os
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import peers
import runs
import samples
import tensorflow as tf


def serve(cluster, job, index):
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    if job == "worker":
        config.inter_op_parallelism_threads = 2  # with one, a worker that waits for the server cannot be called
    tf.distribute.Server(tf.train.ClusterSpec(cluster), job_name=job, task_index=index, config=config, protocol="grpc").join()


def initial_weights(model, seed):
    """Uniform in +-1/sqrt(fan in), as psring and PyTorch begin. Convolutions are [height, width, in, out]."""
    shapes = ([(784, 1024), (1024, 1024), (1024, 10)] if model == "mlp" else
              [(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, 10)])
    random = np.random.default_rng(seed)
    for shape in shapes:
        bound = 1 / np.sqrt(np.prod(shape[:-1]))
        for part in (shape, shape[-1:]):
            yield random.uniform(-bound, bound, part).astype(np.float32)


def loss_of(model, weights, images, labels):
    x = images
    layers = list(zip(weights[::2], weights[1::2]))
    for i, (w, b) in enumerate(layers):
        if len(w.shape) == 4:
            x = tf.nn.relu(tf.nn.conv2d(x, w, 1, "VALID") + b)
            continue
        if len(x.shape) == 4:
            if model == "cnn":
                x = tf.nn.max_pool2d(x, 2, 2, "VALID")
            x = tf.reshape(x, [x.shape[0], -1])
        x = tf.matmul(x, w) + b
        if i + 1 < len(layers):
            x = tf.nn.relu(x)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))


def training_call(args, variables, momenta):
    """Returns a tf.function(first batch) that takes --steps_per_call steps on a worker and returns their losses."""
    images, labels = samples.pictures(args.data_dir)
    order = np.random.default_rng(args.seed).permutation(60000)
    images, labels = images.reshape(-1, 28, 28, 1)[order], labels.astype(np.int32)[order]

    @tf.function
    def call(first):
        data, wanted = tf.constant(images), tf.constant(labels)
        losses = tf.TensorArray(tf.float32, args.steps_per_call)
        for i in tf.range(args.steps_per_call):
            at = (first + i) * args.batch % (60000 - args.batch)
            with tf.GradientTape() as tape:
                weights = [tf.convert_to_tensor(v) for v in variables]
                tape.watch(weights)
                loss = loss_of(args.model, weights, tf.ensure_shape(data[at:at + args.batch], [args.batch, 28, 28, 1]),
                               tf.ensure_shape(wanted[at:at + args.batch], [args.batch]))
            for v, m, gradient in zip(variables, momenta, tape.gradient(loss, weights)):
                with tf.device(v.device):  # the server updates
                    tf.raw_ops.ResourceApplyMomentum(var=v.handle, accum=m.handle, lr=args.lr, grad=gradient, momentum=0.9,
                                                     use_locking=True)
            losses = losses.write(i, loss)
        return losses.stack()

    return call


def round_call(args, variable):
    @tf.function
    def call(first):
        gradient = tf.ones([args.round_bytes // 4])
        last = tf.constant(0.0)
        for _ in tf.range(args.steps_per_call):
            with tf.device(variable.device):
                push = tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1.0, delta=gradient,
                                                               use_locking=True)
            with tf.control_dependencies([push]):
                with tf.device(variable.device):
                    weights = variable.read_value()
                last = tf.identity(weights)[-1]  # read on the worker
        return last

    return call


def run(args, cluster):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        if args.round_bytes:
            variables = [tf.Variable(tf.zeros([args.round_bytes // 4]))]
        else:
            variables = [tf.Variable(w) for w in initial_weights(args.model, args.seed)]
            momenta = [tf.Variable(tf.zeros_like(v)) for v in variables]
    call = round_call(args, variables[0]) if args.round_bytes else training_call(args, variables, momenta)

    def measure(calls, first):
        begin = time.monotonic()
        values = [coordinator.schedule(call, args=(tf.constant((first + i) * args.steps_per_call),))
                  for i in range(calls * args.workers)]
        coordinator.join()
        return time.monotonic() - begin, values

    warmup, calls = (max(1, -(-steps // args.steps_per_call)) for steps in (args.warmup_steps, args.steps))
    measure(warmup, 0)
    if args.round_bytes:
        result = {"times_us": [measure(1, 0)[0] * 1e6 / args.steps_per_call for _ in range(calls)]}
        rounds = args.steps_per_call * args.workers * (warmup + calls)
        if float(variables[0][0]) != -rounds:
            sys.exit(f"wrong weights: {float(variables[0][0])} instead of {-rounds}")
    else:
        seconds, values = measure(calls, warmup * args.workers)
        losses = np.concatenate([v.fetch() for v in values])
        result = {"samples_per_s": calls * args.steps_per_call * args.batch * args.workers / seconds,
                  "loss": float(np.mean(losses[-max(1, len(losses) // 10):]))}
    print(json.dumps({**result, "tensorflow": tf.__version__}), flush=True)


def main():
    args = runs.parse(__doc__, model=("mlp", "mlp or cnn"), workers=2, batch=128,
                      steps=(100, "of each worker; rounded up to whole calls"), warmup_steps=10, steps_per_call=10, lr=0.02, seed=1,
                      round_bytes=0, data_dir="/usr/share/datasets/fashion-mnist", optimizer=("momentum", "the only one"))
    addresses = [f"127.0.0.1:{port}" for port in peers.free_ports(args.workers + 2)]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=serve, args=(cluster, job, i), daemon=True)
              for job in ("ps", "worker") for i in range(len(cluster[job]))]
    for one in others:
        one.start()
    try:
        run(args, cluster)
    finally:
        for one in others:
            one.kill()
            one.join()
        sys.stdout.flush()
    os._exit(0)  # the strategy's threads would wait for the workers


if __name__ == "__main__":
    main()
