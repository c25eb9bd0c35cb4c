#include "experiments/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/file_descriptor.h"

namespace psring {
namespace {

constexpr size_t kLastLines = 12;

// A started child and its last output.
struct Child {
  const ChildSpec* spec = nullptr;
  ChildProcess process;
  LineReader out, err;
  std::unique_ptr<FILE, int (*)(FILE*)> log{nullptr, fclose};
  std::deque<std::string> last_lines;
  bool lost = false;  // see LaunchSpec::is_lost

  void Keep(const std::string& line, bool noise) {
    if (log != nullptr) std::fprintf(log.get(), "%s\n", line.c_str());
    if (noise) return;
    last_lines.push_back(line);
    if (last_lines.size() > kLastLines) last_lines.pop_front();
  }
};

class Launch {
 public:
  // `interrupt` may be null.
  Launch(const LaunchSpec& spec, const Interrupt* interrupt)
      : spec_(spec), interrupt_(interrupt), deadline_(MonotonicNow() + spec.deadline) {}

  absl::Status Run() {
    absl::Status verdict = StartAll();
    while (verdict.ok() && running_ > 0) {
      if (OnlyServersRun()) deadline_ = std::min(deadline_, MonotonicNow() + spec_.serving_after);
      verdict = Turn(deadline_);
    }
    if (running_ > 0) EndTheRest(absl::IsCancelled(verdict) ? spec_.interrupt_grace : spec_.grace);
    // The error quotes the last lines, which may still be in the pipes.
    for (size_t i = 0; i < children_.size(); ++i) Drain(i);
    return first_failed_ >= 0 && !absl::IsCancelled(verdict) ? Describe(first_failed_) : verdict;
  }

 private:
  absl::Status StartAll() {
    children_.reserve(spec_.children.size());
    for (const ChildSpec& child_spec : spec_.children) {
      Child& child = children_.emplace_back();
      child.spec = &child_spec;
      if (!child_spec.log_path.empty()) {
        FileDescriptor log(
            open(child_spec.log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
        child.log.reset(fdopen(log.get(), "w"));
        if (child.log != nullptr) log.release();
        if (child.log == nullptr) {
          return absl::InternalError(
              absl::StrCat("cannot write ", child_spec.log_path, ": ", strerror(errno)));
        }
      }
      PSRING_RETURN_IF_ERROR(StartChild(child));
    }
    return absl::OkStatus();
  }

  absl::Status StartChild(Child& child) {
    auto started = StartProcess(child.spec->command, child.spec->environment, group_, child.spec->network,
                                child.spec->inherits);
    if (!started.ok()) {
      return absl::InternalError(
          absl::StrCat(spec_.what, ": cannot start ", child.spec->name, ": ", started.status().message()));
    }
    child.process = *started;
    child.out = LineReader(child.process.out_fd);
    child.err = LineReader(child.process.err_fd);
    if (group_ == 0) group_ = child.process.pid;
    ++running_;
    return absl::OkStatus();
  }

  // Waits for an event, at most until `until`, and handles it.
  absl::Status Turn(MonotonicTime until) {
    std::vector<pollfd> fds = {{interrupt_ != nullptr ? interrupt_->fd() : -1, POLLIN, 0}};
    std::vector<std::pair<size_t, int>> owners;  // child; 0: stdout, 1: stderr, 2: end of the process
    for (size_t i = 0; i < children_.size(); ++i) {
      const Child& child = children_[i];
      const int sources[] = {child.out.fd(), child.err.fd(),
                             child.process.running ? child.process.pid_fd : -1};
      for (int source = 0; source < 3; ++source) {
        if (sources[source] < 0) continue;
        fds.push_back({sources[source], POLLIN, 0});
        owners.push_back({i, source});
      }
    }
    // Without pidfd in the kernel, the end of a child is found by polling.
    const int64_t longest_ms = std::ranges::any_of(children_, Unwatched)            ? 50
                               : spec_.check != nullptr || spec_.is_lost != nullptr ? 200
                                                                                    : 1000;
    const int64_t left_ms = absl::ToInt64Milliseconds(until - MonotonicNow());
    const int ready =
        poll(fds.data(), fds.size(), static_cast<int>(std::clamp<int64_t>(left_ms + 1, 0, longest_ms)));
    if (ready < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", strerror(errno)));
    if (ready > 0) {
      for (size_t k = 0; k < owners.size(); ++k) {
        if (fds[k + 1].revents == 0) continue;
        const auto [i, source] = owners[k];
        if (source < 2) {
          Read(i, source);
        } else {
          Reap(i);
        }
      }
    }
    for (size_t i = 0; i < children_.size(); ++i) {
      if (Unwatched(children_[i])) Reap(i);
    }
    if (interrupt_ != nullptr) PSRING_RETURN_IF_ERROR(interrupt_->Check());
    if (first_failed_ >= 0) return absl::AbortedError("a child failed");
    if (spec_.check != nullptr) PSRING_RETURN_IF_ERROR(spec_.check());
    EndLost();
    if (MonotonicNow() >= until && running_ > 0) return TooLate();
    return absl::OkStatus();
  }

  static bool Unwatched(const Child& child) { return child.process.running && child.process.pid_fd < 0; }

  bool OnlyServersRun() const { return !spec_.others_elsewhere && NoneButServersRun(); }
  bool NoneButServersRun() const {
    return std::ranges::none_of(
        children_, [](const Child& child) { return child.process.running && !child.spec->serves; });
  }

  void Read(size_t i, int source) {
    Child& child = children_[i];
    LineReader& reader = source == 0 ? child.out : child.err;
    reader.Read([&](const std::string& line) {
      if (source == 0 && spec_.on_line(i, line)) return;
      child.Keep(line, spec_.is_noise(line));
    });
  }

  void Drain(size_t i) {
    Read(i, 0);
    Read(i, 1);
    children_[i].out.Close();
    children_[i].err.Close();
  }

  void Reap(size_t i) {
    Child& child = children_[i];
    if (!child.process.TryWait()) return;
    --running_;
    if (child.process.Succeeded() || ending_ || Survives(i)) return;
    // If several children fail at once, a signal is likely the cause and an exit code the consequence.
    if (first_failed_ < 0 || (child.process.Signalled() && !children_[first_failed_].process.Signalled())) {
      first_failed_ = i;
    }
  }

  void EndLost() {
    for (size_t i = 0; i < children_.size() && spec_.is_lost != nullptr; ++i) {
      Child& child = children_[i];
      if (!child.process.running || child.spec->serves || child.lost) continue;
      child.lost = spec_.is_lost(i);
      if (child.lost) kill(child.process.pid, SIGKILL);  // a stopped process ignores other signals
    }
  }

  // Whether the launch continues after the child's death: it is restarted, or the others do not need it.
  bool Survives(size_t i) {
    Child& child = children_[i];
    if (child.lost) {
      spec_.on_lost(i);
      return true;
    }
    const bool killed = child.process.Signalled() || child.process.EndedWith(128 + SIGTERM);
    if (!killed) return false;
    const std::string what = absl::StrCat(child.spec->name, " ", child.process.HowItEnded());
    if (child.spec->serves && OnlyServersRun() && !spec_.several_nodes) {
      spec_.on_death(i, what, /*again=*/false);
      return true;
    }
    if (child.spec->may_return && restarted_ < spec_.restarts) {
      Drain(i);
      ++restarted_;
      if (!StartChild(child).ok()) return false;
      spec_.on_death(i, what, /*again=*/true);
      return true;
    }
    if (!child.spec->may_die || (NoneButServersRun() && !spec_.others_elsewhere)) return false;
    spec_.on_death(i, what, /*again=*/false);
    return true;
  }

  void Signal(int signal, const std::function<bool(const Child&)>& whom) {
    for (const Child& child : children_) {
      if (child.process.running && whom(child)) kill(child.process.pid, signal);
    }
  }

  void EndTheRest(absl::Duration grace) {
    ending_ = true;
    const MonotonicTime deadline = MonotonicNow() + grace;
    // Workers may still need their servers.
    const auto is_server = [](const Child& child) { return child.spec->serves; };
    const auto all_ended = [this] { return running_ == 0; };
    Signal(SIGTERM, std::not_fn(is_server));
    ReapUntil(deadline, [this] { return NoneButServersRun(); });
    Signal(SIGTERM, is_server);
    ReapUntil(std::max(deadline, MonotonicNow() + spec_.grace), all_ended);
    Signal(SIGKILL, [](const Child&) { return true; });
    // The kernel may take a moment to kill a process.
    ReapUntil(MonotonicNow() + absl::Seconds(2), all_ended);
  }

  // Polls, because the interrupt's pipe stays readable.
  void ReapUntil(MonotonicTime deadline, const std::function<bool()>& done) {
    while (!done()) {
      for (size_t i = 0; i < children_.size(); ++i) {
        Read(i, 0);
        Read(i, 1);
        if (children_[i].process.running) Reap(i);
      }
      if (MonotonicNow() >= deadline) return;
      if (!done()) absl::SleepFor(absl::Milliseconds(5));
    }
  }

  absl::Status TooLate() const {
    std::vector<std::string> missing;
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i].process.running) continue;
      const std::string known = spec_.last_known(i);
      missing.push_back(known.empty() ? children_[i].spec->name
                                      : absl::StrCat(children_[i].spec->name, " (", known, ")"));
    }
    const absl::Duration waited = absl::Trunc(MonotonicNow() - begin_, absl::Milliseconds(100));
    return absl::DeadlineExceededError(absl::StrCat(spec_.what, ": not done after ",
                                                    absl::FormatDuration(waited), "; still waiting for ",
                                                    absl::StrJoin(missing, ", ")));
  }

  absl::Status Describe(int i) const {
    const Child& child = children_[i];
    std::string message = absl::StrCat(spec_.what, ": ", child.spec->name, " ", child.process.HowItEnded());
    if (const std::string known = spec_.last_known(i); !known.empty()) absl::StrAppend(&message, ", ", known);
    if (child.last_lines.empty()) {
      absl::StrAppend(&message, "; it printed nothing");
    } else {
      absl::StrAppend(&message, "; its last lines:");
      for (const std::string& line : child.last_lines) absl::StrAppend(&message, "\n  | ", line);
    }
    return child.process.EndedWith(2) ? absl::InvalidArgumentError(message) : absl::AbortedError(message);
  }

  const LaunchSpec& spec_;
  const Interrupt* const interrupt_;
  const MonotonicTime begin_ = MonotonicNow();
  MonotonicTime deadline_;
  std::vector<Child> children_;
  pid_t group_ = 0;
  int running_ = 0;
  int first_failed_ = -1;
  int restarted_ = 0;
  bool ending_ = false;
};

}  // namespace

absl::Status RunChildren(const LaunchSpec& spec, const Interrupt& interrupt) {
  return Launch(spec, &interrupt).Run();
}

absl::StatusOr<std::string> RunForOutput(const std::vector<std::string>& command, absl::Duration deadline,
                                         const Interrupt& interrupt, const ChildNetwork& network) {
  return RunForOutput(command, deadline, &interrupt, network);
}

absl::StatusOr<std::string> RunForOutput(const std::vector<std::string>& command, absl::Duration deadline,
                                         const Interrupt* interrupt, const ChildNetwork& network) {
  std::string output;
  LaunchSpec spec{.what = command.front(),
                  .children = {{.name = "it", .command = command, .network = network}},
                  .deadline = deadline};
  spec.on_line = [&](int, const std::string& line) {
    absl::StrAppend(&output, line, "\n");
    return true;
  };
  const absl::Status status = Launch(spec, interrupt).Run();
  if (absl::IsAborted(status) || absl::IsInvalidArgument(status)) {
    const size_t last = status.message().rfind("\n  | ");
    if (last != std::string::npos) return absl::AbortedError(status.message().substr(last + 5));
  }
  PSRING_RETURN_IF_ERROR(status);
  return output;
}

}  // namespace psring
