// Checks the source tree's structure: which folder includes which, where gRPC is visible, that optional parts
// are selected by building different files, and the sizes of folders and files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace psring {
namespace {

namespace fs = std::filesystem;

const char* const kTopFolders[] = {"common", "ring_worker", "ps_server", "trainer", "experiments", "tests"};

std::string Top(const std::string& path) { return path.substr(0, path.find('/')); }

struct SourceFile {
  std::string path;  // from the root
  std::vector<std::string> lines;

  std::string folder() const { return fs::path(path).parent_path(); }
  std::string top() const { return Top(path); }
  bool is_test() const { return top() == "tests"; }
};

std::vector<SourceFile> ReadSources() {
  const fs::path root = PSRING_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const char* top : kTopFolders) {
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc" && extension != ".cu") continue;
      SourceFile file{fs::relative(entry.path(), root).string(), {}};
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  return files;
}

// The word after `#` of a preprocessor line, and the rest of the line; two empty strings for other lines.
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

// Edges between the folders of our own sources, each with one file that causes it.
using Graph = std::map<std::string, std::map<std::string, std::string>>;

Graph IncludeGraph(const std::vector<SourceFile>& files) {
  std::set<std::string> paths;
  for (const SourceFile& file : files) paths.insert(file.path);
  Graph graph;
  for (const SourceFile& file : files) {
    if (file.is_test()) continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      const std::string to = fs::path(included).parent_path();
      if (!paths.contains(included) || to == file.folder()) continue;
      graph[file.folder()][to] = file.path + " includes " + included;
    }
  }
  return graph;
}

// A cycle that can be reached from `folder`, its first folder repeated at the end; empty if there is none.
// `path`: the folders that led here; `done`: folders known to reach no cycle.
std::vector<std::string> FindCycle(const Graph& graph, const std::string& folder,
                                   std::vector<std::string>& path, std::set<std::string>& done) {
  if (const auto first = std::find(path.begin(), path.end(), folder); first != path.end()) {
    std::vector<std::string> cycle(first, path.end());
    cycle.push_back(folder);
    return cycle;
  }
  const auto edges = graph.find(folder);
  if (edges == graph.end() || done.contains(folder)) return {};
  path.push_back(folder);
  for (const auto& [to, cause] : edges->second) {
    if (auto cycle = FindCycle(graph, to, path, done); !cycle.empty()) return cycle;
  }
  path.pop_back();
  done.insert(folder);
  return {};
}

// What a top-level folder may include of the others: "common/" for all of its folders, or one header.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"common", {}},
    {"ring_worker", {"common/"}},
    {"ps_server", {"common/"}},
    {"trainer",
     {"common/", "ring_worker/groups/channel.h", "ring_worker/groups/process_group.h",
      "ring_worker/schedules/schedule.h", "ring_worker/schedules/schedule_traffic.h",
      "ps_server/client/ps_client.h", "ps_server/server/inline_server.h", "ps_server/protocol/server_job.h"}},
    {"experiments",
     {"common/", "ring_worker/schedules/schedule.h", "ring_worker/schedules/default_algorithm.h",
      "ring_worker/schedules/lowered_schedule.h", "ring_worker/schedules/schedule_check.h",
      "ring_worker/schedules/schedule_traffic.h", "ps_server/bench/wire_rate.h",
      "ps_server/consistency/consistency.h", "ps_server/consistency/admission.h",
      "trainer/models/table/model_table.h", "trainer/programs/cuts.h", "trainer/programs/lower_program.h",
      "trainer/programs/mesh.h", "trainer/programs/pipeline_flags.h", "trainer/programs/program_rows.h",
      "trainer/programs/step_program.h", "trainer/programs/walk_program.h",
      "trainer/strategies/table/cost_model.h", "trainer/strategies/table/strategy_table.h"}},
};

// The verb in whose folder `path` is; empty: it is not in one. What several verbs need is outside verbs/.
std::string VerbOf(const std::string& path) {
  const std::string verbs = "experiments/verbs/";
  return path.starts_with(verbs) ? path.substr(0, path.find('/', verbs.size())) : "";
}

// The only folders and files that see generated messages and gRPC.
const std::set<std::string> kMaySeeGrpc = {"common/net/grpc_waiting.h",
                                           "common/rendezvous/rendezvous.cc",
                                           "common/rendezvous/rendezvous_server.cc",
                                           "common/rendezvous/rendezvous_service.cc",
                                           "common/rendezvous/rendezvous_service.h",
                                           "experiments/run_folder/tensorboard.cc",
                                           "ps_server/wire"};

TEST(Structure, FoldersIncludeOneAnotherWithoutCycles) {
  const std::vector<SourceFile> files = ReadSources();
  const Graph graph = IncludeGraph(files);
  ASSERT_GT(graph.size(), 30u);
  std::set<std::string> done;
  for (const auto& [folder, edges] : graph) {
    std::vector<std::string> path;
    const std::vector<std::string> cycle = FindCycle(graph, folder, path, done);
    for (size_t i = 1; i < cycle.size(); ++i) {
      ADD_FAILURE() << "part of a cycle: " << graph.at(cycle[i - 1]).at(cycle[i]);
    }
    if (!cycle.empty()) return;
  }
}

TEST(Structure, TopFoldersIncludeOnlyWhatIsAllowed) {
  for (const SourceFile& file : ReadSources()) {
    const auto rule = kMayInclude.find(file.top());
    if (rule == kMayInclude.end()) continue;  // tests may include everything
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      const std::string top = Top(included);
      if (included.empty() || top == file.top() || !kMayInclude.contains(top)) continue;
      EXPECT_TRUE(rule->second.contains(top + "/") || rule->second.contains(included))
          << file.path << " includes " << included << ", which " << file.top() << " may not";
    }
  }
}

// Only the program itself includes all verbs.
TEST(Structure, NoVerbIncludesAnotherVerb) {
  std::set<std::string> verbs;
  for (const SourceFile& file : ReadSources()) {
    const std::string verb = VerbOf(file.path);
    if (!verb.empty()) verbs.insert(verb);
    if (file.folder() == "experiments" || file.is_test()) continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line), other = VerbOf(included);
      EXPECT_TRUE(other.empty() || other == verb) << file.path << " includes " << included;
    }
  }
  EXPECT_GT(verbs.size(), 5u);
}

TEST(Structure, GrpcAndGeneratedHeadersStayInFewFiles) {
  for (const SourceFile& file : ReadSources()) {
    if (file.is_test() || kMaySeeGrpc.contains(file.path) || kMaySeeGrpc.contains(file.folder())) continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      EXPECT_FALSE(Top(included) == "grpcpp" || Top(included) == "grpc" || Top(included) == "google" ||
                   included.ends_with(".pb.h"))
          << file.path << " includes " << included;
    }
  }
}

TEST(Structure, HeadersDoNotIncludeLargePackages) {
  for (const SourceFile& file : ReadSources()) {
    if (!file.path.ends_with(".h") || file.is_test()) continue;
    for (const std::string& line : file.lines) {
      const std::string included = Included(line);
      if (included == "nlohmann/json_fwd.hpp") continue;
      EXPECT_FALSE(included.starts_with("nlohmann/") || included.starts_with("CLI/"))
          << file.path << " " << included;
    }
  }
}

// A deadline by the wall clock passes, or never passes, when somebody sets the clock. These files show it to
// users.
TEST(Structure, OnlyWhatIsShownReadsTheWallClock) {
  const std::regex reads(
      "absl::Now\\(|WallNow\\(|system_clock|CLOCK_REALTIME|gettimeofday|[^\\w.>]time\\(nullptr\\)");
  const std::set<std::string> shows = {"common/base/wall_time.h",
                                       "common/net/tls.cc",
                                       "experiments/verbs/bench/bench.cc",
                                       "experiments/verbs/compare/experiment.cc",
                                       "experiments/verbs/compare/prepare.cc",
                                       "experiments/verbs/predict/layout_answer.cc",
                                       "experiments/verbs/predict/predict.cc",
                                       "tests/common/net/tls_test.cc",
                                       "tests/experiments/launch/clock_off.cc",
                                       "tests/site_certificates.h",
                                       "tests/structure_test.cc"};
  for (const SourceFile& file : ReadSources()) {
    if (shows.contains(file.path)) continue;
    for (const std::string& line : file.lines) {
      EXPECT_FALSE(std::regex_search(line, reads)) << file.path << ": " << line;
    }
  }
}

TEST(Structure, OptionalPartsAreSelectedByFileNotByIfdef) {
  const std::set<std::string> conditional = {"if", "ifdef", "ifndef", "elif"};
  for (const SourceFile& file : ReadSources()) {
    for (const std::string& line : file.lines) {
      if (!conditional.contains(Directive(line).first)) continue;
      // Sources may ask which compiler or processor they are compiled for, but not which parts were found.
      EXPECT_TRUE(line.find("__x86_64__") != std::string::npos ||
                  line.find("__SANITIZE") != std::string::npos ||
                  line.find("__CUDACC__") != std::string::npos)
          << file.path << ": " << line;
    }
  }
}

// The linker would merge them without an error, if one program contained both.
TEST(Structure, NoTwoClassesHaveOneName) {
  const std::regex begins("namespace ?(\\w*(::\\w+)*) \\{[^}]*");
  const std::regex ends("\\}( {2}// namespace.*)?"), declares("(class|struct|enum) .*;");
  const std::regex defines("(class|struct) (\\[\\[\\w+\\]\\] )?([A-Z]\\w*)( final)?( :.*| \\{.*)");
  std::map<std::string, std::string> where;  // by full name
  for (const SourceFile& file : ReadSources()) {
    if (file.is_test()) continue;
    std::vector<std::string> namespaces;
    std::string before;
    for (const std::string& line : file.lines) {
      std::smatch match;
      if (std::regex_match(line, match, begins)) {
        namespaces.push_back(match[1].str() + "::");
      } else if (std::regex_match(line, match, ends)) {
        // A line with only a brace ends a function, or a namespace that only declares.
        if (match[1].matched || std::regex_match(before, declares)) {
          ASSERT_FALSE(namespaces.empty()) << file.path;
          namespaces.pop_back();
        }
      } else if (std::regex_match(line, match, defines)) {
        std::string name = match[3];
        bool is_local = false;  // in an unnamed namespace
        for (auto outer = namespaces.rbegin(); outer != namespaces.rend(); ++outer) {
          is_local = is_local || *outer == "::";
          name = *outer + name;
        }
        if (!is_local) {
          EXPECT_TRUE(where.emplace(name, file.path).second)
              << name << " is in " << file.path << " and in " << where[name];
        }
      }
      before = line;
    }
    EXPECT_TRUE(namespaces.empty()) << file.path;
  }
  EXPECT_GT(where.size(), 500);
}

// The files of a library are compiled together, so a function in an unnamed namespace would be an overload of
// another file's function, and might be called in its place.
TEST(Structure, FunctionsOfUnnamedNamespacesHaveDifferentNamesWithinAFolder) {
  const std::regex defines("(template <.*> )?[A-Za-z_][\\w:<>,&* ]*[ &*]([A-Z]\\w*)\\(.*");
  std::map<std::pair<std::string, std::string>, std::pair<std::string, bool>> where;  // file, whether unnamed
  for (const SourceFile& file : ReadSources()) {
    if (file.is_test() || !file.path.ends_with(".cc")) continue;
    bool is_unnamed = false;
    for (const std::string& line : file.lines) {
      std::smatch match;
      if (line == "namespace {") is_unnamed = true;
      if (line == "}  // namespace") is_unnamed = false;
      if (!std::regex_match(line, match, defines)) continue;
      const auto [other, is_new] =
          where.emplace(std::pair(file.folder(), match[2].str()), std::pair(file.path, is_unnamed));
      if (is_new || other->second.first == file.path) continue;
      EXPECT_FALSE(is_unnamed || other->second.second)
          << match[2] << " is in " << file.path << " and in " << other->second.first;
    }
  }
  EXPECT_GT(where.size(), 1000u);
}

TEST(Structure, EveryTestIsCompiled) {
  const fs::path root = PSRING_SOURCE_DIR;
  std::set<std::string> compiled;
  for (const auto& entry : fs::recursive_directory_iterator(root / "tests")) {
    if (entry.path().filename() != "CMakeLists.txt") continue;
    std::ifstream in(entry.path());
    for (std::string word; in >> word;) {
      compiled.insert(fs::relative(entry.path().parent_path(), root) / word.substr(0, word.find(')')));
    }
  }
  for (const SourceFile& file : ReadSources()) {
    if (!file.path.ends_with("_test.cc")) continue;
    EXPECT_TRUE(compiled.contains(file.path)) << file.path << " is in no CMakeLists.txt";
  }
}

TEST(Structure, CtestRunsTestsInEnglish) {
  if (std::getenv("PSRING_SKIPPED_EXIT_CODE") == nullptr) GTEST_SKIP() << "ctest did not start this";
  EXPECT_STREQ(std::getenv("PSRING_LANG"), "en");
}

TEST(Structure, FoldersAndFilesAreSmall) {
  std::map<std::string, int> files_of_folder;
  for (const SourceFile& file : ReadSources()) {
    if (file.is_test()) continue;
    ++files_of_folder[file.folder()];
    EXPECT_LT(file.lines.size(), 450u) << file.path;
  }
  for (const auto& [folder, files] : files_of_folder) EXPECT_LT(files, 25) << folder;
}

}  // namespace
}  // namespace psring
