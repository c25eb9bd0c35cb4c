#include "ps_server/wire/wire.h"

#include <grpc/grpc.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/net/grpc_polling.h"
#include "common/reduce/reduce.h"
#include "proto/parameter_server.pb.h"

namespace psring {
namespace {

// Protocol Buffers' encoding: a field is a varint of (number << 3 | type), then a varint (type 0) or a length
// and as many bytes (type 2).
constexpr uint32_t kVarint = 0;
constexpr uint32_t kBytes = 2;
constexpr uint32_t kPayloadField = proto::Chunk::kPayloadFieldNumber;
// Eighteen fields of at most two bytes of tag and ten of value.
constexpr size_t kMaxHeaderBytes = 18 * 12;
constexpr size_t kMostWordBytes = 64;

class HeaderWriter {
 public:
  void Field(uint32_t number, int64_t value) {
    if (value == 0) return;  // proto3's default is not written
    Varint(number << 3 | kVarint);
    Varint(static_cast<uint64_t>(value));
  }
  void BytesField(uint32_t number, size_t length) {
    Varint(number << 3 | kBytes);
    Varint(length);
  }
  grpc::Slice slice() const { return grpc::Slice(data_, size_); }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) data_[size_++] = static_cast<uint8_t>(value | 0x80);
    data_[size_++] = static_cast<uint8_t>(value);
  }
  uint8_t data_[kMaxHeaderBytes];
  size_t size_ = 0;
};

class HeaderReader {
 public:
  HeaderReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool Varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (position_ == size_) return false;
      const uint8_t byte = data_[position_++];
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  size_t position() const { return position_; }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t position_ = 0;
};

bool SetField(uint64_t number, uint64_t value, ChunkHeader& header) {
  switch (number) {
    case proto::Chunk::kKindFieldNumber:
      header.kind = static_cast<MessageKind>(value);
      return value >= 1 && value <= static_cast<uint64_t>(MessageKind::kRewind);
    case proto::Chunk::kBucketFieldNumber:
      header.bucket = static_cast<int>(value);
      return true;
    case proto::Chunk::kOffsetFieldNumber:
      header.offset = value;
      return true;
    case proto::Chunk::kStepFieldNumber:
      header.step = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kSamplesFieldNumber:
      header.samples = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kVersionFieldNumber:
      header.version = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kStalenessFieldNumber:
      header.staleness = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kDroppedFieldNumber:
      header.dropped = value != 0;
      return true;
    case proto::Chunk::kSharedFieldNumber:
      header.shared = value != 0;
      return true;
    case proto::Chunk::kSharedBytesFieldNumber:
      header.shared_bytes = value;
      return true;
    case proto::Chunk::kGradientAtFieldNumber:
      header.gradient_at = value;
      return true;
    case proto::Chunk::kWeightsAtFieldNumber:
      header.weights_at = value;
      return true;
    case proto::Chunk::kCompleteFieldNumber:
      header.complete = static_cast<int64_t>(value);
      return true;
    case proto::Chunk::kSumOfSquaresFieldNumber:
      header.sum_of_squares = std::bit_cast<double>(value);
      return true;
    case proto::Chunk::kIncarnationFieldNumber:
      header.incarnation = value;
      return true;
    case proto::Chunk::kResetsFieldNumber:
      header.resets = value;
      return true;
    case proto::Chunk::kPatienceMsFieldNumber:
      header.patience_ms = static_cast<int64_t>(value);
      return true;
    default:
      return false;
  }
}

static_assert(static_cast<int>(MessageKind::kJoin) == proto::Chunk::JOIN);
static_assert(static_cast<int>(MessageKind::kWeights) == proto::Chunk::WEIGHTS);
static_assert(static_cast<int>(MessageKind::kExchange) == proto::Chunk::EXCHANGE);
static_assert(static_cast<int>(MessageKind::kFetch) == proto::Chunk::FETCH);
static_assert(static_cast<int>(MessageKind::kLeave) == proto::Chunk::LEAVE);
static_assert(static_cast<int>(MessageKind::kAnnounce) == proto::Chunk::ANNOUNCE);
static_assert(static_cast<int>(MessageKind::kNorm) == proto::Chunk::NORM);
static_assert(static_cast<int>(MessageKind::kReset) == proto::Chunk::RESET);
static_assert(static_cast<int>(MessageKind::kBarrier) == proto::Chunk::BARRIER);
static_assert(static_cast<int>(MessageKind::kRewind) == proto::Chunk::REWIND);

}  // namespace

grpc::ByteBuffer EncodeChunk(const ChunkHeader& header, Bytes payload, std::shared_ptr<const void> keep) {
  HeaderWriter writer;
  writer.Field(proto::Chunk::kKindFieldNumber, static_cast<int64_t>(header.kind));
  writer.Field(proto::Chunk::kBucketFieldNumber, header.bucket);
  writer.Field(proto::Chunk::kOffsetFieldNumber, static_cast<int64_t>(header.offset));
  writer.Field(proto::Chunk::kStepFieldNumber, header.step);
  writer.Field(proto::Chunk::kSamplesFieldNumber, header.samples);
  writer.Field(proto::Chunk::kVersionFieldNumber, header.version);
  writer.Field(proto::Chunk::kStalenessFieldNumber, header.staleness);
  writer.Field(proto::Chunk::kDroppedFieldNumber, header.dropped ? 1 : 0);
  writer.Field(proto::Chunk::kSharedFieldNumber, header.shared ? 1 : 0);
  writer.Field(proto::Chunk::kSharedBytesFieldNumber, static_cast<int64_t>(header.shared_bytes));
  writer.Field(proto::Chunk::kGradientAtFieldNumber, static_cast<int64_t>(header.gradient_at));
  writer.Field(proto::Chunk::kWeightsAtFieldNumber, static_cast<int64_t>(header.weights_at));
  writer.Field(proto::Chunk::kCompleteFieldNumber, header.complete);
  writer.Field(proto::Chunk::kSumOfSquaresFieldNumber, std::bit_cast<int64_t>(header.sum_of_squares));
  writer.Field(proto::Chunk::kIncarnationFieldNumber, static_cast<int64_t>(header.incarnation));
  writer.Field(proto::Chunk::kResetsFieldNumber, static_cast<int64_t>(header.resets));
  writer.Field(proto::Chunk::kPatienceMsFieldNumber, header.patience_ms);
  if (payload.empty()) {
    const grpc::Slice slice = writer.slice();
    return grpc::ByteBuffer(&slice, 1);
  }
  writer.BytesField(kPayloadField, payload.size());
  using Keep = std::shared_ptr<const void>;
  const grpc::Slice slices[] = {
      writer.slice(), grpc::Slice(
                          const_cast<std::byte*>(payload.data()), payload.size(),
                          [](void* held) { delete static_cast<Keep*>(held); }, new Keep(std::move(keep)))};
  return grpc::ByteBuffer(slices, 2);
}

void ReceivedChunk::Clear() {
  pieces_.clear();
  slices_.clear();
}

absl::Status ReceivedChunk::Decode(grpc::ByteBuffer& message) {
  Clear();
  header_ = {.kind = static_cast<MessageKind>(0)};
  const absl::Status malformed =
      absl::InvalidArgumentError("a message that is not a chunk of a parameter server");
  const bool readable = message.Dump(&slices_).ok();
  message.Clear();
  if (!readable) return malformed;

  // The header may straddle slices, so it is read from a copy.
  uint8_t head[kMaxHeaderBytes];
  size_t head_bytes = 0, total = 0;
  for (const grpc::Slice& slice : slices_) {
    const size_t copied = std::min(slice.size(), sizeof(head) - head_bytes);
    std::memcpy(head + head_bytes, slice.begin(), copied);
    head_bytes += copied;
    total += slice.size();
  }
  HeaderReader reader(head, head_bytes);
  size_t payload_at = total;
  while (reader.position() < total) {
    uint64_t tag = 0, value = 0;
    if (!reader.Varint(tag) || !reader.Varint(value)) return malformed;
    if (tag == (kPayloadField << 3 | kBytes)) {
      payload_at = reader.position();
      if (value != total - payload_at) return malformed;
      break;
    }
    if ((tag & 7) != kVarint || !SetField(tag >> 3, value, header_)) return malformed;
  }
  if (header_.kind == static_cast<MessageKind>(0)) return malformed;

  size_t skip = payload_at;
  for (const grpc::Slice& slice : slices_) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    if (skipped == slice.size()) continue;
    pieces_.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()) + skipped, slice.size() - skipped);
  }
  return absl::OkStatus();
}

void EncodeJob(const ServerJob& from, proto::Job& to) {
  to.set_workers(from.workers);
  to.set_consistency(from.consistency);
  to.set_deterministic(from.deterministic);
  to.set_serial(from.serial);
  to.set_server(from.server);
  to.set_servers(from.servers);
  to.set_clip_norm(from.clip_norm);
  to.set_staleness_lr(from.staleness_lr);
  to.set_wire(Name(from.wire));
  to.set_parameters(from.parameters);
  for (const Bucket& bucket : from.buckets) {
    proto::Job::Bucket& added = *to.add_buckets();
    added.set_first(bucket.first);
    added.set_count(bucket.count);
  }
  const OptimizerConfig& optimizer = from.optimizer;
  to.mutable_optimizer()->set_name(OptimizerName(optimizer.kind));
  to.mutable_optimizer()->set_momentum(optimizer.momentum);
  to.mutable_optimizer()->set_beta1(optimizer.beta1);
  to.mutable_optimizer()->set_beta2(optimizer.beta2);
  to.mutable_optimizer()->set_epsilon(optimizer.epsilon);
  const LrSchedule& schedule = from.schedule;
  to.mutable_schedule()->set_linear_decay(schedule.decay == LrDecay::kLinear);
  to.mutable_schedule()->set_base(schedule.base);
  to.mutable_schedule()->set_scale(schedule.scale);
  to.mutable_schedule()->set_warmup_samples(schedule.warmup_samples);
  to.mutable_schedule()->set_total_samples(schedule.total_samples);
  to.set_start_step(from.start_step);
  to.set_start_samples(from.start_samples);
  to.set_start_beyond(from.start_beyond);
}

absl::StatusOr<ServerJob> DecodeJob(const proto::Job& job) {
  // Errors repeat these words, and travel in a message of their own.
  for (const std::string* word : {&job.consistency(), &job.wire(), &job.optimizer().name()}) {
    if (word->size() > kMostWordBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a job with a word of ", word->size(), " bytes; the longest has ", kMostWordBytes));
    }
  }
  ServerJob to;
  to.workers = job.workers();
  to.consistency = job.consistency();
  to.deterministic = job.deterministic();
  to.serial = job.serial();
  to.server = job.server();
  to.servers = job.servers();
  to.clip_norm = job.clip_norm();
  to.staleness_lr = job.staleness_lr();
  PSRING_ASSIGN_OR_RETURN(to.wire, ParseDType(job.wire()));
  to.parameters = job.parameters();
  for (const proto::Job::Bucket& bucket : job.buckets()) {
    to.buckets.push_back(
        {.index = static_cast<int>(to.buckets.size()), .first = bucket.first(), .count = bucket.count()});
  }
  PSRING_ASSIGN_OR_RETURN(to.optimizer.kind, ParseOptimizer(job.optimizer().name()));
  to.optimizer.momentum = job.optimizer().momentum();
  to.optimizer.beta1 = job.optimizer().beta1();
  to.optimizer.beta2 = job.optimizer().beta2();
  to.optimizer.epsilon = job.optimizer().epsilon();
  to.schedule = {.decay = job.schedule().linear_decay() ? LrDecay::kLinear : LrDecay::kConstant,
                 .base = job.schedule().base(),
                 .scale = job.schedule().scale(),
                 .warmup_samples = job.schedule().warmup_samples(),
                 .total_samples = job.schedule().total_samples()};
  to.start_step = job.start_step();
  to.start_samples = job.start_samples();
  to.start_beyond = job.start_beyond();
  return to;
}

std::string EncodeJoin(const JoinRequest& request) {
  proto::Join message;
  message.set_protocol(kProtocolVersion);
  message.set_worker(request.worker);
  message.set_memory(request.memory);
  message.set_session(request.session);
  message.set_again(request.again);
  message.set_epoch(request.epoch);
  EncodeJob(request.job, *message.mutable_job());
  return message.SerializeAsString();
}

absl::StatusOr<JoinRequest> DecodeJoin(Pieces payload) {
  std::string bytes;
  for (const Bytes& piece : payload) bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  proto::Join message;
  if (!message.ParseFromString(bytes)) return absl::InvalidArgumentError("a Join that cannot be read");
  if (message.protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", message.worker(), " speaks version ", message.protocol(),
                     " of the parameter server's protocol, and the server version ", kProtocolVersion,
                     "; start both from the same psring"));
  }
  JoinRequest request;
  request.worker = message.worker();
  request.memory = message.memory();
  request.session = message.session();
  request.again = message.again();
  request.epoch = message.epoch();
  PSRING_ASSIGN_OR_RETURN(request.job, DecodeJob(message.job()));
  return request;
}

void KeepGrpcRunning() {
  static const bool running = [] {
    ChooseGrpcPolling();
    grpc_init();
    return true;
  }();
  (void)running;
}

}  // namespace psring
