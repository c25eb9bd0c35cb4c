#include "common/workloads/zipf.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/errors.h"

namespace psring {
namespace {

constexpr int kMaxRows = 100'000'000;
constexpr double kMaxAlpha = 5;

// (exp(x) - 1) / x and log(1 + x) / x, also near 0.
double ExpMinus1Over(double x) { return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1 + x / 2; }
double LogPlus1Over(double x) { return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1 - x / 2; }

}  // namespace

absl::StatusOr<ZipfName> ParseZipf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, ':');
  ZipfName zipf;
  if (parts.size() != 3 || parts[0] != "zipf") {
    return InvalidArgument("'", name, "' is not zipf:ROWS:ALPHA, such as zipf:1000000:1.05");
  }
  if (!absl::SimpleAtoi(parts[1], &zipf.rows) || zipf.rows < 1 || zipf.rows > kMaxRows) {
    return InvalidArgument("'", name, "': ROWS must be a whole number from 1 to ", kMaxRows,
                           ", the rows of each table");
  }
  if (!absl::SimpleAtod(parts[2], &zipf.alpha) || !(zipf.alpha >= 0 && zipf.alpha <= kMaxAlpha)) {
    return InvalidArgument("'", name, "': ALPHA must be a number from 0 (all rows ", "equally often) to ",
                           kMaxAlpha);
  }
  return zipf;
}

Zipf::Zipf(int items, double alpha)
    : items_(items),
      alpha_(alpha),
      first_(Integral(1.5) - 1),
      last_(Integral(items + .5)),
      shift_(2 - InverseIntegral(Integral(2.5) - Density(2))) {}

double Zipf::Integral(double x) const {
  const double log = std::log(x);
  return ExpMinus1Over((1 - alpha_) * log) * log;
}

double Zipf::InverseIntegral(double x) const {
  return std::exp(LogPlus1Over(std::max(-1.0, x * (1 - alpha_))) * x);
}

double Zipf::Density(double x) const { return std::exp(-alpha_ * std::log(x)); }

int Zipf::Next(Random& random) const {
  while (true) {
    const double uniform = static_cast<double>(random.Next() >> 11) * 0x1p-53;
    const double u = last_ + uniform * (first_ - last_), x = InverseIntegral(u);
    const double k = std::clamp(std::floor(x + .5), 1.0, static_cast<double>(items_));
    if (k - x <= shift_ || u >= Integral(k + .5) - Density(k)) return static_cast<int>(k);
  }
}

}  // namespace psring
