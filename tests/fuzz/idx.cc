// All four files of a data set have these bytes, plain and compressed as they are.
#include "tests/fuzz/input.h"
#include "tests/test_folder.h"
#include "trainer/data/data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const psring::TestFolder folder;
  // The first byte says how much of the rest is the images.
  if (size == 0) return 0;
  const std::string bytes = psring::TextOf(data + 1, size - 1);
  const size_t middle = (size - 1) * data[0] / 256;
  for (const std::string part : {"train", "t10k"}) {
    folder.Put(part + "-images-idx3-ubyte", bytes.substr(0, middle));
    folder.Put(part + "-labels-idx1-ubyte", bytes.substr(middle));
  }
  (void)psring::LoadData({.name = "mnist", .dir = folder.path()});
  return 0;
}
