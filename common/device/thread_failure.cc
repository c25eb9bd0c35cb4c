#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "common/device/task_limit.h"

namespace psring {

void ExitIfAThreadCannotStart() {}

}  // namespace psring

// Replaces the C library's function for all code of the program, including libraries, which calls it.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                              void* argument) noexcept {
  using Function = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "pthread_create"));
  const int error = original(thread, attributes, start, argument);
  if (error != EAGAIN) return error;
  std::fprintf(stderr, "%s: cannot start a thread%s\n", program_invocation_short_name,
               psring::TaskLimitText(error).c_str());
  _exit(1);
}
