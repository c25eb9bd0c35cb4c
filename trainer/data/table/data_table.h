// The table of data sets. Pure: the trainer, psring and the tests read it, and functions with a `rows`
// parameter accept another table. trainer/data/data.cc reads the data.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace psring {

struct DataRequest;
struct DataSplits;

struct DataRow {
  const char* name;  // "zipf:ROWS:ALPHA" if it has numbers
  const char* summary;
  bool takes_text = false;  // --text
  // InvalidArgument: the numbers of `name` are wrong. Null: it has none.
  absl::Status (*check)(const std::string& name) = nullptr;
  absl::StatusOr<DataSplits> (*load)(const DataRequest& request) = nullptr;  // null: that of data.cc
};
using DataTable = std::vector<DataRow>;
const DataTable& DataRows();
std::vector<std::string> DataNames(const DataTable& rows = DataRows());

// The row of "text" or "zipf:1000:1.05". NotFound lists all names and the nearest; InvalidArgument: wrong
// numbers.
absl::StatusOr<const DataRow*> FindData(const std::string& name, const DataTable& rows = DataRows());

}  // namespace psring
