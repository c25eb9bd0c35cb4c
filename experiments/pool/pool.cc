#include "experiments/pool/pool.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/io/untrusted_json.h"
#include "common/text/peer_text.h"
#include "common/text/translate.h"
#include "experiments/stats/statistics.h"

namespace psring {
namespace {

using Json = UntrustedJson;

constexpr char kFlagsOfTrainer[] = "trainer_flags";
constexpr size_t kMaxPoolRows = 1000;
constexpr size_t kMaxName = 60;  // bytes of a text in a row or of a machine

// The columns of a row that belong to the plan. Others are results, or differ between equal plans.
constexpr std::array kPlanColumns = {"schema_version", "model",     "parameters",  "batch_per_worker",
                                     "global_batch",   "scaling",   "shaping",     "link_mbps",
                                     "time_scale",     "placement", "ps_schedule", "workers_per_push",
                                     "backend",        "algorithm", "transport",   "payload",
                                     "device",         "bucket_mb", "optimizer",   "lr",
                                     "basis",          "wire"};

std::string Shortened(const std::string& text) { return PeerText(text, kMaxName); }

std::optional<double> PositiveAt(const Json& figures, const char* column) {
  const double value = NumberAt(figures, column, 0);
  return value > 0 && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

// A value of the plan as text, the same for equal values.
std::string ValueText(const Json& value) {
  if (value.is_number()) return absl::StrFormat("%g", value.get<double>());
  return value.is_null() ? "not set"
                         : Shortened(value.is_string() ? value.get<std::string>() : DumpUntrusted(value));
}

struct RowKey {
  std::string strategy;
  int64_t workers = 0, servers = 0;
  int64_t number = 0;  // of rows that are otherwise alike

  bool operator==(const RowKey&) const = default;
};

// What is compared, and what is pooled, of one run.
struct ParsedRun {
  std::string name;
  Json manifest, recommended;
  std::vector<std::pair<RowKey, Json>> rows;              // with the figures
  std::vector<std::pair<std::string, std::string>> plan;  // of all rows: name and value
};

// The trainer's flags of the cost part. Paths differ between machines, so only file names count; and so may
// the number of steps, which psring fits to each machine.
std::string FlagsText(const Json& manifest) {
  std::vector<std::string> all;
  for (const Json& configuration : ListAt(FieldAt(manifest, "cost"), "configurations")) {
    for (const Json& flag : ListAt(configuration, "trainer_flags")) {
      if (!flag.is_string()) continue;
      const std::string text = flag.get<std::string>();
      if (text.starts_with("--steps=") || text.starts_with("--samples=")) continue;
      const size_t value = text.find('='), slash = text.rfind('/');
      const bool is_path = value != std::string::npos && slash != std::string::npos && slash > value;
      std::string short_flag = is_path ? text.substr(0, value + 1) + text.substr(slash + 1) : text;
      if (std::ranges::find(all, short_flag) == all.end()) all.push_back(std::move(short_flag));
    }
  }
  return absl::StrJoin(all, " ");
}

// Empty rows: it is not a comparison or training.
ParsedRun Parse(const PoolInput& input) {
  const Json run = ParseUntrusted(input.json);
  ParsedRun parsed{.name = input.name,
                   .manifest = FieldAt(run, "manifest"),
                   .recommended = FieldAt(FieldAt(run, "table"), "recommended")};
  const Json& summary = ListAt(run, "summary");
  if (summary.size() > kMaxPoolRows) return parsed;
  for (const Json& row : summary) {
    const Json& figures = FieldAt(row, "figures");
    const std::string program = TextAt(figures, "program");  // of a pipeline
    const std::string name =
        program.empty() ? TextAt(figures, "strategy") : absl::StrCat(TextAt(figures, "layout"), " ", program);
    RowKey key{.strategy = Shortened(name),
               .workers = CountAt(figures, "workers", 0),
               .servers = CountAt(figures, "servers", 0)};
    if (key.strategy.empty() || key.workers < 1) continue;
    key.number = std::ranges::count_if(parsed.rows, [&](const auto& other) {
      return other.first.strategy == key.strategy && other.first.workers == key.workers &&
             other.first.servers == key.servers;
    });
    parsed.rows.emplace_back(std::move(key), figures);
  }
  const auto add = [&](const char* of, const char* name) {
    parsed.plan.emplace_back(absl::StrCat(of, ".", name),
                             ValueText(FieldAt(FieldAt(parsed.manifest, of), name)));
  };
  add("link", "latency_ms");
  add("disturbances", "straggler");
  add("disturbances", "jitter_ms");
  add("cost", "warmup_steps");
  parsed.plan.emplace_back(kFlagsOfTrainer, FlagsText(parsed.manifest));
  return parsed;
}

// `why` makes the sentence.
LeftOut Because(const std::string& name, const auto& why) {
  return {.name = name,
          .english = InLanguage(Language::kEnglish, why),
          .chinese = InLanguage(Language::kChinese, why)};
}

const Json* FindFigures(const ParsedRun& run, const RowKey& key) {
  const auto found = std::ranges::find(run.rows, key, [](const auto& row) { return row.first; });
  return found == run.rows.end() ? nullptr : &found->second;
}

// Why `run` cannot be pooled with `first`.
std::optional<LeftOut> Difference(const ParsedRun& first, const ParsedRun& run) {
  for (const auto& row : run.rows) {
    const auto& key = row.first;
    const auto& figures = row.second;
    const Json* const other = FindFigures(first, key);
    if (other == nullptr)
      return Because(run.name, [&] {
        return Tr("it has a row $1 x $2, unlike $0", first.name, key.strategy, key.workers);
      });
    for (const char* column : kPlanColumns) {
      const std::string here = ValueText(FieldAt(figures, column)),
                        there = ValueText(FieldAt(*other, column));
      if (here == there) continue;
      return Because(run.name, [&] {
        return Tr("$1 of $4 x $5 is $2, but $3 in $0", first.name, column, here, there, key.strategy,
                  key.workers);
      });
    }
  }
  for (const auto& row : first.rows) {
    if (FindFigures(run, row.first) == nullptr) {
      return Because(run.name, [&] {
        return Tr("it has no row $1 x $2, unlike $0", first.name, row.first.strategy, row.first.workers);
      });
    }
  }
  for (size_t i = 0; i < first.plan.size(); ++i) {
    if (run.plan[i] == first.plan[i]) continue;
    return Because(run.name, [&] {
      return Tr("$1 is $2, but $3 in $0", first.name, run.plan[i].first, run.plan[i].second,
                first.plan[i].second);
    });
  }
  return std::nullopt;
}

// Simulated rows are equal on every machine, so the time of the start is compared, too.
bool IsSameRun(const ParsedRun& a, const ParsedRun& b) {
  const auto start = [](const ParsedRun& run) {
    return std::pair(TextAt(run.manifest, "started_utc"), TextAt(FieldAt(run.manifest, "machine"), "host"));
  };
  return a.rows == b.rows && start(a) == start(b);
}

PoolMachine MachineOf(const ParsedRun& run) {
  const Json& machine = FieldAt(run.manifest, "machine");
  PoolMachine result{.name = Shortened(run.name),
                     .run_id = Shortened(TextAt(run.manifest, "run_id")),
                     .processor = Shortened(TextAt(machine, "cpu")),
                     .cores = CountAt(machine, "cores", 0)};
  if (!run.recommended.is_array()) return result;
  result.recommended.emplace();
  for (const Json& strategy : run.recommended) {
    if (strategy.is_string()) result.recommended->push_back(Shortened(strategy.get<std::string>()));
  }
  return result;
}

// The row to which samples/s of `key` are compared; null: there is none, or it is `key`.
const RowKey* BaseOf(const ParsedRun& first, const RowKey& key) {
  const RowKey *server = nullptr, *single = nullptr;
  for (const auto& row : first.rows) {
    const bool is_server = row.first.strategy == "ps-sync" && row.first.workers == key.workers;
    if (is_server && server == nullptr) server = &row.first;
    if (row.first.strategy == "single" && single == nullptr) single = &row.first;
  }
  const RowKey* const base = server != nullptr ? server : single;
  return base == nullptr || *base == key ? nullptr : base;
}

MachineFigures FiguresFor(const ParsedRun& run, const RowKey& key, const RowKey* base) {
  const Json& figures = *FindFigures(run, key);
  const auto is_valid = [](const Json& row) { return FieldAt(row, "valid") != false; };
  MachineFigures result{.samples_per_s = PositiveAt(figures, "samples_per_s"),
                        .low = PositiveAt(figures, "samples_per_s_lo95"),
                        .high = PositiveAt(figures, "samples_per_s_hi95"),
                        .efficiency = PositiveAt(figures, "efficiency"),
                        .valid = is_valid(figures)};
  if (base == nullptr) return result;
  const Json& reference = *FindFigures(run, *base);
  const std::optional<double> other = PositiveAt(reference, "samples_per_s");
  if (result.samples_per_s && other && is_valid(reference)) result.ratio = *result.samples_per_s / *other;
  return result;
}

// The different values of `column` in the rows of a run.
std::string ValuesOf(const ParsedRun& run, const char* column) {
  std::vector<std::string> values;
  for (const auto& row : run.rows) {
    const std::string value = ValueText(FieldAt(row.second, column));
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return absl::StrJoin(values, ", ");
}

// All runs have rows.
SideBySide Beside(const std::vector<ParsedRun>& runs) {
  SideBySide beside;
  std::vector<RowKey> keys;
  for (const ParsedRun& run : runs) {
    beside.runs.push_back(Shortened(run.name));
    for (const auto& row : run.rows) {
      if (std::ranges::find(keys, row.first) == keys.end()) keys.push_back(row.first);
    }
  }
  const auto add = [&](const std::string& name, const auto& value_of) {
    SideBySide::Setting setting{.name = name};
    for (const ParsedRun& run : runs) setting.values.push_back(value_of(run));
    const bool differs = std::ranges::any_of(
        setting.values, [&](const std::string& value) { return value != setting.values[0]; });
    if (differs) beside.settings.push_back(std::move(setting));
  };
  add("cpu",
      [](const ParsedRun& run) { return ValueText(FieldAt(FieldAt(run.manifest, "machine"), "cpu")); });
  for (const char* column : kPlanColumns) {
    add(column, [&](const ParsedRun& run) { return ValuesOf(run, column); });
  }
  for (size_t i = 0; i < runs.front().plan.size(); ++i) {
    // The flags repeat the other settings.
    if (runs.front().plan[i].first == kFlagsOfTrainer && !beside.settings.empty()) continue;
    add(runs.front().plan[i].first, [&](const ParsedRun& run) { return Shortened(run.plan[i].second); });
  }
  for (const RowKey& key : keys) {
    PoolRow row{.strategy = key.strategy, .workers = key.workers, .servers = key.servers};
    for (const ParsedRun& run : runs) {
      row.machines.push_back(FindFigures(run, key) == nullptr ? MachineFigures()
                                                              : FiguresFor(run, key, nullptr));
      const std::optional<double> first = row.machines.front().samples_per_s,
                                  own = row.machines.back().samples_per_s;
      if (row.machines.size() > 1 && first && own) row.machines.back().ratio = *own / *first;
    }
    beside.rows.push_back(std::move(row));
  }
  return beside;
}

std::optional<MachineSpread> SpreadOf(const std::vector<MachineFigures>& machines,
                                      std::optional<double> MachineFigures::*figure) {
  std::vector<double> values;
  for (const MachineFigures& machine : machines) {
    if (machine.valid && machine.*figure) values.push_back(*(machine.*figure));
  }
  if (values.empty()) return std::nullopt;
  return MachineSpread{.least = std::ranges::min(values),
                       .median = Quantile(values, 0.5),
                       .most = std::ranges::max(values),
                       .machines = static_cast<int>(values.size())};
}

}  // namespace

Pool PoolRuns(const std::vector<PoolInput>& inputs) {
  Pool pool;
  std::vector<ParsedRun> runs, others;  // of the first plan, of another one
  for (const PoolInput& input : inputs) {
    ParsedRun run = Parse(input);
    if (run.rows.empty()) {
      pool.left_out.push_back(
          Because(run.name, [] { return Tr("it has no rows of a comparison or training"); }));
      continue;
    }
    const auto same =
        std::ranges::find_if(runs, [&](const ParsedRun& other) { return IsSameRun(other, run); });
    if (same != runs.end()) {
      pool.left_out.push_back(Because(run.name, [&] { return Tr("it is the same run as $0", same->name); }));
      continue;
    }
    if (!runs.empty()) {
      if (std::optional<LeftOut> difference = Difference(runs.front(), run)) {
        pool.left_out.push_back(*std::move(difference));
        others.push_back(std::move(run));
        continue;
      }
    }
    runs.push_back(std::move(run));
  }
  for (const ParsedRun& run : runs) pool.machines.push_back(MachineOf(run));
  if (runs.empty()) return pool;
  if (runs.size() == 1 && !others.empty()) {
    others.insert(others.begin(), runs.front());
    pool.beside = Beside(others);
  }
  for (const auto& row : runs.front().rows) {
    const RowKey& key = row.first;
    const RowKey* const base = BaseOf(runs.front(), key);
    PoolRow pooled{.strategy = key.strategy,
                   .workers = key.workers,
                   .servers = key.servers,
                   .base = base == nullptr ? "" : base->strategy};
    for (const ParsedRun& run : runs) {
      pooled.machines.push_back(FiguresFor(run, key, base));
      if (const Json* const figures = FindFigures(run, key)) {
        pooled.most_samples_share =
            std::max(pooled.most_samples_share, NumberAt(*figures, "most_samples_share", 0));
      }
    }
    pooled.samples_per_s = SpreadOf(pooled.machines, &MachineFigures::samples_per_s);
    pooled.efficiency = SpreadOf(pooled.machines, &MachineFigures::efficiency);
    pooled.ratio = SpreadOf(pooled.machines, &MachineFigures::ratio);
    pool.rows.push_back(std::move(pooled));
  }
  return pool;
}

}  // namespace psring
