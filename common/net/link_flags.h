// The flags by which a launcher tells a process what link it stands on.
#pragma once

#include "common/net/link_shaper.h"

namespace CLI {
class App;
}

namespace psring {

void AddLinkFlags(CLI::App& app, LinkShape& shape);

// Where `shape` holds anything back; else null.
std::unique_ptr<LinkShaper> MakeLinkShaper(const LinkShape& shape);

}  // namespace psring
