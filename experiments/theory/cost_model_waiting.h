// What workers that do not keep in step do to one another: the theory of asynchronous servers and of waiting.
// Pure.
//
// T_i: seconds worker i computes between an answer and its next push; s: seconds the server is busy with one
// push; Q: pushes at the server. Sources: mean value analysis, Reiser & Lavenberg 1980; bounded staleness, Ho
// et al. 2013; backup workers, Chen et al. 2016.
#pragma once

#include <vector>

namespace psring {

// Pushes a second that no asynchronous server exceeds: min(sum of 1/(T_i + s), 1/s).
double AsyncThroughputBound(const std::vector<double>& compute_s, double service_s);

// One server with a queue, N equal workers: exact for exponential service, whatever the distribution of T.
//   R(n) = s (1 + Q(n-1)),  X(n) = n / (T + R(n)),  Q(n) = X(n) R(n)
struct ClosedQueue {
  double pushes_per_s = 0;  // X
  double response_s = 0;    // R: from a push until its answer
  double at_server = 0;     // Q, the one being served included
};
ClosedQueue MeanValueAnalysis(int workers, double compute_s, double service_s);

// Mean staleness over all pushes, where a push is answered with the version that it made: between two pushes
// of one worker all the others' are applied. Exactly N-1, whatever the workers' speeds.
double MeanStaleness(int workers);
// What worker i alone sees: sum over j != i of rate_j / rate_i.
double StalenessOfWorker(const std::vector<double>& rates, int worker);

// Bounded staleness K: no clock leads the slowest by more than K, and no push is later than this many
// updates.
double MostStaleness(int workers, int bound);

// When the fastest `needed` of the workers are done: what synchronous training with backup workers waits for.
double FastestOf(std::vector<double> compute_s, int needed);

}  // namespace psring
