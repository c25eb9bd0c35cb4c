// What a program does when a thread cannot start.
#pragma once

namespace psring {

// From the start of a program that links this function: if a thread cannot start because of a limit, the
// process ends with exit code 1 and one line on stderr. Without it, std::thread and gRPC abort the process.
// Does nothing when it is called. With sanitizers, which have their own pthread_create, programs abort.
void ExitIfAThreadCannotStart();

}  // namespace psring
