// The flags of links and of TLS.
#include <algorithm>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/cli/command_line.h"
#include "common/net/link_shaper.h"
#include "common/net/tls.h"

namespace psring {

void AddLinkFlags(CLI::App& app, LinkShape& shape) {
  constexpr char kGroup[] = "This machine's link, if psring emulates it";
  app.add_option("--link_bits_per_s", shape.bits_per_s, "Rate in each direction; 0: no limit")
      ->group(kGroup)
      ->check(RealNumber({.low = 0, .low_allowed = true}))
      ->capture_default_str();
  app.add_option("--link_burst_bytes", shape.burst_bytes, "Bytes sent at full speed after a pause")
      ->group(kGroup)
      ->check(WholeNumber(0, INT64_MAX))
      ->capture_default_str();
  app.add_option("--link_latency_s", shape.latency_s, "Latency added to outgoing data, in seconds")
      ->group(kGroup)
      ->check(RealNumber({.low = 0, .high = 10, .low_allowed = true, .high_allowed = true}))
      ->capture_default_str();
}

std::unique_ptr<LinkShaper> MakeLinkShaper(const LinkShape& shape) {
  return shape.shapes() ? std::make_unique<LinkShaper>(shape) : nullptr;
}

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
