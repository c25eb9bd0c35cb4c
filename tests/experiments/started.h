// Programs that a test starts and waits for, each with what it said and how it ended.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/rendezvous/launched_as.h"
#include "experiments/processes/child_process.h"

namespace psring {

// One process; ended with this, and everything that it started with it.
class Started {
 public:
  Started(const std::vector<std::string>& command, const std::vector<std::string>& environment,
          const NetworkPlace& place = {}) {
    signal(SIGINT, SIG_DFL);  // a background job of a script ignores it
    auto started = StartProcess(command, environment, /*group=*/0, place);
    EXPECT_TRUE(started.ok()) << started.status();
    if (!started.ok()) return;
    process_ = *started;
    out_ = LineReader(process_.out_fd);
    err_ = LineReader(process_.err_fd);
  }
  ~Started() {
    if (process_.running) {
      kill(-process_.pid, SIGKILL);
      while (!process_.TryWait()) absl::SleepFor(absl::Milliseconds(5));
    }
    out_.Close();
    err_.Close();
  }
  Started(const Started&) = delete;

  // Takes in what it has said so far. True while it runs.
  bool Look() {
    const bool running = process_.running && !process_.TryWait();
    out_.Read([this](const std::string& line) { absl::StrAppend(&output_, line, "\n"); });
    err_.Read([this](const std::string& line) { absl::StrAppend(&errors_, line, "\n"); });
    return running;
  }
  void Signal(int signal) { kill(process_.pid, signal); }
  pid_t pid() const { return process_.pid; }
  bool Succeeded() const { return process_.Succeeded(); }
  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }
  std::string Story() const { return absl::StrCat(process_.HowItEnded(), "\n", output_, errors_); }

 private:
  ChildProcess process_;
  LineReader out_, err_;
  std::string output_, errors_;
};

using StartedOnes = std::vector<std::unique_ptr<Started>>;

// Until all have ended; false: after a minute some had not.
inline bool WaitForAll(StartedOnes& ones) {
  for (const absl::Time deadline = absl::Now() + absl::Minutes(1); absl::Now() < deadline;) {
    bool running = false;
    for (const auto& one : ones) running = one->Look() || running;
    if (!running) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

// A test with a folder of its own, and with nobody's numbers in its environment.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest() {
    ForgetLauncher();
    std::string name = (std::filesystem::temp_directory_path() / "psring-launch-XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~LaunchTest() override { std::filesystem::remove_all(folder_); }

  std::string Folder(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // Of this host; nobody has it now.
  static int FreePort() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    close(fd);
    return ntohs(address.sin_port);
  }

  // The weights' hashes of all ranks whose records are somewhere below `folder`; one, where all are equal.
  static std::vector<std::string> Weights(const std::string& folder) {
    std::vector<std::string> hashes;
    std::error_code error;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, error)) {
      if (!entry.path().filename().string().starts_with("result-rank")) continue;
      const auto result = RankResultFromJson(ReadFile(entry.path().string()).value_or(""));
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) hashes.push_back(result->weights_hash);
    }
    return hashes;
  }

  std::string folder_;
};

inline std::vector<std::string> Words(const std::string& text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

inline std::vector<std::string> Command(const std::string& program, const std::string& arguments) {
  std::vector<std::string> command = {program};
  for (const std::string& word : Words(arguments)) command.push_back(word);
  return command;
}

}  // namespace psring
