// What published systems tell about a network that was not measured. Pure.
//
// *cause*: a constant of the model (fit.h) that stands for lost time. Its values in the published systems,
// weighted by the similarity of their links, and its prior form a distribution, in which nothing jumps. The
// share of a link's rate is converted to other rates by what causes its loss, so its range is wide for links
// faster than any published one. All strategies of a prediction share one set of causes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/layouts/published_layouts.h"
#include "experiments/stats/statistics.h"
#include "experiments/verbs/predict/published_systems.h"

namespace psring {

// The values between which a cause probably is; equal ones if it is known.
struct CauseRange {
  double low = 0, expected = 0, high = 0;
};
using Causes = std::map<std::string, CauseRange>;  // by name of the constant

// 0: TCP, 1: RDMA, gradually between for latencies near 10 us, software included. TCP is slower.
double RdmaShare(const Cluster& cluster);

// Of the cluster's links. `left_out`: a system that is not used, for validation.
Causes CausesOf(const Cluster& cluster, double rdma, const PublishedSystem* left_out = nullptr);
// Of layouts with or without gathered weights (fsdp), whose programs lose different shares: also of
// PublishedTrainings. `left_out`: one of these.
Causes CausesOfLayouts(const Cluster& cluster, double rdma, bool gathers,
                       const PublishedTraining* left_out = nullptr);
// With the FittedCauses of `system` as known.
Causes CausesLike(const PublishedSystem& system, const Cluster& cluster, double rdma);

// The names of the systems with the most weight, at most three.
std::vector<std::string> SimilarSystems(const Cluster& cluster, double rdma);

// The expected constants, then two guesses for each cause that is not known: its low and its high value, with
// the others as expected. Both `fraction` and `node_loss` act on a card's rate with `nodes` machines, so one
// `fraction` stands for both: their deviations' squares add.
std::vector<Constants> GuessesOf(Causes causes, int nodes);

// The ratios to the expected speed between which the speed is in 9 of 10 cases. `logs`: of each guess's
// speed, relative to the first, in the order of GuessesOf. The causes are independent, and so is `error`,
// which the model makes anyway (as a logarithm): the squares of their deviations add, separately up and down.
Interval RatiosOf(const std::vector<double>& logs, double error);

struct Situation {
  std::string gpu;  // the workload's device, as text
  double rdma = 0;  // RdmaShare, or 0 or 1
  PredictCase point;
  PredictOptions options;
  Cluster cluster;
};

// One phrase per property that no published system has; empty if the situation is within the calibration.
std::vector<std::string> Differences(const Situation& situation, const PublishedSystem* left_out = nullptr);

// The same of a layout: devices, rates and numbers of machines that no published training has.
std::vector<std::string> LayoutDifferences(const std::string& gpu, const Cluster& cluster, int workers);

// The smallest one with which the ranges hold (SmallestModelFactor, published_check.h).
inline constexpr double kModelFactor = 1.06;
// The model's own error in 9 of 10 cases, as a logarithm. Each difference adds as much again.
double ModelError(size_t differences, double factor = kModelFactor);

}  // namespace psring
