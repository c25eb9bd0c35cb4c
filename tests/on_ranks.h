// Runs a function for each rank, on a thread of its own.
#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace psring {

inline void OnRanks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace psring
