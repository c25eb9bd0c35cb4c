#include "experiments/costs/machine_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "experiments/costs/bench_exchanges.h"

namespace psring {
namespace {

constexpr size_t kTerms = 3;
constexpr const char* kTermNames[kTerms] = {"a", "B", "g"};
using Row = std::array<double, kTerms>;

struct Solution {
  std::vector<double> value, deviation;  // by used term
};

using Matrix = std::vector<std::vector<double>>;

// Of a symmetric matrix, by Gauss-Jordan elimination. Empty if it is singular.
Matrix Inverse(Matrix m) {
  const size_t n = m.size();
  for (size_t r = 0; r < n; ++r) {
    m[r].resize(2 * n, 0);
    m[r][n + r] = 1;
  }
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t r = column + 1; r < n; ++r) {
      if (std::abs(m[r][column]) > std::abs(m[pivot][column])) pivot = r;
    }
    // The diagonal of `m` is initially 1, so a small pivot means that two columns are nearly equal.
    if (std::abs(m[pivot][column]) < 1e-6) return {};
    std::swap(m[pivot], m[column]);
    const double by = m[column][column];
    for (double& value : m[column]) value /= by;
    for (size_t r = 0; r < n; ++r) {
      const double times = m[r][column];
      for (size_t c = 0; c < 2 * n && r != column; ++c) m[r][c] -= times * m[column][c];
    }
  }
  for (std::vector<double>& row : m) row.erase(row.begin(), row.begin() + n);
  return m;
}

// Least squares with the used columns; rows are scaled by 1 / t, so the right-hand side is 1. Empty if two
// columns are indistinguishable.
Solution Solve(const std::vector<Row>& rows, const std::vector<size_t>& used) {
  const size_t n = used.size();
  std::vector<double> scale(n, 0), right(n, 0);
  Matrix normal(n, std::vector<double>(n, 0));
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) scale[i] += row[used[i]] * row[used[i]];
  }
  for (double& s : scale) s = std::sqrt(s);
  if (std::any_of(scale.begin(), scale.end(), [](double s) { return s <= 0; })) return {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      const double x = row[used[i]] / scale[i];
      right[i] += x;
      for (size_t j = 0; j < n; ++j) normal[i][j] += x * row[used[j]] / scale[j];
    }
  }
  const Matrix inverse = Inverse(std::move(normal));
  if (inverse.empty()) return {};
  Solution solution{.value = std::vector<double>(n, 0), .deviation = std::vector<double>(n, 0)};
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) solution.value[i] += inverse[i][j] * right[j] / scale[i];
  }
  double residual = 0;
  for (const Row& row : rows) {
    double fit = 0;
    for (size_t i = 0; i < n; ++i) fit += solution.value[i] * row[used[i]];
    residual += (1 - fit) * (1 - fit);
  }
  const double variance = residual / std::max(1.0, double(rows.size()) - double(n));
  for (size_t i = 0; i < n; ++i) solution.deviation[i] = std::sqrt(variance * inverse[i][i]) / scale[i];
  return solution;
}

}  // namespace

absl::StatusOr<MachineProfile> FitProfile(const std::vector<ProfilePoint>& points, bool shared_medium) {
  if (points.size() < 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("a machine profile needs measurements of at least 4 cases, not ", points.size(),
                     "; run psring bench with more sizes or workers"));
  }
  std::vector<Row> rows;
  double mean = 0;
  for (const ProfilePoint& point : points) {
    const CommTerms terms = TermsOf({.scheme = point.scheme, .workers = point.workers}, point.bytes);
    const double bytes = shared_medium ? terms.medium_bytes : terms.link_bytes;
    rows.push_back(
        {terms.messages / point.seconds, bytes / point.seconds, terms.added_bytes / point.seconds});
    mean += point.seconds / points.size();
  }
  std::vector<size_t> used = {0, 1, 2};
  Solution solution;
  while (true) {
    solution = Solve(rows, used);
    if (solution.value.empty()) {
      // With a single number of workers, adding and moving are indistinguishable.
      if (used.size() < 2)
        return absl::InvalidArgumentError(
            "the measured times do not grow with the size; run psring bench with larger sizes");
      used.pop_back();
      continue;
    }
    const auto least = std::min_element(solution.value.begin(), solution.value.end());
    if (*least >= 0) break;
    // If adding or moving must be removed, remove adding.
    const auto moving = std::find(used.begin(), used.end(), 1),
               adding = std::find(used.begin(), used.end(), 2);
    const bool moving_is_least = moving - used.begin() == least - solution.value.begin();
    used.erase(moving_is_least && adding != used.end() ? adding
                                                       : used.begin() + (least - solution.value.begin()));
    if (used.empty())
      return absl::InvalidArgumentError(
          "no latency and no rate fit the measured times; run psring bench again on an idle machine");
  }
  MachineProfile profile{.points = static_cast<int>(points.size())};
  const double t = StudentsTFactor(rows.size() - used.size());
  std::array<Fitted, kTerms> fitted{};
  for (size_t term = 0; term < kTerms; ++term) {
    const auto at = std::find(used.begin(), used.end(), term);
    if (at == used.end()) {
      profile.undetermined.push_back(kTermNames[term]);
      continue;
    }
    const size_t i = at - used.begin();
    const double half = t * solution.deviation[i];
    fitted[term] = {solution.value[i], {std::max(0.0, solution.value[i] - half), solution.value[i] + half}};
  }
  if (fitted[1].value <= 0)
    return absl::InvalidArgumentError(
        "the measured times do not grow with the size; run psring bench with larger sizes");
  profile.latency_s = fitted[0];
  const auto inverse = [](double x) { return x > 0 ? 1 / x : std::numeric_limits<double>::infinity(); };
  profile.bytes_per_s = {inverse(fitted[1].value),
                         {inverse(fitted[1].interval.high), inverse(fitted[1].interval.low)}};
  profile.add_s_per_byte = fitted[2];
  double residual = 0, total = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    double fit = 0;
    for (size_t term = 0; term < kTerms; ++term)
      fit += fitted[term].value * rows[i][term] * points[i].seconds;
    residual += (points[i].seconds - fit) * (points[i].seconds - fit);
    total += (points[i].seconds - mean) * (points[i].seconds - mean);
  }
  profile.r_squared = total > 0 ? 1 - residual / total : 1;
  return profile;
}

double ServerSecondsPerByte(const MachineProfile& profile, const std::string& server_wire) {
  const auto found = profile.server_bytes_per_s.find(server_wire);
  return found == profile.server_bytes_per_s.end() ? 0 : 1 / (2 * found->second.value);
}

absl::StatusOr<MachineProfile> ProfileOfBench(const std::string& source, const std::string& json) {
  PSRING_ASSIGN_OR_RETURN(const BenchExchanges bench, ParseBenchExchanges(json, source));
  std::map<std::string, std::vector<ProfilePoint>> by_transport, by_wire;
  const bool shared_medium = bench.link_bytes_per_s <= 0 && bench.hosts <= 1;
  for (const BenchExchange& one : bench.exchanges) {
    if (one.uses_server) {
      if (one.transport != "tcp" || (one.workers < 2 && !shared_medium)) continue;
      by_wire[one.server_wire].push_back({Scheme::kServerSync, one.workers, one.bytes, one.seconds});
    }
    if (one.uses_server || one.workers < 2) continue;
    const std::optional<Scheme> scheme = SchemeOf(AllReduceRow(one.algorithm));
    if (scheme) by_transport[one.transport].push_back({*scheme, one.workers, one.bytes, one.seconds});
  }
  std::optional<MachineProfile> found;
  absl::Status last = absl::InvalidArgumentError("it contains no native all-reduce of two or more workers");
  for (const auto& [transport, points] : by_transport) {
    if (found && transport != "tcp") continue;
    absl::StatusOr<MachineProfile> profile = FitProfile(points, shared_medium);
    if (!profile.ok()) {
      last = profile.status();
      continue;
    }
    found = *std::move(profile);
    found->transport = transport;
  }
  if (!found) return absl::InvalidArgumentError(absl::StrCat(source, ": ", last.message()));
  for (const auto& [wire, points] : by_wire) {
    const absl::StatusOr<MachineProfile> of_servers = FitProfile(points, shared_medium);
    if (of_servers.ok()) found->server_bytes_per_s[wire] = of_servers->bytes_per_s;
  }
  found->source = source;
  found->link_bytes_per_s = bench.link_bytes_per_s;
  return *std::move(found);
}

absl::StatusOr<MachineProfile> LoadMachineProfile(const std::string& file_or_run) {
  std::error_code error;
  const bool is_run = std::filesystem::is_directory(file_or_run, error);
  const std::string path = is_run ? file_or_run + "/bench.json" : file_or_run;
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRecordBytes));
  return ProfileOfBench(path, text);
}

std::string Describe(const MachineProfile& profile) {
  std::string text = absl::StrFormat(
      "Latency %.1f us (95%%: %.1f to %.1f) and adding %.3f ns per byte (%.3f to %.3f) are fitted from %d "
      "all-reduces over %s in %s (R2 %.4f, *derived*).",
      1e6 * profile.latency_s.value, 1e6 * profile.latency_s.interval.low,
      1e6 * profile.latency_s.interval.high, 1e9 * profile.add_s_per_byte.value,
      1e9 * profile.add_s_per_byte.interval.low, 1e9 * profile.add_s_per_byte.interval.high, profile.points,
      profile.transport, profile.source, profile.r_squared);
  if (profile.link_bytes_per_s > 0) {
    absl::StrAppendFormat(&text, " The links between the machines carry %.3g Gbit/s (median, *measured*).",
                          8e-9 * profile.link_bytes_per_s);
  }
  for (const auto& [wire, rate] : profile.server_bytes_per_s) {
    absl::StrAppendFormat(&text,
                          " Servers' rounds over %s move %.3g GB/s (95%%: %.3g to %.3g, *derived*), so their "
                          "host takes %.3g ns per byte.",
                          wire, 1e-9 * rate.value, 1e-9 * rate.interval.low, 1e-9 * rate.interval.high,
                          1e9 * ServerSecondsPerByte(profile, wire));
  }
  for (const std::string& term : profile.undetermined) {
    absl::StrAppend(&text, " They do not determine ", term, ", which is set to 0.");
  }
  if (profile.r_squared < 0.9) {
    text += " The times do not fit latency and rate well: measure again on an idle machine.";
  }
  return text;
}

}  // namespace psring
