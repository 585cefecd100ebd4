/* Writes down every call of a process that changes something under a folder.

   cc -shared -fPIC -o record.so record.c -ldl
   RECORD=/some/file RECORD_UNDER=/some/folder LD_PRELOAD=./record.so program

   A line is a call that went well: its name, the inode, and its arguments, with tabs between;
   paths as they were given, bytes in hex. One lock keeps calls in the order they were made. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int watched(int fd, const char *name, char *out) {
  const char *under = getenv("RECORD_UNDER");
  char link[64];
  ssize_t length = 0;
  if (!under || !getenv("RECORD")) return 0;
  if (fd != AT_FDCWD && (!name || name[0] != '/')) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, out, 4000);
    if (length < 0) return 0;
  }
  out[length] = 0;
  if (name) snprintf(out + length, 4000, "%s%s", length ? "/" : "", name);
  return !strncmp(out, under, strlen(under));
}

static void say(const char *text, size_t size) {
  static int log = -1;
  if (log < 0) log = syscall(SYS_openat, AT_FDCWD, getenv("RECORD"), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (syscall(SYS_write, log, text, size) != (long)size) abort();
}

static void line(const char *call, ino_t inode, const char *one, const char *two) {
  char text[9000];
  say(text, snprintf(text, sizeof text, "%s\t%llu\t%s\t%s\n", call, (unsigned long long)inode, one, two));
}

static ino_t inode_of(const char *path) {
  struct stat found;
  return lstat(path, &found) ? 0 : found.st_ino;
}

static ino_t inode_open(int fd) {
  struct stat found;
  return fstat(fd, &found) ? 0 : found.st_ino;
}

static void wrote(int fd, const unsigned char *data, ssize_t size, off64_t where) {
  char path[9000], *text = malloc(2 * size + 128);
  if (size > 0 && watched(fd, 0, path)) {
    size_t at = sprintf(text, "write\t%llu\t%lld\t", (unsigned long long)inode_open(fd), (long long)where);
    for (ssize_t i = 0; i < size; i++) at += sprintf(text + at, "%02x", data[i]);
    text[at++] = '\n';
    say(text, at);
  }
  free(text);
}

#define NEXT(type, name, parameters) type (*next) parameters = (type (*) parameters)dlsym(RTLD_NEXT, name)
#define IN_TURN(type, call, after)       \
  pthread_mutex_lock(&turn);             \
  type result = call;                    \
  if (result >= 0) { after; }            \
  pthread_mutex_unlock(&turn);           \
  return result

#define SYNC(symbol)                                                               \
  int symbol(int fd) {                                                             \
    NEXT(int, #symbol, (int));                                                     \
    char path[9000];                                                               \
    IN_TURN(int, next(fd), if (watched(fd, 0, path)) line("sync", inode_open(fd), "", "")); \
  }
SYNC(fsync)
SYNC(fdatasync)

static off64_t place(int fd, ssize_t size) {
  off64_t end = lseek64(fd, 0, SEEK_CUR);
  return end - size;
}

ssize_t write(int fd, const void *data, size_t size) {
  NEXT(ssize_t, "write", (int, const void *, size_t));
  IN_TURN(ssize_t, next(fd, data, size), wrote(fd, data, result, place(fd, result)));
}
static void wrote_parts(int fd, const struct iovec *parts, ssize_t left) {
  off64_t where = place(fd, left);
  for (; left > 0; parts++) {
    ssize_t size = (ssize_t)parts->iov_len < left ? (ssize_t)parts->iov_len : left;
    wrote(fd, parts->iov_base, size, where);
    where += size;
    left -= size;
  }
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
  NEXT(ssize_t, "writev", (int, const struct iovec *, int));
  IN_TURN(ssize_t, next(fd, parts, count), wrote_parts(fd, parts, result));
}
#define PWRITE(symbol)                                                   \
  ssize_t symbol(int fd, const void *data, size_t size, off64_t where) { \
    NEXT(ssize_t, #symbol, (int, const void *, size_t, off64_t));        \
    IN_TURN(ssize_t, next(fd, data, size, where), wrote(fd, data, result, where)); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

#define TRUNCATE(symbol)                                                \
  int symbol(int fd, off64_t size) {                                    \
    NEXT(int, #symbol, (int, off64_t));                                 \
    char path[9000], text[32];                                          \
    snprintf(text, sizeof text, "%lld", (long long)size);               \
    IN_TURN(int, next(fd, size), if (watched(fd, 0, path)) line("cut", inode_open(fd), text, "")); \
  }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

static void moved(const char *call, const char *from, const char *to) {
  char path[9000];
  if (watched(AT_FDCWD, to, path)) line(call, inode_of(to), from, to);
}
int rename(const char *from, const char *to) {
  NEXT(int, "rename", (const char *, const char *));
  IN_TURN(int, next(from, to), moved("rename", from, to));
}
int link(const char *from, const char *to) {
  NEXT(int, "link", (const char *, const char *));
  IN_TURN(int, next(from, to), moved("link", from, to));
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
  NEXT(int, "linkat", (int, const char *, int, const char *, int));
  IN_TURN(int, next(a, from, b, to, flags), moved("link", from, to));
}

static void changed(const char *call, int fd, const char *name) {
  char path[9000];
  if (watched(fd, name, path)) line(call, inode_of(path), path, "");
}
int mkdir(const char *path, mode_t mode) {
  NEXT(int, "mkdir", (const char *, mode_t));
  IN_TURN(int, next(path, mode), changed("mkdir", AT_FDCWD, path));
}
int unlink(const char *path) {
  NEXT(int, "unlink", (const char *));
  IN_TURN(int, next(path), changed("unlink", AT_FDCWD, path));
}
int unlinkat(int fd, const char *path, int flags) {
  NEXT(int, "unlinkat", (int, const char *, int));
  IN_TURN(int, next(fd, path, flags), changed("unlink", fd, path));
}
int rmdir(const char *path) {
  NEXT(int, "rmdir", (const char *));
  IN_TURN(int, next(path), changed("unlink", AT_FDCWD, path));
}
#define OPEN(symbol)                                                     \
  int symbol(const char *path, int flags, ...) {                         \
    NEXT(int, #symbol, (const char *, int, ...));                        \
    va_list rest;                                                        \
    va_start(rest, flags);                                               \
    mode_t mode = va_arg(rest, mode_t);                                  \
    va_end(rest);                                                        \
    const char *call = flags & O_TRUNC ? "empty" : "open";               \
    IN_TURN(int, next(path, flags, mode), if (flags & O_CREAT) changed(call, AT_FDCWD, path)); \
  }
OPEN(open)
OPEN(open64)
