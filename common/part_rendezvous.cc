#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/rendezvous.h"

namespace psring {
namespace {

class PartRendezvous final : public Rendezvous {
 public:
  PartRendezvous(Rendezvous& whole, std::vector<int> ranks, const std::string& name, int local_rank,
                 int local_size)
      : whole_(whole), ranks_(std::move(ranks)), prefix_(absl::StrCat(name, "/")), options_(whole.options()) {
    options_.world_size = static_cast<int>(ranks_.size());
    options_.local_rank = local_rank;
    options_.local_world_size = local_size;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      if (ranks_[static_cast<size_t>(rank)] == whole.options().rank) options_.rank = rank;
    }
  }

  const RendezvousOptions& options() const override { return options_; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    return whole_.Set(prefix_ + key, value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) override {
    return whole_.Get(prefix_ + key, whom);
  }
  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                         const std::string& name,
                                                         const std::string& value) override {
    std::vector<int> of_whole;
    for (const int rank : ranks) of_whole.push_back(ranks_[static_cast<size_t>(rank)]);
    if (ranks.empty()) of_whole = ranks_;
    PSRING_ASSIGN_OR_RETURN(std::vector<std::string> values,
                            whole_.ExchangeAmong(of_whole, prefix_ + name, value));
    // They come in the order of the whole's numbers.
    std::map<int, std::string*> by_rank;
    for (const int rank : of_whole) by_rank[rank] = nullptr;
    size_t next = 0;
    for (auto& [rank, place] : by_rank) place = &values[next++];
    std::vector<std::string> ordered;
    for (const int rank : of_whole) ordered.push_back(std::move(*by_rank[rank]));
    return ordered;
  }

 private:
  Rendezvous& whole_;
  const std::vector<int> ranks_;
  const std::string prefix_;
  RendezvousOptions options_;
};

}  // namespace

std::unique_ptr<Rendezvous> MakePartRendezvous(Rendezvous& whole, std::vector<int> ranks,
                                               const std::string& name, int local_rank, int local_size) {
  return std::make_unique<PartRendezvous>(whole, std::move(ranks), name, local_rank, local_size);
}

}  // namespace psring
