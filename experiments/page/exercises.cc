#include "experiments/page/exercises.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "experiments/page/playback.h"
#include "trainer/strategies/table/cost_model.h"

namespace psring {
namespace {

constexpr double kNoFigure = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kMaxRowWorkers = 1 << 20;
constexpr double kHardly = 0.05;  // a smaller share is "almost nothing" (story.js)
constexpr double kNear = 0.35;    // relative: "close"

// A row of the summary that has figures.
struct FigureRow {
  size_t place = 0;  // among them
  UntrustedJson figures;
  std::string name;  // of the strategy, or of a layout whose replicas have several workers
  int64_t workers = 0;
  bool has_tables = false;

  // NaN, which is not above 0, if there is none.
  double at(const char* figure) const { return NumberAt(figures, figure, kNoFigure); }
  bool is(const char* column, const char* value) const { return TextAt(figures, column) == value; }
  int64_t servers() const { return CountAt(figures, "servers", 0); }
  double gradient_bytes() const { return 4 * at("parameters"); }
  // Of all workers: hybrid's rows are on servers, and such a layout's ring has the ranks with the same part.
  bool is_ring() const { return is("algorithm", "ring") && servers() == 0 && is("strategy", name.c_str()); }
  bool communicates() const { return !std::isnan(at("comm_busy_ms")) && workers > 1; }
  // Less waiting for peers.
  double moving_ms() const { return at("comm_busy_ms") - NumberAt(figures, "wait_ms", 0); }
};
using FigureRows = std::vector<FigureRow>;

FigureRows FigureRowsOf(const UntrustedJson& run) {
  FigureRows rows;
  for (const UntrustedJson& row : ListAt(run, "summary")) {
    const UntrustedJson& figures = FieldAt(row, "figures");
    const int64_t workers = CountAt(figures, "workers", -1);
    if (std::isnan(NumberAt(figures, "workers", kNoFigure))) continue;
    const std::string program = TextAt(figures, "program"), layout = TextAt(figures, "layout");
    rows.push_back({.place = rows.size(),
                    .figures = figures,
                    .name = !program.empty() ? absl::StrCat(layout, " ", program)
                            : absl::StrContains(layout, "tp") || absl::StrContains(layout, "cp")
                                ? layout
                                : TextAt(figures, "strategy"),
                    .workers = workers <= kMaxRowWorkers ? workers : 0,
                    .has_tables = FieldAt(row, "has_tables") == UntrustedJson(true)});
  }
  return rows;
}

using Keep = std::function<bool(const FigureRow&)>;

// The row with the most workers, at least two, of those to keep; null: there is none.
const FigureRow* WithMostWorkers(const FigureRows& rows, const Keep& keep) {
  const FigureRow* most = nullptr;
  for (const FigureRow& row : rows) {
    if (row.workers < 2 || !keep(row)) continue;
    if (most == nullptr || row.workers > most->workers) most = &row;
  }
  return most;
}

bool SameAnswer(double a, double b) { return std::abs(a / b - 1) < 0.03; }

class ExerciseList {
 public:
  explicit ExerciseList(const FigureRows& rows) {
    const auto ran = [](const FigureRow& row) { return row.workers > 1; };
    all_exact_ = std::ranges::any_of(rows, ran) && std::ranges::all_of(rows, [&](const FigureRow& row) {
                   return !ran(row) || row.is("basis", "simulated");
                 });
  }

  // Adds nothing if the answer is neither a number nor a choice. Mistakes that are nearly right, or like
  // another one, are left out.
  void Add(Exercise exercise) {
    if (exercise.choices.empty() && !std::isfinite(exercise.value)) return;
    exercise.exact = exercise.exact || all_exact_;
    std::vector<std::pair<std::string, double>> kept;
    for (const auto& slip : exercise.slips) {
      const auto like_it = [&](const auto& other) { return SameAnswer(slip.second, other.second); };
      const bool is_wrong = std::abs(slip.second / exercise.value - 1) > exercise.tolerance;
      if (is_wrong && std::ranges::none_of(kept, like_it)) kept.push_back(slip);
    }
    exercise.slips = std::move(kept);
    list_.push_back(std::move(exercise));
  }

  std::vector<Exercise> Take() { return std::move(list_); }

 private:
  bool all_exact_ = false;  // of a simulated run
  std::vector<Exercise> list_;
};

CommPattern ServersOn(ServerPlace place, int64_t workers, int64_t servers, bool pipelined) {
  return {
      .scheme = Scheme::kServerSync,
      .workers = static_cast<int>(workers),
      .place = place,
      .pipelined = pipelined,
      .servers = static_cast<int>(place == ServerPlace::kColocated ? std::min(servers, workers) : servers)};
}

CommPattern RingOf(int64_t workers) {
  return {.scheme = Scheme::AllReduce("ring"), .workers = static_cast<int>(workers)};
}

// The gradients that the busiest link of the row's servers carries one after another; NaN without a model.
double GradientsThroughServer(const FigureRow& row) {
  constexpr std::array kPlaces = {std::pair("", ServerPlace::kRank0), std::pair("rank0", ServerPlace::kRank0),
                                  std::pair("dedicated", ServerPlace::kDedicated),
                                  std::pair("colocated", ServerPlace::kColocated)};
  const auto* place =
      std::ranges::find_if(kPlaces, [&](const auto& one) { return row.is("placement", one.first); });
  if (place == kPlaces.end() || row.servers() < 1 || row.servers() > kMaxRowWorkers) return kNoFigure;
  return TermsOf(ServersOn(place->second, row.workers, row.servers(), !row.is("ps_schedule", "serial")), 1)
      .link_bytes;
}

// Bytes per second of a link in one direction: as measured before the run, else as given; NaN without links.
double LinkRate(const UntrustedJson& run, const FigureRow& row) {
  const double measured =
      NumberAt(FieldAt(FieldAt(FieldAt(run, "manifest"), "link"), "wires"), "mb_per_s", kNoFigure);
  if (measured > 0) return measured * 1e6;
  return row.at("link_mbps") > 0 ? row.at("link_mbps") * 1e6 / 8 : kNoFigure;
}

void AddServers(const UntrustedJson& run, const FigureRows& rows, ExerciseList& list) {
  const FigureRow* server = WithMostWorkers(rows, [](const FigureRow& row) {
    // Of several simulated servers on one host, the bytes are those of all together.
    const bool summed = row.is("basis", "simulated") && row.servers() > 1 && row.is("placement", "rank0");
    return row.name == "ps-sync" && row.at("server_payload_bytes") > 0 && !summed &&
           row.at("parameters") > 0 && !row.has_tables;
  });
  if (server == nullptr) return;
  const double bytes = server->gradient_bytes();
  const double received = static_cast<double>(server->workers) * bytes /
                          static_cast<double>(std::max<int64_t>(1, server->servers()));
  list.Add({.id = "server_bytes",
            .number = "1.1",
            .value = server->at("server_payload_bytes") / 1e6,
            .exact = true,
            .rows = {server->place},
            .slips = {{"one_direction", received / 1e6}, {"one_worker", 2 * bytes / 1e6}}});
  const double through = GradientsThroughServer(*server), rate = LinkRate(run, *server);
  Exercise time{.id = "server_time",
                .number = "1.2",
                .value = 1e3 * through * bytes / rate,
                .rows = {server->place},
                .terms = {through, rate},
                .slips = {{"one_gradient", 1e3 * bytes / rate}}};
  if (server->is("ps_schedule", "serial")) time.slips.emplace_back("one_way", time.value / 2);
  list.Add(std::move(time));
}

void AddRing(const FigureRows& rows, ExerciseList& list) {
  const FigureRow* ring = WithMostWorkers(rows, [](const FigureRow& row) {
    return row.is_ring() && row.at("payload_tx_bytes_per_worker") > 0 && row.at("parameters") > 0 &&
           !row.has_tables;
  });
  const int64_t workers = ring == nullptr ? 4 : ring->workers;
  const auto n = static_cast<double>(workers);
  list.Add({.id = "ring_rounds",
            .number = "2.1",
            .value = TermsOf(RingOf(workers), 1).messages,
            .tolerance = 0,
            .exact = true,
            .terms = {n},
            .slips = {{"one_phase", n - 1}, {"n_rounds", n}}});
  if (ring != nullptr) {
    const double gradient = ring->gradient_bytes() / 1e6;
    list.Add(
        {.id = "ring_bytes",
         .number = "2.2",
         .value = ring->at("payload_tx_bytes_per_worker") / 1e6,
         .exact = true,
         .rows = {ring->place},
         .slips = {{"one_phase", (n - 1) / n * gradient}, {"twice", 2 * gradient}, {"whole", gradient}}});
  }
  constexpr int kMany = 64;
  const double limit = TermsOf(RingOf(kMany), 1).link_bytes;
  const std::vector<int> multiples = {1, 2, kMany};
  const int nearest =
      *std::ranges::min_element(multiples, {}, [&](int multiple) { return std::abs(multiple - limit); });
  Exercise most{.id = "ring_limit",
                .number = "2.3",
                .choice = absl::StrCat(nearest),
                .exact = true,
                .terms = {kMany, limit}};
  for (const int multiple : multiples) most.choices.push_back(absl::StrCat(multiple));
  list.Add(std::move(most));
}

// The ring's all-reduce of the largest message in bench.csv.
void AddBenchmark(const std::string& csv, ExerciseList& list) {
  CsvReader reader(csv);
  if (!reader.ReadHeader().ok()) return;
  double largest = 0;
  Exercise found{.id = "busbw", .number = "2.4", .value = kNoFigure, .exact = true};
  for (absl::StatusOr<bool> more = reader.NextRow(); more.ok() && *more; more = reader.NextRow()) {
    double size = 0, workers = 0, algorithm = 0, bus = 0;
    const auto read = [&](const char* column, double& value) {
      return absl::SimpleAtod(reader.Field(column).text, &value) && value > 0;
    };
    const bool is_ring = reader.Field("collective").text == "all_reduce" &&
                         reader.Field("algorithm").text.find("ring") != std::string::npos;
    if (!is_ring || !read("size", size) || !read("workers", workers) || size <= largest ||
        !read("out_of_place_algbw_gb_s", algorithm) || !read("out_of_place_busbw_gb_s", bus))
      continue;
    largest = size;
    found.value = bus / algorithm;
    found.terms = {workers, algorithm, bus};
  }
  list.Add(std::move(found));
}

// As communicationOf (story.js), in ms.
struct CommunicationTime {
  double all = 0, hidden = 0, stopped = 0;  // stopped: computation waits, also for peers
};

CommunicationTime CommunicationTimeOf(const FigureRow& row) {
  const double stopped = NumberAt(row.figures, "exposed_comm_ms", 0);
  const double all = std::max(NumberAt(row.figures, "comm_busy_ms", 0), stopped);
  return {.all = all, .hidden = all - stopped, .stopped = stopped};
}

void AddOverlap(const FigureRows& rows, ExerciseList& list) {
  const FigureRow* waits = WithMostWorkers(rows, [](const FigureRow& row) {
    return row.communicates() && row.at("step_ms") > 0 && row.at("exposed_comm_ms") > 0 &&
           (row.name == "ring" || row.name == "ps-sync");
  });
  if (waits != nullptr) {
    list.Add({.id = "exposed",
              .number = "3.1",
              .value = 100 * waits->at("exposed_comm_ms") / waits->at("step_ms"),
              .tolerance = 0.1,
              .rows = {waits->place}});
  }
  const FigureRow* hides = WithMostWorkers(rows, [](const FigureRow& row) {
    return row.is_ring() && row.communicates() && CommunicationTimeOf(row).all > 0 &&
           row.at("compute_ms") > 0;
  });
  if (hides == nullptr) return;
  const CommunicationTime time = CommunicationTimeOf(*hides);
  const double compute = hides->at("compute_ms");
  Exercise hidden{.id = "hidden", .number = "3.2", .value = time.hidden, .rows = {hides->place}};
  if (time.hidden < kHardly * time.all) {  // asks what could be hidden
    hidden.texts = "hidden_most";
    hidden.value = std::min(time.all, compute);
    hidden.slips = {{"longer", std::max(time.all, compute)}, {"both", time.all + compute}};
  } else {
    hidden.tolerance += 0.005 * (time.all + time.stopped) / time.hidden;  // a difference of rounded figures
    hidden.slips = {{"the_exposed", time.stopped}};
  }
  list.Add(std::move(hidden));
}

void AddEfficiency(const FigureRows& rows, ExerciseList& list) {
  const auto single = std::ranges::find_if(
      rows, [](const FigureRow& row) { return row.name == "single" && row.at("samples_per_s") > 0; });
  if (single == rows.end()) return;
  const FigureRow* scaled = WithMostWorkers(rows, [&](const FigureRow& row) {
    return row.is_ring() && row.at("samples_per_s") > 0 && !std::isnan(row.at("efficiency")) &&
           TextAt(row.figures, "basis") == TextAt(single->figures, "basis");
  });
  if (scaled == nullptr) return;
  const double efficiency = 100 * scaled->at("efficiency");
  list.Add({.id = "efficiency",
            .number = "3.3",
            .value = efficiency,
            .rows = {scaled->place, single->place},
            .slips = {{"speedup", efficiency * static_cast<double>(scaled->workers)}}});
}

void AddAsynchrony(const FigureRows& rows, ExerciseList& list) {
  const FigureRow* stale = WithMostWorkers(rows, [](const FigureRow& row) {
    return row.name == "ps-async" && !std::isnan(row.at("staleness_mean"));
  });
  if (stale != nullptr) {
    list.Add({.id = "staleness",
              .number = "4.1",
              .value = stale->at("staleness_mean"),
              .tolerance = 0.05,
              .rows = {stale->place},
              .slips = {{"own_update", static_cast<double>(stale->workers)}}});
  }
  const auto waiting_for = [&](const FigureRow& row) {  // the same, but synchronous
    return std::ranges::find_if(rows, [&](const FigureRow& other) {
      return other.name == "ps-sync" && other.workers == row.workers && other.at("samples_per_s") > 0 &&
             TextAt(other.figures, "basis") == TextAt(row.figures, "basis") &&
             other.servers() == row.servers();
    });
  };
  const FigureRow* fast = WithMostWorkers(rows, [&](const FigureRow& row) {
    return row.name == "ps-async" && row.at("samples_per_s") > 0 && waiting_for(row) != rows.end();
  });
  if (fast == nullptr) return;
  const FigureRow& waiting = *waiting_for(*fast);
  list.Add({.id = "speedup",
            .number = "4.2",
            .value = fast->at("samples_per_s") / waiting.at("samples_per_s"),
            .tolerance = 0.1,
            .rows = {fast->place, waiting.place}});
}

void AddChoice(const FigureRows& rows, ExerciseList& list) {
  // A ring and a synchronous server with as many workers; measured ones first.
  const auto can_be = [](const FigureRow& row, const char* name) {
    return row.name == name && row.workers > 1 && row.workers <= 64 && row.at("parameters") > 0 &&
           row.moving_ms() > 0 && !row.has_tables;
  };
  const FigureRow *ring = nullptr, *server = nullptr;
  for (const bool simulated : {false, true}) {
    for (const FigureRow& one : rows) {
      if (!can_be(one, "ring") || one.is("basis", "simulated") != simulated) continue;
      if (ring != nullptr && one.workers <= ring->workers) continue;
      const auto other = std::ranges::find_if(rows, [&](const FigureRow& row) {
        return can_be(row, "ps-sync") && row.is("basis", "simulated") == simulated &&
               row.workers == one.workers && row.at("parameters") == one.at("parameters");
      });
      if (other == rows.end()) continue;
      ring = &one;
      server = &*other;
    }
  }
  if (ring != nullptr) {
    list.Add({.id = "ratio",
              .number = "5.1",
              .value = server->moving_ms() / ring->moving_ms(),
              .tolerance = 0.1,
              .rows = {ring->place, server->place}});
  }
  // Needs no run.
  constexpr int kWorkers8 = 8;
  constexpr double kBytes = 4e3;
  const Wires wires{.latency_s = 1e-3, .bytes_per_s = 1.25e8};
  const CommPattern all_reduce = RingOf(kWorkers8),
                    one_server = ServersOn(ServerPlace::kDedicated, kWorkers8, 1, /*pipelined=*/false);
  const double ring_s = ExchangeSeconds(all_reduce, kBytes, wires),
               server_s = ExchangeSeconds(one_server, kBytes, wires);
  list.Add({.id = "small",
            .number = "5.2",
            .choice = ring_s < server_s ? "ring" : "ps-sync",
            .choices = {"ring", "ps-sync"},
            .exact = true,
            .terms = {ring_s, TermsOf(all_reduce, kBytes).messages, server_s, kWorkers8, kBytes,
                      wires.latency_s, wires.bytes_per_s}});
}

// Need no run.
void AddPipeline(ExerciseList& list) {
  constexpr int kStages = 4, kMicroBatches = 8;
  const absl::StatusOr<NamedProgram> program = FindStepProgram("1f1b");
  PSRING_CHECK(program.ok());
  const absl::StatusOr<PlayedProgram> played = PlayProgram(*program, kStages, kMicroBatches);
  PSRING_CHECK(played.ok());
  const double bubble = 100 * played->walk.Bubble();
  list.Add({.id = "bubble",
            .number = "6.1",
            .value = bubble,
            .exact = true,
            .terms = {kStages, kMicroBatches, static_cast<double>(played->computing(0)),
                      static_cast<double>(played->walk.end_ns)},
            .slips = {{"of_computing", 100 * bubble / (100 - bubble)},
                      {"all_stages", 100.0 * kStages / (kStages + kMicroBatches)}}});
  list.Add({.id = "in_flight",
            .number = "6.2",
            .value = static_cast<double>(played->in_flight(0)),
            .tolerance = 0,
            .exact = true,
            .terms = {kStages, kMicroBatches},
            .slips = {{"as_gpipe", kMicroBatches}}});
}

}  // namespace

std::vector<Exercise> ExercisesOf(const UntrustedJson& run) {
  const FigureRows rows = FigureRowsOf(run);
  ExerciseList list(rows);
  AddServers(run, rows, list);
  AddRing(rows, list);
  AddBenchmark(TextAt(run, "bench_csv"), list);
  AddOverlap(rows, list);
  AddEfficiency(rows, list);
  AddAsynchrony(rows, list);
  AddChoice(rows, list);
  AddPipeline(list);
  return list.Take();
}

std::string ExercisesJson(const std::string& run) {
  UntrustedJson list = UntrustedJson::array();
  for (const Exercise& one : ExercisesOf(ParseUntrusted(run))) {
    UntrustedJson slips = UntrustedJson::array();
    for (const auto& [text, value] : one.slips) slips.push_back({text, value});
    list.push_back({{"id", one.id},
                    {"number", one.number},
                    {"texts", one.texts},
                    {"value", one.choices.empty() ? UntrustedJson(one.value) : UntrustedJson(one.choice)},
                    {"choices", one.choices},
                    {"tolerance", one.tolerance},
                    {"exact", one.exact},
                    {"rows", one.rows},
                    {"terms", one.terms},
                    {"slips", slips}});
  }
  return list.dump();
}

Judgement Judge(const Exercise& exercise, const std::string& answer) {
  const std::string text(absl::StripAsciiWhitespace(answer));
  if (text.empty()) return Judgement::kNone;
  if (!exercise.choices.empty()) return text == exercise.choice ? Judgement::kRight : Judgement::kWrong;
  double number = 0;
  if (!absl::SimpleAtod(text, &number)) return Judgement::kWrong;
  const double off = std::abs(number - exercise.value) / std::abs(exercise.value == 0 ? 1 : exercise.value);
  if (off <= exercise.tolerance) return Judgement::kRight;
  const bool is_slip =
      std::ranges::any_of(exercise.slips, [&](const auto& slip) { return SameAnswer(number, slip.second); });
  return exercise.tolerance > 0 && !is_slip && off <= kNear ? Judgement::kNear : Judgement::kWrong;
}

}  // namespace psring
