// Starts programs in tests and collects their output and exit status.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/file_descriptor.h"
#include "common/device/child_process.h"
#include "common/io/files.h"
#include "common/measure/records.h"
#include "common/rendezvous/launched_as.h"
#include "tests/eventually.h"
#include "tests/test_folder.h"

namespace psring {

// A process, killed by the destructor with its process group. psring's children die with psring.
class Started {
 public:
  Started(const std::vector<std::string>& command, const std::vector<std::string>& environment,
          const ChildNetwork& place = {}) {
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
      EXPECT_TRUE(Eventually([this] { return process_.TryWait(); }));
    }
    out_.Close();
    err_.Close();
  }
  Started(const Started&) = delete;

  // Reads its output so far. True while it runs.
  bool Look() {
    const bool running = process_.running && !process_.TryWait();
    out_.Read([this](const std::string& line) { absl::StrAppend(&output_, line, "\n"); });
    err_.Read([this](const std::string& line) { absl::StrAppend(&errors_, line, "\n"); });
    return running;
  }
  void Signal(int signal) { kill(process_.pid, signal); }
  pid_t pid() const { return process_.pid; }
  bool Succeeded() const { return process_.Succeeded(); }
  bool EndedWith(int exit_code) const { return process_.EndedWith(exit_code); }
  // Of a shell: 128 and the number of the signal that killed it.
  int exit_code() const {
    return process_.Signalled() ? 128 + WTERMSIG(process_.wait_status) : WEXITSTATUS(process_.wait_status);
  }
  const std::string& output() const { return output_; }
  const std::string& errors() const { return errors_; }
  std::string Story() const { return absl::StrCat(process_.HowItEnded(), "\n", output_, errors_); }

 private:
  ChildProcess process_;
  LineReader out_, err_;
  std::string output_, errors_;
};

using StartedOnes = std::vector<std::unique_ptr<Started>>;

// Reads the output of `one` until `condition()` holds; false: it has ended before, or a minute has passed.
template <typename Condition>
bool WaitUntil(Started& one, const Condition& condition) {
  bool holds = false;
  (void)Eventually([&] {
    const bool runs = one.Look();
    holds = condition();
    return holds || !runs;
  });
  return holds;
}

// The same for all `ones`; false also if one of them has ended before.
template <typename Condition>
bool WaitUntil(const StartedOnes& ones, const Condition& condition) {
  bool holds = false;
  (void)Eventually([&] {
    bool all_run = true;
    for (const auto& one : ones) all_run = one->Look() && all_run;
    holds = condition();
    return holds || !all_run;
  });
  return holds;
}

// Waits until all have ended; false: some had not after a minute.
inline bool WaitForAll(const StartedOnes& ones) {
  return Eventually([&] {
    bool running = false;
    for (const auto& one : ones) running = one->Look() || running;
    return !running;
  });
}

// Expects that all end within a minute, and with 0.
inline void ExpectSuccess(const StartedOnes& ones) {
  EXPECT_TRUE(WaitForAll(ones));
  for (const auto& one : ones) EXPECT_TRUE(one->Succeeded()) << one->Story();
}

inline std::vector<std::string> Words(const std::string& text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

inline std::vector<std::string> Command(const std::string& program, const std::string& arguments) {
  std::vector<std::string> command = {program};
  for (const std::string& word : Words(arguments)) command.push_back(word);
  return command;
}

// `arguments` are split at spaces.
inline std::unique_ptr<Started> StartProgram(const std::string& program, const std::string& arguments,
                                             const std::vector<std::string>& environment = {},
                                             const ChildNetwork& place = {}) {
  return std::make_unique<Started>(Command(program, arguments), environment, place);
}
// Waits for the end, which is expected within a minute.
inline std::unique_ptr<Started> Ended(std::unique_ptr<Started> one) {
  EXPECT_TRUE(Eventually([&] { return !one->Look(); })) << one->Story();
  return one;
}

// The same, with success.
inline std::unique_ptr<Started> Succeeded(std::unique_ptr<Started> one) {
  one = Ended(std::move(one));
  EXPECT_TRUE(one->Succeeded()) << one->Story();
  return one;
}

// psring's flags for node `node` of several on the loopback, which meet at `port`.
inline std::string OnLoopback(int node, int port, int nodes = 2) {
  return absl::StrCat(" --nnodes ", nodes, " --master_addr 127.0.0.1 --bind 127.0.0.1 --master_port ", port,
                      " --node_rank ", node);
}

// A free port below the ephemeral ports, so that connections of other programs do not take it in the
// meantime.
inline int FreePort() {
  static int next = getpid() % 16384;
  for (int tries = 0; tries < 16384; ++tries) {
    const int port = 12000 + next++ % 16384;
    const FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
  }
  ADD_FAILURE() << "no free port";
  return 0;
}

// Why PSRING_SLURM_SCRIPT cannot start Slurm here; empty: it can.
inline std::string WhyNoSlurm() {
  for (const char* program :
       {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/srun", "/usr/sbin/munged"}) {
    if (access(program, X_OK) != 0) return absl::StrCat("no ", program, ": install slurm-wlm and munge");
  }
  return geteuid() == 0 ? "" : "starting Slurm needs root";
}

// A test with its own folder and without a launcher's variables in its environment.
class LaunchTest : public testing::Test {
 protected:
  LaunchTest() { ForgetLauncher(); }

  std::string Folder(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  // The weights' hashes of all ranks with records below `folder`.
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

  const TestFolder made_;
  const std::string folder_ = made_.path();
};

}  // namespace psring
