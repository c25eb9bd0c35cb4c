// Calls of a store that wait, for tests: they return when the call has ended.
#pragma once

#include <future>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rendezvous/rendezvous_store.h"

namespace psring {

inline absl::StatusOr<std::string> Get(RendezvousStore& store, const std::string& key,
                                       const std::string& whom, absl::Duration timeout) {
  std::promise<absl::StatusOr<std::string>> result;
  store.Get(key, whom, timeout,
            [&](absl::StatusOr<std::string> value) { result.set_value(std::move(value)); });
  return result.get_future().get();
}

inline absl::StatusOr<std::vector<std::string>> Exchange(RendezvousStore& store, const MemberId& member,
                                                         const std::string& name, const std::string& value,
                                                         absl::Duration timeout,
                                                         const std::vector<int>& ranks = {}) {
  std::promise<absl::StatusOr<RendezvousStore::Values>> result;
  store.Exchange(member, name, value, timeout, ranks, [&](absl::StatusOr<RendezvousStore::Values> values) {
    result.set_value(std::move(values));
  });
  const absl::StatusOr<RendezvousStore::Values> values = result.get_future().get();
  if (!values.ok()) return values.status();
  return **values;
}

}  // namespace psring
