#include "ps_server/consistency.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace psring {
namespace {

absl::Status CheckWorker(int worker, size_t workers) {
  if (worker >= 0 && static_cast<size_t>(worker) < workers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, " is out of range: there are ", workers));
}

// `next`: the first step that the worker has not pushed yet.
absl::Status CheckStep(int worker, int64_t step, int64_t next) {
  if (step == next) return absl::OkStatus();
  if (step == next - 1) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step, " twice"));
  }
  return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step, ", from the ",
                                                    step < next ? "past" : "future", ": its next one is ",
                                                    next));
}

Consistency::Decision Refuse(const absl::Status& why) {
  return {.accept = false, .reason = std::string(why.message())};
}

class Synchronous : public Consistency {
 public:
  explicit Synchronous(int workers) : pushed_(workers, false) {}

  std::string name() const override { return "sync"; }
  int64_t version() const override { return version_; }

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, pushed_.size()));
    // Every step makes a version, so the step to push now is the version to build on.
    PSRING_RETURN_IF_ERROR(CheckStep(worker, step, version_ + (pushed_[worker] ? 1 : 0)));
    if (!pushed_[worker]) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker, " pushed step ", step,
                                                      ", from the future: step ", version_,
                                                      " still waits for other workers"));
  }

  Decision OnPush(int worker, int64_t step) override {
    if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
    pushed_[worker] = true;
    if (++waiting_ < static_cast<int>(pushed_.size())) return {};

    Decision decision{.apply_count = waiting_};
    for (int i = 0; i < waiting_; ++i) decision.may_read.push_back(i);
    pushed_.assign(pushed_.size(), false);
    waiting_ = 0;
    ++version_;
    return decision;
  }

 private:
  std::vector<bool> pushed_;  // towards the next version
  int waiting_ = 0;
  int64_t version_ = 0;
};

class Asynchronous : public Consistency {
 public:
  explicit Asynchronous(int workers) : next_step_(workers, 0) {}

  std::string name() const override { return "async"; }
  int64_t version() const override { return version_; }

  absl::Status MayPush(int worker, int64_t step) const override {
    PSRING_RETURN_IF_ERROR(CheckWorker(worker, next_step_.size()));
    return CheckStep(worker, step, next_step_[worker]);
  }

  Decision OnPush(int worker, int64_t step) override {
    if (absl::Status status = MayPush(worker, step); !status.ok()) return Refuse(status);
    ++next_step_[worker];
    ++version_;
    return {.apply_count = 1, .may_read = {worker}};
  }

 private:
  std::vector<int64_t> next_step_;
  int64_t version_ = 0;
};

}  // namespace

std::unique_ptr<Consistency> MakeSynchronous(int workers) { return std::make_unique<Synchronous>(workers); }

std::unique_ptr<Consistency> MakeAsynchronous(int workers) { return std::make_unique<Asynchronous>(workers); }

absl::StatusOr<std::unique_ptr<Consistency>> MakeConsistency(const std::string& name, int workers) {
  if (workers < 1) {
    return absl::InvalidArgumentError(absl::StrCat("workers is ", workers, ": there must be at least 1"));
  }
  if (name == "sync") return MakeSynchronous(workers);
  if (name == "async") return MakeAsynchronous(workers);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown consistency \"", name, "\": there are sync and async"));
}

}  // namespace psring
