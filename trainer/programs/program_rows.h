// The table of training-step programs. Each row makes the computation of whole stages; to add a program, add
// a function and a row. Functions with a `rows` parameter accept another table. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/programs/step_program.h"

namespace psring {

struct ProgramRow {
  const char* name;
  const char* summary;
  // Only forward and backward of whole stages. `ranks`, `chunks` (stages per rank) and `micro_batches` are at
  // least 1.
  StepProgram (*make)(int ranks, int chunks, int micro_batches);
  bool takes_chunks = false;      // "interleaved:V"; otherwise a rank has one stage
  bool one_rank = false;          // the model is not cut
  bool divides_backward = false;  // into kBackwardInput and kBackwardWeight
  bool asynchronous = false;      // weights are updated without a flush: StepProgram::update_every
  // The part of the step in which a rank has nothing to compute, if all stages take equal time, input and
  // weight gradients take as long as forward, and messages take none. Null: no closed form; nothing: none for
  // these numbers.
  std::optional<double> (*bubble)(int ranks, int chunks, int micro_batches) = nullptr;
  const char* formula = "";  // of `bubble`, with p ranks, V chunks and m micro-batches

  // "interleaved:V" in the table.
  std::string display_name() const { return takes_chunks ? std::string(name) + ":V" : name; }
};
using ProgramTable = std::vector<ProgramRow>;

const ProgramTable& ProgramRows();

// A row with the number of stages per rank.
struct NamedProgram {
  ProgramRow row;
  int chunks = 1;

  // "1f1b", "interleaved:2".
  std::string name() const;
};

// "1f1b", "interleaved:2". NotFound: an unknown name; suggests the nearest and lists all. InvalidArgument:
// the number is missing, too small, too large, or not accepted.
absl::StatusOr<NamedProgram> FindStepProgram(const std::string& name,
                                             const ProgramTable& rows = ProgramRows());

// The computation of `program`. InvalidArgument: fewer than one rank or micro-batch, a program for one rank
// with more, or more actions than fit in memory (2^26).
absl::StatusOr<StepProgram> MakeStepProgram(const NamedProgram& program, int ranks, int micro_batches);

}  // namespace psring
