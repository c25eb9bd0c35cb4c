// OpenSSL's input and output on a socket.
#pragma once

#include <openssl/bio.h>

namespace psring {

// Unlike OpenSSL's own, it raises no SIGPIPE when the peer has closed the connection. It waits only if the
// socket does. Does not own the socket. Null: out of memory.
BIO* NewSocketBio(int socket);
// Uses another socket from now on; -1: every call fails.
void SetSocket(BIO* bio, int socket);
// `more`: the next write follows at once, so the kernel may send both in one segment.
void SetMore(BIO* bio, bool more);

}  // namespace psring
