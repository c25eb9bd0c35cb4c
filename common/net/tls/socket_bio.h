// OpenSSL's input and output on a socket.
#pragma once

#include <openssl/bio.h>

namespace psring {

// Unlike OpenSSL's own, it raises no SIGPIPE when the peer has closed the connection, and it never waits.
// Does not own the socket. Null: out of memory.
BIO* NewSocketBio(int socket);

}  // namespace psring
