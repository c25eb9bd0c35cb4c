// Holds the tree to its plan: who may include whom, where gRPC may be seen, and that builds are chosen by
// file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace psring {
namespace {

namespace fs = std::filesystem;

struct SourceFile {
  std::string room;  // top-level folder
  std::string path;  // from the root
  std::vector<std::string> lines;
};

std::vector<SourceFile> ReadSources() {
  const fs::path root = PSRING_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* room : {"common", "ring_worker", "ps_server", "trainer", "experiments", "tests"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu") continue;
      SourceFile file{room, fs::relative(entry.path(), root).string(), {}};
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  return files;
}

// The word behind `#` of a preprocessor line, and what follows it; two empty strings for other lines.
std::pair<std::string, std::string> Directive(const std::string& line) {
  std::istringstream in(line);
  std::string word, rest;
  if (!(in >> word) || word[0] != '#') return {};
  if (word == "#") {
    in >> word;
  } else {
    word.erase(0, 1);
  }
  std::getline(in, rest);
  return {word, rest};
}

// The included path, or empty.
std::string Included(const std::string& line) {
  const auto [word, rest] = Directive(line);
  if (word != "include") return "";
  const size_t first = rest.find_first_of("\"<");
  const size_t last = rest.find_last_of("\">");
  return first < last && last != std::string::npos ? rest.substr(first + 1, last - first - 1) : "";
}

std::string Room(const std::string& path) { return path.substr(0, path.find('/')); }

// What a room may include of other rooms: "common/" for a whole room, or one header.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"common", {}},
    {"ring_worker", {"common/"}},
    {"ps_server", {"common/"}},
    {"trainer",
     {"common/", "ring_worker/process_group.h", "ps_server/ps_client.h", "ps_server/inline_server.h",
      "ps_server/server_job.h"}},
    {"experiments",
     {"common/", "ring_worker/schedule.h", "ps_server/consistency.h", "ps_server/admission.h"}},
};

// The only files that see generated messages and gRPC.
const std::set<std::string> kMaySeeGrpc = {"common/rendezvous.cc",
                                           "experiments/compare/tensorboard.cc",
                                           "ps_server/service.cc",
                                           "ps_server/grpc_client.cc",
                                           "ps_server/grpc_client.h",
                                           "ps_server/grpc_client_loop.cc",
                                           "ps_server/own_sockets.h",
                                           "ps_server/own_sockets.cc",
                                           "ps_server/service_connection.h",
                                           "ps_server/service_connection.cc",
                                           "ps_server/checkpoint_file.cc",
                                           "ps_server/wire.cc",
                                           "ps_server/wire.h"};

TEST(Structure, RoomsIncludeOnlyWhatThePlanAllows) {
  for (const SourceFile& file : ReadSources()) {
    const auto rule = kMayInclude.find(file.room);
    if (rule == kMayInclude.end()) continue;  // tests may look everywhere
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      const std::string room = Room(included);
      if (included.empty() || room == file.room || !kMayInclude.contains(room)) continue;
      EXPECT_TRUE(rule->second.contains(room + "/") || rule->second.contains(included))
          << file.path << " includes " << included << ", which " << file.room << " may not";
    }
  }
}

TEST(Structure, GrpcAndGeneratedHeadersStayInFewFiles) {
  for (const SourceFile& file : ReadSources()) {
    if (file.room == "tests" || kMaySeeGrpc.contains(file.path)) continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      EXPECT_FALSE(Room(included) == "grpcpp" || Room(included) == "grpc" || Room(included) == "google" ||
                   included.ends_with(".pb.h"))
          << file.path << " includes " << included;
    }
  }
}

TEST(Structure, OtherPeoplesHeavyHeadersStayOutOfOurHeaders) {
  for (const SourceFile& file : ReadSources()) {
    if (!file.path.ends_with(".h") || file.room == "tests") continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      if (included == "nlohmann/json_fwd.hpp") continue;  // names alone
      EXPECT_FALSE(included.starts_with("nlohmann/") || included.starts_with("CLI/"))
          << file.path << " " << included;
    }
  }
}

TEST(Structure, BuildsAreChosenByFileNotByIfdef) {
  const std::set<std::string> conditional = {"if", "ifdef", "ifndef", "elif"};
  for (const SourceFile& file : ReadSources()) {
    for (const std::string& line : file.lines) {
      if (!conditional.contains(Directive(line).first)) continue;
      // What the compiler or processor is may be asked; which features were found may not.
      EXPECT_TRUE(line.find("__x86_64__") != std::string::npos ||
                  line.find("__SANITIZE") != std::string::npos ||
                  line.find("__CUDACC__") != std::string::npos)
          << file.path << ": " << line;
    }
  }
}

}  // namespace
}  // namespace psring
