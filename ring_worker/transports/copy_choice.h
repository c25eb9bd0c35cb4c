// Which copies between ranks are faster here: through the caches, or past them (cpu::CopyPastCaches).
// Measured while the group works, because it depends on the machine and on where the system has put the
// ranks, and changes when it moves them: a line that one core has written into its cache can cost another
// several times a read from memory.
#pragma once

#include <array>
#include <cstdint>

namespace psring {

// The choice for calls of one kind and size. Each way is tried in several calls in a row, because the first
// ones find the caches as the other way has left them. All ranks count the same calls, so they try at the
// same time; a rank that then chooses otherwise only copies otherwise. One thread at a time.
class CopyChoice {
 public:
  // How the next call copies.
  bool passes_caches() const { return TriesOther() ? !passes_ : passes_; }
  // What that call took.
  void Note(int64_t ns);

 private:
  static constexpr int kSettles = 2;  // calls after a change that do not count
  static constexpr int kTimes = 3;    // of each way, the latest; the median counts
  static constexpr int kTry = kSettles + kTimes;
  static constexpr int kWarmUp = 10;  // calls before the first try: the first ones map memory
  // Calls from one try of the other way to the next: few after a try that has changed the choice, because it
  // may have been disturbed.
  static constexpr int64_t kShortestPause = 16, kLongestPause = 512;

  using Times = std::array<int64_t, kTimes>;
  static int64_t Median(Times times);

  bool TriesOther() const { return calls_ >= try_at_; }

  Times ns_[2] = {};  // by whether it passes the caches
  bool passes_ = false, last_ = false;
  int64_t calls_ = 0, since_change_ = 0, try_at_ = kWarmUp, pause_ = kShortestPause;
};

}  // namespace psring
