#include "common/net/tls/socket_bio.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace psring {
namespace {

ssize_t SendOnce(int socket, const char* data, size_t bytes, int flags) {
  ssize_t sent = 0;
  do {
    sent = send(socket, data, bytes, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

ssize_t ReceiveOnce(int socket, char* data, size_t bytes) {
  ssize_t got = 0;
  do {
    got = recv(socket, data, bytes, 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

}  // namespace

BIO* SocketBio::New(int socket) {
  BIO* const bio = Method() != nullptr ? BIO_new(Method()) : nullptr;
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, new SocketBio(socket));
  BIO_set_init(bio, 1);
  return bio;
}

SocketBio& SocketBio::Of(BIO* bio) { return *static_cast<SocketBio*>(BIO_get_data(bio)); }

bool SocketBio::Flush(bool more) {
  while (sent_ < waiting_.size()) {
    const ssize_t n =
        SendOnce(socket_, waiting_.data() + sent_, waiting_.size() - sent_, more ? MSG_MORE : 0);
    if (n < 0) return false;
    sent_ += static_cast<size_t>(n);
  }
  waiting_.clear();
  sent_ = 0;
  return true;
}

int SocketBio::Write(BIO* bio, const char* data, int bytes) {
  SocketBio& self = Of(bio);
  BIO_clear_retry_flags(bio);
  if (self.holds_) {
    self.waiting_.insert(self.waiting_.end(), data, data + bytes);
    return bytes;
  }
  const ssize_t sent = SendOnce(self.socket_, data, static_cast<size_t>(bytes), 0);
  if (sent < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int SocketBio::Read(BIO* bio, char* data, int bytes) {
  SocketBio& self = Of(bio);
  BIO_clear_retry_flags(bio);
  ssize_t got = 0;
  if (self.arrived_.empty()) {
    got = ReceiveOnce(self.socket_, data, static_cast<size_t>(bytes));
  } else {
    if (self.begin_ == self.end_) {
      got = ReceiveOnce(self.socket_, self.arrived_.data(), self.arrived_.size());
      self.begin_ = 0;
      self.end_ = static_cast<size_t>(std::max<ssize_t>(got, 0));
    }
    if (self.begin_ < self.end_) {
      got = std::min<ssize_t>(bytes, static_cast<ssize_t>(self.end_ - self.begin_));
      std::memcpy(data, self.arrived_.data() + self.begin_, static_cast<size_t>(got));
      self.begin_ += static_cast<size_t>(got);
    }
  }
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

// One per process, never freed.
const BIO_METHOD* SocketBio::Method() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "psring socket");
    if (made == nullptr) return made;
    BIO_meth_set_write(made, Write);
    BIO_meth_set_read(made, Read);
    BIO_meth_set_ctrl(
        made, [](BIO*, int command, long, void*) -> long { return command == BIO_CTRL_FLUSH ? 1 : 0; });
    BIO_meth_set_destroy(made, [](BIO* bio) {
      delete static_cast<SocketBio*>(BIO_get_data(bio));
      return 1;
    });
    return made;
  }();
  return method;
}

}  // namespace psring
