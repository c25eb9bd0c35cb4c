// Loaded into a program by LD_PRELOAD, it leaves the file that PSRING_TEST_MARK names: a trace of foreign
// code.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void MarkAFile() {
  const char* path = getenv("PSRING_TEST_MARK");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
}
