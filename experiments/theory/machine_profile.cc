#include "experiments/theory/machine_profile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/io/files.h"
#include "common/measure/records.h"

namespace psring {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kTerms = 3;
constexpr const char* kTermNames[kTerms] = {"a", "B", "g"};
using Row = std::array<double, kTerms>;

struct Solution {
  std::vector<double> value, deviation;  // by used term
};

// Of a symmetric n x n matrix, by Gauss-Jordan elimination. Empty if it is singular.
std::vector<double> Inverse(std::vector<double> m, size_t n) {
  std::vector<double> inverse(n * n, 0);
  for (size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t r = column + 1; r < n; ++r) {
      if (std::abs(m[r * n + column]) > std::abs(m[pivot * n + column])) pivot = r;
    }
    // The diagonal of `m` is initially 1, so a small pivot means that two columns are nearly equal.
    if (std::abs(m[pivot * n + column]) < 1e-6) return {};
    for (size_t c = 0; c < n; ++c) {
      std::swap(m[pivot * n + c], m[column * n + c]);
      std::swap(inverse[pivot * n + c], inverse[column * n + c]);
    }
    const double by = m[column * n + column];
    for (size_t c = 0; c < n; ++c) {
      m[column * n + c] /= by;
      inverse[column * n + c] /= by;
    }
    for (size_t r = 0; r < n; ++r) {
      const double times = m[r * n + column];
      if (r == column) continue;
      for (size_t c = 0; c < n; ++c) {
        m[r * n + c] -= times * m[column * n + c];
        inverse[r * n + c] -= times * inverse[column * n + c];
      }
    }
  }
  return inverse;
}

// Least squares with the used columns; rows are scaled by 1 / t, so the right-hand side is 1. Empty if two
// columns are indistinguishable.
Solution Solve(const std::vector<Row>& rows, const std::vector<int>& used) {
  const size_t n = used.size();
  std::vector<double> scale(n, 0), normal(n * n, 0), right(n, 0);
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i)
      scale[i] += row[static_cast<size_t>(used[i])] * row[static_cast<size_t>(used[i])];
  }
  for (double& s : scale) s = std::sqrt(s);
  if (std::any_of(scale.begin(), scale.end(), [](double s) { return s <= 0; })) return {};
  for (const Row& row : rows) {
    for (size_t i = 0; i < n; ++i) {
      const double x = row[static_cast<size_t>(used[i])] / scale[i];
      right[i] += x;
      for (size_t j = 0; j < n; ++j) normal[i * n + j] += x * row[static_cast<size_t>(used[j])] / scale[j];
    }
  }
  const std::vector<double> inverse = Inverse(normal, n);
  if (inverse.empty()) return {};
  Solution solution{.value = std::vector<double>(n, 0), .deviation = std::vector<double>(n, 0)};
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) solution.value[i] += inverse[i * n + j] * right[j] / scale[i];
  }
  double residual = 0;
  for (const Row& row : rows) {
    double fit = 0;
    for (size_t i = 0; i < n; ++i) fit += solution.value[i] * row[static_cast<size_t>(used[i])];
    residual += (1 - fit) * (1 - fit);
  }
  const double variance =
      residual / std::max<double>(1, static_cast<double>(rows.size()) - static_cast<double>(n));
  for (size_t i = 0; i < n; ++i) solution.deviation[i] = std::sqrt(variance * inverse[i * n + i]) / scale[i];
  return solution;
}

// The field `key` of a file's JSON, or `otherwise` if it is missing or of another type.
template <typename T>
T ValueAt(const OrderedJson& json, const char* key, const T& otherwise) {
  if (!json.is_object()) return otherwise;
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                    : std::is_same_v<T, bool>      ? found->is_boolean()
                    : std::is_integral_v<T>        ? found->is_number_integer()
                                                   : found->is_number();
  return fits ? found->get<T>() : otherwise;
}
std::string TextAt(const OrderedJson& json, const char* key) { return ValueAt(json, key, std::string()); }

const OrderedJson* ListAt(const OrderedJson& json, const char* key) {
  const auto found = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && found != json.end() && found->is_array() ? &*found : nullptr;
}

OrderedJson ToJson(const Fitted& fitted) {
  const auto finite = [](double value) {
    return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
  };
  return {
      {"value", fitted.value}, {"lo95", finite(fitted.interval.low)}, {"hi95", finite(fitted.interval.high)}};
}

Fitted FittedFrom(const OrderedJson& json) {
  const auto number = [&](const char* key) {
    return json.contains(key) && json[key].is_number() ? json[key].get<double>()
                                                       : std::numeric_limits<double>::infinity();
  };
  return {ValueAt(json, "value", 0.0), {number("lo95"), number("hi95")}};
}

}  // namespace

Wires MachineProfile::wires() const {
  Wires wires{.latency_s = latency_s.value, .add_s_per_byte = add_s_per_byte.value};
  (shared_medium ? wires.medium_bytes_per_s : wires.bytes_per_s) = bytes_per_s.value;
  return wires;
}

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
    mean += point.seconds / static_cast<double>(points.size());
  }
  std::vector<int> used = {0, 1, 2};
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
  MachineProfile profile{.shared_medium = shared_medium, .points = static_cast<int>(points.size())};
  const double t = StudentsTFactor(static_cast<int>(rows.size() - used.size()));
  std::array<Fitted, kTerms> fitted{};
  for (int term = 0; term < kTerms; ++term) {
    const auto at = std::find(used.begin(), used.end(), term);
    if (at == used.end()) {
      profile.not_told_apart.push_back(kTermNames[term]);
      continue;
    }
    const size_t i = static_cast<size_t>(at - used.begin());
    const double half = t * solution.deviation[i];
    fitted[static_cast<size_t>(term)] = {solution.value[i],
                                         {std::max(0.0, solution.value[i] - half), solution.value[i] + half}};
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

absl::StatusOr<std::vector<MachineProfile>> ProfilesOfBench(const std::string& source,
                                                            const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  const OrderedJson* const results = ListAt(json, "results");
  if (results == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(source, " is not a result of psring bench (bench.json)"));
  }
  std::set<std::string> hosts;
  if (const auto config = json.find("config"); config != json.end()) {
    if (const OrderedJson* const devices = ListAt(*config, "devices"); devices != nullptr) {
      for (const OrderedJson& device : *devices) hosts.insert(TextAt(device, "hostname"));
    }
  }
  std::map<std::string, std::vector<ProfilePoint>> by_transport;
  for (const OrderedJson& row : *results) {
    if (TextAt(row, "collective") != "all_reduce" || TextAt(row, "backend") != "native" ||
        TextAt(row, "type") != "float") {
      continue;
    }
    const StrategyInfo strategy{.uses_group = true, .algorithm = TextAt(row, "algorithm")};
    const std::optional<Scheme> scheme = SchemeOf(strategy);
    const int workers = ValueAt(row, "workers", 0);
    if (!scheme || workers < 2) continue;
    for (const char* place : {"out_of_place", "in_place"}) {
      if (!row.contains(place) || !row[place].is_object()) continue;
      const double time_us = ValueAt(row[place], "time", 0.0);
      if (time_us > 0) {
        by_transport[TextAt(row, "transport")].push_back(
            {*scheme, workers, ValueAt(row, "size", 0.0), time_us * 1e-6});
        break;
      }
    }
  }
  std::vector<MachineProfile> profiles;
  absl::Status last = absl::InvalidArgumentError("it contains no native all-reduce of two or more workers");
  for (const auto& [transport, points] : by_transport) {
    absl::StatusOr<MachineProfile> profile = FitProfile(points, hosts.size() <= 1);
    if (!profile.ok()) {
      last = profile.status();
      continue;
    }
    profile->source = source;
    profile->transport = transport;
    profiles.push_back(*std::move(profile));
  }
  if (profiles.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", last.message()));
  return profiles;
}

std::string ProfilesJson(const std::vector<MachineProfile>& profiles) {
  OrderedJson list = OrderedJson::array();
  for (const MachineProfile& profile : profiles) {
    list.push_back({{"source", profile.source},
                    {"transport", profile.transport},
                    {"shared_medium", profile.shared_medium},
                    {"latency_s", ToJson(profile.latency_s)},
                    {"bytes_per_s", ToJson(profile.bytes_per_s)},
                    {"add_s_per_byte", ToJson(profile.add_s_per_byte)},
                    {"r_squared", profile.r_squared},
                    {"points", profile.points},
                    {"not_told_apart", profile.not_told_apart},
                    {"basis", "derived"}});
  }
  return OrderedJson({{"psring_machine_profile", 1}, {"profiles", list}}).dump(2) + "\n";
}

absl::StatusOr<std::vector<MachineProfile>> ProfilesFromJson(const std::string& text) {
  const OrderedJson json = OrderedJson::parse(text, nullptr, false);
  const OrderedJson* const rows = ListAt(json, "profiles");
  if (rows == nullptr || rows->empty() || !json.contains("psring_machine_profile")) {
    return absl::InvalidArgumentError("it is not a machine profile");
  }
  std::vector<MachineProfile> profiles;
  for (const OrderedJson& row : *rows) {
    MachineProfile profile{.source = TextAt(row, "source"),
                           .transport = TextAt(row, "transport"),
                           .shared_medium = ValueAt(row, "shared_medium", false),
                           .r_squared = ValueAt(row, "r_squared", 0.0),
                           .points = ValueAt(row, "points", 0)};
    for (const auto& [key, to] : {std::pair("latency_s", &profile.latency_s),
                                  {"bytes_per_s", &profile.bytes_per_s},
                                  {"add_s_per_byte", &profile.add_s_per_byte}}) {
      if (!row.is_object() || !row.contains(key) || !row[key].is_object())
        return absl::InvalidArgumentError(absl::StrCat("it lacks ", key));
      *to = FittedFrom(row[key]);
    }
    if (const OrderedJson* const terms = ListAt(row, "not_told_apart"); terms != nullptr) {
      for (const OrderedJson& term : *terms) {
        if (term.is_string()) profile.not_told_apart.push_back(term.get<std::string>());
      }
    }
    profiles.push_back(std::move(profile));
  }
  return profiles;
}

absl::StatusOr<MachineProfile> LoadMachineProfile(const std::string& path) {
  PSRING_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  absl::StatusOr<std::vector<MachineProfile>> profiles = ProfilesFromJson(text);
  if (!profiles.ok()) {
    if (text.find("psring_machine_profile") != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", profiles.status().message()));
    }
    profiles = ProfilesOfBench(path, text);
    if (!profiles.ok()) return profiles.status();
  }
  for (const MachineProfile& profile : *profiles) {
    if (profile.transport == "tcp") return profile;
  }
  return profiles->front();
}

std::string Describe(const MachineProfile& profile) {
  std::string text = absl::StrFormat(
      "Latency %.1f us (95%%: %.1f to %.1f) and adding %.3f ns per byte (%.3f to %.3f) are fitted from %d "
      "all-reduces over %s in %s (R2 %.4f, *derived*).",
      1e6 * profile.latency_s.value, 1e6 * profile.latency_s.interval.low,
      1e6 * profile.latency_s.interval.high, 1e9 * profile.add_s_per_byte.value,
      1e9 * profile.add_s_per_byte.interval.low, 1e9 * profile.add_s_per_byte.interval.high, profile.points,
      profile.transport, profile.source, profile.r_squared);
  for (const std::string& term : profile.not_told_apart) {
    absl::StrAppend(&text, " They do not determine ", term, ", which is set to 0.");
  }
  if (profile.r_squared < 0.9) {
    text += " The times do not fit latency and rate well: measure again on an idle machine.";
  }
  return text;
}

}  // namespace psring
