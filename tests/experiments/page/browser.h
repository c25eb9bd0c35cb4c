// Opens reports from disk in a headless Chromium and runs the probe in them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/experiments/slurp.h"
#include "tests/test_folder.h"

namespace psring {

inline std::string FindChromium() {
  const char* path = std::getenv("PATH");
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
    for (absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
      const std::string file = absl::StrCat(folder, "/", name);
      if (access(file.c_str(), X_OK) == 0) return file;
    }
  }
  return "";
}

// Runs psring and a browser in a temporary folder. Skips without Chromium.
class BrowserTest : public testing::Test {
 protected:
  void SetUp() override {
    chromium_ = FindChromium();
    if (chromium_.empty()) GTEST_SKIP() << "Chromium is not installed; apt-get install chromium";
  }

  int Shell(const std::string& command) const {
    const int status = std::system(absl::StrCat("cd ", root_.string(), " && ", command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int Psring(const std::string& arguments) const {
    return Shell(absl::StrCat("timeout 120 ", PSRING_BINARY, " ", arguments, " >psring.out 2>psring.err"));
  }
  // Empty if psring succeeds, else what it prints on stderr.
  std::string Failure(const std::string& arguments) const {
    return Psring(arguments) == 0 ? "" : absl::StrCat("psring failed: ", Slurp(root_ / "psring.err"));
  }
  int Chromium(const std::string& arguments) const {
    return Shell(absl::StrCat("timeout 300 ", chromium_,
                              " --headless=new --no-sandbox --disable-gpu --disable-crash-reporter "
                              "--user-data-dir=profile --enable-logging=stderr ",
                              arguments));
  }

  // Returns what the probe saw in the page. `visitor`: "reads", "answers", "uses all" or "axe" (see the
  // probe).
  nlohmann::json Visit(const std::filesystem::path& page, const std::string& visitor = "uses all",
                       int width = 800) const {
    const char* axe = std::getenv("PSRING_AXE");
    const std::string probe =
        absl::StrCat("<head><script>const visitor = '", visitor, "';", Slurp(PSRING_PROBE),
                     "</script><script>", visitor == "axe" && axe != nullptr ? Slurp(axe) : "", "</script>");
    std::ofstream(root_ / "probed.html") << absl::StrReplaceAll(Slurp(page), {{"<head>", probe}});
    // In virtual time, playing for 16 s takes only as long as drawing.
    const int status =
        Chromium(absl::StrCat("--window-size=", width, ",844 --virtual-time-budget=30000 --dump-dom file://",
                              (root_ / "probed.html").string(), " >dom 2>log"));
    EXPECT_EQ(status, 0) << Slurp(root_ / "log");
    EXPECT_THAT(Slurp(root_ / "log"), testing::Not(testing::HasSubstr("CONSOLE")));
    const std::string dom = Slurp(root_ / "dom");
    const size_t begin = dom.find(">PROBE"), end = dom.find("EBORP<");
    if (begin == std::string::npos || end == std::string::npos) {
      ADD_FAILURE() << "the probe wrote nothing: " << dom.substr(0, 500);
      return nlohmann::json::object();
    }
    return nlohmann::json::parse(dom.substr(begin + 6, end - begin - 6));
  }

  // Screenshots for visual inspection: desktop, phone, dark, print. PSRING_SCREENSHOTS names the folder that
  // keeps them.
  void Photograph(const std::filesystem::path& page, const std::string& name) const {
    const char* keep = std::getenv("PSRING_SCREENSHOTS");
    const std::filesystem::path folder = keep != nullptr ? keep : (root_ / "screenshots").string();
    std::filesystem::create_directories(folder);
    const std::string url = absl::StrCat("file://", page.string());
    // No window of the browser is as narrow as a phone.
    std::ofstream(root_ / "phone.html")
        << "<iframe style='border:0;width:390px;height:14900px' src='" << url << "'></iframe>";
    const std::string phone = absl::StrCat("file://", (root_ / "phone.html").string());
    struct Shot {
      const char* kind;
      std::string flags, of;
    };
    for (const Shot& shot : {Shot{"desktop.png", "--window-size=1280,9000 --screenshot=", url},
                             {"phone.png", "--window-size=500,15000 --screenshot=", phone},
                             {"dark.png", "--force-dark-mode --window-size=1280,9000 --screenshot=", url},
                             {"print.pdf", "--no-pdf-header-footer --print-to-pdf=", url}}) {
      if (keep == nullptr && std::string(shot.kind) != "print.pdf") continue;
      const std::filesystem::path file = folder / absl::StrCat(name, "-", shot.kind);
      EXPECT_EQ(Chromium(absl::StrCat("--hide-scrollbars --virtual-time-budget=3000 ", shot.flags,
                                      file.string(), " ", shot.of, " >shot.out 2>shot.log")),
                0);
      EXPECT_GT(std::filesystem::file_size(file), 20'000u) << file;
      EXPECT_THAT(Slurp(root_ / "shot.log"), testing::Not(testing::HasSubstr("CONSOLE")));
    }
  }

  std::string chromium_;
  const TestFolder made_;
  const std::filesystem::path root_ = made_.path();
};

}  // namespace psring
