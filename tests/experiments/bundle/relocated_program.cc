// A program of a package: uses what needs a working loader and libc, and prints the path of the libc.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

thread_local int of_thread = 1;

std::string FileOf(const void* function) {
  Dl_info info = {};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

int Fail(const char* what) {
  std::printf("failed: %s\n", what);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "child") return 42;
  try {
    throw std::runtime_error("thrown");
  } catch (const std::exception&) {
    of_thread = 2;
  }
  int seen = 0;
  std::thread([&] { seen = of_thread; }).join();
  if (seen != 1 || of_thread != 2) return Fail("threads");
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (getaddrinfo("127.0.0.1", "80", &hints, &found) != 0) return Fail("getaddrinfo");
  freeaddrinfo(found);
  if (dlopen("libcuda-that-does-not-exist.so.1", RTLD_NOW) != nullptr) return Fail("dlopen");
  void* const pthread = dlopen("libpthread.so.0", RTLD_NOW);
  if (pthread == nullptr) return Fail(dlerror());
  if (std::cos(static_cast<double>(argc) - argc) != 1) return Fail("cos");

  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return Fail("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    execl(self, self, "child", nullptr);
    _exit(1);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 42)
    return Fail("child");
  const std::string libc = FileOf(reinterpret_cast<void*>(&getaddrinfo));
  std::printf("program %s, %d arguments, libc %s\n", self, argc - 1, libc.c_str());
  return 0;
}
