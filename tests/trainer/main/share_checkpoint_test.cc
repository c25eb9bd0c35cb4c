// What ranks tell each other about a checkpoint that rank 0 has read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/ring_worker/fake_rendezvous.h"
#include "trainer/main/resume.h"

namespace psring {
namespace {

TEST(ShareCheckpoint, NotesOfOtherRanksHaveOneLine) {
  const auto store = std::make_shared<FakeStore>();
  std::thread other([&] {
    FakeRendezvous rendezvous(store, 1, 2);
    for (const auto& [name, value] : {std::pair("resume", ""), std::pair("resume/folder", ""),
                                      std::pair("resume/missing", "\x1b[2J\nfake")}) {
      EXPECT_TRUE(rendezvous.Exchange(name, value).ok());
    }
  });
  FakeRendezvous rendezvous(store, 0, 2);
  TrainingOptions options;
  options.resume = "checkpoint";
  options.wire = "bfloat16";
  std::vector<std::string> notes;
  const auto shared =
      ShareCheckpoint(options, *FindStrategy("ring"), 0, &rendezvous, CheckpointBytes{.position = "{}"},
                      [&](const std::string& note) { notes.push_back(note); });
  other.join();
  EXPECT_TRUE(shared.ok()) << shared.status();
  EXPECT_EQ(notes, std::vector<std::string>{"\\x1b[2J\\x0afake"});
}

// The strategy's group connects only ranks with the same stages, so rank 0 cannot send the others' weights.
TEST(ShareCheckpoint, EveryRankOfAPipelineReadsIt) {
  for (const int pp : {1, 2}) {
    const auto store = std::make_shared<FakeStore>();
    std::thread first([&] {
      FakeRendezvous rendezvous(store, 0, 2);
      EXPECT_TRUE(rendezvous.Exchange("resume", "+{}").ok());
    });
    FakeRendezvous rendezvous(store, 1, 2);
    TrainingOptions options;
    options.resume = "/no/such/checkpoint";
    options.pp = pp;
    const auto shared = ShareCheckpoint(options, *FindStrategy("ring"), 1, &rendezvous, std::nullopt,
                                        [](const std::string&) {});
    first.join();
    EXPECT_EQ(shared.ok(), pp == 1) << shared.status();
    if (shared.ok()) continue;
    EXPECT_THAT(shared.status().message(), testing::HasSubstr("/no/such/checkpoint"));
  }
}

}  // namespace
}  // namespace psring
