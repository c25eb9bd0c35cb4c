#include "experiments/launch/progress.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/cli/command_line.h"
#include "common/text/translate.h"
#include "tests/has.h"

namespace psring {
namespace {

// What `draw` prints.
template <typename Draw>
std::string Shown(bool terminal, const Draw& draw) {
  testing::internal::CaptureStdout();
  {
    Display display(stdout, terminal);
    draw(display);
  }
  return testing::internal::GetCapturedStdout();
}

TEST(Progress, ReadsTheTrainersLines) {
  const auto event =
      ParseProgress(R"({"event":"step","rank":1,"step":12,"steps":25,"samples":1536,"loss":0.53})").value();
  EXPECT_EQ(event.event, "step");
  EXPECT_EQ(event.rank, 1);
  EXPECT_EQ(event.step, 12);
  EXPECT_EQ(event.steps, 25);
}

TEST(Progress, IgnoresOtherLines) {
  for (const char* line : {"", "hello", "{", "{}", "[1]", R"({"event":3})", R"({"step":3})"})
    EXPECT_FALSE(ParseProgress(line).has_value()) << line;
  EXPECT_EQ(ParseProgress(R"({"event":"step","loss":null,"step":"x"})")->step, 0);
}

TEST(Progress, TheBarShowsTheSlowestRank) {
  LaunchProgress progress(2);
  EXPECT_EQ(progress.Bar(), "[....................] starting");
  progress.Note({.event = "step", .rank = 0, .step = 20, .steps = 20, .loss = 0.25});
  progress.Note({.event = "step", .rank = 1, .step = 10, .steps = 20, .loss = 0.5});
  EXPECT_EQ(progress.Bar(), "[##########..........] 10/20 steps, loss 0.500");
}

TEST(Progress, DescribesARanksLastKnownState) {
  LaunchProgress progress(2);
  EXPECT_EQ(progress.LastKnown(1), "it never reported progress");
  progress.Note({.event = "start", .rank = 1});
  EXPECT_EQ(progress.LastKnown(1), "it started but did not become ready");
  EXPECT_FALSE(progress.HasStepped(1));
  progress.Note({.event = "step", .rank = 1, .step = 3, .steps = 9});
  EXPECT_EQ(progress.LastKnown(1), "last seen at step 3 of 9");
  EXPECT_TRUE(progress.HasStepped(1));
  EXPECT_FALSE(progress.HasStepped(7));
  progress.Note({.event = "step", .rank = 7, .step = 3, .steps = 9});  // ignored: no such rank
  EXPECT_EQ(progress.LastKnown(7), "");
  progress.Note({.event = "step", .rank = 0, .step = 1, .steps = 9});
  EXPECT_EQ(progress.LastKnownOfLast(0, 2), "rank 0: last seen at step 1 of 9");
  EXPECT_EQ(progress.LastKnownOfLast(1, 1), "rank 1: last seen at step 3 of 9");
  EXPECT_EQ(progress.LastKnownOfLast(2, 2), "");  // a server's number
}

TEST(Progress, EvaluationsShowTheirShareAndTheTimeLeft) {
  LaunchProgress progress(2);
  for (int rank = 0; rank < 2; ++rank) progress.Note({.event = "step", .rank = rank, .step = 4, .steps = 4});
  constexpr int64_t kSecond = 1'000'000'000;
  const auto evaluate = [&](int64_t done, int64_t now_ns) {
    const auto event = ParseProgress(
        absl::StrCat(R"({"event":"evaluating","rank":0,"evaluated":)", done, R"(,"to_evaluate":1000})"));
    progress.Note(event.value(), now_ns);
  };
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
  evaluate(0, 5 * kSecond);
  EXPECT_EQ(progress.Bar(), "[####################] evaluating 0%");
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
  evaluate(120, 7 * kSecond);
  EXPECT_EQ(progress.Bar(), "[####################] evaluating 12%");
  EXPECT_NEAR(progress.EvaluationLeftSeconds().value_or(0), 2 / .12 - 2, 1e-9);
  EXPECT_EQ(progress.LastKnown(0), "last seen in its evaluation");
  evaluate(1000, 20 * kSecond);
  EXPECT_FALSE(progress.EvaluationLeftSeconds().has_value());
}

// Evaluations of 20 s: `out` is what is shown after the first 2.
TEST(Progress, LongEvaluationsAreAnnouncedOnce) {
  for (const bool terminal : {true, false}) {
    LaunchProgress progress(1);
    const std::string out = Shown(terminal, [&](Display& display) {
      for (const int64_t done : {0, 100, 200}) {
        progress.Note({.event = "evaluating", .rank = 0, .evaluated = done, .to_evaluate = 1000},
                      done * 20'000'000);
        progress.Show("ring x 2", "samples", display);
      }
    });
    if (terminal) {
      EXPECT_NE(out.find("evaluating 0%"), std::string::npos) << out;
    } else {
      EXPECT_TRUE(absl::StartsWith(out, "evaluating 1000 samples, about 1")) << out;
      EXPECT_THAT(out, IsOneLine());
    }
  }
}

std::string ShownNotes(bool terminal) {
  return Shown(terminal, [](Display& display) {
    display.Redraw("half");
    display.SayPlain("plain");
    display.Say("done");
    display.NoteOnce("one");
    display.NoteOnce("one");
    const ScopedLanguage chinese(Language::kChinese);
    display.Note("two");
  });
}

constexpr char kNotes[] = "done\nnote:      one\n说明：     two\n";

TEST(Progress, RedrawsOneLineOnATerminal) {
  EXPECT_EQ(ShownNotes(true), absl::StrCat("\rhalf\033[K\r\033[K", kNotes));
}

TEST(Progress, StylesShowOnlyOnATerminalThatWantsThem) {
  const auto bold = [](bool terminal, const char* no_color, const char* kind) {
    setenv("NO_COLOR", no_color, 1);
    setenv("TERM", kind, 1);
    const std::string text =
        Shown(terminal, [](Display& display) { display.SayLines("a\033b", Style::kBold); });
    unsetenv("NO_COLOR");
    return text;
  };
  EXPECT_EQ(bold(true, "", "xterm"), "\033[1ma\\x1bb\033[0m\n") << "NO_COLOR counts only with a value";
  for (const std::string& plain :
       {bold(false, "", "xterm"), bold(true, "1", "xterm"), bold(true, "", "dumb")})
    EXPECT_EQ(plain, "a\\x1bb\n");
}

TEST(Progress, PrintsPlainLinesElsewhere) { EXPECT_EQ(ShownNotes(false), absl::StrCat("plain\n", kNotes)); }

TEST(Progress, TheRedrawnLineSaysHowMuchTimeIsLeftAndFitsIntoTheTerminal) {
  const auto drawn = [](double seconds, const std::string& line) {
    const std::string text = Shown(true, [&](Display& display) {
      display.ExpectEndIn(seconds);
      display.Redraw(line);
    });
    return text.substr(0, text.find("\033"));
  };
  EXPECT_EQ(drawn(300.5, "half"), "\rhalf, about 5 min left");
  EXPECT_TRUE(drawn(60.5, "half") == "\rhalf, about 60 s left" ||
              drawn(60.5, "half") == "\rhalf, about 59 s left");
  EXPECT_EQ(drawn(0.5, "half"), "\rhalf");
  const std::string long_line = drawn(300.5, std::string(500, 'x'));
  EXPECT_EQ(long_line.size(), OutputColumns());  // with the carriage return
  EXPECT_NE(long_line.find("xx, about 5 min left"), std::string::npos) << long_line;
}

}  // namespace
}  // namespace psring
