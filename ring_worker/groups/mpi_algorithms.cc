#include "ring_worker/groups/mpi_algorithms.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <span>

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "ring_worker/groups/mpi_session.h"

namespace psring {
namespace {

// An algorithm: values of its implementation's variables, each a number or the name of a value.
struct Row {
  const char* name;
  const char* values[2];
};
struct AlgorithmVariables {
  const char* names[2];
  std::span<const Row> rows;  // the first: the default
};

// Open MPI.
constexpr Row kTuned[] = {{"default", {"0", "0"}},
                          {"ring", {"4", "0"}},
                          {"segmented-ring", {"5", "1048576"}},  // the size that Open MPI's tuner uses
                          {"rabenseifner", {"6", "0"}},
                          {"recursive-doubling", {"3", "0"}}};
constexpr AlgorithmVariables kOfOpenMpi = {
    {"coll_tuned_allreduce_algorithm", "coll_tuned_allreduce_algorithm_segmentsize"}, kTuned};

// MPICH, whose numbers differ between versions. Device-specific compositions would take precedence over the
// algorithm.
constexpr Row kIntra[] = {{"default", {"auto", "all"}},
                          {"rabenseifner", {"reduce_scatter_allgather", "none"}},
                          {"recursive-doubling", {"recursive_doubling", "none"}}};
constexpr AlgorithmVariables kOfMpich = {
    {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "MPIR_CVAR_DEVICE_COLLECTIVES"}, kIntra};

// Null: neither.
const AlgorithmVariables* OfThisMpi() {
  return MpiSession::IsOpenMpi() ? &kOfOpenMpi : MpiSession::IsMpich() ? &kOfMpich : nullptr;
}

// An integer variable of the tools interface. Its handle is never freed.
class Variable {
 public:
  static absl::StatusOr<Variable> Find(const char* name) {
    int index = 0, count = 0;
    Variable variable;
    variable.name_ = name;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, nullptr, &variable.handle_, &count) != MPI_SUCCESS) {
      return Unimplemented("this MPI has no variable ", name);
    }
    char text[8192] = "";
    int name_length = 0, length = sizeof text, verbosity = 0, bind = 0, scope = 0;
    MPI_Datatype type;
    MPI_T_enum values;
    if (MPI_T_cvar_get_info(index, nullptr, &name_length, &verbosity, &type, &values, text, &length, &bind,
                            &scope) == MPI_SUCCESS) {
      variable.description_ = text;
    }
    return variable;
  }

  absl::Status Write(int value) {
    int back = ~value;
    const bool written = MPI_T_cvar_write(handle_, &value) == MPI_SUCCESS &&
                         MPI_T_cvar_read(handle_, &back) == MPI_SUCCESS && back == value;
    return written ? absl::OkStatus() : Unimplemented("this MPI does not let ", name_, " be set");
  }

  // A value's name is in MPICH's description, "auto - Internal ... nb - Force ...", in the order of numbers.
  absl::StatusOr<int> NumberOf(const std::string& value) const {
    int number = 0;
    if (absl::SimpleAtoi(value, &number)) return number;
    const size_t at = description_.find(value + " ");
    if (at == std::string::npos) {
      return Unimplemented("this MPI's ", name_, " has no \"", value, "\"");
    }
    for (size_t dash = description_.find(" - "); dash < at; dash = description_.find(" - ", dash + 1))
      ++number;
    return number;
  }

 private:
  const char* name_ = "";
  std::string description_;
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
};

absl::Status OpenTools() {
  static const bool open = [] {
    int provided = 0;
    return MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided) == MPI_SUCCESS;
  }();
  return open ? absl::OkStatus()
              : absl::UnimplementedError("this MPI has no tools interface to choose an algorithm by");
}

absl::Status CheckDynamicRules() {
  const char* rules = std::getenv("OMPI_MCA_coll_tuned_use_dynamic_rules");
  if (rules != nullptr && std::strcmp(rules, "1") == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "a forced algorithm needs OMPI_MCA_coll_tuned_use_dynamic_rules=1 in mpirun's environment, which "
      "psring sets");
}

absl::Status Set(const AlgorithmVariables& variables, const Row& row) {
  PSRING_RETURN_IF_ERROR(OpenTools());
  static std::map<std::string, absl::StatusOr<Variable>> found;
  int numbers[2] = {};
  for (int i : {0, 1}) {
    const char* const name = variables.names[i];
    if (!found.contains(name)) found.emplace(name, Variable::Find(name));
    PSRING_RETURN_IF_ERROR(found.at(name).status());
    PSRING_ASSIGN_OR_RETURN(numbers[i], found.at(name)->NumberOf(row.values[i]));
  }
  for (int i : {0, 1}) PSRING_RETURN_IF_ERROR(found.at(variables.names[i])->Write(numbers[i]));
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> MpiAllReduceAlgorithms() {
  const AlgorithmVariables* const variables = OfThisMpi();
  if (variables == nullptr) return {"default"};
  std::vector<std::string> names;
  for (const Row& row : variables->rows) names.push_back(row.name);
  return names;
}

MpiAlgorithm::MpiAlgorithm(const std::string& algorithm, During when) {
  const AlgorithmVariables* const variables = OfThisMpi();
  if (variables == nullptr || (when == During::kMaking) != MpiSession::IsOpenMpi()) return;
  for (const Row& row : variables->rows) {
    if (algorithm != row.name || algorithm == "default") continue;
    status_ = MpiSession::IsOpenMpi() ? CheckDynamicRules() : absl::OkStatus();
    if (status_.ok()) status_ = Set(*variables, row);
    set_ = status_.ok();
  }
}

MpiAlgorithm::~MpiAlgorithm() {
  if (set_) (void)Set(*OfThisMpi(), OfThisMpi()->rows.front());
}

}  // namespace psring
