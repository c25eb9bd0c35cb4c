// What ranks tell each other about a checkpoint that rank 0 has read.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/ring_worker/fake_rendezvous.h"
#include "trainer/main/resume.h"
#include "trainer/strategies/strategies.h"

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

}  // namespace
}  // namespace psring
