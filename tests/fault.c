/* Breaks the n-th file call of a process: SIGKILL, a full disk, or an I/O error.

   cc -shared -fPIC -o fault.so fault.c -ldl
   BREAK=kill:17 BREAK_UNDER=/some/folder LD_PRELOAD=./fault.so program

   Counted, over all threads, are calls that change something under BREAK_UNDER. The action is
   kill, enospc, eio, or count: that one breaks nothing and prints the number at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/types.h>
#include <unistd.h>

static int calls;

static void path_of(int fd, const char *name, char *out, size_t size) {
  char link[64];
  ssize_t length = 0;
  if (fd != AT_FDCWD && (!name || name[0] != '/')) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, out, size - 1);
    if (length < 0) length = 0;
  }
  out[length] = 0;
  if (name) snprintf(out + length, size - length, "/%s", name);
}

static int broken(int fd, const char *name) {
  const char *plan = getenv("BREAK"), *under = getenv("BREAK_UNDER");
  char path[8192];
  if (!plan || !under) return 0;
  path_of(fd, name, path, sizeof path);
  if (!strstr(path, under)) return 0;
  int number = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
  const char *colon = strchr(plan, ':');
  if (!colon || number != atoi(colon + 1)) return 0;
  if (!strncmp(plan, "kill", 4)) { kill(getpid(), SIGKILL); pause(); }
  if (!strncmp(plan, "enospc", 6)) { errno = ENOSPC; return 1; }
  if (!strncmp(plan, "eio", 3)) { errno = EIO; return 1; }
  return 0;
}

__attribute__((destructor)) static void report(void) {
  const char *plan = getenv("BREAK");
  if (plan && !strncmp(plan, "count", 5)) dprintf(2, "calls=%d\n", calls);
}

#define NEXT(type, name, parameters) type (*next) parameters = (type (*) parameters)dlsym(RTLD_NEXT, name)

int fsync(int fd) { NEXT(int, "fsync", (int)); return broken(fd, 0) ? -1 : next(fd); }
ssize_t write(int fd, const void *data, size_t size) {
  NEXT(ssize_t, "write", (int, const void *, size_t));
  return broken(fd, 0) ? -1 : next(fd, data, size);
}
int fdatasync(int fd) { NEXT(int, "fdatasync", (int)); return broken(fd, 0) ? -1 : next(fd); }
ssize_t writev(int fd, const struct iovec *parts, int count) {
  NEXT(ssize_t, "writev", (int, const struct iovec *, int));
  return broken(fd, 0) ? -1 : next(fd, parts, count);
}
#define PWRITE(symbol)                                                      \
  ssize_t symbol(int fd, const void *data, size_t size, off64_t where) {    \
    NEXT(ssize_t, #symbol, (int, const void *, size_t, off64_t));           \
    return broken(fd, 0) ? -1 : next(fd, data, size, where);                \
  }
PWRITE(pwrite)
PWRITE(pwrite64)
int rename(const char *from, const char *to) {
  NEXT(int, "rename", (const char *, const char *));
  return broken(AT_FDCWD, to) ? -1 : next(from, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  NEXT(int, "renameat2", (int, const char *, int, const char *, unsigned));
  if (getenv("NO_EXCHANGE")) { errno = EINVAL; return -1; }
  return broken(b, to) ? -1 : next(a, from, b, to, flags);
}
int link(const char *from, const char *to) {
  NEXT(int, "link", (const char *, const char *));
  return broken(AT_FDCWD, to) ? -1 : next(from, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
  NEXT(int, "linkat", (int, const char *, int, const char *, int));
  return broken(b, to) ? -1 : next(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) {
  NEXT(int, "mkdir", (const char *, mode_t));
  return broken(AT_FDCWD, path) ? -1 : next(path, mode);
}
int unlink(const char *path) {
  NEXT(int, "unlink", (const char *));
  return broken(AT_FDCWD, path) ? -1 : next(path);
}
int unlinkat(int fd, const char *path, int flags) {
  NEXT(int, "unlinkat", (int, const char *, int));
  return broken(fd, path) ? -1 : next(fd, path, flags);
}
int rmdir(const char *path) {
  NEXT(int, "rmdir", (const char *));
  return broken(AT_FDCWD, path) ? -1 : next(path);
}
#define OPEN(symbol)                                                  \
  int symbol(const char *path, int flags, ...) {                      \
    NEXT(int, #symbol, (const char *, int, ...));                     \
    va_list rest;                                                     \
    va_start(rest, flags);                                            \
    mode_t mode = va_arg(rest, mode_t);                               \
    va_end(rest);                                                     \
    if ((flags & O_CREAT) && broken(AT_FDCWD, path)) return -1;       \
    return next(path, flags, mode);                                   \
  }
OPEN(open)
OPEN(open64)
