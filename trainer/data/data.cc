#include "trainer/data/data.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/random.h"
#include "common/workloads/zipf.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

absl::StatusOr<DataSplits> LoadFashionMnist(const DataRequest& request) {
  constexpr char kDebianFolder[] = "/usr/share/datasets/fashion-mnist";
  // The mean and standard deviation over the training pixels, as is usual for the two sets.
  auto splits = ReadPictures(request.name, request.dir.empty() ? kDebianFolder : request.dir, .2860f, .3530f);
  if (!request.dir.empty() || !absl::IsNotFound(splits.status())) return splits;
  return NotFound(splits.status().message(),
                  " (install it: apt-get install dataset-fashion-mnist; or name "
                  "its folder: --data_dir)");
}

absl::StatusOr<DataSplits> LoadMnist(const DataRequest& request) {
  if (request.dir.empty()) {
    return absl::InvalidArgumentError("--data mnist needs --data_dir, the folder of its four idx files");
  }
  return ReadPictures(request.name, request.dir, .1307f, .3081f);
}

absl::StatusOr<DataSplits> LoadTokens(const DataRequest& request) {
  if (request.dir.empty()) {
    return absl::InvalidArgumentError("--data tokens needs --data_dir, the folder of train.bin and val.bin");
  }
  return ReadTokens(request.dir, request.context);
}

absl::StatusOr<DataSplits> LoadClicks(const DataRequest& request) {
  PSRING_ASSIGN_OR_RETURN(const ZipfName zipf, ParseZipf(request.name));
  return MakeClicks({.rows = zipf.rows, .alpha = zipf.alpha}, request.seed);
}

SampleSpec Pictures28(int /*context*/) { return PictureSpec(28, 28); }
SampleSpec Bytes(int context) { return TextSpec(context, /*classes=*/256); }

// A data set is one file with such functions.
const struct Reader {
  const char* name;  // DataRow::name
  absl::StatusOr<DataSplits> (*load)(const DataRequest& request);
  SampleSpec (*spec)(int context);
} kReaders[] = {
    {"fashion-mnist", LoadFashionMnist, Pictures28},
    {"mnist", LoadMnist, Pictures28},
    {"synthetic",
     [](const DataRequest& request) -> absl::StatusOr<DataSplits> {
       return MakeSyntheticData({}, request.seed);
     },
     Pictures28},
    {"text", [](const DataRequest& request) { return ReadText(request.text, request.context); }, Bytes},
    {"words", [](const DataRequest& request) { return ReadWords(request.text, request.seed); },
     [](int) { return WordSpec(/*words=*/10'000); }},
    {"zipf:ROWS:ALPHA", LoadClicks, [](int) { return ClickSpec(/*rows=*/1'000'000); }},
    {"tokens", LoadTokens, Bytes},
};

const Reader& ReaderOf(const DataRow& row) {
  const auto* reader = std::ranges::find(kReaders, std::string_view(row.name), &Reader::name);
  PSRING_CHECK(reader != std::end(kReaders));
  return *reader;
}

}  // namespace

absl::StatusOr<DataSplits> LoadData(const DataRequest& request, const DataTable& rows) {
  PSRING_ASSIGN_OR_RETURN(const DataRow* row, FindData(request.name, rows));
  return (row->load != nullptr ? row->load : ReaderOf(*row).load)(request);
}

SampleSpec TypicalSpec(const std::string& name, int context) {
  const absl::StatusOr<const DataRow*> row = FindData(name);
  PSRING_CHECK(row.ok());
  return ReaderOf(**row).spec(context);
}

absl::Status HoldOut(int64_t count, bool score_them, DataSplits& data) {
  if (count == 0) return absl::OkStatus();
  Dataset& train = data.train;
  if (count >= train.count()) {
    return InvalidArgument("--validation ", count, " would leave none of the ", train.count(),
                           " training samples; hold out fewer");
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
