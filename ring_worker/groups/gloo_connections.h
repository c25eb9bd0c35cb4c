// Closes gloo's connections from outside. Gloo cannot cancel a waiting call and does not expose its sockets,
// but its own thread notices the end of a connection and wakes the waiting call. Used only by gloo.cc.
#pragma once

#include <string>
#include <vector>

namespace psring {

// Shuts down every connected TCP socket of this process whose local or peer address is in `published`: the
// values that gloo's ranks exchanged, which contain their listening addresses in binary form. Returns the
// number of sockets.
int EndConnections(const std::vector<std::string>& published);

}  // namespace psring
