// Zipf's distribution: item k of 1 ... n has a probability proportional to k^-alpha.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/random.h"

namespace psring {

struct ZipfName {
  int rows = 0;
  double alpha = 0;
};
// "zipf:ROWS:ALPHA", such as "zipf:1000000:1.05". InvalidArgument says which of them is wrong.
absl::StatusOr<ZipfName> ParseZipf(const std::string& name);

// By rejection-inversion (Hoermann & Derflinger 1996): constant time, no table.
class Zipf {
 public:
  // `items` >= 1, `alpha` >= 0.
  Zipf(int items, double alpha);

  // In [1, items].
  int Next(Random& random) const;

 private:
  double Integral(double x) const;         // of the density x^-alpha, up to a constant
  double InverseIntegral(double x) const;  // its inverse
  double Density(double x) const;

  const int items_;
  const double alpha_;
  const double first_, last_, shift_;
};

}  // namespace psring
