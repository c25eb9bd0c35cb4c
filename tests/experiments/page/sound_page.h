// What holds for the page of every run: its figures, sentences and captions follow from the run's files and
// from the cost models.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/experiments/page/browser.h"
#include "tests/ring_worker/mesh.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {

class ReportBrowserTest : public BrowserTest {
 protected:
  using Json = nlohmann::json;

  // Holds for the page of every run, read by a visitor of any kind.
  void ExpectSoundTexts(const Json& seen, const std::string& run) const {
    EXPECT_THAT(seen["errors"], testing::IsEmpty());
    EXPECT_EQ(seen["violations"], 0);
    EXPECT_EQ(seen["requests"], 0);
    EXPECT_THAT(seen["ids_given_twice"], testing::IsEmpty());
    EXPECT_THAT(seen["untranslated"], testing::IsEmpty());
    EXPECT_NE(seen["english"]["headings"], seen["chinese"]["headings"]);
    for (const auto& [figure, rows] : seen["english"]["figures"].items()) {
      if (figure == "step") continue;  // another launch is chosen by then
      EXPECT_TRUE(rows == seen["chinese"]["figures"][figure]) << figure;
    }
    EXPECT_THAT(seen["wordless"], testing::IsEmpty());  // keys of texts that are missing
    ExpectCaptions(seen["english"]);
    ExpectSentencesAreTheSummarys(seen["english"], root_ / run);
    ExpectLinksAreTheory(seen["english"]["figures"]["links"]);
  }

  // Likewise, by one that has used all controls.
  void ExpectSound(const Json& seen, const std::string& run) const {
    ExpectSoundTexts(seen, run);
    for (const Json& slider : seen["sliders"]) EXPECT_EQ(slider["moves"], true) << slider;
    EXPECT_EQ(seen["sliders"].size(), 7u);
    ExpectJudged(seen["questions"]);
    EXPECT_GT(seen["after_one_round"], 0);
    EXPECT_GE(seen["lit"], 4);  // a term of every formula that is not over yet
    EXPECT_EQ(seen["after_back"], 0);
    ASSERT_FALSE(seen["phases"].empty());
    EXPECT_THAT(seen["phases"][0].get<std::string>(), testing::HasSubstr("reduce-scatter"));
    EXPECT_EQ(seen["played"].size(), 5u);
    for (const Json& panel : seen["played"]) {
      EXPECT_THAT(panel["done"].get<std::string>(), testing::HasSubstr("\xe2\x9c\x93")) << panel;  // a tick
    }
    ExpectScoresAreTheory(seen);
    ExpectProgramsArePlayed(seen["programs"]);
  }

  // Of 4 stages and 8 micro-batches the panels; of every program its figures by psring's walk.
  static void ExpectProgramsArePlayed(const Json& seen) {
    EXPECT_EQ(seen["begin"].size(), 6u);
    for (const Json& panel : seen["begin"]) {
      EXPECT_EQ(panel[0], "Computing: 0F0, \u2013, \u2013, \u2013");
      EXPECT_EQ(panel[1], "Sent: \u2013");
    }
    constexpr size_t kInterleaved = 2;  // its stages are half as long
    for (size_t i = 0; i < seen["next"].size(); ++i) {
      const Json& panel = seen["next"][i];
      EXPECT_EQ(seen["boxes"][i], i == kInterleaved ? 6 : 3) << "begun";
      if (i == kInterleaved) {
        EXPECT_EQ(panel[0], "Computing: 0F2, 1F1, 2F0, \u2013");
        EXPECT_EQ(panel[3], "Bubble so far: 62.5%");
        continue;
      }
      EXPECT_EQ(panel[0], "Computing: 0F1, 1F0, \u2013, \u2013");
      EXPECT_EQ(panel[1], "Sent: 0F0 0\u21921");
      EXPECT_THAT(panel[2].get<std::string>(), testing::HasSubstr("2, 1, 0, 0"));
      EXPECT_EQ(panel[3], "Bubble so far: 75.0%");
    }
    EXPECT_EQ(seen["next"].size(), 6u);
    EXPECT_EQ(seen["programs"].size(), 36u);
    for (const Json& program : seen["programs"]) {
      SCOPED_TRACE(
          absl::StrCat(program["name"].dump(), program["ranks"].dump(), program["micro_batches"].dump()));
      const bool is_interleaved = program["name"] == "interleaved:2";
      const int ranks = program["ranks"], micro_batches = program["micro_batches"];
      const int stages = ranks * (is_interleaved ? 2 : 1);
      EXPECT_NEAR(program["played"].get<double>(), program["bubble"].get<double>(), 1e-4);
      EXPECT_EQ(program["computed"], 3 * stages * micro_batches);
      EXPECT_EQ(program["sent"], 2 * (stages - 1) * micro_batches);
      for (const Json& left : program["left"]) EXPECT_EQ(left, 0);
      if (is_interleaved) {  // a stage's most is not at the same time as another's
        for (int rank = 0; rank < ranks; ++rank) EXPECT_LE(program["most"][rank], program["in_flight"][rank]);
      } else {
        EXPECT_EQ(program["most"], program["in_flight"]);
      }
    }
  }

  // Answers are judged, and known mistakes are explained.
  static void ExpectJudged(const Json& questions) {
    for (const Json& question : questions) {
      EXPECT_THAT(question["wrong"].get<std::string>(), testing::HasSubstr("Not quite.")) << question;
      EXPECT_THAT(question["said"].get<std::string>(), testing::HasSubstr("Right.")) << question;
      for (const Json& slip : question["slips"])
        EXPECT_THAT(slip["said"].get<std::string>(),
                    testing::HasSubstr("Not quite. " + slip["text"].get<std::string>()));
    }
    ASSERT_FALSE(questions.empty());
    const size_t count = questions.size();
    EXPECT_EQ(questions.back()["score"],
              absl::StrCat(count, " right of ", count, " answered; this page has ", count, " exercises."));
  }

  // Three digits, as the page prints numbers.
  static std::string Brief(double value) {
    if (std::abs(value) < 1e-9) return "0";
    if (std::abs(value) < 1000) return absl::StrFormat("%.3g", value);
    std::string digits = absl::StrFormat("%.0f", value);
    for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
    return digits;
  }

  // Every sentence about the run states figures of summary.json, and its claims follow from them.
  static void ExpectSentencesAreTheSummarys(const Json& page, const std::filesystem::path& run) {
    const Json summary = Json::parse(Slurp(run / "summary.json"), nullptr, /*allow_exceptions=*/false);
    if (!summary.is_array()) return;  // a benchmark
    for (const Json& sentence : page["here"]) {
      const std::string text = sentence["text"];
      const Json* first = nullptr;
      for (const Json& fact : sentence["facts"]) {
        const Json* figures = nullptr;
        for (const Json& row : summary) {
          const Json& found = row["figures"];
          if (found["strategy"] == fact["strategy"] && found["workers"] == fact["workers"] &&
              found["servers"] == fact["servers"] && found["lr"] == fact["lr"]) {
            figures = &found;
          }
        }
        ASSERT_NE(figures, nullptr) << sentence;
        if (first == nullptr) first = figures;
        EXPECT_EQ(fact["value"], (*figures)[fact["column"].get<std::string>()]) << sentence;
        const std::string column = fact["column"];
        const bool bytes = column.find("bytes") != std::string::npos;
        if (bytes) {
          EXPECT_THAT(text, testing::HasSubstr(Brief(fact["value"].get<double>() / 1e6) + " MB"));
        }
      }
      const auto at = [&](const char* column) {
        return first->value(column, Json()).is_number() ? (*first)[column].get<double>() : 0.0;
      };
      if (sentence["key"] == "here_overlap") {
        const double exposed = at("exposed_comm_ms"), all = std::max(at("comm_busy_ms"), exposed);
        const double waiting = std::min(std::max(0.0, at("wait_ms")), exposed);
        EXPECT_THAT(text, testing::HasSubstr(absl::StrFormat(
                              "%s ms of communication = %s hidden + %s exposed + %s waiting", Brief(all),
                              Brief(all - exposed), Brief(exposed - waiting), Brief(waiting))));
        EXPECT_EQ(text.find("Nothing was hidden") != std::string::npos, all - exposed < 0.005 * all) << text;
      }
      if (sentence["key"] == "here_accuracy") {
        EXPECT_EQ(text.find("differ"), std::string::npos);
      }
    }
    // Part 3 has a recorded example if no row of the run hides 30 to 70% of its communication.
    bool shows_overlap = false;
    for (const Json& row : summary) {
      const auto number = [&](const char* column) {
        const Json& figures = row["figures"];
        return figures.contains(column) && figures[column].is_number() ? figures[column].get<double>() : 0;
      };
      const double exposed = number("exposed_comm_ms"), all = std::max(number("comm_busy_ms"), exposed);
      const double hidden = all - exposed;
      if (number("workers") > 1 && all > 0 && hidden >= 0.3 * all && hidden <= 0.7 * all)
        shows_overlap = true;
    }
    EXPECT_EQ(std::ranges::count_if(page["here"],
                                    [](const Json& sentence) { return sentence["key"] == "here_example"; }),
              shows_overlap ? 0 : 1);
    // The badge: whether the rows that the verdict uses are valid.
    const Json table = Json::parse(Slurp(run / "table.json"), nullptr, /*allow_exceptions=*/false);
    Json used = table.is_object() ? table.value("verdict_rows", Json::array()) : Json::array();
    bool valid = true, answer_valid = true, simulated = true;
    for (size_t i = 0; i < summary.size(); ++i) {
      const bool row_valid = summary[i]["figures"].value("valid", true);
      valid = valid && row_valid;
      const bool counts = used.empty() || std::find(used.begin(), used.end(), Json(i)) != used.end();
      answer_valid = answer_valid && (row_valid || !counts);
      simulated = simulated && summary[i]["figures"]["basis"] == "simulated";
    }
    const std::string state = page["trust_state"];
    EXPECT_EQ(state == "badge invalid", !answer_valid) << state;
    EXPECT_EQ(page["trust"].get<std::string>().find("The answer is valid, but other rows are not.") !=
                  std::string::npos,
              answer_valid && !valid)
        << page["trust"];
    if (valid) {
      EXPECT_EQ(state == "badge simulated", simulated) << state;
    }
    EXPECT_EQ(std::set<std::string>(page["footnotes"].begin(), page["footnotes"].end()).size(),
              page["footnotes"].size());
    EXPECT_FALSE(page["lead"].get<std::string>().empty());
    for (const auto& [figure, rows] : page["figures"].items()) EXPECT_FALSE(rows.empty()) << figure;
  }

  // The bytes through the busiest link, in gradients, are those of the cost models.
  static void ExpectLinksAreTheory(const Json& rows) {
    ASSERT_GE(rows.size(), 7u);
    for (const Json& row : rows) {
      const int workers = row["workers"];
      const std::string scheme = row["scheme"];
      CommPattern pattern{
          .scheme = Scheme::kServerSync,
          .workers = workers,
          .place = scheme.starts_with("rank0") ? ServerPlace::kRank0 : ServerPlace::kDedicated,
          .pipelined = scheme.ends_with("pipelined"),
          .servers = scheme == "two"                             ? 2
                     : scheme == "each" || scheme == "colocated" ? workers
                                                                 : 1};
      if (scheme == "two" || scheme == "each") pattern.pipelined = true;
      if (scheme == "colocated") pattern.place = ServerPlace::kColocated;
      if (scheme == "ring") pattern = {.scheme = Scheme::AllReduce("ring"), .workers = workers};
      const double ring = TermsOf({.scheme = Scheme::AllReduce("ring"), .workers = workers}, 1).link_bytes;
      EXPECT_DOUBLE_EQ(row["gradients_through_the_link"], TermsOf(pattern, 1).link_bytes) << row;
      EXPECT_DOUBLE_EQ(row["times_the_ring"], TermsOf(pattern, 1).link_bytes / ring) << row;
    }
  }

  // The page has one run, which only its footer names. Every figure can be downloaded as SVG and CSV.
  static void ExpectCaptions(const Json& page) {
    for (const auto& [figure, caption] : page["captions"].items()) {
      EXPECT_THAT(caption.get<std::string>(), testing::Not(testing::ContainsRegex("Run [^ ]+\\."))) << figure;
      EXPECT_EQ(page["buttons"][figure], "SVG CSV") << figure;
    }
  }

  // The stepper ends with the same values as the collective itself, run here between threads.
  static void ExpectEndIsTheCollectives(const Json& score) {
    const int ranks = score["ranks"], chunks = static_cast<int>(score["holdings"][0].size());
    const auto value = [](int rank, int chunk) { return std::ldexp(1.0f + chunk, rank); };  // sums are exact
    GroupOptions options;
    options.algorithm = score["algorithm"];
    RunRanks("shm", ranks, options, [&](ProcessGroup& group, Stream& stream) {
      std::vector<float> data(chunks);
      for (int chunk = 0; chunk < chunks; ++chunk) data[chunk] = value(group.rank(), chunk);
      const Span span{data.data(), data.size()};
      PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
      PSRING_RETURN_IF_ERROR(stream.Synchronize());
      for (int chunk = 0; chunk < chunks; ++chunk) {
        float shown = 0;
        const Json& times = score["holdings"][group.rank()][chunk];
        for (int of = 0; of < ranks; ++of) shown += times[of].get<float>() * value(of, chunk);
        EXPECT_EQ(data[chunk], shown) << score["algorithm"] << " rank " << group.rank() << " chunk " << chunk;
      }
      return absl::OkStatus();
    });
  }

  // Played rounds end with the sums everywhere, after the theory's time.
  static void ExpectScoresAreTheory(const Json& seen) {
    const std::map<std::string, Scheme> schemes = {
        {"ring", Scheme::AllReduce("ring")},
        {"star", Scheme::AllReduce("star")},
        {"direct", Scheme::AllReduce("direct")},
        {"halving-doubling", Scheme::AllReduce("halving-doubling")}};
    const Json& wish = seen["wish"];
    const Wires wires{
        .latency_s = wish["latency"], .bytes_per_s = wish["bandwidth"], .add_s_per_byte = wish["adding"]};
    int compared = 0;
    for (const Json& score : seen["scores"]) {
      EXPECT_EQ(score["complete"], true) << score;
      ExpectEndIsTheCollectives(score);
      const int ranks = score["ranks"];
      const auto scheme = schemes.find(score["algorithm"]);
      if (scheme == schemes.end() || (ranks & (ranks - 1)) != 0) continue;
      const double theory = ExchangeSeconds({.scheme = scheme->second, .workers = ranks},
                                            wish["gradient"].get<double>(), wires);
      EXPECT_NEAR(score["seconds"].get<double>(), theory, 1e-9 * theory) << score;
      ++compared;
    }
    EXPECT_GE(compared, 12);
  }

  // From the folder's trace, in seconds: when each round of rank 0's median step ended on the last rank,
  // counted in each bucket from the last rank's start, summed over buckets.
  std::vector<double> TracedRounds(const std::filesystem::path& run, const std::string& name) const {
    const Json events = Json::parse(Slurp(run / "trace.json"))["traceEvents"];
    double from = 0, to = 0;
    for (const Json& event : events) {
      if (event["pid"] != 1000000 || event["name"] != name) continue;
      from = event["ts"];
      to = from + event["dur"].get<double>();
    }
    std::map<int, std::pair<double, double>> steps;             // rank 0's, by number
    std::map<std::pair<int, int>, double> begins;               // by step and bucket: the last rank's
    std::map<std::pair<int, int>, std::map<int, double>> ends;  // likewise, by round
    for (const Json& event : events) {
      if (event["ph"] != "X" || !event["args"].contains("step") || event["pid"] >= 1000000) continue;
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      if (begin < from || end > to) continue;
      const int step = event["args"]["step"], bucket = event["args"].value("bucket", -1);
      if (event["name"] == "round") {
        double& last = ends[{step, bucket}][event["args"]["round"]];
        last = std::max(last, end);
        continue;
      }
      if (event["pid"] == 0) {
        const auto [at, fresh] = steps.try_emplace(step, std::pair(begin, end));
        at->second = {std::min(at->second.first, begin), std::max(at->second.second, end)};
      }
      if (event["name"] == "communication") begins[{step, bucket}] = std::max(begins[{step, bucket}], begin);
    }
    std::vector<std::pair<double, int>> lengths;
    for (const auto& [step, span] : steps) lengths.emplace_back(span.second - span.first, step);
    std::sort(lengths.begin(), lengths.end());
    const int median = lengths[(lengths.size() - 1) / 2].second;
    std::vector<double> sums;
    for (const auto& [what, rounds] : ends) {
      if (what.first != median) continue;
      sums.resize(rounds.size());
      for (const auto& [round, end] : rounds) sums[round] += 1e-6 * std::max(0.0, end - begins[what]);
    }
    return sums;
  }
};

}  // namespace psring
