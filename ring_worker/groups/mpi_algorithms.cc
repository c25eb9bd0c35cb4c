#include "ring_worker/groups/mpi_algorithms.h"

#include <mpi.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "ring_worker/groups/mpi_session.h"

namespace psring {
namespace {

// Their numbers in Open MPI's coll_tuned_allreduce_algorithm.
struct OfOpenMpi {
  const char* name;
  int number;
  int segment_bytes;  // 0: not segmented
};
constexpr OfOpenMpi kOfOpenMpi[] = {{"ring", 4, 0},
                                    {"segmented-ring", 5, 1 << 20},  // the size that Open MPI's tuner uses
                                    {"rabenseifner", 6, 0},
                                    {"recursive-doubling", 3, 0}};

// Their names in MPICH's MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM, whose numbers differ between versions.
struct OfMpich {
  const char* name;
  const char* value;
};
constexpr OfMpich kOfMpich[] = {{"rabenseifner", "reduce_scatter_allgather"},
                                {"recursive-doubling", "recursive_doubling"}};

// An integer variable of the tools interface. Its handle is never freed.
class Variable {
 public:
  static absl::StatusOr<Variable> Find(const char* name) {
    int index = 0, count = 0;
    Variable variable;
    variable.name_ = name;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, nullptr, &variable.handle_, &count) != MPI_SUCCESS) {
      return absl::UnimplementedError(absl::StrCat("this MPI has no variable ", name));
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
    return written ? absl::OkStatus()
                   : absl::UnimplementedError(absl::StrCat("this MPI does not let ", name_, " be set"));
  }

  // The index of a value in MPICH's description, "auto - Internal ... nb - Force ...".
  absl::StatusOr<int> NumberOf(const std::string& value) const {
    const size_t at = description_.find(value + " ");
    if (at == std::string::npos) {
      return absl::UnimplementedError(absl::StrCat("this MPI's ", name_, " has no \"", value, "\""));
    }
    int number = 0;
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

// Null `algorithm`: restores the default.
absl::Status SetOpenMpi(const OfOpenMpi* algorithm) {
  const char* rules = std::getenv("OMPI_MCA_coll_tuned_use_dynamic_rules");
  if (rules == nullptr || std::strcmp(rules, "1") != 0) {
    return absl::FailedPreconditionError(
        "a forced algorithm needs OMPI_MCA_coll_tuned_use_dynamic_rules=1 in mpirun's environment, which "
        "psring sets");
  }
  PSRING_RETURN_IF_ERROR(OpenTools());
  static absl::StatusOr<Variable> number = Variable::Find("coll_tuned_allreduce_algorithm");
  static absl::StatusOr<Variable> segment = Variable::Find("coll_tuned_allreduce_algorithm_segmentsize");
  PSRING_RETURN_IF_ERROR(number.status());
  PSRING_RETURN_IF_ERROR(segment.status());
  PSRING_RETURN_IF_ERROR(number->Write(algorithm != nullptr ? algorithm->number : 0));
  return segment->Write(algorithm != nullptr ? algorithm->segment_bytes : 0);
}

// Device-specific compositions would take precedence over the algorithm.
absl::Status SetMpich(const OfMpich* algorithm) {
  PSRING_RETURN_IF_ERROR(OpenTools());
  static absl::StatusOr<Variable> choice = Variable::Find("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM");
  static absl::StatusOr<Variable> devices = Variable::Find("MPIR_CVAR_DEVICE_COLLECTIVES");
  PSRING_RETURN_IF_ERROR(choice.status());
  PSRING_RETURN_IF_ERROR(devices.status());
  PSRING_ASSIGN_OR_RETURN(const int wanted,
                          choice->NumberOf(algorithm != nullptr ? algorithm->value : "auto"));
  PSRING_ASSIGN_OR_RETURN(const int whose, devices->NumberOf(algorithm != nullptr ? "none" : "all"));
  PSRING_RETURN_IF_ERROR(choice->Write(wanted));
  return devices->Write(whose);
}

template <typename Row, size_t count>
const Row* FindRow(const Row (&rows)[count], const std::string& name) {
  for (const Row& row : rows) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> MpiAllReduceAlgorithms() {
  std::vector<std::string> names = {"default"};
  if (MpiSession::IsOpenMpi()) {
    for (const OfOpenMpi& row : kOfOpenMpi) names.push_back(row.name);
  } else if (MpiSession::IsMpich()) {
    for (const OfMpich& row : kOfMpich) names.push_back(row.name);
  }
  return names;
}

MpiAlgorithm::MpiAlgorithm(const std::string& algorithm, During when) {
  const OfOpenMpi* const of_open_mpi = FindRow(kOfOpenMpi, algorithm);
  const OfMpich* const of_mpich = FindRow(kOfMpich, algorithm);
  if (when == During::kMaking && MpiSession::IsOpenMpi() && of_open_mpi != nullptr) {
    status_ = SetOpenMpi(of_open_mpi);
  } else if (when == During::kCalls && MpiSession::IsMpich() && of_mpich != nullptr) {
    status_ = SetMpich(of_mpich);
  } else {
    return;
  }
  set_ = status_.ok();
}

MpiAlgorithm::~MpiAlgorithm() {
  if (set_) (void)(MpiSession::IsOpenMpi() ? SetOpenMpi(nullptr) : SetMpich(nullptr));
}

}  // namespace psring
