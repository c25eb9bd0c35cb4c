// A connection of two processes of a job: plain, or encrypted with TLS inside it.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_descriptor.h"

namespace psring {

class TlsRelays;
class TlsSession;

// Two threads may call Send and Receive at the same time. Their errors are Unavailable: the connection is
// lost. Messages continue a sentence about the peer ("rank 1 is lost: ").
class MemberSocket {
 public:
  MemberSocket();  // not valid
  explicit MemberSocket(FileDescriptor plain);
  // `session`, on `socket`. `relays`: for TakeClearText.
  MemberSocket(FileDescriptor socket, std::unique_ptr<TlsSession> session, std::shared_ptr<TlsRelays> relays);
  MemberSocket(MemberSocket&&) noexcept;
  MemberSocket& operator=(MemberSocket&&) noexcept;
  ~MemberSocket();

  bool valid() const { return socket_.valid(); }
  int fd() const { return socket_.get(); }  // for poll()

  // Sends the bytes of `parts`, and returns how many: fewer if the socket would block (one that blocks: at
  // its timeout). The next call must begin with those that were not sent, at least as many: TLS may have
  // encrypted some of them.
  absl::StatusOr<size_t> Send(absl::Span<const iovec> parts);
  absl::StatusOr<size_t> Send(const void* data, size_t bytes);
  // Fills `parts`, and returns the number of bytes: fewer if the socket would block, or at the end. No bytes,
  // and then the end: Unavailable.
  absl::StatusOr<size_t> Receive(absl::Span<const iovec> parts);
  absl::StatusOr<size_t> Receive(void* data, size_t bytes);

  // Receive reads from the socket in larger pieces, for payload. From then on poll() is of use only after a
  // Receive that returned less than was asked for.
  void ReadAhead();

  // Takes the descriptor: of a plain socket to use it otherwise, with TLS to set another one that leads to
  // the same peer (LinkShaper::Shape).
  FileDescriptor TakeDescriptor();
  void SetDescriptor(FileDescriptor socket);

  // A socket in clear text to use instead, for gRPC, which accepts no other: this one, or with TLS a
  // non-blocking local one, from and to which a thread copies (tls_relay.h). It has the semantics of the
  // connection, also of its half-close; a reset appears as the end. Unavailable, ResourceExhausted: out of
  // descriptors or threads.
  absl::StatusOr<FileDescriptor> TakeClearText();

 private:
  FileDescriptor socket_;
  std::unique_ptr<TlsSession> session_;  // null: plain. Uses socket_
  std::shared_ptr<TlsRelays> relays_;
};

}  // namespace psring
