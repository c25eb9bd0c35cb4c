#include "common/workloads/workload.h"

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/check.h"
#include "common/io/csv.h"
#include "common/io/files.h"
#include "common/suggestions/suggestions.h"
#include "common/workloads/workload_tables.h"

namespace psring {
namespace {

constexpr char kColumns[] = "name,bytes,ready_ms";
constexpr char kDeclared[] = ",declared";

// Elements of a tensor are counted in an int, and times in int64 nanoseconds after division by a speedup.
constexpr int64_t kMostTensorBytes = int64_t{4} * INT32_MAX, kMostBytes = int64_t{1} << 40;
constexpr size_t kMostTensors = 100'000;
constexpr double kMostMs = 3.6e6;  // an hour
constexpr int kMostBatch = 1'000'000;
constexpr double kMostFlops = 1e21;

// Parses the lines of one file.
class Reader {
 public:
  explicit Reader(const std::string& name) { workload_.name = name; }

  absl::Status Line(std::string text) {
    ++line_;
    absl::StripAsciiWhitespace(&text);
    if (text.empty()) return absl::OkStatus();
    if (text.front() == '#') return Header(text.substr(1));
    // A spreadsheet may have quoted a comment or a name.
    const absl::StatusOr<std::vector<std::string>> fields = ParseCsvLine(text);
    if (!fields.ok()) return Wrong(std::string(fields.status().message()));
    text = absl::StrJoin(*fields, ",");
    if (!text.empty() && text.front() == '#') return Header(text.substr(1));
    if (!columns_) {
      const std::string given = absl::StrJoin(absl::StrSplit(text, ' ', absl::SkipEmpty()), "");
      absl::string_view columns = given;
      declared_ = absl::ConsumeSuffix(&columns, kDeclared);
      if (columns != kColumns) {
        return Wrong(absl::StrCat("the columns must be ", kColumns, " (and ", kDeclared + 1, ", if any)"));
      }
      columns_ = true;
      return absl::OkStatus();
    }
    return Tensor(text);
  }

  absl::StatusOr<Workload> Finish() {
    if (workload_.tensors.empty()) return Missing("it contains no tensor");
    if (workload_.batch == 0) return Missing("the line '# batch: N' is missing");
    if (workload_.device.empty()) return Missing("the line '# device: NAME' is missing");
    if (!forward_) return Missing("the line '# forward_ms: X' is missing");
    const double last = workload_.tensors.back().ready_ms;
    if (!backward_) workload_.backward_ms = last;
    if (workload_.backward_ms < last) {
      return Missing(
          absl::StrCat("backward_ms is ", workload_.backward_ms, ", before the last gradient at ", last));
    }
    if (declared_) PSRING_RETURN_IF_ERROR(CheckPlaces());
    return std::move(workload_);
  }

 private:
  absl::Status CheckPlaces() const {
    const int count = static_cast<int>(workload_.tensors.size());
    std::vector<bool> taken(workload_.tensors.size());
    for (const GradientTensor& tensor : workload_.tensors) {
      const bool fits = tensor.declared < count && !taken[static_cast<size_t>(tensor.declared)];
      if (!fits) {
        return Missing(absl::StrCat("the column declared must hold each number from 0 to ", count - 1,
                                    " once; ", tensor.declared, " of ", tensor.name,
                                    tensor.declared < count ? " appears twice" : " is too large"));
      }
      taken[static_cast<size_t>(tensor.declared)] = true;
    }
    return absl::OkStatus();
  }
  absl::Status Missing(const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat("workload ", workload_.name, ": ", what));
  }
  absl::Status Wrong(const std::string& what) const {
    return Missing(absl::StrCat("line ", line_, ": ", what));
  }

  absl::Status Header(const std::string& text) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    const std::string key(absl::StripAsciiWhitespace(parts.first));
    const std::string value(absl::StripAsciiWhitespace(parts.second));
    const std::pair<const char*, std::string*> texts[] = {
        {"device", &workload_.device}, {"model", &workload_.model},   {"sample", &workload_.sample},
        {"family", &workload_.family}, {"source", &workload_.source}, {"licence", &workload_.licence}};
    for (const auto& [name, text_of] : texts) {
      if (key == name) *text_of = value;
    }
    if (key == "batch" &&
        (!absl::SimpleAtoi(value, &workload_.batch) || workload_.batch < 1 || workload_.batch > kMostBatch)) {
      return Wrong(absl::StrCat("batch '", value, "' is not a whole number from 1 to ", kMostBatch));
    }
    if (key == "flops_per_sample" &&
        (!absl::SimpleAtod(value, &workload_.flops_per_sample) || !(workload_.flops_per_sample > 0) ||
         workload_.flops_per_sample > kMostFlops)) {
      return Wrong(
          absl::StrCat("flops_per_sample '", value, "' is not a number above 0 and at most ", kMostFlops));
    }
    forward_ = forward_ || key == "forward_ms";
    backward_ = backward_ || key == "backward_ms";
    if (key == "forward_ms") return Milliseconds(key, value, workload_.forward_ms);
    if (key == "backward_ms") return Milliseconds(key, value, workload_.backward_ms);
    return absl::OkStatus();
  }

  absl::Status Milliseconds(const std::string& what, absl::string_view text, double& value) const {
    if (absl::SimpleAtod(text, &value) && value >= 0 && value <= kMostMs) return absl::OkStatus();
    return Wrong(absl::StrCat(what, " '", text, "' is not a time in ms, from 0 to ", kMostMs));
  }

  absl::Status Tensor(const std::string& text) {
    // A name may contain commas: the figures are the last fields.
    std::vector<std::string> fields = absl::StrSplit(text, ',');
    if (fields.size() < (declared_ ? 4 : 3)) {
      return Wrong(absl::StrCat("'", text, "' must have the fields ", kColumns, declared_ ? kDeclared : ""));
    }
    GradientTensor tensor;
    if (declared_) {
      if (!absl::SimpleAtoi(fields.back(), &tensor.declared) || tensor.declared < 0) {
        return Wrong(absl::StrCat("declared '", fields.back(), "' is not a whole number from 0"));
      }
      fields.pop_back();
    }
    const std::string ready(absl::StripAsciiWhitespace(fields.back()));
    PSRING_RETURN_IF_ERROR(Milliseconds("ready_ms", ready, tensor.ready_ms));
    fields.pop_back();
    if (!absl::SimpleAtoi(fields.back(), &tensor.bytes) || tensor.bytes < 4 || tensor.bytes % 4 != 0) {
      return Wrong(absl::StrCat("bytes '", fields.back(), "' is not a size of float32 values"));
    }
    if (tensor.bytes > kMostTensorBytes) {
      return Wrong(absl::StrCat("bytes ", tensor.bytes, " are more than ", kMostTensorBytes,
                                "; divide the tensor into several rows"));
    }
    bytes_ += tensor.bytes;
    if (bytes_ > kMostBytes || workload_.tensors.size() == kMostTensors) {
      return Wrong(absl::StrCat("a workload has at most ", kMostTensors, " tensors of ", kMostBytes,
                                " bytes in total"));
    }
    fields.pop_back();
    tensor.name = absl::StrJoin(fields, ",");
    if (!workload_.tensors.empty() && tensor.ready_ms < workload_.tensors.back().ready_ms) {
      return Wrong(absl::StrCat("ready_ms ", ready, " comes before that of the row above (",
                                workload_.tensors.back().ready_ms,
                                "); rows must be in the order in which gradients are ready"));
    }
    workload_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  Workload workload_;
  int line_ = 0;
  int64_t bytes_ = 0;
  bool columns_ = false, declared_ = false, forward_ = false, backward_ = false;
};

bool IsPath(const std::string& name) { return absl::StrContains(name, '/') || absl::EndsWith(name, ".csv"); }

}  // namespace

int64_t Workload::bytes() const {
  int64_t sum = 0;
  for (const GradientTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

absl::StatusOr<Workload> ParseWorkload(const std::string& name, const std::string& text) {
  Reader reader(name);
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    PSRING_RETURN_IF_ERROR(reader.Line(std::string(line)));
  }
  return reader.Finish();
}

std::vector<std::string> WorkloadNames() {
  std::vector<std::string> names;
  for (const WorkloadTable& table : WorkloadTables()) names.push_back(table.name);
  return names;
}

std::string WorkloadHint(const std::string& model) {
  if (IsPath(model)) {
    return absl::StrCat("'", model, "' is a file, not a model; to replay the times in it, use --workload ",
                        model);
  }
  for (const WorkloadTable& table : WorkloadTables()) {
    if (CanonicalWord(table.name) != CanonicalWord(model)) continue;
    return absl::StrCat("psring cannot train '", model, "'; to replay its recorded times, use --workload ",
                        table.name);
  }
  return "";
}

absl::StatusOr<Workload> LoadWorkload(const std::string& name_or_path) {
  for (const WorkloadTable& table : WorkloadTables()) {
    if (name_or_path == table.name) return ParseWorkload(table.name, table.text);
  }
  if (!IsPath(name_or_path)) {
    return absl::NotFoundError(absl::StrCat(UnknownName("workload", name_or_path, WorkloadNames()).message(),
                                            ", or the path of a CSV file (./mine.csv)"));
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
