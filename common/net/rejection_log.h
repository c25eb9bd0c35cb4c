// Reports clients that a server has rejected: many in one line, so that they cannot fill the log.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "common/base/deadline.h"

namespace psring {

// The other end of a connection: "10.0.0.7:41522"; for a Unix socket, "process 4711 of this host".
std::string PeerOf(int socket);
// This end of a TCP connection, in the same form.
std::string OwnAddressOf(int socket);

// Counts rejected clients and writes a line to stderr at most every 10 s, and a last one when it is
// destroyed: "psring: rejected 3 connections without the job's secret, last from 10.0.0.7:41522". One thread
// at a time.
class RejectionLog {
 public:
  // `reason` follows "connections"; `remedy` ends the line, and may be empty.
  explicit RejectionLog(std::string reason, std::string remedy = "")
      : reason_(std::move(reason)), remedy_(std::move(remedy)) {}
  ~RejectionLog() { Report(); }
  RejectionLog(const RejectionLog&) = delete;
  RejectionLog& operator=(const RejectionLog&) = delete;

  void Add(std::string peer);

 private:
  void Report();

  const std::string reason_, remedy_;
  int64_t count_ = 0;  // not reported yet
  std::string last_;
  MonotonicTime next_report_ = MonotonicTime::InfinitePast();
};

}  // namespace psring
