#include "common/io/safetensors.h"

#include "tests/decode_safetensors.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto tensors = psring::DecodeSafetensors(psring::TextOf(data, size));
  if (tensors.ok()) (void)psring::EncodeSafetensors(*tensors, {});
  return 0;
}
