#include "ring_worker/bench/bench_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/cli/command_line.h"
#include "common/io/json_text.h"
#include "common/measure/collective_table.h"

namespace psring {
namespace {

using Json = nlohmann::ordered_json;

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                       Collective::kAllGather, Collective::kBroadcast};

PlacementFigures FiguresOf(const Samples& samples, Collective collective, int ranks, uint64_t bytes) {
  PlacementFigures figures{.time_us = Median(samples.times_us), .wrong = samples.wrong};
  SetBandwidths(Name(collective), ranks, bytes, figures);
  return figures;
}

class TableOutput final : public BenchOutput {
 public:
  TableOutput(const BenchOptions& options, FILE* out) : options_(options), out_(out) {}

  BenchReport report() override {
    return {.on_start = [this](const std::vector<RankInfo>& ranks,
                               const std::vector<GroupInfo>& groups) { Start(ranks, groups); },
            .on_row = [this](const BenchRow& row) { Row(row); },
            .on_limit = [this](const LimitRow& row) { Limit(row); },
            .on_progress = [](size_t, size_t) {}};
  }

  void Finish() override {
    for (size_t i = 0; i < tables_.size(); ++i) {
      if (tables_.size() > 1) Print(tables_[i].text);
      const Table& table = tables_[i];
      Print(CollectiveTableFooter(0, table.values > 0 ? table.busbw / table.values : 0));
    }
    Print(limits_);
  }

 private:
  struct Table {
    std::string text;
    double busbw = 0;
    int values = 0;
  };

  void Start(const std::vector<RankInfo>& ranks, const std::vector<GroupInfo>& groups) {
    ranks_ = static_cast<int>(ranks.size());
    Print(absl::StrFormat("# ring_worker, %d ranks; time: the median of %d turns, GB = 10^9 bytes\n", ranks_,
                          options_.turns));
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      Print(absl::StrFormat("#  Rank %2d Pid %6d on %10s\n", rank, ranks[rank].pid, ranks[rank].host));
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      Combination made = options_.combinations[i];
      made.algorithm = groups[i].algorithm;
      made.transport = groups[i].transport;
      tables_.emplace_back().text = absl::StrCat("#\n# ", Describe(made), "\n", CollectiveTableHeader(false));
    }
    if (tables_.size() == 1) Print(tables_[0].text);
  }

  void Row(const BenchRow& row) {
    const Collective collective = options_.combinations[row.combination].collective;
    CollectiveRow line{.bytes = row.bytes,
                       .count = row.count,
                       .type = NcclTypeName(Name(row.type)),
                       .op = Reduces(collective) ? NcclOpName(Name(row.op)) : "none",
                       .root = collective == Collective::kBroadcast ? options_.root : -1,
                       .out_of_place = FiguresOf(row.out_of_place, collective, ranks_, row.bytes),
                       .in_place = FiguresOf(row.in_place, collective, ranks_, row.bytes)};
    Table& table = tables_[row.combination];
    table.busbw += line.out_of_place.busbw + line.in_place.busbw;
    table.values += 2;
    const std::string text = CollectiveTableLine(line, false);
    if (tables_.size() == 1) {
      Print(text);
    } else {
      table.text += text;
    }
  }

  void Limit(const LimitRow& row) {
    const double time_us = Median(row.samples.times_us);
    if (time_us <= 0) return;
    const double factor = row.kind == LimitKind::kCopy ? 1 : BusFactor(Name(row.collective), ranks_);
    absl::StrAppendFormat(&limits_, "# limit %-6s %-14s %12d bytes %10.2f us %8.2f GB/s %s\n", Name(row.kind),
                          row.kind == LimitKind::kCopy ? "" : Name(row.collective), row.bytes, time_us,
                          factor * static_cast<double>(row.bytes) / time_us / 1e3,
                          row.kind == LimitKind::kCopy ? "by each rank" : "busbw");
  }

  void Print(const std::string& text) {
    std::fputs(Printable(text).c_str(), out_);  // other ranks' host names
    std::fflush(out_);
  }

  const BenchOptions& options_;
  FILE* const out_;
  int ranks_ = 1;
  std::vector<Table> tables_;  // by combination
  std::string limits_;
};

class JsonOutput final : public BenchOutput {
 public:
  explicit JsonOutput(FILE* out) : out_(out) {}

  BenchReport report() override {
    return {
        .on_start =
            [this](const std::vector<RankInfo>& ranks, const std::vector<GroupInfo>& groups) {
              Json line = {{"event", "start"}, {"ranks", Json::array()}, {"groups", Json::array()}};
              for (const RankInfo& rank : ranks) {
                line["ranks"].push_back({{"host", rank.host}, {"pid", rank.pid}, {"device", rank.device}});
              }
              for (const GroupInfo& group : groups) {
                line["groups"].push_back({{"backend", group.backend},
                                          {"algorithm", group.algorithm},
                                          {"transport", group.transport}});
              }
              Print(line);
            },
        .on_row =
            [this](const BenchRow& row) {
              Print({{"event", "row"},
                     {"combination", row.combination},
                     {"type", Name(row.type)},
                     {"op", Name(row.op)},
                     {"bytes", row.bytes},
                     {"count", row.count},
                     {"out_of_place", ToJson(row.out_of_place)},
                     {"in_place", ToJson(row.in_place)}});
            },
        .on_limit =
            [this](const LimitRow& row) {
              Json line = {{"event", "limit"},
                           {"kind", Name(row.kind)},
                           {"collective", Name(row.collective)},
                           {"bytes", row.bytes}};
              line.update(ToJson(row.samples));
              Print(line);
            },
        .on_progress =
            [this](size_t done, size_t of) {
              Print({{"event", "progress"}, {"done", done}, {"of", of}});
            }};
  }

  void Finish() override { Print({{"event", "done"}}); }

 private:
  static Json ToJson(const Samples& samples) {
    return {
        {"times_us", samples.times_us}, {"calls_per_turn", samples.calls_per_turn}, {"wrong", samples.wrong}};
  }

  void Print(const Json& line) {
    std::fprintf(out_, "%s\n", JsonText(line).c_str());
    std::fflush(out_);
  }

  FILE* const out_;
};

}  // namespace

std::unique_ptr<BenchOutput> MakeTableOutput(const BenchOptions& options, FILE* out) {
  return std::make_unique<TableOutput>(options, out);
}

std::unique_ptr<BenchOutput> MakeJsonOutput(FILE* out) { return std::make_unique<JsonOutput>(out); }

std::string DescribeJson() {
  Json json = {{"collectives", Json::array()}, {"backends", Json::array()}};
  for (const Collective collective : kCollectives) json["collectives"].push_back(Name(collective));
  for (const BackendRow& row : Backends()) {
    Json algorithms = Json::object();
    for (const Collective collective : kCollectives) {
      algorithms[Name(collective)] = row.algorithms(collective);
    }
    json["backends"].push_back({{"name", row.name},
                                {"summary", row.summary},
                                {"available", row.available},
                                {"missing", row.missing},
                                {"algorithms", algorithms},
                                {"transports", row.transports}});
  }
  return JsonText(json, 2);
}

}  // namespace psring
