// The flags by which a launcher describes a process's link.
#pragma once

#include "common/net/link_shaper.h"

namespace CLI {
class App;
}

namespace psring {

void AddLinkFlags(CLI::App& app, LinkShape& shape);

// Null if `shape` limits nothing.
std::unique_ptr<LinkShaper> MakeLinkShaper(const LinkShape& shape);

}  // namespace psring
