// A rank of a mesh that has only connections instead of a transport: a process that hangs or dies.
#pragma once

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "ring_worker/transports/mesh_connections.h"
#include "ring_worker/transports/mesh_layout.h"
#include "tests/ring_worker/mesh.h"

namespace psring {

class BareRank {
 public:
  // While the other ranks call MakeMeshTransport. `peers`: which name this rank among their first peers.
  absl::Status Connect(Rendezvous& rendezvous, const MeshOptions& options, const std::vector<int>& peers) {
    const int size = rendezvous.options().world_size;
    by_rank.resize(static_cast<size_t>(size));
    PSRING_ASSIGN_OR_RETURN(connections_, MeshConnections::Start(rendezvous, options));
    PSRING_RETURN_IF_ERROR(AgreeOnLayout(rendezvous, connections_->shares(), connections_->near()).status());
    arena_ = *SharedArena::Create(size, wake_.get());
    connections_->Serve(
        &*arena_,
        [this](int peer, absl::StatusOr<PeerConnections> connected) {
          MutexLock lock(mutex_);
          ++count_;
          changed_.NotifyAll();
          if (!connected.ok()) error_ = connected.status();
          if (connected.ok()) by_rank[static_cast<size_t>(peer)] = *std::move(connected);
        },
        [](MemberSocket&, const absl::Status&) {});
    for (const int peer : peers) connections_->Want(peer);
    MutexLock lock(mutex_);
    while (count_ < peers.size()) changed_.Wait(mutex_);
    return error_;
  }

  // Closes everything, as the kernel does when a process is killed.
  void Die() {
    connections_.reset();
    by_rank.clear();
  }

  std::vector<PeerConnections> by_rank;

 private:
  const FileDescriptor wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::optional<SharedArena> arena_;
  Mutex mutex_;
  CondVar changed_;
  size_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<MeshConnections> connections_;
};

// A mesh of which some ranks are bare. Each rank is connected with its `first_peers`.
struct HalfMesh {
  HalfMesh(int size, const std::vector<int>& bare_ranks, MeshOptions options = {.transport = "tcp"})
      : transports(static_cast<size_t>(size)), bare(static_cast<size_t>(size)) {
    if (options.first_peers == nullptr) options.first_peers = EveryPeer;
    OnRanks(size, [&](FakeRendezvous& rendezvous, int rank) {
      if (std::count(bare_ranks.begin(), bare_ranks.end(), rank) > 0) {
        TransportInfo info;
        info.rank = rank;
        info.size = size;
        EXPECT_EQ(bare[static_cast<size_t>(rank)].Connect(rendezvous, options, options.first_peers(info)),
                  absl::OkStatus());
      } else {
        auto transport = MakeMeshTransport(rendezvous, options);
        ASSERT_TRUE(transport.ok()) << transport.status();
        transports[static_cast<size_t>(rank)] = *std::move(transport);
      }
    });
  }

  // The results of an all-reduce by the ranks that are not bare.
  std::vector<absl::Status> AddUp(const GroupOptions& options) {
    std::erase(transports, nullptr);
    return RunRanksToStatus(
        std::move(transports), [&](int) { return options; },
        [](ProcessGroup& group, Stream& stream) {
          std::vector<float> data(1 << 20);
          return psring::AddUp(group, stream, data);
        });
  }

  std::vector<std::unique_ptr<Transport>> transports;
  std::vector<BareRank> bare;
};

}  // namespace psring
