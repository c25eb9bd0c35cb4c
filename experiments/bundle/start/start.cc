// The entry point of the package's programs: chooses their dynamic loader, because Linux wants its absolute
// path and a package has none. make.sh hides the path from the kernel (PT_INTERP becomes PT_NULL), which then
// starts the program here, without a loader. Start maps the package's ../lib/glibc/ld-linux-x86-64.so.2 as
// the kernel would have done, or the host's if its glibc is not older: it knows the host's drivers and name
// services best. In a build folder the kernel has mapped the loader already.
//
// Freestanding: there is no libc yet, and no relocation has been applied.
#include <elf.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>

extern "C" {
[[gnu::visibility("hidden")]] extern const Elf64_Ehdr __ehdr_start;  // of this program, by the linker
[[gnu::visibility("hidden")]] void _start();                         // of libc: what a program starts with
[[gnu::visibility("hidden")]] uintptr_t PsringChooseLoader(uintptr_t* stack);
}

// The stack is passed on as the kernel has laid it out.
asm(R"(
.globl PsringStart
.type PsringStart, @function
PsringStart:
  xor %ebp, %ebp
  mov %rdx, %r12
  mov %rsp, %r13
  mov %rsp, %rdi
  and $-16, %rsp
  call PsringChooseLoader
  mov %r13, %rsp
  mov %r12, %rdx
  jmp *%rax
.size PsringStart, . - PsringStart
)");

namespace {

constexpr uintptr_t kPage = 4096;
constexpr char kHostLoader[] = "/lib64/ld-linux-x86-64.so.2";
constexpr char kOwnLoader[] = "/lib/glibc/ld-linux-x86-64.so.2";
constexpr char kOwnLibc[] = "$ORIGIN/../lib/glibc:";  // begins DT_RPATH

long Call(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
  long result = number;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
}
long Address(const void* pointer) { return reinterpret_cast<long>(pointer); }
bool Failed(long result) { return result < 0 && result > -4096; }

size_t Length(const char* text) {
  size_t length = 0;
  while (text[length] != 0) ++length;
  return length;
}

bool Begins(const char* text, const char* with) {
  while (*with != 0) {
    if (*text++ != *with++) return false;
  }
  return true;
}

[[noreturn]] void Fail(const char* why) {
  Call(SYS_write, 2, Address("psring: cannot start: "), 22);
  Call(SYS_write, 2, Address(why), static_cast<long>(Length(why)));
  Call(SYS_write, 2, Address("\n"), 1);
  while (true) Call(SYS_exit_group, 127);
}

// A file, mapped for reading.
struct File {
  const char* bytes = nullptr;  // null: there is no such file
  size_t size = 0;
  int descriptor = -1;
};

File Open(const char* path) {
  File file;
  const long opened = Call(SYS_open, Address(path), /*O_RDONLY | O_CLOEXEC=*/02000000);
  if (Failed(opened)) return file;
  const long size = Call(SYS_lseek, opened, 0, /*SEEK_END=*/2);
  const long mapped = size <= 0 ? -1 : Call(SYS_mmap, 0, size, PROT_READ, MAP_PRIVATE, opened);
  if (Failed(mapped)) return file;
  file.bytes = reinterpret_cast<const char*>(mapped);
  file.size = static_cast<size_t>(size);
  file.descriptor = static_cast<int>(opened);
  return file;
}

void Close(const File& file) {
  if (file.bytes == nullptr) return;
  Call(SYS_munmap, Address(file.bytes), static_cast<long>(file.size));
  Call(SYS_close, file.descriptor);
}

// 36 for the loader of glibc 2.36, from "stable release version 2.36."; 0: older than 2.33, or of another
// libc.
int Version(const File& loader) {
  constexpr char kBefore[] = "release version 2.";
  for (size_t at = 0; at + sizeof kBefore + 8 < loader.size; ++at) {
    const char* text = loader.bytes + at;
    if (*text != 'r' || !Begins(text, kBefore)) continue;
    int version = 0;
    for (text += sizeof kBefore - 1; *text >= '0' && *text <= '9' && version < 1000; ++text) {
      version = 10 * version + (*text - '0');
    }
    return version;
  }
  return 0;
}

// Maps the segments of `file` as the kernel does. Returns the address of the first byte.
uintptr_t Map(const File& file) {
  const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file.bytes);
  if (file.size < kPage || !Begins(file.bytes, ELFMAG) || header->e_machine != EM_X86_64 ||
      header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr) > file.size) {
    Fail("the dynamic loader is damaged");
  }
  const auto* const segments = reinterpret_cast<const Elf64_Phdr*>(file.bytes + header->e_phoff);
  uintptr_t size = 0;
  for (int i = 0; i < header->e_phnum; ++i) {
    const uintptr_t end = segments[i].p_vaddr + segments[i].p_memsz;
    if (segments[i].p_type == PT_LOAD && end > size) size = end;
  }
  const long reserved =
      Call(SYS_mmap, 0, static_cast<long>(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  if (Failed(reserved)) Fail("no memory for the dynamic loader");
  const auto base = static_cast<uintptr_t>(reserved);
  for (int i = 0; i < header->e_phnum; ++i) {
    const Elf64_Phdr& segment = segments[i];
    if (segment.p_type != PT_LOAD) continue;
    const int access = ((segment.p_flags & PF_R) != 0 ? PROT_READ : 0) |
                       ((segment.p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                       ((segment.p_flags & PF_X) != 0 ? PROT_EXEC : 0);
    const uintptr_t skipped = segment.p_vaddr % kPage, begin = base + segment.p_vaddr - skipped;
    const uintptr_t file_end = base + segment.p_vaddr + segment.p_filesz;
    const uintptr_t end = base + segment.p_vaddr + segment.p_memsz;
    if (Failed(Call(SYS_mmap, static_cast<long>(begin), static_cast<long>(file_end - begin), access,
                    MAP_PRIVATE | MAP_FIXED, file.descriptor,
                    static_cast<long>(segment.p_offset - skipped)))) {
      Fail("cannot map the dynamic loader");
    }
    if (end == file_end) continue;
    // To the end of the page: the loader allocates from there.
    uintptr_t zero = file_end;
    for (; zero % kPage != 0; ++zero) *reinterpret_cast<volatile char*>(zero) = 0;
    if (zero < end && Failed(Call(SYS_mmap, static_cast<long>(zero), static_cast<long>(end - zero), access,
                                  MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1))) {
      Fail("no memory for the dynamic loader");
    }
  }
  return base;
}

// ROOT/lib/glibc/ld-linux-x86-64.so.2 for the program ROOT/bin/psring.
File OpenOwnLoader() {
  char path[4096 + sizeof kOwnLoader];
  long length = Call(SYS_readlink, Address("/proc/self/exe"), Address(path), 4096);
  if (Failed(length)) Fail("cannot read /proc/self/exe");
  for (int folders = 0; folders < 2 && length > 0;) folders += path[--length] == '/' ? 1 : 0;
  for (size_t i = 0; i < sizeof kOwnLoader; ++i) path[static_cast<size_t>(length) + i] = kOwnLoader[i];
  return Open(path);
}

// The entry of this program's dynamic section with `tag`; null: it has none. `own`: its address.
Elf64_Dyn* Dynamic(uintptr_t own, Elf64_Sxword tag) {
  const auto* const segments = reinterpret_cast<const Elf64_Phdr*>(own + __ehdr_start.e_phoff);
  for (int i = 0; i < __ehdr_start.e_phnum; ++i) {
    if (segments[i].p_type != PT_DYNAMIC) continue;
    for (auto* entry = reinterpret_cast<Elf64_Dyn*>(own + segments[i].p_vaddr); entry->d_tag != DT_NULL;
         ++entry) {
      if (entry->d_tag == tag) return entry;
    }
  }
  return nullptr;
}

// Makes PT_INTERP visible again, which the loader expects.
void ShowLoader(uintptr_t own) {
  auto* const segments = reinterpret_cast<Elf64_Phdr*>(own + __ehdr_start.e_phoff);
  for (int i = 0; i < __ehdr_start.e_phnum; ++i) {
    if (segments[i].p_type != PT_NULL) continue;
    if (Failed(Call(SYS_mprotect, static_cast<long>(own), kPage, PROT_READ | PROT_WRITE))) {
      Fail("cannot write to its header");
    }
    segments[i].p_type = PT_INTERP;
    Call(SYS_mprotect, static_cast<long>(own), kPage, PROT_READ);
  }
}

// Removes the package's libc from the folders in which libraries are searched.
void HideOwnLibc(uintptr_t own) {
  const Elf64_Dyn* const texts = Dynamic(own, DT_STRTAB);
  Elf64_Dyn* const path = Dynamic(own, DT_RPATH);
  if (texts == nullptr || path == nullptr) return;
  const auto* const folders = reinterpret_cast<const char*>(own + texts->d_un.d_ptr + path->d_un.d_val);
  if (Begins(folders, kOwnLibc)) path->d_un.d_val += sizeof kOwnLibc - 1;
}

}  // namespace

// `stack`: argc, arguments, null, environment, null, auxiliary vector. Returns where to jump.
uintptr_t PsringChooseLoader(uintptr_t* stack) {
  uintptr_t* at = stack + 1 + stack[0] + 1;
  while (*at != 0) ++at;
  auto* const first = reinterpret_cast<Elf64_auxv_t*>(at + 1);
  uintptr_t *loader_base = nullptr, *entry = nullptr;
  for (Elf64_auxv_t* value = first; value->a_type != AT_NULL; ++value) {
    if (value->a_type == AT_BASE) loader_base = &value->a_un.a_val;
    if (value->a_type == AT_ENTRY) entry = &value->a_un.a_val;
  }
  const auto begin = reinterpret_cast<uintptr_t>(&_start), self = reinterpret_cast<uintptr_t>(&__ehdr_start);
  // A loader has started this program already; it sets DT_DEBUG.
  const Elf64_Dyn* const debug = Dynamic(self, DT_DEBUG);
  if (loader_base == nullptr || entry == nullptr || (debug != nullptr && debug->d_un.d_ptr != 0))
    return begin;

  const File own = OpenOwnLoader(), host = Open(kHostLoader);
  const bool with_own = own.bytes != nullptr && (host.bytes == nullptr || Version(own) > Version(host));
  const File& loader = with_own ? own : host;
  if (loader.bytes == nullptr) Fail("the package has no lib/glibc, and this machine no glibc");
  ShowLoader(self);
  if (!with_own) HideOwnLibc(self);
  *loader_base = Map(loader);
  *entry = begin;
  const uintptr_t jump = *loader_base + reinterpret_cast<const Elf64_Ehdr*>(loader.bytes)->e_entry;
  Close(own);
  Close(host);
  return jump;
}
