#include "experiments/host/processor.h"

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace psring {
namespace {

// The kernel's names. All that begin with amx_ are listed, too.
constexpr std::array kInstructionSets = {"avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni"};

bool Matters(absl::string_view flag) {
  return absl::StartsWith(flag, "amx_") ||
         std::find(kInstructionSets.begin(), kInstructionSets.end(), flag) != kInstructionSets.end();
}

// The listed sets in the order of kInstructionSets, then those of AMX.
std::string InstructionSets(absl::string_view flags) {
  std::vector<absl::string_view> found;
  for (absl::string_view flag : absl::StrSplit(flags, ' ', absl::SkipEmpty())) {
    if (Matters(flag)) found.push_back(flag);
  }
  std::ranges::stable_sort(found, {}, [](absl::string_view flag) {
    return std::find(kInstructionSets.begin(), kInstructionSets.end(), flag) - kInstructionSets.begin();
  });
  return absl::StrJoin(found, " ");
}

}  // namespace

Processor ParseProcessor(const std::string& cpuinfo) {
  Processor processor;
  for (absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (absl::StripAsciiWhitespace(line).empty()) break;  // the next processor follows
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() != 2) continue;
    const absl::string_view key = absl::StripAsciiWhitespace(parts[0]);
    const absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
    const auto read = [&value](int& number) {
      if (int read = 0; absl::SimpleAtoi(value, &read)) number = read;
    };
    if (key == "model name") processor.name = std::string(value);
    if (key == "cpu family") read(processor.family);
    if (key == "model") read(processor.model);
    if (key == "stepping") read(processor.stepping);
    if (key == "flags") processor.instruction_sets = InstructionSets(value);
  }
  return processor;
}

std::string ProcessorText(const Processor& processor) {
  std::vector<std::string> numbers;
  for (const auto& [name, value] : {std::pair{"family", processor.family},
                                    {"model", processor.model},
                                    {"stepping", processor.stepping}}) {
    if (value >= 0) numbers.push_back(absl::StrCat(name, " ", value));
  }
  std::vector<std::string> details;
  if (!numbers.empty()) details.push_back(absl::StrJoin(numbers, ", "));
  if (!processor.instruction_sets.empty()) details.push_back(processor.instruction_sets);
  if (details.empty()) return processor.name;
  return absl::StrCat(processor.name, processor.name.empty() ? "(" : " (", absl::StrJoin(details, "; "), ")");
}

}  // namespace psring
