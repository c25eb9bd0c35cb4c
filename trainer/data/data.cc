#include "trainer/data/data.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/suggestions/suggestions.h"
#include "common/workloads/zipf.h"
#include "trainer/data/clicks.h"
#include "trainer/data/pictures.h"
#include "trainer/data/text.h"
#include "trainer/data/words.h"

namespace psring {
namespace {

constexpr char kDebianFashionMnist[] = "/usr/share/datasets/fashion-mnist";

}  // namespace

const std::vector<DataRow>& DataRows() {
  static const std::vector<DataRow> rows = {
      {"fashion-mnist", "60,000 images of clothes; Debian's dataset-fashion-mnist, or from --data_dir"},
      {"mnist", "handwritten digits, or any other four idx files, from --data_dir"},
      {"synthetic", "a noisy pattern per class; needs no files"},
      {"text", "the bytes of --text FILE, else of the King James Bible (Debian's bible-kjv)"},
      {"words", "pairs of near words of --text FILE, else of the King James Bible, for skipgram"},
      {"zipf:ROWS:ALPHA", "generated clicks; rows of each table follow Zipf's distribution; needs no files"},
      {"tokens", "train.bin and val.bin of nanoGPT or llm.c, 16-bit tokens, from --data_dir"},
  };
  return rows;
}

absl::StatusOr<DataSplits> LoadData(const DataRequest& request) {
  const std::string &name = request.name, &dir = request.dir;
  if (name == "synthetic") return MakeSyntheticData({}, request.seed);
  if (absl::StartsWith(name, "zipf:")) {
    PSRING_ASSIGN_OR_RETURN(const ZipfName zipf, ParseZipf(name));
    return MakeClicks({.rows = zipf.rows, .alpha = zipf.alpha}, request.seed);
  }
  if (name == "words") return ReadWords(request.text, request.seed);
  if (name == "text") return ReadText(request.text, request.context);
  if (name == "tokens") {
    if (dir.empty()) {
      return absl::InvalidArgumentError(
          "--data tokens needs --data_dir, the folder of train.bin and val.bin");
    }
    return ReadTokens(dir, request.context);
  }
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
