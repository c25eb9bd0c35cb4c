// A rendezvous file that other processes have written. The first byte chooses: entries of the keys that a
// rendezvous uses, or any bytes, whose first eight are the number of valid ones.
#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/base/file_descriptor.h"
#include "common/rendezvous/rendezvous.h"
#include "tests/fuzz/input.h"

namespace {

constexpr char kMagic[] = "psring store 1\n\n";
constexpr size_t kHeaderBytes = 40;

std::string BytesOf(uint64_t number, size_t bytes) { return {reinterpret_cast<const char*>(&number), bytes}; }

// Each entry: a byte for its key, one for the length of its value, and the value.
std::string Entries(const uint8_t* data, size_t size) {
  const std::string keys[] = {"member/00000000", "member/00000001", "left/00000001", "refused/00000000",
                              "round/x/0/0",     "round/x/0/1",     "failed/x/0",    "value/k"};
  std::string entries;
  while (size >= 2) {
    const std::string& key = keys[data[0] % 8];
    const size_t length = std::min<size_t>(data[1], size - 2);
    entries += BytesOf(key.size(), 4) + BytesOf(length, 8) + key + psring::TextOf(data + 2, length);
    data += 2 + length;
    size -= 2 + length;
  }
  return entries;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const psring::FuzzFolder folder;
  if (size < 9) return 0;
  const bool has_keys = data[0] % 2 == 0;
  const std::string entries = has_keys ? Entries(data + 1, size - 1) : psring::TextOf(data + 9, size - 9);
  uint64_t end = kHeaderBytes + entries.size();
  if (!has_keys) std::memcpy(&end, data + 1, sizeof end);
  const std::string path = folder.path() + "/meet";
  folder.Put("meet", std::string(kMagic, 16) + std::string(16, 't') + BytesOf(end, 8) + entries);
  // Another process uses the file, as its member 5: otherwise it is a leftover.
  const psring::FileDescriptor other(open(path.c_str(), O_RDWR | O_CLOEXEC));
  flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = (off_t{1} << 40) + 1 + 5;
  lock.l_len = 1;
  if (fcntl(other.get(), F_OFD_SETLK, &lock) != 0) __builtin_trap();

  const auto rank =
      psring::Rendezvous::Join({.rank = 0, .world_size = 2, .file = path, .timeout = absl::ZeroDuration()});
  if (!rank.ok()) return 0;
  (void)(*rank)->TryGet("k", "a value");
  (void)(*rank)->Exchange("x", "mine");
  (void)psring::RequireEqual(**rank, "x", "mine");
  (void)(*rank)->Surplus();
  (void)(*rank)->Set("k", "new");
  return 0;
}
