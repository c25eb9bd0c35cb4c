#include "ring_worker/transports/cuda/cuda_ipc.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "common/cuda/cuda_context.h"
#include "common/cuda/cuda_device.h"
#include "common/cuda/cuda_stream.h"
#include "common/cuda_ops/cuda_reduce.h"
#include "common/measure/wires.h"
#include "ring_worker/transports/cuda/cuda_call_watch.h"
#include "ring_worker/transports/cuda/cuda_exports.h"
#include "ring_worker/transports/device_work.h"
#include "ring_worker/transports/fifo.h"
#include "ring_worker/transports/shared_link.h"

namespace psring {
namespace {

// The overhead of a round is a few microseconds, in which a link of 300 GB/s moves 1 to 3 MiB. Estimated, not
// measured.
constexpr size_t kSegmentBytes = 4 << 20;
constexpr int kDepth = 2;
// At most this many exports stay in use while their memory is not needed for writing. The slots between the
// hosts must hold the peers' acknowledgements of these and of the segments in flight.
constexpr size_t kMaxIdleExports = 4;
static_assert(kMaxIdleExports + 2 * kDepth + 1 < SharedArena::kSlots);

constexpr absl::Duration kPeersTimeout = absl::Seconds(10);
constexpr size_t kLeastBlock = 64 << 10;

template <typename T>
ConstSpan AsWords(const T& value) {
  return ConstSpan(&value, sizeof(T) / sizeof(float));
}
template <typename T>
Span WordsOf(T& value) {
  return {&value, sizeof(T) / sizeof(float)};
}

class CudaIpcTransport final : public Transport, public DeviceWork {
 public:
  CudaIpcTransport(CudaIpcParts parts, std::unique_ptr<Device> device)
      : Transport(InfoOf(parts)),
        rank_(parts.exports->info().rank),
        size_(parts.exports->info().size),
        some_apart_(parts.reach.some_apart),
        same_process_(parts.reach.same_process),
        timeout_(parts.timeout),
        device_(std::move(device)),
        exports_(std::move(parts.exports)),
        releases_(std::move(parts.releases)),
        regions_(*device_, some_apart_),
        watch_(std::make_shared<CudaCallWatch>(
            absl::StrCat("rank ", rank_, ": "), timeout_,
            absl::StrCat("it waits for the GPU of one of the other ", size_ - 1, " ranks"))) {}

  absl::Status Open() {
    PSRING_RETURN_IF_ERROR(Select());
    PSRING_RETURN_IF_ERROR(events_.Create(some_apart_));
    PSRING_RETURN_IF_ERROR(
        CudaStatus("cudaEventCreate", cudaEventCreateWithFlags(&behind_, cudaEventDisableTiming)));
    for (int peer = 0; peer < size_; ++peer) {
      peers_.push_back(std::make_unique<PeerGpu>(*device_, same_process_[static_cast<size_t>(peer)]));
    }
    return absl::OkStatus();
  }

  // Waits for the peers, which may still use this rank's events and memory.
  ~CudaIpcTransport() override {
    (void)Select();
    peers_.clear();
    if (!watch_->failure().ok()) {
      events_.Abandon();  // peers may still use them
    } else if (size_ > 1) {
      AwaitPeers();
    }
    if (behind_ != nullptr) cudaEventDestroy(behind_);
  }

  void Enqueue(Stream& stream, std::function<absl::Status()> call) override {
    CudaStream* const on_gpu = CudaStream::From(stream);
    if (on_gpu == nullptr) {
      stream.Run(
          [this] { return InvalidArgument("rank ", rank_, ": ", info().name, " needs a GPU's stream"); });
      return;
    }
    on_gpu->Watch(watch_);
    on_gpu->Enqueue("native collective", [this, call = std::move(call)](cudaStream_t queue) {
      absl::Status status = Begin(queue);
      if (status.ok()) status = call();
      if (status.ok()) status = End();
      if (!status.ok()) Abort(status);
      return status;
    });
  }

  void BeginCall(const CallInfo& call) override {
    call_ = call;
    exports_->BeginCall(call);
    releases_->BeginCall(call);
  }

  void Send(int peer, Tag tag, ConstSpan from, const SendTraits& traits) override {
    PSRING_CHECK(peer >= 0 && peer < size_ && peer != rank_ && tag.call == call_.number);
    if (open_.empty() || !(open_.back().tag == tag)) {
      OpenExports& opened = open_.PushBack();
      opened.tag = tag;
      opened.awaited = false;
      opened.peers.clear();
      opened.ranges.clear();
      opened.blocks.clear();
    }
    OpenExports& opened = open_.back();
    if (std::find(opened.peers.begin(), opened.peers.end(), peer) == opened.peers.end()) {
      opened.peers.push_back(peer);
    }
    RemoteMemory memory = {};
    if (from.bytes() > 0) Try(Export(from, traits.copy, opened, memory));
    const absl::StatusOr<RemoteEvent> ready = Now();
    Try(ready.status());
    if (!failed_.ok()) return;  // the peer is notified when this rank's call ends
    memory.ready = *ready;
    exports_->Send(peer, tag, AsWords(memory), {.copy = true});
    CountSent(from.bytes());
  }

  void Receive(Tag tag, Span to, ReduceOp op, const void* own, absl::Span<const int> sources,
               bool /*replies*/) override {
    PSRING_CHECK(tag.call == call_.number);
    Receiving& receiving = receiving_.PushBack();
    receiving.tag = tag;
    receiving.to = to;
    receiving.op = op;
    receiving.own = own;
    receiving.sources.assign(sources.begin(), sources.end());
    receiving.memory.resize(sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i] == rank_) continue;
      exports_->Receive(tag, WordsOf(receiving.memory[i]), ReduceOp::kSum, nullptr, {sources[i]});
    }
  }

  absl::Status Wait(Tag tag, absl::Duration timeout) override {
    PSRING_RETURN_IF_ERROR(State());
    PSRING_RETURN_IF_ERROR(exports_->Wait(tag, timeout));
    for (size_t i = 0; i < open_.size(); ++i) open_[i].awaited |= open_[i].tag == tag;
    sources_.clear();
    while (!receiving_.empty() && receiving_.front().tag == tag) {
      PSRING_RETURN_IF_ERROR(Take(receiving_.front(), timeout));
      receiving_.PopFront();
    }
    if (!sources_.empty()) {
      PSRING_ASSIGN_OR_RETURN(released_, Now());
      for (const int source : sources_) releases_->Send(source, tag, AsWords(released_), {.copy = true});
      // They fit into slots, so this does not block; it frees the tag for AwaitRelease's receives.
      PSRING_RETURN_IF_ERROR(releases_->Wait(tag, timeout));
    }
    while (open_.size() > kMaxIdleExports && open_.front().awaited) {
      PSRING_RETURN_IF_ERROR(AwaitRelease(timeout));
    }
    return State();
  }

  absl::Status Register(const Buffer& buffer) override { return regions_.Add(buffer); }
  void Unregister(const Buffer& buffer) override { regions_.Remove(buffer); }

  void Copy(void* to, const void* from, size_t bytes) override {
    Try(MayWrite(to, bytes, timeout_));
    if (!failed_.ok()) return;
    marked_ = false;
    Try(CudaStatus("cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue_)));
  }
  void Scale(Span data, float factor) override {
    if (data.count == 0) return;
    Try(MayWrite(data.data, data.bytes(), timeout_));
    if (!failed_.ok()) return;
    marked_ = false;
    Try(EnqueueScale(data.type, data.count, data.data, factor, queue_));
  }
  absl::StatusOr<Buffer> Allocate(size_t bytes) override { return device_->Allocate(bytes); }

  void Abort(absl::Status why) override {
    watch_->Fail(why);
    exports_->Abort(why);
    releases_->Abort(std::move(why));
  }

 private:
  struct Range {
    const std::byte *first, *end;
  };
  // Memory that peers may still read, by tag.
  struct OpenExports {
    Tag tag;
    bool awaited = false;  // Wait was called for the tag
    std::vector<int> peers;
    std::vector<Range> ranges;
    std::vector<size_t> blocks;  // of ours, with copies
  };
  struct Receiving {
    Tag tag;
    Span to;
    ReduceOp op;
    const void* own;
    std::vector<int> sources;
    std::vector<RemoteMemory> memory;  // parallel to sources
  };
  struct Block {
    Buffer memory;
    bool taken = false;
  };

  static TransportInfo InfoOf(const CudaIpcParts& parts) {
    TransportInfo info = parts.exports->info();
    info.name = absl::StrCat(parts.reach.some_apart ? "cuda_ipc" : "cuda_peer",
                             parts.reach.shares_gpu ? " on shared GPUs" : "");
    info.wires = {parts.reach.some_apart ? kCudaIpcWire : kCudaPeerWire};
    info.traits = {.segment_bytes = kSegmentBytes, .max_segment_bytes = SIZE_MAX, .depth = kDepth};
    return info;
  }

  absl::Status Select() const { return CudaStatus("cudaSetDevice", cudaSetDevice(device_->gpu())); }

  void Try(const absl::Status& status) {
    if (failed_.ok()) failed_ = status;
  }
  absl::Status State() const { return failed_.ok() ? watch_->failure() : failed_; }

  // Calls run in the order in which they were enqueued, even on different streams.
  absl::Status Begin(cudaStream_t queue) {
    PSRING_RETURN_IF_ERROR(State());
    if (queue_ != nullptr && queue != queue_) {
      PSRING_RETURN_IF_ERROR(CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(queue, behind_, 0)));
    }
    queue_ = queue;
    marked_ = false;
    return absl::OkStatus();
  }

  absl::Status End() {
    PSRING_CHECK(receiving_.empty());
    while (!open_.empty()) PSRING_RETURN_IF_ERROR(AwaitRelease(timeout_));
    PSRING_RETURN_IF_ERROR(State());
    PSRING_RETURN_IF_ERROR(CudaStatus("cudaEventRecord", cudaEventRecord(behind_, queue_)));
    return watch_->Note(ToString(call_), queue_);
  }

  // An event at the current end of the stream; the last one if nothing was enqueued since.
  absl::StatusOr<RemoteEvent> Now() {
    if (!marked_) {
      PSRING_ASSIGN_OR_RETURN(mark_, events_.Record(queue_));
      marked_ = true;
    }
    return mark_;
  }

  absl::Status Export(ConstSpan from, bool copy, OpenExports& opened, RemoteMemory& memory) {
    const auto* first = static_cast<const std::byte*>(from.data);
    if (copy || !regions_.Describe(first, from.bytes(), memory)) {
      // Peers add fastest if all operands have the same offset from a 16-byte boundary.
      const size_t beyond = reinterpret_cast<uintptr_t>(first) % 16;
      PSRING_ASSIGN_OR_RETURN(const size_t number, TakeBlock(from.bytes() + beyond));
      std::byte* const copied = static_cast<std::byte*>(blocks_[number].memory.data()) + beyond;
      marked_ = false;
      PSRING_RETURN_IF_ERROR(CudaStatus(
          "cudaMemcpyAsync", cudaMemcpyAsync(copied, first, from.bytes(), cudaMemcpyDeviceToDevice, queue_)));
      PSRING_CHECK(regions_.Describe(copied, from.bytes(), memory));
      opened.blocks.push_back(number);
      return absl::OkStatus();
    }
    opened.ranges.push_back({first, first + from.bytes()});
    return absl::OkStatus();
  }

  // After the first calls this never allocates.
  absl::StatusOr<size_t> TakeBlock(size_t bytes) {
    size_t best = blocks_.size();
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].taken || blocks_[i].memory.bytes() < bytes) continue;
      if (best == blocks_.size() || blocks_[i].memory.bytes() < blocks_[best].memory.bytes()) best = i;
    }
    if (best == blocks_.size()) {
      PSRING_ASSIGN_OR_RETURN(Buffer memory, device_->Allocate(std::bit_ceil(std::max(bytes, kLeastBlock))));
      PSRING_RETURN_IF_ERROR(regions_.Add(memory));
      blocks_.push_back({.memory = std::move(memory)});
    }
    blocks_[best].taken = true;
    return best;
  }

  // One receive whose senders' addresses have arrived: the stream waits for the values.
  absl::Status Take(const Receiving& receiving, absl::Duration timeout) {
    const Span& to = receiving.to;
    PSRING_RETURN_IF_ERROR(MayWrite(to.data, to.bytes(), timeout));
    terms_.clear();
    for (size_t i = 0; i < receiving.sources.size(); ++i) {
      const int source = receiving.sources[i];
      if (source == rank_) {
        terms_.push_back(receiving.own);
        continue;
      }
      if (std::find(sources_.begin(), sources_.end(), source) == sources_.end()) sources_.push_back(source);
      if (to.bytes() == 0) continue;
      const RemoteMemory& memory = receiving.memory[i];
      PeerGpu& peer = *peers_[static_cast<size_t>(source)];
      PSRING_ASSIGN_OR_RETURN(const std::byte* const values, NamingPeer(source, peer.At(memory, to.bytes())));
      PSRING_ASSIGN_OR_RETURN(const cudaEvent_t ready, NamingPeer(source, peer.EventOf(memory.ready)));
      PSRING_RETURN_IF_ERROR(CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(queue_, ready, 0)));
      terms_.push_back(values);
      CountReceived(to.bytes());
    }
    if (to.bytes() == 0) return absl::OkStatus();
    marked_ = false;
    return EnqueueReduce(receiving.op, to.type, to.count, to.data, terms_.data(),
                         static_cast<int>(terms_.size()), queue_);
  }

  template <typename T>
  absl::StatusOr<T> NamingPeer(int peer, absl::StatusOr<T> result) const {
    if (result.ok()) return result;
    return Prefixed(result.status(), "rank ", rank_, " cannot read the memory of rank ", peer, ": ");
  }

  // After this the stream may write to the memory: it first waits until the peers that may read it have done
  // so.
  absl::Status MayWrite(const void* to, size_t bytes, absl::Duration timeout) {
    const auto* const first = static_cast<const std::byte*>(to);
    size_t back = 0;
    for (size_t i = 0; i < open_.size(); ++i) {
      for (const Range& range : open_[i].ranges) {
        if (first < range.end && range.first < first + bytes) back = i + 1;
      }
    }
    for (; back > 0; --back) {
      PSRING_CHECK(open_.front().awaited);
      PSRING_RETURN_IF_ERROR(AwaitRelease(timeout));
    }
    return absl::OkStatus();
  }

  // Ends the oldest exports: each of their readers sends the event of its last read.
  absl::Status AwaitRelease(absl::Duration timeout) {
    const OpenExports& oldest = open_.front();
    read_events_.resize(oldest.peers.size());
    for (size_t i = 0; i < oldest.peers.size(); ++i) {
      releases_->Receive(oldest.tag, WordsOf(read_events_[i]), ReduceOp::kSum, nullptr, {oldest.peers[i]});
    }
    PSRING_RETURN_IF_ERROR(releases_->Wait(oldest.tag, timeout));
    for (size_t i = 0; i < oldest.peers.size(); ++i) {
      const int peer = oldest.peers[i];
      PSRING_ASSIGN_OR_RETURN(const cudaEvent_t read,
                              NamingPeer(peer, peers_[static_cast<size_t>(peer)]->EventOf(read_events_[i])));
      PSRING_RETURN_IF_ERROR(CudaStatus("cudaStreamWaitEvent", cudaStreamWaitEvent(queue_, read, 0)));
    }
    for (const size_t block : oldest.blocks) blocks_[block].taken = false;
    open_.PopFront();
    return absl::OkStatus();
  }

  // Returns when all ranks are done, or after kPeersTimeout.
  void AwaitPeers() {
    CallInfo last;
    last.number = call_.number + 1;
    absl::string_view("shutdown").copy(last.operation, sizeof last.operation - 1);
    exports_->BeginCall(last);
    const Tag tag = {last.number, 0, 0};
    std::vector<float> words(static_cast<size_t>(size_));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_)
        exports_->Send(peer, tag, ConstSpan(&words[static_cast<size_t>(rank_)], 1), {.copy = true});
    }
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      exports_->Receive(tag, {&words[static_cast<size_t>(peer)], 1}, ReduceOp::kSum, nullptr, {peer});
    }
    (void)exports_->Wait(tag, std::min(timeout_, kPeersTimeout));
  }

  const int rank_, size_;
  const bool some_apart_;
  const std::vector<bool> same_process_;
  const absl::Duration timeout_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Transport> exports_, releases_;
  ExportedRegions regions_;
  ExportedEvents events_;
  std::vector<std::unique_ptr<PeerGpu>> peers_;
  std::vector<Block> blocks_;
  const std::shared_ptr<CudaCallWatch> watch_;
  cudaEvent_t behind_ = nullptr;  // recorded after the last call

  // Of the current call:
  CallInfo call_;
  cudaStream_t queue_ = nullptr;
  bool marked_ = false;  // nothing was enqueued since mark_
  RemoteEvent mark_ = {}, released_ = {};
  absl::Status failed_;  // of functions that return void
  Fifo<OpenExports> open_;
  Fifo<Receiving> receiving_;
  std::vector<int> sources_;              // of the awaited tag
  std::vector<const void*> terms_;        // a member to keep its memory
  std::vector<RemoteEvent> read_events_;  // likewise
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> MakeCudaIpcTransport(CudaIpcParts parts) {
  PSRING_CHECK(parts.reach.why_not.empty());
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, MakeCudaDevice(parts.gpu));
  auto transport = std::make_unique<CudaIpcTransport>(std::move(parts), std::move(device));
  PSRING_RETURN_IF_ERROR(transport->Open());
  return transport;
}

}  // namespace psring
