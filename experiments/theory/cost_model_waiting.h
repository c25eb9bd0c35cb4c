// The theory of asynchronous servers and of waiting. Pure.
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

// Mean staleness over all pushes if a push is answered with the version that it created: exactly N-1,
// whatever the workers' speeds.
double MeanStaleness(int workers);
// Mean staleness of worker i: sum over j != i of rate_j / rate_i.
double StalenessOfWorker(const std::vector<double>& rates, int worker);

// Bounded staleness K: the largest possible staleness of a push, in updates.
double MostStaleness(int workers, int bound);

// Seconds until the fastest `needed` workers are done: what training with backup workers waits for.
double FastestOf(std::vector<double> compute_s, int needed);

}  // namespace psring
