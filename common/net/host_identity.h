// What distinguishes this host and this process's view of it.
#pragma once

#include <string>

namespace psring {

std::string HostName();  // "unknown-host" if the kernel does not tell

// Equal for processes of one running kernel, and for no others; empty without /proc.
std::string BootId();

// Identifies the namespace of this process, `kind` as in /proc/self/ns: "net", "pid", "time". Empty without
// /proc.
std::string NamespaceId(const char* kind);

}  // namespace psring
