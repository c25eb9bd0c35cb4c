// The glossary: `psring explain words`, and the page of a run.
#pragma once

#include "common/text/translate.h"

namespace psring {

struct Word {
  const char* word;
  const char* meaning;  // for Tr
};
inline constexpr Word kWords[] = {
    {"rank", TrNoop("the number of a process in the job")},
    {"worker", TrNoop("a rank that trains")},
    {"server",
     TrNoop("a process that stores weights, sums the gradients that workers push, and updates the weights")},
    {"shard", TrNoop("the part of the weights that one server holds")},
    {"bucket", TrNoop("a slice of the gradient, exchanged while the backward pass continues")},
    {"chunk", TrNoop("a slice of the buffer that a schedule sends as one unit")},
    {"round", TrNoop("in a schedule: transfers that run at the same time; in a comparison: one launch of "
                     "every configuration")},
    {"step", TrNoop("one update of the weights")},
    {"push, pull", TrNoop("push: send a gradient to the server; pull: receive the weights")},
    {"version", TrNoop("the number of updates applied to a shard")},
    {"staleness", TrNoop("the number of updates applied between reading the weights and applying the "
                         "gradient computed from them")},
    {"hidden", TrNoop("communication that runs while the worker computes")},
    {"exposed", TrNoop("communication that is not hidden behind computation: it makes the step longer")},
    {"measured, derived, simulated",
     TrNoop("measured: a clock or a counter of this run; derived: computed from measured values, such as an "
            "interval or the time in theory; simulated: the result of psring's simulator")},
    {"all-reduce", TrNoop("every rank starts with its own values and ends with the sum over all ranks")},
    {"reduce-scatter, all-gather",
     TrNoop(
         "the two phases of a ring: each rank gets the sum of one chunk; then every rank gets all chunks")},
    {"replica", TrNoop("a worker's own copy of the weights")},
    {"stage", TrNoop("consecutive layers of the model, on one rank of a pipeline")},
    {"micro-batch", TrNoop("samples that pass the stages together; a step adds the gradients of several")},
    {"bubble", TrNoop("the part of a step in which a rank of a pipeline waits for other stages to compute")},
    {"straggler", TrNoop("a worker that computes more slowly than the others")},
    {"single, none",
     TrNoop("single: one process; none: several workers that exchange nothing, for comparison")},
    {"ps-ssp:K", TrNoop("a server with bounded staleness: no worker leads the slowest by more than K steps")},
    {"ps-backup:B", TrNoop("a synchronous server that does not wait for the B slowest gradients of a step")},
    {"hybrid", TrNoop("rows of tables go to servers, other gradients through an all-reduce")},
    {"wire",
     TrNoop("what carries the bytes, such as TCP, shared memory or gRPC; --wire: their number format")},
};

}  // namespace psring
