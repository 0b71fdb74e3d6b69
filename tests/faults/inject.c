// TEST ONLY. Preloaded into a process and its children: the n-th system call on a file below FAULT_ROOT fails with a chosen errno.
// The plan is a small file, mapped shared: {long count, at, error, armed; char what[96]}. Calls are counted while `armed` is set.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct plan { long count, at, error, armed; char what[96]; };
static struct plan *plan;
static char root[PATH_MAX];
static size_t root_length;

__attribute__((constructor)) static void begin(void) {
  const char *name = getenv("FAULT_PLAN"), *folder = getenv("FAULT_ROOT");
  if (!name || !folder) return;
  int fd = open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void *at = mmap(0, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  root_length = strlen(strncpy(root, folder, sizeof root - 1));
  if (at != MAP_FAILED) plan = at;
}

static int inside(const char *path) {
  size_t n = path ? strlen(path) : 0;
  if (n > 3 && !strcmp(path + n - 3, ".py")) return 0;  // the interpreter's own, before any code of the tools runs
  if (n > 4 && (!strcmp(path + n - 4, ".pyc") || strstr(path, "__pycache__"))) return 0;
  return !strncmp(path, root, root_length);
}

static int named(int dir, const char *path) {
  char whole[2 * PATH_MAX], cwd[PATH_MAX], link[64];
  if (!path) return 0;
  if (path[0] == '/') return inside(path);
  if (dir == AT_FDCWD) {
    if (!getcwd(cwd, sizeof cwd)) return 0;
  } else {
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, cwd, sizeof cwd - 1);
    if (n < 0) return 0;
    cwd[n] = 0;
  }
  snprintf(whole, sizeof whole, "%s/%s", cwd, path);
  return inside(whole);
}

static int held(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return inside(path);
}

static int fails(int ours, const char *call, const char *path) {
  if (!plan || !plan->armed || !ours) return 0;
  if (__atomic_add_fetch(&plan->count, 1, __ATOMIC_SEQ_CST) != plan->at) return 0;
  const char *last = path ? strrchr(path, '/') : 0;
  snprintf(plan->what, sizeof plan->what, "%s %s", call, last ? last + 1 : path ? path : "");
  errno = (int)plan->error;
  return 1;
}

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    static int (*real)(const char *, int, ...); if (!real) real = dlsym(RTLD_NEXT, #name); \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    if (plan && plan->armed && fails(named(AT_FDCWD, path), #name, path)) return -1; \
    return real(path, flags, mode); }
#define OPENATS(name) \
  int name(int dir, const char *path, int flags, ...) { \
    static int (*real)(int, const char *, int, ...); if (!real) real = dlsym(RTLD_NEXT, #name); \
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    if (plan && plan->armed && fails(named(dir, path), #name, path)) return -1; \
    return real(dir, path, flags, mode); }
OPENS(open)
OPENS(open64)
OPENATS(openat)
OPENATS(openat64)

#define REAL(type, name, params) static type (*real) params; if (!real) real = (type (*) params)dlsym(RTLD_NEXT, #name)
#define BY_PATH(type, bad, name, dir, path, params, args) \
  type name params { REAL(type, name, params); if (plan && plan->armed && fails(named(dir, path), #name, path)) return bad; return real args; }
#define BY_FD(type, name, fd, params, args) \
  type name params { REAL(type, name, params); if (plan && plan->armed && fails(held(fd), #name, 0)) return -1; return real args; }

BY_PATH(FILE *, NULL, fopen, AT_FDCWD, path, (const char *path, const char *mode), (path, mode))
BY_PATH(FILE *, NULL, fopen64, AT_FDCWD, path, (const char *path, const char *mode), (path, mode))
BY_PATH(DIR *, NULL, opendir, AT_FDCWD, path, (const char *path), (path))
BY_PATH(int, -1, mkdir, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
BY_PATH(int, -1, mkdirat, dir, path, (int dir, const char *path, mode_t mode), (dir, path, mode))
BY_PATH(int, -1, rmdir, AT_FDCWD, path, (const char *path), (path))
BY_PATH(int, -1, unlink, AT_FDCWD, path, (const char *path), (path))
BY_PATH(int, -1, unlinkat, dir, path, (int dir, const char *path, int flags), (dir, path, flags))
BY_PATH(int, -1, rename, AT_FDCWD, to, (const char *from, const char *to), (from, to))
BY_PATH(int, -1, renameat, dir, to, (int old, const char *from, int dir, const char *to), (old, from, dir, to))
BY_PATH(int, -1, link, AT_FDCWD, to, (const char *from, const char *to), (from, to))
BY_PATH(int, -1, symlink, AT_FDCWD, to, (const char *from, const char *to), (from, to))
BY_PATH(int, -1, chmod, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
BY_PATH(int, -1, truncate, AT_FDCWD, path, (const char *path, off_t size), (path, size))
BY_FD(ssize_t, read, fd, (int fd, void *to, size_t size), (fd, to, size))
BY_FD(ssize_t, write, fd, (int fd, const void *from, size_t size), (fd, from, size))
BY_FD(ssize_t, pread, fd, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
BY_FD(ssize_t, pread64, fd, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
BY_FD(ssize_t, pwrite, fd, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
BY_FD(ssize_t, pwrite64, fd, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
BY_FD(ssize_t, sendfile, out, (int out, int in, off_t *at, size_t size), (out, in, at, size))
BY_FD(ssize_t, sendfile64, out, (int out, int in, off64_t *at, size_t size), (out, in, at, size))
BY_FD(ssize_t, copy_file_range, out, (int in, off64_t *from, int out, off64_t *at, size_t size, unsigned flags), (in, from, out, at, size, flags))
BY_FD(int, fsync, fd, (int fd), (fd))
BY_FD(int, ftruncate, fd, (int fd, off_t size), (fd, size))
BY_FD(int, ftruncate64, fd, (int fd, off64_t size), (fd, size))
BY_FD(int, fchmod, fd, (int fd, mode_t mode), (fd, mode))
BY_FD(int, flock, fd, (int fd, int how), (fd, how))
