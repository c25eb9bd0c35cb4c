// The interface of the exercise `ssp`; README.md explains it.
#pragma once

#include <cstddef>
#include <vector>

// What the server knows, by worker.
struct JobState {
  int bound = 0;               // K
  std::vector<int> pushed;     // the number of steps that the worker has pushed
  std::vector<bool> finished;  // the worker has used up its data and pushes no more
};

// Whether `worker`, which has pushed and waits for the answer, gets it now and computes its next step.
extern "C" bool MayContinue(const JobState& job, int worker);
