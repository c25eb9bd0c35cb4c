// What training must give if a replica has several ranks (--pp, --tp, --cp).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/cluster.h"

namespace psring {

// Of four heads, with SGD: Adam would make large steps of those gradients that are only rounding errors. No
// number of ranks divides the vocabulary of SmallText.
TrainingOptions GptOfFourHeads(const std::string& strategy);
// With a rate at which the weights still change by more than rounding.
void ClipEveryStep(TrainingOptions& options);
// --cuts of the model of `options`, on SmallText, into stages of as many layers as possible.
std::string EvenCuts(const TrainingOptions& options, size_t stages);

// Computing, waiting for other stages, and waiting for bytes are parts of the step.
void ExpectNoTimeCountedTwice(const StepRecord& step);

// Trains with RunPipelines and expects of every rank the weights of OneProcess, with `tolerance` as
// RelativeL2 (0: the same bits), the same hashes as of other ranks, also after every step if there are any,
// and the loss of every step; if `options` evaluate, also the curve, of those ranks of the first replica that
// have it.
void ExpectWeightsOfOneRank(const TrainingOptions& options, int replicas, double tolerance = 1e-4,
                            const DataSplits& data = SmallText());

// The same with 55 samples, so that in the last step, of 7, one micro-batch is short and one is empty.
void ExpectWeightsOfOneRankInAShortLastBatch(TrainingOptions options);

// The gradient is the change of the weights in one step, divided by the rate.
void ExpectGradientOfOneRank(TrainingOptions options);

// Trains `replicas`, and again from the checkpoint of step 2: the weights have the same bits.
void ExpectToResumeWithTheSameBits(TrainingOptions options, int replicas, const DataSplits& data);

// `options`: of four ranks, of which the second one fails.
void ExpectAFailedRankToEndTheOthers(const TrainingOptions& options);

// By tensor of the whole model of `options`, on SmallText: its name, and `weights` less the initial ones.
std::vector<std::pair<std::string, std::vector<float>>> ChangesOfTensors(const TrainingOptions& options,
                                                                         const std::vector<float>& weights);

}  // namespace psring
