#include "trainer/programs/program_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "tests/trainer/programs/programs.h"
#include "trainer/programs/walk_program.h"

namespace psring {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ProgramRowsTest, TextHasPyTorchsNames) {
  EXPECT_EQ(ToText(Lowered("1f1b", 2, 2)),
            "rank 0: 0LOAD0 0.0F0 0SEND_F0 0LOAD1 0.0F1 0SEND_F1 0RECV_B0 0.0B0 0RECV_B1 0.0B1 "
            "0.0REDUCE_GRAD 0.0UPDATE\n"
            "rank 1: 1LOAD0 1RECV_F0 1.0F0 1.0B0 1SEND_B0 1LOAD1 1RECV_F1 1.0F1 1.0B1 1SEND_B1 "
            "1.0REDUCE_GRAD 1.0UPDATE\n");
  EXPECT_EQ(ToText(MakeStepProgram(*FindStepProgram("zb-h1"), 2, 2).value()),
            "rank 0: 0F0 0F1 0I0 0W0 0I1 0W1\n"
            "rank 1: 1F0 1I0 1F1 1I1 1W0 1W1\n");
}

TEST(ProgramRowsTest, TheTextOfAnActionIsReadBack) {
  for (const char* name : {"1f1b", "interleaved:2", "zb-h1"}) {
    const StepProgram program = Lowered(name, 2, 12);
    for (const std::vector<StepAction>& actions : program.actions) {
      for (const StepAction& action : actions)
        EXPECT_EQ(StepActionOf(ToText(action)), action) << ToText(action);
    }
  }
  for (const char* other : {"", "0", "F0", "forward", "0X1", "0F1 ", "0F1.2", "0.F1", "-1F0", "99999999999F0",
                            "0F99999999999", "0f0"}) {
    EXPECT_EQ(StepActionOf(other), std::nullopt) << other;
  }
}

// Every program, with few and many micro-batches, on up to 16 ranks.
TEST(ProgramRowsTest, AreProvedForAllNumbersOfRanksAndMicroBatches) {
  for (const ProgramRow& row : ProgramRows()) {
    for (int chunks = 1; chunks <= (row.takes_chunks ? 4 : 1); ++chunks) {
      for (const int ranks : {1, 2, 3, 4, 5, 8, 16}) {
        if (row.one_rank && ranks > 1) continue;
        for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 64}) {
          const auto compute = MakeStepProgram({row, chunks}, ranks, micro_batches);
          ASSERT_TRUE(compute.ok()) << compute.status();
          const auto walk = WalkProgram(LowerWholeStages(*compute));
          EXPECT_TRUE(walk.ok()) << row.name << ":" << chunks << " " << ranks << " ranks, " << micro_batches
                                 << " micro-batches: " << walk.status();
        }
      }
    }
  }
}

TEST(ProgramRowsTest, FormulasOfBubblesHoldExactly) {
  int formulas = 0;
  for (const ProgramRow& row : ProgramRows()) {
    for (int chunks = 1; chunks <= (row.takes_chunks ? 4 : 1); ++chunks) {
      for (const int ranks : {1, 2, 3, 4, 8, 16}) {
        if (row.one_rank && ranks > 1) continue;
        for (const int micro_batches : {1, 2, 3, 4, 6, 8, 16, 32, 64}) {
          if (row.bubble == nullptr) continue;
          const auto bubble = row.bubble(ranks, chunks, micro_batches);
          if (!bubble) continue;
          ++formulas;
          const Walk walk =
              Timed(MakeStepProgram({row, chunks}, ranks, micro_batches).value(), {.forward = 1});
          EXPECT_NEAR(walk.Bubble(), *bubble, 1e-9)
              << row.name << ":" << chunks << ", " << ranks << " ranks, " << micro_batches;
        }
      }
    }
  }
  EXPECT_GT(formulas, 200);
}

// So that a sum of gradients is that of one rank, bit for bit.
TEST(ProgramRowsTest, ComputeGradientsInTheOrderOfMicroBatches) {
  for (const ProgramRow& row : ProgramRows()) {
    SCOPED_TRACE(row.name);
    const NamedProgram named{row, row.takes_chunks ? 2 : 1};
    const StepProgram program = MakeStepProgram(named, row.one_rank ? 1 : 4, 8).value();
    std::map<std::pair<StepKind, int>, std::vector<int>> micro_batches;  // by kind and stage
    bool divides = false;
    for (const std::vector<StepAction>& actions : program.actions) {
      for (const StepAction& action : actions) {
        micro_batches[{action.kind, action.stage}].push_back(action.micro_batch);
        divides = divides || action.kind == StepKind::kBackwardWeight;
      }
    }
    EXPECT_EQ(divides, row.divides_backward);
    for (const auto& [pass, in_order] : micro_batches) {
      EXPECT_EQ(in_order, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
    }
  }
}

TEST(ProgramRowsTest, KeepTheMicroBatchesInFlightThatTheirSummariesState) {
  for (const int ranks : {1, 2, 4, 8, 16}) {
    for (const int micro_batches : {1, 4, 16, 64}) {
      const auto peaks = [&](const char* name) {
        return WalkProgram(
                   LowerWholeStages(MakeStepProgram(*FindStepProgram(name), ranks, micro_batches).value()))
            ->peak_live;
      };
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(peaks("gpipe")[rank], micro_batches);
        EXPECT_EQ(peaks("1f1b")[rank], std::min(ranks - rank, micro_batches));
        EXPECT_EQ(peaks("pipedream")[rank], std::min(ranks - rank, micro_batches));
        EXPECT_EQ(peaks("zb-h1")[rank], std::min(ranks, micro_batches));
      }
    }
  }
}

TEST(ProgramRowsTest, WithoutAFlushStalenessAndVersionsAreThoseOfThePapers) {
  for (const int ranks : {1, 2, 3, 4, 8, 16}) {
    for (const int micro_batches : {1, 2, 3, 5, 16, 33, 64}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << micro_batches << " micro-batches");
      const auto walk = [&](const StepProgram& program) { return WalkProgram(program).value(); };
      const StepProgram dream = Lowered("pipedream", ranks, micro_batches);
      const StepProgram two = Lowered("pipedream-2bw", ranks, micro_batches);
      const Walk of_dream = walk(dream), of_two = walk(two);
      EXPECT_EQ(dream.updates(), micro_batches);
      EXPECT_EQ(two.updates(), (micro_batches + ranks - 1) / ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        for (int m = 0; m < micro_batches; ++m) {
          EXPECT_EQ(of_dream.Staleness(dream, rank, m), std::min(m, ranks - 1 - rank));
          EXPECT_EQ(of_two.Staleness(two, rank, m), m < ranks ? 0 : 1);
        }
        EXPECT_LE(of_dream.kept_versions[rank], ranks - rank);
        if (micro_batches >= 2 * ranks) {
          EXPECT_EQ(of_dream.kept_versions[rank], ranks - rank);
        }
        EXPECT_EQ(of_two.kept_versions[rank], micro_batches > ranks ? 2 : 1);
      }
    }
  }
  EXPECT_THAT(WalkProgram(Lowered("1f1b", 3, 8))->kept_versions, testing::Each(1));
}

// Qi et al. 2024, table 5; the table does not state the number of chunks.
TEST(ProgramRowsTest, GiveTheBubblesOfTheZeroBubblePaper) {
  const StageTimes small = {.forward = 18.522, .input = 18.086, .weight = 9.337, .message = .601};
  const StageTimes large = {.forward = 11.347, .input = 11.248, .weight = 8.132, .message = .377};
  const auto bubble = [](const char* name, int ranks, int micro_batches, const StageTimes& times) {
    return Timed(MakeStepProgram(*FindStepProgram(name), ranks, micro_batches).value(), times).Bubble();
  };
  EXPECT_NEAR(bubble("1f1b", 8, 24, small), .2431, 5e-5);
  EXPECT_NEAR(bubble("1f1b", 16, 48, large), .2552, 5e-5);
  EXPECT_NEAR(bubble("zb-h1", 8, 24, small), .1585, 5e-5);
  EXPECT_NEAR(bubble("zb-h1", 16, 48, large), .1397, 5e-5);
  EXPECT_NEAR(bubble("interleaved:3", 8, 24, small), .1055, .004);
  EXPECT_NEAR(bubble("interleaved:3", 16, 48, large), .1104, .004);
}

TEST(ProgramRowsTest, AnUnknownNameSuggestsTheNearest) {
  EXPECT_THAT(FindStepProgram("1f1").status().message(),
              AllOf(HasSubstr("did you mean '1f1b'"), HasSubstr("interleaved:V")));
  EXPECT_THAT(FindStepProgram("interleaved").status().message(),
              HasSubstr("needs a whole number from 1 to 1024"));
  EXPECT_FALSE(FindStepProgram("interleaved:0").ok());
  EXPECT_FALSE(FindStepProgram("interleaved:1025").ok());
  EXPECT_FALSE(FindStepProgram("interleaved:2x").ok());
  EXPECT_THAT(FindStepProgram("1f1b:2").status().message(), HasSubstr("takes no number"));
  EXPECT_EQ(FindStepProgram("interleaved:3")->chunks, 3);
}

TEST(ProgramRowsTest, ImpossibleNumbersAreRejected) {
  EXPECT_FALSE(MakeStepProgram(*FindStepProgram("1f1b"), 0, 1).ok());
  EXPECT_FALSE(MakeStepProgram(*FindStepProgram("1f1b"), 1, 0).ok());
  EXPECT_FALSE(MakeStepProgram(*FindStepProgram("single_stage"), 2, 1).ok());
  EXPECT_FALSE(MakeStepProgram(*FindStepProgram("interleaved:1024"), 1 << 20, 1 << 20).ok());
}

// To add a program: one function and one row.
StepProgram Alternating(int ranks, int, int micro_batches) {
  StepProgram program{"alternating", ranks, micro_batches, {}, std::vector<std::vector<StepAction>>(ranks)};
  for (int rank = 0; rank < ranks; ++rank) {
    program.rank_of.push_back(rank);
    for (int m = 0; m < micro_batches; ++m) {
      program.actions[rank].push_back({StepKind::kForward, rank, -1, m});
      program.actions[rank].push_back({StepKind::kBackward, rank, -1, m});
    }
  }
  return program;
}

TEST(ProgramRowsTest, ANewProgramIsOneRow) {
  const ProgramTable rows = {
      {.name = "alternating", .summary = "one micro-batch at a time", .make = Alternating}};
  const auto program = FindStepProgram("alternating", rows);
  ASSERT_TRUE(program.ok());
  const Walk walk = Timed(MakeStepProgram(*program, 4, 6).value(), {.forward = 1});
  EXPECT_NEAR(walk.Bubble(), .75, 1e-9);
  EXPECT_THAT(walk.peak_live, testing::Each(1));
}

}  // namespace
}  // namespace psring
