// The table of models. Pure: the trainer, psring and the tests read it, and functions with a `rows` parameter
// accept another table. trainer/models/models.cc makes the networks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/training_options.h"

namespace psring {

class Model;
class Ops;
struct SampleSpec;

// Sizes that flags change.
struct ModelSize {
  static constexpr int kFixed = -1;  // the model has no such size
  int layers = kFixed, width = kFixed, heads = kFixed, context = kFixed;
};

struct ModelRow {
  const char* name;
  const char* summary;
  double default_lr;                     // synchronous modes, the model's optimizer
  double default_async_lr = default_lr;  // asynchronous modes, without momentum
  const char* default_data = "fashion-mnist";
  ModelSize size = {};  // its own sizes; 0: several widths
  const char* optimizer = "momentum";
  bool has_dropout = false;
  bool has_units = false;    // Keep::kUnitInputs (--recompute) saves memory
  bool has_tables = false;   // whose gradients are rows (trainer/tables.md)
  const char* network = "";  // its maker in trainer/models/models.cc; empty: `make` is set
  using Make = std::function<absl::StatusOr<std::unique_ptr<Model>>(const SampleSpec& samples, Ops& ops)>;
  Make make = nullptr;  // `ops` outlives the model. ModelRows() has none, Models() all
};
using ModelTable = std::vector<ModelRow>;
const ModelTable& ModelRows();

// NotFound lists all names and the nearest.
absl::StatusOr<const ModelRow*> FindModelRow(const std::string& name, const ModelTable& rows = ModelRows());

// Sets the data of the model, unless they are given or a workload needs none. InvalidArgument: --text with
// data that are not made from it. Idempotent.
absl::Status ApplyModel(TrainingOptions& options, const ModelTable& rows = ModelRows());

// Whether the model that `options` trains has tables. Unknown models have none.
bool HasTables(const TrainingOptions& options);

// Adds the names in the tables to the help of --model and --data (AddTrainingFlags), and --data's check.
void AddModelsAndData(CLI::App& app);

}  // namespace psring
