#include "common/rendezvous/rendezvous.h"

#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/deadline.h"
#include "common/base/errors.h"
#include "common/measure/trace.h"
#include "common/net/address.h"
#include "common/net/authentication.h"
#include "common/net/grpc_waiting.h"
#include "common/net/host_identity.h"
#include "common/rendezvous/meeting_file.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous_service.h"
#include "common/text/peer_text.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {
namespace {

constexpr int kMaxReplyBytes = 64 << 20;  // the values of all ranks
// The server enforces the call's own timeout; the client's, longer by this, expires only if the store hangs.
constexpr absl::Duration kGrace = absl::Seconds(5);
// Between attempts to reach a store that is not up yet, and the limit of one attempt.
constexpr absl::Duration kBetweenAttempts = absl::Milliseconds(50);
constexpr absl::Duration kLongestAttempt = absl::Seconds(10);
constexpr size_t kMaxErrorBytes = 8192;  // of the store
// Of another process's clock, which is added to ours: 36 years.
constexpr int64_t kLatestNs = int64_t{1} << 60;

// Over an authenticated connection, which is not reopened when it is lost: then this process is lost, too.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, FileDescriptor socket) {
  ChooseGrpcPolling();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  return grpc::CreateCustomInsecureChannelFromFd(address, socket.release(), arguments);
}

class GrpcRendezvous final : public Rendezvous {
  using Stub = proto::Rendezvous::Stub;

 public:
  // `store`: how this process reaches the store; unknown, without a host, if the file says it.
  GrpcRendezvous(const RendezvousOptions& options, HostPort store, std::unique_ptr<RendezvousServer> server,
                 std::unique_ptr<MeetingFile> file)
      : options_(options), store_(std::move(store)), server_(std::move(server)), file_(std::move(file)) {}

  ~GrpcRendezvous() override {
    if (attendance_ != nullptr) {
      proto::LeaveRequest request;
      request.set_member(member_);
      // If the store is gone, there is nothing to leave.
      (void)Call(&Stub::Leave, request, absl::Seconds(2), "while leaving");
      attend_context_->TryCancel();
      answers_pings_.join();
      (void)attendance_->Finish();
      attendance_.reset();
    }
    // The connection closes with the last that uses it. Our own store would wait a second for it.
    attend_context_.reset();
    stub_.reset();
    file_.reset();    // a process that comes now belongs to another run
    server_.reset();  // waits for the others
  }

  absl::Status Join(int rank) {
    const MonotonicTime deadline = MonotonicNow() + options_.timeout;
    PSRING_RETURN_IF_ERROR(Connect(rank, deadline));
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(deadline));
    proto::JoinRequest request;
    request.set_rank(rank);
    request.set_world_size(options_.world_size);
    request.set_process(absl::StrCat(PeerText(HostName()), ":", ::getpid()));
    proto::JoinReply reply;
    const grpc::Status status = stub_->Join(&context, request, &reply);
    if (status.error_code() == grpc::DEADLINE_EXCEEDED) return Unreachable();
    const absl::Status joined = FromGrpc(status, "while joining");
    if (absl::IsAlreadyExists(joined) && !options_.file.empty()) {
      return AlreadyExists(joined.message(), "; concurrent runs need different files");
    }
    PSRING_RETURN_IF_ERROR(joined);
    member_ = reply.member();

    attendance_ = stub_->Attend(attend_context_.get(), &attend_reply_);
    proto::AttendRequest attend;
    attend.set_member(member_);
    if (!attendance_->Write(attend)) {
      const grpc::Status lost = attendance_->Finish();
      attendance_.reset();
      return FromGrpc(lost, "while joining");
    }
    // gRPC reads from a connection that it did not open only while a call waits. Between calls, the store's
    // pings would not be answered, and it would take this process for dead. The store answers this call when
    // the member has left.
    answers_pings_ = std::thread([this] { attendance_->WaitForInitialMetadata(); });
    return absl::OkStatus();
  }

  const RendezvousOptions& options() const override { return options_; }

  absl::Status Set(const std::string& key, const std::string& value) override {
    proto::SetRequest request;
    request.set_key(key);
    request.set_value(value);
    return Call(&Stub::Set, request, options_.timeout + kGrace, absl::StrCat("while setting '", key, "'"))
        .status();
  }

  absl::StatusOr<std::optional<std::string>> TryGet(const std::string& key,
                                                    const std::string& whom) override {
    absl::StatusOr<std::string> value = Get(key, whom, absl::ZeroDuration());
    if (value.ok()) return *std::move(value);
    if (absl::IsDeadlineExceeded(value.status())) return std::nullopt;
    return value.status();
  }

  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom) override {
    return Get(key, whom, options_.timeout);
  }

  absl::Status Surplus() override { return server_ != nullptr ? server_->Surplus() : absl::OkStatus(); }

  absl::StatusOr<std::string> Get(const std::string& key, const std::string& whom, absl::Duration timeout) {
    proto::GetRequest request;
    request.set_key(key);
    request.set_whom(whom);
    request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
    PSRING_ASSIGN_OR_RETURN(proto::GetReply reply, Call(&Stub::Get, request, timeout + kGrace,
                                                        absl::StrCat("while waiting for ", whom)));
    return std::move(*reply.mutable_value());
  }

  absl::Status CheckRanks(const std::string& where) override {
    proto::CheckRanksRequest request;
    request.set_where(where);
    return Call(&Stub::CheckRanks, request, options_.timeout, "while waiting for ranks").status();
  }

  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                         const std::string& name, const std::string& value,
                                                         absl::Duration timeout) override {
    proto::ExchangeRequest request;
    request.set_member(member_);
    request.set_name(name);
    request.set_value(value);
    request.set_timeout_ms(absl::ToInt64Milliseconds(timeout));
    request.mutable_ranks()->Add(ranks.begin(), ranks.end());
    PSRING_ASSIGN_OR_RETURN(proto::ExchangeReply reply, Call(&Stub::Exchange, request, timeout + kGrace,
                                                             absl::StrCat("at exchange '", name, "'")));
    const size_t expected = ranks.empty() ? static_cast<size_t>(options_.world_size) : ranks.size();
    if (static_cast<size_t>(reply.values_size()) != expected) {
      return Internal("rendezvous store at ", Address(), " answered exchange '", name, "' with ",
                      reply.values_size(), " values instead of ", expected);
    }
    return std::vector<std::string>(std::make_move_iterator(reply.mutable_values()->begin()),
                                    std::make_move_iterator(reply.mutable_values()->end()));
  }

  absl::StatusOr<ClockReading> ReadClock() override {
    ClockReading reading;
    reading.asked = MonotonicNanos();
    PSRING_ASSIGN_OR_RETURN(
        const proto::ReadClockReply reply,
        Call(&Stub::ReadClock, proto::ReadClockRequest(), options_.timeout, "while reading its clock"));
    reading.answered = MonotonicNanos();
    reading.theirs = reply.monotonic_ns();
    if (reading.theirs < 0 || reading.theirs > kLatestNs) {
      return Internal("rendezvous store at ", Address(), " sent the time ", reading.theirs, " ns");
    }
    return reading;
  }

 private:
  // Retries until the store is up.
  absl::Status Connect(int rank, MonotonicTime deadline) {
    const Credentials credentials = {.secret = options_.secret, .purpose = Purpose::kRendezvous};
    while (true) {
      const MonotonicTime until = std::min(deadline, MonotonicNow() + kLongestAttempt);
      PSRING_RETURN_IF_ERROR(LookForStore());
      const std::string store = absl::StrCat("the rendezvous store at ", Address());
      absl::StatusOr<FileDescriptor> socket = ConnectToStore(until);
      absl::Status status = socket.status();
      if (status.ok()) {
        absl::StatusOr<MemberSocket> member = AuthenticateTcp(*std::move(socket), credentials, store, until);
        socket = member.ok() ? member->TakeClearText() : absl::StatusOr<FileDescriptor>(member.status());
        status = socket.status();
      }
      if (status.ok()) {
        stub_ = proto::Rendezvous::NewStub(MakeChannel(Address(), *std::move(socket)));
        return status;
      }
      if (IsOtherTls(status, credentials)) {
        socket = ConnectToStore(until);
        if (socket.ok()) (void)ReportOtherTls(socket->get(), credentials, store, until, DetailOf(rank));
      }
      if (absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status)) return status;
      if (MonotonicNow() + kBetweenAttempts >= deadline) return Unreachable();
      absl::SleepFor(kBetweenAttempts);
    }
  }

  // Each time, because an address in the file may be of a run that has just ended.
  absl::Status LookForStore() {
    if (options_.file.empty() || file_ != nullptr) return absl::OkStatus();
    const absl::StatusOr<HostPort> published = ReadMeetingFile(options_.file);
    store_ = published.value_or(HostPort());
    return absl::IsNotFound(published.status()) ? absl::OkStatus() : published.status();
  }

  absl::StatusOr<FileDescriptor> ConnectToStore(MonotonicTime until) const {
    if (store_.host.empty()) return Unavailable("its address is not known");
    return ConnectTcp(store_.host, store_.port, until);
  }

  // As errors name the store.
  std::string Address() const {
    return options_.file.empty() ? AddressText(options_.host, options_.port)
                                 : AddressText(store_.host, store_.port);
  }

  // `when` completes the error message.
  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
                             const Request& request, absl::Duration timeout, const std::string& when) {
    grpc::ClientContext context;
    SetDeadline(context, timeout);
    Reply reply;
    PSRING_RETURN_IF_ERROR(FromGrpc(((*stub_).*method)(&context, request, &reply), when));
    return reply;
  }

  static void SetDeadline(grpc::ClientContext& context, absl::Duration timeout) {
    context.set_deadline(GrpcDeadline(MonotonicNow() + timeout));
  }

  std::string Host() const {
    return options_.hosted_elsewhere ? "the launcher" : absl::StrCat(options_.noun, " 0");
  }

  absl::Status Unreachable() const {
    if (store_.host.empty()) {
      return DeadlineExceeded("waited ", SecondsText(options_.timeout), " for ", Host(),
                              " at the rendezvous file ", options_.file, "; ", Host(), " never joined");
    }
    const std::string& host = options_.file.empty() ? options_.host : store_.host;
    const absl::Status resolved = ResolveHost(host, store_.port).status();
    return DeadlineExceeded("waited ", SecondsText(options_.timeout), " for the rendezvous store at ",
                            Address(), resolved.ok() ? "" : absl::StrCat(" (", resolved.message(), ")"),
                            "; start ", Host(),
                            ", which hosts it, or check MASTER_ADDR, MASTER_PORT and the firewall");
  }

  absl::Status FromGrpc(const grpc::Status& status, const std::string& when) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (status.error_details() == kFromTheStore)
      return absl::Status(code, PeerText(status.error_message(), kMaxErrorBytes));
    switch (status.error_code()) {
      case grpc::DEADLINE_EXCEEDED:
      case grpc::UNAVAILABLE:
      case grpc::CANCELLED: {
        // Of the call, of a ping ("keepalive watchdog timeout") or of TCP ("Connection timed out").
        const bool late = status.error_code() == grpc::DEADLINE_EXCEEDED;
        const bool silent = late || absl::StrContains(status.error_message(), "timeout") ||
                            absl::StrContains(status.error_message(), "timed out");
        return absl::Status(
            late ? code : absl::StatusCode::kUnavailable,
            absl::StrCat("lost the rendezvous store at ", Address(), " ", when, "; ", Host(),
                         ", which hosts it, ",
                         silent ? "does not respond: it is stopped, or the network is down" : "has ended"));
      }
      default:
        return absl::Status(code, absl::StrCat("rendezvous store at ", Address(), " ", when, ": ",
                                               PeerText(status.error_message())));
    }
  }

  const RendezvousOptions options_;
  HostPort store_;
  std::unique_ptr<RendezvousServer> server_;  // if this process hosts the store
  std::unique_ptr<MeetingFile> file_;         // and says so in a file
  std::unique_ptr<Stub> stub_;
  MemberId member_;
  std::unique_ptr<grpc::ClientContext> attend_context_ = std::make_unique<grpc::ClientContext>();
  proto::AttendReply attend_reply_;
  std::unique_ptr<grpc::ClientWriter<proto::AttendRequest>> attendance_;
  std::thread answers_pings_;  // runs while attendance_ is set
};

// Starts rank 0's store, which the others find at options.host or by the file. Sets options.port.
absl::StatusOr<std::unique_ptr<RendezvousServer>> HostStore(RendezvousOptions& options, HostPort& store) {
  if (!options.file.empty()) {
    store.host = options.bind.empty() ? "127.0.0.1" : options.bind;
  } else {
    PSRING_RETURN_IF_ERROR(AwaitHost(options.host, options.timeout).status());
    PSRING_ASSIGN_OR_RETURN(store.host, StoreAddress(options.bind, options.host));
  }
  PSRING_ASSIGN_OR_RETURN(std::unique_ptr<RendezvousServer> server,
                          RendezvousServer::Start(store.host, options.port, options.secret, options.noun));
  options.port = store.port = server->port();
  return server;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Enter(RendezvousOptions options, int rank) {
  options.timeout = std::min(options.timeout, kLongestTimeout);
  if (!options.file.empty()) options.hosted_elsewhere = false, options.port = 0;
  HostPort store;
  std::unique_ptr<RendezvousServer> server;
  std::unique_ptr<MeetingFile> file;
  if (rank == 0 && !options.hosted_elsewhere) {
    PSRING_ASSIGN_OR_RETURN(server, HostStore(options, store));
    if (!options.file.empty()) {
      PSRING_ASSIGN_OR_RETURN(file, MeetingFile::Publish(options.file, store));
    }
  } else if (options.file.empty()) {
    PSRING_ASSIGN_OR_RETURN(store.host, AddressToDial(options.bind, options.host));
    store.port = options.port;
  }
  auto rendezvous =
      std::make_unique<GrpcRendezvous>(options, std::move(store), std::move(server), std::move(file));
  PSRING_RETURN_IF_ERROR(rendezvous->Join(rank));
  return rendezvous;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Join(const RendezvousOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    return InvalidArgument("rank ", options.rank, " does not exist in a world size of ", options.world_size);
  }
  return Enter(options, options.rank);
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Connect(const RendezvousOptions& options) {
  return Enter(options, -1);
}

}  // namespace psring
