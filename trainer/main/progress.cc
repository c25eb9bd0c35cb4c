#include "trainer/main/progress.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "common/io/json_text.h"

namespace psring {
namespace {

// Limits how often something is printed.
class Throttle {
 public:
  Throttle(int64_t every_ms, Clock clock) : every_ns_(every_ms * 1'000'000), clock_(std::move(clock)) {}

  bool Pass() {
    const int64_t now = clock_();
    if (now < next_) return false;
    next_ = now + every_ns_;
    return true;
  }

 private:
  const int64_t every_ns_;
  const Clock clock_;
  int64_t next_ = 0;
};

class Silent : public Progress {
 public:
  void Started() override {}
  void Ready() override {}
  void Step(const StepProgress&) override {}
  void Evaluating(int64_t, int64_t) override {}
  void Evaluated(const CurvePoint&) override {}
  void Done(const RankResult&) override {}
  bool Note(const std::string&) override { return false; }
};

class JsonLines : public Progress {
 public:
  JsonLines(int rank, int world_size, Clock clock)
      : rank_(rank), world_size_(world_size), throttle_(200, std::move(clock)) {}

  void Started() override { Print({{"event", "start"}, {"rank", rank_}, {"world_size", world_size_}}); }
  void Ready() override { Print({{"event", "ready"}, {"rank", rank_}}); }
  void Step(const StepProgress& step) override {
    if (step.done < step.planned && !throttle_.Pass()) return;
    Print({{"event", "step"},
           {"rank", rank_},
           {"step", step.done},
           {"steps", step.planned},
           {"samples", step.samples},
           {"tx_bytes", step.moved.payload_tx_bytes},
           {"rx_bytes", step.moved.payload_rx_bytes},
           {"loss", step.loss}});
  }
  void Evaluating(int64_t done, int64_t planned) override {
    if (done > 0 && !throttle_.Pass()) return;
    Print({{"event", "evaluating"}, {"rank", rank_}, {"evaluated", done}, {"to_evaluate", planned}});
  }
  void Evaluated(const CurvePoint& point) override {
    Print({{"event", "evaluate"},
           {"rank", rank_},
           {"samples", point.samples},
           {"updates", point.updates},
           {"train_loss", point.train_loss},
           {"test_loss", point.test_loss},
           {"test_accuracy", point.test_accuracy}});
  }
  void Done(const RankResult& result) override {
    Print({{"event", "done"},
           {"rank", rank_},
           {"steps", result.steps},
           {"samples", result.samples},
           {"wall_s", result.wall_s},
           {"loss", result.final_loss}});
  }
  bool Note(const std::string& text) override {
    Print({{"event", "note"}, {"rank", rank_}, {"text", text}});
    return true;
  }

 private:
  static void Print(const nlohmann::ordered_json& event) {
    std::printf("%s\n", JsonText(event).c_str());
    std::fflush(stdout);
  }

  const int rank_, world_size_;
  Throttle throttle_;
};

class PlainLines : public Progress {
 public:
  PlainLines(int world_size, int replicas, const char* unit, Clock clock)
      : world_size_(world_size),
        replicas_(replicas),
        unit_(unit),
        clock_(clock),
        throttle_(2000, std::move(clock)) {}

  void Started() override {}
  void Ready() override {
    if (world_size_ > 1) {
      Print(absl::StrFormat("training with %d ranks%s", world_size_,
                            replicas_ < world_size_ ? absl::StrFormat(", %d to each replica of the model",
                                                                      world_size_ / replicas_)
                                                    : ""));
    }
    begin_ns_ = clock_();
    // The rate of the first seconds is not representative.
    (void)throttle_.Pass();
  }
  void Step(const StepProgress& step) override {
    if (step.done < step.planned && !throttle_.Pass()) return;
    Print(absl::StrFormat("step %d of %d: %.0f %s/s, loss %.4f", step.done, step.planned,
                          step.samples * replicas_ / ((clock_() - begin_ns_) * 1e-9), unit_, step.loss));
  }
  void Evaluating(int64_t done, int64_t planned) override {
    if (done == 0) {
      begin_ns_ = clock_();
      (void)throttle_.Pass();
      return;
    }
    if (!throttle_.Pass()) return;
    const double rate = static_cast<double>(done) / (static_cast<double>(clock_() - begin_ns_) * 1e-9);
    Print(absl::StrFormat("evaluating: %d of %d %s, about %.0f s left", done, planned, unit_,
                          static_cast<double>(planned - done) / rate));
  }
  void Evaluated(const CurvePoint& point) override {
    Print(absl::StrFormat("after %d %s: test accuracy %.4f, test loss %.4f", point.samples, unit_,
                          point.test_accuracy, point.test_loss));
  }
  bool Note(const std::string& /*text*/) override { return false; }
  void Done(const RankResult& result) override {
    if (result.wall_s <= 0) return;
    Print(absl::StrFormat("%d steps in %.2f s: %.0f %s/s", result.steps, result.wall_s,
                          result.samples * replicas_ / result.wall_s, unit_));
  }

 private:
  static void Print(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const int world_size_, replicas_;
  const char* const unit_;
  const Clock clock_;
  Throttle throttle_;
  int64_t begin_ns_ = 0;  // of training, or of the evaluations
};

}  // namespace

std::unique_ptr<Progress> MakeProgress(const std::string& kind, int rank, int world_size, int replicas,
                                       bool counts_tokens, Clock clock) {
  if (kind == "json") return std::make_unique<JsonLines>(rank, world_size, std::move(clock));
  if (kind == "plain" && rank == 0) {
    return std::make_unique<PlainLines>(world_size, replicas, counts_tokens ? "tokens" : "samples",
                                        std::move(clock));
  }
  return std::make_unique<Silent>();
}

}  // namespace psring
