// Network namespaces: one for the switch, one for each node, a link between the two.
//
// They have no names in the file system and stand in no list: a namespace lives as long as a process is in it
// or a descriptor of it is open, and only psring and its children have one. So when psring ends, however it
// ends, the kernel takes all of it away, with its interfaces and addresses; there is nothing to find and to
// clean up. The host's own network is not touched, and nothing leads from the namespaces to it.
//
// Addresses, private to the namespaces: the switch has 10.86.255.254, node i 10.86.i/254.i%254+1, all /16.
// Interfaces: "psring0", the bridge, with ports "psring-p<i>"; in a node "eth0".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "experiments/processes/interrupt.h"
#include "experiments/processes/network_place.h"
#include "experiments/virtual_cluster/link.h"
#include "experiments/virtual_cluster/link_counters.h"

namespace psring {

class Namespaces {
 public:
  // Makes them for `nodes` nodes, with iproute2, as root or else in an unprivileged user namespace, and
  // shapes every link in both directions. FailedPrecondition: this host does not allow it, and the message
  // says what failed and what mends it; nothing is left then.
  static absl::StatusOr<std::unique_ptr<Namespaces>> Create(int nodes, double bits_per_s,
                                                            const Interrupt& interrupt);
  ~Namespaces();
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  int nodes() const { return static_cast<int>(net_fds_.size()); }
  NetworkPlace node(int index) const { return {user_fd_, net_fds_[static_cast<size_t>(index)]}; }
  NetworkPlace the_switch() const { return {user_fd_, switch_fd_}; }
  static std::string Address(int node);
  static std::string SwitchAddress();
  // TCP's, the first of cubic and reno that the kernel lets a namespace choose.
  const std::string& congestion_control() const { return congestion_control_; }
  // By node, since they were made. Takes some milliseconds a node.
  absl::StatusOr<std::vector<NodeCounters>> Counters(const Interrupt& interrupt) const;
  // Links serve those who share them in turn; else, in a kernel that cannot do that, in order of arrival.
  bool in_turn() const { return in_turn_; }

 private:
  Namespaces() = default;
  absl::Status Make(int nodes);
  absl::Status Connect(double bits_per_s, const Interrupt& interrupt);
  absl::Status Tune(const NetworkPlace& place);
  absl::Status Shape(double bits_per_s, const Interrupt& interrupt);
  absl::Status ShapeAll(double bits_per_s, const Interrupt& interrupt);
  std::vector<std::string> Shaper(const std::string& interface, const std::string& other_end,
                                  double bits_per_s) const;

  int user_fd_ = -1;
  int switch_fd_ = -1;
  std::vector<int> net_fds_;
  std::string congestion_control_;
  bool in_turn_ = false;
};

// A TCP socket that belongs to the network of `place`, whoever uses it. The caller closes it.
absl::StatusOr<int> OpenSocketIn(const NetworkPlace& place);

// Empty, or why this host cannot make them: what was tried and what the system said.
std::string WhyNoNamespaces(const Interrupt& interrupt);

}  // namespace psring
