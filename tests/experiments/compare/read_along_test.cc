// Real runs that are read while they go on: the live page, and the metrics of workers and servers; and the
// event files that they leave.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "common/base/deadline.h"
#include "common/io/files.h"
#include "common/net/tcp_socket.h"
#include "tests/experiments/started.h"

namespace psring {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// The reply of 127.0.0.1:PORT to a request for PATH at `host`; empty where nobody answers.
std::string Reply(int port, const std::string& path, const std::string& host) {
  const MonotonicTime deadline = MonotonicNow() + absl::Seconds(20);
  const auto socket = ConnectTcp("127.0.0.1", port, deadline);
  if (!socket.ok()) return "";
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", host, "\r\n\r\n");
  if (!WriteAll(socket->get(), request.data(), request.size(), deadline).ok()) return "";
  std::string text;
  char block[4096];
  while (MonotonicNow() < deadline) {
    pollfd wait{socket->get(), POLLIN, 0};
    poll(&wait, 1, 100);
    const ssize_t n = recv(socket->get(), block, sizeof block, MSG_DONTWAIT);
    if (n == 0) break;
    if (n > 0) text.append(block, static_cast<size_t>(n));
  }
  return text;
}

// Its body.
std::string Get(int port, const std::string& path, const std::string& host = "localhost") {
  const std::string text = Reply(port, path, host);
  const size_t body = text.find("\r\n\r\n");
  return body == std::string::npos ? "" : text.substr(body + 4);
}

// The number behind `words` in `text`, or 0.
int PortAfter(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  if (at == std::string::npos) return 0;
  const std::string rest = text.substr(at + words.size());
  int port = 0;
  (void)absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")), &port);
  return port;
}

double Sample(const std::string& metrics, const std::string& name) {
  const size_t at = metrics.find(absl::StrCat("\n", name, "{"));
  if (at == std::string::npos) return -1;
  const size_t value = metrics.find("} ", at) + 2;
  double number = -1;
  (void)absl::SimpleAtod(metrics.substr(value, metrics.find('\n', value) - value), &number);
  return number;
}

using ReadAlongTest = LaunchTest;

TEST_F(ReadAlongTest, ALivePageShowsTheRunAndEndsWithIt) {
  Started run(
      Command(PSRING_BINARY,
              absl::StrCat("train --strategy ring --workers 2 --data synthetic --steps 100000 --live --out ",
                           Folder("run"))),
      {});
  int port = 0;
  ASSERT_TRUE(WaitUntil(run, [&] {
    return (port = PortAfter(run.output(), "live:      http://127.0.0.1:")) > 0;
  })) << run.Story();
  nlohmann::json json;
  EXPECT_TRUE(WaitUntil(run, [&] {
    json = nlohmann::json::parse(Get(port, "/live.json"), nullptr, false);
    return json.is_object() && json["ranks"].size() == 2 && json["steps"] > 3 &&
           json["samples_per_s"].is_number();
  })) << run.Story();
  EXPECT_EQ(json["run_id"], "run");
  EXPECT_GT(json["mbit_per_s"], 0);
  EXPECT_GT(json["loss"], 0);
  EXPECT_EQ(json["steps_planned"], 100000);
  EXPECT_THAT(Get(port, "/"), HasSubstr("live.json"));
  EXPECT_THAT(Get(port, "/etc/passwd"), HasSubstr("not found"));
  EXPECT_THAT(Reply(port, "/live.json", "rebound.example"), testing::StartsWith("HTTP/1.1 403 "));
  run.Signal(SIGINT);
  EXPECT_FALSE(WaitUntil(run, [] { return false; }));
  EXPECT_EQ(Get(port, "/live.json"), "");
  EXPECT_THAT(run.errors(),
              HasSubstr(absl::StrCat("rejected 1 request at 127.0.0.1:", port, " for another host")));
}

// As with `docker run -p`, where requests come from another host and name this one or a third.
TEST_F(ReadAlongTest, OffTheLoopbackTheLivePageNeedsTheTokenOfItsUrl) {
  Started run(Command(PSRING_BINARY,
                      absl::StrCat("compare --strategies ring --workers 2 --link none --repeats 1 --model "
                                   "mlp-small --data synthetic --no_eval --steps 100000 --time_budget 1h "
                                   "--live --bind 0.0.0.0 --out ",
                                   Folder("run"))),
              {});
  int port = 0;
  ASSERT_TRUE(WaitUntil(run, [&] {
    return (port = PortAfter(run.output(), "live:      http://127.0.0.1:")) > 0;
  })) << run.Story();
  const std::string begin = absl::StrCat("http://127.0.0.1:", port, "/");
  const std::string rest = run.output().substr(run.output().find(begin) + begin.size());
  const std::string query = rest.substr(0, rest.find(' '));
  EXPECT_THAT(query, testing::MatchesRegex("[?]token=[0-9a-f]+"));
  EXPECT_EQ(query.size(), std::string("?token=").size() + 32);
  for (const char* path :
       {"/", "/live.json", "/?token=", "/live.json?token=00000000000000000000000000000000"}) {
    EXPECT_THAT(Reply(port, path, "localhost"), testing::StartsWith("HTTP/1.1 403 ")) << path;
  }
  EXPECT_THAT(Reply(port, "/" + query, "any.example"), testing::StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Get(port, "/" + query), HasSubstr("live.json${location.search}"));
  EXPECT_TRUE(nlohmann::json::parse(Get(port, "/live.json" + query), nullptr, false).is_object());
  run.Signal(SIGINT);
  EXPECT_FALSE(WaitUntil(run, [] { return false; }));
  const std::string log = run.errors();
  EXPECT_THAT(log, HasSubstr(absl::StrCat("psring: rejected 1 request at 0.0.0.0:", port,
                                          " without its token, last from 127.0.0.1:")));
  EXPECT_THAT(log, HasSubstr("psring: rejected 3 requests at "));
}

TEST_F(ReadAlongTest, WorkersAndServersServeMetrics) {
  Started run(Command(PSRING_BINARY,
                      absl::StrCat("train --strategy ps-async --workers 2 --data synthetic --steps 100000 "
                                   "--metrics_port 0 --out ",
                                   Folder("run"))),
              {});
  int rank0 = 0, rank1 = 0, server = 0;
  ASSERT_TRUE(WaitUntil(run, [&] {
    rank0 = PortAfter(run.output(), "metrics of rank 0: http://127.0.0.1:");
    rank1 = PortAfter(run.output(), "metrics of rank 1: http://127.0.0.1:");
    server = PortAfter(run.output(), "of server 0: http://127.0.0.1:");
    return rank0 > 0 && rank1 > 0 && server > 0;
  })) << run.Story();
  for (const int port : {rank0, rank1}) {
    std::string text;
    EXPECT_TRUE(WaitUntil(run, [&] {
      return Sample(text = Get(port, "/metrics"), "psring_steps_total") > 3;
    })) << text;
    EXPECT_EQ(Sample(text, "psring_samples_total"), 128 * Sample(text, "psring_steps_total"));
    EXPECT_GT(Sample(text, "psring_sent_bytes_total"), 0);
    EXPECT_EQ(Sample(text, "psring_step_seconds_count"), Sample(text, "psring_steps_total"));
    EXPECT_THAT(text, testing::EndsWith("# EOF\n"));
  }
  const std::string text = Get(server, "/metrics");
  EXPECT_GT(Sample(text, "psring_server_pushes_total"), 0);
  EXPECT_GT(Sample(text, "psring_server_received_bytes_total"), 0);
  EXPECT_THAT(text, testing::EndsWith("# EOF\n"));
  run.Signal(SIGINT);
  EXPECT_FALSE(WaitUntil(run, [] { return false; }));
}

// Sends requests that do not end, slowly or as fast as possible, until `stop`.
void SendEndlessRequests(int port, const std::atomic<bool>& stop) {
  const std::string begin = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ";
  const std::string block(64 << 10, 'x');
  std::vector<FileDescriptor> slow;
  const auto send_to = [](const FileDescriptor& to, const std::string& bytes) {
    return send(to.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
  };
  for (int i = 0; !stop; ++i) {
    auto socket = ConnectTcp("127.0.0.1", port, MonotonicNow() + absl::Seconds(1));
    if (!socket.ok()) return;  // the run has ended
    (void)send_to(*socket, begin);
    if (i % 4 == 0) {
      while (!stop && send_to(*socket, block)) {
      }
    } else {
      slow.push_back(*std::move(socket));
    }
    std::erase_if(slow, [&](const FileDescriptor& one) { return !send_to(one, "x"); });
    absl::SleepFor(absl::Milliseconds(1));
  }
}

TEST_F(ReadAlongTest, EndlessRequestsDisturbNeitherTheRunNorItsReaders) {
  std::vector<std::string> weights[2];
  for (const bool attacked : {false, true}) {
    const std::string folder = Folder(attacked ? "attacked" : "undisturbed");
    Started run(
        Command(PSRING_BINARY,
                absl::StrCat("train --strategy ps-sync --deterministic --workers 2 --data synthetic "
                             "--model mlp-small --batch 16 --no_eval --steps 200 --jitter_ms 5 --live "
                             "--metrics_port 0 --out ",
                             folder)),
        {});
    std::vector<int> ports;
    ASSERT_TRUE(WaitUntil(run, [&] {
      ports = {PortAfter(run.output(), "metrics of rank 0: http://127.0.0.1:"),
               PortAfter(run.output(), "of server 0: http://127.0.0.1:"),
               PortAfter(run.output(), "live:      http://127.0.0.1:")};
      return std::find(ports.begin(), ports.end(), 0) == ports.end();
    })) << run.Story();
    std::atomic<bool> stop = false;
    std::vector<std::thread> attacks;
    if (attacked) {
      for (const int port : ports) attacks.emplace_back([&, port] { SendEndlessRequests(port, stop); });
    }
    for (const int port : ports) {
      EXPECT_FALSE(Get(port, port == ports[2] ? "/live.json" : "/metrics").empty()) << run.Story();
    }
    EXPECT_FALSE(WaitUntil(run, [] { return false; }));
    stop = true;
    for (std::thread& attack : attacks) attack.join();
    EXPECT_TRUE(run.Succeeded()) << run.Story();
    weights[attacked] = Weights(folder);
  }
  EXPECT_EQ(weights[0].size(), 2u);
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(ReadAlongTest, EventFilesAreWrittenToTheRunFolder) {
  Started run(
      Command(PSRING_BINARY, absl::StrCat("train --strategy ring --workers 2 --data synthetic --steps 5 "
                                          "--tensorboard --out ",
                                          Folder("run"))),
      {});
  EXPECT_FALSE(WaitUntil(run, [] { return false; }));
  ASSERT_TRUE(run.Succeeded()) << run.Story();
  EXPECT_THAT(run.output(), HasSubstr("tensorboard --logdir"));
  std::string file;
  for (const auto& entry : fs::directory_iterator(Folder("run") + "/tensorboard/ring-2/training-1")) {
    file = entry.path().string();
  }
  EXPECT_THAT(file, HasSubstr("events.out.tfevents."));
  const std::string bytes = ReadFile(file).value_or("");
  for (const char* tag : {"brain.Event:2", "train/loss", "test/accuracy", "throughput/samples_per_s",
                          "time/communication_ms"}) {
    EXPECT_THAT(bytes, HasSubstr(tag));
  }
}

TEST_F(ReadAlongTest, FlagsWithoutEffectAreRejected) {
  const auto refused = [&](const std::string& flags, const std::string& why) {
    Started run(Command(PSRING_BINARY, absl::StrCat("train --data synthetic --steps 1 ", flags)), {});
    EXPECT_FALSE(WaitUntil(run, [] { return false; }));
    EXPECT_FALSE(run.Succeeded());
    EXPECT_THAT(run.errors(), HasSubstr(why));
  };
  refused("--live_port 8080", "--live_port is the port of --live");
  refused("--bind 0.0.0.0", "--bind 0.0.0.0 is only for --live; give both, or one address");
  refused("--bind :: --live --metrics_port 0", "with --metrics_port, give one address");
  refused("--bind 0.0.0.0 --live --nnodes 2 --master_addr 127.0.0.1", "--bind 0.0.0.0 names no machine");
  refused("--bind 192.0.2.1 --live", "--bind 192.0.2.1: cannot listen");
  refused("--clock virtual --strategy ps-async --workers 2 --metrics_port 0",
          "--metrics_port needs real processes");
}

}  // namespace
}  // namespace psring
