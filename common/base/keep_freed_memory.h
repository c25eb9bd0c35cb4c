#pragma once

namespace psring {

// Makes malloc keep freed memory, for the entire process: returning it to the kernel after every message
// costs more in page faults than the network does.
void KeepFreedMemory();

}  // namespace psring
