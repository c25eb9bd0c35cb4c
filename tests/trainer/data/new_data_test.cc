// A data set that only this test knows: its reader and one row make it available to the trainer.
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "trainer/data/data.h"
#include "trainer/data/sources.h"

namespace psring {
namespace {

// Pictures of one pixel, which is brighter in the second class.
absl::StatusOr<DataSplits> LoadLamps(const DataRequest& request) {
  const auto lamps = [](size_t count) {
    Pictures pictures{.height = 1, .width = 1, .classes = 2};
    for (size_t i = 0; i < count; ++i) {
      pictures.labels.push_back(i % 2);
      pictures.pixels.push_back(i % 2 == 0 ? 10 : 200);
    }
    return MakePictures(std::move(pictures));
  };
  return DataSplits{.name = request.name, .train = lamps(20), .test = lamps(4)};
}

const DataTable& RowsWithLamps() {
  static const auto& rows = *[] {
    auto* all = new DataTable(DataRows());
    all->push_back({.name = "lamps:COUNT", .summary = "bright and dark pixels", .load = LoadLamps});
    return all;
  }();
  return rows;
}

TEST(NewData, IsFoundLoadedAndSuggested) {
  EXPECT_STREQ((*FindData("lamps:20", RowsWithLamps()))->summary, "bright and dark pixels");
  const auto data = LoadData({.name = "lamps:20"}, RowsWithLamps());
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train.count(), 20);
  EXPECT_EQ(data->train.spec().classes, 2);
  EXPECT_TRUE(
      absl::StrContains(LoadData({.name = "lamp"}, RowsWithLamps()).status().message(), "lamps:COUNT"));
  EXPECT_FALSE(LoadData({.name = "lamps:20"}).ok()) << "the table did not change";
}

}  // namespace
}  // namespace psring
