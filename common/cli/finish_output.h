#pragma once

#include <string>

namespace psring {

// The exit code of a program that has finished with `code`: 1, with a line on stderr, instead of 0 if stdout
// could not be written, as on a full disk. The last call of every main.
int FinishOutput(const std::string& program, int code);

}  // namespace psring
