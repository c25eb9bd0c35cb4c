#include "common/rendezvous/rendezvous.h"

#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/measure/trace.h"
#include "common/net/address.h"
#include "common/net/grpc_polling.h"
#include "common/rendezvous/file_rendezvous.h"
#include "common/rendezvous/own_address.h"
#include "common/rendezvous/rendezvous_store.h"
#include "proto/rendezvous.grpc.pb.h"

namespace psring {
namespace {

constexpr char kFromTheStore[] = "psring";  // in a status's details: its message is complete
constexpr int kMostMessageBytes = 64 << 20;
// How long a closing store waits for its users, whose last replies may be in transit.
constexpr absl::Duration kLinger = absl::Seconds(5);
// The server enforces the call's own timeout; the client's, longer by this, expires only if the store hangs.
constexpr absl::Duration kGrace = absl::Seconds(5);
// The time between pings, and the time after which a peer that does not answer one is lost.
constexpr int kPingMs = 10'000;
constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 30);

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message()),
                      kFromTheStore);
}

// Each pending call holds a gRPC thread: simple, and sufficient for hundreds of ranks.
class Service final : public proto::Rendezvous::Service {
 public:
  explicit Service(RendezvousStore& store) : store_(store) {}

  grpc::Status Join(grpc::ServerContext*, const proto::JoinRequest* request,
                    proto::JoinReply* reply) override {
    const absl::StatusOr<int64_t> member = store_.Join(
        {.rank = request->rank(), .world_size = request->world_size(), .name = request->process()});
    if (member.ok()) reply->set_member(*member);
    return ToGrpc(member.status());
  }

  grpc::Status Attend(grpc::ServerContext*, grpc::ServerReader<proto::AttendRequest>* reader,
                      proto::AttendReply*) override {
    proto::AttendRequest request;
    if (!reader->Read(&request)) return grpc::Status::OK;
    const int64_t member = request.member();
    while (reader->Read(&request)) {
    }
    store_.Lose(member);
    return grpc::Status::OK;
  }

  grpc::Status Leave(grpc::ServerContext*, const proto::LeaveRequest* request, proto::LeaveReply*) override {
    store_.Leave(request->member());
    return grpc::Status::OK;
  }

  grpc::Status Set(grpc::ServerContext*, const proto::SetRequest* request, proto::SetReply*) override {
    store_.Set(request->key(), request->value());
    return grpc::Status::OK;
  }

  grpc::Status Get(grpc::ServerContext*, const proto::GetRequest* request, proto::GetReply* reply) override {
    absl::StatusOr<std::string> value =
        store_.Get(request->key(), request->whom(), absl::Milliseconds(request->timeout_ms()));
    if (value.ok()) reply->set_value(*std::move(value));
    return ToGrpc(value.status());
  }

  grpc::Status Exchange(grpc::ServerContext*, const proto::ExchangeRequest* request,
                        proto::ExchangeReply* reply) override {
    absl::StatusOr<std::vector<std::string>> values = store_.Exchange(
        request->member(), request->name(), request->value(), absl::Milliseconds(request->timeout_ms()),
        {request->ranks().begin(), request->ranks().end()});
    if (!values.ok()) return ToGrpc(values.status());
    for (std::string& value : *values) reply->add_values(std::move(value));
    return grpc::Status::OK;
  }

  grpc::Status ReadClock(grpc::ServerContext*, const proto::ReadClockRequest*,
                         proto::ReadClockReply* reply) override {
    reply->set_monotonic_ns(MonotonicNanos());
    return grpc::Status::OK;
  }

 private:
  RendezvousStore& store_;
};

class GrpcRendezvousServer final : public RendezvousServer {
 public:
  explicit GrpcRendezvousServer(const std::string& noun) : store_(noun) {}
  ~GrpcRendezvousServer() override {
    store_.WaitUntilEmpty(kLinger);
    store_.Close(absl::UnavailableError("the rendezvous store has been closed by its host"));
    if (server_ != nullptr) server_->Shutdown(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
    if (accepting_.joinable()) {
      ::shutdown(listener_, SHUT_RDWR);  // its accept returns
      accepting_.join();
    }
    if (listener_ >= 0) ::close(listener_);
  }

  absl::Status Listen(const std::string& host, int port) {
    // Checks the address before gRPC does, since gRPC only logs the reason.
    PSRING_RETURN_IF_ERROR(
        CheckThatPortIsFree(host, port, "stop the program that uses it or choose another MASTER_PORT"));
    ChooseGrpcPolling();
    grpc::ServerBuilder builder;
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // otherwise two stores could share one port
    builder.AddListeningPort(AddressText(host, port), grpc::InsecureServerCredentials(), &port_);
    Serve(builder);
    if (server_ != nullptr && port_ > 0) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot serve on ", AddressText(host, port)));
  }

  // gRPC can listen only in its thread's network namespace; so we accept, and gRPC serves.
  absl::Status ListenOn(int listener) {
    ChooseGrpcPolling();
    listener_ = listener;
    sockaddr_in address = {};
    socklen_t length = sizeof address;
    if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      return absl::InternalError(absl::StrCat("cannot serve on the given socket: ", std::strerror(errno)));
    }
    port_ = ntohs(address.sin_port);
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        grpc::InsecureServerCredentials());
    Serve(builder);
    if (server_ == nullptr) return absl::UnavailableError("cannot serve on the given socket");
    accepting_ = std::thread([this] {
      while (true) {
        const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
        if (fd < 0) return;
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
        connection.listener_fd = listener_;
        connection.fd = fd;
        acceptor_->HandleNewConnection(&connection);
      }
    });
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  absl::Status Surplus() override { return store_.Surplus(); }

 private:
  void Serve(grpc::ServerBuilder& builder) {
    builder.SetMaxReceiveMessageSize(kMostMessageBytes);
    // Pings also detect a host that vanishes.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMs / 2);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }

  RendezvousStore store_;
  Service service_{store_};
  int port_ = 0;
  int listener_ = -1;  // on which we accept
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::thread accepting_;
  std::unique_ptr<grpc::Server> server_;  // last: its threads use the members above
};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  ChooseGrpcPolling();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // ranks connect directly, whatever the environment says
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL,
                   1);  // a connection of its own, so that its end is noticed
  // Ranks that start before the store should connect soon after it starts.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);  // in effect the limit of one attempt
  arguments.SetMaxReceiveMessageSize(kMostMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class GrpcRendezvous final : public Rendezvous {
  using Stub = proto::Rendezvous::Stub;

 public:
  // `dial_host`: how this process reaches options.host.
  GrpcRendezvous(const RendezvousOptions& options, const std::string& dial_host,
                 std::unique_ptr<RendezvousServer> server)
      : options_(options),
        address_(AddressText(options.host, options.port)),
        server_(std::move(server)),
        stub_(proto::Rendezvous::NewStub(MakeChannel(AddressText(dial_host, options.port)))) {}

  ~GrpcRendezvous() override {
    if (attendance_ != nullptr) {
      proto::LeaveRequest request;
      request.set_member(member_);
      // If the store is gone, there is nothing to leave.
      (void)Call(&Stub::Leave, request, absl::Seconds(2), "while leaving");
      attend_context_.TryCancel();
      (void)attendance_->Finish();
    }
    stub_.reset();
    server_.reset();  // waits for the others
  }

  absl::Status Join(int rank) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    SetDeadline(context, options_.timeout);
    proto::JoinRequest request;
    request.set_rank(rank);
    request.set_world_size(options_.world_size);
    request.set_process(ProcessName());
    proto::JoinReply reply;
    const grpc::Status status = stub_->Join(&context, request, &reply);
    if (status.error_code() == grpc::DEADLINE_EXCEEDED) return Unreachable();
    PSRING_RETURN_IF_ERROR(FromGrpc(status, "while joining"));
    member_ = reply.member();

    attendance_ = stub_->Attend(&attend_context_, &attend_reply_);
    proto::AttendRequest attend;
    attend.set_member(member_);
    if (!attendance_->Write(attend)) return FromGrpc(attendance_->Finish(), "while joining");
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

  absl::StatusOr<std::vector<std::string>> ExchangeAmong(const std::vector<int>& ranks,
                                                         const std::string& name,
                                                         const std::string& value) override {
    proto::ExchangeRequest request;
    request.set_member(member_);
    request.set_name(name);
    request.set_value(value);
    request.set_timeout_ms(absl::ToInt64Milliseconds(options_.timeout));
    request.mutable_ranks()->Add(ranks.begin(), ranks.end());
    PSRING_ASSIGN_OR_RETURN(
        proto::ExchangeReply reply,
        Call(&Stub::Exchange, request, options_.timeout + kGrace, absl::StrCat("at exchange '", name, "'")));
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
    return reading;
  }

 private:
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
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  }

  std::string Host() const {
    return options_.hosted_elsewhere ? "the launcher" : absl::StrCat(options_.noun, " 0");
  }

  absl::Status Unreachable() const {
    const absl::Status resolved = ResolveHost(options_.host, options_.port).status();
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", SecondsText(options_.timeout), " for the rendezvous store at ", address_,
                     resolved.ok() ? "" : absl::StrCat(" (", resolved.message(), ")"), "; start ", Host(),
                     ", which hosts it, or check MASTER_ADDR, MASTER_PORT and the firewall"));
  }

  absl::Status FromGrpc(const grpc::Status& status, const std::string& when) const {
    if (status.ok()) return absl::OkStatus();
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    if (status.error_details() == kFromTheStore) return absl::Status(code, status.error_message());
    switch (status.error_code()) {
      case grpc::UNAVAILABLE:
      case grpc::CANCELLED:
        return absl::UnavailableError(absl::StrCat("lost the rendezvous store at ", address_, " ", when, "; ",
                                                   Host(), ", which hosts it, has ended"));
      case grpc::UNIMPLEMENTED:
        return absl::FailedPreconditionError(
            absl::StrCat("the program at ", address_, " is not a rendezvous store; check MASTER_PORT"));
      default:
        return absl::Status(
            code, absl::StrCat("rendezvous store at ", address_, " ", when, ": ", status.error_message()));
    }
  }

  const RendezvousOptions options_;
  const std::string address_;
  std::unique_ptr<RendezvousServer> server_;  // if this process hosts the store
  std::unique_ptr<Stub> stub_;
  int64_t member_ = -1;
  grpc::ClientContext attend_context_;
  proto::AttendReply attend_reply_;
  std::unique_ptr<grpc::ClientWriter<proto::AttendRequest>> attendance_;
};

absl::StatusOr<std::unique_ptr<Rendezvous>> Enter(RendezvousOptions options, int rank) {
  options.timeout = std::min(options.timeout, kLongestTimeout);
  if (!options.file.empty()) return EnterFile(options, rank);
  std::string dial_host = options.host;
  std::unique_ptr<RendezvousServer> server;
  if (rank == 0 && !options.hosted_elsewhere) {
    PSRING_ASSIGN_OR_RETURN(dial_host, StoreAddress(options.bind, options.host));
    PSRING_ASSIGN_OR_RETURN(server, RendezvousServer::Start(dial_host, options.port, options.noun));
    options.port = server->port();
  }
  auto rendezvous = std::make_unique<GrpcRendezvous>(options, dial_host, std::move(server));
  PSRING_RETURN_IF_ERROR(rendezvous->Join(rank));
  return rendezvous;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(const std::string& host, int port,
                                                                          const std::string& noun) {
  auto server = std::make_unique<GrpcRendezvousServer>(noun);
  PSRING_RETURN_IF_ERROR(server->Listen(host, port));
  return server;
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::StartOn(int listener) {
  auto server = std::make_unique<GrpcRendezvousServer>("rank");
  PSRING_RETURN_IF_ERROR(server->ListenOn(listener));
  return server;
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Join(const RendezvousOptions& options) {
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " does not exist in a world size of ", options.world_size));
  }
  return Enter(options, options.rank);
}

absl::StatusOr<std::unique_ptr<Rendezvous>> Rendezvous::Connect(const RendezvousOptions& options) {
  return Enter(options, -1);
}

}  // namespace psring
