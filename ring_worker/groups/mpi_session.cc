#include "ring_worker/groups/mpi_session.h"

#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cli/command_line.h"
#include "common/kernels/reduce.h"
#include "common/measure/trace.h"
#include "common/text/peer_text.h"

namespace psring {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);
// MPI_Finalize waits for every rank, and one may still be evaluating the model.
constexpr absl::Duration kFinalizeTimeout = absl::Minutes(10);
constexpr unsigned kAbortSeconds = 5;
constexpr int kFinalizePmiMs = 5000;
constexpr absl::Duration kUntilHeard = absl::Milliseconds(300);
constexpr int64_t kSpinNanos = 100'000;  // then a thread that waits for its turn sleeps between tests
constexpr absl::Duration kUntilNextTurn = absl::Microseconds(20);
constexpr int64_t kLingerNanos = 20'000'000;  // time for the barrier's messages to reach the others

std::string ErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return absl::StrCat("error ", code);
  // MPICH's message has several lines.
  return absl::StrReplaceAll(std::string(text, size_t(length)), {{"\n", "; "}});
}

// MPICH's mpiexec kills the remaining ranks when one ends without finalizing PMI. MPI_Finalize does that;
// this function sends the same PMI 1.1 command instead.
void FinalizePmi() {
  const char* const hydra = getenv("HYDI_CONTROL_FD");
  const char* const number = getenv("PMI_FD");
  int fd = -1;
  if (hydra == nullptr || number == nullptr || !absl::SimpleAtoi(number, &fd) || fd < 0) return;
  constexpr absl::string_view kFinalize = "cmd=finalize\n";
  if (write(fd, kFinalize.data(), kFinalize.size()) != static_cast<ssize_t>(kFinalize.size())) return;
  pollfd answered = {fd, POLLIN, 0};
  char answer[256];  // "cmd=finalize_ack"
  if (poll(&answered, 1, kFinalizePmiMs) > 0) (void)!read(fd, answer, sizeof answer);
}

// Replaces MPI_Finalize for MPICH. In MPI_Finalize, MPICH 4.0 over UCX 1.13 closes the connections of a rank,
// which then does not answer peers that still wait for a last acknowledgement: over TCP one launch in thirty
// never ended.
int FinalizeMpich() {
  const int code = MPI_Barrier(MPI_COMM_WORLD);
  int there = 0;
  for (const int64_t end = MonotonicNanos() + kLingerNanos; MonotonicNanos() < end;) {
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  }
  FinalizePmi();
  return code;
}

std::string LibraryVersion() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "";
  return std::string(text, size_t(length));
}

}  // namespace

MpiSession& MpiSession::OfThisProcess() {
  static MpiSession* session = new MpiSession();  // never destroyed: used during the process's exit
  return *session;
}

bool MpiSession::IsOpenMpi() {
  static const bool is = absl::StrContains(LibraryVersion(), "Open MPI");
  return is;
}

bool MpiSession::IsMpich() {
  static const bool is = absl::StartsWith(LibraryVersion(), "MPICH");
  return is;
}

std::string MpiSession::TransportOfJob() {
  // mpirun passes its --mca settings on in this form.
  if (const char* btl = getenv("OMPI_MCA_btl"); btl != nullptr && *btl != 0 && *btl != '^') {
    std::set<std::string> used = absl::StrSplit(btl, ',');
    used.erase("self");
    if (used.erase("vader") > 0) used.insert("sm");
    if (used == std::set<std::string>{"sm"}) return "shm";
    return used == std::set<std::string>{"tcp"} ? "tcp" : "auto";
  }
  const char* chosen = getenv("PSRING_MPI_TRANSPORT");  // experiments/launch/mpirun.h
  return chosen != nullptr && (!strcmp(chosen, "shm") || !strcmp(chosen, "tcp")) ? chosen : "auto";
}

absl::Status MpiSession::Start(int rank, int size, absl::Duration timeout) {
  {
    MutexLock lock(mutex_);
    if (!watched_) std::thread([this] { Watch(); }).detach();
    watched_ = true;
  }
  PSRING_RETURN_IF_ERROR(Run({.what = "MPI_Init_thread"}, timeout, [this] {
    if (started_) return int{MPI_SUCCESS};
    int provided = 0;
    if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
        code != MPI_SUCCESS) {
      return code;
    }
    if (provided < MPI_THREAD_SERIALIZED) return int{MPI_ERR_UNSUPPORTED_OPERATION};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    int world_rank = 0, world_size = 1, host_size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    MPI_Comm host;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &host_size);
    MPI_Comm_free(&host);
    rank_ = world_rank;
    size_ = world_size;
    one_host_ = host_size == world_size;
    on_exit([](int code, void* self) { static_cast<MpiSession*>(self)->Finish(code); }, this);
    started_ = true;
    return int{MPI_SUCCESS};
  }));
  if (size_ != size) {
    return FailedPrecondition(size_ == 1 ? "started without mpirun: " : "", "rank ", rank, " of ", size,
                              " runs in an MPI job of size ", size_.load(),
                              "; start all ranks by one `mpirun -n ", size, "`");
  }
  if (rank_ != rank) {
    return FailedPrecondition("rank ", rank, " is rank ", rank_.load(),
                              " to MPI; leave RANK unset under mpirun, then both take MPI's");
  }
  return absl::OkStatus();
}

absl::Status MpiSession::Run(const MpiWait& wait, absl::Duration timeout, const std::function<int()>& call) {
  MutexLock one_at_a_time(calls_);
  {
    MutexLock lock(mutex_);
    waiting_ = wait;
    begin_ns_ = MonotonicNanos();
    timeout_ns_ = absl::ToInt64Nanoseconds(timeout);
  }
  const int code = call();
  {
    MutexLock lock(mutex_);
    begin_ns_ = 0;
  }
  if (code == MPI_SUCCESS) return absl::OkStatus();
  broken_ = true;
  return Unavailable(Describe(wait), ": ", ErrorText(code));
}

absl::Status MpiSession::RunInTurns(const MpiWait& wait, absl::Duration timeout,
                                    const std::function<int()>& begin,
                                    const std::function<int(bool& done)>& test) {
  const int64_t begin_ns = MonotonicNanos();
  PSRING_RETURN_IF_ERROR(Run(wait, timeout, begin));
  bool done = false;
  while (true) {
    PSRING_RETURN_IF_ERROR(Run(wait, timeout, [&] { return test(done); }));
    if (done) return absl::OkStatus();
    const int64_t waited_ns = MonotonicNanos() - begin_ns;
    if (waited_ns >= absl::ToInt64Nanoseconds(timeout)) EndJob(Late(wait, timeout));
    if (waited_ns < kSpinNanos) {
      sched_yield();
    } else {
      absl::SleepFor(kUntilNextTurn);
    }
  }
}

std::string MpiSession::Late(const MpiWait& wait, absl::Duration timeout) const {
  const int others = (wait.ranks > 0 ? wait.ranks : size_.load()) - 1;
  const std::string whom = wait.peer >= 0
                               ? absl::StrCat("rank ", wait.peer)
                               : absl::StrCat("the other ", others, others == 1 ? " rank" : " ranks");
  return absl::StrCat(Describe(wait), " has waited ", absl::FormatDuration(timeout), " for ", whom);
}

std::string MpiSession::Describe(const MpiWait& wait) const {
  std::string text = absl::StrCat("rank ", rank_.load(), ": mpi ", wait.what);
  if (wait.call > 0) {
    absl::StrAppend(&text, " of ", wait.count, " ", Name(wait.type), " elements (call ", wait.call, ")");
  }
  return text;
}

void MpiSession::Watch() {
  while (true) {
    absl::SleepFor(kLook);
    std::string late;
    {
      MutexLock lock(mutex_);
      const bool idle = begin_ns_ == 0;
      if (!idle && MonotonicNanos() - begin_ns_ < timeout_ns_) continue;
      if (!idle) late = Late(waiting_, absl::Nanoseconds(timeout_ns_));
    }
    if (!late.empty()) EndJob(late);
    MakeProgress();
  }
}

// MPI moves bytes only inside its calls. A rank that has its result and continues computing may not have sent
// everything to a peer, which would then wait until this rank's next call, or forever if there is none.
void MpiSession::MakeProgress() {
  if (!calls_.TryLock()) return;  // a call is in progress, and must be watched
  int finalized = 0, there = 0;
  if (started_ && !broken_ && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) {
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  }
  calls_.Unlock();
}

void MpiSession::EndJob(const std::string& why) {
  broken_ = true;
  std::fprintf(stderr, "%s; the job ends\n", OneLine(why).c_str());
  std::fflush(nullptr);
  // MPI_Abort contacts mpirun; if that hangs too, SIGALRM ends this process, and mpirun ends the others.
  signal(SIGALRM, SIG_DFL);
  sigset_t alarms;
  sigemptyset(&alarms);
  sigaddset(&alarms, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &alarms, nullptr);
  alarm(kAbortSeconds);
  // MPICH's mpiexec drops output that it has not forwarded when a rank aborts.
  if (IsMpich()) absl::SleepFor(kUntilHeard);
  if (started_) MPI_Abort(MPI_COMM_WORLD, 1);
  _exit(1);
}

// A rank that ends with an error skips MPI_Finalize, in which it would wait for ranks that wait for it.
// mpirun then ends the other ranks.
void MpiSession::Finish(int exit_code) {
  if (broken_ || (exit_code != 0 && size_ > 1)) return;
  if (IsMpich()) {
    (void)Run({.what = "the last barrier"}, kFinalizeTimeout, FinalizeMpich);
  } else {
    (void)Run({.what = "MPI_Finalize"}, kFinalizeTimeout, MPI_Finalize);
  }
}

}  // namespace psring
