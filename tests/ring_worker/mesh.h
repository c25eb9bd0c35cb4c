// Threads as ranks, over any transport.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/device/device.h"
#include "common/net/tls.h"
#include "ring_worker/groups/groups.h"
#include "tests/ring_worker/fake_rendezvous.h"

namespace psring {

// For MeshOptions::first_peers.
inline std::vector<int> EveryPeer(const TransportInfo& info) {
  std::vector<int> peers;
  for (int rank = 0; rank < info.size; ++rank) {
    if (rank != info.rank) peers.push_back(rank);
  }
  return peers;
}

// `ranks` transports: shm, tcp (over loopback), tls (the same, encrypted), or mixed: pairs of ranks share
// memory, and pairs are connected by TCP. `first_peers`: see MeshOptions.
inline std::vector<std::unique_ptr<Transport>> MakeTransports(
    const std::string& name, int ranks,
    const std::function<std::vector<int>(const TransportInfo&)>& first_peers = EveryPeer) {
  std::vector<std::unique_ptr<Transport>> transports(ranks);
  const JobSecret secret = *WithTls(TestSecret(), name == "tls" ? "auto" : "");
  OnRanks(ranks, [&](FakeRendezvous& rendezvous, int rank) {
    MeshOptions options{.transport = name == "tls" ? "tcp" : name};
    rendezvous.UseSecret(secret);
    if (name == "mixed") options = {.transport = "auto", .ranks_per_node = 2};
    options.first_peers = first_peers;
    auto transport = MakeMeshTransport(rendezvous, options);
    ASSERT_TRUE(transport.ok()) << transport.status();
    transports[rank] = *std::move(transport);
  });
  return transports;
}

// Runs `body` for each rank of a real store, which learns of ranks that end.
inline void OnRanksOfAStore(int ranks, const std::function<void(Rendezvous& rendezvous, int rank)>& body) {
  const auto store = *RendezvousServer::Start("127.0.0.1", 0, TestSecret());
  OnRanks(ranks, [&](int rank) {
    const auto rendezvous = *Rendezvous::Join({.rank = rank,
                                               .world_size = ranks,
                                               .host = "127.0.0.1",
                                               .port = store->port(),
                                               .hosted_elsewhere = true,
                                               .secret = TestSecret(),
                                               .timeout = absl::Minutes(10)});
    body(*rendezvous, rank);
  });
}

inline constexpr CallInfo kTestCall = {.elements = 4, .operation = "test"};

// The result of waiting for four elements from `peer`.
inline absl::Status ReceiveFrom(int peer, Transport& transport, absl::Duration timeout = absl::Minutes(1)) {
  std::vector<float> data(4);
  transport.BeginCall(kTestCall);
  transport.Receive({}, {data.data(), 4}, ReduceOp::kSum, nullptr, {peer});
  return transport.Wait({}, timeout);
}

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

// The sum of all ranks' `data`.
inline absl::Status AddUp(ProcessGroup& group, Stream& stream, std::vector<float>& data) {
  const Span span = {data.data(), data.size()};
  PSRING_RETURN_IF_ERROR(group.AllReduce(span, span, ReduceOp::kSum, stream));
  return stream.Synchronize();
}

using RankBody = std::function<absl::Status(ProcessGroup& group, Stream& stream)>;

// Runs `body` for each rank's MakeProcessGroup; the results by rank, also of making the group. `first`,
// `timeout`: see OnRanks.
inline std::vector<absl::Status> RunGroups(int ranks, const GroupOptions& options, const RankBody& body,
                                           int first = 0, absl::Duration timeout = absl::Seconds(20)) {
  std::vector<absl::Status> statuses(ranks);
  const std::unique_ptr<Device> device = MakeCpuDevice();
  OnRanks(
      ranks,
      [&](FakeRendezvous& rendezvous, int rank) {
        const auto group = MakeProcessGroup(rendezvous, options);
        const auto stream = device->NewStream(StreamKind::kCompute, "test");
        statuses[rank] = group.ok() ? body(**group, *stream) : group.status();
      },
      first, timeout);
  return statuses;
}

// The same; expects that all succeed.
inline void ExpectGroups(int ranks, const GroupOptions& options, const RankBody& body) {
  for (const absl::Status& status : RunGroups(ranks, options, body)) EXPECT_EQ(status, absl::OkStatus());
}

// RunGroups for groups over these transports.
inline std::vector<absl::Status> RunRanksToStatus(std::vector<std::unique_ptr<Transport>> transports,
                                                  const std::function<GroupOptions(int)>& options,
                                                  const RankBody& body) {
  const int ranks = static_cast<int>(transports.size());
  const std::unique_ptr<Device> device = MakeCpuDevice();
  std::vector<absl::Status> statuses(ranks);
  OnRanks(ranks, [&](int rank) {
    auto group = MakeScheduledGroup(std::move(transports[rank]), options(rank));
    ASSERT_TRUE(group.ok()) << group.status();
    const auto stream = device->NewStream(StreamKind::kCompute, "test");
    statuses[rank] = body(**group, *stream);
  });
  return statuses;
}

inline std::vector<absl::Status> RunRanksToStatus(const std::string& transport, int ranks,
                                                  const std::function<GroupOptions(int)>& options,
                                                  const RankBody& body) {
  return RunRanksToStatus(MakeTransports(transport, ranks), options, body);
}

inline void RunRanks(const std::string& transport, int ranks, const GroupOptions& options,
                     const RankBody& body) {
  const auto statuses = RunRanksToStatus(
      transport, ranks, [&](int) { return options; }, body);
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(statuses[rank], absl::OkStatus()) << "rank " << rank;
}

}  // namespace psring
