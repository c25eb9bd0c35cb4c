// Ends gloo's connections from outside. Gloo has no call that makes a waiting one return, and its pairs keep
// their sockets to themselves; but the end of a connection is something that its own thread sees and tells
// whoever waits. For gloo.cc alone.
#pragma once

#include <string>
#include <vector>

namespace psring {

// Shuts down every connected TCP socket of this process of which one end's address stands in `published`:
// what gloo's ranks told each other, which holds the addresses that they listen on, as the system writes
// them. The number of sockets.
int EndConnections(const std::vector<std::string>& published);

}  // namespace psring
