// The text with which a run can be cited: BibTeX, a paragraph on methods, and the table as Markdown and
// LaTeX. English only.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace psring {

// From manifest.json and summary.json of a comparison or a training, of any schema_version. Pure.
// InvalidArgument: one of them is not what psring writes. Figures that the files lack are left out.
absl::StatusOr<std::string> CitationOf(const std::string& manifest, const std::string& summary);

// Of a run folder. NotFound: a file is missing.
absl::StatusOr<std::string> CiteRun(const std::string& folder);

}  // namespace psring
