// LD_PRELOAD library that creates the file PSRING_TEST_MARK, to detect that foreign code has run.
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void MarkAFile() {
  const char* path = getenv("PSRING_TEST_MARK");
  if (path == nullptr) return;
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file >= 0) close(file);
}
