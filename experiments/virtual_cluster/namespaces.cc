#include "experiments/virtual_cluster/namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/errors.h"
#include "experiments/launch/launcher.h"
#include "experiments/launch/temporary_folder.h"

namespace psring {
namespace {

constexpr char kHowToFix[] =
    "run as root, or sudo sysctl -w kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0 (in a container: --privileged), or use "
    "--shaping userspace";

// Runs `make` in a child process that shares our table of descriptors, so that the one that it opens there,
// or -1 with errno, is open here. `make` may only do what is safe between fork and exec; it sets the step
// that it has reached. `steps` describe the failure of each step.
template <typename Make>
absl::StatusOr<FileDescriptor> FromChild(absl::Span<const char* const> steps, const Make& make) {
  struct Reply {
    int fd = -1, error = EPIPE, step = 0;  // of a child that died
  };
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return absl::InternalError(absl::StrCat("pipe2: ", strerror(errno)));
  }
  const FileDescriptor reader(ends[0]), writer(ends[1]);
  // As fork, but without handlers (see child_process.cc).
  const pid_t pid =
      static_cast<pid_t>(syscall(SYS_clone, CLONE_FILES | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) return absl::InternalError(absl::StrCat("clone: ", strerror(errno)));
  if (pid == 0) {
    Reply reply;
    reply.fd = make(reply.step);
    reply.error = errno != 0 ? errno : EINVAL;
    _exit(write(writer.get(), &reply, sizeof reply) == sizeof reply ? 0 : 1);
  }
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  Reply reply;
  if (read(reader.get(), &reply, sizeof reply) == sizeof reply && reply.fd >= 0) {
    return FileDescriptor(reply.fd);
  }
  return FailedPrecondition(steps[reply.step], ": ", strerror(reply.error));
}

// FromChild inside `network`; `failure` describes the failure of `open`.
template <typename Open>
absl::StatusOr<FileDescriptor> FromNetwork(const ChildNetwork& network, const char* failure,
                                           const Open& open) {
  const char* const steps[] = {"a node's network cannot be entered", failure};
  return FromChild(steps, [&](int& step) {
    if (!EnterNetwork(network)) return -1;
    step = 1;
    return open();
  });
}

bool WriteAtOnce(const char* path, const char* text) {
  const FileDescriptor file(open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), text, strlen(text)) == strlen(text);
}

// A user namespace in which this user is root and owns the networks created there.
absl::StatusOr<FileDescriptor> NewUserNamespace() {
  const std::string users = absl::StrCat("0 ", geteuid(), " 1"), groups = absl::StrCat("0 ", getegid(), " 1");
  static const char* const kSteps[] = {"a user namespace is not permitted", "its user cannot be mapped"};
  return FromChild(kSteps, [&](int& step) {
    if (unshare(CLONE_NEWUSER) != 0) return -1;
    step = 1;
    if (!WriteAtOnce("/proc/self/setgroups", "deny") || !WriteAtOnce("/proc/self/uid_map", users.c_str()) ||
        !WriteAtOnce("/proc/self/gid_map", groups.c_str())) {
      return -1;
    }
    return open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC);
  });
}

absl::StatusOr<FileDescriptor> NewNetworkNamespace(int user_fd) {
  static const char* const kSteps[] = {"the user namespace cannot be entered",
                                       "a network namespace is not permitted"};
  return FromChild(kSteps, [user_fd](int& step) {
    if (user_fd >= 0 && setns(user_fd, CLONE_NEWUSER) != 0) return -1;
    step = 1;
    if (unshare(CLONE_NEWNET) != 0) return -1;
    return open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  });
}

// Runs `tool -batch` with `lines` inside `network`; it inherits the descriptors `inherits`.
absl::Status Batch(const std::string& tool, const ChildNetwork& network,
                   const std::vector<std::string>& lines, const std::vector<int>& inherits,
                   const Interrupt& interrupt) {
  const std::string path = FindTool(tool);
  if (path.empty()) return FailedPrecondition(tool, " is missing: sudo apt-get install -y iproute2");
  PSRING_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Create());
  const std::string file = folder.path() + "/batch";
  std::ofstream(file) << absl::StrJoin(lines, "\n") << "\n";
  LaunchSpec spec{.what = tool,
                  .children = {{.name = tool,
                                .command = {path, "-batch", file},
                                .network = network,
                                .inherits = inherits}},
                  .deadline = absl::Seconds(30)};
  const absl::Status status = RunChildren(spec, interrupt);
  if (status.ok() || status.code() == absl::StatusCode::kCancelled) return status;
  const std::string message(status.message());
  const size_t last = message.find("\n  | ");
  return FailedPrecondition(tool, ": ", last == message.npos ? message : message.substr(last + 5));
}

// The contents of a file of /proc/net inside `network`.
absl::StatusOr<std::string> ReadIn(const ChildNetwork& network, const char* path) {
  PSRING_ASSIGN_OR_RETURN(const FileDescriptor file, FromNetwork(network, "its counters cannot be read", [&] {
                            return open(path, O_RDONLY | O_CLOEXEC);
                          }));
  std::string text;
  char part[4096];
  ssize_t got;
  while ((got = read(file.get(), part, sizeof part)) > 0) text.append(part, got);
  if (got < 0) return absl::InternalError(absl::StrCat(path, ": ", strerror(errno)));
  return text;
}

}  // namespace

std::string FindTool(const std::string& name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    if (access((folder + name).c_str(), X_OK) == 0) return folder + name;
  }
  return "";
}

absl::StatusOr<std::vector<NodeCounters>> Namespaces::Counters(const Interrupt& interrupt) const {
  PSRING_ASSIGN_OR_RETURN(
      const std::string queues,
      RunForOutput({FindTool("tc"), "-s", "qdisc", "show"}, absl::Seconds(30), interrupt, switch_network()));
  std::vector<NodeCounters> counters;
  for (int i = 0; i < nodes(); ++i) {
    PSRING_ASSIGN_OR_RETURN(const std::string snmp, ReadIn(node(i), "/proc/self/net/snmp"));
    PSRING_ASSIGN_OR_RETURN(const std::string netstat, ReadIn(node(i), "/proc/self/net/netstat"));
    NodeCounters& of_node = counters.emplace_back();
    PSRING_ASSIGN_OR_RETURN(of_node.retransmitted_segments, NetworkCounterOf(snmp, "Tcp", "RetransSegs"));
    PSRING_ASSIGN_OR_RETURN(of_node.timeouts, NetworkCounterOf(netstat, "TcpExt", "TCPTimeouts"));
    PSRING_ASSIGN_OR_RETURN(of_node.queue_drops, QueueDropsOf(queues, absl::StrCat("psring-p", i)));
  }
  return counters;
}

absl::StatusOr<FileDescriptor> OpenSocketIn(const ChildNetwork& network) {
  return FromNetwork(network, "a socket cannot be opened there",
                     [] { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
}

std::string Namespaces::Address(int node) {
  return absl::StrFormat("10.86.%d.%d", node / 254, node % 254 + 1);
}
std::string Namespaces::SwitchAddress() { return "10.86.255.254"; }

absl::StatusOr<std::unique_ptr<Namespaces>> Namespaces::Create(int nodes, double bits_per_s,
                                                               const Interrupt& interrupt) {
  PSRING_CHECK(nodes > 0 && nodes < 254 * 255);
  auto namespaces = std::unique_ptr<Namespaces>(new Namespaces());
  absl::Status status = namespaces->Make(nodes);
  if (!status.ok()) {
    return FailedPrecondition(status.message(), "; ", kHowToFix);
  }
  PSRING_RETURN_IF_ERROR(namespaces->Connect(bits_per_s, interrupt));
  return namespaces;
}

absl::Status Namespaces::Make(int nodes) {
  absl::StatusOr<FileDescriptor> first = NewNetworkNamespace(-1);
  if (!first.ok()) {
    PSRING_ASSIGN_OR_RETURN(user_, NewUserNamespace());
    first = NewNetworkNamespace(user_.get());
  }
  PSRING_ASSIGN_OR_RETURN(switch_, std::move(first));
  for (int i = 0; i < nodes; ++i) {
    PSRING_ASSIGN_OR_RETURN(nodes_.emplace_back(), NewNetworkNamespace(user_.get()));
  }
  return absl::OkStatus();
}

absl::Status Namespaces::Connect(double bits_per_s, const Interrupt& interrupt) {
  std::vector<std::string> ip = {"link set lo up", "link add psring0 type bridge", "link set psring0 up",
                                 absl::StrCat("addr add ", SwitchAddress(), "/16 dev psring0")};
  std::vector<int> inherits;
  for (int i = 0; i < nodes(); ++i) {
    const std::string port = absl::StrCat("psring-p", i);
    inherits.push_back(node(i).net_fd);
    ip.push_back(
        absl::StrCat("link add ", port, " type veth peer name eth0 netns /proc/self/fd/", inherits.back()));
    ip.push_back(absl::StrCat("link set ", port, " master psring0 up"));
  }
  PSRING_RETURN_IF_ERROR(Batch("ip", switch_network(), ip, inherits, interrupt));
  PSRING_RETURN_IF_ERROR(Tune(switch_network()));
  for (int i = 0; i < nodes(); ++i) {
    PSRING_RETURN_IF_ERROR(Tune(node(i)));
    std::vector<std::string> own = {"link set lo up", "link set eth0 up",
                                    absl::StrCat("addr add ", Address(i), "/16 dev eth0")};
    if (bits_per_s > 0) {
      own.push_back(absl::StrCat("link set eth0 gso_max_size ", LargestPacketBytes(bits_per_s)));
    }
    PSRING_RETURN_IF_ERROR(Batch("ip", node(i), own, {}, interrupt));
  }
  return bits_per_s > 0 ? Shape(bits_per_s, interrupt) : absl::OkStatus();
}

absl::Status Namespaces::Shape(double bits_per_s, const Interrupt& interrupt) {
  in_turn_ = true;
  absl::Status status = ShapeAll(bits_per_s, interrupt);
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  in_turn_ = false;  // a kernel without htb or u32
  return ShapeAll(bits_per_s, interrupt);
}

absl::Status Namespaces::ShapeAll(double bits_per_s, const Interrupt& interrupt) {
  std::vector<std::string> ports;
  for (int i = 0; i < nodes(); ++i) {
    for (std::string& line : Shaper(absl::StrCat("psring-p", i), "src", bits_per_s)) ports.push_back(line);
    PSRING_RETURN_IF_ERROR(Batch("tc", node(i), Shaper("eth0", "dst", bits_per_s), {}, interrupt));
  }
  return Batch("tc", switch_network(), ports, {}, interrupt);
}

// A token bucket, followed by one queue for each other node, served round robin if the kernel can. With one
// queue for all, TCP shares a link unevenly and repeats differ. Offloads stay on: the kernel counts a large
// packet by the frames it represents. But it splits those that are larger than the bucket
// (LargestPacketBytes).
std::vector<std::string> Namespaces::Shaper(const std::string& interface, const std::string& other_end,
                                            double bits_per_s) const {
  const int64_t queue = QueueBytes(bits_per_s);
  std::vector<std::string> lines = {
      absl::StrFormat("qdisc replace dev %s root handle 1: tbf rate %.0fbit burst %d limit %d", interface,
                      bits_per_s, BurstBytes(bits_per_s), queue)};
  if (!in_turn_) return lines;
  // htb is used only for its round robin; its rates are never reached.
  lines.push_back(absl::StrFormat("qdisc add dev %s parent 1:1 handle 2: htb default ffff", interface));
  const auto add_class = [&](int id) {
    lines.push_back(absl::StrFormat(
        "class add dev %s parent 2: classid 2:%x htb rate 1000gbit burst 1m cburst 1m quantum 65536",
        interface, id));
    lines.push_back(absl::StrFormat("qdisc add dev %s parent 2:%x bfifo limit %d", interface, id, queue));
  };
  add_class(0xffff);  // the rendezvous store's and the switch's own traffic
  for (int other = 0; other < nodes(); ++other) {
    const int id = other + 1;
    add_class(id);
    lines.push_back(
        absl::StrFormat("filter add dev %s parent 2: protocol ip u32 match ip %s %s/32 flowid 2:%x",
                        interface, other_end, Address(other), id));
  }
  return lines;
}

// Sets the usual congestion control, whatever this machine's default is, and disables TCP's metrics cache so
// that repeats do not depend on earlier connections.
absl::Status Namespaces::Tune(const ChildNetwork& network) {
  for (const char* const control : {"cubic", "reno"}) {
    const auto set = FromNetwork(network, "TCP's congestion control cannot be set", [&] {
      WriteAtOnce("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
      const char* const path = "/proc/sys/net/ipv4/tcp_congestion_control";
      if (!WriteAtOnce(path, control)) return -1;
      return open(path, O_RDONLY | O_CLOEXEC);
    });
    if (!set.ok()) continue;
    congestion_control_ = control;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "TCP's congestion control can be set to neither cubic nor reno inside a network namespace");
}

std::string WhyNoNamespaces(const Interrupt& interrupt) {
  const auto namespaces = Namespaces::Create(1, 1e9, interrupt);
  return namespaces.ok() ? "" : std::string(namespaces.status().message());
}

}  // namespace psring
