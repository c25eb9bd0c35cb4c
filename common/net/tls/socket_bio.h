// OpenSSL's input and output (BIO) on a socket.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <vector>

namespace psring {

// Unlike OpenSSL's own, it raises no SIGPIPE when the peer has closed the connection, and moves several
// records with one system call. It waits only if the socket does. One thread at a time.
class SocketBio {
 public:
  // Frees this with itself. Null: out of memory. Does not own the socket.
  static BIO* New(int socket);
  // Of a BIO that New has returned.
  static SocketBio& Of(BIO* bio);

  // Uses another socket from now on; -1: every call fails.
  void SetSocket(int socket) { socket_ = socket; }

  // From now on, reads up to `bytes` from the socket at a time.
  void ReadAhead(size_t bytes) { arrived_.resize(bytes); }

  // From now on, what OpenSSL writes waits for Flush.
  void Hold() { holds_ = true; }
  // Sends what waits. False, with errno: not all of it; EAGAIN: call it again when the socket is ready.
  // `more`: the next data follows at once, so the kernel may send both in one segment.
  bool Flush(bool more = false);

 private:
  explicit SocketBio(int socket) : socket_(socket) {}
  static const BIO_METHOD* Method();
  static int Write(BIO* bio, const char* data, int bytes);
  static int Read(BIO* bio, char* data, int bytes);

  int socket_;
  bool holds_ = false;
  std::vector<char> waiting_;  // to be sent
  size_t sent_ = 0;            // of it
  std::vector<char> arrived_;  // bytes [begin_, end_) have not been read by OpenSSL
  size_t begin_ = 0, end_ = 0;
};

}  // namespace psring
