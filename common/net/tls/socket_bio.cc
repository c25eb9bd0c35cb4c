#include "common/net/tls/socket_bio.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

namespace psring {
namespace {

// A BIO's data: twice the socket, plus 1 if more follows.
intptr_t StateOf(BIO* bio) { return reinterpret_cast<intptr_t>(BIO_get_data(bio)); }
int SocketOf(BIO* bio) { return static_cast<int>(StateOf(bio) >> 1); }

int Write(BIO* bio, const char* data, int bytes) {
  const int more = (StateOf(bio) & 1) != 0 ? MSG_MORE : 0;
  ssize_t sent = 0;
  do {
    sent = send(SocketOf(bio), data, static_cast<size_t>(bytes), MSG_NOSIGNAL | more);
  } while (sent < 0 && errno == EINTR);
  BIO_clear_retry_flags(bio);
  if (sent < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int Read(BIO* bio, char* data, int bytes) {
  ssize_t got = 0;
  do {
    got = recv(SocketOf(bio), data, static_cast<size_t>(bytes), 0);
  } while (got < 0 && errno == EINTR);
  BIO_clear_retry_flags(bio);
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// One per process, never freed.
const BIO_METHOD* Method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "psring socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, Write);
    BIO_meth_set_read(made, Read);
    BIO_meth_set_ctrl(made, Control);
    return made;
  }();
  return method;
}

}  // namespace

BIO* NewSocketBio(int socket) {
  BIO* const bio = Method() != nullptr ? BIO_new(Method()) : nullptr;
  if (bio == nullptr) return nullptr;
  SetSocket(bio, socket);
  BIO_set_init(bio, 1);
  return bio;
}

void SetSocket(BIO* bio, int socket) { BIO_set_data(bio, reinterpret_cast<void*>(intptr_t{socket} * 2)); }

void SetMore(BIO* bio, bool more) {
  BIO_set_data(bio, reinterpret_cast<void*>(intptr_t{SocketOf(bio)} * 2 + (more ? 1 : 0)));
}

}  // namespace psring
