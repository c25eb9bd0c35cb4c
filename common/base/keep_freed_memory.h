#pragma once

namespace psring {

// Makes malloc keep freed memory for the next message, for the whole process: memory that goes back to the
// kernel with every message costs more in page faults than the network does.
void KeepFreedMemory();

}  // namespace psring
