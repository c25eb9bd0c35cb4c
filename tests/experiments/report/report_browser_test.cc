// Opens reports of real runs in a headless Chromium. Skipped without Chromium (Debian: apt-get install
// chromium).
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "experiments/theory/cost_model.h"
#include "tests/experiments/report/browser.h"
#include "tests/ring_worker/mesh.h"

namespace psring {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReportBrowserTest : public BrowserTest {
 protected:
  // Holds for the page of every run.
  void ExpectSound(const Json& seen, const std::string& run) const {
    EXPECT_THAT(seen["errors"], IsEmpty());
    EXPECT_EQ(seen["violations"], 0);
    EXPECT_EQ(seen["requests"], 0);
    EXPECT_THAT(seen["ids_given_twice"], IsEmpty());
    EXPECT_THAT(seen["untranslated"], IsEmpty());
    EXPECT_NE(seen["english"]["headings"], seen["chinese"]["headings"]);
    for (const auto& [figure, rows] : seen["english"]["figures"].items()) {
      if (figure == "step") continue;  // another launch is chosen by then
      EXPECT_TRUE(rows == seen["chinese"]["figures"][figure]) << figure;
    }
    for (const Json& slider : seen["sliders"]) EXPECT_EQ(slider["moves"], true) << slider;
    EXPECT_EQ(seen["sliders"].size(), 7u);
    EXPECT_THAT(seen["wordless"], IsEmpty());  // keys of texts that are missing
    ExpectJudged(seen["questions"]);
    ExpectCaptions(seen["english"]);
    EXPECT_GT(seen["after_one_round"], 0);
    EXPECT_GE(seen["lit"], 4);  // a term of every formula that is not over yet
    EXPECT_EQ(seen["after_back"], 0);
    ASSERT_FALSE(seen["phases"].empty());
    EXPECT_THAT(seen["phases"][0].get<std::string>(), HasSubstr("reduce-scatter"));
    EXPECT_EQ(seen["played"].size(), 5u);
    ExpectSentencesAreTheSummarys(seen["english"], root_ / run);
    for (const Json& panel : seen["played"]) {
      EXPECT_THAT(panel["done"].get<std::string>(), HasSubstr("\xe2\x9c\x93")) << panel;  // a tick
    }
    ExpectScoresAreTheory(seen);
    ExpectLinksAreTheory(seen["english"]["figures"]["links"]);
  }

  // Answers are judged, and known mistakes are explained.
  static void ExpectJudged(const Json& questions) {
    for (const Json& question : questions) {
      EXPECT_THAT(question["wrong"].get<std::string>(), HasSubstr("Not quite.")) << question;
      EXPECT_THAT(question["said"].get<std::string>(), HasSubstr("Right.")) << question;
      for (const Json& slip : question["slips"]) {
        EXPECT_THAT(slip["said"].get<std::string>(),
                    HasSubstr("Not quite. " + slip["text"].get<std::string>()));
      }
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
  static void ExpectSentencesAreTheSummarys(const Json& page, const fs::path& run) {
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
          EXPECT_THAT(text, HasSubstr(Brief(fact["value"].get<double>() / 1e6) + " MB"));
        }
      }
      const auto at = [&](const char* column) {
        return first->value(column, Json()).is_number() ? (*first)[column].get<double>() : 0.0;
      };
      if (sentence["key"] == "here_overlap") {
        const double exposed = at("exposed_comm_ms"), all = std::max(at("comm_busy_ms"), exposed);
        const double waiting = std::min(std::max(0.0, at("wait_ms")), exposed);
        EXPECT_THAT(text, HasSubstr(absl::StrFormat(
                              "%s ms of communication = %s hidden + %s exposed + %s waiting", Brief(all),
                              Brief(all - exposed), Brief(exposed - waiting), Brief(waiting))));
        EXPECT_EQ(text.find("Nothing was hidden") != std::string::npos, all - exposed < 0.005 * all) << text;
      }
      if (sentence["key"] == "here_accuracy") {
        EXPECT_EQ(text.find("differ"), std::string::npos);
      }
    }
    // The badge.
    bool valid = true, simulated = true;
    for (const Json& row : summary) {
      valid = valid && row["figures"].value("valid", true);
      simulated = simulated && row["figures"]["basis"] == "simulated";
    }
    const std::string state = page["trust_state"];
    EXPECT_EQ(state == "badge invalid", !valid) << state;
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

  // Every figure names its run and can be downloaded as SVG and CSV.
  static void ExpectCaptions(const Json& page) {
    for (const auto& [figure, caption] : page["captions"].items()) {
      EXPECT_THAT(caption.get<std::string>(), testing::ContainsRegex("Run [^ ]+\\.|runs in one chart"))
          << figure;
      EXPECT_EQ(page["buttons"][figure], "SVG CSV") << figure;
    }
  }

  // The stepper ends with the same values as the collective itself, run here between threads.
  static void ExpectEndIsTheCollectives(const Json& score) {
    const int ranks = score["ranks"], chunks = static_cast<int>(score["holdings"][0].size());
    const auto value = [](int rank, int chunk) { return std::ldexp(1.0f + chunk, rank); };  // sums are exact
    GroupOptions options;
    options.algorithm = score["algorithm"];
    RunRanks("in_process", ranks, options, [&](ProcessGroup& group, Stream& stream) {
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
  std::vector<double> TracedRounds(const fs::path& run, const std::string& name) const {
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

// As the charts have it: communication minus waiting for peers.
double Moved(const Json& row) {
  return row["comm_busy_ms"].get<double>() - (row["wait_ms"].is_null() ? 0 : row["wait_ms"].get<double>());
}

TEST_F(ReportBrowserTest, ShowsAComparison) {
  ASSERT_EQ(
      Psring("compare --strategies ring,ps-sync,ps-async --workers 2 --data synthetic --link none --steps 6 "
             "--warmup_steps 1 "
             "--repeats 2 --samples 2560 --out run"),
      0)
      << Slurp(root_ / "psring.err");
  EXPECT_LT(fs::file_size(root_ / "run/report.html"), 3u << 20);
  const Json seen = Visit(root_ / "run/report.html");
  ExpectSound(seen, "run");
  const Json& page = seen["english"];
  EXPECT_THAT(page["not_drawn"].dump(), ::testing::Not(HasSubstr("could not be drawn")));
  for (const char* figure : {"split", "bytes", "staleness", "step", "curves", "map", "lens-chart"}) {
    EXPECT_TRUE(page["figures"].contains(figure)) << figure;
  }
  EXPECT_EQ(page["lead"], Json::parse(Slurp(root_ / "run/table.json"))["en"]["verdict"]);
  EXPECT_THAT(page["command"].get<std::string>(), HasSubstr("--strategies ring,ps-sync,ps-async"));

  // The page shows the figures of the folder.
  const Json summary = Json::parse(Slurp(root_ / "run/summary.json"));
  ASSERT_EQ(page["table"].size(), summary.size());
  std::map<std::string, Json> figures;
  for (size_t i = 0; i < summary.size(); ++i) {
    const Json& row = summary[i]["figures"];
    figures[absl::StrCat(row["strategy"].get<std::string>(), row["workers"].get<int>())] = row;
    EXPECT_EQ(page["table"][i][0], row["strategy"]);
    EXPECT_THAT(page["table"][i][1].get<std::string>(),
                testing::StartsWith(absl::StrCat(row["workers"].get<int>())));  // may have a mark
    const std::string digits = absl::StrReplaceAll(page["table"][i][2].get<std::string>(), {{",", ""}});
    EXPECT_NEAR(std::stod(digits), row["samples_per_s"].get<double>(), 0.51);
  }
  int compared = 0;
  for (const char* figure : {"split", "bytes"}) {
    for (const Json& shown : page["figures"][figure]) {
      const Json& row =
          figures[absl::StrCat(shown["strategy"].get<std::string>(), shown["workers"].get<int>())];
      for (const auto& [column, value] : shown.items()) {
        if (!row.contains(column)) continue;
        EXPECT_EQ(value, row[column]) << figure << " " << column;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 30);

  // The map, and the guess after its reveal, have the run's own points.
  for (const Json& point : page["figures"]["map"]) {
    if (point["basis"] != "measured") continue;
    EXPECT_NEAR(point["server_over_ring"].get<double>(), Moved(figures["ps-sync2"]) / Moved(figures["ring2"]),
                1e-9);
    ++compared;
  }
  ASSERT_FALSE(seen["guess"].is_null());
  EXPECT_EQ(seen["guess"]["before"], 0);  // hidden until revealed
  for (const char* works : {"keyboard", "pointer"}) EXPECT_EQ(seen["guess"][works], true) << works;
  EXPECT_EQ(seen["guess"]["measured"][0]["ms"], Moved(figures["ring2"]));
  EXPECT_THAT(seen["guess"]["said"].get<std::string>(), HasSubstr("you drew"));
  EXPECT_GE(seen["questions"].size(), 10u);

  // Arrows, and the stepper on this run's clock.
  EXPECT_GE(seen["arrows"]["ring x 2"], 2);
  EXPECT_GE(seen["arrows"]["ps-sync x 2"], 4);
  EXPECT_GE(seen["arrows_drawn"], 2);
  int traced = 0;
  for (const Json& score : seen["scores"]) {
    if (score["traced"].is_null()) continue;
    EXPECT_EQ(score["algorithm"], "ring");
    const std::vector<double> recorded = TracedRounds(root_ / "run", "ring x 2");
    ASSERT_EQ(score["traced"].size(), recorded.size());
    ASSERT_EQ(recorded.size(), 2u);
    for (size_t round = 0; round < recorded.size(); ++round) {
      EXPECT_NEAR(score["traced"][round][0], round == 0 ? 0 : recorded[round - 1], 2e-7);
      EXPECT_NEAR(score["traced"][round][1], recorded[round], 2e-7);
      EXPECT_THAT(seen["traced_clock"].get<std::vector<double>>(),
                  Contains(testing::DoubleNear(recorded[round], 2e-7)));
    }
    ++traced;
  }
  EXPECT_EQ(traced, 1);

  // The lens: the staleness of every update is what the server recorded.
  ASSERT_FALSE(seen["lens"].is_null());
  EXPECT_THAT(seen["lens"]["first"].get<std::string>(), HasSubstr("computed on version 0"));
  std::map<int, int64_t> stale;
  for (const Json& update : seen["lens"]["rows"]) ++stale[update["staleness"]];
  std::map<int, int64_t> recorded;
  const std::string lens_part =
      seen["lens"]["rows"][0]["records"] == "records/accuracy-1/ps-async-2" ? "accuracy" : "cost";
  std::istringstream steps(Slurp(root_ / "run/steps.jsonl"));
  for (std::string line; std::getline(steps, line);) {
    const Json step = Json::parse(line);
    if (step["strategy"] != "ps-async" || step["part"] != lens_part || step["repeat"] != 0) continue;
    for (const Json& bucket : step["buckets"]) {
      if (bucket["bucket"] == 0) ++recorded[bucket["staleness"]];
    }
  }
  EXPECT_EQ(stale, recorded);
  Photograph(root_ / "run/report.html", "compare");
}

TEST_F(ReportBrowserTest, ShowsTheOtherVerbs) {
  ASSERT_EQ(Psring("train --strategy ring --workers 2 --data synthetic --samples 2560 --out train"), 0)
      << Slurp(root_ / "psring.err");
  const Json training = Visit(root_ / "train/report.html");
  ExpectSound(training, "train");
  EXPECT_THAT(training["english"]["lead"].get<std::string>(), HasSubstr("The bytes sent match theory"));
  ASSERT_EQ(Psring("bench -b 4K -e 64K -f 4 --workers 2 --transport tcp -n 3 -w 1 --out bench"), 0)
      << Slurp(root_ / "psring.err");
  const Json bench = Visit(root_ / "bench/report.html");
  ExpectSound(bench, "bench");
  EXPECT_THAT(bench["english"]["lead"].get<std::string>(), HasSubstr("GB/s"));
  EXPECT_TRUE(bench["english"]["figures"].contains("bench-2"));
  ASSERT_EQ(
      Psring(
          "predict --workload resnet50 --strategies ring,ps-sync --workers 4,16 --link 25gbit --out predict"),
      0)
      << Slurp(root_ / "psring.err");
  const Json prediction = Visit(root_ / "predict/report.html");
  ExpectSound(prediction, "predict");
  EXPECT_THAT(Slurp(root_ / "predict/predict.txt"), HasSubstr("every figure is simulated"));
  // Two in one page.
  ASSERT_EQ(Psring("report train bench --out both.html --lang zh"), 0);
  EXPECT_THAT(Visit(root_ / "both.html")["errors"], IsEmpty());
}

// Runs of other kinds: ExpectSound compares every sentence with summary.json.
TEST_F(ReportBrowserTest, SentencesDescribeTheirRun) {
  const auto texts = [](const Json& seen) {
    std::string all = seen["english"]["lead"].get<std::string>() + "\n";
    for (const Json& sentence : seen["english"]["here"]) all += sentence["text"].get<std::string>() + "\n";
    return all;
  };
  const std::string virtual_clock =
      "compare --clock virtual --strategies ring,ps-sync,ps-async --workers 4 --compute_ms 10 --network_ms 3 "
      "--samples 2560 --data synthetic --model mlp-small ";
  ASSERT_EQ(Psring(virtual_clock + "--straggler 1:3 --out slow"), 0) << Slurp(root_ / "psring.err");
  const Json slow = Visit(root_ / "slow/report.html");
  ExpectSound(slow, "slow");
  EXPECT_THAT(texts(slow),
              HasSubstr("do not wait for the slowest: in the synchronous run the slowest computed 30 ms"));
  EXPECT_THAT(texts(slow), HasSubstr("The update rules differ"));
  EXPECT_THAT(slow["english"]["reasons"][0].back().get<std::string>(),
              HasSubstr("15 ms of the exposed time is waiting for peers"));
  ASSERT_EQ(Psring(virtual_clock + "--out even"), 0) << Slurp(root_ / "psring.err");
  const Json even = Visit(root_ / "even/report.html");
  ExpectSound(even, "even");
  EXPECT_THAT(texts(even), testing::Not(HasSubstr("the slowest computed"))) << "there was no straggler";
  ASSERT_EQ(
      Psring("predict --workload resnet50 --strategies ring,ps-sync --servers 8 --workers 8 --link 10gbit "
             "--ps_schedule serial --out shared"),
      0);
  const Json shared = Visit(root_ / "shared/report.html");
  ExpectSound(shared, "shared");
  EXPECT_THAT(texts(shared), HasSubstr("All servers share rank 0's link"));
  EXPECT_THAT(texts(shared), HasSubstr("(8 servers that share rank 0's link, push, then pull)"));
  ASSERT_EQ(
      Psring(
          "compare --strategies ring,ps-sync --workers 1 --link none --data synthetic --steps 3 --repeats 1 "
          "--no_eval --model mlp-small --out once"),
      0)
      << Slurp(root_ / "psring.err");
  const Json once = Visit(root_ / "once/report.html");
  ExpectSound(once, "once");
  ASSERT_EQ(Psring("report slow shared once --out several.html"), 0);
  EXPECT_THAT(Visit(root_ / "several.html")["errors"], IsEmpty());
}

TEST_F(ReportBrowserTest, HostileFoldersCannotRunScripts) {
  fs::create_directories(root_ / "run");
  const std::string hostile =
      Json("</script><script>seen.errors.push('ran')</script><img src=x onerror=\"seen.errors.push('ran')\">")
          .dump();
  std::ofstream(root_ / "run/manifest.json")
      << "{\"verb\":" << hostile << ",\"command_line\":[" << hostile << "],\"machine\":" << hostile << "}";
  std::ofstream(root_ / "run/summary.json")
      << "[{\"figures\":{\"strategy\":" << hostile
      << ",\"workers\":2,\"step_ms\":1,\"compute_ms\":1,\"comm_busy_ms\":1,\"samples_per_s\":1,\"note\":"
      << hostile << "}},{\"figures\":{\"workers\":3,\"strategy\":{\"a\":1},\"step_ms\":\"x\"}},7]";
  std::ofstream(root_ / "run/findings.txt") << Json::parse(hostile).get<std::string>() << "\n";
  std::ofstream(root_ / "run/runs.csv") << "<b>,\"\n";
  std::ofstream(root_ / "run/curves.csv") << "strategy,samples\n";
  ASSERT_EQ(Psring("report run"), 0);
  const Json seen = Visit(root_ / "run/report.html");
  EXPECT_THAT(seen["errors"], IsEmpty());
  EXPECT_EQ(seen["violations"], 0);
  EXPECT_EQ(seen["requests"], 0);
  EXPECT_THAT(seen["english"]["title"].get<std::string>(), HasSubstr("<script>"));  // as text
}

TEST_F(ReportBrowserTest, RejectsOtherFoldersInOneLine) {
  EXPECT_EQ(Psring("report nowhere"), 2);
  EXPECT_EQ(Slurp(root_ / "psring.err"), "psring report: nowhere is not a folder\n");
  fs::create_directories(root_ / "empty");
  EXPECT_EQ(Psring("report empty"), 2);
  EXPECT_THAT(Slurp(root_ / "psring.err"), HasSubstr("psring report: empty is not a run's folder"));
}

}  // namespace
}  // namespace psring
