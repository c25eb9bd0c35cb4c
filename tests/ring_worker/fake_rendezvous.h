// Ranks that are threads, and their rendezvous, so that these tests do not need gRPC.
#pragma once

#include <algorithm>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/mutex.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/on_ranks.h"
#include "tests/test_secret.h"

namespace psring {

struct FakeStore {
  Mutex mutex;
  CondVar changed;
  std::map<std::string, std::string> values ABSL_GUARDED_BY(mutex);
};

class FakeRendezvous final : public Rendezvous {
 public:
  FakeRendezvous(std::shared_ptr<FakeStore> store, int rank, int world_size,
                 absl::Duration timeout = absl::Seconds(20))
      : store_(std::move(store)) {
    options_.rank = rank;
    options_.world_size = world_size;
    options_.timeout = timeout;
    options_.secret = TestSecret();
  }

  const RendezvousOptions& options() const override { return options_; }
  void UseSecret(const JobSecret& secret) { options_.secret = secret; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    MutexLock lock(store_->mutex);
    store_->values[key] = value;
    store_->changed.NotifyAll();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) override {
    const MonotonicTime deadline = MonotonicNow() + options_.timeout;
    MutexLock lock(store_->mutex);
    while (!store_->values.contains(key)) {
      if (!store_->changed.WaitUntil(store_->mutex, deadline)) {
        return absl::DeadlineExceededError(absl::StrCat("waited for ", whom));
      }
    }
    return store_->values[key];
  }

  absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key, const std::string&) override {
    MutexLock lock(store_->mutex);
    const auto found = store_->values.find(key);
    return found == store_->values.end() ? std::nullopt : std::optional(found->second);
  }

  absl::Status CheckRanks(const std::string&) override { return absl::OkStatus(); }

  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& among,
                                                         const std::string& name, const std::string& value,
                                                         absl::Duration) override {
    std::vector<int> ranks = among;
    for (int rank = 0; rank < options_.world_size && among.empty(); ++rank) ranks.push_back(rank);
    std::sort(ranks.begin(), ranks.end());
    const std::string prefix = absl::StrCat(name, "/", exchanges_[name]++, "/");
    PSRING_RETURN_IF_ERROR(Set(absl::StrCat(prefix, options_.rank), value));
    std::vector<std::string> values;
    for (const int rank : ranks) {
      PSRING_ASSIGN_OR_RETURN(values.emplace_back(),
                              Get(absl::StrCat(prefix, rank), absl::StrCat("rank ", rank)));
    }
    return values;
  }

  absl::StatusOr<ClockReading> ReadClock() override {
    return absl::UnimplementedError("threads have one clock");
  }

 private:
  const std::shared_ptr<FakeStore> store_;
  RendezvousOptions options_;
  std::map<std::string, int> exchanges_;
};

// One that exists until the program ends, because a mesh uses its rendezvous.
inline FakeRendezvous& KeptRendezvous(const std::shared_ptr<FakeStore>& store, int rank, int world_size,
                                      absl::Duration timeout = absl::Seconds(20)) {
  static Mutex mutex;
  static std::vector<std::unique_ptr<FakeRendezvous>> kept;
  MutexLock lock(mutex);
  kept.push_back(std::make_unique<FakeRendezvous>(store, rank, world_size, timeout));
  return *kept.back();
}

// The result of `calls`, unless this rank is silent: that one waits until the others' calls have ended.
template <typename Calls>
absl::Status UnlessSilent(bool silent, std::latch& others_end, const Calls& calls) {
  if (silent) return others_end.wait(), absl::OkStatus();
  const absl::Cleanup ended = [&] { others_end.count_down(); };
  return calls();
}

// Runs `body` on a thread for each rank, except those below `first`.
inline void OnRanks(int ranks, const std::function<void(FakeRendezvous& rendezvous, int rank)>& body,
                    int first = 0, absl::Duration timeout = absl::Seconds(20)) {
  const auto store = std::make_shared<FakeStore>();
  OnRanks(ranks - first, [&](int number) {
    const int rank = first + number;
    body(KeptRendezvous(store, rank, ranks, timeout), rank);
  });
}

}  // namespace psring
