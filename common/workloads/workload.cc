#include "common/workloads/workload.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/base/read_file.h"
#include "common/io/csv.h"
#include "common/text/suggestions.h"
#include "common/text/translate.h"
#include "common/workloads/workload_tables.h"

namespace psring {
namespace {

constexpr char kColumns[] = "name,bytes,ready_ms";
constexpr char kDeclared[] = ",declared";

// Elements of a tensor are counted in an int, and times in int64 nanoseconds after division by a speedup.
constexpr int64_t kMaxTensorBytes = int64_t{4} * INT32_MAX, kMaxBytes = int64_t{1} << 40;
constexpr int kMaxTensors = 100'000;
constexpr double kMaxMs = 3.6e6;  // an hour
constexpr int kMaxBatch = 1'000'000, kMaxHeads = 65'536;
constexpr double kMaxFlops = 1e21, kMaxTokens = 1e9;

// Reads one file.
class Reader {
 public:
  Reader(const std::string& name, const std::string& text) : csv_(text) {
    workload_.name = name;
    workload_.forward_ms = workload_.backward_ms = -1;  // not given
  }

  absl::StatusOr<Workload> Read() {
    while (true) {
      const absl::StatusOr<bool> any = csv_.Next();
      if (!any.ok()) return Wrong(std::string(any.status().message()));
      if (!*any) return Finish();
      const absl::Status status = Record();
      if (!status.ok()) return Wrong(std::string(status.message()));
    }
  }

 private:
  absl::Status Record() {
    if (csv_.is_comment()) return Header(csv_.fields().front());
    if (!csv_.columns().empty()) return Tensor();
    PSRING_RETURN_IF_ERROR(csv_.NameColumns());
    const std::string columns = absl::StrJoin(csv_.columns(), ",");
    declared_ = columns == absl::StrCat(kColumns, kDeclared);
    if (declared_ || columns == kColumns) return absl::OkStatus();
    return csv_.Error(absl::StrCat("the columns must be ", kColumns, " (and ", kDeclared + 1, ", if any)"));
  }

  absl::StatusOr<Workload> Finish() {
    if (workload_.tensors.empty()) return Wrong("it contains no tensor");
    if (workload_.batch == 0) return Wrong("the line '# batch: N' is missing");
    if (workload_.device.empty()) return Wrong("the line '# device: NAME' is missing");
    if (workload_.forward_ms < 0) return Wrong("the line '# forward_ms: X' is missing");
    const double last = workload_.tensors.back().ready_ms;
    if (workload_.backward_ms < 0) workload_.backward_ms = last;
    if (workload_.backward_ms < last) {
      return Wrong(
          absl::StrCat("backward_ms is ", workload_.backward_ms, ", before the last gradient at ", last));
    }
    if (declared_) PSRING_RETURN_IF_ERROR(CheckPlaces());
    return std::move(workload_);
  }

  absl::Status CheckPlaces() const {
    const int count = static_cast<int>(workload_.tensors.size());
    std::vector<bool> taken(workload_.tensors.size());
    for (const GradientTensor& tensor : workload_.tensors) {
      const bool fits = tensor.declared < count && !taken[static_cast<size_t>(tensor.declared)];
      if (!fits) {
        return Wrong(absl::StrCat("the column declared must hold each number from 0 to ", count - 1,
                                  " once; ", tensor.declared, " of ", tensor.name,
                                  tensor.declared < count ? " appears twice" : " is too large"));
      }
      taken[static_cast<size_t>(tensor.declared)] = true;
    }
    return absl::OkStatus();
  }
  absl::Status Wrong(const std::string& what) const {
    return InvalidArgument("workload ", workload_.name, ": ", what);
  }

  absl::Status Header(const CsvField& comment) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(comment.text, absl::MaxSplits(':', 1));
    const std::string key(absl::StripAsciiWhitespace(parts.first));
    const CsvField value{.text = std::string(absl::StripAsciiWhitespace(parts.second)),
                         .quoted = comment.quoted};
    const std::pair<const char*, std::string*> texts[] = {
        {"device", &workload_.device}, {"model", &workload_.model},   {"sample", &workload_.sample},
        {"family", &workload_.family}, {"source", &workload_.source}, {"licence", &workload_.licence}};
    for (const auto& [name, text_of] : texts) {
      if (key == name) *text_of = value.text;
    }
    if (key == "batch") {
      PSRING_ASSIGN_OR_RETURN(const int64_t batch, csv_.WholeNumberIn(key, value, 1, kMaxBatch));
      workload_.batch = static_cast<int>(batch);
    }
    if (key == "activation_bytes") {
      PSRING_ASSIGN_OR_RETURN(workload_.activation_bytes, csv_.WholeNumberIn(key, value, 1, kMaxBytes));
    }
    if (key == "heads") {
      PSRING_ASSIGN_OR_RETURN(const int64_t heads, csv_.WholeNumberIn(key, value, 1, kMaxHeads));
      workload_.heads = static_cast<int>(heads);
    }
    const struct {
      const char* key;
      double& to;
      double least, most;
    } numbers[] = {{"forward_ms", workload_.forward_ms, 0, kMaxMs},
                   {"backward_ms", workload_.backward_ms, 0, kMaxMs},
                   {"flops_per_sample", workload_.flops_per_sample, 1, kMaxFlops},
                   {"tokens_per_sample", workload_.tokens_per_sample, 1, kMaxTokens}};
    for (const auto& number : numbers) {
      if (key != number.key) continue;
      PSRING_ASSIGN_OR_RETURN(number.to, csv_.NumberIn(key, value, number.least, number.most));
    }
    return absl::OkStatus();
  }

  absl::Status Tensor() {
    GradientTensor tensor{.name = csv_.Field("name").text};
    PSRING_ASSIGN_OR_RETURN(tensor.bytes, csv_.WholeNumber("bytes", 0, INT64_MAX));
    PSRING_ASSIGN_OR_RETURN(tensor.ready_ms, csv_.Number("ready_ms", 0, kMaxMs));
    if (declared_) {
      PSRING_ASSIGN_OR_RETURN(const int64_t declared, csv_.WholeNumber("declared", 0, kMaxTensors));
      tensor.declared = static_cast<int>(declared);
    }
    if (tensor.bytes < 4 || tensor.bytes % 4 != 0) {
      return csv_.Error(absl::StrCat("bytes '", tensor.bytes, "' is not a size of float32 values"));
    }
    if (tensor.bytes > kMaxTensorBytes) {
      return csv_.Error(absl::StrCat("bytes ", tensor.bytes, " are more than ", kMaxTensorBytes,
                                     "; divide the tensor into several rows"));
    }
    bytes_ += tensor.bytes;
    if (bytes_ > kMaxBytes || workload_.tensors.size() == size_t{kMaxTensors}) {
      return csv_.Error(
          absl::StrCat("a workload has at most ", kMaxTensors, " tensors of ", kMaxBytes, " bytes in total"));
    }
    if (!workload_.tensors.empty() && tensor.ready_ms < workload_.tensors.back().ready_ms) {
      return csv_.Error(absl::StrCat(
          "ready_ms ", csv_.Field("ready_ms").text, " comes before that of the row above (",
          workload_.tensors.back().ready_ms, "); rows must be in the order in which gradients are ready"));
    }
    workload_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  CsvReader csv_;
  Workload workload_;
  int64_t bytes_ = 0;
  bool declared_ = false;
};

bool IsPath(const std::string& name) { return absl::StrContains(name, '/') || absl::EndsWith(name, ".csv"); }

}  // namespace

int64_t Workload::bytes() const {
  int64_t sum = 0;
  for (const GradientTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

absl::StatusOr<Workload> ParseWorkload(const std::string& name, const std::string& text) {
  return Reader(name, text).Read();
}

std::vector<std::string> WorkloadNames(bool (*accepts)(const Workload& workload)) {
  std::vector<std::string> names;
  for (const WorkloadTable& table : WorkloadTables()) {
    if (accepts == nullptr || accepts(LoadWorkload(table.name).value())) names.push_back(table.name);
  }
  return names;
}

std::string WorkloadHint(const std::string& model) {
  if (IsPath(model)) {
    return Tr("'$0' is a file, not a model; to replay the times in it, use --workload $1", model, model);
  }
  for (const WorkloadTable& table : WorkloadTables()) {
    if (CanonicalWord(table.name) != CanonicalWord(model)) continue;
    return Tr("psring cannot train '$0'; to replay its recorded times, use --workload $1", model, table.name);
  }
  return "";
}

absl::StatusOr<Workload> LoadWorkload(const std::string& name_or_path) {
  for (const WorkloadTable& table : WorkloadTables()) {
    if (name_or_path == table.name) return ParseWorkload(table.name, table.text);
  }
  if (!IsPath(name_or_path)) {
    return NotFound(Tr("$0, or the path of a CSV file (./mine.csv)",
                       UnknownName(TrNoop("workload"), name_or_path, WorkloadNames()).message()));
  }
  const absl::StatusOr<std::string> text = ReadFile(name_or_path);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat(text.status().message(),
                     "; experiments/export_workload.py records a PyTorch model in such a file"));
  }
  return ParseWorkload(name_or_path, *text);
}

Workload Faster(Workload workload, double speedup) {
  PSRING_CHECK(speedup > 0);
  workload.forward_ms /= speedup;
  workload.backward_ms /= speedup;
  for (GradientTensor& tensor : workload.tensors) tensor.ready_ms /= speedup;
  return workload;
}

ParameterLayout LayoutOf(const Workload& workload) {
  ParameterLayout layout(/*alignment=*/1);
  for (auto tensor = workload.tensors.rbegin(); tensor != workload.tensors.rend(); ++tensor) {
    layout.Add(tensor->name, {static_cast<int>(tensor->bytes / 4)});
  }
  return layout;
}

std::string BlockName(const std::string& tensor) {
  for (size_t begin = 0; begin < tensor.size();) {
    const size_t end = std::min(tensor.find('.', begin), tensor.size());
    if (end > begin && std::all_of(tensor.begin() + static_cast<std::ptrdiff_t>(begin),
                                   tensor.begin() + static_cast<std::ptrdiff_t>(end), absl::ascii_isdigit)) {
      return tensor.substr(0, end);
    }
    begin = end + 1;
  }
  return tensor.substr(0, tensor.find('.'));
}

ParameterLayout DeclaredLayoutOf(const Workload& workload, std::vector<int>& place) {
  const size_t count = workload.tensors.size();
  std::vector<size_t> at(count);  // the tensor that is declared at each position
  place.clear();
  for (size_t i = 0; i < count; ++i) {
    const int declared = workload.tensors[i].declared;
    place.push_back(declared >= 0 ? declared : static_cast<int>(count - 1 - i));
    at[static_cast<size_t>(place.back())] = i;
  }
  ParameterLayout layout(/*alignment=*/1);
  for (const size_t i : at) {
    layout.Add(workload.tensors[i].name, {static_cast<int>(workload.tensors[i].bytes / 4)});
  }
  return layout;
}

std::vector<double> BucketReadyMs(const Workload& workload, const std::vector<Bucket>& buckets) {
  std::vector<double> ready;
  size_t tensor = 0;
  size_t done = 0, wanted = 0;  // elements, counted from the end of the flat buffer
  for (const Bucket& bucket : buckets) {
    wanted += bucket.count;
    for (; done < wanted; ++tensor) {
      PSRING_CHECK(tensor < workload.tensors.size());
      done += static_cast<size_t>(workload.tensors[tensor].bytes) / 4;
    }
    ready.push_back(tensor == 0 ? 0 : workload.tensors[tensor - 1].ready_ms);
  }
  return ready;
}

}  // namespace psring
