// Network namespaces: one for the switch and one for each node, connected by a link.
//
// The namespaces have no names. Only psring and its children hold descriptors of them, so the kernel removes
// them, with their interfaces and addresses, however psring ends. They are not connected to the host's
// network.
//
// Addresses: the switch has 10.86.255.254, node i 10.86.i/254.i%254+1, all /16.
// Interfaces: the bridge "psring0" with ports "psring-p<i>"; "eth0" in a node.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_descriptor.h"
#include "common/device/child_process.h"
#include "experiments/launch/interrupt.h"
#include "experiments/virtual_cluster/link.h"

namespace psring {

class Namespaces {
 public:
  // Creates the namespaces of `nodes` nodes with iproute2, as root or else in an unprivileged user namespace,
  // and shapes every link in both directions. FailedPrecondition: this host does not allow it; the message
  // states what failed and how to fix it.
  static absl::StatusOr<std::unique_ptr<Namespaces>> Create(int nodes, double bits_per_s,
                                                            const Interrupt& interrupt);

  int nodes() const { return static_cast<int>(nodes_.size()); }
  ChildNetwork node(int index) const { return {user_.get(), nodes_[index].get()}; }
  ChildNetwork switch_network() const { return {user_.get(), switch_.get()}; }
  static std::string Address(int node);
  static std::string SwitchAddress();
  // TCP congestion control: cubic, or reno if the kernel does not let a namespace choose cubic.
  const std::string& congestion_control() const { return congestion_control_; }
  // By node, since its creation. Takes some milliseconds per node.
  absl::StatusOr<std::vector<NodeCounters>> Counters(const Interrupt& interrupt) const;
  // Whether senders that share a link are served round robin; false if the kernel lacks htb or u32.
  bool in_turn() const { return in_turn_; }

 private:
  Namespaces() = default;
  absl::Status Make(int nodes);
  absl::Status Connect(double bits_per_s, const Interrupt& interrupt);
  absl::Status Tune(const ChildNetwork& network);
  absl::Status Shape(double bits_per_s, const Interrupt& interrupt);
  absl::Status ShapeAll(double bits_per_s, const Interrupt& interrupt);
  std::vector<std::string> Shaper(const std::string& interface, const std::string& other_end,
                                  double bits_per_s) const;

  FileDescriptor user_;  // the user namespace; invalid as root
  FileDescriptor switch_;
  std::vector<FileDescriptor> nodes_;
  std::string congestion_control_;
  bool in_turn_ = false;
};

// The path of the system's program `name` ("ip", "tar"); empty: it is not installed.
std::string FindTool(const std::string& name);

// Opens a TCP socket in `network`.
absl::StatusOr<FileDescriptor> OpenSocketIn(const ChildNetwork& network);

// Why this host does not allow namespaces; empty: it does.
std::string WhyNoNamespaces(const Interrupt& interrupt);

}  // namespace psring
