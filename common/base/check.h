// PSRING_CHECK is for programming errors, never for input. Prints file, line and condition, then aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "absl/status/statusor.h"

namespace psring::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace psring::internal

#define PSRING_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::psring::internal::CheckFailed(__FILE__, __LINE__, #condition))

// Returns an error to the caller; otherwise continues.
#define PSRING_RETURN_IF_ERROR(expression)                                  \
  do {                                                                      \
    if (absl::Status psring_status_ = (expression); !psring_status_.ok()) { \
      return psring_status_;                                                \
    }                                                                       \
  } while (false)

#define PSRING_CONCAT_INNER_(a, b) a##b
#define PSRING_CONCAT_(a, b) PSRING_CONCAT_INNER_(a, b)

// PSRING_ASSIGN_OR_RETURN(auto value, Compute()): assigns the value of a StatusOr, or returns its error.
#define PSRING_ASSIGN_OR_RETURN(declaration, expression) \
  PSRING_ASSIGN_OR_RETURN_(PSRING_CONCAT_(psring_statusor_, __LINE__), declaration, expression)
#define PSRING_ASSIGN_OR_RETURN_(holder, declaration, expression) \
  auto holder = (expression);                                     \
  if (!holder.ok()) return holder.status();                       \
  declaration = std::move(holder).value()
