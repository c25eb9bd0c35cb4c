// Copies and adds payload straight out of the pieces in which it was received.
#pragma once

#include "ps_server/messages.h"

namespace psring {

// `to` has room for all bytes of `pieces`. A piece that stands where it is to go stays.
void CopyPieces(Pieces pieces, std::byte* to);

// to[i] += the i-th float of the pieces put together. Their total is a multiple of four bytes.
void AddPieces(Pieces pieces, float* to);

}  // namespace psring
