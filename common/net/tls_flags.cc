#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/net/tls.h"

namespace psring {

std::string CheckTls(const std::string& text) {
  if (text == "auto") return "";
  const std::vector<std::string> paths = absl::StrSplit(text, ',');
  const bool complete = paths.size() == 3 && std::none_of(paths.begin(), paths.end(), [](const std::string& path) { return path.empty(); });
  return complete ? "" : absl::StrCat("'", text, "' is neither auto nor CERT,KEY,CA (three PEM files)");
}

void AddTlsFlag(CLI::App& app, std::string& choice) {
  app.add_option("--tls", choice,
                 "Encrypt connections between machines: auto (the job's own certificates), or CERT,KEY,CA (PEM "
                 "files). The same for all processes of the job")
      ->check(CheckTls)
      ->type_name("auto|CERT,KEY,CA")
      ->envname(kTlsVariable);
}

std::string TlsEnvironment(const std::string& choice) {
  if (choice.empty() || choice == "auto") return absl::StrCat(kTlsVariable, "=", choice);
  std::vector<std::string> paths = absl::StrSplit(choice, ',');
  for (std::string& path : paths) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    if (!error) path = absolute.string();
  }
  return absl::StrCat(kTlsVariable, "=", absl::StrJoin(paths, ","));
}

}  // namespace psring
