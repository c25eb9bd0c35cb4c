#include "trainer/data/data.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "trainer/data/names.h"
#include "trainer/data/pictures.h"

namespace psring {
namespace {

constexpr char kDebianFashionMnist[] = "/usr/share/datasets/fashion-mnist";

}  // namespace

const std::vector<DataRow>& DataRows() {
  static const std::vector<DataRow> rows = {
      {"fashion-mnist", "60,000 images of clothes; Debian's dataset-fashion-mnist, or from --data_dir"},
      {"mnist", "handwritten digits, or any other four idx files, from --data_dir"},
      {"synthetic", "a noisy pattern per class; needs no files"},
  };
  return rows;
}

absl::StatusOr<DataSplits> LoadData(const std::string& name, const std::string& dir, uint64_t seed) {
  if (name == "synthetic") return MakeSyntheticData({}, seed);
  if (name == "fashion-mnist") {
    // The mean and standard deviation over the training pixels, as is usual for the two sets.
    const std::string from = dir.empty() ? kDebianFashionMnist : dir;
    auto splits = ReadPictures(name, from, .2860f, .3530f);
    if (dir.empty() && absl::IsNotFound(splits.status())) {
      return absl::NotFoundError(absl::StrCat(splits.status().message(),
                                              " (install it: apt-get install dataset-fashion-mnist; or name "
                                              "its folder: --data_dir)"));
    }
    return splits;
  }
  if (name == "mnist") {
    if (dir.empty()) {
      return absl::InvalidArgumentError("--data mnist needs --data_dir, the folder of its four idx files");
    }
    return ReadPictures(name, dir, .1307f, .3081f);
  }
  std::vector<std::string> names;
  for (const DataRow& row : DataRows()) names.push_back(row.name);
  return UnknownName("data", name, names);
}

absl::Status HoldOut(int64_t count, bool score_them, DataSplits& data) {
  if (count == 0) return absl::OkStatus();
  Dataset& train = data.train;
  if (count >= train.count()) {
    return absl::InvalidArgumentError(absl::StrCat("--validation ", count, " would leave none of the ",
                                                   train.count(), " training samples; hold out fewer"));
  }
  constexpr uint64_t kSplitSeed = 0x76616c6964;  // one split for all runs: learning rates are chosen on it
  std::vector<int64_t> order(static_cast<size_t>(train.count()));
  std::iota(order.begin(), order.end(), 0);
  Random(kSplitSeed).Shuffle(order);
  const auto middle = order.end() - count;
  std::sort(order.begin(), middle);
  std::sort(middle, order.end());
  const std::vector<int64_t> kept(order.begin(), middle), held_out(middle, order.end());
  if (score_them) data.test = train.Part(held_out);
  train = train.Part(kept);
  return absl::OkStatus();
}

}  // namespace psring
