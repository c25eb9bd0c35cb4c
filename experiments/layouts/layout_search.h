// The fastest layouts of a transformer's training whose memory fits. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "experiments/layouts/layout_price.h"

namespace psring {

struct FoundLayout {
  LayoutCandidate candidate;
  LayoutMemory memory;
  LayoutPrice price = {};
};

struct LayoutAnswer {
  std::vector<FoundLayout> best;  // by step time, with different layout(); at least one
  std::vector<Layout> too_large;  // those of the question's choice of which no candidate fits
  // Faster than the best, but above the limit; nothing if there is none.
  std::optional<FoundLayout> with_more_memory;
  int64_t candidates = 0, fitting = 0, walked = 0;
};

// A device's tokens of a sequence from which sequences are divided (cp) if layouts are not named. With fewer,
// links between nodes are rarely hidden (RingHiddenFrom), and replicas or tp keep the activations small
// enough.
inline constexpr int kMinDividedTokens = 8192;

// Every divisor of the workers as tp that divides the heads, as cp that leaves kMinDividedTokens, and as pp
// up to the number of layers, if they fill nodes; each of ShardingStrategies, zero2 and fsdp also with a copy
// of the state on each node, each program, and micro-batches of 1, 2, 4, ... samples. Of these those of the
// question's choice.
std::vector<LayoutCandidate> LayoutCandidates(const LayoutQuestion& question);

// Ends a search with its error, such as that of Interrupt::Check.
using CheckStop = std::function<absl::Status()>;

// The best `count` layouts, each with its best program and micro-batch, and the best of each layout of the
// question's choice that is not among them. Exact among the candidates: one is not walked only if the least
// time it can take is above that of `count` better ones. ResourceExhausted: none needs at most
// `memory_bytes`; names the smallest and its figures in one line.
// `gathering`: the question for candidates that gather weights, if other programs lose less; it differs from
// `question` by Assuming. Null: they have the same.
absl::StatusOr<LayoutAnswer> FindLayouts(const LayoutQuestion& question, double memory_bytes, size_t count,
                                         const CheckStop& check = absl::OkStatus,
                                         const LayoutQuestion* gathering = nullptr);

// The factor of the rate of the links, a power of two from 1/kMaxRateFactor to kMaxRateFactor and the nearest
// to 1, with which another one of `best` is fastest, and which. `between`: nodes; else inside them.
inline constexpr double kMaxRateFactor = 64;
struct OtherBest {
  double factor = 1;
  size_t index = 0;
};
absl::StatusOr<std::optional<OtherBest>> OtherBestWithLinks(const LayoutQuestion& question,
                                                            const std::vector<FoundLayout>& best,
                                                            bool between,
                                                            const CheckStop& check = absl::OkStatus,
                                                            const LayoutQuestion* gathering = nullptr);

// "23.1 GiB".
std::string GibibytesText(double bytes);
// "23.1 GiB (weights 4.0, gradients 4.0, optimizer 8.0, activations 7.1)".
std::string MemoryText(const LayoutMemory& memory);

}  // namespace psring
