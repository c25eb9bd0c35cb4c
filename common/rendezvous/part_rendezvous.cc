#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rendezvous/rendezvous.h"

namespace psring {
namespace {

class PartRendezvous final : public Rendezvous {
 public:
  PartRendezvous(Rendezvous& whole, std::vector<int> ranks, const std::string& name)
      : whole_(whole), ranks_(std::move(ranks)), prefix_(absl::StrCat(name, "/")), options_(whole.options()) {
    options_.world_size = static_cast<int>(ranks_.size());
    options_.local_rank = options_.local_world_size = 0;  // unknown
    options_.job_ranks.clear();
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const int of_whole = ranks_[static_cast<size_t>(rank)];
      if (of_whole == whole.options().rank) options_.rank = rank;
      options_.job_ranks.push_back(whole.options().JobRank(of_whole));
    }
  }

  const RendezvousOptions& options() const override { return options_; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    return whole_.Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) override {
    return whole_.Get(prefix_ + key, whom);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key,
                                                    const std::string& whom) override {
    return whole_.TryGet(prefix_ + key, whom);
  }
  absl::Status CheckRanks(const std::string& where) override { return whole_.CheckRanks(where); }
  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                         const std::string& name, const std::string& value,
                                                         absl::Duration timeout) override {
    std::vector<int> own = ranks, of_whole;
    for (int rank = 0; rank < options_.world_size && ranks.empty(); ++rank) own.push_back(rank);
    std::sort(own.begin(), own.end());
    for (const int rank : own) of_whole.push_back(ranks_[static_cast<size_t>(rank)]);
    PSRING_ASSIGN_OR_RETURN(std::vector<std::string> values,
                            whole_.ExchangeAmong(of_whole, prefix_ + name, value, timeout));
    // `values` are in rank order of the whole; the result is in this part's rank order.
    std::sort(of_whole.begin(), of_whole.end());
    std::vector<std::string> ordered;
    for (const int rank : own) {
      const auto place =
          std::lower_bound(of_whole.begin(), of_whole.end(), ranks_[static_cast<size_t>(rank)]);
      ordered.push_back(std::move(values[static_cast<size_t>(place - of_whole.begin())]));
    }
    return ordered;
  }
  absl::StatusOr<ClockReading> ReadClock() override { return whole_.ReadClock(); }

 private:
  Rendezvous& whole_;
  const std::vector<int> ranks_;
  const std::string prefix_;
  RendezvousOptions options_;
};

}  // namespace

std::unique_ptr<Rendezvous> MakePartRendezvous(Rendezvous& whole, std::vector<int> ranks,
                                               const std::string& name) {
  return std::make_unique<PartRendezvous>(whole, std::move(ranks), name);
}

}  // namespace psring
