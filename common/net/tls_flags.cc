#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/net/tls.h"

namespace psring {

const char kTlsHelp[] =
    "Encrypt the connections of the job's processes: auto (certificates that exist only in memory), or three "
    "PEM files; the same for all processes";

std::string CheckTls(const std::string& text) {
  const std::vector<std::string> paths = absl::StrSplit(text, ',');
  const bool complete = paths.size() == 3 && std::find(paths.begin(), paths.end(), "") == paths.end();
  if (text == "auto" || complete) return "";
  return absl::StrCat("'", text, "' is neither auto nor CERT,KEY,CA (three PEM files)");
}

void AddTlsFlag(CLI::App& app, std::string& choice) {
  app.add_option("--tls", choice, kTlsHelp)->option_text("auto|CERT,KEY,CA")->check(CheckTls);
}

}  // namespace psring
