// Linked into every test program: processes that a test starts do not use the user's own secret file.
#include <cstdlib>

namespace {

[[maybe_unused]] const int set = setenv("PSRING_SECRET", "00112233445566778899aabbccddeeff", /*overwrite=*/1);

}  // namespace
