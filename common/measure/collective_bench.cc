#include "common/measure/collective_bench.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/io/json_text.h"
#include "common/measure/collective_table.h"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int64_t kMaxCallsPerTurn = 10'000;

// `ns`: of the ranks.
double Combined(const std::vector<double>& ns, AcrossRanks across) {
  double sum = 0;
  for (const double time : ns) sum += time;
  switch (across) {
    case AcrossRanks::kRankZero:
      return ns.front();
    case AcrossRanks::kMean:
      return sum / static_cast<double>(ns.size());
    case AcrossRanks::kMin:
      return *std::min_element(ns.begin(), ns.end());
    case AcrossRanks::kMax:
      return *std::max_element(ns.begin(), ns.end());
  }
  return 0;
}

PlacementFigures FiguresOf(const Samples& samples, const std::string& collective, int ranks, uint64_t bytes) {
  PlacementFigures figures{
      .measured = !samples.times_us.empty(), .time_us = Median(samples.times_us), .wrong = samples.wrong};
  SetBandwidths(collective, ranks, bytes, figures);
  return figures;
}

class TableOutput final : public BenchOutput {
 public:
  TableOutput(const std::string& program, int turns, FILE* out)
      : program_(program), turns_(turns), out_(out) {}

  void Start(const std::vector<RankInfo>& ranks,
             const std::vector<MeasuredCombination>& combinations) override {
    ranks_ = static_cast<int>(ranks.size());
    Print(absl::StrFormat("# %s, %d ranks; time: the median of %d turns, GB = 10^9 bytes\n", program_, ranks_,
                          turns_));
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      Print(absl::StrFormat("#  Rank %2d Pid %6d on %10s\n", rank, ranks[rank].pid, ranks[rank].host));
    }
    for (const MeasuredCombination& combination : combinations) {
      tables_.push_back(
          {.of = combination,
           .text = absl::StrCat("#\n# ", combination.title, "\n", CollectiveTableHeader(false))});
    }
    if (tables_.size() == 1) Print(tables_[0].text);
  }

  void Row(const BenchRow& row) override {
    Table& table = tables_[row.combination];
    const MeasuredCombination& of = table.of;
    const CollectiveRow line{.bytes = row.bytes,
                             .count = row.count,
                             .type = NcclTypeName(row.type),
                             .op = of.reduces ? NcclOpName(row.op) : "none",
                             .root = of.root,
                             .out_of_place = FiguresOf(row.out_of_place, of.collective, ranks_, row.bytes),
                             .in_place = FiguresOf(row.in_place, of.collective, ranks_, row.bytes)};
    for (const PlacementFigures* figures : {&line.out_of_place, &line.in_place}) {
      table.busbw += figures->busbw;
      table.values += figures->measured;
    }
    const std::string text = CollectiveTableLine(line, false);
    if (tables_.size() == 1) {
      Print(text);
    } else {
      table.text += text;
    }
  }

  void Limit(const LimitRow& row) override {
    const double time_us = Median(row.samples.times_us);
    if (time_us <= 0) return;
    const bool copy = row.kind == "copy";  // by each rank, whatever the collective is
    const double factor = copy ? 1 : BusFactor(row.collective, ranks_);
    absl::StrAppendFormat(&limits_, "# limit %-6s %-14s %12d bytes %10.2f us %8.2f GB/s %s\n", row.kind,
                          copy ? "" : row.collective, row.bytes, time_us,
                          factor * static_cast<double>(row.bytes) / time_us / 1e3,
                          copy ? "by each rank" : "busbw");
  }

  void Progress(size_t, size_t) override {}

  void Finish() override {
    for (const Table& table : tables_) {
      if (tables_.size() > 1) Print(table.text);
      Print(CollectiveTableFooter(0, table.values > 0 ? table.busbw / table.values : 0));
    }
    Print(limits_);
  }

 private:
  struct Table {
    MeasuredCombination of;
    std::string text;
    double busbw = 0;
    int values = 0;
  };

  void Print(const std::string& text) {
    std::fputs(Printable(text).c_str(), out_);  // other ranks' host names
    std::fflush(out_);
  }

  const std::string program_;
  const int turns_;
  FILE* const out_;
  int ranks_ = 1;
  std::vector<Table> tables_;  // by combination
  std::string limits_;
};

class JsonOutput final : public BenchOutput {
 public:
  explicit JsonOutput(FILE* out) : out_(out) {}

  void Start(const std::vector<RankInfo>& ranks,
             const std::vector<MeasuredCombination>& combinations) override {
    OrderedJson line = {
        {"event", "start"}, {"ranks", OrderedJson::array()}, {"groups", OrderedJson::array()}};
    for (const RankInfo& rank : ranks) {
      line["ranks"].push_back({{"host", rank.host}, {"pid", rank.pid}, {"device", rank.device}});
    }
    for (const MeasuredCombination& made : combinations) {
      line["groups"].push_back(
          {{"backend", made.backend}, {"algorithm", made.algorithm}, {"transport", made.transport}});
    }
    Print(line);
  }

  void Row(const BenchRow& row) override {
    OrderedJson line = {{"event", "row"},
                        {"combination", row.combination},
                        {"type", row.type},
                        {"op", row.op},
                        {"bytes", row.bytes},
                        {"count", row.count},
                        {"out_of_place", ToJson(row.out_of_place)}};
    if (!row.in_place.times_us.empty()) line["in_place"] = ToJson(row.in_place);
    Print(line);
  }

  void Limit(const LimitRow& row) override {
    OrderedJson line = {
        {"event", "limit"}, {"kind", row.kind}, {"collective", row.collective}, {"bytes", row.bytes}};
    line.update(ToJson(row.samples));
    Print(line);
  }

  void Progress(size_t done, size_t of) override {
    Print({{"event", "progress"}, {"done", done}, {"of", of}});
  }

  void Finish() override { Print({{"event", "done"}}); }

 private:
  static OrderedJson ToJson(const Samples& samples) {
    return {
        {"times_us", samples.times_us}, {"calls_per_turn", samples.calls_per_turn}, {"wrong", samples.wrong}};
  }

  void Print(const OrderedJson& line) {
    std::fprintf(out_, "%s\n", JsonText(line).c_str());
    std::fflush(out_);
  }

  FILE* const out_;
};

}  // namespace

std::vector<int64_t> CallsPerTurn(const std::vector<std::string>& call_ns, size_t cases, int given) {
  std::vector<int64_t> slowest(cases, 1), calls;
  for (const std::string& text : call_ns) {
    const std::vector<std::string> fields = absl::StrSplit(text, ' ', absl::SkipEmpty());
    for (size_t i = 0; i < std::min(fields.size(), cases); ++i) {
      int64_t ns = 0;
      if (absl::SimpleAtoi(fields[i], &ns)) slowest[i] = std::max(slowest[i], ns);
    }
  }
  for (const int64_t ns : slowest) {
    calls.push_back(given > 0 ? given : std::clamp<int64_t>(kTurnNs / ns, 1, kMaxCallsPerTurn));
  }
  return calls;
}

absl::StatusOr<std::vector<Samples>> SamplesOf(const std::vector<std::string>& turn_ns,
                                               const std::vector<int64_t>& calls, size_t turns,
                                               AcrossRanks across) {
  std::vector<std::vector<double>> ns;  // by rank, then by case and turn
  for (size_t rank = 0; rank < turn_ns.size(); ++rank) {
    std::vector<double>& row = ns.emplace_back();
    for (absl::string_view field : absl::StrSplit(turn_ns[rank], ' ', absl::SkipEmpty())) {
      if (!absl::SimpleAtod(field, &row.emplace_back())) row.clear();
    }
    if (row.size() != calls.size() * turns) {
      return Internal("rank ", rank, " sent ", row.size(), " times instead of ", calls.size() * turns);
    }
  }
  std::vector<Samples> samples;
  for (size_t i = 0; i < calls.size(); ++i) {
    Samples& result = samples.emplace_back(Samples{.calls_per_turn = calls[i]});
    for (size_t turn = 0; turn < turns; ++turn) {
      std::vector<double> of_ranks;
      for (const std::vector<double>& row : ns) of_ranks.push_back(row[i * turns + turn]);
      result.times_us.push_back(Combined(of_ranks, across) / 1e3 / static_cast<double>(calls[i]));
    }
  }
  return samples;
}

std::string RankText(const RankInfo& rank) {
  return absl::StrCat(rank.pid, " ", rank.device, " ", rank.host);
}

std::vector<RankInfo> RanksFrom(const std::vector<std::string>& texts) {
  std::vector<RankInfo> ranks;
  for (const std::string& text : texts) {
    const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 2));
    RankInfo& rank = ranks.emplace_back();
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &rank.pid)) continue;
    rank.device = fields[1];
    rank.host = fields[2];
  }
  return ranks;
}

std::unique_ptr<BenchOutput> MakeTableOutput(const std::string& program, int turns, FILE* out) {
  return std::make_unique<TableOutput>(program, turns, out);
}

std::unique_ptr<BenchOutput> MakeJsonOutput(FILE* out) { return std::make_unique<JsonOutput>(out); }

}  // namespace psring
